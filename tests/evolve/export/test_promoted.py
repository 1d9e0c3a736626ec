"""Promoted operators for other programs: packages that need no tilewright."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.promote_campaign import one_sentence
from tilewright.evolve.cli import main
from tilewright.evolve.export import standalone
from tilewright.evolve.export.promoted import PromotedTable, promoted
from tilewright.evolve.promote.library_writer import LibraryWriter

SHIPPED = LibraryWriter(Path(__file__).parents[3] / "library")
ROWS = "gemm_fp8_blockwise/quant_1x128"


@functools.cache
def shipped(operator: str) -> PromotedTable:
    return promoted(SHIPPED, operator, "h200")


def write(files: dict[str, str], folder: Path) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


CHECK_TORCH = """
import sys, torch
assert not any("tilewright" in p for p in sys.path)
from gemm_fp8_blockwise_quant_1x128_h200 import run, serves
x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
q, s = run(x)
wanted = torch.div(torch.full((256, 2), 448.0), x.float().reshape(256, 2, 128).abs().amax(2).clamp_min(1e-4))
assert q.dtype is torch.float8_e4m3fn and s.shape == (2, 256)
assert torch.equal(s.t(), torch.div(torch.ones_like(wanted), wanted))
wide = q.float().reshape(256, 2, 128) * s.t()[:, :, None]
assert (wide.reshape(256, 256) - x.float()).norm() < 0.07 * x.float().norm()  # the interpreter cuts, a GPU rounds
for bad in (lambda: run(x.float()), lambda: run(x[:, :200]), lambda: serves(1, 10**9)):
    try:
        bad()
    except (TypeError, ValueError, LookupError) as error:
        print(type(error).__name__)
assert not any("tilewright" in name for name in sys.modules)
"""


def test_a_package_of_its_own_computes_without_tilewright(tmp_path: Path) -> None:
    write(standalone.of_operator(shipped(ROWS)), tmp_path)
    packages = [p for p in sys.path if "site-packages" in p]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {packages!r}\n{CHECK_TORCH}"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["TypeError", "Unserved", "Unserved"]


# -- the command --------------------------------------------------------------------------------------------------


def test_the_command_writes_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = ["--library", str(SHIPPED.library), "--out", str(tmp_path)]
    assert main(["export", "standalone", ROWS, *library]) == 0
    assert (tmp_path / "gemm_fp8_blockwise_quant_1x128_h200" / "main.py").exists()
    for words in (
        ["vllm", ROWS],
        ["standalone"],
        ["standalone", ROWS, "--target", "v6e"],
        ["standalone", "a/b"],
    ):
        assert main(["export", *words, *library]) == 2, words
        assert one_sentence(capsys.readouterr().err.strip())
