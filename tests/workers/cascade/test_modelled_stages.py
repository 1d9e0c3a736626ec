"""What a parent makes of the children of the modelled cascade: trace, check, compile, and the simulator's dumps."""

import dataclasses
import functools
from pathlib import Path
from signal import Signals

import numpy as np
import pytest

from testkit import scripted
from testkit.scripted import Doubler, shape, travelled
from tilewright.fitness import score
from tilewright.fitness.evaluation import FigureKind, Stage, Verdict
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu import simulation, time_model
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.llo import OperationCycles, ParseError, scan_bundles
from tilewright.fitness.tpu.structure import ModuleFacts
from tilewright.seeds.operator import in_order
from tilewright.workers.cascade import modelled_stages as stages
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device import kernel_traces
from tilewright.workers.device.kernel_traces import TraceAnswers
from tilewright.workers.request import Failure, Findings, Limits, artefact_hash

OPERATOR = Doubler()
TARGET = load_target("tpu7x")
INCOMPLETE = Failure(Verdict.CRASHED, "the child ended before it had answered everything")


request = functools.partial(scripted.request, OPERATOR, target=TARGET, checked=in_order((shape(32), shape(48))))


def error(phase="trace", **changes):
    data = {"type": "ValueError", "message": "why", "phase": phase, "trace": "the trace", **changes}
    return travelled(Frame("error", data))


def artefact(name):
    return Frame("artefact", {"workload": name}, {"0": np.arange(2)}, {"text": name.encode()})


NAMES = ("m32", "m48", "m64")


def traced_findings():
    return Findings(traced={name: artefact(name) for name in NAMES})


KERNEL = {
    "grid": [2],
    "signature": [],
    "data_branches": 0,
    "data_loops": 0,
    "while_loops": 0,
    "manual_dmas": 0,
    "loads_in_index_maps": 0,
    "constant_bytes": 0,
    "matmul_flops": 0,
}


def facts(name, **changes):
    data = {
        "workload": name,
        "fingerprint": f"print {name}",
        "operations": {},
        "foreign_calls": [],
        "constant_bytes": 0,
        "unused_operands": [],
        "outputs_not_from_kernels": [],
        "kernels": [KERNEL],
    }
    return Frame("facts", {**data, **changes})


def compiled_findings():
    found = traced_findings()
    found.modules = {name: name.encode() for name in NAMES}
    found.claimed = {name: f"print {name}" for name in NAMES}
    found.sources = {name: f"source {name}" for name in NAMES}
    found.conventions = dict.fromkeys(NAMES, 9)
    return found


def tracing(monkeypatch, answer, found, asked=None):
    """The verdict, and what was asked for."""
    seen = []

    def trace_kernels(request, workloads, launcher, folder):
        seen.append([w.id for w in workloads])
        return answer

    monkeypatch.setattr(stages, "trace_kernels", trace_kernels)
    return stages.trace(asked or request(), found), seen


def test_each_shape_is_traced_once(monkeypatch):
    frames = {name: artefact(name) for name in NAMES}
    whole = TraceAnswers(frames, None, ChildOutcome(Ending.DONE, log="log"))
    found = Findings()
    failure, seen = tracing(monkeypatch, whole, found)
    assert failure is None and [sorted(names) for names in seen] == [sorted(NAMES)]
    assert found.traced == frames and found.logs == ["log"]
    assert tracing(monkeypatch, whole, found) == (None, []), "nothing is left to trace"
    del found.traced["m48"]
    assert tracing(monkeypatch, whole, found) == (None, [["m48"]])
    part = TraceAnswers({"m32": frames["m32"]}, None, ChildOutcome(Ending.DONE))
    assert tracing(monkeypatch, part, Findings())[0] == INCOMPLETE


