"""A tuned function's winner for flashinfer-bench: a Definition with its reference, and a Solution that stands alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tilewright.evolve.export import flashinfer_bench
from tilewright.evolve.export.promoted import Disagreement
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.intake.operator import Operand, Result, TakenOperator

SHAPE = Workload("4x8", {"M": 4, "N": 8})
LAUNCH = "def launch(inputs, params):\n    return (inputs['x'].softmax(1) * params['one'],)\n"
MODEL = (
    "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
    "        self.dim = dim\n\n    def forward(self, x):\n        return torch.softmax(x, self.dim)\n\n"
    "def get_init_inputs():\n    return [1]\n"
)


def _files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, call: str = "x", source: str = LAUNCH
) -> dict[str, Any]:
    operator = TakenOperator(
        "rows/taken", reference, call, (Operand("x", "float32", ("M", 8)),), (Result("o0", "float32", ("M", 8), 90.0),),
        {"calls": Suite("calls", workloads=(SHAPE,), check=(SHAPE,))}, {"seed": SeedKernel("seed", source)},
    )  # fmt: skip
    campaign = tmp_path / "rows-001"
    campaign.mkdir(exist_ok=True)
    Journal(campaign / JOURNAL, write=True, create=True).close()
    winner = SimpleNamespace(index=3, genome=SimpleNamespace(source=source, params={"one": 1}))
    facts = {"operator": "./rows/taken", "target": "h200"}
    monkeypatch.setattr(flashinfer_bench, "load", lambda _: SimpleNamespace(facts=facts, winner=winner))
    monkeypatch.setattr(flashinfer_bench, "load_operator", lambda _: operator)
    return {
        path.partition("/")[0]: json.loads(text)
        for path, text in flashinfer_bench.of_campaign(campaign / JOURNAL).items()
    }


@pytest.mark.parametrize("said", ["torch.softmax", "Model"])
def test_definition_and_solution_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    (tmp_path / "problem.py").write_text(MODEL)
    plain = said == "torch.softmax"
    found = _files(
        tmp_path, monkeypatch, said if plain else f"{tmp_path}/problem.py:Model", "x, dim=1" if plain else "x"
    )
    definition, solution = found["definitions"], found["solutions"]
    assert definition["axes"] == {"M": {"type": "var"}, "axis_8": {"type": "const", "value": 8}}
    assert definition["inputs"] == {"x": {"shape": ["M", "axis_8"], "dtype": "float32"}}
    assert solution["definition"] == definition["name"] == "rows"
    spaces: list[dict[str, Any]] = [{}, {}]
    exec(compile(definition["reference"], "reference", "exec"), spaces[0])
    exec(compile(solution["sources"][0]["content"], "main.py", "exec"), spaces[1])
    assert "tilewright" not in solution["sources"][0]["content"]
    x = torch.randn(4, 8)
    assert torch.equal(spaces[0]["run"](x), spaces[1]["run"](x))


def test_a_definition_that_judged_is_handed_on_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"A": {"shape": ["rows"], "dtype": "float32"}, "eps": {"shape": None, "dtype": "float32"}}
    axes, reference = {"rows": {"type": "var"}}, "def run(A, eps): ..."
    whole = {"name": "rows_h8", "axes": axes, "inputs": inputs, "outputs": {}, "reference": reference}
    (tmp_path / "rows.json").write_text(json.dumps(whole))
    found = _files(tmp_path, monkeypatch, f"{tmp_path}/rows.json:run")
    assert found["definitions"] == whole
    assert found["solutions"]["sources"][0]["content"].endswith("def run(A, eps):\n    return tuned(A)\n")


@pytest.mark.parametrize(
    ("reference", "source", "why"),
    [
        ("itself:kernels/itself.py", LAUNCH, "the kernel itself"),
        ("gone.py:f", LAUNCH, "cannot be read"),
        ("torch.relu", "def build(params): ...", "a Pallas kernel is none"),
    ],
)
def test_what_is_no_solution_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, source: str, why: str
) -> None:
    with pytest.raises(Disagreement, match=why):
        _files(tmp_path, monkeypatch, reference, source=source)
