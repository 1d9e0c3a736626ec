"""Details beneath a signal-to-noise ratio: a few wrong elements, signs, zeros, more noise than rounding explains.

A ratio over a whole output forgives whatever is small. So each element is held to what its data types explain as well:
one unit in the last place of the output (two roundings), and a share ``worst`` of the reference's root mean square in
its tile of 32 x 32, for sums in float32. Where only rounding is to be expected, the noise of the whole output must be
near that of rounding the reference, too: an accumulator of 8 bits is 2 dB below it where no element is far off.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.seeds.operator import SnrGate

TILE = 32
ROUNDING_DB = 40.0
"""SNR in dB from which a gate without ``worst`` allows for no noise but that of rounding."""

ROUNDED = 2.0**-12
"""Error that sums in float32 explain, as a share of the tile's root mean square: 2^-15 is the most seen."""

INEXACT = 2.0**-8
"""The same for accumulators that keep 14 bits of products of 8-bit floats."""

STEADY, ONE_SIGN = 2.0**-11, 6.0
"""Share of a sum of one sign that the matrix unit loses with each 32 products after the first 32, and how many times
the usual size a sum must have to count as one of one sign. The unit cuts products at 13 places of half the sum; half of
the products lose half of such a place."""

NOISE_DB = 1.5
"""dB of noise allowed beyond that of rounding and of errors of an eighth of ``worst``."""

SIGN = 2.0**-4
"""Share of ``worst`` below which a value may have the other sign or be zero."""

FAINT = 2.0**-8
"""Least root mean square of a tile, as a share of the whole output's."""

LEANING, FEW = (2.0**-7, 2.0**-5, 2.0**-3, np.inf), 32
"""Bounds of groups of elements, as shares of the size usual around them, and the least elements of a group."""

DISTINCT = 512
"""Number of different answers; of fewer, roundings may all go one way."""

CHANCE = 5.0
"""Standard deviations of a count of two equally likely ways that count as chance."""

ALIKE = 22
"""Number of lines that all have one sign with a probability as small as that of ``CHANCE``."""

LEAN = 2.0**-4
"""Share of the answers by which errors may lean to one side."""

OUTLYING = 4.0
"""Median size of an outlying row or column of a tile, over the tile's."""

FLUSHED = -100
"""Least exponent of a dtype below which a device may flush its subnormal numbers to zero."""

TURNED = 2.0**-8
"""Share of the elements whose rounding may differ by more than an eighth of the error of sums explains."""

ROOM = 2.0
"""Factor on medians of 32 sizes, which may be half of the usual size."""

MEDIAN = 0.6745
"""Median size of normally distributed values of standard deviation 1."""


@dataclass(frozen=True)
class Allowance:
    """``worst``: see the module; with ``inexact`` a share of what an outlying element's row and column make usual
    (see ``_reach``). ``sign``: a share of the same kind below which signs may differ.

    ``rounded``: the noise of the whole is judged, too. ``zero``: the share below which an element may be a zero, where
    that is not ``sign``: sums of other roundings come near zero, and do not hit it. ``rare``: the share of elements,
    and two, that may be off by more than ``ROUNDED``. ``lean``: see ``_one_way``. ``steady``: the share of a
    sum of one sign that may be lost in addition.
    """

    worst: float
    sign: float
    rounded: bool
    zero: float | None = None
    inexact: bool = False
    rare: float | None = None
    lean: float | None = None
    steady: float = 0.0


def allowance(gate: SnrGate, least: float = 0.0) -> Allowance:
    """What a gate leaves to one element; ``least`` is what the target's own sums explain.

    A bar below ``ROUNDING_DB`` is a convention on a whole output: outliers of its operands may be far off.
    """
    inexact, sums = least > ROUNDED, max(ROUNDED, least)
    if gate.slack is not None:
        return Allowance(sums, sums, rounded=False, inexact=inexact)
    if gate.worst is not None:
        worst = max(gate.worst, least)
        zero = min(worst, sums) if gate.zero is None else gate.zero
        return Allowance(worst, worst, rounded=False, zero=zero, inexact=inexact, rare=gate.rare, lean=gate.lean)
    if gate.min_db >= ROUNDING_DB:
        sign, lost = (sums, STEADY * max(gate.short / 32 - 1, 0)) if inexact else (sums * SIGN, 0.0)
        return Allowance(sums, sign, rounded=True, inexact=inexact, lean=gate.lean, steady=lost)
    return Allowance(math.inf, math.inf, rounded=False)