@pytest.mark.parametrize(
    "frame",
    [
        Frame("artefact", {"workload": "m32"}),
        Frame("artefact", {"workload": ["m32"]}, blobs={"text": b"x"}),
        Frame("artefact", {}, blobs={"text": b"x"}),
        Frame("artefact", {"workload": "m7"}, blobs={"text": b"x"}),
        Frame("traced", {"workload": "m32"}, blobs={"text": b"x"}),
    ],
)
def test_what_is_no_trace_is_none(monkeypatch, frame):
    """The child that traces runs the candidate's Python."""

    def run(job, request, launcher, folder, hear):
        assert hear(travelled(frame)) and [w["id"] for w in job.data["workloads"]] == ["m32", "m48", "m64"]
        return ChildOutcome(Ending.DONE)

    monkeypatch.setattr(kernel_traces, "run_pallas_child", run)
    found = Findings()
    assert stages.TraceStage(checks=True).run(request(), found) == INCOMPLETE and not found.traced


def test_a_trace_that_fails_is_the_candidate_s_whatever_phase_it_says(monkeypatch):
    for phase, kind in (("import", "import"), ("trace", "trace"), ("check", "trace"), ("topology", "trace")):
        found = Findings()
        trace = TraceAnswers({}, error(phase), ChildOutcome(Ending.STOPPED, log="log"))
        failure, _ = tracing(monkeypatch, trace, found)
        assert failure == Failure(Verdict.COMPILE_ERROR, "ValueError: why", "the trace"), kind
        assert found.logs == ["log"]
    bare = TraceAnswers({}, Frame("error", {"type": "X"}), ChildOutcome(Ending.STOPPED))
    assert tracing(monkeypatch, bare, Findings())[0] == Failure(Verdict.COMPILE_ERROR, "X", "")
    late = TraceAnswers({}, None, ChildOutcome(Ending.TIMEOUT, detail="60 s", log="log"))
    assert tracing(monkeypatch, late, Findings())[0] == Failure(Verdict.TIMEOUT, "tracing: 60 s", "log")


BEYOND = "reads or writes outside an array: "


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, Verdict.COMPILE_ERROR, "ValueError: why"),
        ({"message": ""}, Verdict.COMPILE_ERROR, "ValueError"),
        ({"type": "NestedKernel", "message": "a\nb"}, Verdict.IMPLAUSIBLE, "a b"),
        ({"type": "MemoryError"}, Verdict.RESOURCE_ERROR, "MemoryError: why"),
        ({"phase": "topology"}, Verdict.INFRA_ERROR, "ValueError: why"),
    ],
)
def test_an_exception_has_a_verdict_by_its_phase_and_words(changes, verdict, reason):
    assert stages._candidate_failure(error(**changes)) == Failure(verdict, reason, "the trace")
    bare = {k: v for k, v in error(**changes).data.items() if k != "trace"}
    assert stages._candidate_failure(Frame("error", bare)).log == ""


