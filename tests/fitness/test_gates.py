import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.fitness.gates import agreement, failure, ill_formed, mismatches, read_gates, snr_db
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


def test_rounding_to_bfloat16_passes_and_a_zero_output_fails():
    assert failure(reading(REFERENCE.astype(ml_dtypes.bfloat16)), GATES) is None
    assert failure(reading(np.zeros((32, 32))), GATES) == "gate exact on randn: 0.0 dB, at least 45 dB needed"


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_one_non_finite_element_fails(poison):
    output = REFERENCE.copy()
    output[3, 4] = poison
    assert failure(reading(output), GATES) is not None


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
    assert mismatches(zeros, np.array([-0.0, 1.0], np.float32)) == 1
    gate = (BitExactGate("bits", "exact", ("c",)),)
    same = read_gates(gate, {"c": zeros}, {"exact": {"c": zeros.copy()}}, "randn")
    assert failure(same, gate) is None
    other = read_gates(gate, {"c": zeros}, {"exact": {"c": zeros + 1}}, "randn")
    assert failure(other, gate) == "gate bits on randn: 2 elements differ"
    wide = read_gates(gate, {"c": zeros}, {"exact": {"c": zeros.astype(np.float64)}}, "randn")
    assert failure(wide, gate) == "gate bits on randn: another dtype"


def test_the_share_that_agrees_is_of_what_counts():
    zeros, ones = np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32)
    assert agreement(zeros, zeros) == 1.0 and agreement(zeros, ones) == 0.0
    half = np.concatenate([zeros[:1], ones[1:]])
    assert agreement(half, zeros) == 0.5 and agreement(half, zeros, np.array([True, False])) == 1.0
    assert agreement(zeros[:0], zeros[:0]) == 1.0 and agreement(half, zeros, np.array([False, False])) == 1.0


def test_shape_dtype_and_presence_are_checked():
    specs = (TensorSpec("c", (2, 2), "bfloat16"),)
    assert ill_formed({}, specs) == "output c is missing"
    assert "shape [2]" in ill_formed({"c": np.zeros(2, ml_dtypes.bfloat16)}, specs)
    assert "float32 instead of bfloat16" in ill_formed({"c": np.zeros((2, 2), np.float32)}, specs)
    assert ill_formed({"c": np.zeros((2, 2), ml_dtypes.bfloat16)}, specs) is None


def test_a_share_too_small_is_said_with_its_bar():
    wanted = np.zeros((2, 4), np.float32)
    half = wanted.copy()
    half[0] = 1.0
    for allowed, bar in (({}, "90.00%"), ({"c": 0.1}, "80.00%")):
        gate = AgreementGate("some", "mx", ("c",), 0.9, allowance="turned")
        readings = read_gates((gate,), {"c": half}, {"mx": {"c": wanted}, "turned": allowed}, "randn")
        said = f"gate some on randn: 50.00% of the elements agree, at least {bar} must"
        assert failure(readings, (gate,)) == said
    gate = AgreementGate("some", "mx", ("c",), 0.9)
    readings = read_gates((gate,), {"c": half}, {"mx": {"c": wanted}}, "randn")
    assert failure(readings, (gate,)).endswith("at least 90.00% must") and readings[0].bar is None
