"""The modelled cascade's order of stages and what it makes of figures; stages that only note when they ran."""

import dataclasses
import math

import pytest

from testkit import scripted
from testkit.scripted import Doubler, shape
from tilewright.fitness.evaluation import FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.fitness.race import Race, Rung
from tilewright.fitness.score import geometric_mean
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu import time_model
from tilewright.seeds.operator import Scope, SeedKernel
from tilewright.workers.cascade import modelled
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.cascade.verify_shapes import Shapes
from tilewright.workers.child.launch import Spawn
from tilewright.workers.request import Failure, Findings

OPERATOR = Doubler()
SUITE = OPERATOR.suites["tiny"]
CHIP = load_target("tpu7x")
SOURCE = """import jax

SPACE = {"x": (1,)}
DEFAULTS = {"x": 1}
CONSTRAINTS = {}


def build(params):
    return None
"""
KIND = sorted(time_model.ERRORS)[0]
WRONG = Failure(Verdict.INCORRECT, "wrong")


def figures(name, rate=2.0, vmem=1 << 20, kind=KIND):
    return WorkloadFigures(
        workload=name,
        seconds=1 / rate,
        tflops=rate,
        roofline_fraction=0.5,
        kind=FigureKind.MODELLED,
        diagnosis={"vmem_bytes": vmem, "error_class": kind},
    )


class Notes:
    """What ran, on which shapes, and what the verifying stage was asked."""

    def __init__(self, monkeypatch, fails=None, absent=None, kind=KIND):
        self.ran, self.best, self.requests, notes = [], [], [], self

        def stage_of(name, which):
            class Noting:
                stage = which

                def __init__(self, *shapes, compiles=True, checks=True, exact=None):
                    self.label = name if compiles and checks else f"{name} alone"

                def run(self, request, found):
                    notes.ran.append((self.label, *(w.id for w in request.measured)))
                    notes.requests.append(request)
                    if name == "measure":
                        found.figures += [figures(w.id, kind=kind) for w in request.measured]
                    return WRONG if name == fails else None

            return Noting

        monkeypatch.setattr(modelled, "TraceStage", stage_of("trace", Stage.COMPILE))
        monkeypatch.setattr(modelled, "CheckStage", stage_of("check", Stage.CHECK))
        monkeypatch.setattr(modelled, "CompileStage", stage_of("compile", Stage.COMPILE))
        monkeypatch.setattr(modelled, "MeasureStage", stage_of("measure", Stage.MEASURE))
        monkeypatch.setattr(modelled, "VerifyStage", stage_of("verify", Stage.CHECK))
        monkeypatch.setattr(modelled, "DrawnStage", stage_of("drawn", Stage.CHECK))
        monkeypatch.setattr(modelled, "pallas_template", Spawn)
        monkeypatch.setattr(modelled.libtpu_simulator, "missing_parts", lambda: absent)
        monkeypatch.setattr(modelled, "to_verify", self._to_verify)
        self.shapes = Shapes((shape(64),))

    def _to_verify(self, request, found, *, best):
        self.best.append(best)
        return self.shapes


def judged(source=SOURCE, **options):
    return ModelledCascade(OPERATOR, CHIP, SUITE).evaluate("g", source, {}, seed=7, **options)


ALL = ("m64", "m32")


def test_stages_run_in_order_and_a_best_is_verified(monkeypatch):
    notes = Notes(monkeypatch)
    found = judged(best=1.9)
    assert notes.ran == [("trace", *ALL), ("compile", *ALL), ("measure", *ALL), ("verify", *ALL)]
    assert (found.verdict, found.stage, notes.best) == (Verdict.OK, Stage.MEASURE, [True])
    asked = notes.requests[0]
    assert asked.checked == SUITE.check and asked.unmeasured == SUITE.final and not asked.thorough
    level = geometric_mean([2.0, 2.0])
    for best, wanted in ((2.0000001, False), (1.9999999, True), (0.0, True), (level, False)):
        judged(best=best)
        assert notes.best[-1] is wanted
    notes.shapes, before = Shapes(), len(notes.ran)
    judged()
    assert [ran[0] for ran in notes.ran[before:]] == ["trace", "compile", "measure"], "nothing to verify"


def test_what_fails_its_verification_failed_a_check(monkeypatch):
    Notes(monkeypatch, fails="verify")
    found = judged()
    assert (found.verdict, found.stage) == (Verdict.INCORRECT, Stage.CHECK)
    notes = Notes(monkeypatch, fails="measure")
    found = judged()
    assert (found.verdict, found.stage, notes.best) == (Verdict.INCORRECT, Stage.MEASURE, [])
    notes = Notes(monkeypatch)
    rejected = judged("import os\n")
    assert (rejected.verdict, rejected.stage, notes.ran) == (Verdict.REJECTED, Stage.DIALECT, [])


def test_a_source_that_the_campaign_vouches_for_passes_the_gates_after_it_was_timed(monkeypatch):
    notes = Notes(monkeypatch)
    found = judged(best=float("inf"))
    assert notes.ran[:4] == [("trace alone", *ALL), ("compile", *ALL), ("measure", *ALL), ("check", *ALL)]
    assert (found.verdict, found.stage, notes.best) == (Verdict.OK, Stage.MEASURE, [False])
    Notes(monkeypatch, fails="check")
    found = judged(best=math.inf)
    assert (found.verdict, found.stage, found.fitness) == (Verdict.INCORRECT, Stage.CHECK, None)
    notes = Notes(monkeypatch, fails="compile")
    judged(best=math.inf)
    assert [ran[0] for ran in notes.ran] == ["trace alone", "compile"], "what does not compile is not checked"


