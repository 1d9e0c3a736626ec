"""What single elements of an output are held to."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from tilewright.fitness import elements
from tilewright.fitness.elements import INEXACT, ROUNDED, Allowance, allowance, objection, turned_too_far
from tilewright.fitness.gates import failure, read_gates, snr_db
from tilewright.seeds.operator import AgreementGate, SnrGate

GATE = SnrGate("exact", "exact", 45.0)
ALLOWED = allowance(GATE)


def product(seed, m=96, n=160, k=256):
    """Operands as a kernel has them, and their product in float64."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(s, dtype=np.float32).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    return a.astype(np.float32), b.astype(np.float32), a.astype(np.float64) @ b.astype(np.float64)


def honest(seed, **dims):
    a, b, wanted = product(seed, **dims)
    return (a @ b).astype(ml_dtypes.bfloat16), wanted


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("dims", [{}, {"m": 1, "n": 1, "k": 64}, {"m": 33, "n": 7, "k": 2048}])
def test_sums_in_float32_rounded_once_are_explained(dtype, dims):
    for seed in range(2):
        a, b, wanted = product(seed, **dims)
        assert objection((a @ b).astype(dtype), wanted, ALLOWED) is None


@pytest.mark.parametrize("seed", range(8))
def test_one_zero_and_small_values_of_the_wrong_sign_are_found_wherever_they_stand(seed):
    output, wanted = honest(seed)
    flipped = np.where(np.abs(wanted) < 0.01 * wanted.std(), -output, output).astype(output.dtype)
    assert snr_db(flipped, wanted) > 45 and objection(flipped, wanted, ALLOWED) is not None
    place = np.argsort(np.abs(wanted), axis=None)[output.size // 100 * (1 + seed)]
    output.flat[place] = 0
    index = [int(n) for n in np.unravel_index(place, output.shape)]
    assert snr_db(output, wanted) > 45
    assert str(index) in objection(output, wanted, ALLOWED)


def test_a_sign_is_judged_closer_than_an_error():
    wanted = np.ones((32, 32))
    wanted[3, 4] = tiny = ROUNDED / 4
    output = wanted.astype(np.float32)
    for found, fault in ((-tiny, "of the wrong sign"), (0.0, "zero")):
        output[3, 4] = found
        assert objection(output, wanted, ALLOWED) == f"element [3, 4] is {fault}"
    wanted[3, 4], output[3, 4] = ROUNDED / 17, -ROUNDED / 17
    assert objection(output, wanted, ALLOWED) is None


def test_noise_below_every_element_s_bound_is_found_in_the_whole():
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal((64, 64))
    rounded = wanted.astype(ml_dtypes.bfloat16).astype(np.float64)
    worse = (wanted + 1.7 * (rounded - wanted)).astype(np.float32)
    assert objection(rounded.astype(ml_dtypes.bfloat16), wanted, ALLOWED) is None
    unit = np.exp2(np.floor(np.log2(np.abs(wanted))) - 7)
    noisy = (wanted + 0.8 * unit * rng.choice([-1, 1], wanted.shape)).astype(ml_dtypes.bfloat16)
    error, rounding = (noisy.astype(np.float64) - wanted), (rounded - wanted)
    decibels = 10 * np.log10(np.sum(error**2) / np.sum(rounding**2))
    reason = objection(noisy, wanted, ALLOWED)
    assert reason.endswith(" dB more noise than rounding makes")
    assert float(reason.split()[0]) == pytest.approx(decibels, abs=0.2) and decibels > 3
    assert "is off by" in objection(worse, wanted, ALLOWED)


def test_the_noise_of_the_whole_is_judged_to_a_decibel_and_a_half():
    wanted = np.ones((32, 32))
    allowed = Allowance(worst=1.0, sign=1.0, rounded=True)
    expected = (1 / 8) ** 2
    chance = np.sqrt(2 / wanted.size)
    for factor, passes in ((10**0.149 + chance, True), (10**0.151 + chance, False)):
        output = wanted + np.sqrt(expected * factor)
        assert (objection(output, wanted, allowed) is None) is passes
        assert objection(output, wanted, Allowance(1.0, 1.0, rounded=False)) is None
    few = np.array([1.0] * 4 + [1e-9] * 1000)
    assert elements._chance(few) == pytest.approx(np.sqrt(1 / 2)), "four elements make up all of it"
    assert elements._chance(np.zeros(4)) == 0.0


def test_tiles_are_judged_by_what_is_usual_in_them():
    wanted = np.ones((64, 64))
    wanted[:32, :32] *= 100.0
    output = wanted.astype(np.float32)
    output[40, 40] += 3 * ROUNDED
    assert objection(output, wanted, ALLOWED).startswith("element [40, 40] is off by 0.00073 of")
    output[4, 4] += 300 * ROUNDED
    assert objection(output, wanted, ALLOWED).startswith("element [4, 4] is off by 0.00073 of")
    output = wanted.astype(np.float32)
    output[4, 4] += 50 * ROUNDED
    assert objection(output, wanted, ALLOWED) is None


def test_a_faint_tile_is_held_to_a_part_of_the_whole():
    wanted = np.ones((64, 64))
    wanted[:32, :32] = 0.0
    whole = np.sqrt(0.75)
    allowed = Allowance(worst=1.0, sign=1.0, rounded=False)
    for share, passes in ((0.99, True), (1.01, False)):
        output = wanted.copy()
        output[1, 2] = share * whole / 256
        assert (objection(output, wanted, allowed) is None) is passes


def test_what_a_gate_leaves_to_one_element():
    assert allowance(GATE) == Allowance(2.0**-12, 2.0**-16, rounded=True) == allowance(GATE, ROUNDED)
    assert allowance(GATE, 2.0**-8) == Allowance(2.0**-8, 2.0**-8, rounded=True, inexact=True)
    steady = [allowance(SnrGate("a", "a", 45.0, short=n), least).steady for n in (16, 256) for least in (0.0, INEXACT)]
    assert steady == [0.0, 0.0, 0.0, 7 * 2.0**-11]
    assert allowance(SnrGate("a", "a", 40.0)).rounded and not allowance(SnrGate("a", "a", 39.9)).rounded
    loose = allowance(SnrGate("a", "a", 20.0))
    assert objection(np.zeros((4, 4)), np.ones((4, 4)), loose) is None
    own = SnrGate("a", "a", 45.0, worst=0.5)
    assert allowance(own, 0.1) == Allowance(0.5, 0.5, rounded=False, zero=0.1, inexact=True)
    assert allowance(own, 0.7) == Allowance(0.7, 0.7, rounded=False, zero=0.7, inexact=True)
    assert allowance(own).zero == ROUNDED and allowance(SnrGate("a", "a", 45.0, worst=0.0)).zero == 0.0


def test_integers_empty_outputs_and_values_beyond_the_range():
    wanted = np.array([[1.4, -3.0, 9.0]])
    assert objection(np.array([[1, -3, 9]], np.int8), wanted, Allowance(0.0, 0.0, rounded=False)) is None
    assert objection(np.array([[3, -3, 9]], np.int8), wanted, ALLOWED) is not None
    assert objection(np.array([[9, -3, 9]], np.int8), wanted, Allowance(0.0, 0.0, rounded=False)) is not None
    for shape in ((0, 4), (4, 0)):
        assert objection(np.zeros(shape, np.float32), np.zeros(shape), ALLOWED) is None
        assert turned_too_far(np.zeros(shape, E4M3), np.zeros(shape, E4M3), 0.0) is None
    high = np.array([[500.0, 1.0]])
    held = np.array([[448.0, 1.0]]).astype(ml_dtypes.float8_e4m3fn)
    assert objection(held, high, Allowance(0.0, 0.0, rounded=False)) is None
    assert objection(np.float32(2.0).reshape(()), np.array(2.0), ALLOWED) is None


def test_a_recipe_that_rounds_within_is_held_to_its_zeros_all_the_same():
    allowed = allowance(SnrGate("exact", "exact", 45.0, worst=4.0))
    wanted = np.ones((32, 32))
    output = wanted.astype(np.float32)
    output[7, 8] = -1.0
    assert objection(output, wanted, allowed) is None
    output[7, 8] = 0.0
    assert objection(output, wanted, allowed) == "element [7, 8] is zero"
    wanted[7, 8] = ROUNDED / 2
    assert objection(output, wanted, allowed) is None


E4M3 = ml_dtypes.float8_e4m3fn
CODES = np.full((4, 64), 8.0).astype(E4M3)
EXPONENTS = np.full((4, 2), 127, np.uint8)


def changed(array, place, value):
    found = array.copy()
    found[place] = value
    return found


@pytest.mark.parametrize(
    ("codes", "exponents", "passes"),
    [
        (CODES, EXPONENTS, True),
        (changed(CODES, (1, 2), 9.0), EXPONENTS, True),
        (np.where(np.arange(64) % 2, CODES, np.float32(9.0)).astype(E4M3), EXPONENTS, True),
        (changed(CODES, (1, 2), 7.5), EXPONENTS, True),
        (changed(CODES, (1, 2), 10.0), EXPONENTS, False),
        (changed(CODES, (1, 2), 0.0), EXPONENTS, False),
        (changed(CODES, (1, 2), -8.0), EXPONENTS, False),
        (changed(CODES, (1, slice(32)), 4.0), changed(EXPONENTS, (1, 0), 128), True),
        (CODES, changed(EXPONENTS, (1, 0), 128), False),
        (changed(CODES, (1, 2), np.nan), EXPONENTS, False),
    ],
)
def test_a_code_that_differs_is_the_next_one(codes, exponents, passes):
    fault = turned_too_far(codes, CODES, ROUNDED, (exponents, EXPONENTS))
    assert (fault is None) is passes
    gate = AgreementGate("some", "mx", ("d", "d_s"), 0.5, scaled=(("d", "d_s"),))
    readings = read_gates((gate,), {"d": codes, "d_s": exponents}, {"mx": {"d": CODES, "d_s": EXPONENTS}}, "randn")
    assert readings[0].passed is passes and readings[0].value >= 0.5
    if not passes:
        assert failure(readings, (gate,)).startswith("gate some on randn: element [1, ")


def test_codes_without_exponents_and_what_does_not_count():
    assert turned_too_far(CODES, CODES, 0.0) is None
    assert turned_too_far(changed(CODES, (0, 0), 0.0), CODES, 0.0) == "element [0, 0] is 0 where 8 is due"
    assert turned_too_far(changed(CODES, (0, 0), 4.0), CODES, 0.51) is None
    two = changed(changed(CODES, (1, 2), 0.0), (3, 4), 0.0)
    assert turned_too_far(two, CODES, 0.0) == "element [1, 2] is 0 where 8 is due", "the first"
    assert turned_too_far(np.zeros((0, 4), E4M3), np.zeros((0, 4), E4M3), 0.0) is None
    eight, two = np.array(8.0).astype(E4M3), np.array(2.0).astype(E4M3)
    assert turned_too_far(eight, eight, 0.0) is None
    assert turned_too_far(two, eight, 0.0) == "element [0] is 2 where 8 is due"
    gate = AgreementGate("some", "mx", ("d", "p"), 0.5, counted="rows")
    wrong = changed(CODES, (1, 2), -8.0)
    packed = np.full((4, 64), 16, np.uint8)
    for rows, passes in (([True] * 4, False), ([True, False, True, True], True)):
        masks = dict.fromkeys(("d", "p"), np.array(rows))
        answers, outputs = {"mx": {"d": CODES, "p": packed}, "rows": masks}, {"d": wrong, "p": packed.copy()}
        outputs["p"][0, 0] = 32
        (reading,) = read_gates((gate,), outputs, answers, "randn")
        assert reading.passed is passes


def test_codes_of_three_axes_and_exponents_that_come_first():
    codes = np.full((2, 3, 64), 8.0).astype(E4M3)
    wrong = changed(codes, (1, 2, 50), 2.0)
    assert turned_too_far(wrong, codes, 0.0) == "element [1, 2, 50] is 2 where 8 is due"
    codes[:, :, :32] = wrong[:, :, :32] = 448.0  # elements of other tiles
    assert turned_too_far(wrong, codes, 0.1) == "element [1, 2, 50] is 2 where 8 is due"
    gate = AgreementGate("some", "mx", ("d_s", "d"), 0.5, scaled=(("d", "d_s"),))
    answers = {"mx": {"d": CODES, "d_s": EXPONENTS}}
    (reading,) = read_gates((gate,), {"d": changed(CODES, (1, 2), 0.0), "d_s": EXPONENTS}, answers, "randn")
    assert reading.detail == "element [1, 2] is 0 where 8 is due"
    doubled = changed(EXPONENTS, slice(None), 128)
    fourteen, sevens = (np.full((4, 64), value).astype(E4M3) for value in (14.0, 7.0))
    assert turned_too_far(changed(sevens, (1, 2), 8.0), fourteen, 0.0, (doubled, EXPONENTS)) is None
    sixteens = np.full((4, 64), 16.0).astype(E4M3)
    assert turned_too_far(changed(sixteens, (1, 2), 14.0), sixteens, 0.0, (doubled, doubled)) is None
    assert turned_too_far(changed(sevens, (1, 2), 9.0), fourteen, 0.0, (doubled, EXPONENTS)) is not None


def test_accumulators_that_are_not_exact_are_allowed_what_they_lose():
    faint = changed(CODES, (1, 2), 0.03125)
    answers = {"mx": {"d": faint}, "turned": {"d": 0.25}}
    for allowance_, value, passes in (("turned", 0.0, True), ("turned", 4.0, False), ("", 0.0, False)):
        gate = AgreementGate("some", "mx", ("d",), 0.75, allowance=allowance_)
        (reading,) = read_gates((gate,), {"d": changed(faint, (1, 2), value)}, answers, "randn")
        assert reading.passed is passes and reading.bar == (0.5 if allowance_ else None)


def test_sums_of_few_bits_are_off_by_a_share_of_their_products():
    """Where an outlying row and column cross, products are 4096 times as large as usual and may nearly cancel."""
    wanted = np.random.default_rng(4).standard_normal((96, 80))
    wanted[40] *= 64
    wanted[:, 70] *= 64
    wanted[40, 70] = 66.0
    gate = SnrGate("exact", "exact", 45.0)
    few, many = allowance(gate, INEXACT), allowance(gate)

    def off(place, error):
        output = wanted.copy()
        output[place] += error
        return output.astype(ml_dtypes.bfloat16)

    crossing, usual = (40, 70), (41, 69)
    assert objection(off(crossing, 1.0), wanted, few) is None
    assert objection(off(crossing, 1.0), wanted, many) is not None
    assert objection(off(crossing, 40.0), wanted, few) is not None
    sizes = np.abs(wanted[32:64, 64:])
    usual_there = np.median(sizes[8]) * np.median(sizes[:, 6]) / np.median(sizes) / 0.6745
    for share, passes in ((0.9, True), (1.12, False)):
        error = share * 2 * usual_there * INEXACT
        assert ("is off by" not in objection(off(crossing, error), wanted, few)) is passes
    assert objection(off(usual, 1.0), wanted, few) is not None
    blocks = wanted.copy()
    blocks[:64] = 0
    assert objection(blocks.astype(ml_dtypes.bfloat16), blocks, few) is None, "half of what is there is zero"


def test_in_a_single_row_operands_say_where_an_outlying_column_s_sum_happens_to_be_small():
    """Its column has no other element that could tell."""
    wanted = np.random.default_rng(4).standard_normal((1, 96))
    usual = np.ones_like(wanted)
    usual[0, 70], wanted[0, 70] = 64.0, 0.5
    few = allowance(SnrGate("exact", "exact", 45.0), INEXACT)

    def off(column, error):
        output = wanted.copy()
        output[0, column] += error
        return output.astype(ml_dtypes.bfloat16)

    assert objection(off(70, 0.03), wanted, few) is not None, "what is around it does not explain it"
    assert objection(off(70, 0.03), wanted, few, usual) is None
    assert objection(off(70, 2.0), wanted, few, usual) is not None
    assert objection(off(69, 0.03), wanted, few, usual) is not None
    usual[0, 3] = wanted[0, 3] = 0.0
    assert objection(off(70, 0.03), wanted, few, usual) is None
    assert "is not zero" in objection(off(3, 1e-9), wanted, few, usual), "all of its products are"
    gate = SnrGate("exact", "exact", 20.0, worst=1e-6, usual="usual")
    for sizes, passes in ((usual, True), (np.ones_like(usual), False)):
        answers = {"exact": {"c": wanted}, "usual": {"c": sizes}}
        (reading,) = read_gates((gate,), {"c": off(70, 0.03)}, answers, "outliers", least=INEXACT)
        assert reading.passed is passes


@pytest.mark.parametrize(
    ("lost", "short", "size", "passes"),
    [(2.1e-3, 256, 0.1, True), (2.1e-3, 0, 0.1, False), (2.1e-3, 256, 1.0, False), (5.8e-3, 256, 0.1, False)],
)
def test_sums_of_one_sign_lose_what_cutting_their_products_explains(lost, short, size, passes):
    """``lost``: what 256 and 512 normal values of one sign lose; ``size``: the usual size, as a share of the answer."""
    wanted = np.random.default_rng(2).uniform(1.0, 2.0, (48, 64))
    gate = SnrGate("exact", "exact", 45.0, short=short)
    found = (wanted * (1 - lost)).astype(ml_dtypes.bfloat16)
    fault = objection(found, wanted, allowance(gate, INEXACT), wanted * size)
    assert (fault is None) is passes


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e39, -1e300])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_is_no_number_must_be_the_same_and_says_nothing_of_the_rest(special, dtype):
    wanted = np.random.default_rng(3).standard_normal((40, 40))
    wanted[3, 5] = special
    with np.errstate(over="ignore"):
        right = wanted.astype(dtype)
    gate = SnrGate("exact", "exact", 40.0)
    no_number = bool(np.isnan(special))
    for other, passes in ((right[3, 5], True), (0.0, False), (-right[3, 5], no_number), (np.nan, no_number)):
        found = right.copy()
        found[3, 5] = other
        (reading,) = read_gates((gate,), {"c": found}, {"exact": {"c": wanted}}, "nan")
        assert reading.passed is passes, other
    for wrong in (np.nan, np.inf, 9.0):
        found = right.copy()
        found[4, 6] = wrong
        assert not read_gates((gate,), {"c": found}, {"exact": {"c": wanted}}, "nan")[0].passed


