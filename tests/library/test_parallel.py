"""Modules on two ranks: tensor parallel plans of ``nn.Linear`` and FSDP2, against the same model alone."""

import os
import socket

import pytest

from testkit import ROOT
from testkit.children import answer_of

pytest.importorskip("torch")


@pytest.mark.slow
def test_two_ranks_train_as_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    child = ROOT / "testkit" / "library" / "parallel_children.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "library"), "CUDA_VISIBLE_DEVICES": ""}
    found = answer_of(child, port, environment=environment)
    # FP8's own noise; a part in the wrong place is off by the whole
    assert max(found["tensor parallel"]) < 0.04 and max(found["fsdp"]) < 0.01