def test_finalists_are_verified_and_what_is_only_timed_is_not(monkeypatch):
    notes = Notes(monkeypatch)
    judged(scope=Scope.FINAL)
    final = notes.requests[0]
    assert final.thorough and final.measured == SUITE.final and final.checked == SUITE.check
    assert final.unmeasured == SUITE.workloads and notes.best == [True]
    notes = Notes(monkeypatch)
    assert judged(scope=Scope.FINAL, best=float("inf")).verdict is Verdict.OK
    assert notes.requests[0].checked == () and notes.best == [] and notes.requests[0].unmeasured == ()
    notes = Notes(monkeypatch)
    judged(scope=Scope.FINAL, baseline=SeedKernel("b", "", baseline=True))
    assert not notes.requests[0].thorough and notes.best == []
    notes = Notes(monkeypatch)
    judged(only=["m32", "m96"])
    assert notes.requests[0].unmeasured == (shape(96),) and notes.requests[0].measured == (shape(32),)


@pytest.mark.parametrize(
    ("fails", "stage"),
    [
        (None, Stage.MEASURE),
        *((name, Stage.CHECK) for name in ("check", "verify", "drawn")),
        ("measure", Stage.MEASURE),
    ],
)
def test_a_finalist_passes_the_gates_while_it_is_simulated(monkeypatch, fails, stage):
    notes = Notes(monkeypatch, fails=fails)
    found = judged(scope=Scope.FINAL)
    assert (found.stage, found.verdict is Verdict.OK) == (stage, fails is None) and "check" in found.spent
    labels = [ran[0] for ran in notes.ran]
    assert labels[:2] == ["trace alone", "compile alone"], "lowered and described before either begins"
    gates = ["check", "verify", "drawn"]
    gates = gates[: gates.index(fails) + 1] if fails in gates else gates
    assert sorted(labels[2:]) == sorted([*gates, "compile", "measure"])


def test_a_drawn_shape_is_traced_and_checked_on_few_kinds(monkeypatch):
    asked, wrong = [], {}
    for name in ("trace", "check"):
        monkeypatch.setattr(modelled, name, lambda part, found, n=name: asked.append((n, part)) or wrong.get(n))
    given = scripted.request(OPERATOR, target=CHIP, thorough=True, checked=(shape(64),))
    assert modelled.gate_large_shapes(given, Findings()) is None
    assert [name for name, _ in asked] == ["trace", "check"]
    assert all(p.large_checks == p.checked == (shape(64),) and not p.thorough for _, p in asked)
    for wrong["check"], wrong["trace"] in ((WRONG, None), (None, WRONG)):
        assert modelled.gate_large_shapes(given, Findings()) is WRONG
    assert [name for name, _ in asked[2:]] == ["trace", "check", "trace"]


def test_a_race_compiles_after_it_has_judged_every_module(monkeypatch):
    notes = Notes(monkeypatch)
    race = Race((Rung(("m32",), 0.0, 0.0),), (({"vmem": "0-8MiB"}, 1.0),), {"m32": 0.0})
    assert judged(race=race).verdict is Verdict.OK
    assert notes.ran[:-1] == [
        ("trace", *ALL),
        ("compile alone", *ALL),
        ("compile", "m32"),
        ("measure", "m32"),
        ("compile", "m64"),
        ("measure", "m64"),
    ]
    notes = Notes(monkeypatch)
    behind = dataclasses.replace(race, cells=(({"vmem": "0-8MiB"}, 9.0), ({"vmem": "8-16MiB"}, 1.0)))
    assert judged(race=behind).verdict is Verdict.OUTPACED and len(notes.ran) == 4


def test_a_missing_part_is_no_fault_of_the_genome(monkeypatch):
    notes = Notes(monkeypatch, absent="libtpu is not installed")
    found = judged()
    assert (found.verdict, found.reason) == (Verdict.INFRA_ERROR, "libtpu is not installed")
    assert found.stage is Stage.COMPILE and notes.ran == []


def test_a_fitness_has_the_interval_of_the_model(monkeypatch):
    for kind in time_model.ERRORS:
        Notes(monkeypatch, kind=kind)
        found = judged()
        low, high = time_model.relative_error([kind, kind])
        assert found.fitness == pytest.approx(2.0)
        assert found.interval == pytest.approx((2 * math.exp(-high), 2 * math.exp(-low)))
        assert found.descriptors == {"vmem": "0-8MiB"} and "libtpu" in found.toolchain


@pytest.mark.parametrize(
    ("mebibytes", "cell"),
    [
        (0, "0-8MiB"),
        (8, "0-8MiB"),
        (8.001, "8-16MiB"),
        (16, "8-16MiB"),
        (17, "16-32MiB"),
        (32, "16-32MiB"),
        (33, "32-64MiB"),
        (64, "32-64MiB"),
        (64.001, "64MiB+"),
    ],
)
def test_a_cell_is_the_most_vmem_of_all_workloads(mebibytes, cell):
    most = figures("a", vmem=int(mebibytes * 2**20))
    for order in ([most, figures("b", vmem=0)], [figures("b", vmem=0), most]):
        assert modelled._descriptors(Findings(figures=order)) == {"vmem": cell}