def test_the_largest_number_may_stand_for_what_is_larger_and_no_other():
    wanted = np.full((8, 8), 1e39)
    top = float(np.finfo(np.float32).max)
    assert elements.finite(np.full((8, 8), top, np.float32), wanted) is not None
    assert elements.finite(np.full((8, 8), top / 2, np.float32), wanted) is None
    assert elements.finite(np.full((8, 8), -np.inf, np.float32), wanted) is None
    whole = np.ones((2, 2), np.int32), np.ones((2, 2))
    assert elements.finite(*whole) == whole


@pytest.mark.parametrize(("dtype", "passes"), [(np.float32, True), (ml_dtypes.bfloat16, True), (np.float16, False)])
def test_what_is_no_normal_number_may_be_taken_for_zero_where_devices_do(dtype, passes):
    least = float(ml_dtypes.finfo(dtype).tiny)
    wanted = np.random.default_rng(3).uniform(0.5, 1.0, (64, 64)) * least * 2
    wanted[3, 5:9] = least / 4
    found = wanted.astype(dtype)
    assert objection(found, wanted, allowance(SnrGate("exact", "exact", 45.0))) is None
    found[3, 5:9] = 0
    assert (objection(found, wanted, allowance(SnrGate("exact", "exact", 45.0))) is None) is passes
    found[3, 9] = 0
    assert objection(found, wanted, allowance(SnrGate("exact", "exact", 45.0))) is not None


