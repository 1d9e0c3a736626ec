"""The calibrated time of a TPU kernel, with the error to expect of it. One version of it for every figure.

    seconds = sum over operations of their replay (``fitness.tpu.memory``) + the chip's fixed cost of a call

The constants are fitted to kernel times that others measured and published; which, how well, and on which rows they
were not fitted is in ``experiments/records/tpu_truth``. A change of formula or constants is a new ``VERSION``: figures
of different versions are not comparable, and every modelled figure says which it is of.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.memory import Rules, replay

VERSION = 4
"""1: max(cycles / clock, HBM bytes / 0.8 of the bandwidth), no interval. 2: copies replayed through one memory.
3: waits for copies written by hand are matched rightly, scalar divisions are followed. 4: the semaphore of a wait is
followed through spill slots; constants of v6e from one half of the rows. Intervals may change within a version.
"""

COVERAGE = 0.9
"""Share of real times that an interval is meant to hold."""

SAME_STRUCTURE = 0.02
"""Relative error left between two schedules of one structure that differ in one parameter: the rest cancels."""


SHORT_STEP = 0.7e-6
"""Seconds between waits under which what a step itself costs decides: twice the 0.35 us of a grid's step in JAX's
Pallas guide."""


ERRORS: Mapping[str, tuple[float, float]] = {
    "matrix": (-0.11, 0.05),
    "vector": (-0.16, 0.13),
    "steps": (-0.28, 0.23),
    "memory": (-0.16, 0.13),
}
"""log(real / modelled), the interval's ends by class (see ``kind_of``): the widest of the 5 % and 95 % points of each
family of measured kernels (one kind on one chip), so that a family that was not measured may be as far off as the worst
that was (``experiments/records/tpu_truth``). *memory* has few rows and is taken with *vector*."""


@dataclass(frozen=True)
class Calibration:
    """``call``: seconds that a call costs beside its operations."""

    rules: Rules
    call: float


@dataclass(frozen=True)
class ModelledTime:
    """A time with its interval, in seconds, what it went to (core at work, copies alone, waiting) and its class."""

    seconds: float
    low: float
    high: float
    core: float
    memory: float
    waited: float
    kind: str


CALIBRATIONS: Mapping[str, Calibration] = {
    "tpu7x": Calibration(Rules(1.80e9, 3.18e12, 3.13e12, 1.34e-6), 1e-6),
    "v6e": Calibration(Rules(1.60e9, 1.36e12, 1.36e12, 0.64e-6), 1e-6),
    "v5e": Calibration(Rules(1.5e9, 0.70e12, 0.63e12, 0.41e-6), 1e-6),
}
"""By chip. Clocks: the one published is v5e's; tpu7x's 1.8 GHz is what its matrix-bound rows run at."""


def time_of(operations: Iterable[tuple[Events, int]], chip: str, bound: str) -> ModelledTime:
    """The time of one call: every operation's events, and how often it runs.

    ``bound``: the unit with the largest lower bound (see ``simulation.diagnosis``).
    """
    calibration = CALIBRATIONS[chip]
    seconds, core, memory, waited, longest = calibration.call, 0.0, 0.0, 0.0, (0.0, math.inf)
    for events, count in operations:
        passed = replay(events, calibration.rules)
        seconds += count * passed.seconds
        core += count * passed.core
        memory += count * passed.memory
        waited += count * passed.waited
        longest = max(longest, (count * passed.seconds, passed.step))
    kind = kind_of(bound, core, memory, longest[1])
    low, high = (seconds * math.exp(end) for end in ERRORS[kind])
    return ModelledTime(seconds, low, high, core, memory, waited, kind)


def kind_of(bound: str, core: float, memory: float, step: float) -> str:
    """The class whose error applies: ``steps`` where the longest operation waits for a copy more often than every
    ``SHORT_STEP``, ``memory`` where copies take longer than the core, else by the busiest unit.
    """
    if step < SHORT_STEP:
        return "steps"
    if memory > core:
        return "memory"
    return "matrix" if bound == "mxu" else "vector"


def relative_error(kinds: Sequence[str]) -> tuple[float, float]:
    """Interval of log(real / modelled) for a mean over workloads: errors of one model are taken to go together."""
    ends = [ERRORS[kind] for kind in kinds]
    return min(low for low, _ in ends), max(high for _, high in ends)