def objection(
    output: np.ndarray,
    reference: np.ndarray,
    allowed: Allowance,
    usual: np.ndarray | None = None,
    slack: np.ndarray | None = None,
) -> str | None:
    """One line on what is wrong with single elements; None when all is explained. Finite arrays of one shape.

    ``usual``: how large each element would usually be, from the operands: the root of the sum of its squared products.
    ``slack``: what is left to each element beside, in absolute terms.
    """
    if output.size == 0 or allowed.worst == math.inf:
        return None
    columns = output.shape[-1] if output.ndim else 1
    found = output.astype(np.float64).reshape(-1, columns)
    wanted = reference.astype(np.float64, copy=False).reshape(-1, columns)
    if allowed.lean is not None and (why := _one_way(output, wanted, allowed.lean)):
        return why
    if usual is not None:
        nothing = (usual.reshape(-1, columns) == 0) & (wanted == 0)
        if (place := _first(nothing & (found != 0))) is not None:
            return f"element {_index(place, output)} is not zero, though all its products are"
    rounded, unit = _rounded(wanted, output.dtype)
    around = _around(wanted)
    if slack is not None:
        room = slack.astype(np.float64).reshape(-1, columns) + np.abs(rounded - wanted)
        if _leans(found - wanted, wanted, room + unit + allowed.worst * around, around):
            return "errors lean towards zero or away from it"
        if not slack.any() and (fault := _not_rounded_once(output, found, wanted, rounded, around, allowed)):
            return fault
        unit = unit + slack.astype(np.float64).reshape(-1, columns)
    fault = _objection(output, found, wanted, rounded, unit, around, allowed)
    if fault is None or not allowed.inexact:
        return fault  # the reach, which takes longest, allows for more and never for less
    known = None if usual is None else usual.astype(np.float64).reshape(-1, columns)
    around = np.maximum(around, ROOM * _reach(wanted) if known is None else _outlying(known))
    size = np.abs(wanted)
    lost = 0.0 if known is None else allowed.steady * np.where(size > ONE_SIGN * known, size, 0.0)
    return _objection(output, found, wanted, rounded, unit, around, allowed, lost)


def _objection(
    output: np.ndarray,
    found: np.ndarray,
    wanted: np.ndarray,
    rounded: np.ndarray,
    unit: np.ndarray,
    around: np.ndarray,
    allowed: Allowance,
    lost: np.ndarray | float = 0.0,
) -> str | None:
    """``objection`` with what each element is held to: shares of ``around``, and ``unit`` in its last place; ``lost``
    counts as noise that is to be expected."""
    with np.errstate(all="ignore"):
        error, once = np.abs(found - wanted), np.abs(rounded - wanted)
        beyond = np.nonzero(error > unit)  # few are, and the others are explained
        excess = error[beyond] - (unit[beyond] + once[beyond] + allowed.worst * around[beyond])
        if (first := _first(excess > 0)) is not None:
            place = tuple(int(n[first]) for n in beyond)
            share = error[place] / around[place] if around[place] else np.inf
            return f"element {_index(place, output)} is off by {share:.2g} of what is usual around it"
        if allowed.rare is not None:
            off = np.count_nonzero(error > unit + once + ROUNDED * around)
            if off > 2 + allowed.rare * error.size:
                return f"{off} of {error.size} elements are off by more than sums explain"
        unlike = np.nonzero(~(found * rounded > 0))
        seen, due = found[unlike], rounded[unlike]
        bar = np.where(seen == 0, allowed.sign if allowed.zero is None else allowed.zero, allowed.sign)
        flipped = (np.sign(seen) != np.sign(due)) & (np.abs(wanted[unlike]) > bar * around[unlike] + unit[unlike])
        if (first := _first(flipped)) is not None:
            place = tuple(int(n[first]) for n in unlike)
            what = "zero" if found[place] == 0 else "of the wrong sign"
            return f"element {_index(place, output)} is {what}"
        if allowed.rounded:
            lost = np.hypot(allowed.worst / 8 * around, lost)
            if db := excess_noise(found, wanted, rounded, unit, lost, output):
                return f"{db:.1f} dB more noise than rounding makes"
    return None