def _turned(rows, columns, share, seed, ways):
    """Codes near ``wanted``: some are the next ones, by ``ways`` (of signs and random numbers) up or down."""
    rng = np.random.default_rng(seed)
    wanted = rng.choice(np.array([-3, -2.5, 2.5, 3]), (rows, columns)).astype(np.float32)
    by = np.where(rng.random(wanted.shape) < share, ways(wanted, rng) / 4, 0)
    return (wanted + by).astype(ml_dtypes.float8_e4m3fn), wanted.astype(ml_dtypes.float8_e4m3fn)


ONE_WAY = {
    "up": lambda wanted, rng: np.ones_like(wanted),
    "down": lambda wanted, rng: -np.ones_like(wanted),
    "away from zero": lambda wanted, rng: np.sign(wanted),
    "towards zero": lambda wanted, rng: -np.sign(wanted),
}
TWO_WAYS = {
    "by element": lambda wanted, rng: rng.choice((-1.0, 1.0), wanted.shape),
    "by row": lambda wanted, rng: np.broadcast_to(rng.choice((-1.0, 1.0), (len(wanted), 1)), wanted.shape),
    "by column": lambda wanted, rng: np.broadcast_to(rng.choice((-1.0, 1.0), wanted.shape[1]), wanted.shape),
    "by row, away from zero": lambda wanted, rng: rng.choice((-1.0, 1.0), (len(wanted), 1)) * np.sign(wanted),
}


