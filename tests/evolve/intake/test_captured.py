"""Real calls noted while a program runs, and the winner as a function that knows which calls are its own."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

MODULE = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale_kernel(out, x, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)

def scaled(x, factor=2.0):
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](out, x, factor, n, BLOCK=64)
    return out

def idle(x):
    return x

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scaled(x)
"""

PROGRAM = """
import json, sys, torch, noted
from noted import idle, scaled
from tilewright.evolve.intake.captured import Captured

kept = noted.scaled, noted.Scale.apply
x = torch.arange(200.0).reshape(10, 20)
with Captured([noted]) as calls:
    scaled(x), scaled(x), scaled(x[:, :7], factor=3.0), idle(x), noted.Scale.apply(x)
scaled(x[:3])
json.dump({
    "functions": {name: found.calls for name, found in calls.functions.items()},
    "notes": calls.functions["scaled"].notes,
    "restored": noted.scaled is kept[0] and scaled is kept[0] and "apply" not in vars(noted.Scale),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    import json

    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("program")
    (folder / "noted.py").write_text(MODULE)
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    paths = os.pathsep.join([str(ROOT), str(folder)])
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_calls_are_noted_and_what_was_watched_is_as_before(noted):
    assert noted["functions"] == {  # under every name that a function has; what launches nothing is not
        "scaled": ["f32[10, 20]", "f32[10, 7], factor=3.0"],
        "Scale.apply": ["f32[10, 20]"],
    }
    (note,) = noted["notes"]
    assert "argument 0 has gaps (shape [10, 7], strides [20, 1])" in note and "go to the original" in note
    assert noted["restored"]


@pytest.mark.slow
def test_a_step_of_three_liger_functions_is_captured_and_tuned_as_the_page_says(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("liger_kernel")
    (page,) = re.findall(r"```python\n(def step\(.*?)```", (ROOT / "docs" / "tune.md").read_text(), re.S)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head = f"import torch, tilewright as tw\nfrom liger_kernel import ops\n\ndevice = {device!r}\n"
    (tmp_path / "page.py").write_text(head + page)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths} | ({} if device == "cuda" else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "page.py"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    names = ("LigerRMSNormFunction", "LigerSiLUMulFunction", "LigerCrossEntropyFunction")
    assert all(f"'{name}.apply': " in last for name in names) and last.endswith(" {}"), last
