"""What all cascades share: what is asked, in which order stages run, where seconds go, what an evaluation says."""

import dataclasses
import functools
import itertools
import socket
import threading
from types import SimpleNamespace

import pytest

from testkit import scripted
from testkit.scripted import SOURCE, TARGET, Doubler, shape
from tilewright.fitness.evaluation import FigureKind, Reached, Stage, Verdict, WorkloadFigures
from tilewright.fitness.race import Race, Rung
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import Scope, SeedKernel, in_order
from tilewright.workers.cascade import base
from tilewright.workers.cascade.common_stages import DialectStage, RaceStage, dealt_kinds, run_steps
from tilewright.workers.cascade.measured import in_background
from tilewright.workers.child.launch import Spawn, Template
from tilewright.workers.child.session import SessionDied
from tilewright.workers.request import Failure, Findings, Limits

OPERATOR = Doubler()
SUITE = OPERATOR.suites["tiny"]


def figures(name, rate=2.0):
    return WorkloadFigures(
        workload=name, seconds=1 / rate, tflops=rate, roofline_fraction=0.5, kind=FigureKind.MODELLED
    )


class Simple(base.Cascade):
    """Judges as it is told; ``told`` is the stage and failure, or what is raised."""

    def __init__(self, outcome=(Stage.MEASURE, None), target=TARGET, scratch=None):
        super().__init__(OPERATOR, target, SUITE, None, scratch, Spawn())
        self.told, self.requests, self.device = outcome, [], 0.0

    def _judge(self, request, found, on_stage):
        self.requests.append(request)
        assert request.folder.is_dir()
        found.logs += ["first", "", "second"]
        found.artefact, found.projected = "hash", None
        found.figures.append(figures("m64"))
        if isinstance(self.told, Exception):
            raise self.told
        for stage in (Stage.DIALECT, Stage.CHECK, Stage.DIALECT):
            on_stage(stage)
        found.spend(2.5, 100.0)
        return self.told

    def _worth(self, found):
        return 4.0, (3.0, 5.0), {"cell": "a"}

    def _toolchain(self, failure):
        return {"failed": str(failure is not None)}


def evaluate(cascade, **options):
    return cascade.evaluate("genome", "text", {"x": 1}, seed=7, **options)


def test_what_is_asked_becomes_a_request():
    cascade = Simple()
    race = Race((), (), {})
    evaluate(cascade, known_artefacts={"seen"}, best=2.0, race=race)
    (asked,) = cascade.requests
    assert (asked.source, asked.params, asked.seed, asked.genome, asked.best) == ("text", {"x": 1}, 7, "genome", 2.0)
    assert asked.measured == SUITE.workloads and asked.checked == SUITE.check and asked.race is race
    assert (asked.final, asked.baseline, asked.only) == (False, None, None)
    assert asked.is_known("seen") == "an earlier genome" and asked.is_known("new") is None
    assert asked.limits == Limits() and not asked.folder.exists(), "the folder is gone"
    evaluate(cascade, scope=Scope.FINAL)
    assert cascade.requests[-1].measured == SUITE.final and cascade.requests[-1].final
    assert cascade.requests[-1].best == 0.0
    held = SeedKernel("b", "text", baseline=True)
    evaluate(cascade, baseline=held)
    assert cascade.requests[-1].baseline is held and cascade.requests[-1].checked == ()


def test_only_some_shapes_may_be_kept_to():
    cascade = Simple()
    evaluate(cascade, only=["m32"])
    asked = cascade.requests[-1]
    assert asked.measured == (shape(32),) and asked.checked == SUITE.check and asked.only == frozenset({"m32"})
    evaluate(cascade, only=["m64"])
    assert cascade.requests[-1].checked == ()
    for only, named in (([], r"\[\]"), (["m96", "m9"], r"\['m9', 'm96'\]")):
        with pytest.raises(ValueError, match=rf"^none of the suite workloads is among {named}$"):
            evaluate(cascade, only=only)


