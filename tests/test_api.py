"""The Python surface: what importing it costs, and the library; ``test_end_to_end`` reads a campaign by it."""

from __future__ import annotations

import subprocess
import sys

from testkit import ROOT


def test_the_library_here_loads() -> None:
    code = "import tilewright as tw; print(*tw.load_library('library').operators())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "gemm_fp8_blockwise/gemm_nt" in done.stdout.split()


def test_importing_costs_nothing() -> None:
    code = "import sys, tilewright; print(tilewright.__version__, [m for m in sys.modules if 'evolve' in m])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ray" not in done.stdout and "journal" not in done.stdout