@pytest.mark.parametrize("ways", ONE_WAY)
@pytest.mark.parametrize("shape", [(256, 40), (33, 400)])
def test_codes_that_turn_one_way_are_seen(ways, shape):
    codes, wanted = _turned(*shape, 0.01, 3, ONE_WAY[ways])
    reason = elements.turned_one_way(codes, wanted)
    assert reason is not None and ("zero" in reason) == ("zero" in ways)
    gate = AgreementGate("codes", "codes", ("q",), 0.98)
    for own, passes in ((gate, False), (dataclasses.replace(gate, leans=True), True)):
        (reading,) = read_gates((own,), {"q": codes}, {"codes": {"q": wanted}}, "randn")
        assert reading.passed is passes
    codes, wanted = _turned(16, 640, 0.05, 3, ONE_WAY[ways])
    assert elements.turned_one_way(codes.reshape(2, 8, 640), wanted.reshape(2, 8, 640)) is not None
    if "zero" in ways:  # which has no side
        codes[0], wanted[0] = np.where(np.arange(640) % 2, 1, -1), 0
        assert elements.turned_one_way(codes, wanted) is not None


@pytest.mark.parametrize("ways", TWO_WAYS)
def test_codes_that_turn_both_ways_pass(ways):
    for seed in range(10):
        for shape in ((256, 40), (64, 400)):
            assert elements.turned_one_way(*_turned(*shape, 0.01, seed, TWO_WAYS[ways])) is None