def _not_rounded_once(
    output: np.ndarray,
    found: np.ndarray,
    wanted: np.ndarray,
    rounded: np.ndarray,
    around: np.ndarray,
    allowed: Allowance,
) -> str | None:
    """What is wrong where the contract leaves nothing but one rounding: an element is no rounding of what is as near to
    the reference as sums explain, or more than a few are none of what is eight times as near."""
    other = found != rounded
    near, top = wanted[other], float(ml_dtypes.finfo(output.dtype).max)

    def missed(share: float) -> np.ndarray:
        left = share * around[other] + _flushed(output.dtype)
        low, high = (np.clip(near + s * left, -top, top).astype(output.dtype).astype(float) for s in (-1, 1))
        return np.asarray((found[other] < low) | (found[other] > high))

    if (place := _first(missed(allowed.worst))) is not None:
        at = tuple(int(n) for n in np.argwhere(other)[place[0]])
        return f"element {_index(at, output)} is no rounding of what is due"
    count = np.count_nonzero(missed(allowed.worst / 8))
    if count > 2 + TURNED * found.size:
        return f"{count} of {found.size} elements are no roundings of what is due"
    return None


def excess_noise(
    found: np.ndarray,
    wanted: np.ndarray,
    rounded: np.ndarray,
    unit: np.ndarray,
    lost: np.ndarray,
    output: np.ndarray,
    most: float = NOISE_DB,
) -> float:
    """dB of noise beyond that of rounding and what sums have ``lost``, where it is more than ``most`` and chance."""
    error = np.where(np.abs(wanted) < _flushed(output.dtype), 0.0, found - wanted)
    noise, lost = float(np.sum(error * error)), lost * lost
    expected = float(np.sum((rounded - wanted) ** 2) + np.sum(lost))
    beyond = noise > expected * (10 ** (most / 10) + _chance(unit * unit / 12 + lost))
    return float(10 * np.log10(noise / expected)) if beyond else 0.0


def _leans(error: np.ndarray, wanted: np.ndarray, room: np.ndarray, around: np.ndarray) -> bool:
    """Whether errors of small, of middling or of all elements go with the answer by more than chance.

    ``room``: what one error may be; half of it is taken as a standard deviation, and six of them as chance. Where one
    product makes up a sum, its rounding goes with the answer, by a share far below ``LEAN``.
    """
    size = (np.abs(wanted) / np.where(around > 0, around, 1.0)).ravel()
    error, wanted, room = error.ravel(), wanted.ravel(), room.ravel()
    for most in reversed(LEANING):  # each is a part of those before
        some = (size <= most) & (wanted != 0)
        if not some.all():
            error, wanted, room, size = error[some], wanted[some], room[some], size[some]
        lean, chance = error @ wanted, np.linalg.norm(wanted * room) * 3.0
        if size.size >= FEW and not abs(lean) <= max(chance, LEAN * float(wanted @ wanted)):
            return True
    return False


def _one_way(output: np.ndarray, wanted: np.ndarray, most: float) -> str | None:
    """What is wrong with a 16-bit output of which more than the share ``most`` turns one way in the balance, along rows
    and along columns: it is cut and not rounded. Few distinct values may well turn so."""
    found = output.reshape(wanted.shape)
    with np.errstate(all="ignore"):
        normal = np.abs(wanted) >= float(ml_dtypes.finfo(output.dtype).tiny)
        rounded = np.where(normal, wanted.astype(output.dtype), found)
    for what, count, sums in _turned(found, rounded):
        if count > most * found.size and all(map(_agree, sums)) and len(np.unique(wanted)) >= DISTINCT:
            return f"errors go one way, {what}, by {count / found.size:.2g} of a last place"
    return None


