import dataclasses
import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit import taken
from tilewright.fitness.gates import agreement, failure, ill_formed, read_gates, snr_db
from tilewright.seeds.operator import AgreementGate, BitExactGate, SnrGate, TensorSpec

GATES = (SnrGate("exact", "exact", 45.0),)
REFERENCE = np.random.default_rng(0).standard_normal((32, 32))


def reading(output):
    return read_gates(GATES, {"c": output}, {"exact": {"c": REFERENCE}}, "randn")


def test_snr_is_ten_times_the_log_of_the_power_ratio():
    assert snr_db(REFERENCE * 1.01, REFERENCE) == pytest.approx(40.0)
    assert snr_db(REFERENCE, REFERENCE) == math.inf
    assert snr_db(np.ones(3), np.zeros(3)) == -math.inf
    assert snr_db(np.zeros(3), np.zeros(3)) == math.inf
    (edge,) = read_gates(
        (SnrGate("edge", "exact", snr_db(REFERENCE * 1.1, REFERENCE)),),
        {"c": REFERENCE * 1.1},
        {"exact": {"c": REFERENCE}},
        "randn",
    )
    assert edge.passed, "at its bar"


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 1023))
def test_a_wrong_element_never_raises_the_reading(value, place):
    output = REFERENCE.copy()
    output.flat[place] = value
    (found,) = reading(output)
    error = abs(value - REFERENCE.flat[place])
    assert found.passed <= bool(error <= np.sqrt(np.sum(REFERENCE**2) / 10**4.5) * (1 + 1e-9))
    assert found.passed == bool(error <= 2.0**-12 * np.sqrt(np.mean(REFERENCE**2)) * (1 + 1e-9))


def test_bits_are_compared_bit_by_bit():
    zeros = np.array([0.0, 1.0], np.float32)
    assert agreement(zeros, np.array([-0.0, 1.0], np.float32)) == 0.5
    gate = (BitExactGate("bits", "exact", ("c",)),)
    same = read_gates(gate, {"c": zeros}, {"exact": {"c": zeros.copy()}}, "randn")
    assert failure(same, gate) is None
    other = read_gates(gate, {"c": zeros}, {"exact": {"c": zeros + 1}}, "randn")
    assert failure(other, gate) == "gate bits on randn: 2 elements differ"
    wide = read_gates(gate, {"c": zeros}, {"exact": {"c": zeros.astype(np.float64)}}, "randn")
    assert failure(wide, gate) == "gate bits on randn: another dtype"


def test_one_bad_output_of_several_fails_wherever_it_stands():
    fine, poor = REFERENCE.astype(ml_dtypes.bfloat16), REFERENCE * 1.1
    broken = np.full_like(REFERENCE, np.nan)
    wanted = {"exact": dict.fromkeys("abc", REFERENCE)}
    for names in ("abc", "bca", "cab"):
        outputs = dict(zip(names, (fine, fine, broken), strict=True))
        (found,) = read_gates(GATES, outputs, wanted, "randn")
        assert (found.value, found.passed) == (None, False)
        (found,) = read_gates(GATES, {**outputs, names[2]: poor}, wanted, "randn")
        assert found.value == pytest.approx(20.0) and not found.passed
    (nothing,) = read_gates(GATES, {}, {"exact": {}}, "randn")
    assert (nothing.value, nothing.passed) == (None, False), "a reference without outputs is met by none"
    (equal,) = read_gates(GATES, {"c": REFERENCE}, {"exact": {"c": REFERENCE}}, "zeros")
    assert (equal.value, equal.passed, equal.inputs, equal.gate) == (None, True, "zeros", "exact")


@pytest.mark.parametrize("gate", [BitExactGate("g", "r", ("c",)), AgreementGate("g", "r", ("c",), 0.0)])
def test_codes_of_another_dtype_agree_with_nothing(gate):
    kinds = (np.float16, np.float32, np.float64, np.uint8, ml_dtypes.bfloat16)
    for found, wanted in itertools.permutations(kinds, 2):
        answers = {"r": {"c": np.zeros(4, wanted)}}
        (reading,) = read_gates((gate,), {"c": np.zeros(4, found)}, answers, "randn")
        assert (reading.value, reading.passed, reading.gate, reading.inputs) == (None, False, "g", "randn")
        assert failure([reading], (gate,)) == "gate g on randn: another dtype"


