"""A minimal SVG writer. Every text and attribute value is escaped: names and sources are hostile."""

from __future__ import annotations

import re
from html import escape
from importlib import resources

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: object) -> str:
    """Escaped text without characters that HTML and XML forbid."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


def tag(name: str, content: str = "", **attributes: object) -> str:
    """An element; ``class_`` writes ``class``, underscores become hyphens, floats get two decimals.

    ``content`` is markup: escape text with ``clean`` before.
    """
    pairs = "".join(f' {_name(k)}="{_value(v)}"' for k, v in attributes.items() if v is not None)
    return f"<{name}{pairs}>{content}</{name}>"


def text(x: float, y: float, content: object, **attributes: object) -> str:
    return tag("text", clean(content), x=x, y=y, **attributes)


def title(content: object) -> str:
    """A tooltip."""
    return tag("title", clean(content))


def drawing(width: float, height: float, label: str, *parts: str, standalone: bool = False) -> str:
    """The whole picture. ``standalone`` embeds colours and fonts, for a file of its own."""
    style = tag("style", stylesheet()) if standalone else ""
    ground = tag("rect", width="100%", height="100%", class_="ground") if standalone else ""
    return tag(
        "svg",
        title(label) + style + ground + "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width if standalone else None,
        height=height if standalone else None,
        role="img",
        aria_label=label,
        class_="picture",
    )


def stylesheet() -> str:
    """Colours of pictures, shared by the report and by single files."""
    return resources.files("tilewright.evolve.report").joinpath("picture.css").read_text(encoding="utf-8")


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else clean(value)