def finite(output: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Both with zeros where the reference is no finite number of the output's dtype; None where the output is another
    there. An answer that the dtype does not hold may be infinite or its largest number."""
    if output.dtype.kind in "iub":
        return output, reference
    wide = reference.astype(np.float64, copy=False)
    top = float(ml_dtypes.finfo(output.dtype).max)
    with np.errstate(all="ignore"):  # casting a NaN of some 8-bit type warns
        found = output.astype(np.float64)
        special = ~(np.abs(wide) <= top)
        if not special.any():
            return output, reference
        same = (np.isnan(found) & np.isnan(wide)) | (found == wide)
        over = np.isfinite(wide) & (np.sign(found) == np.sign(wide)) & (np.abs(found) >= top)
    if not (same | over)[special].all():
        return None
    return np.where(special, np.zeros((), output.dtype), output), np.where(special, 0.0, wide)


def turned_one_way(codes: np.ndarray, wanted: np.ndarray) -> str | None:
    """One line where what differs from the reference does so up or down, or towards zero or away, by more than chance.

    Rows and columns count, each with what most of its elements do: what a row's scale is off by turns all of its ties.
    """
    for what, _, sums in _turned(codes, wanted):
        if any(map(_agree, sums)):
            return f"codes that differ do so one way, {what}"
    return None


def _turned(codes: np.ndarray, wanted: np.ndarray) -> Iterator[tuple[str, float, list[np.ndarray]]]:
    """Of what differs from the reference: a way that it may go, how many more elements do so than do not, and the same
    by column and row."""
    if codes.dtype.kind == "b" or codes.ndim < 1:
        return
    places = np.flatnonzero(differing(codes, wanted))
    found, due = (array.reshape(-1)[places].astype(np.float64) for array in (codes, wanted))
    with np.errstate(all="ignore"):
        up = np.nan_to_num(np.sign(found - due))
        away = up * np.nan_to_num(np.sign(due))
    lines = (places % codes.shape[-1], places // codes.shape[-1]) if places.size else ()
    for ways, what in ((up, "up or down"), (away, "towards zero or away from it")):
        yield what, abs(float(ways.sum())), [np.bincount(some, ways) for some in lines]


def _agree(sums: np.ndarray) -> bool:
    """Whether these have one sign by more than chance."""
    signs = np.sign(sums[sums != 0])
    return len(signs) >= ALIKE and abs(float(signs.sum())) > min(CHANCE * math.sqrt(len(signs)), len(signs) - 1)


def turned_too_far(
    codes: np.ndarray, wanted_codes: np.ndarray, worst: float, scales: tuple[np.ndarray, np.ndarray] | None = None
) -> str | None:
    """One line on an element that is farther from the reference than the next code and ``worst`` explain, else None.

    ``scales``: of both, e8m0 codes (uint8) over equal blocks of the last axis. Arrays of the same shapes and dtypes.
    """
    other, scale = differing(codes, wanted_codes), None
    if scales is not None:
        scale = [np.repeat(s.reshape(-1), codes.size // max(s.size, 1)) for s in scales]
        other |= scale[0] != scale[1]
    places = np.flatnonzero(other)
    found, wanted = (array.reshape(-1)[places].astype(np.float64) for array in (codes, wanted_codes))
    unit = [_rounded(array, codes.dtype)[1] for array in (found, wanted)]
    if scale is not None:
        by = [_power(s[places]) for s in scale]
        found, wanted, unit = found * by[0], wanted * by[1], [u * b for u, b in zip(unit, by, strict=True)]
    with np.errstate(all="ignore"):
        error, same = np.abs(found - wanted), (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        far = ~(same | (error <= np.maximum(*unit)))
        if not far.any():
            return None
        due = wanted_codes.astype(np.float64).reshape(-1) * (1.0 if scale is None else _power(scale[1]))
        due = due.reshape(-1, codes.shape[-1] if codes.ndim else 1)
        around = np.maximum(_around(due), ROOM * _reach(due) if worst > ROUNDED else 0.0).reshape(-1)[places]
        far &= ~(error <= np.maximum(*unit) + worst * around)
    if (first := _first(far)) is None:
        return None
    place = divmod(int(places[first]), codes.shape[-1] if codes.ndim else 1)
    return f"element {_index(place, codes)} is {found[first]:.3g} where {wanted[first]:.3g} is due"


def differing(codes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """bool, flat: whether the bits of each element differ. Arrays of one dtype and shape."""
    left, right = (np.ascontiguousarray(array).reshape(-1) for array in (codes, wanted))
    bits = f"u{codes.dtype.itemsize}"
    found: np.ndarray = left.view(bits) != right.view(bits)
    return found


def _chance(variances: np.ndarray) -> float:
    """How far noise may be above what is expected by chance, as a share: the fewer elements make it up, the more.

    One standard deviation of a sum of squares of normally distributed errors, the root of 2 sum(v^2) / sum(v)^2, which
    is several where errors are those of rounding, most of which are known.
    """
    whole = float(variances.sum())
    return math.sqrt(2 * float(np.square(variances).sum())) / whole if whole > 0 else 0.0


def _power(scales: np.ndarray) -> np.ndarray:
    """Values of e8m0 codes: float64."""
    return np.exp2(scales.astype(np.float64) - 127.0)


def _rounded(wanted: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The reference in the output's dtype, and one unit in its last place there."""
    if dtype.kind in "iub":
        return np.rint(wanted), np.ones_like(wanted)
    kind = ml_dtypes.finfo(dtype)
    top, least, flushed = float(kind.max), float(kind.tiny), _flushed(dtype)
    held = np.clip(wanted, -top, top)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(held), least)
        power = (size.view(np.int64) & (0x7FF << 52)).view(np.float64)  # the exponent's bits alone
        unit = power * float(kind.eps)
        unit = np.where(np.abs(held) < flushed, unit + flushed, unit)
        return held.astype(dtype).astype(np.float64), unit


