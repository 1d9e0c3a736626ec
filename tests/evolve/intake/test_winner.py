"""The winner's module against the original: on every call they agree, or the original serves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT

pytest.importorskip("triton")
PROGRAM = Path(__file__).with_name("odd_calls.py")
NEVER = {"other dtype", "half", "rank", "empty", "larger", "with gaps", "needs a gradient", "gradient of a view",
         "other device", "other option", "unknown option", "too few", "no tensor"}  # fmt: skip
"""Calls that no winner serves."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("winners")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    said = []
    for step in ("make", "compare"):
        done = subprocess.run(
            [sys.executable, str(PROGRAM), step, str(folder)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout.splitlines()[-1]))
    return said[0], said[1], folder


def test_winner_and_original_agree_on_odd_calls_or_the_original_serves(answers):
    _, rows, _ = answers
    assert [str(row)[:900] for row in rows if row[2] and row[:2] != ["Overwriting.apply", "a leaf"]] == []
    served = {(name, case) for name, case, _, own in rows if own}
    assert {name for name, case in served if case == "as recorded"} == {name for name, *_ in rows}
    assert {("branched", "smaller"), ("guarded", "smaller")}.isdisjoint(served)  # other branches there
    assert ("turned", "smaller") in served and ("summed", "smaller") in served
    pairs = {(f"{name}.apply", "") for name in ("Doubled", "Product", "Twisted", "Overwriting")}
    gradients = {"needs a gradient", "gradient of a view", "a leaf", "one gradient"}
    assert {(name, c) for name, _ in pairs for c in gradients} - {("Overwriting.apply", "a leaf")} <= served
    assert {(name, case) for name, case in served if case in NEVER} <= {
        (name, c) for name, _ in pairs for c in gradients
    }
    assert ("into", "one storage") not in served


def test_a_pair_is_taken_where_its_backward_can_be(answers):
    facts, rows, folder = answers
    assert {name for name, of in facts.items() if of["pair"]} == {
        "Doubled.apply", "Product.apply", "Twisted.apply", "Overwriting.apply"}  # fmt: skip
    assert "can be run once" not in (folder / "doubled.py").read_text()
    again = next(row for row in rows if row[:2] == ["Overwriting.apply", "a leaf"])
    assert again[2][1][0] == "RuntimeError" and "can be run once" in again[2][1][1][0]


def test_what_a_winner_leaves_out_is_told_and_meaning_is_no_knob(answers):
    facts, _, folder = answers
    dropped, flags = sorted(facts["rows"]["left_out"])
    assert "what kernels write into torch.bool[24] is not judged" in dropped + flags
    assert "torch._assert_async is not done" in dropped + flags
    assert "reduction" not in facts["rows"]["knobs"]
    text = (folder / "rows.py").read_text()
    assert "def rows(x: 'torch.Tensor', w: 'torch.Tensor', eps: 'float'=1e-06, *, mode='plain'):" in text
    assert "'Rows by their root mean square, and its inverse.'" in text and "tilewright." not in text
