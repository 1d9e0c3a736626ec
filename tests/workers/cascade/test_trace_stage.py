"""What a parent makes of a trace child, and of children and errors that end an evaluation."""

import dataclasses
from signal import Signals

import pytest

from testkit.modelled_stages import INCOMPLETE, NAMES, artefact, error, request
from testkit.scripted import travelled
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.workers.cascade import modelled_stages as stages
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device import kernel_traces
from tilewright.workers.device.kernel_traces import Traced
from tilewright.workers.request import Failure, Findings


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
    whole = Traced(frames, None, ChildOutcome(Ending.DONE, log="log"))
    found = Findings()
    failure, seen = tracing(monkeypatch, whole, found)
    assert failure is None and [sorted(names) for names in seen] == [sorted(NAMES)]
    assert found.traced == frames and found.logs == ["log"]
    assert tracing(monkeypatch, whole, found) == (None, []), "nothing is left to trace"
    del found.traced["m48"]
    assert tracing(monkeypatch, whole, found) == (None, [["m48"]])
    part = Traced({"m32": frames["m32"]}, None, ChildOutcome(Ending.DONE))
    assert tracing(monkeypatch, part, Findings())[0] == INCOMPLETE


@pytest.mark.parametrize(
    "said",
    [
        Frame("artefact", {"workload": "m32"}),
        Frame("artefact", {"workload": ["m32"]}, blobs={"text": b"x"}),
        Frame("artefact", {}, blobs={"text": b"x"}),
        Frame("artefact", {"workload": "m7"}, blobs={"text": b"x"}),
        Frame("traced", {"workload": "m32"}, blobs={"text": b"x"}),
    ],
)
def test_what_is_no_trace_is_none(monkeypatch, said):
    """The child that traces runs the candidate's Python."""

    def run(job, request, launcher, folder, hear):
        assert hear(travelled(said)) and [w["id"] for w in job.data["workloads"]] == ["m32", "m48", "m64"]
        return ChildOutcome(Ending.DONE)

    monkeypatch.setattr(kernel_traces, "run_pallas_child", run)
    found = Findings()
    assert stages.TraceStage().run(request(), found) == INCOMPLETE and not found.traced


def test_a_trace_that_fails_is_the_candidate_s_whatever_phase_it_says(monkeypatch):
    for phase, kind in (("import", "import"), ("trace", "trace"), ("check", "trace"), ("topology", "trace")):
        found = Findings()
        said = Traced({}, error(phase), ChildOutcome(Ending.STOPPED, log="log"))
        failure, _ = tracing(monkeypatch, said, found)
        assert failure == Failure(Verdict.COMPILE_ERROR, "ValueError: why", "the trace"), kind
        assert found.logs == ["log"]
    bare = Traced({}, Frame("error", {"type": "X"}), ChildOutcome(Ending.STOPPED))
    assert tracing(monkeypatch, bare, Findings())[0] == Failure(Verdict.COMPILE_ERROR, "X", "")
    late = Traced({}, None, ChildOutcome(Ending.TIMEOUT, detail="60 s", log="log"))
    assert tracing(monkeypatch, late, Findings())[0] == Failure(Verdict.TIMEOUT, "tracing: 60 s", "log")


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ({}, Failure(Verdict.COMPILE_ERROR, "ValueError: why", "the trace")),
        ({"message": ""}, Failure(Verdict.COMPILE_ERROR, "ValueError", "the trace")),
        ({"type": "NestedKernel", "message": "a\nb"}, Failure(Verdict.IMPLAUSIBLE, "a b", "the trace")),
        ({"type": "MemoryError"}, Failure(Verdict.RESOURCE_ERROR, "MemoryError: why", "the trace")),
        (
            {"message": "exceeded vmem", "phase": "check"},
            Failure(Verdict.RESOURCE_ERROR, "ValueError: exceeded vmem", "the trace"),
        ),
        ({"phase": "topology"}, Failure(Verdict.INFRA_ERROR, "ValueError: why", "the trace")),
        ({"phase": "check"}, Failure(Verdict.INCORRECT, "ValueError: why", "the trace", Stage.CHECK)),
        (
            {"phase": "check", "type": "NotImplementedError"},
            Failure(Verdict.COMPILE_ERROR, "NotImplementedError: why", "the trace", Stage.CHECK),
        ),
        (
            {"phase": "check", "type": "IndexError"},
            Failure(Verdict.INCORRECT, "reads or writes outside an array: why", "the trace", Stage.CHECK),
        ),
        (
            {"phase": "check", "message": "on the way\nIndexError: 5 of 4\nmore"},
            Failure(
                Verdict.INCORRECT,
                "reads or writes outside an array: IndexError: 5 of 4",
                "the trace",
                Stage.CHECK,
            ),
        ),
        (
            {"phase": "check", "message": "first\na block Out-Of-bounds of x\nmore"},
            Failure(
                Verdict.INCORRECT,
                "reads or writes outside an array: a block Out-Of-bounds of x",
                "the trace",
                Stage.CHECK,
            ),
        ),
    ],
)
def test_an_exception_has_a_verdict_by_its_phase_and_words(said, failure):
    assert stages._candidate_failure(error(**said)) == failure
    bare = {k: v for k, v in error(**said).data.items() if k != "trace"}
    assert stages._candidate_failure(Frame("error", bare)).log == ""


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


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({"signal": Signals.SIGABRT}, Verdict.COMPILE_ERROR, "libtpu aborted: de tail"),
        (
            {"signal": Signals.SIGABRT, "log": "RESOURCE_EXHAUSTED"},
            Verdict.RESOURCE_ERROR,
            "compiling: de tail",
        ),
        (
            {"signal": Signals.SIGABRT, "detail": "Ran out of memory"},
            Verdict.RESOURCE_ERROR,
            "compiling and simulating: Ran out of memory",
        ),
        ({"signal": Signals.SIGSEGV}, Verdict.CRASHED, "compiling and simulating: de tail"),
        (
            {"detail": "killed by SIGXFSZ"},
            Verdict.RESOURCE_ERROR,
            "the kernel's schedule takes more than 5 bytes to write",
        ),
        ({"log": "exceeds smem"}, Verdict.RESOURCE_ERROR, "compiling: de tail"),
        ({}, Verdict.CRASHED, "compiling and simulating: de tail"),
    ],
)
def test_a_compiler_s_own_end_is_its_answer(changes, verdict, reason):
    outcome = ChildOutcome(Ending.CRASHED, **{"detail": "de\ntail", "log": "log", **changes})
    found = stages._compiler_failure(outcome, ChildLimits(1.0, file_bytes=5))
    assert found == Failure(verdict, reason, outcome.log)
    assert stages._compiler_failure(ChildOutcome(Ending.DONE), ChildLimits(1.0)) is None
