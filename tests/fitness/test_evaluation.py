"""What figures, readings and evaluations may be, what they say of themselves, and what old records read as."""

import pytest
from pydantic import ValidationError

from tilewright.fitness.evaluation import Evaluation, GateReading, Verdict, WorkloadFigures


def figures(**changes):
    fields = {"workload": "w", "seconds": 2.0, "tflops": 3.0, "roofline_fraction": 0.5, "kind": "modelled"}
    return WorkloadFigures(**{**fields, **changes})


def evaluation(**changes):
    fields = {
        "genome": "g",
        "target": "tpu7x",
        "suite": "s",
        "stage": "measure",
        "verdict": "ok",
        "fitness": 10.0,
        "interval": (9.0, 11.0),
        "workloads": (figures(),),
    }
    return Evaluation(**{**fields, **changes})


@pytest.mark.parametrize(
    ("field", "least", "allowed"),
    [("seconds", 0.0, False), ("tflops", 0.0, True), ("gbytes", 0.0, True), ("roofline_fraction", 0.0, True)],
)
def test_figures_are_not_negative_and_times_not_zero(field, least, allowed):
    assert getattr(figures(**{field: 1e-300}), field) == 1e-300
    for value, fine in ((least, allowed), (-1e-300, False), (float("nan"), False)):
        if fine:
            assert getattr(figures(**{field: value}), field) == value
        else:
            with pytest.raises(ValidationError, match=field):
                figures(**{field: value})


def test_a_modelled_figure_without_a_version_is_of_the_first_model():
    assert figures().model_version == 1 and figures(model_version=4).model_version == 4
    assert figures(model_version=0).model_version == 0
    assert figures(kind="measured").model_version is None
    assert figures(kind="measured", model_version=2).model_version == 2
    assert WorkloadFigures.model_validate(figures(model_version=4)).model_version == 4
    with pytest.raises(ValidationError):
        WorkloadFigures.model_validate("modelled")


def test_a_rate_is_in_bytes_where_they_are_there():
    assert (figures().rate, figures().unit) == (3.0, "TFLOP/s")
    for gbytes in (7.0, 0.0):
        found = figures(gbytes=gbytes)
        assert (found.rate, found.unit) == (gbytes, "GB/s")


def test_the_interval_of_a_time_is_what_the_model_says_or_the_time():
    assert figures().seconds_interval == (2.0, 2.0)
    timing = figures(diagnosis={"seconds_low": 1, "seconds_high": "3.5"})
    assert timing.seconds_interval == (1.0, 3.5) and isinstance(timing.seconds_interval[0], float)
    assert figures(diagnosis={"seconds_low": 1.0}).seconds_interval == (1.0, 2.0)


def test_readings_of_old_records_are_whole_and_of_no_artefact():
    reading = GateReading(gate="exact", inputs="randn", value=50.0, passed=True)
    assert (reading.bar, reading.detail, reading.workload, reading.artefact) == (None, "", "", "")
    assert reading.sampled is False


def test_a_fitness_is_there_exactly_when_the_verdict_is_ok():
    assert evaluation().fitness == 10.0
    for verdict in Verdict:
        if verdict is Verdict.OK:
            with pytest.raises(ValidationError, match="a fitness exactly when its verdict is ok"):
                evaluation(fitness=None)
            continue
        with pytest.raises(ValidationError, match="a fitness exactly when its verdict is ok"):
            evaluation(verdict=verdict, reason="why")
        with pytest.raises(ValidationError, match=f"verdict {verdict} needs a reason"):
            evaluation(verdict=verdict, fitness=None)
        assert evaluation(verdict=verdict, fitness=None, reason="why").fitness is None
    assert evaluation(reason="said all the same").verdict is Verdict.OK


def test_only_what_was_outpaced_is_projected():
    found = evaluation(verdict=Verdict.OUTPACED, fitness=None, reason="slow", projected=8.0)
    assert found.believed == 8.0 and evaluation().believed == 10.0
    assert evaluation(verdict=Verdict.TIMEOUT, fitness=None, reason="x").believed is None
    for verdict, fitness in ((Verdict.OK, 10.0), (Verdict.TIMEOUT, None)):
        with pytest.raises(ValidationError, match=f"verdict {verdict} has no projected fitness"):
            evaluation(verdict=verdict, fitness=fitness, reason="x", projected=8.0)


def test_versions_and_units_are_those_of_the_first_workload():
    two = evaluation(workloads=(figures(model_version=3), figures(model_version=2, gbytes=1.0)))
    assert (two.model_version, two.unit) == (3, "TFLOP/s")
    bytes_first = evaluation(workloads=(figures(gbytes=1.0), figures()))
    assert bytes_first.unit == "GB/s"
    none = evaluation(workloads=())
    assert (none.model_version, none.unit) == (None, "passes")


def test_two_are_even_where_one_lies_in_the_other_s_interval():
    def other(fitness, version=1):
        return evaluation(fitness=fitness, interval=None, workloads=(figures(model_version=version),))

    for fitness, even in ((8.99, False), (9.0, True), (10.5, True), (11.0, True), (11.01, False)):
        assert evaluation().even_with(other(fitness)) is even
    assert not evaluation().even_with(other(10.0, version=2)), "of another model"
    assert not evaluation(interval=None).even_with(other(10.0))
    failed = evaluation(verdict=Verdict.TIMEOUT, fitness=None, reason="x")
    assert not failed.even_with(other(10.0)) and not evaluation().even_with(failed)
    measured = evaluation(workloads=(figures(kind="measured"),))
    assert not measured.even_with(measured), "what was measured has its own way to be compared"


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_repetition_and_one_that_lost_a_race_have_not_failed(verdict):
    fields = {} if verdict is Verdict.OK else {"fitness": None, "interval": None, "reason": "why"}
    found = evaluation(verdict=verdict, **fields)
    assert found.failed is (verdict not in (Verdict.OK, Verdict.DUPLICATE, Verdict.OUTPACED))
    assert (found.wall_seconds, found.spent, found.log, found.drawn) == (0.0, {}, "", ())