def test_a_few_codes_that_turn_say_nothing():
    codes, wanted = _turned(21, 4, 1.0, 3, ONE_WAY["up"])
    assert elements.turned_one_way(codes, wanted) is None
    assert elements.turned_one_way(codes[:0], wanted[:0]) is elements.turned_one_way(codes > 0, wanted > 0) is None
    assert elements.turned_one_way(*_turned(22, 4, 1.0, 3, ONE_WAY["up"])) is not None
    pair = (codes.reshape(2, 11, 4) for codes in _turned(22, 4, 1.0, 3, ONE_WAY["up"]))
    assert elements.turned_one_way(*pair) is not None


@pytest.mark.parametrize("bits", [7, 5, 3])
@pytest.mark.parametrize(("share", "seen"), [(0.45, False), (0.5, True)])
def test_errors_of_small_elements_that_go_with_them_are_seen(bits, share, seen):
    """Ten of a tile are just below a share of what is usual, and err; more are just above it, and do not."""
    tile = np.ones(1024)
    tile[:10], tile[10:160] = 0.9 * 2.0**-bits, 1.1 * 2.0**-bits
    wanted = np.tile(tile.reshape(32, 32), (2, 2)) * np.random.default_rng(1).choice((-1.0, 1.0), (64, 64))
    wanted[np.abs(wanted) < 1] *= np.sqrt((wanted**2).mean())
    erring = np.abs(wanted) < 0.95 * 2.0**-bits * np.sqrt((wanted**2).mean())
    slack = np.where(erring, 0.2 * np.abs(wanted), 0.0)
    allowed = Allowance(worst=0.0, sign=1.0, rounded=False)
    output = wanted + share * np.sign(wanted) * slack
    assert erring.sum() == 40
    assert (objection(output, wanted, allowed, slack=slack) is not None) is seen
    both = wanted + share * np.random.default_rng(2).permutation(np.resize((-1.0, 1.0), 4096)).reshape(64, 64) * slack
    assert objection(both, wanted, allowed, slack=slack) is None


