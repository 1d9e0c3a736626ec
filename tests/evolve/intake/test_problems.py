"""Benchmarks' files at the command line: what is tuned, how it is called, by what it is judged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tilewright.evolve.cli import main
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import flashinfer_files as flashinfer
from tilewright.evolve.intake import problems, tune
from tilewright.evolve.intake.problems import Options, is_problem, plan
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls.kept_values import given, renamed

HERE, TPU = load_target("interpreter"), load_target("tpu7x")
NOTHING = Options()
DEFINITION: dict[str, Any] = {
    "name": "rows_h8",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "float16"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "float16"}},
    "reference": "import torch\n\ndef run(x, scale):\n    return x * scale\n",
}
SOLUTION: dict[str, Any] = {
    "name": "mine", "definition": "rows_h8", "author": "me",
    "spec": {"language": "triton", "target_hardware": ["H200"], "entry_point": "src/main.py::run"},
    "sources": [{"path": "src/main.py", "content": "def run(x, scale, y):\n    y.copy_(x * scale)\n"}],
}  # fmt: skip
MODEL = (
    "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n"
    "def get_inputs():\n    return [torch.rand(4, 8)]\n"
)
WORKLOAD = (
    "def create_inputs():\n    import jax.numpy as jnp\n    return jnp.ones((4, 8), jnp.bfloat16), jnp.arange(3), 2\n\n"
    "def workload(x):\n    return pallas_call(x)\n"
)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A trace set with one Definition, its workloads, and a Solution."""
    for name in ("definitions/rows", "workloads/rows", "solutions/me/rows"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "definitions/rows/rows_h8.json").write_text(json.dumps(DEFINITION))
    rows = [
        {"workload": {"axes": {"rows": n}, "inputs": {"scale": {"type": "scalar", "value": 0.5}}}}
        for n in (3, 700, 40, 9, 40)
    ]
    (tmp_path / "workloads/rows/rows_h8.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "solutions/me/rows/mine.json").write_text(json.dumps(SOLUTION))
    return tmp_path


def test_a_solution_is_tuned_at_its_workloads_against_its_definition(traces: Path, tmp_path: Path) -> None:
    path = traces / "solutions/me/rows/mine.json"
    found = plan(path, NOTHING, HERE, tmp_path / "made")
    request = found.request
    assert (request.function, found.name) == ("rows_h8", "rows_h8")
    assert request.calls == ("f16[700, 8], 0.5", "f16[9, 8], 0.5", "f16[3, 8], 0.5")
    assert request.reference == f"{traces}/definitions/rows/rows_h8.json:run"
    text = request.path.read_text()
    assert request.path == tmp_path / "made/src/main.py" and found.files == {"src/main.py": text}
    assert "y = torch.empty((x.shape[0], 8,), dtype=torch.float16, device=x.device)" in text
    space: dict[str, Any] = {}
    exec(compile(text, "main.py", "exec"), space)
    x = space["torch"].ones(2, 8, dtype=space["torch"].float16)
    assert (space["rows_h8"](x, 0.5) == 0.5).all()
    plan(path, Options("", "torch.mul", ("f16[5, 8], 2.0",)), HERE, tmp_path / "again")
    problems.write_files(found, tmp_path / "kept")
    assert (tmp_path / "kept/src/main.py").read_text() == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {**SOLUTION["spec"], "language": "cuda"}}, "is a Solution in cuda"),
        ({"sources": [{"path": "../main.py", "content": "x"}]}, "a source outside its own folder"),
        (
            {"sources": [{"path": "other.py", "content": "x"}]},
            "its entry point 'src/main.py::run' is none of",
        ),
        (
            {"definition": "rows_h9"},
            "solves rows_h9, but no folder definitions above it holds that Definition",
        ),
        ({"spec": 3}, "is no Solution of flashinfer-bench"),
    ],
)
def test_a_solution_that_cannot_be_taken_in_is_told_why(
    traces: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = traces / "solutions/me/rows/mine.json"
    path.write_text(json.dumps({**SOLUTION, **change}))
    assert main(["check", str(path), "--target", "interpreter"]) == 2
    told = capsys.readouterr().err
    assert said in told and len(told.strip().splitlines()) == 1


def test_a_definition_says_its_calls_or_what_is_missing(traces: Path) -> None:
    path = traces / "definitions/rows/rows_h8.json"
    assert flashinfer.calls_of(flashinfer.read_definition(path))[0] == "f16[700, 8], 0.5"
    lines = traces / "workloads/rows/rows_h8.jsonl"
    lines.write_text(
        json.dumps({"workload": {"axes": {"rows": 2}, "inputs": {"x": {"type": "safetensors"}}}})
    )
    with pytest.raises(flashinfer.NoTrace, match="bring x as a file of data"):
        flashinfer.calls_of(flashinfer.read_definition(path))
    lines.unlink()
    with pytest.raises(flashinfer.NoTrace, match=r'say rows: add --args "f16\[1024, 8\], 1.0"'):
        flashinfer.calls_of(flashinfer.read_definition(path))


def test_what_holds_no_kernel_says_so(traces: Path) -> None:
    (traces / "23_rows.py").write_text(MODEL)
    for path in (traces / "definitions/rows/rows_h8.json", traces / "23_rows.py"):
        with pytest.raises(
            UserError, match=r"no kernel to begin with\. Write a kernel, or let a language model"
        ):
            plan(path, NOTHING, HERE, traces / "made")
    with pytest.raises(UserError, match="flashinfer-bench is for torch, and tpu7x is not: use --target"):
        plan(traces / "definitions/rows/rows_h8.json", NOTHING, TPU, traces / "made")


def test_a_function_is_called_as_its_references_problem_says(tmp_path: Path) -> None:
    problem, kernel = tmp_path / "23_rows.py", tmp_path / "answer.py"
    problem.write_text(MODEL)
    kernel.write_text("class ModelNew:\n    pass\n")
    asked = Options("ModelNew", str(problem), ())
    assert is_problem(kernel, asked) and not is_problem(
        kernel, Options("ModelNew", str(problem), ("f32[8]",))
    )
    assert not is_problem(kernel, NOTHING) and is_problem(problem, NOTHING)
    found = plan(kernel, asked, HERE, tmp_path)
    assert found.request.calls == ("f32[4, 8]",) and found.request.reference == f"{problem}:Model"
    assert found.name == "answer"
    with pytest.raises(UserError, match=r"--reference: which function of .*answer.py\? Write"):
        tune.resolve_reference(str(kernel))

    optimized = tmp_path / "optimized.py"
    optimized.write_text(WORKLOAD)
    with pytest.raises(UserError, match=r"no baseline.py beside it gives the right answer: add --reference"):
        plan(optimized, NOTHING, TPU, tmp_path)
    (tmp_path / "baseline.py").write_text(WORKLOAD.replace("pallas_call", ""))
    found = plan(optimized, NOTHING, TPU, tmp_path)
    assert found.request.calls == ("bf16[4, 8], int32[3] < 3, 2",) and found.request.function == "workload"
    assert found.request.reference == f"{tmp_path}/baseline.py:workload"
    with pytest.raises(UserError, match="JAXBench is for JAX, and interpreter is not: use --target tpu7x"):
        plan(optimized, NOTHING, HERE, tmp_path)
    with pytest.raises(UserError, match=r"is a problem of JAXBench.* but no kernel to begin with"):
        plan(tmp_path / "baseline.py", NOTHING, TPU, tmp_path)


TASK = {
    "task/task.yml": "files:\n  - {name: utils.py, source: ../utils.py}\nlang: py\n"
    "benchmarks:\n  - {rows: 64, seed: 3}\n  - {rows: 32, seed: 3}\n",
    "task/reference.py": "import torch\nfrom utils import scaled\n\n"
    "def ref_kernel(data):\n    return scaled(data[0])\n\n"
    "def generate_input(rows, seed):\n    made = torch.Generator(device='cuda').manual_seed(seed)\n"
    "    return (torch.randn(rows, 16, device='cuda', generator=made), torch.arange(4, device='cuda') * 5)\n",
    "task/submission.py": "def custom_kernel(data):\n    return data[0] * 2\n",
    "utils.py": "def scaled(x):\n    return x * 2\n",
}


def test_a_folder_of_gpu_mode_gives_calls_with_values_and_a_reference(tmp_path: Path) -> None:
    for name, text in TASK.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    request = plan(tmp_path / "task", NOTHING, HERE, tmp_path / "made").request
    assert request.calls == (
        "[f32[64, 16], int64[4].offsets(15, 5)]",
        "[f32[32, 16], int64[4].offsets(15, 5)]",
    )
    assert request.reference == f"{tmp_path}/made/reference.py:ref_kernel" and request.made == str(
        tmp_path / "made"
    )
    renamed(Path(request.values), tmp_path / "v.npz", ["64", "32"], ["x", "slots"])
    assert list(given(str(tmp_path / "v.npz"), "32", "slots", "int64", (4,))) == [0, 5, 10, 15]
    with pytest.raises(UserError, match=r"is a folder without reference\.py, submission\.py, task\.yml"):
        plan(tmp_path / "made", NOTHING, HERE, tmp_path / "again")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("k.cu", "", "CUDA C++: use an operator folder"),
        (
            "k.py",
            "from torch.utils.cpp_extension import load_inline\nload_inline(1)\n",
            "CUDA C++: use an operator",
        ),
        ("k.py", "import tilelang\n", "TileLang: tune takes functions that launch Triton or Pallas"),
        ("k.py", "import helion\n@helion.kernel()\ndef f(x): ...\n", "Helion: name the Triton file"),
    ],
)
def test_a_file_of_another_language_is_named_as_such(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(f"{name} is {said}")):
        tune.parse_place(f"{tmp_path / name}:f" if name.endswith(".py") else str(tmp_path / name))
