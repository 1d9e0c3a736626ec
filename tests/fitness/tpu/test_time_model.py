"""The time of modelled kernels: what it is made of, its classes and intervals, and that a version never changes."""

import hashlib
import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu import time_model
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.time_model import CALIBRATIONS, ERRORS, SHORT_STEP, kind_of, relative_error, time_of

SECONDS = {4: "91d9"}
"""By version, what the constants of all chips hash to that seconds are made of. Others are another version."""


def hashed(data):
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:4]


def test_figures_of_one_version_are_of_the_same_constants():
    held = {name: asdict(found) for name, found in CALIBRATIONS.items()}
    assert {time_model.VERSION: hashed({n: [c["rules"], c["call"]] for n, c in held.items()})} == SECONDS
    assert ERRORS.keys() == {"matrix", "vector", "steps", "memory"}
    assert all(-0.7 < low < 0 < high < 0.7 for low, high in ERRORS.values())
    assert CALIBRATIONS.keys() == CHIPS.keys()
    assert (time_model.COVERAGE, time_model.SAME_STRUCTURE) == (0.9, 0.02)


def copied(size, worked):
    """The core works, starts a read, and waits for it."""
    return Events(
        np.array([worked, 0, 0], np.int64),
        np.array([Kind.READ, Kind.WAIT], np.int64),
        np.array([size, size], np.int64),
        np.array([-1, 0], np.int64),
    )


def test_a_time_is_the_sum_of_its_operations_and_a_call():
    rules = CALIBRATIONS["tpu7x"].rules
    found = time_of(((copied(318 * 10**6, 1800), 3), (Events.idle(180_000), 2)), "tpu7x", "mxu")
    read, core = 318e6 / 3.18e12, 1800 / 1.8e9
    assert found.core == pytest.approx(3 * core + 2 * 100e-6)
    assert found.memory == pytest.approx(3 * read) and found.waited == pytest.approx(3 * (read + rules.latency))
    assert found.seconds == pytest.approx(1e-6 + 3 * (core + read + rules.latency) + 2 * 100e-6)
    assert found.kind == "memory"
    low, high = ERRORS["memory"]
    assert found.low == pytest.approx(found.seconds * math.exp(low))
    assert found.high == pytest.approx(found.seconds * math.exp(high))
    idle = time_of((), "v5e", "valu")
    assert (idle.seconds, idle.core, idle.memory, idle.waited, idle.kind) == (1e-6, 0.0, 0.0, 0.0, "vector")


def test_the_longest_operation_says_whether_steps_are_short():
    short, long = copied(3180, 180), Events.idle(180_000)
    for events, kind in (
        (((short, 1),), "steps"),
        (((short, 1), (long, 1)), "matrix"),
        (((long, 1), (short, 1)), "matrix"),
        (((short, 3), (long, 1)), "matrix"),
        (((short, 1000), (long, 1)), "steps"),
    ):
        assert time_of(events, "v5e", "mxu").kind == kind


@pytest.mark.parametrize(
    ("bound", "core", "memory", "step", "kind"),
    [
        ("mxu", 1.0, 1.0, math.inf, "matrix"),
        ("mxu", 1.0, 1.0001, math.inf, "memory"),
        ("valu", 1.0, 2.0, SHORT_STEP, "memory"),
        ("valu", 1.0, 0.0, SHORT_STEP, "vector"),
        ("xlu", 1.0, 1.0, math.inf, "vector"),
        ("mxu", 0.0, 0.0, math.inf, "matrix"),
        ("mxu", 1.0, 2.0, SHORT_STEP * 0.999, "steps"),
    ],
)
def test_a_class_is_by_what_takes_longest(bound, core, memory, step, kind):
    assert kind_of(bound, core, memory, step) == kind


def test_intervals_are_those_of_the_class_and_of_several_the_widest():
    found = time_of(((Events.idle(180_000), 2),), "tpu7x", "valu")
    assert found.low == pytest.approx(200e-6 * math.exp(-0.16), rel=0.01) and found.kind == "vector"
    assert found.high == pytest.approx(found.seconds * math.exp(0.13))
    assert relative_error(["matrix"]) == ERRORS["matrix"] == (-0.11, 0.05)
    for kinds in (["matrix", "memory"], ["memory", "matrix"]):
        assert relative_error(kinds) == ERRORS["memory"]
    assert relative_error(["memory", "steps", "matrix"]) == ERRORS["steps"]


def test_the_class_of_an_error_is_that_of_the_busiest_unit():
    kinds = [time_model.kind_of(unit, 2.0, 1.0, 1.0) for unit in ("eup", "mxu", "valu")]
    assert kinds == ["vector", "matrix", "vector"]
    assert time_model.kind_of("mxu", 1.0, 2.0, 1.0) == "memory"