@pytest.mark.parametrize(("off", "seen"), [(14, False), (15, True)])
def test_where_a_rounding_within_turns_few_elements_are_off(off, seen):
    wanted = np.random.default_rng(4).uniform(1, 2, (40, 30)).astype(np.float32)
    found = wanted.copy()
    found.reshape(-1)[:off] *= np.float32(1.004)
    rare = allowance(SnrGate("scales", "scales", 45.0, worst=0.02, rare=0.01))
    assert (objection(found, wanted, rare) is not None) is seen


@pytest.mark.parametrize(
    ("off", "passes"), [(0.0, True), (2.0**-17, True), (2.0**-13, False), (-(2.0**-13), False), (2.0**-11, False)]
)
def test_where_nothing_is_left_an_answer_is_one_rounding(off, passes):
    exact = np.random.default_rng(4).uniform(1.0, 2.0, (64, 96)) * 1000.0
    gate = SnrGate("g", "r", 45.0, slack="s")
    for slack, allowed in ((0.0, passes), (2.0, True)):
        found = {"c": (exact * (1 + off)).astype(ml_dtypes.bfloat16)}
        references = {"r": {"c": exact}, "s": {"c": np.full(exact.shape, slack)}}
        (reading,) = read_gates((gate,), found, references, "k")
        assert reading.passed is allowed, reading.detail
    ties = np.round(exact / 8) * 8 + 4.0
    up = np.nextafter(ties, np.inf).astype(ml_dtypes.bfloat16)
    (reading,) = read_gates((gate,), {"c": up}, {"r": {"c": ties}, "s": {"c": np.zeros(ties.shape)}}, "k")
    assert reading.passed, "a tie may go either way"


