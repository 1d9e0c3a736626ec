"""What a parent makes of the answers of a check child."""

import dataclasses

import numpy as np
import pytest

from testkit.modelled_stages import INCOMPLETE, NAMES, OPERATOR, error, request, traced_findings
from testkit.scripted import shape, travelled
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.workers.cascade import modelled_stages as stages
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.device.kernel_traces import Traced
from tilewright.workers.request import Failure, Findings, artefact_hash


def checked(job, found, **changes):
    """What an honest check child says: traced frames, then answers."""
    frames = [
        Frame(
            "traced",
            {
                "workload": name, "calling_convention": 9, "fingerprint": f"print {name}",
                "artefact": f"source {name}",
            },
            blobs={"module": name.encode()},
        )
        for name in job.data["lower"]
    ]  # fmt: skip
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


def test_a_spot_is_checked_on_one_kind_and_says_where(monkeypatch):
    where = {"m48": {"c": (np.array([1, 47]), np.array([0, 63, 5]))}}
    kinds = set()
    for seed in (6, 7):
        asked = request(
            checked=(shape(48),), measured=(), large_checks=(shape(48),), thorough=True, seed=seed,
            sampled=where, whole_axes=frozenset({"m48"}),
        )  # fmt: skip
        child, found = Checker(monkeypatch), traced_findings()
        found.modules["m48"] = b"made before"
        assert stages.check(asked, found) is None
        (job,) = child.jobs
        assert job.data["lower"] == [] and job.data["check"][0]["sampled"] and job.data["check"][0]["whole"]
        assert np.array_equal(job.arrays["where/m48/c/0"], [1, 47])
        assert np.array_equal(job.arrays["where/m48/c/1"], [0, 63, 5])
        (reading,) = found.gates
        assert reading.sampled and reading.inputs.endswith(" at m48")
        kinds.add(reading.inputs.removesuffix(" at m48"))
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
            None
            if all(f.data.get(k) == v or (k == "frame" and f.kind == v) for k, v in missing.items())
            else f
        )

    for change in (
        only(frame="traced", workload="m64"),
        only(frame="checked", workload="m48"),
        lambda f: None,
    ):
        Checker(monkeypatch, change)
        assert stages.check(request(), traced_findings()) == INCOMPLETE
    dead = ChildOutcome(Ending.CRASHED, detail="gone", log="log")
    Checker(monkeypatch, ending=dead)
    assert stages.check(request(), traced_findings()) == Failure(Verdict.CRASHED, "checking: gone", "log")
    Checker(monkeypatch, only(frame="checked"), ending=ChildOutcome(Ending.TIMEOUT, detail="late"))
    assert stages.check(request(), traced_findings()).verdict is Verdict.TIMEOUT


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
    assert stages.TraceStage().run(request(), traced_findings()) is None
    (late,) = [Traced({}, error("import"), ChildOutcome(Ending.DONE))]
    monkeypatch.setattr(stages, "trace_kernels", lambda *a: late)
    assert stages.TraceStage().run(request(), Findings()).verdict is Verdict.COMPILE_ERROR