def test_mismatches_of_all_outputs_add_up():
    gate = BitExactGate("bits", "exact", ("c", "d"))
    wanted = {"exact": {"c": np.arange(6.0).reshape(2, 3), "d": np.arange(4, dtype=np.uint8)}}
    outputs = {"c": wanted["exact"]["c"].T.copy().T, "d": wanted["exact"]["d"].copy()}
    assert read_gates((gate,), outputs, wanted, "x")[0].value == 0.0
    outputs["c"][1, 2] += 1
    outputs["d"][0] = outputs["d"][3] = 9
    (found,) = read_gates((gate,), outputs, wanted, "x")
    assert (found.value, found.passed) == (3.0, False)
    assert failure([found], (gate,)) == "gate bits on x: 3 elements differ"


def test_the_output_farthest_below_its_bar_speaks():
    wanted = {"mx": dict.fromkeys("ab", np.zeros((10, 10), np.float32)), "turned": {"a": 0.3}}
    outputs = {name: array.copy() for name, array in wanted["mx"].items()}
    outputs["a"].flat[:25] = 1e-9  # a quarter of a, within its own bar; a seventh of b, beyond its bar
    outputs["b"].flat[:14] = 1e-9
    for names in (("a", "b"), ("b", "a")):
        gate = AgreementGate("some", "mx", names, 0.9, allowance="turned")
        (found,) = read_gates((gate,), outputs, wanted, "x")
        assert (found.value, found.bar, found.passed) == (0.86, 0.9, False)
        outputs["b"].flat[10:14] = 0.0
        (found,) = read_gates((gate,), outputs, wanted, "x")
        assert found.value == 0.9 and found.detail, "at its bar, and judged by its elements"
        outputs["b"].flat[10:14] = 1e-9


def test_the_first_gate_that_failed_is_said():
    low, high = SnrGate("low", "exact", 20.0), SnrGate("high", "exact", 60.0)
    readings = read_gates((low, high), {"c": REFERENCE * 1.01}, {"exact": {"c": REFERENCE}}, "randn")
    assert [r.passed for r in readings] == [True, False]
    assert failure(readings, (low, high)) == "gate high on randn: 40.0 dB, at least 60 dB needed"
    assert failure(readings[:1], (low, high)) is None and failure([], ()) is None
    nan = read_gates((low,), {"c": REFERENCE * np.nan}, {"exact": {"c": REFERENCE}}, "randn")
    assert failure(nan, (low,)) == "gate low on randn: not a number, at least 20 dB needed"


@pytest.mark.parametrize(
    ("turned", "db", "bar", "passes"),
    [(0.0, 44.0, 45.0, False), (0.0, 46.0, 45.0, True), (1e-4, 39.0, 38.8, True), (1e-4, 38.0, 38.8, False)],
)
def test_noise_that_turned_codes_explain_is_not_counted(turned, db, bar, passes):
    gate = SnrGate("g", "exact", 45.0, slack="slack", turned="turned")
    wanted = np.full((32, 32), 3.0)
    error = np.resize((1.0, -1.0), (32, 31)) * 3.0 * 10 ** (-db / 20)
    output = wanted + np.pad(error, ((0, 0), (0, 1)), mode="wrap")
    allowed = {"slack": {"c": np.full(wanted.shape, 0.15)}, "turned": {"c": np.full(wanted.shape, 9 * turned)}}
    (found,) = read_gates((gate,), {"c": output}, {"exact": {"c": wanted}, **allowed}, "x")
    assert (found.passed, round(found.bar, 1)) == (passes, bar)
    assert passes or failure([found], (gate,)).endswith(f"{db:.1f} dB, at least {bar:g} dB needed")
    zeros = {"c": np.zeros(wanted.shape)}
    assert read_gates((gate,), zeros, {"exact": zeros, **allowed}, "x")[0].passed, "nothing to share"


