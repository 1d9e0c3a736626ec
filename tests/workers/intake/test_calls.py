"""Calls that a user's file makes, as texts."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tilewright.workers.intake.calls.call_values import arguments_of, call_text  # noqa: E402
from tilewright.workers.intake.calls.file_calls import calls  # noqa: E402

FILE = """
import torch

def calls():
    begins = torch.tensor([0, 100, 250, 1024], device="cuda")
    x = torch.zeros(1024, 64, device=torch.device("cuda"), dtype=torch.bfloat16)
    return [(x, begins, 512), (x.half(), begins.to("cuda"), {"slots": torch.randperm(64).cuda(), "scale": 0.5})]

inputs = (torch.zeros(3, 4).T, torch.ones(8, dtype=torch.int32))
several = ["f32[4]", "f32[8]"]
"""


def test_what_counts_of_tensors_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)

    def texts(name: str = "") -> list[str]:
        return [c if isinstance(c, str) else call_text(*arguments_of(c)) for c in calls(file, name)]

    first, second = texts()
    assert first == "bf16[1024, 64], int64[4].offsets(1024, 774), 512"
    assert second == (
        "f16[1024, 64], int64[4].offsets(1024, 774), slots=int64[64].distinct() < 64, scale=0.5"
    )
    assert texts("inputs") == ["f32[3, 4].permute(1, 0), int32[8] < 2"]
    assert texts("several") == ["f32[4]", "f32[8]"]
    with pytest.raises(LookupError, match="has nothing named other"):
        texts("other")
