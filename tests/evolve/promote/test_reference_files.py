"""What a promoted function that was taken in brings along: its reference, which needs nothing of tilewright."""

import io
import json
import zipfile

import numpy as np
import pytest

pytest.importorskip("torch")

from tilewright.evolve.promote.reference_files import packed_reference
from tilewright.library.oracle import _package
from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.intake.operator import Operand, Result, TakenOperator

SHAPE = Workload("4x8", {"M": 4, "N": 8})
FILE = """import torch

print("a benchmark runs")

class Model(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, self.dim)

def get_init_inputs():
    return [1]

def plain(x):
    return torch.softmax(x, dim=1)

if __name__ == "__main__":
    raise SystemExit(1)
"""


def _operator(reference, call="x"):
    return TakenOperator(
        "rows/taken",
        reference,
        call,
        (Operand("x", "bfloat16", ("M", "N")),),
        (Result("o0", "bfloat16", ("M", "N"), 40.0),),
        {"calls": Suite("calls", workloads=(SHAPE,), check=(SHAPE,))},
        {"seed": SeedKernel("seed", "")},
    )


def _packed(operator):
    return packed_reference(operator, "./rows/taken")


@pytest.mark.parametrize("reference", ["torch.softmax", "plain", "Model", "run"])
def test_it_answers_as_the_operator_does(tmp_path, capsys, reference):
    (tmp_path / "23_rows.py").write_text(FILE)
    (tmp_path / "rows.json").write_text(
        json.dumps({"reference": "import torch\n\ndef run(x):\n    return torch.softmax(x, -1)\n"})
    )
    file = "rows.json" if reference == "run" else "23_rows.py"
    operator = (
        _operator(reference, "x, dim=1")
        if reference == "torch.softmax"
        else _operator(f"{tmp_path / file}:{reference}")
    )
    data = _packed(operator)
    assert data is not None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    reached = "".join(text for name, text in texts.items() if name != "__init__.py")
    assert "import tilewright" not in reached and "from tilewright" not in reached
    inputs = operator.make_inputs(SHAPE, 1, "randn")
    capsys.readouterr()
    module = _package(data, f"{reference:0<16}")
    found = module.operator().oracle(module.workload(SHAPE.dims), dict(inputs))
    np.testing.assert_array_equal(found["o0"]["o0"], operator.oracle(SHAPE, inputs)["o0"]["o0"])
    assert not capsys.readouterr().out


def test_one_that_needs_a_file_beside_it_or_is_the_kernel_itself_stays_out(tmp_path):
    (tmp_path / "more.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "rows.py").write_text("from more import twice\n\ndef plain(x):\n    return twice(x)\n")
    assert _packed(_operator(f"{tmp_path / 'rows.py'}:plain")) is None
    assert _packed(_operator(f"itself:{tmp_path / 'rows.py'}")) is None
    assert _packed(_operator(f"{tmp_path / 'gone.py'}:plain")) is None
