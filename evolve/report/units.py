"""Numbers as people read them. Every text carries its unit."""

from __future__ import annotations

import math
from collections.abc import Sequence


def time_text(seconds: float) -> str:
    """``8.12e-05`` -> ``81.2 µs``."""
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds)} s"


def duration_text(seconds: float) -> str:
    """Wall time: ``74.2`` -> ``1 min 14 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rate_text(rate: float, unit: str = "TFLOP/s") -> str:
    return f"{_digits(rate)} {unit}"


def percent_text(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


def gain_text(ratio: float) -> str:
    """A ratio of rates as a change: ``1.074`` -> ``+7.4 %``; from double on, ``×2.41``."""
    if ratio >= 2:
        return f"×{ratio:.2f}"
    return f"{(ratio - 1) * 100:+.1f} %"


def money_text(amount: float) -> str:
    """Two decimals, and of small amounts two digits: ``0.0013``."""
    if amount == 0.0 or amount >= 0.1:
        return f"{amount:.2f}"
    return f"{amount:.{1 - math.floor(math.log10(amount))}f}"


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


def ticks(low: float, high: float, count: int = 5) -> Sequence[float]:
    """Round values that cover [low, high], about ``count`` of them."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return [low]
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:#.3g}"
