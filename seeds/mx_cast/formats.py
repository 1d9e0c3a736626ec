"""Microscaling formats on the host: the scale rules, the casts and the swizzled layout, in float64 and by frexp.

Definitions (OCP Microscaling 1.0; the four rules as published training libraries have them; block 1 x 32, e8m0 scale
2^(e - 127), e = 255 for a block that holds NaN or an infinity). With amax the block's largest magnitude and emax the
exponent of the format's largest value (8 for e4m3, 2 for e2m1):
    FLOOR  e = floor(log2 amax) - emax + 127
    CEIL   the same, plus 1 unless amax is a power of two
    EVEN   FLOOR of amax rounded, half up, to as many mantissa bits as the format has
    RCEIL  e = ceil(log2(amax x float32(1 / max))) + 127, the product rounded to float32
each clamped to 0 .. 254, and payload = RNE cast of clamp(x * 2^(127 - e), +-max). A library may divide by
max(2^(e - 127), 2^-126) instead, which differs for amax < 2^-118 only.
NVFP4: blocks of 16, e4m3 scale = cast of clamp((amax / 6) / t, 2^-6, 448) with one float32 t per tensor, and
payload = RNE cast of clamp(x * ((1 / t) / scale), +-6) to e2m1, two per byte, the first in the low nibble.
Every payload code of a block with NaN or an infinity is NaN (0x7f) in e4m3 and 0 in e2m1; its NVFP4 scale is 0x7f.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import ml_dtypes
import numpy as np

BLOCK = 32
NV_BLOCK = 16
E4M3_NAN = 0x7F


class Rule(IntEnum):
    """How a block's largest magnitude becomes a power of two."""

    FLOOR = 0
    CEIL = 1
    EVEN = 2
    RCEIL = 3


@dataclass(frozen=True)
class Element:
    """A payload format: its numpy type, largest value, exponent of that value, mantissa bits."""

    dtype: type
    largest: float
    emax: int
    mantissa: int


E4M3 = Element(ml_dtypes.float8_e4m3fn, 448.0, 8, 3)
E2M1 = Element(ml_dtypes.float4_e2m1fn, 6.0, 2, 1)


def exponents(amax: np.ndarray, rule: Rule, element: Element) -> np.ndarray:
    """Block maxima (float32, NaN or inf for a bad block) -> biased e8m0 exponents, uint8."""
    good = np.isfinite(amax)
    held = np.where(good, amax, np.float32(1.0)).astype(np.float32)
    if rule is Rule.RCEIL:
        fraction, power = np.frexp((held * np.float32(1.0 / element.largest)).astype(np.float64))
        e = power - (fraction == 0.5) + 127
    else:
        fraction, power = np.frexp(held.astype(np.float64))
        e = power - 1 - element.emax + 127
        if rule is Rule.CEIL:
            e = e + (fraction != 0.5)
        elif rule is Rule.EVEN:
            e = e + (fraction >= 1.0 - 2.0 ** -(element.mantissa + 2))
    e = np.where(held == 0, 0, e)
    return np.where(good, np.clip(e, 0, 254), 255).astype(np.uint8)


def amax_of(blocks: np.ndarray) -> np.ndarray:
    """Largest magnitude along the last axis, float32; NaN or inf where a block holds one."""
    return np.abs(blocks.astype(np.float32)).max(axis=-1)


def round_to(values: np.ndarray, element: Element) -> np.ndarray:
    """float64 -> the format's codes (uint8), to nearest even, saturating."""
    clipped = np.clip(values, -element.largest, element.largest)
    return clipped.astype(element.dtype).view(np.uint8)


def cast_rows(x: np.ndarray, rule: Rule, element: Element) -> tuple[np.ndarray, np.ndarray]:
    """1 x 32 blocks of ``x`` [R, C] -> (codes [R, C] uint8, exponents [R, C/32] uint8)."""
    rows, cols = x.shape
    blocks = x.astype(np.float64).reshape(rows, cols // BLOCK, BLOCK)
    e = exponents(amax_of(blocks), rule, element)
    bad = e == 255
    factor = np.exp2(127.0 - np.where(bad, 127, e).astype(np.float64))
    codes = round_to(np.where(bad[:, :, None], 0.0, blocks) * factor[:, :, None], element)
    filler = E4M3_NAN if element is E4M3 else 0
    return np.where(bad[:, :, None], np.uint8(filler), codes).reshape(rows, cols), e


def cast_nvfp4(x: np.ndarray, tensor_scale: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """1 x 16 blocks of ``x`` [R, C] -> (codes [R, C] uint8, e4m3 scales [R, C/16] as uint8)."""
    rows, cols = x.shape
    blocks = x.astype(np.float32).reshape(rows, cols // NV_BLOCK, NV_BLOCK)
    amax = amax_of(blocks)
    bad = ~np.isfinite(amax)
    wanted = (np.where(bad, np.float32(0), amax) / np.float32(6.0)) / tensor_scale
    scale = np.clip(wanted, 2.0**-6, 448.0).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    factor = (np.float32(1.0) / tensor_scale) / scale.astype(np.float32)
    scaled = np.where(bad[:, :, None], np.float32(0), blocks) * factor[:, :, None]
    codes = np.where(bad[:, :, None], np.uint8(0), round_to(scaled.astype(np.float64), E2M1))
    return codes.reshape(rows, cols), np.where(bad, np.uint8(E4M3_NAN), scale.view(np.uint8))


def packed(codes: np.ndarray) -> np.ndarray:
    """e2m1 codes [R, C] -> bytes [R, C/2], the first of a pair in the low nibble."""
    return (codes[:, ::2] | (codes[:, 1::2] << 4)).astype(np.uint8)


def swizzled_place(row: np.ndarray, column: np.ndarray, columns: int) -> np.ndarray:
    """Where the scale of (row, column) lies in tiles of 128 x 4: 512 bytes each, rows interleaved by 32."""
    tile = (row // 128) * -(-columns // 4) + column // 4
    return tile * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4


def swizzled(scales: np.ndarray) -> np.ndarray:
    """Scales [R, C] -> padded with zeros to whole tiles of 128 x 4, in the order matrix units read them (flat)."""
    rows, columns = scales.shape
    result = np.zeros(swizzled_size(rows, columns), np.uint8)
    places = np.indices(scales.shape)
    result[swizzled_place(places[0], places[1], columns)] = scales
    return result


def swizzled_size(rows: int, columns: int) -> int:
    """Bytes of ``swizzled``."""
    return 512 * -(-rows // 128) * -(-columns // 4)


RULES: Mapping[str, Rule] = {rule.name.lower(): rule for rule in Rule}
