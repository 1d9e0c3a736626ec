"""Races to their edges: the bar of a cell, what intervals reach, what leads on a workload, what is said."""

import json
import math

import pytest

from tilewright.fitness.evaluation import FigureKind, WorkloadFigures
from tilewright.fitness.race import DRIFT, Race, Rung

LOW, HIGH = {"vmem": "low"}, {"vmem": "high"}


def figures(kind=FigureKind.MODELLED, errors=(), gbytes=None, **rates):
    """Of rates in 1/s."""
    errors = dict(zip(rates, errors, strict=False))
    return [
        WorkloadFigures(
            workload=w,
            seconds=1 / r,
            tflops=r,
            gbytes=gbytes,
            roofline_fraction=0.5,
            kind=kind,
            diagnosis={"relative_error": errors[w]} if w in errors else {},
        )
        for w, r in rates.items()
    ]


def race(*workloads, offset=0.0, half=0.1, bar=100.0, fastest=1e-9):
    return Race((Rung(workloads, offset, half),), ((LOW, bar),), dict.fromkeys(workloads, fastest))


def outpaced(held, found, cell=LOW):
    return held.outpaced(held.rungs[0], found, cell)


def test_the_bar_is_that_of_the_cell_as_far_as_it_is_known():
    held = Race((Rung(("a",), 0.0, 0.1),), ((LOW, 100.0), (HIGH, 50.0)), {"a": 1e-9})
    assert Race.from_data(json.loads(json.dumps(held.data()))) == held, "it crosses Ray as JSON"
    assert (held.bar(LOW), held.bar(HIGH), held.bar({}), held.bar({"vmem": "new"})) == (100.0, 50.0, 50.0, 0.0)
    assert outpaced(held, figures(a=90.0)) is not None
    assert outpaced(held, figures(a=91.0)) is None, "its interval reaches the elite"
    assert outpaced(held, figures(a=60.0), HIGH) is None
    assert outpaced(held, figures(a=60.0), {}) is None, "it may be in the slower cell"
    assert outpaced(held, figures(a=1.0), {"vmem": "new"}) is None, "a cell that nobody holds"
    best = Race(held.rungs, held.cells, {"a": 1e-9}, 100.0)
    assert best.bar({"vmem": "new"}) == 25.0 and best.bar(LOW) == 100.0
    assert outpaced(best, figures(a=20.0), {"vmem": "new"}) is not None, "a new cell is not for what is hopeless"
    assert outpaced(best, figures(a=30.0), {"vmem": "new"}) is None
    leads = Race(held.rungs, held.cells, {"a": 1 / 40.0})
    assert outpaced(leads, figures(a=41.0), {}) is None, "the fastest on a workload"
    found = outpaced(leads, figures(a=39.0), {})
    assert found.projected == pytest.approx(39.0)
    assert str(found) == ("by 1 workloads 0.780 (0.706 to 0.862) of the 50 TFLOP/s to beat; not measured on the rest")


def test_a_cell_of_several_descriptors_is_met_by_all_of_them():
    held = Race((), (({"a": "1", "b": "1"}, 10.0), ({"a": "1", "b": "2"}, 20.0)), {})
    assert (held.bar({"a": "1", "b": "2"}), held.bar({"a": "1"}), held.bar({"b": "2"})) == (20.0, 10.0, 20.0)
    assert (
        held.bar({"a": "2", "b": "1"}) == held.bar({"a": "0", "b": "0"}) == 0.0
        and held.bar({"a": "1", "b": "1", "c": "3"}) == 10.0
    )


def test_what_reaches_a_bar_to_the_last_bit_stays_in():
    level = race("a", half=0.0)
    rate = 64.0  # exact in logarithm and back
    assert math.exp(math.log(rate)) == pytest.approx(rate)
    reached = math.exp(math.log(rate))
    assert outpaced(race("a", half=0.0, bar=reached), figures(a=rate)) is None
    assert outpaced(race("a", half=0.0, bar=math.nextafter(reached, 100)), figures(a=rate)) is not None
    assert outpaced(level, figures(a=99.0)) is not None
    assert outpaced(race("a", bar=0.0), figures(a=1e-3)) is None, "a bar of nothing stops nobody"
    assert outpaced(race("a", bar=0.5, half=0.0), figures(a=0.4)) is not None
    assert outpaced(race("a", bar=-1.0, half=0.0, fastest=1e-9), figures(a=1e-3)) is None


def test_what_leads_to_the_last_bit_stays_in():
    assert outpaced(race("a", fastest=1 / 50.0), figures(a=50.0)) is None
    assert outpaced(race("a", fastest=math.nextafter(1 / 50.0, 0)), figures(a=50.0)) is not None
    held = race("a", "b", fastest=1 / 50.0)
    assert outpaced(held, figures(a=10.0, b=50.0)) is None, "on one of two"
    unmeasured = Race(held.rungs, held.cells, {})
    assert outpaced(unmeasured, figures(a=1.0, b=1.0)) is None, "nobody was measured there"


def test_the_projection_is_the_geometric_mean_less_the_offset():
    held = race("a", "b", offset=math.log(4), half=0.0)
    found = outpaced(held, figures(a=8.0, b=32.0, c=1e9))
    assert (found.seen, found.bar, found.unit) == (2, 100.0, "TFLOP/s"), "c is not of this rung"
    assert found.projected == pytest.approx(4.0) and found.half == 0.0
    assert outpaced(race("a", "b", offset=-math.log(8), half=0.0), figures(a=8.0, b=32.0)) is None


def test_a_rung_that_nobody_ran_stops_nobody():
    held = race("a", "b")
    assert outpaced(held, []) is None and outpaced(held, figures(c=1.0)) is None


def test_memory_bound_rates_are_compared_in_their_own_unit():
    found = outpaced(race("a", half=0.0), figures(a=1e6, gbytes=25.0))
    assert found.projected == pytest.approx(25.0) and "of the 100 GB/s to" in str(found)


def test_errors_of_measured_figures_add_as_those_that_do_not_know_each_other():
    held = race("a", "b", half=0.1)
    found = outpaced(held, figures(FigureKind.MEASURED, (0.01, 0.02), a=10.0, b=10.0))
    own = math.hypot(1.96 * 0.01, 1.96 * 0.02) / 2
    assert DRIFT == 0.02 and found.half == pytest.approx(math.hypot(0.1, own) + 0.02)
    (unknown,) = (outpaced(race("a", half=0.0), figures(FigureKind.MEASURED, a=10.0)),)
    assert unknown.half == pytest.approx(1.96 * 0.05 + 0.02)
    modelled = outpaced(held, figures(FigureKind.MODELLED, (0.5, 0.5), a=10.0, b=10.0))
    assert modelled.half == 0.1, "a model's figure has no scatter and no drift"
    mixed = figures(FigureKind.MEASURED, (0.0,), a=10.0) + figures(b=10.0)
    assert outpaced(held, mixed).half == pytest.approx(0.12)
    edge = figures(FigureKind.MEASURED, (0.01,), a=10.0)
    assert outpaced(race("a", fastest=0.1 * math.exp(-0.0195)), edge) is None, "its interval leads"
    assert outpaced(race("a", fastest=0.1 * math.exp(-0.0197)), edge) is not None