@pytest.mark.parametrize(
    ("changes", "verdict", "reason", "stage"),
    [
        ({"message": "exceeded vmem"}, Verdict.RESOURCE_ERROR, "ValueError: exceeded vmem", None),
        (
            {"message": "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 9M of 6M vmem. Ex"},
            Verdict.RESOURCE_ERROR,
            "its blocks take 9M of 6M bytes of vmem",
            None,
        ),
        (
            {
                "message": "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack\nfor x. "  # noqa: E501
                "Scoped allocation with size 36.69M and limit 32.00M exceeded scoped vmem limit by 4.69M."
            },
            Verdict.RESOURCE_ERROR,
            "its blocks take 36.69M of 32.00M bytes of vmem",
            None,
        ),
        ({}, Verdict.INCORRECT, "ValueError: why", Stage.CHECK),
        ({"type": "NotImplementedError"}, Verdict.COMPILE_ERROR, "NotImplementedError: why", Stage.CHECK),
        ({"type": "IndexError"}, Verdict.INCORRECT, BEYOND + "why", Stage.CHECK),
        ({"message": "x\nIndexError: 5 of 4\ny"}, Verdict.INCORRECT, BEYOND + "IndexError: 5 of 4", Stage.CHECK),
        ({"message": "x\nOut-Of-bounds of x\ny"}, Verdict.INCORRECT, BEYOND + "Out-Of-bounds of x", Stage.CHECK),
    ],
)
def test_in_a_check_it_is_the_answer_that_is_wrong(changes, verdict, reason, stage):
    assert stages._candidate_failure(error("check", **changes)) == Failure(verdict, reason, "the trace", stage)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (ChildOutcome(Ending.DONE, detail="SIGXCPU MemoryError"), None),
        (ChildOutcome(Ending.TIMEOUT, detail="MemoryError"), Verdict.TIMEOUT),
        (ChildOutcome(Ending.CRASHED, detail="killed by SIGXCPU"), Verdict.TIMEOUT),
        (ChildOutcome(Ending.MEMORY, detail="8 GiB"), Verdict.RESOURCE_ERROR),
        (ChildOutcome(Ending.CRASHED, detail="MemoryError at last"), Verdict.RESOURCE_ERROR),
        (ChildOutcome(Ending.CRASHED, detail="std::bad_alloc"), Verdict.RESOURCE_ERROR),
        (ChildOutcome(Ending.CRASHED, detail="killed"), Verdict.CRASHED),
        (ChildOutcome(Ending.STOPPED, detail="by us"), Verdict.CRASHED),
        (ChildOutcome(Ending.FLOOD, detail="too much"), Verdict.CRASHED),
        (ChildOutcome(Ending.GARBAGE, detail="no frame"), Verdict.CRASHED),
    ],
)
def test_a_child_that_does_not_end_well_has_a_verdict(outcome, verdict):
    outcome.log = "log"
    wanted = verdict and Failure(verdict, f"checking: {outcome.detail}", "log")
    assert stages._child_failure(outcome, "checking") == wanted
    assert stages._child_failure(dataclasses.replace(outcome, detail=outcome.detail + "\nx"), "c") == (
        verdict and Failure(verdict, f"c: {outcome.detail} x", "log")
    )


ABORT, OVER = {"signal": Signals.SIGABRT}, Verdict.RESOURCE_ERROR


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        (ABORT, Verdict.COMPILE_ERROR, "libtpu aborted: de tail"),
        ({**ABORT, "log": "RESOURCE_EXHAUSTED"}, OVER, "compiling: de tail"),
        ({**ABORT, "detail": "Ran out of memory"}, OVER, "compiling and simulating: Ran out of memory"),
        ({"signal": Signals.SIGSEGV}, Verdict.CRASHED, "compiling and simulating: de tail"),
        ({"detail": "killed by SIGXFSZ"}, OVER, "the kernel's schedule takes more than 5 bytes to write"),
        ({"log": "exceeds smem"}, OVER, "compiling: de tail"),
        ({}, Verdict.CRASHED, "compiling and simulating: de tail"),
    ],
)
def test_a_compiler_s_own_end_is_its_answer(changes, verdict, reason):
    outcome = ChildOutcome(Ending.CRASHED, **{"detail": "de\ntail", "log": "log", **changes})
    found = stages._compiler_failure(outcome, ChildLimits(1.0, file_bytes=5))
    assert found == Failure(verdict, reason, outcome.log)
    assert stages._compiler_failure(ChildOutcome(Ending.DONE), ChildLimits(1.0)) is None


def checked(job, found, **changes):
    """What an honest check child says: traced frames, then answers."""
    frames = [
        Frame(
            "traced",
            {"workload": name, "calling_convention": 9, "fingerprint": f"print {name}", "artefact": f"source {name}"},
            blobs={"module": name.encode()},
        )
        for name in job.data["lower"]
    ]
    for asked in job.data["check"]:
        for kind in asked["kinds"]:
            outputs = {"c": 2 * job.arrays[f"{asked['workload']}/{kind}/a"]}
            if asked["sampled"]:
                axes = [job.arrays[f"where/{asked['workload']}/c/{n}"] for n in range(2)]
                outputs = {"c": outputs["c"][np.ix_(*axes)]}
            data = {"workload": asked["workload"], "kind": kind, "races": False, "artefact": "ran"}
            frames.append(Frame("checked", data, outputs))
    return frames