def test_an_evaluation_says_what_was_found_and_where_the_seconds_went():
    found = evaluate(Simple())
    assert (found.genome, found.target, found.suite, found.stage) == ("genome", "slow", "tiny", Stage.MEASURE)
    assert (found.verdict, found.reason, found.fitness, found.interval) == (Verdict.OK, "", 4.0, (3.0, 5.0))
    assert found.descriptors == {"cell": "a"} and found.artefact == "hash" and found.log == ""
    assert found.toolchain == {"failed": "False"} and found.worker == socket.gethostname()
    assert [f.workload for f in found.workloads] == ["m64"]
    assert found.spent.keys() == {"dialect", "check", "cpu", "device"} and found.spent["device"] == 2.5
    assert 0 <= found.spent["dialect"] + found.spent["check"] <= found.wall_seconds + 1e-3 < 10
    assert 0 <= found.spent["cpu"] < 10 and found.reached is Reached.DEVICE


def test_a_failure_has_its_log_and_no_worth():
    failure = Failure(Verdict.INCORRECT, "why", "its own log")
    found = evaluate(Simple((Stage.COMPILE, failure)))
    assert (found.verdict, found.reason, found.stage) == (Verdict.INCORRECT, "why", Stage.COMPILE)
    assert found.fitness is None and found.interval is None and found.descriptors == {}
    assert found.log == "its own log\nfirst\nsecond" and found.toolchain == {"failed": "True"}
    assert found.reached is None, "nothing ran on the gates' inputs"
    staged = evaluate(Simple((Stage.COMPILE, dataclasses.replace(failure, stage=Stage.CHECK))))
    assert staged.stage is Stage.CHECK and staged.reached is Reached.DEVICE
    long = evaluate(Simple((Stage.COMPILE, dataclasses.replace(failure, log="x" * 40000))))
    assert len(long.log) == 32 << 10 and long.log.endswith("x\nfirst\nsecond")
    for stage, reached in ((Stage.CHECK, Reached.TRACE), (Stage.DIALECT, None), (Stage.MEASURE, Reached.TRACE)):
        assert evaluate(Simple((stage, None), load_target("tpu7x"))).reached is reached


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no\nspace"), "OSError: no space"),
        (SessionDied("gone"), "SessionDied: gone"),
        (FileNotFoundError(2, "x"), "FileNotFoundError: [Errno 2] x"),
    ],
)
def test_a_fault_of_the_machine_is_no_fault_of_the_genome(error, reason):
    found = evaluate(Simple(error))
    assert (found.verdict, found.reason, found.stage) == (Verdict.INFRA_ERROR, reason, Stage.DIALECT)
    assert found.artefact == "hash" and found.workloads and "device" not in found.spent
    with pytest.raises(ZeroDivisionError):
        evaluate(Simple(ZeroDivisionError()))


def test_scratch_files_are_made_where_it_is_told(tmp_path):
    cascade = Simple(scratch=tmp_path)
    evaluate(cascade)
    assert cascade.requests[0].folder.parent == tmp_path and not list(tmp_path.iterdir())
    gone = evaluate(Simple(scratch=tmp_path / "gone"))
    assert gone.verdict is Verdict.INFRA_ERROR and "gone" in gone.reason


def test_seconds_are_counted_between_stages(monkeypatch):
    ticks = itertools.chain([0.0, 1.0, 3.0, 7.00004, 15.0, 31.0], itertools.repeat(31.0))
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    cpu = iter([10.0, 12.23456])
    spending = base._Spending(lambda: next(cpu))
    spending.enter(Stage.DIALECT)  # at 1, from 0
    spending.enter(Stage.CHECK)  # at 3
    spending.enter(Stage.DIALECT)  # at 7
    wall, seconds = spending.end(0.125, 0.5)  # at 15, said at 31
    assert wall == 31.0
    assert seconds == {"dialect": 10.0, "check": 4.0, "cpu": 2.7346, "device": 0.125}, "to a tenth of a millisecond"
    back = base._Spending(iter([3.0, 1.0]).__next__)
    assert back.end(0.0)[1] == {"cpu": 0.0}, "a clock set back"