@pytest.mark.parametrize(
    ("past", "count", "passes"),
    [(0.2, 10, True), (-0.2, 10, True), (0.2, 40, False), (0.5, 1, False), (-0.5, 1, False)],
)
def test_few_answers_just_past_a_tie_are_rounded_the_other_way(past, count, passes):
    exact = np.random.default_rng(4).uniform(1.1, 1.9, (64, 96)) * 1000.0
    some = exact.reshape(-1)[:count]
    some[...] = np.round(some / 8) * 8 + 4.0 + past
    found = exact.astype(ml_dtypes.bfloat16)
    found.reshape(-1)[:count] = some - 2 * past
    references = {"r": {"c": exact}, "s": {"c": np.zeros(exact.shape)}}
    (reading,) = read_gates((SnrGate("g", "r", 45.0, slack="s"),), {"c": found}, references, "k")
    assert reading.passed is passes, reading.detail


def test_chance_of_noise_counts_what_each_element_may_be_off_by():
    wanted, found = np.full((8, 8), 1.0), np.full((8, 8), 1.0)
    rounded, unit = wanted.copy(), np.full((8, 8), 2.0**-7)
    wanted[0, 0], rounded[0, 0], found[0, 0], unit[0, 0] = 100.2, 100.0, 100.5, 0.5
    around, output = np.full((8, 8), 12.5), found.astype(ml_dtypes.bfloat16)
    given = (found, wanted, rounded, unit, ROUNDED / 8 * around, output)
    assert elements.excess_noise(*given) == 0.0, "one element makes up the noise, which may be chance"
    found[0, 0] = 100.6
    assert elements.excess_noise(*given) > 3.0


@pytest.mark.parametrize(("noise", "seen"), [(0.9, False), (1.4, True)])
def test_chance_of_noise_is_small_where_many_elements_may_be_off(noise, seen):
    wanted = np.full((32, 32), 2.0**-30)
    wanted[0, 0] = 1.0
    signs = np.random.default_rng(1).choice((-1.0, 1.0), wanted.shape)
    found = (wanted + noise * signs * ROUNDED / 8 / 32).astype(np.float32)
    reason = objection(found, wanted, Allowance(ROUNDED, ROUNDED, rounded=True))
    assert (reason is not None) is seen


def test_a_step_of_the_type_leans_by_chance_where_few_elements_stand():
    wanted = np.full((4, 8), 1.1)
    found, slack = np.full(wanted.shape, 1.25).astype(ml_dtypes.float8_e5m2), np.full(wanted.shape, 1e-6)
    assert objection(found, wanted, Allowance(ROUNDED, ROUNDED, rounded=False), slack=slack) is None
    many = [np.tile(array, (8, 1)) for array in (found, wanted, slack)]
    assert "lean" in objection(*many[:2], Allowance(ROUNDED, ROUNDED, rounded=False), slack=many[2])


@pytest.mark.parametrize(("count", "seen"), [(31, False), (32, True), (33, True)])
def test_so_many_elements_lean(count, seen):
    one = np.ones(count)
    assert elements._leans(one / 2, one, one / 10, one) is seen


