"""The GPU that device tests need: they skip without it, and fail when it is there and its station does not start."""

import shutil
import subprocess

import pytest

from tilewright.fitness.targets import Target, load_target
from tilewright.workers.device.station import station_fault
from tilewright.workers.toolchains.triton import missing_parts

HOPPERS = ("h200", "h100")
"""Targets whose devices run what is written for Hopper: the tests need one of them."""


def require_hopper() -> Target:
    """The target of this machine's Hopper GPU.

    A station that does not start on such a GPU is a failure, not a reason to skip: a defect of the child that holds the
    device once made every device test skip.
    """
    names, known = _gpu_names(), [load_target(name) for name in HOPPERS]
    target = next((one for one in known if one.gpu.product in names), None)
    if target is None:
        pytest.skip(f"this machine has no {' or '.join(one.gpu.product for one in known)}")
    if (absent := missing_parts(target.gpu)) is not None:
        pytest.skip(absent)
    assert (fault := station_fault(target.gpu)) is None, fault
    return target


def _gpu_names() -> str:
    """What ``nvidia-smi`` lists; empty where it is missing."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