class Checker:
    """Stands in for the child; keeps what it was asked, and how many of its frames were heard."""

    def __init__(self, monkeypatch, change=lambda frame: frame, ending=None):
        self.jobs, self.heard = [], 0
        self._change, self._ending = change, ending or ChildOutcome(Ending.DONE, log="log")
        monkeypatch.setattr(stages, "run_pallas_child", self._run)

    def _run(self, job, request, launcher, folder, hear):
        self.jobs.append(job)
        for frame in checked(job, request):
            changed = self._change(frame)
            if changed is not None:
                self.heard += 1
                if not hear(travelled(changed)):
                    return ChildOutcome(Ending.STOPPED, log="log")
        return self._ending


def test_an_honest_child_answers_everything(monkeypatch):
    dealt = set()
    for seed in (6, 7):
        child, found = Checker(monkeypatch), traced_findings()
        assert stages.check(request(seed=seed), found) is None
        (job,) = child.jobs
        assert job.kind == "pallas.check" and job.data["chip"] == {"kind": "TPU7x", "cores": 1}
        assert sorted(job.data["lower"]) == sorted(w["id"] for w in job.data["workloads"]) == sorted(NAMES)
        assert job.blobs == {name: name.encode() for name in NAMES}
        assert {f"constant/{name}/0" for name in NAMES} < job.arrays.keys()
        kinds = [(c["workload"], *c["kinds"]) for c in job.data["check"]]
        assert not any(c["sampled"] or c["whole"] for c in job.data["check"])
        dealt |= set(kinds)
        for name, kind in kinds:
            wanted = OPERATOR.make_inputs(shape(int(name[1:])), seed, kind)["a"]
            assert np.array_equal(job.arrays[f"{name}/{kind}/a"], wanted)
        assert found.logs == ["log"] and found.artefact is None
        assert found.claimed == {name: f"print {name}" for name in NAMES}
        assert found.sources == {name: f"source {name}" for name in NAMES}
        assert found.conventions == dict.fromkeys(NAMES, 9)
        assert [(r.workload, r.inputs, r.passed, r.sampled, r.artefact) for r in found.gates] == [
            (name, kind, True, False, "ran") for name, kind in kinds
        ]
    assert dealt == {(name, kind) for name in ("m32", "m48") for kind in ("randn", "ones")}
    child = Checker(monkeypatch)
    assert stages.check(request(thorough=True), traced_findings()) is None
    assert [c["kinds"] for c in child.jobs[0].data["check"]] == [["randn", "ones"]] * 2


def test_what_is_lowered_alone_passes_its_gates_later(monkeypatch):
    child, found = Checker(monkeypatch), traced_findings()
    found.logs.clear()
    assert stages.check(request(), found, gates=False) is None
    assert child.jobs[0].data["check"] == [] and set(found.modules) == set(NAMES) and not found.gates
    assert stages.CheckStage().run(request(), found) is None and found.gates
    assert child.jobs[1].data["lower"] == [], "once is enough"


@pytest.mark.parametrize(("thorough", "most"), [(False, 1), (False, 2), (True, 2)])
def test_a_spot_is_checked_on_kinds_that_the_seed_draws_and_says_where(monkeypatch, thorough, most):
    monkeypatch.setattr(stages, "LARGE_KINDS", 1 if thorough else most)
    where = {"m48": {"c": (np.array([1, 47]), np.array([0, 63, 5]))}}
    kinds = set()
    for seed in range(6):
        asked = request(
            checked=(shape(48),),
            measured=(),
            large_checks=(shape(48),),
            thorough=thorough,
            seed=seed,
            sampled=where,
            whole_axes={"m48": ["ones"]},
        )
        child, found = Checker(monkeypatch), traced_findings()
        found.modules["m48"] = b"made before"
        assert stages.check(asked, found) is None
        (job,) = child.jobs
        assert job.data["lower"] == [] and job.data["check"][0]["sampled"]
        assert job.data["check"][0]["whole"] == ["ones"]
        assert np.array_equal(job.arrays["where/m48/c/0"], [1, 47])
        assert np.array_equal(job.arrays["where/m48/c/1"], [0, 63, 5])
        assert len(found.gates) == most
        assert all(reading.sampled and reading.inputs.endswith(" at m48") for reading in found.gates)
        kinds |= {reading.inputs.removesuffix(" at m48") for reading in found.gates}
    assert kinds == {"randn", "ones"}


