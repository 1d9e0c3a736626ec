"""A program's step on Triton's interpreter: recorded, searched, replaced and proved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tilewright.evolve.cli import main

ROOT = Path(__file__).parents[3]
PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())


WINNER = """
@triton.jit
def {name}(out, x, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    {before}tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < {end})
"""
KINDS = {
    "slower": ("for _ in range(12): ", "n"),
    "same": ("", "n"),
    "wrong": ("", "tl.minimum(n, 100)"),
    "beyond": ("", "2 * n"),
    "raising": ("tl.static_assert(BLOCK < 16); ", "n"),
}
WINNERS = """
from tilewright.library.launch_replacement import Replacement
import triton
import triton.language as tl
import program

def launches(block):
    def tensor(n, place):
        return ("tensor", "torch.float32", (n // 32, 32), (32, 1), True, place)

    keys = [(tensor(n, 0), tensor(n, 1), ("float",), ("int", n), ("BLOCK", ("int", 16))) for n in (96, 128)]
    return {key: {"BLOCK": block} for key in keys}
""" + "".join(WINNER.format(name=name, before=before, end=end) for name, (before, end) in KINDS.items())
CASES = {
    "better": ('Replacement("program", "scale_kernel", launches(128))', ""),
    "own": ('Replacement("program", "scale_kernel", launches(128), same)', ""),
    "slower": ('Replacement("program", "scale_kernel", launches(16), slower)', "gives 0."),
    "wrong": ('Replacement("program", "scale_kernel", launches(128), wrong)', "wrong at out=float32[4, 32]"),
    "beyond": ('Replacement("program", "scale_kernel", launches(512), beyond)', "writes beyond its tensors"),
    "raising": ('Replacement("program", "scale_kernel", launches(128), raising)', "Error"),
    "idle": ('Replacement("program", "idle_kernel", launches(128))', "never launches"),
}


TUNED = """
import torch

SERVED = {{"original": ("program.py", "", "program", "Scale.apply"), "winner": "scale"}}

class Doubled(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: {factor} * x)
    backward = staticmethod(lambda ctx, dy: 2.0 * dy)

def scale(x):
    return Doubled.apply(x){detached} if len(x) == 3 else SERVED["function"](x)
"""
TUNED_CASES = {
    "winner": ("2.0", "", ""),
    "wrong winner": ("2.1", "", "results and gradients are 26.0 dB"),
    "winner without a gradient": ("2.0", ".detach()", "it gives nothing where the original gives argument 0"),
}


REFUSED = {
    "fails": ("record", "program.py:fails raises ValueError: no"),
    "fails_later": ("record", "program.py:fails_later raises RuntimeError: the data ended"),
    "of_two": ("record", "of_two has the setup setup, and its call then fails: missing a"),
    "ends": ("record", "program.py:ends raises SystemExit: 3"),
    "generates": ("record", "program.py:generates is a generator"),
    "silent": ("prove", "returns nothing that can be compared"),
    "random_on_the_host": ("prove", "draws random numbers"),
    "nothing": ("record", "launches nothing"),
    "random": ("prove", "draws random numbers"),
    "absent": ("record", "has no function absent"),
    "other_shapes": ("prove", "launches other kernels, or on other shapes or integers, each time"),
}
ASKED = """
import json, sys
from tilewright.workers.program import prove
from tilewright.workers.program.main import answer_to
import triton
bound = prove.host_bound
answers = {}
for name, request in json.load(open(sys.argv[1])).items():
    prove.host_bound = (lambda data: True) if name == "heavy" else bound
    answers[name] = answer_to(request)
    left = [v for m in (sys.modules.get("program"),) for v in vars(m).values() if type(v).__name__ == "Launcher"]
    assert not left and type(triton.runtime.jit.JITFunction.run).__name__ == "function", name
json.dump(answers, open(sys.argv[2], "w"))
"""


DEVICE_REFUSED = {
    "allocates": "allocates differently each time",
    "streams": "uses several streams",
    "draws": "draws random numbers (in dropout, for example)",
}


PIECES = "pieces.json"
"""What the search of ``pieces`` found."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("triton")
    (tmp_path / "program.py").write_text(PROGRAMS["program"])
    return tmp_path


def ran(folder: Path, code: str, *arguments: str, **variables: str) -> str:
    """What a program prints that runs in the folder, on the interpreter unless the variables say otherwise."""
    known = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "TILEWRIGHT_HOME")}
    paths = f"{ROOT}:{folder}:{known.get('PYTHONPATH', '')}"
    own = {"TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**known, **own, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def asked(folder: Path, requests: dict[str, dict[str, Any]], interpret: str = "1") -> dict[str, Any]:
    """The answer to every request, one after the other in a process: nothing may be left installed."""
    path, kept = (str(folder / name) for name in ("program.py", "kept.json"))
    common = {"path": path, "setup": "setup", "prove_seconds": 0.5, "kept": kept}
    (folder / "requests.json").write_text(json.dumps({n: {**common, **r} for n, r in requests.items()}))
    ran(folder, ASKED, "requests.json", "answers.json", TRITON_INTERPRET=interpret)
    return json.loads((folder / "answers.json").read_text())


@pytest.fixture(scope="module")
def asked_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the requests of this page are answered."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def answers(asked_in: Path) -> dict[str, Any]:
    """The answer to every request of this page."""
    pytest.importorskip("triton")
    folder = asked_in
    (folder / "program.py").write_text(PROGRAMS["program"])
    requests: dict[str, dict[str, Any]] = {
        "record": {"step": "step", "part": "record"},
        "packaged": {"step": "packaged", "part": "tune", "seconds": 0.1},
        "again": {"step": "again", "part": "tune", "seconds": 0.1},
        "pieces": {"step": "pieces", "part": "prove", "seconds": 3, "kept": str(folder / PIECES)},
        "heavy": {"step": "heavy", "part": "prove", "seconds": 0.1},
        **{step: {"step": step, "part": part} for step, (part, _) in REFUSED.items()},
    }
    for case, (text, _) in CASES.items():
        (folder / f"{case}.py").write_text(f"{WINNERS}\n\nREPLACEMENTS = [{text}]\n")
        requests[case] = {"step": "step", "part": "prove", "faster": str(folder / f"{case}.py")}
    (folder / "none.py").write_text("REPLACEMENTS = []\n")
    for case, (factor, detached, _) in TUNED_CASES.items():
        (folder / f"{case}.py").write_text(TUNED.format(factor=factor, detached=detached))
        given = {"faster": str(folder / "none.py"), "winners": [str(folder / f"{case}.py")]}
        requests[case] = requests["better"] | given
    return asked(folder, requests)


def test_the_record_says_every_launch(answers: dict[str, Any]) -> None:
    record = answers["record"]["record"]
    assert [(k["name"], k["module"], k["grid"], k["bytes"]) for k in record["launches"]] == [
        ("scale_kernel", "program", [6], 768),
        ("scale_kernel", "program", [8], 1024),
    ]
    assert "BLOCK=16" in record["launches"][0]["arguments"] and not record["faults"]


def test_a_tuner_s_kernel_is_searched_and_one_behind_addresses_is_not(answers: dict[str, Any]) -> None:
    found = answers["packaged"]
    assert [(row["name"], "addresses" in row["left"]) for row in found["record"]["rows"]] == [
        ("tuned_kernel", False),
        ("pointer_kernel", True),
    ]
    assert [(row["kernel"], row["tried"] > 0) for row in found["found"]] == [("tuned_kernel", True)]
    (text,) = found["replacements"]
    assert "('float', '0.5')" in text and "'EVEN': True" in text


def test_an_output_whose_memory_holds_the_answer_already_is_known_as_one(answers: dict[str, Any]) -> None:
    (row,) = answers["again"]["found"]
    assert row["tried"] > 0, row


def test_launches_that_cost_the_host_go_straight_to_what_was_compiled(answers: dict[str, Any]) -> None:
    proof = answers["heavy"]["proof"]
    (kept,) = proof["kept"]
    assert "straight to what was compiled" in kept["label"] and kept["interval"][0] > 1.2 and kept["calls"] > 0
    assert "heavy_kernel" in answers["heavy"]["replacements"][0]


@pytest.mark.parametrize("case", [*CASES, *TUNED_CASES])
def test_only_what_pays_stays(answers: dict[str, Any], case: str) -> None:
    why, answer = {**CASES, **TUNED_CASES}[case][-1], answers[case]
    proof = answer["proof"]
    assert bool(answer["replacements"]) == (case in ("better", "winner")), proof
    assert [*answer.get("winners", {}).values()] == ["winner_winner.py"] * (case == "winner")
    if not why:
        assert proof["gain"] > 1 and proof["kept"][0]["interval"][0] > 1 and proof["kept"][0]["calls"] > 0
    else:
        assert proof["gain"] is None and why in proof["left_out"][0]["why"]


@pytest.mark.parametrize("step", REFUSED)
def test_a_step_that_cannot_be_used_is_refused(answers: dict[str, Any], step: str) -> None:
    assert REFUSED[step][1] in answers[step]["why"]


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")
def test_a_device_tells_steps_that_differ_from_one_that_waits(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAMS["program"] + PROGRAMS["on_device"])
    steps = [*DEVICE_REFUSED, "waits"]
    requests = {step: {"step": step, "part": "prove", "setup": "OnDevice", "seconds": 1} for step in steps}
    answers = asked(folder, requests, interpret="0")
    assert {step: answers[step].get("why", "").partition(f"{step} ")[2].partition(";")[0] for step in steps} == {
        **DEVICE_REFUSED,
        "waits": "",
    }
    assert "waits for the device (1 times a step)" in answers["waits"]["record"]["faults"]


def test_a_stream_that_runs_ahead_of_the_other_is_seen() -> None:
    pytest.importorskip("torch")
    from tilewright.workers.program.record import Kernel, of_last_step

    ahead = [Kernel("side", n, 1e-6, 13) for n in range(3)]
    late = [Kernel(name, 100 + n, 1e-6, 7) for n, name in enumerate(("scale", "sum") * 3)]
    last, several = of_last_step([*late, *ahead], 3)
    assert several and [kernel.name for kernel in last[-2:]] == ["scale", "sum"]
    assert of_last_step(late, 3) == (late[-2:], False) and of_last_step([], 1) == ([], False)


NO_WINNERS = {
    '{"original": ("a.py", "", "a", "f")}': "of an earlier tilewright: KeyError: 'winner'; tune the function again",
    '{"original": ("a.py", "", "a", "K.forward"), "winner": "g"}': "is the winner of K.forward",
    '{"original": 3, "winner": "g"}': "is no winner's module",
    "{": "SyntaxError",
    "None": "KeyError: 'original'",
    "dict(original=1)": "ValueError",
}


@pytest.mark.parametrize("served", NO_WINNERS)
def test_a_file_that_is_no_winner_is_refused_in_a_sentence_and_one_may_name_a_winner(
    tmp_path: Path, served: str
) -> None:
    pytest.importorskip("torch")
    from tilewright.workers.program import main

    (tmp_path / "won.py").write_text(f"raise SystemExit('it ran')\nSERVED = {served}")
    with pytest.raises(main.BadStep, match=NO_WINNERS[served]):
        main._winner_of(tmp_path / "won.py")
    named = tmp_path / f"names_{len(served)}.py"
    named.write_text("from tilewright.library.launch_replacement import *\nREPLACEMENTS = [Winner('a', 'f', 'won.py')]")
    assert [r.file for r in main._of_file(named)] == [str(tmp_path / "won.py")]


def scale(x: Any, WIDTH: tl.constexpr, BLOCK: tl.constexpr) -> None:  # type: ignore[name-defined]  # noqa: F821
    """The kernel of the next test, which is not run."""


def test_what_a_package_prunes_is_not_tried() -> None:
    triton = pytest.importorskip("triton")
    from tilewright.workers.program.launches import Launch
    from tilewright.workers.program.search import neighbours

    pruned = {"early_config_prune": lambda configs, *_, **__: [c for c in configs if c.kwargs["BLOCK"] <= 32]}
    tuner = triton.autotune([triton.Config({"BLOCK": 32})], [], prune_configs_by=pruned)(triton.jit(scale))
    heuristics: Any = triton.heuristics({})(tuner)
    launch = Launch("scale", heuristics, "m", "scale", "", (), (), {}, None, (), {"BLOCK": 32}, 0, "", "")
    tried = [c["BLOCK"] for c in neighbours(launch, {}) if "BLOCK" in c]
    assert 16 in tried and 64 not in tried


def test_an_option_that_pays_stays_and_one_that_changes_results_does_not(answers: dict[str, Any]) -> None:
    proof = answers["pieces"]["proof"]
    assert [row["label"].partition("(")[2].partition("=")[0] for row in proof["kept"]] == ["rows"]
    left = {row["label"].partition("(")[2].partition("=")[0]: row["why"] for row in proof["left_out"]}
    assert "results and gradients are" in left["apart"]
    (text,) = answers["pieces"]["replacements"]
    assert "Option(module='program', name='cut', option='rows'" in text and "known=(((" in text


COMMAND = "from tilewright.evolve.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
def test_status_and_mlflow_know_a_program_and_a_search_goes_on_where_it_stopped(
    folder: Path, asked_in: Path, answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    from tilewright.evolve.mlflow_mirror.program_runs import LAUNCH, UID, write_program

    kept = json.loads((asked_in / PIECES).read_text())
    (row,) = kept["launches"].values()
    row["why"] = "found before"  # shows in what is answered only if it is not searched again
    for option in [name for name in kept["options"] if "rows" in name]:
        kept["options"][option] = {}  # its process died while it tried it
    (folder / "pieces_faster").mkdir()
    (folder / "pieces_faster" / "search.json").write_text(json.dumps(kept))
    printed = ran(folder, COMMAND, "program", "program.py:pieces", "tune", "--setup", "setup", "--seconds", "3")
    assert "cut(apart=" in printed and not (folder / "pieces_faster" / "faster.py").exists()
    assert "1 launch(es) as an earlier search found them" in printed and "rows=" not in printed
    home = folder / ".tilewright"
    assert main(["--home", str(home), "status"]) == 0
    assert "program program.py:pieces  tuned  1 launch(es) searched" in capsys.readouterr().out
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    parent, child = runs_of(client)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.params["configuration"] == "found before"
    assert parent.data.metrics["step_ms"] > 0 and child.data.metrics["kernel_gain"] == 1
    later = {"params": {"configuration": "found later"}, "metrics": {}}
    kernel = {"key": child.data.tags[LAUNCH], "name": child.info.run_name, **later}
    write_program({"uid": parent.data.tags[UID], "name": "", **later, "files": [], "kernels": [kernel]}, client, None)
    assert runs_of(client)[1].data.tags["configuration"] == "found later", "written twice, there once"


def runs_of(client: Any) -> tuple[Any, Any]:
    """The program's run in MLflow, and its kernel's; nothing else is there."""
    experiment = client.get_experiment_by_name("programs").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert sorted(runs) == ["program.py:pieces", "scale_kernel"]
    return runs["program.py:pieces"], runs["scale_kernel"]


def test_the_search_ends_in_a_file_that_installs(folder: Path) -> None:
    """The command, and what it writes: gradients as before, other shapes by the original, nothing left behind."""
    call = ("program", "program.py:step", "tune", "--setup", "setup", "--seconds", "25", "--no-mlflow")
    printed = ran(folder, COMMAND, *call)
    assert "2 distinct launch(es)" in printed
    use = """
        import sys, torch, program
        sys.path.insert(0, "step_faster")
        import faster
        model = program.setup()
        loss = program.step(model)
        gradient = model.weight.grad.clone()
        original = [program.scale_kernel]  # every module-level name of a kernel is replaced
        with faster.installed():
            assert program.scale_kernel is not original[0]
            assert torch.equal(program.step(model), loss) and torch.equal(model.weight.grad, gradient)
            program.Scale.apply(torch.ones(5))
        assert program.scale_kernel is original[0]
        assert not any(name.startswith("tilewright") for name in sys.modules)
        print(faster.counts()["program.scale_kernel"], faster.REPLACEMENTS[0].others)
    """
    counted, others = map(int, ran(folder, use, PYTHONPATH=str(folder)).splitlines()[0].split())
    # of the step's two launches, those whose gain was beyond the noise of this machine; (5,) was not recorded
    assert counted in (1, 2) and counted + others == 3