class Kept(Template):
    """A template that nobody started."""

    closed = False

    def __init__(self):
        pass

    cpu_seconds = 1e6

    def close(self):
        self.closed = True


def test_a_template_s_processor_time_counts_and_ends_with_the_cascade():
    cascade = Simple()
    cascade.close()
    cascade._launcher = Kept()
    assert 1e6 < cascade._cpu_seconds() < 1e6 + 1e3 and not cascade._launcher.closed
    cascade.close()
    assert cascade._launcher.closed


# -- stages that cascades share ------------------------------------------------------------------------


class Step:
    """Times what it is given, or fails as it is told."""

    def __init__(self, stage=Stage.MEASURE, failure=None, seconds=()):
        self.stage, self._failure, self._rates = stage, failure, dict(seconds)
        self.seen = []

    def run(self, request, found):
        self.seen.append([w.id for w in request.measured])
        found.figures += [figures(w.id, self._rates.get(w.id, 2.0)) for w in request.measured[::-1]]
        return self._failure


request = functools.partial(scripted.request, measured=(shape(64), shape(32), shape(16)))


def test_stages_run_until_one_fails():
    failure = Failure(Verdict.INCORRECT, "why")
    for steps, result, entered in (
        ([], (Stage.DIALECT, None), []),
        ([Step(Stage.COMPILE), Step(Stage.CHECK)], (Stage.CHECK, None), [Stage.COMPILE, Stage.CHECK]),
        ([Step(Stage.COMPILE, failure), Step(Stage.CHECK)], (Stage.COMPILE, failure), [Stage.COMPILE]),
    ):
        heard = []
        assert run_steps(steps, request(), Findings(), heard.append) == result and heard == entered
    elsewhere = dataclasses.replace(failure, stage=Stage.CHECK)
    assert run_steps([Step(Stage.COMPILE, elsewhere)], request(), Findings(), None) == (Stage.CHECK, elsewhere)


def test_the_dialect_is_the_first_wall():
    stage = DialectStage("launch")
    assert stage.run(request(source=SOURCE), Findings()) is None and stage.stage is Stage.DIALECT
    one = stage.run(request(source=SOURCE + "import os\n"), Findings())
    assert one.verdict is Verdict.REJECTED and "os" in one.reason and "more)" not in one.reason
    assert one.log == one.reason
    two = stage.run(request(source=SOURCE + "import os\nimport sys\n"), Findings())
    assert two.reason == f"{one.reason} (and 1 more)" and two.log.count("\n") == 1
    assert two.log.startswith(one.reason + "\n")
    three = stage.run(request(source=SOURCE + "import os\nimport sys\nimport re\n"), Findings())
    assert three.reason.endswith(" (and 2 more)")
    assert DialectStage("build").run(request(source=SOURCE), Findings()).verdict is Verdict.REJECTED


def test_a_function_as_it_stands_is_the_operators_own_text_or_rejected():
    original = '"""f."""\n\nORIGINAL = {"files": {"f.py": "import os"}}\n'
    asked = request(source=original)
    assert DialectStage("build").run(asked, Findings()).verdict is Verdict.REJECTED
    own = SimpleNamespace(kernels={"seed": SimpleNamespace(source=original)})
    assert DialectStage("build").run(dataclasses.replace(asked, operator=own), Findings()) is None
    other = dataclasses.replace(asked, operator=own, source=original.replace("os", "sys"))
    assert DialectStage("build").run(other, Findings()).verdict is Verdict.REJECTED
    assert DialectStage("launch").run(dataclasses.replace(asked, operator=own), Findings()) is not None


def race(*rungs, bar=1.0):
    return Race(tuple(Rung(names, 0.0, 0.0) for names in rungs), (({}, bar),), {"m64": 0.0, "m32": 0.0})


