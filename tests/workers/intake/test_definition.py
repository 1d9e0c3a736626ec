"""A flashinfer-bench Definition as a reference."""

import json

import pytest

from tilewright.workers.intake.judge.reference import function_of

DEFINITION = {
    "name": "scale_h8",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 8}},
    "inputs": {"x": {"shape": ["rows", "width"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x):\n    return 2 * x\n",
}


def test_its_function_is_a_reference(tmp_path):
    definition = tmp_path / "scale_h8.json"
    definition.write_text(json.dumps(DEFINITION))
    assert function_of(f"{definition}:run")(21) == 42
    for name, message in (("walk", "defines no walk"), ("rnu", r"defines no rnu \(did you mean run\?\)")):
        with pytest.raises(LookupError, match=message):
            function_of(f"{definition}:{name}")
    definition.write_text('{"name": "x"}')
    with pytest.raises(LookupError, match="no Definition with a reference"):
        function_of(f"{definition}:run")
