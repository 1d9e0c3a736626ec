"""Plain kernels written for problems that have none, and problems that no template knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tilewright.workers.intake.formats.template import Unfit, written

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, axis=1):
        super().__init__()
        self.axis = axis{weights}

    def forward(self, {given}):
        return {result}

size = 1 << 20
axis = 1

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [axis]
"""


def _file(folder: Path, result: str, inputs: str, given: str = "x", weights: str = "") -> Path:
    path = folder / "7_Odd_One_.py"
    path.write_text(PROBLEM.format(result=result, inputs=inputs, given=given, weights=weights))
    return path


@pytest.mark.parametrize(
    ("result", "inputs", "given", "call", "holds"),
    [
        ("torch.nn.functional.gelu(x) * 2", "torch.rand(4096, size)", "x", "f32[4096, 1048576]", "tl.erf("),
        ("torch.softmax(x, self.axis)", "torch.rand(8, size)", "x", "f32[8, 1048576]", "tl.sum(r1_, axis=0)"),
        ("x.mean(self.axis)", "torch.rand(8, 16, 32)", "x", "f32[8, 16, 32]", "inner = x0.shape[2]"),
        ("(a.T @ b).relu()", "torch.rand(64, 8), torch.rand(64, 32)", "a, b", "f32[64, 8], f32[64, 32]",
         "x0.shape[1], x0.shape[0], x1.shape[1]"),
        ("a @ b", "torch.rand(2, 64, 8), torch.rand(2, 8, 32)", "a, b", "f32[2, 64, 8], f32[2, 8, 32]",
         "a_ptr += tl.program_id(1) * a_batch"),
    ],
)  # fmt: skip
def test_a_family_has_a_kernel(tmp_path: Path, result, inputs, given, call, holds: str) -> None:
    made = written(_file(tmp_path, result, inputs, given))
    assert (made["function"], made["call"]) == ("odd_one", call)
    assert holds in made["source"]
    names = [n.name for n in ast.parse(made["source"]).body if isinstance(n, ast.FunctionDef)]
    assert names == ["odd_one_kernel", "odd_one"]


@pytest.mark.parametrize(
    ("result", "inputs", "weights", "why"),
    [
        ("x.cumsum(1)", "torch.rand(8, 8)", "", "no template has cumsum"),
        ("x * self.w", "torch.rand(8, 8)", "\n        self.w = torch.nn.Parameter(torch.ones(8))", "weights"),
        ("x.sum()", "torch.rand(8, 8)", "", "several axes at once"),
        ("x + 1", "torch.arange(8)", "", "floats alone"),
        ("x.nothing()", "torch.rand(8, 8)", "", "cannot be traced"),
        ("torch.softmax(x, 0) + torch.softmax(x, 1)", "torch.rand(8, 8)", "", "several axes"),
    ],
)
def test_what_no_template_knows_is_said(tmp_path: Path, result, inputs, weights: str, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        written(_file(tmp_path, result, inputs, weights=weights))
