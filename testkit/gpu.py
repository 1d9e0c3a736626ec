"""The GPU that device tests need: they skip without it, and fail when it is there and its station does not start."""

import shutil
import subprocess

import pytest

from tilewright.fitness.gpus import Gpu
from tilewright.fitness.targets import load_target
from tilewright.workers.device.station import station_fault
from tilewright.workers.toolchains.triton import missing_parts


def require_h200() -> Gpu:
    """The device of target ``h200``.

    A station that does not start on an H200 is a failure, not a reason to skip: a defect of the child that holds the
    device once made every device test skip.
    """
    gpu = load_target("h200").gpu
    assert isinstance(gpu, Gpu)
    if (absent := missing_parts(gpu)) is not None:
        pytest.skip(absent)
    if "H200" not in _gpu_names():
        pytest.skip("the GPU of this machine is not an NVIDIA H200")
    assert (fault := station_fault(gpu)) is None, fault
    return gpu


def _gpu_names() -> str:
    """What ``nvidia-smi`` lists; empty where it is missing."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
