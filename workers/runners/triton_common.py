"""Parts that the Triton runners share: a candidate as a module, arrays as torch tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tilewright.workers.child.frames import Frame, dtype_named
from tilewright.workers.runners import bare_module

Answer = Callable[[Frame], None]

_RAW = {
    1: (np.uint8, torch.uint8),
    2: (np.int16, torch.int16),
    4: (np.int32, torch.int32),
    8: (np.int64, torch.int64),
}
"""Integers of the same width, by bytes: numpy and torch share no 8-bit or 16-bit float types."""

_numbers = itertools.count()


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that numpy or ml_dtypes calls ``name``. Raises TypeError for one torch lacks."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype {name}")
    return found


def bits_of(tensor: torch.Tensor) -> torch.dtype:
    """The integer dtype of the same width."""
    return _RAW[tensor.element_size()][1]


def load_module(source: str) -> ModuleType:
    """The candidate's module, from a real file in the working directory: Triton reads a kernel's source again."""
    number = next(_numbers)
    path = Path(f"candidate{number}.py").absolute()
    path.write_text(source, encoding="utf-8")
    return bare_module.execute(source, f"candidate{number}", str(path))


def to_torch(array: np.ndarray, device: str) -> torch.Tensor:
    """The same bits on ``device``, in memory of its own."""
    raw, bits = _RAW[array.dtype.itemsize]
    plain = torch.from_numpy(np.ascontiguousarray(array).view(raw).copy())
    return plain.to(device).view(bits).view(torch_dtype(array.dtype.name))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bits as an array of the dtype of that name."""
    name = str(tensor.dtype).removeprefix("torch.")
    raw, bits = _RAW[tensor.element_size()]
    plain = tensor.detach().cpu().contiguous().view(bits).numpy().view(raw)
    return plain.view(dtype_named(name))


def checked_results(results: Any, wanted: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """What ``launch`` returned, by name. Raises TypeError unless it is exactly the tensors that are wanted."""
    if not isinstance(results, tuple | list) or len(results) != len(wanted):
        raise TypeError(
            f"launch returns {type(results).__name__} instead of a tuple of {len(wanted)} tensors"
        )
    for result, spec in zip(results, wanted, strict=True):
        if type(result) is not torch.Tensor or not result.is_contiguous():
            raise TypeError(f"output {spec['name']} is no plain contiguous tensor")
        shape, dtype = list(result.shape), str(result.dtype).removeprefix("torch.")
        if shape != spec["shape"] or dtype != spec["dtype"]:
            expected = f"{spec['dtype']}{spec['shape']}"
            raise TypeError(f"output {spec['name']} is {dtype}{shape} instead of {expected}")
    return {spec["name"]: result for result, spec in zip(results, wanted, strict=True)}