def test_without_a_race_all_is_timed_at_once():
    step, found = Step(), Findings()
    assert RaceStage([step], lambda found: {}).run(request(), found) is None
    assert step.seen == [["m64", "m32", "m16"]]
    assert [f.workload for f in found.figures] == ["m64", "m32", "m16"], "in the order of the suite"
    failure = Failure(Verdict.TIMEOUT, "late")
    stage = RaceStage([Step(Stage.COMPILE), Step(Stage.CHECK, failure)], lambda found: {})
    assert stage.run(request(), Findings()) == dataclasses.replace(failure, stage=Stage.CHECK)
    own = dataclasses.replace(failure, stage=Stage.DIALECT)
    assert RaceStage([Step(Stage.CHECK, own)], lambda found: {}).run(request(), Findings()) == own


def test_a_race_times_few_first_and_stops_what_falls_behind():
    step, found = Step(), Findings()
    raced = request(race=race(("m32",), ("m32", "m64"), bar=1.0))
    assert RaceStage([step], lambda found: {}).run(raced, found) is None
    assert step.seen == [["m32"], ["m64"], ["m16"]] and found.projected is None
    assert [f.workload for f in found.figures] == ["m64", "m32", "m16"]

    step, found = Step(), Findings()
    behind = request(race=race(("m32",), ("m32", "m64"), bar=5.0))
    failure = RaceStage([step], lambda found: {}).run(behind, found)
    assert failure.verdict is Verdict.OUTPACED and "of the 5 TFLOP/s" in failure.reason
    assert step.seen == [["m32"]] and found.projected == pytest.approx(2.0)

    slow = Step(seconds={"m64": 0.5})
    second = request(race=race(("m32",), ("m32", "m64"), bar=1.5))
    found = Findings()
    failure = RaceStage([slow], lambda found: {}).run(second, found)
    assert failure.verdict is Verdict.OUTPACED and found.projected == pytest.approx(1.0)
    assert slow.seen == [["m32"], ["m64"]]

    whole = request(race=race(("m64", "m32", "m16"), bar=5.0))
    step, found = Step(), Findings()
    assert RaceStage([step], lambda found: {}).run(whole, found) is None, "what is whole has a fitness"
    assert step.seen == [["m64", "m32", "m16"]] and found.projected is None

    failure = Failure(Verdict.TIMEOUT, "late")
    step = Step(failure=failure)
    assert RaceStage([step], lambda found: {}).run(raced, Findings()).verdict is Verdict.TIMEOUT
    assert step.seen == [["m32"]]


def test_a_race_is_run_in_the_cell_that_is_known_so_far():
    cells = []

    def cell(found):
        cells.append(len(found.figures))
        return {"vmem": "low" if len(found.figures) == 1 else "high"}

    held = dataclasses.replace(race(("m32",), ("m64",)), cells=(({"vmem": "high"}, 9.0),))
    failure = RaceStage([Step()], cell).run(request(race=held), Findings())
    assert failure.verdict is Verdict.OUTPACED and cells == [1, 2]
    none = request(race=race(("m96",), ("m32",)), measured=(shape(32),))
    step = Step()
    assert RaceStage([step], lambda found: {}).run(none, Findings()) is None, "a rung of no shape says nothing"
    assert step.seen == [["m32"]]


def test_kinds_of_inputs_are_dealt_over_shapes():
    operator = Doubler()
    operator.input_kinds = ("a", "b", "c")
    for shapes in (1, 2, 3, 4):
        seen = set()
        for seed in range(9):
            checked = in_order(shape(16 * n) for n in range(1, shapes + 1))
            asked = request(operator, seed=seed, checked=checked)
            dealt = [list(dealt_kinds(asked, w)) for w in checked]
            assert sorted(kind for kinds in dealt for kind in kinds) == ["a", "b", "c"], "each on one shape"
            assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
            seen.add(str(dealt))
        assert len(seen) == shapes
    assert all(len({*dealt_kinds(asked, w, 2)}) == 2 for w in checked)
    assert all(dealt_kinds(asked, w, 5) for w in checked)


def test_a_task_tells_its_error_where_it_is_waited_for():
    go = threading.Event()

    def task():
        go.wait()
        raise OSError("no room")

    before = set(threading.enumerate())
    failed = in_background(task)
    assert all(thread.daemon for thread in set(threading.enumerate()) - before), "no process waits for it"
    go.set()
    with pytest.raises(OSError, match="no room"):
        failed.result()
