"""Puts the emulated language in the place of Triton's, and runs launches with it."""

import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.experimental
import triton.experimental.gluon.language.nvidia.hopper
import triton.experimental.gluon.nvidia.hopper
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.workers.runners.gluon_emulator.global_memory import Descriptor, Global, Pointer
from tilewright.workers.runners.gluon_emulator.language import Language, maximum, minimum
from tilewright.workers.runners.gluon_emulator.machine import Machine
from tilewright.workers.runners.gluon_emulator.values import EmulationError, Tensor, lift

ROOT = "triton.experimental.gluon"

OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "enable_fp_fusion"})


class Jitted:
    """A kernel's function: called by kernels as it is, launched by ``function[grid](...)``."""

    def __init__(self, function: Callable[..., Any], language: Language) -> None:
        self.function, self._language = function, language
        self.__name__ = function.__name__
        function.__globals__.update(min=_smallest, max=_largest, range=_counted)
        self._fixed = {
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if "constexpr" in str(parameter.annotation)
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            given = {k: v for k, v in kwargs.items() if k not in OPTIONS}
            self._language.warps = int(kwargs.get("num_warps", 4))
            if int(kwargs.get("num_ctas", 1)) != 1:
                raise EmulationError("the emulator has no clusters")
            bound = inspect.signature(self.function).bind(*args, **given).arguments
            sizes = grid(bound) if callable(grid) else grid
            with _disable_current_modes():
                self._run(sizes if isinstance(sizes, tuple | list) else (sizes,), bound)

        return launch

    def _run(self, grid: Sequence[Any], bound: Mapping[str, Any]) -> None:
        machine = self._language.machine
        sizes = [*(int(n) for n in grid), 1, 1][:3]
        machine.grid = (sizes[0], sizes[1], sizes[2])
        known: dict[int, Global] = {}
        given = {n: v if n in self._fixed else _argument(v, known) for n, v in bound.items()}
        for place in itertools.product(*(range(n) for n in reversed(sizes))):
            machine.run_program((place[2], place[1], place[0]), lambda: self.function(**given))


def _smallest(*values: Any, **options: Any) -> Any:
    """The builtin ``min``, which in a kernel takes blocks as well."""
    if len(values) == 2 and any(isinstance(v, Tensor) for v in values):
        return minimum(*values)
    return min(*values, **options)


def _largest(*values: Any, **options: Any) -> Any:
    if len(values) == 2 and any(isinstance(v, Tensor) for v in values):
        return maximum(*values)
    return max(*values, **options)


def _counted(*bounds: Any) -> Iterable[Any]:
    """The builtin ``range``, whose numbers are scalars of the kernel where a bound is."""
    numbers = range(*map(int, bounds))
    return map(lift, numbers) if any(isinstance(bound, Tensor) for bound in bounds) else numbers


def _argument(value: Any, known: dict[int, Global]) -> Any:
    """What a kernel sees of what a launch passes."""
    if isinstance(value, torch.Tensor):
        memory = known.setdefault(id(value), Global(value))
        return Pointer(memory, np.asarray(0, dtype=np.int64))
    if type(value).__name__ == "TensorDescriptor":
        return Descriptor(value)
    if isinstance(value, tuple | list):
        return tuple(_argument(v, known) for v in value)
    return lift(value)


def is_gluon(source: str) -> bool:
    """Whether a kernel's source is written in Gluon."""
    return ROOT in source


def install(seed: int = 0) -> None:
    """Emulate Gluon in this process from now on: modules that are imported afterwards find it. ``seed``: the order.

    Calling it twice changes nothing more.
    """
    if getattr(sys.modules.get(ROOT), "emulated", False):
        return
    language = Language(Machine(seed))

    def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return (lambda given: Jitted(given, language)) if function is None else Jitted(function, language)

    emulated = language.modules()
    gluon = types.ModuleType(ROOT)
    gluon.__dict__.update({"jit": jit, "language": emulated[f"{ROOT}.language"], "emulated": True, "__path__": []})
    gluon.nvidia = sys.modules[f"{ROOT}.nvidia"]  # type: ignore[attr-defined]
    for name, module in emulated.items():
        module.__dict__.setdefault("__path__", [])
        sys.modules[name] = module
    sys.modules[ROOT] = gluon
    triton.experimental.gluon = gluon
