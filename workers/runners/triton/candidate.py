"""Parts that the runners of Triton sources share: a candidate as a module, and the look at what its launch returns."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners import bare_module

Answer = Callable[[Frame], None]

_numbers = itertools.count()


def load_module(source: str) -> ModuleType:
    """The candidate's module, from a real file in the working directory: Triton reads a kernel's source again."""
    number = next(_numbers)
    path = Path(f"candidate{number}.py").absolute()
    path.write_text(source, encoding="utf-8")
    return bare_module.execute(source, f"candidate{number}", str(path))


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
