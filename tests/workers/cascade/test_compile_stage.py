"""What a parent makes of the answers of a compile child."""

from signal import Signals

import pytest

from testkit.modelled_stages import KERNEL, NAMES, TARGET, compiled_findings, error, facts, request
from testkit.scripted import travelled
from tilewright.fitness.evaluation import Verdict
from tilewright.workers.cascade import modelled_stages as stages
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.request import Failure, Limits, artefact_hash


def compiling(monkeypatch, tmp_path, frames=None, *, compiles=True, ending=None, found=None, **changes):
    found, seen = found or compiled_findings(), []

    def run(job, limits, folder, *, extra_environment, on_frame, launcher):
        seen.append((job, limits, folder, extra_environment))
        timed = [w["id"] for w in job.data["workloads"] if w["id"] not in job.data["facts_only"]]
        said = [Frame("aside"), Frame("note", {"workload": "m64"}), Frame("hello")]
        said += [facts(w["id"]) for w in job.data["workloads"]]
        said += [Frame("compiled", {"workload": name, "folder": f"dump {name}"}) for name in timed]
        for frame in said if frames is None else frames:
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


@pytest.mark.parametrize(
    ("frame", "failure"),
    [
        (
            facts("m64", fingerprint="other"),
            Failure(Verdict.INFRA_ERROR, "m64: another module is compiled than was checked"),
        ),
        (
            facts("m64", fingerprint="zzz"),
            Failure(Verdict.INFRA_ERROR, "m64: another module is compiled than was checked"),
        ),
        (
            facts("m48", kernels=[]),
            Failure(Verdict.IMPLAUSIBLE, "no Pallas kernel is left in the compiled module"),
        ),
        (facts("m64", unused_operands=[0]), Failure(Verdict.IMPLAUSIBLE, "no kernel reads operand a")),
        (
            facts("m64", outputs_not_from_kernels=[0]),
            Failure(Verdict.IMPLAUSIBLE, "output c does not come from a kernel alone"),
        ),
        (
            facts("m32", kernels=[{**KERNEL, "matmul_flops": None, "signature": ["tpu.matmul"]}]),
            Failure(
                Verdict.IMPLAUSIBLE,
                "m32: the kernel's control flow cannot be followed, so its work cannot be counted",
            ),
        ),
        (error("topology"), Failure(Verdict.INFRA_ERROR, "ValueError: why", "the trace")),
        (error("compile"), Failure(Verdict.COMPILE_ERROR, "ValueError: why", "the trace")),
    ],
)
def test_a_module_is_judged_before_it_is_compiled(monkeypatch, tmp_path, frame, failure):
    after = Frame("compiled", {"workload": "m32", "folder": "never heard"})
    found = compiling(monkeypatch, tmp_path, [frame, after])
    assert found[0] == failure and not found[1].dumps and found[1].logs == ["log"]


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
