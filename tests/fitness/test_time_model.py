"""The time of modelled kernels: what it is made of, its classes and intervals, and that a version never changes."""

import hashlib
import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.fitness import time_model
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.replay import Events, Kind
from tilewright.fitness.time_model import CALIBRATIONS, kind_of, relative_error, time_of

CONSTANTS = {3: "e974"}
"""By version, what the constants of all chips hash to. Another figure is another version, not another hash."""


def test_figures_of_one_version_are_of_the_same_constants():
    text = json.dumps({name: asdict(found) for name, found in sorted(CALIBRATIONS.items())}, sort_keys=True)
    found = hashlib.sha256(text.encode()).hexdigest()[:4]
    assert {time_model.VERSION: found} == CONSTANTS
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
    run = SimpleNamespace(events=((copied(318 * 10**6, 1800), 3), (Events.idle(180_000), 2)))
    found = time_of(run, "tpu7x", "mxu")
    read, core = 318e6 / 3.18e12, 1800 / 1.8e9
    assert found.core == pytest.approx(3 * core + 2 * 100e-6)
    assert found.memory == pytest.approx(3 * read) and found.waited == pytest.approx(
        3 * (read + rules.latency)
    )
    assert found.seconds == pytest.approx(1e-6 + 3 * (core + read + rules.latency) + 2 * 100e-6)
    assert found.kind == "memory"
    assert found.low == pytest.approx(found.seconds * math.exp(-0.05))
    assert found.high == pytest.approx(found.seconds * math.exp(0.05))
    idle = time_of(SimpleNamespace(events=()), "v5e", "valu")
    assert (idle.seconds, idle.core, idle.memory, idle.waited, idle.kind) == (1e-6, 0.0, 0.0, 0.0, "vector")


@pytest.mark.parametrize(
    ("bound", "core", "memory", "kind"),
    [
        ("mxu", 1.0, 1.0, "matrix"),
        ("mxu", 1.0, 1.0001, "memory"),
        ("valu", 1.0, 2.0, "memory"),
        ("valu", 1.0, 0.0, "vector"),
        ("xlu", 1.0, 1.0, "vector"),
        ("mxu", 0.0, 0.0, "matrix"),
    ],
)
def test_a_class_is_by_what_takes_longest(bound, core, memory, kind):
    assert kind_of(bound, core, memory) == kind


def test_intervals_are_those_of_the_class_and_of_several_the_widest():
    low, high = time_model.interval(2.0, "tpu7x", "vector")
    assert (low, high) == (pytest.approx(2 * math.exp(-0.36)), pytest.approx(2 * math.exp(0.1)))
    assert relative_error(["matrix"], "v5e") == (-0.082, 0.02)
    for kinds in (["matrix", "memory"], ["memory", "matrix"]):
        assert relative_error(kinds, "v5e") == (-0.082, 0.05)
    assert relative_error(["memory", "vector", "matrix"], "v5e") == (-0.215, 0.232)