def changing(name, **data):
    def change(frame):
        if frame.kind != "checked" or frame.data["workload"] != name:
            return frame
        return dataclasses.replace(frame, data={**frame.data, **data})

    return change


@pytest.mark.parametrize("name", ["m32", "m48"])
def test_the_first_wrong_answer_stops_the_child(monkeypatch, name):
    def spoilt(frame):
        if frame.kind != "checked" or frame.data["workload"] != name:
            return frame
        return dataclasses.replace(frame, arrays={"c": frame.arrays["c"] * 3})

    child, found = Checker(monkeypatch, spoilt), traced_findings()
    failure = stages.check(request(), found)
    assert (failure.verdict, failure.stage) == (Verdict.INCORRECT, Stage.CHECK)
    assert failure.reason.startswith("gate exact on ") and not found.gates[-1].passed
    assert child.heard == (4 if name == "m32" else 5) and found.gates[-1].workload == name

    Checker(monkeypatch, changing(name, races=True))
    failure = stages.check(request(), traced_findings())
    assert failure.reason.startswith("a data race in the kernel on ")
    assert (failure.verdict, failure.stage) == (Verdict.INCORRECT, Stage.CHECK)

    def short(frame):
        return frame if frame.kind != "checked" else dataclasses.replace(frame, arrays={})

    Checker(monkeypatch, short)
    wanted = Failure(Verdict.INCORRECT, "output c is missing", stage=Stage.CHECK)
    assert stages.check(request(), traced_findings()) == wanted


def test_the_accumulators_of_an_interpreter_are_exact(monkeypatch):
    """No allowance for a device's sums: an element off by 2^-11 of what is usual is wrong."""

    def off(frame):
        if frame.kind != "checked":
            return frame
        array = frame.arrays["c"].copy()
        array[3, 4] += 2.0**-11 * 2
        return dataclasses.replace(frame, arrays={"c": array})

    Checker(monkeypatch, off)
    assert stages.check(request(), traced_findings()).verdict is Verdict.INCORRECT


def test_what_is_left_out_is_noticed(monkeypatch):
    def only(**missing):
        return lambda f: (
            None if all(f.data.get(k) == v or (k == "frame" and f.kind == v) for k, v in missing.items()) else f
        )

    for change in (only(frame="traced", workload="m64"), only(frame="checked", workload="m48"), lambda f: None):
        Checker(monkeypatch, change)
        assert stages.check(request(), traced_findings()) == INCOMPLETE
    dead = ChildOutcome(Ending.CRASHED, detail="gone", log="log")
    Checker(monkeypatch, ending=dead)
    assert stages.check(request(), traced_findings()) == Failure(Verdict.CRASHED, "checking: gone", "log")
    Checker(monkeypatch, only(frame="checked"), ending=ChildOutcome(Ending.TIMEOUT, detail="late"))
    slow = traced_findings()
    slow.traced["m48"].blobs["text"] = b'{"o":"GridMapping","v":{"grid":{"t":[64,32]}}}'
    late = stages.check(request(), slow)
    assert late.verdict is Verdict.TIMEOUT and "each of the 2048 steps of its grid" in late.reason


@pytest.mark.parametrize(
    "change",
    [
        changing("m32", workload="m7"),
        changing("m32", kind="other"),
        changing("m32", workload="m64"),
        lambda f: Frame(f.kind, {}, f.arrays, f.blobs),
        lambda f: Frame(f.kind, {**f.data, "calling_convention": "x"}, f.arrays, f.blobs),
        lambda f: Frame(f.kind, f.data, f.arrays, {}),
        lambda f: Frame(f.kind, {**f.data, "workload": []}, f.arrays, f.blobs),
    ],
)
def test_an_answer_that_does_not_read_is_a_crash(monkeypatch, change):
    Checker(monkeypatch, change)
    failure = stages.check(request(), traced_findings())
    assert failure.verdict is Verdict.CRASHED
    assert failure.reason.startswith("the child's answer is malformed: ")


