"""A tuned kernel in CUDA C++, called from torch: a plan of its ``launch`` for each shape and device.

What ``tune`` writes for a winner calls this; a promoted kernel comes from a library's tables instead.
"""

from collections.abc import Mapping
from typing import Any

import torch

from .cuda_record import record
from .plans.format import ALIGNMENT, Tensor
from .plans.replay import Codes, Ready
from .torch_launch import Tensors, runner

COMPILED_FOR = 90
"""Compute capability that a call without a GPU is compiled for, to say at least whether it compiles."""


class NoDevice(RuntimeError):
    """The operands lie on no NVIDIA GPU. The kernel was compiled for them."""


def called(module: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """The results for contiguous operands. ``module``: ``CUDA``, ``launch``, ``PARAMS``, ``RESULTS`` (by the shapes of
    the operands: name, dtype and shape of each result) and ``PLANS``, where plans are kept. Raises KeyError for other
    shapes, NoDevice, and what making a plan raises."""
    kept = module["PLANS"]
    given = [t.clone() if t.data_ptr() % ALIGNMENT else t for t in inputs.values()]
    shapes, device = tuple(tuple(t.shape) for t in given), given[0].device
    if (shapes, device) not in kept:
        on_gpu = device.type == "cuda"
        major, minor = torch.cuda.get_device_capability(device) if on_gpu else divmod(COMPILED_FOR, 10)
        operands = [Tensor(n, str(t.dtype)[6:], tuple(t.shape)) for n, t in inputs.items()]
        results = [Tensor(*row) for row in module["RESULTS"][shapes]]
        plan = record(module, module["PARAMS"], operands, results, 10 * major + minor)
        if not on_gpu:
            raise NoDevice(f"CUDA C++ runs on an NVIDIA GPU, and the operands are on {device.type}")
        kept[shapes, device] = runner(Ready(plan, device.index or 0, Codes(device.index or 0)), device)
    with torch.cuda.device(device):
        return tuple(kept[shapes, device](given))
