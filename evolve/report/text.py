"""Figures and sources as text. Every figure carries its unit."""

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of terminals, direction marks (which hide what a line says) and lone surrogates."""


def printable(text: str) -> str:
    """One line that is safe on a terminal: control characters are written as escapes, tabs as four spaces."""
    return _CONTROL.sub(lambda m: repr(m[0])[1:-1], text.replace("\t", "    "))


def shorten(text: str, most: int) -> str:
    """``text`` in at most ``most`` characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"


def time_text(seconds: float) -> str:
    """``8.12e-05`` -> ``81.2 µs``."""
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds)} s"


def duration_text(seconds: float) -> str:
    """Wall time: ``74.2`` -> ``1 min 14 s``."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{seconds:.1f} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def rate_text(rate: float, unit: str = "TFLOP/s") -> str:
    return f"{_digits(rate)} {unit}"


def percent_text(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


def gain_text(ratio: float) -> str:
    """A ratio of rates in a table: ``1.0`` -> ``none``, ``1.074`` -> ``+7.4 %``; from double on, ``×2.41``."""
    if ratio == 1:
        return "none"
    return f"×{ratio:.2f}" if ratio >= 2 else f"{(ratio - 1) * 100:+.1f} %"


def speed_text(ratio: float, other: str) -> str:
    """A ratio of rates in a sentence: ``1.45 × faster than bf16`` or ``1.10 × slower than bf16``."""
    return f"{ratio:.2f} × faster than {other}" if ratio >= 1 else f"{1 / ratio:.2f} × slower than {other}"


def number_text(value: object) -> str:
    """Any figure of a diagnosis."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 10):
        return f"{int(value):,}".replace(",", " ")
    return f"{value:.4g}"


def bytes_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:#.3g}"
