"""How the command's process ends."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

TORCH_AT_WORK = """
import time
import torch
from tilewright.evolve import cli
from tilewright.workers.cascade.measured import in_background

torch.set_num_threads(1)
matrix = torch.ones(1200, 1200, dtype=torch.float64)


def forever():
    while True:
        matrix @ matrix


in_background(forever)
time.sleep(0.5)
cli.main = lambda: 2
cli.command()
"""


def test_a_thread_in_torch_does_not_abort_the_process():
    done = subprocess.run([sys.executable, "-c", TORCH_AT_WORK], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "")