def test_what_is_no_answer_is_not_heard(monkeypatch):
    child, found = Checker(monkeypatch), traced_findings()
    honest = checked

    def chatty(job, found):
        return [Frame("note"), *(f for frame in honest(job, found) for f in (frame, Frame("zz", {"x": 1})))]

    monkeypatch.setitem(globals(), "checked", chatty)
    assert stages.check(request(), found) is None and child.heard == 11
    assert len(found.gates) == 2


def test_an_error_in_the_check_is_heard(monkeypatch):
    child = Checker(monkeypatch, lambda f: error("check") if f.kind == "checked" else f)
    wanted = Failure(Verdict.INCORRECT, "ValueError: why", "the trace", Stage.CHECK)
    assert stages.check(request(), traced_findings()) == wanted and child.heard == 4


def test_what_was_traced_before_is_a_duplicate(monkeypatch):
    prints = {name: f"print {name}" for name in ("m32", "m64")}
    known = artefact_hash(prints)
    asked = request(is_known=lambda found: "an earlier genome" if found == known else None)
    child, found = Checker(monkeypatch), traced_findings()
    failure = stages.check(asked, found)
    assert failure.verdict is Verdict.DUPLICATE and found.artefact == known, "of the measured shapes"
    assert child.heard == 3 and known in failure.reason
    monkeypatch.setattr(stages, "trace_kernels", lambda *a: pytest.fail("traced twice"))
    assert stages.TraceStage(checks=True).run(request(), traced_findings()) is None
    (late,) = [TraceAnswers({}, error("import"), ChildOutcome(Ending.DONE))]
    monkeypatch.setattr(stages, "trace_kernels", lambda *a: late)
    assert stages.TraceStage(checks=True).run(request(), Findings()).verdict is Verdict.COMPILE_ERROR


def compiling(monkeypatch, tmp_path, frames=None, *, compiles=True, ending=None, found=None, **changes):
    found, seen = found or compiled_findings(), []

    def run(job, limits, folder, *, extra_environment, on_frame, launcher):
        seen.append((job, limits, folder, extra_environment))
        timed = [w["id"] for w in job.data["workloads"] if w["id"] not in job.data["facts_only"]]
        default_frames = [Frame("aside"), Frame("note", {"workload": "m64"}), Frame("hello")]
        default_frames += [facts(w["id"]) for w in job.data["workloads"]]
        default_frames += [Frame("compiled", {"workload": name, "folder": f"dump {name}"}) for name in timed]
        for frame in default_frames if frames is None else frames:
            if not on_frame(travelled(frame)):
                return ChildOutcome(Ending.STOPPED, log="log")
        return ending or ChildOutcome(Ending.DONE, log="log")

    monkeypatch.setattr(stages, "run_child", run)
    failure = stages.CompileStage(compiles=compiles).run(request(folder=tmp_path, **changes), found)
    return failure, found, seen[0]


def test_measured_shapes_are_compiled_and_checked_ones_looked_at(monkeypatch, tmp_path):
    failure, found, (job, limits, folder, environment) = compiling(monkeypatch, tmp_path)
    assert failure is None and found.logs == ["log"] and folder == tmp_path / "compile0" and folder.is_dir()
    assert [w["id"] for w in job.data["workloads"]] == ["m64", "m32", "m48"]
    assert job.data["facts_only"] == ["m48"] and job.data["topology"] == TARGET.chip.topology
    assert job.kind == "pallas.compile" and job.blobs == {n: n.encode() for n in NAMES}
    assert all(w["calling_convention"] == 9 and w["known"] == {} for w in job.data["workloads"])
    assert any(str(folder) in value for value in environment.values())
    assert limits == Limits().compile
    assert found.dumps == {name: folder / f"dump {name}" for name in ("m64", "m32")}
    assert found.artefact == artefact_hash({name: f"print {name}" for name in ("m64", "m32")})
    assert found.facts.keys() == set(NAMES)
    _, found, (job, limits, folder, _) = compiling(monkeypatch, tmp_path, found=found, final=True)
    assert folder == tmp_path / "compile1" and limits.wall_seconds == 600.0
    assert [w["id"] for w in job.data["workloads"]] == ["m64", "m32"], "m48 is known"
    _, found, (job, *_) = compiling(monkeypatch, tmp_path / "compile1", compiles=False)
    assert job.data["facts_only"] == ["m64", "m32", "m48"] and not found.dumps


