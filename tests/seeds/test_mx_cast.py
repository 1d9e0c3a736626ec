"""Casts and 2D block quantisation: definitions against worked cases and a library."""

import numpy as np
import pytest

from tilewright.seeds.mx_cast import formats
from tilewright.seeds.mx_cast.formats import E2M1, E4M3, Rule


@pytest.mark.parametrize(
    ("amax", "floor", "ceil", "even", "rceil"),
    [
        (1.0, 119, 119, 119, 119),  # 448 x 2^-8 is 1.75
        (1.75, 119, 120, 119, 119),
        (1.7578125, 119, 120, 119, 120),  # the next bf16 after 1.75
        (1.875, 119, 120, 119, 120),
        (1.9375, 119, 120, 120, 120),  # rounds up to 2 with three mantissa bits
        (0.0, 0, 0, 0, 0),
        (2.0**-126, 0, 0, 0, 0),
        (3.3895314e38, 246, 247, 247, 247),
        (np.inf, 255, 255, 255, 255),
        (np.nan, 255, 255, 255, 255),
    ],
)
def test_rules_on_worked_cases(amax, floor, ceil, even, rceil):
    found = [int(formats.exponents(np.array([amax], np.float32), rule, E4M3)[0]) for rule in Rule]
    assert found == [floor, ceil, even, rceil]


def test_rceil_is_exact_where_the_logarithm_is_not():
    """448 x 2^e and its neighbours: rounding the logarithm gives another exponent for many of them."""
    exact = np.float32(448) * np.exp2(np.arange(-60, 60)).astype(np.float32)
    around = (exact.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)).view(np.float32)
    found = formats.exponents(around, Rule.RCEIL, E4M3).astype(int)
    with np.errstate(divide="ignore"):
        logarithm = np.ceil(np.log2(around / np.float32(448), dtype=np.float32)).astype(int) + 127
    wanted = np.arange(-60, 60)[:, None] + 127 + (np.arange(-3, 4) > 0)
    assert (found == wanted).mean() > 0.99, "but for what the product with 1/448 rounds away"
    assert (logarithm != wanted).mean() > 0.2


def test_codes_and_bytes():
    halves = np.array([0, 0.25, 0.5, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.3, -6.5])
    assert formats.round_to(halves, E2M1).tolist() == [0, 0, 1, 2, 2, 4, 4, 6, 6, 7, 9, 15]
    assert formats.packed(np.array([[1, 2, 15, 0]], np.uint8)).tolist() == [[0x21, 0x0F]]
    scales = np.arange(130 * 5, dtype=np.int64).reshape(130, 5).astype(np.uint8)
    flat = formats.swizzled(scales)
    assert flat.size == 2 * 2 * 512
    assert flat[0 * 512 + 5 * 16 + 2 * 4 + 3] == scales[2 * 32 + 5, 3]
    assert flat[3 * 512 + 1 * 16 + 0] == scales[129, 4] and flat[3 * 512 + 2 * 16] == 0
