"""A flashinfer-bench Definition as a reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.workers.intake.judge.reference import function_of, run_reference

DEFINITION = {
    "name": "scale_h8",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 8}},
    "inputs": {"x": {"shape": ["rows", "width"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x):\n    return 2 * x\n",
}


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "scale_h8.json"
    path.write_text(json.dumps(DEFINITION))
    return path


def test_its_function_is_a_reference(definition: Path) -> None:
    assert function_of(f"{definition}:run")(21) == 42
    with pytest.raises(LookupError, match="defines no walk"):
        function_of(f"{definition}:walk")
    definition.write_text('{"name": "x"}')
    with pytest.raises(LookupError, match="no Definition with a reference"):
        function_of(f"{definition}:run")


def test_a_reference_takes_one_thread_and_leaves_the_others_as_they_were() -> None:
    import torch

    def threads(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        (found,) = run_reference(threads, "x", {"x": np.zeros(3)}, "float64")
        assert (found == 1).all() and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