UNFOLLOWED = {**KERNEL, "matmul_flops": None, "signature": ["tpu.matmul"]}
OTHER = "m64: another module is compiled than was checked"


@pytest.mark.parametrize(
    ("frame", "verdict", "reason"),
    [
        (facts("m64", fingerprint="other"), Verdict.INFRA_ERROR, OTHER),
        (facts("m64", fingerprint="zzz"), Verdict.INFRA_ERROR, OTHER),
        (facts("m48", kernels=[]), Verdict.IMPLAUSIBLE, "no Pallas kernel is left in the compiled module"),
        (facts("m64", unused_operands=[0]), Verdict.IMPLAUSIBLE, "no kernel reads operand a"),
        (facts("m64", outputs_not_from_kernels=[0]), Verdict.IMPLAUSIBLE, "output c does not come from a kernel alone"),
        (
            facts("m32", kernels=[UNFOLLOWED]),
            Verdict.IMPLAUSIBLE,
            "m32: the kernel's control flow cannot be followed, so its work cannot be counted",
        ),
        (error("topology"), Verdict.INFRA_ERROR, "ValueError: why"),
        (error("compile"), Verdict.COMPILE_ERROR, "ValueError: why"),
    ],
)
def test_a_module_is_judged_before_it_is_compiled(monkeypatch, tmp_path, frame, verdict, reason):
    after = Frame("compiled", {"workload": "m32", "folder": "never heard"})
    found = compiling(monkeypatch, tmp_path, [frame, after])
    log = "the trace" if frame.kind == "error" else ""
    assert found[0] == Failure(verdict, reason, log) and not found[1].dumps and found[1].logs == ["log"]


def test_a_compiler_that_dies_and_a_duplicate(monkeypatch, tmp_path):
    dead = ChildOutcome(Ending.CRASHED, detail="gone", signal=Signals.SIGABRT, log="log")
    failure, *_ = compiling(monkeypatch, tmp_path, [], ending=dead)
    assert failure == Failure(Verdict.COMPILE_ERROR, "libtpu aborted: gone", "log")
    known = artefact_hash({name: f"print {name}" for name in ("m64", "m32")})
    (tmp_path / "two").mkdir()
    failure, found, _ = compiling(
        monkeypatch, tmp_path / "two", is_known=lambda a: "an earlier genome" if a == known else None
    )
    assert failure.verdict is Verdict.DUPLICATE and found.artefact == known and not found.dumps
    (tmp_path / "three").mkdir()
    before = compiled_findings()
    before.artefact = "known to be new"
    failure, found, _ = compiling(monkeypatch, tmp_path / "three", found=before)
    assert failure is None and found.artefact == "known to be new"


