"""Markup of the report: escaped HTML and SVG elements, and pages of one file that open offline.

Names and sources come from candidates and are hostile, so that every text and attribute value is escaped here. A page's
policy forbids any script but its own, and the network.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: object) -> str:
    """Escaped text; a replacement character stands for each character that HTML and XML forbid."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


def tag(name: str, content: str = "", **attributes: object) -> str:
    """An element; ``class_`` writes ``class``, underscores become hyphens, floats get two decimals.

    ``content`` is markup: escape text with ``clean`` before.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{content}</{name}>"


def label(x: float, y: float, content: object, **attributes: object) -> str:
    """Text in a picture; ``x`` and ``y`` in pixels."""
    return tag("text", clean(content), x=x, y=y, **attributes)


def title(content: object) -> str:
    """A tooltip."""
    return tag("title", clean(content))


def drawing(width: float, height: float, name: str, *parts: str, standalone: bool = False) -> str:
    """A picture. ``standalone`` embeds colours and fonts, for a file of its own."""
    style = tag("style", resource("picture.css")) if standalone else ""
    ground = tag("rect", width="100%", height="100%", class_="ground") if standalone else ""
    return tag(
        "svg",
        title(name) + style + ground + "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width if standalone else None,
        height=height if standalone else None,
        role="img",
        aria_label=name,
        class_="picture",
    )


def render_page(
    name: str, body: str, *, script: str, styles: Sequence[str], data: Mapping[str, object] | None = None
) -> str:
    """A page as text; ``body`` is markup, ``script`` and ``styles`` are names of files in this package.

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
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{clean(name)}</title>'
        f"<style>{''.join(resource(style) for style in styles)}</style>"
    )
    # an escaped "<" keeps any text in the data from ending the element
    inert = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    block = "" if data is None else f'<script type="application/json" id="data">{inert}</script>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{block}'
        f"<script>{code}</script></body></html>\n"
    )


def section(name: str, content: str) -> str:
    """A headed part of a page; empty without content."""
    return tag("section", tag("h2", clean(name)) + content) if content else ""


def chart(picture: str, name: str, **attributes: object) -> str:
    """A picture that scrolls by touch and by keyboard where the window is too narrow to read it."""
    return tag("div", picture, class_="scroll chart", tabindex="0", role="region", aria_label=name, **attributes)


def note(text: str) -> str:
    """A caption below a picture or table."""
    return tag("p", clean(text), class_="quiet small")


def code(text: str) -> str:
    """Source text with its own line breaks."""
    return tag("pre", tag("code", clean(text)))


def resource(name: str) -> str:
    """The text of a file in this package."""
    return resources.files("tilewright.evolve.report").joinpath(name).read_text(encoding="utf-8")


def require_replaceable(path: Path) -> None:
    """Raises OSError where something is that is no page, such as a journal or a device: a page would replace it."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if (begin := file.read(15)) and begin.lower() != b"<!doctype html>":
            raise OSError(errno.EEXIST, "a file is there that is no report", str(path))


def write_page(path: Path, text: str) -> Path:
    """Write a page, over another one at most. Raises OSError."""
    require_replaceable(path)
    return write_atomically(path, text)


def write_atomically(path: Path, text: str) -> Path:
    """Write ``text`` beside ``path``, then rename, so that no reader sees half a file. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else clean(value)