def test_few_rows_lean_where_all_of_them_do():
    ways = np.ones(21)
    assert not elements._agree(ways)
    assert elements._agree(np.append(ways, 1))
    assert not elements._agree(np.append(ways, [1, 1, -1]))
    assert elements._agree(np.repeat([1.0, -1.0], [80, 20]))


def test_what_sums_explain_is_left_below_what_is_due_in_several_rows_and_of_large_answers():
    due, plain = np.full((4, 4), 1 + 2.0**-8 + 2.0**-18), Allowance(ROUNDED, ROUNDED, rounded=False)
    assert objection(np.ones((4, 4), ml_dtypes.bfloat16), due, plain, slack=np.zeros((4, 4))) is None
    usual = np.where(np.arange(64) == 35, 1e3, 1.0).reshape(2, 32)
    short = Allowance(INEXACT, INEXACT, rounded=False, inexact=True)
    assert objection((usual / 5).clip(1).astype(np.float32), np.ones((2, 32)), short, usual) is not None
    assert objection((usual / 500).clip(1).astype(np.float32), np.ones((2, 32)), short, usual) is None
    rare = allowance(SnrGate("scales", "scales", 45.0, worst=0.02, rare=0.01))
    assert objection(np.full((4, 32), 1000.1, np.float32), np.full((4, 32), 1000.0), rare) is None


def test_16_bit_answers_that_are_cut_lie_one_way():
    wanted = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    cut = (wanted.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(ml_dtypes.bfloat16)
    assert "one way" in elements._one_way(cut, wanted.astype(np.float64), 0.01)
    assert elements._one_way(wanted.astype(ml_dtypes.bfloat16), wanted.astype(np.float64), 0.01) is None
    half = (wanted.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float16)
    assert "one way" in elements._one_way(half, wanted.astype(np.float64), 0.01)
    for count, seen in ((511, False), (512, True)):
        few = np.resize(np.linspace(1.0, 1.9, count) + 2.0**-10, (64, 64))
        assert bool(elements._one_way((np.floor(few * 128) / 128).astype("bfloat16"), few, 1 / 8)) is seen


def test_where_slack_is_known_what_tiles_explain_is_looked_at_all_the_same():
    wanted = np.random.default_rng(5).uniform(1.0, 2.0, (64, 64))
    found, none = (wanted * (1 + ROUNDED / 2)).astype(np.float32), np.zeros(wanted.shape)
    allowed = Allowance(ROUNDED, ROUNDED, rounded=False)
    assert objection(found, wanted, allowed) is None and objection(found, wanted, allowed, slack=none)
    exact = wanted.astype(np.float32)
    assert objection(2 * exact, exact, allowed) is not None, "no remainder is left of twice an answer"


def test_what_is_usual_is_that_of_an_element_s_own_tile():
    wanted = np.ones((32, 64), np.float32)
    wanted[:, :32] *= 100
    codes = wanted.copy()
    codes[3, 50] += 20 * INEXACT
    assert turned_too_far(codes, wanted, INEXACT) is not None
    size = np.full((40, 40), 0.01)
    assert not elements._outlying(size).any(), "where none is outlying, nothing more is left"
    size[2, 3] = 0.05
    assert elements._outlying(size)[2, 3] == 0.05


def test_what_is_usual_where_outliers_cross_grows_with_all_values():
    values = np.random.default_rng(2).standard_normal((64, 64))
    values[3] *= 64
    values[:, 5] *= 64
    reach = elements._reach(values)
    assert reach[3, 5] > 1000
    for factor in (2.0**-10, 2.0**10):
        np.testing.assert_allclose(elements._reach(values * factor), reach * factor)


def test_a_code_where_outlying_lines_cross_may_be_off_by_what_their_products_lose():
    wanted = np.ones((32, 32))
    wanted[3] = wanted[:, 5] = 16.0
    wanted[3, 5] = 0.25  # sums of products as large as 256
    wanted, codes = wanted.astype(E4M3), changed(wanted.astype(E4M3), (3, 5), 1.0)
    assert turned_too_far(codes, wanted, INEXACT) is None
    assert turned_too_far(codes, wanted, ROUNDED) == "element [3, 5] is 1 where 0.25 is due"
    assert turned_too_far(changed(wanted, (4, 6), 1.25), wanted, INEXACT) is not None
