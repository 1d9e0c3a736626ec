"""Launches of a program on a machine without a GPU, each in Triton's interpreter, which must not be chosen before.

The interpreter computes as ``interpreter_rounding`` says, takes floats as a kernel does, and runs what stands for
functions of the device's library.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import triton
import triton.language as tl
from triton.runtime import autotuner, interpreter, jit

from tilewright.workers.runners.triton.interpreter_rounding import repair
from tilewright.workers.runners.triton.libdevice import SAME, WRITTEN


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """While it is entered, kernels run in the interpreter: compiled ones, and what they call."""
    repair()
    old = _library_functions()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        if warmup:
            return
        function = interpreter.InterpretedFunction(kernel.fn)
        _with_library(kernel.fn, old)
        interpreter.GridExecutor(function.rewrite(), kernel.arg_names, grid, [])(*args, **options)

    def call(kernel: Any, *args: Any, **options: Any) -> Any:
        _with_library(kernel.fn, old)
        return interpreter.InterpretedFunction(kernel.fn)(*args, **options)

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (jit.JITFunction, "run", run),
            (jit.JITFunction, "__call__", call),
            (interpreter.InterpretedFunction, "run", run),
            (autotuner.Autotuner, "_bench", lambda *_, **__: [1.0] * 3),  # no clock: the first configuration
            (autotuner.Autotuner, "check_disk_cache", lambda *given: given[-1]()),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(mock.patch.object(triton.knobs.runtime, "interpret", True))
        yield


def _library_functions() -> dict[str, Any]:
    """By name, what the language has in place of a function of the device's library."""
    found = {name: _late(text.removeprefix("tl.")) for name, text in SAME.items()}
    for name, text in WRITTEN.items():
        made: dict[str, Any] = {"tl": tl}
        exec(text, made)
        found[name] = next(v for v in made.values() if isinstance(v, types.FunctionType))
    return found


def _late(name: str) -> Any:
    """A function of the language as it is at a launch, when the interpreter has put its own there."""
    return lambda *args: getattr(tl, name)(*args)


def _with_library(function: Any, known: dict[str, Any]) -> None:
    """Give a kernel's module functions of the device's library that the interpreter can call."""
    for name, value in list(function.__globals__.items()):
        if _of_library(getattr(value, "__module__", "")) and getattr(value, "__name__", "") in known:
            function.__globals__[name] = known[value.__name__]
        elif isinstance(value, types.ModuleType) and _of_library(value.__name__):
            function.__globals__[name] = types.SimpleNamespace(**{**vars(value), **known})


def _of_library(name: object) -> bool:
    return isinstance(name, str) and name.startswith("triton.language.extra") and name.endswith("libdevice")