def test_the_target_s_own_error_is_no_fault():
    wanted = np.ones((32, 32))
    output = wanted.astype(np.float32)
    output[3, 4] += 2.0**-9
    for least, passes in ((2.0**-8, True), (0.0, False), (2.0**-10, False)):
        (found,) = read_gates(GATES, {"c": output}, {"exact": {"c": wanted}}, "x", least=least)
        assert found.passed is passes
        gate = AgreementGate("g", "exact", ("c",), 0.5)
        (found,) = read_gates((gate,), {"c": output}, {"exact": {"c": wanted.astype("f4")}}, "x", least=least)
        assert found.passed is passes


def test_the_share_that_agrees_is_of_what_counts():
    zeros, ones = np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32)
    assert agreement(zeros, zeros) == 1.0 and agreement(zeros, ones) == 0.0
    assert agreement(zeros[0, :1], ones[0, :1]) == 0.0 and agreement(zeros[0, :1], zeros[0, :1]) == 1.0
    half = np.concatenate([zeros[:1], ones[1:]])
    assert agreement(half, zeros) == 0.5 and agreement(half, zeros, np.array([True, False])) == 1.0
    assert agreement(zeros[:0], zeros[:0]) == 1.0 and agreement(half, zeros, np.array([False, False])) == 1.0


def test_shape_dtype_and_presence_are_checked():
    specs = (TensorSpec("c", (2, 2), "bfloat16"),)
    assert ill_formed({}, specs) == "output c is missing"
    assert "shape [2]" in ill_formed({"c": np.zeros(2, ml_dtypes.bfloat16)}, specs)
    assert "float32 instead of bfloat16" in ill_formed({"c": np.zeros((2, 2), np.float32)}, specs)
    wide = (TensorSpec("c", (2, 2), "float32"),)
    assert "bfloat16 instead of float32" in ill_formed({"c": np.zeros((2, 2), ml_dtypes.bfloat16)}, wide)
    assert ill_formed({"c": np.zeros((2, 2), ml_dtypes.bfloat16)}, specs) is None


def test_a_share_too_small_is_said_with_its_bar():
    wanted = np.zeros((2, 4), np.float32)
    half = wanted.copy()
    half[0] = 1.0
    for allowed, bar in (({}, "90.00%"), ({"c": 0.1}, "80.00%")):
        gate = AgreementGate("some", "mx", ("c",), 0.9, allowance="turned")
        readings = read_gates((gate,), {"c": half}, {"mx": {"c": wanted}, "turned": allowed}, "randn")
        sentence = f"gate some on randn: 50.00% of the elements agree, at least {bar} must"
        assert failure(readings, (gate,)) == sentence
    gate = AgreementGate("some", "mx", ("c",), 0.9)
    readings = read_gates((gate,), {"c": half}, {"mx": {"c": wanted}}, "randn")
    assert failure(readings, (gate,)).endswith("at least 90.00% must") and readings[0].bar is None


def test_codes_beside_ties_may_be_either_where_scales_are_not_exact():
    operator = taken.operator("int8 codes")
    workload = operator.suites["small"].check[0]
    for kind, ties in (("usual", False), ("ties", True)):
        inputs = operator.make_inputs(workload, 2, kind)
        x, answers = inputs["x"].astype(np.float32), operator.oracle(workload, inputs)
        scale = np.maximum(np.abs(x).max(1), np.float32(1e-10)) / np.float32(127)
        value, by = x / scale[:, None], x * (1 / scale)[:, None]
        away, shorter = (np.trunc(v + np.where(v < 0, np.float32(-0.5), np.float32(0.5))) for v in (value, by))
        up, far = np.floor(value + np.float32(0.5)), np.trunc(value * 1.02 + np.where(value < 0, -0.5, 0.5))
        for codes, passes in ((away, True), (shorter, True), (up, not ties), (far, False)):
            readings = read_gates(operator.gates, {"o0": codes.astype(np.int8), "o1": scale}, answers, kind)
            assert all(reading.passed for reading in readings) is passes
        plain = [dataclasses.replace(gate, either=()) for gate in operator.gates[:1]]
        assert read_gates(plain, {"o0": away.astype(np.int8)}, answers, kind)[0].passed is ties
