"""Intervals of measured times: medians and their errors, and ratios of kernels that took turns on the same device."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Rounds = Sequence[Sequence[float]]
"""Seconds of each call, by round."""

NORMAL_95 = 1.96
"""Half width of a two-sided 95 % interval, in standard deviations of a normal distribution."""


def student_95(freedom: int) -> float:
    """The same of Student's distribution with ``freedom`` degrees of freedom."""
    from scipy.special import stdtrit  # half a second that what only times a kernel need not wait for

    return float(stdtrit(freedom, 0.975))


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, geometric mean over workloads, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the interval's width, relative."""
        return (self.high - self.low) / (2 * self.value)


def median_seconds(rounds: Rounds) -> float:
    """The median over all calls."""
    return statistics.median(time for calls in rounds for time in calls)


def relative_error(rounds: Rounds) -> float:
    """Standard error of the median, relative: 1.25 standard deviations over the root of the number of calls."""
    calls = [time for one in rounds for time in one]
    if len(calls) < 2:
        return 0.05
    middle = statistics.median(calls)
    # the median absolute deviation, so that one interrupted call does not decide
    deviation = 1.4826 * statistics.median(abs(time - middle) for time in calls)
    return 1.25 * deviation / math.sqrt(len(calls)) / middle


def paired_ratio(over: Mapping[str, Rounds], under: Mapping[str, Rounds]) -> Ratio:
    """Times of one kernel over another's, on each workload in rounds that took turns.

    Per workload and round the ratio of the two medians; their logarithms are averaged over rounds, then over
    workloads. The interval is Student's, from the scatter between rounds pooled over workloads. Raises ValueError
    for no common workload, or rounds that do not pair.
    """
    if not over or over.keys() != under.keys():
        raise ValueError("a paired ratio needs the same workloads on both sides")
    means, errors, freedom = [], [], 0
    for name, rounds in over.items():
        logs = [math.log(statistics.median(a) / statistics.median(b)) for a, b in zip(rounds, under[name], strict=True)]
        means.append(statistics.fmean(logs))
        if len(logs) > 1:
            errors.append(statistics.variance(logs) / len(logs))
            freedom += len(logs) - 1
    middle = statistics.fmean(means)
    if not errors:
        return Ratio(math.exp(middle), 0.0, math.inf)
    half = student_95(freedom) * math.sqrt(sum(errors)) / len(means)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
