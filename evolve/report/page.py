"""Pages of one file each that open offline; their policy forbids any script but their own, and the network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from tilewright.evolve.report.svg import clean, tag


def render_page(title: str, body: str, *, script: str, styles: Sequence[str], data: Any = None) -> str:
    """A whole page; ``body`` is markup, ``script`` and ``styles`` are names of files in this package.

    ``data`` goes into the page as JSON for the script to read, in an element with the id ``data``.
    """
    code = resource(script)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{clean(title)}</title>'
        f"<style>{''.join(resource(name) for name in styles)}</style>"
    )
    block = "" if data is None else f'<script type="application/json" id="data">{_inert(data)}</script>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{block}'
        f"<script>{code}</script></body></html>\n"
    )


def section(name: str, content: str) -> str:
    """A headed part of a page; nothing without content."""
    return tag("section", tag("h2", clean(name)) + content) if content else ""


def chart(picture: str, label: str, **attributes: object) -> str:
    """A picture that scrolls by touch and by keyboard where the window is narrower than it is readable."""
    return tag(
        "div", picture, class_="scroll chart", tabindex="0", role="region", aria_label=label, **attributes
    )


def note(text: str) -> str:
    """One line below a picture or table."""
    return tag("p", clean(text), class_="quiet small")


def resource(name: str) -> str:
    """The text of a file in this package."""
    return resources.files("tilewright.evolve.report").joinpath(name).read_text(encoding="utf-8")


def _inert(data: Any) -> str:
    """JSON in which nothing can end the element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
