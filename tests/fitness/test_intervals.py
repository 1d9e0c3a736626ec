"""Statistics of measured times, held to values worked out by hand and to what they promise on drawn data."""

import math
import statistics

import numpy as np
import pytest

from tilewright.fitness.intervals import NORMAL_95, Ratio, median_seconds, paired_ratio, relative_error, student_95


def test_quantiles_are_those_of_the_tables():
    assert NORMAL_95 == 1.96
    table = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 7: 2.36462, 12: 2.17881, 30: 2.04227}
    for freedom, quantile in table.items():
        assert student_95(freedom) == pytest.approx(quantile, abs=1e-4)


def test_the_median_is_over_all_calls():
    assert median_seconds([[1.0, 9.0], [2.0], [3.0, 4.0]]) == 3.0
    assert median_seconds([[1.0, 2.0]]) == 1.5


def test_the_error_of_a_median_is_worked_out_from_the_absolute_deviation():
    # median 5; deviations 2 1 0 1 2, their median 1
    assert relative_error([[3.0, 4.0], [5.0], [6.0, 7.0]]) == pytest.approx(1.25 * 1.4826 * 1 / math.sqrt(5) / 5)
    assert relative_error([[1.0, 3.0]]) == pytest.approx(1.25 * 1.4826 / math.sqrt(2) / 2)
    assert relative_error([[2.0]]) == 0.05 and relative_error([[]]) == 0.05
    assert relative_error([[2.0, 2.0, 2.0]]) == 0.0


def test_a_ratio_is_worked_out_by_hand():
    over = {"a": [[2.0], [2.2], [1.8]], "b": [[8.0, 1.0, 9.0], [8.0]]}
    under = {"a": [[1.0], [1.0], [1.0]], "b": [[2.0], [2.0]]}
    logs = [math.log(2.0), math.log(2.2), math.log(1.8)]
    middle = (statistics.fmean(logs) + math.log(4.0)) / 2
    # scatter only in a: its variance over 3 rounds; 2 + 1 degrees of freedom; two workloads
    half = 3.18245 * math.sqrt(statistics.variance(logs) / 3) / 2
    found = paired_ratio(over, under)
    assert found.value == pytest.approx(math.exp(middle))
    assert found.low == pytest.approx(math.exp(middle - half), rel=1e-5)
    assert found.high == pytest.approx(math.exp(middle + half), rel=1e-5)


def test_scatter_of_all_workloads_is_pooled():
    over = {"a": [[1.0], [1.2]], "b": [[1.0], [1.5], [1.2]]}
    under = {"a": [[1.0], [1.0]], "b": [[1.0], [1.0], [1.0]]}
    a, b = [0.0, math.log(1.2)], [0.0, math.log(1.5), math.log(1.2)]
    errors = statistics.variance(a) / 2 + statistics.variance(b) / 3
    half = 3.18245 * math.sqrt(errors) / 2
    found = paired_ratio(over, under)
    assert math.log(found.high / found.value) == pytest.approx(half, rel=1e-5)
    assert math.log(found.value / found.low) == pytest.approx(half, rel=1e-5)


def test_one_round_has_no_interval():
    assert paired_ratio({"a": [[3.0]]}, {"a": [[1.5]]}) == Ratio(2.0, 0.0, math.inf)


@pytest.mark.parametrize(
    ("over", "under"),
    [({}, {}), ({"a": [[1.0]]}, {"b": [[1.0]]}), ({"a": [[1.0]]}, {}), ({"a": [[1.0], [1.0]]}, {"a": [[1.0]]})],
)
def test_what_does_not_pair_is_refused(over, under):
    with pytest.raises(ValueError, match=r"same workloads|zip\(\)"):
        paired_ratio(over, under)


@pytest.mark.parametrize(("rounds", "workloads"), [(4, 1), (8, 1), (4, 3)])
def test_nineteen_intervals_of_twenty_hold_the_truth(rounds, workloads):
    rng = np.random.default_rng(rounds + workloads)
    truth, held, tries = 1.1, 0, 1500
    for _ in range(tries):
        over, under = {}, {}
        for name in range(workloads):
            noise = rng.normal(0.0, 0.02, (2, rounds))
            over[str(name)] = [[truth * math.exp(x)] for x in noise[0]]
            under[str(name)] = [[math.exp(x)] for x in noise[1]]
        found = paired_ratio(over, under)
        held += found.low <= truth <= found.high
    assert 0.935 <= held / tries <= 0.972


def test_the_spread_is_half_the_width_relative_to_the_value():
    assert Ratio(2.0, 1.0, 4.0).spread == 0.75
    assert Ratio(3.0, 1.0, 4.0).spread == 0.5