def _flushed(dtype: np.dtype) -> float:
    """Size below which a device may flush a number of this dtype to zero."""
    kind = ml_dtypes.finfo(dtype)
    return float(kind.tiny) if kind.minexp < FLUSHED else 0.0


def _around(wanted: np.ndarray) -> np.ndarray:
    """Root mean square of the reference in each element's tile."""
    rows, columns = wanted.shape
    return np.repeat(np.repeat(_tiles(wanted), TILE, axis=0)[:rows], TILE, axis=1)[:, :columns]


def _tiles(wanted: np.ndarray) -> np.ndarray:
    """Root mean square of the reference by tile: float64 [tile rows, tile columns]."""
    square, edges = wanted * wanted, [np.arange(0, size, TILE) for size in wanted.shape]
    high, wide = (np.diff(np.append(at, size)) for at, size in zip(edges, wanted.shape, strict=True))
    least = FAINT * float(np.sqrt(square.mean()))
    sums = np.add.reduceat(np.add.reduceat(square, edges[0], axis=0), edges[1], axis=1)
    tiles: np.ndarray = np.maximum(np.sqrt(sums / np.outer(high, wide)), least)
    return tiles


def _reach(wanted: np.ndarray) -> np.ndarray:
    """How large each element would usually be for its row and its column: what it is the sum of is about as large.

    Where an outlying row and an outlying column cross, the products are larger than anything around, and an accumulator
    of a few bits is off by a share of them, however small their sum turned out. Medians of a tile's rows and columns,
    which such an element does not move; 0 where neither is outlying, or half of a tile is zero.
    """

    def reach(tiles: np.ndarray) -> np.ndarray:
        rows = np.median(tiles, axis=2, keepdims=True)
        columns = np.median(tiles, axis=0, keepdims=True)
        middle = np.median(tiles, axis=(0, 2), keepdims=True)
        outlying = np.maximum(rows, columns) > OUTLYING * middle
        return np.where(outlying & (middle > 0), rows * columns / middle, 0.0) / MEDIAN

    return _by_tiles(np.abs(wanted), reach)


def _outlying(usual: np.ndarray) -> np.ndarray:
    """The same where it is known, of elements that are usually larger than others of their tile; 0 elsewhere.

    A tile of few rows has no medians of columns to speak of.
    """

    def reach(tiles: np.ndarray) -> np.ndarray:
        middle = np.median(tiles, axis=(0, 2), keepdims=True)
        return np.where(tiles > OUTLYING * middle, tiles, 0.0)

    return _by_tiles(usual, reach)


def _by_tiles(size: np.ndarray, reach: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``reach`` of the tiles, [rows, tiles, columns] at a time, the last ones narrower."""
    found = np.zeros_like(size)
    for down in range(0, size.shape[0], TILE):
        strip = size[down : down + TILE]
        whole = strip.shape[1] // TILE * TILE
        parts = [strip[:, :whole].reshape(len(strip), -1, TILE), strip[:, None, whole:]]
        place = 0
        for tiles in (part for part in parts if part.size):
            width = tiles.shape[1] * tiles.shape[2]
            with np.errstate(all="ignore"):
                made = np.broadcast_to(reach(tiles), tiles.shape).reshape(len(strip), width)
            found[down : down + TILE, place : place + width] = made
            place += width
    return found


def _first(mask: np.ndarray) -> tuple[int, ...] | None:
    if not mask.any():
        return None
    return tuple(int(n) for n in np.argwhere(mask)[0])


def _index(place: tuple[int, ...], output: np.ndarray) -> list[int]:
    """Its index in the output's own shape."""
    columns = output.shape[-1] if output.ndim else 1
    return [int(n) for n in np.unravel_index(place[0] * columns + place[1], output.shape or (1,))]
