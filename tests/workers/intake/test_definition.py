"""A flashinfer-bench Definition as a reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.workers.intake.judge.reference import function_of

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