@pytest.mark.parametrize(
    ("without", "delayed", "runs", "verdict"),
    [
        (["m64"], [], [("m64", "m32"), ("m64",), ("m32",)], None),
        (["m32"], [], [("m64", "m32"), ("m32",)], None),
        (["m64", "m32"], [], [("m64", "m32"), ("m64",), ("m32",), ("m32",)], None),
        (["m32"], ["m32"], [("m64", "m32"), ("m32",)], Verdict.COMPILE_ERROR),
    ],
)
def test_what_the_simulator_aborts_on_is_compiled_with_delays(monkeypatch, tmp_path, without, delayed, runs, verdict):
    seen = []

    def run(job, limits, folder, *, extra_environment, on_frame, launcher):
        asked = tuple(w["id"] for w in job.data["workloads"] if w["id"] not in job.data["facts_only"])
        seen.append(asked)
        assert ("hoisting_across_branch=false" in extra_environment["LIBTPU_INIT_ARGS"]) == job.data["delays"]
        for workload in job.data["workloads"]:
            on_frame(travelled(facts(workload["id"])))
        for name in asked:
            if name in (delayed if job.data["delays"] else without):
                log = "Static LLO profiling of k.1 failed: Cannot push when the FIFO is full."
                return ChildOutcome(Ending.CRASHED, detail="killed", signal=Signals.SIGABRT, log=log)
            on_frame(travelled(Frame("compiled", {"workload": name, "folder": "dump"})))
        return ChildOutcome(Ending.DONE, log="")

    monkeypatch.setattr(stages, "run_child", run)
    found = compiled_findings()
    failure = stages.CompileStage().run(request(folder=tmp_path), found)
    assert seen == runs and (failure and failure.verdict) == verdict
    assert verdict or found.dumps.keys() == {"m64", "m32"}


BUNDLES = b"""0x0: bundle slots:
  %1 = dma.hbm_to_vmem [x] /*size_in_granules=*/8192
  %2 = vld [vmem:[%s3_s1] sm:$0xff]
"""


def a_run(cycles=100_000):
    operations = (OperationCycles("k", cycles, 1),)
    return simulation.StaticRun(operations, scan_bundles(BUNDLES), 5 << 20, None, ((Events.idle(cycles), 1),))


def measuring(monkeypatch, run, operator=OPERATOR, **changes):
    found = compiled_findings()
    found.dumps = {name: Path(name) for name in ("m64", "m32")}
    found.facts = {name: ModuleFacts.from_data(facts(name).data) for name in NAMES}
    for name, value in changes.pop("found", {}).items():
        setattr(found, name, value)
    asked = dataclasses.replace(request(**changes), operator=operator)

    def read(folder, chip):
        assert chip is TARGET.chip
        if isinstance(run, Exception):
            raise run
        return run

    monkeypatch.setattr(simulation, "read_dumps", read)
    return stages.MeasureStage().run(asked, found), found


def test_figures_are_those_of_the_model(monkeypatch):
    run = a_run()
    failure, found = measuring(monkeypatch, run)
    time = simulation.modelled_time(run, TARGET.chip)
    assert failure is None and [f.workload for f in found.figures] == ["m64", "m32"]
    figures = found.figures[0]
    assert (figures.seconds, figures.kind) == (time.seconds, FigureKind.MODELLED)
    assert figures.model_version == time_model.VERSION and figures.gbytes is None
    assert figures.tflops == pytest.approx(40960 / time.seconds / 1e12)
    floor = score.roofline_seconds(40960, 32768, TARGET.chip, "bf16")
    assert figures.roofline_fraction == pytest.approx(floor / time.seconds)
    assert figures.diagnosis["artefact"] == "source m64" and figures.diagnosis["vmem_bytes"] == 5 << 20
    bound = Doubler()
    bound.memory_bound = True
    _, found = measuring(monkeypatch, run, bound)
    assert found.figures[0].gbytes == pytest.approx(32768 / time.seconds / 1e9)
    assert len(measuring(monkeypatch, run, final=True)[1].figures) == 2


def test_what_cannot_be_measured_has_a_verdict(monkeypatch):
    failure, found = measuring(monkeypatch, a_run(), found={"dumps": {"m64": Path("m64")}})
    assert failure == Failure(Verdict.INFRA_ERROR, "no dump of workload m32 was made")
    failure, _ = measuring(monkeypatch, ParseError("line 3"))
    assert failure == Failure(Verdict.COMPILE_ERROR, "the simulator's dump of m64: line 3")
    lazy = dataclasses.replace(a_run(), executed=scan_bundles(b"0x0: bundle slots:\n"))
    failure, found = measuring(monkeypatch, lazy)
    reason = "m64: 0 bytes move where the operator needs 32768 (modelled, tpu7x)"
    assert failure == Failure(Verdict.IMPLAUSIBLE, reason) and not found.figures
