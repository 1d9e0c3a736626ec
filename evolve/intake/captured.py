"""Real calls of a module's functions, noted while a program runs."""

import contextlib
import enum
import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.library.launch_replacement import names_of


@dataclass(frozen=True)
class KeptCall:
    """A call as text, with the values of its tensors as they were before it (see ``kept_values``)."""

    text: str
    values: list[Any]


@dataclass
class CapturedCalls:
    """A function with its distinct calls, as texts with their values.

    ``seconds``: time of all calls.
    """

    function: Callable[..., Any]
    calls: list[str] = field(default_factory=list)
    kept: list[KeptCall] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What of a call can not be kept, such as gaps in a tensor."""


class Captured:
    """While entered, calls of the functions of modules that launch a kernel are noted.

    ``modules``: modules with all that is loaded below them. A function is watched under every name it was imported as,
    a ``torch.autograd.Function`` by its ``apply`` and its ``backward``, a method of any other class by itself. Of calls
    within calls a Function's counts, else the outermost function's, else the outermost method's.
    """

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        names = tuple(f"{module.__name__}." for module in modules)
        below = [module for known, module in list(sys.modules.items()) if known.startswith(names)]
        self._modules = list(dict.fromkeys([*modules, *(m for m in below if isinstance(m, ModuleType))]))
        self._names = ", ".join(module.__name__ for module in modules)
        self._stack = contextlib.ExitStack()
        self._frames: list[_Frame] = []
        self.functions: dict[str, CapturedCalls] = {}

    def sorted(self) -> list[CapturedCalls]:
        """The functions, those that took the most time first. Raises UserError where there is none."""
        if not self.functions:
            raise UserError(f"capture: no function of {self._names} launched a kernel.")
        return sorted(self.functions.values(), key=lambda found: -found.seconds)

    def __enter__(self) -> "Captured":
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        from tilewright.workers.toolchains.triton import gpu_count

        with contextlib.ExitStack() as stack:
            if not gpu_count():
                from tilewright.workers.runners.triton.live_launch import interpreted

                stack.enter_context(interpreted())
            for kernels in (JITFunction, InterpretedFunction):
                self._replace(stack, kernels, "run", self._noting(kernels.run))
            for module in self._modules:
                for name, value in list(vars(module).items()):
                    if inspect.isfunction(value) and value.__module__ == module.__name__:
                        watched = self._watched(_Kind.FUNCTION, name, value)
                        for owner, known in list(names_of(value)):
                            self._replace(stack, owner, known, watched)
                    elif inspect.isclass(value) and value.__module__ == module.__name__:
                        self._watch_class(stack, name, value)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _replace(self, stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
        own = name in vars(owner)
        before = vars(owner).get(name)
        setattr(owner, name, value)
        stack.callback(setattr, owner, name, before) if own else stack.callback(delattr, owner, name)

    def _watch_class(self, stack: contextlib.ExitStack, name: str, owner: type) -> None:
        if hasattr(owner, "forward") and hasattr(owner, "apply") and hasattr(owner, "backward"):
            apply = self._watched(_Kind.APPLY, f"{name}.apply", owner.apply)
            self._replace(stack, owner, "apply", staticmethod(apply))
            back = self._watched(_Kind.BACKWARD, f"{name}.apply", owner.backward)
            self._replace(stack, owner, "backward", staticmethod(back))
            return
        for method, value in list(vars(owner).items()):
            if inspect.isfunction(value) and (not method.startswith("_") or method == "__call__"):
                self._replace(stack, owner, method, self._watched(_Kind.METHOD, f"{name}.{method}", value))

    def _noting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def noting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if self._frames and not kwargs.get("warmup"):
                self._frames[-1].launched = True
            return run(kernel, *args, **kwargs)

        return noting

    def _watched(self, kind: "_Kind", name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from tilewright.workers.intake.calls.call_values import call_text
        from tilewright.workers.intake.calls.kept_values import values_of

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            around = [frame.kind for frame in self._frames]
            # a call within one that counts more, or within one of its own kind, is part of that
            counts = all(frame > kind for frame in around) and kind is not _Kind.BACKWARD
            call = KeptCall(call_text(args, kwargs), values_of(args, kwargs)) if counts else KeptCall("", [])
            frame = _Frame(kind)
            self._frames.append(frame)
            began = _now()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = _now() - began
                self._frames.pop()
                if kind is _Kind.BACKWARD and name in self.functions and frame.launched:
                    self.functions[name].seconds += seconds
                elif counts and frame.launched:
                    self._keep(name, function, call, seconds, args, kwargs)
                elif self._frames:
                    self._frames[-1].launched |= frame.launched

        return watched

    def _keep(
        self,
        name: str,
        function: Callable[..., Any],
        call: KeptCall,
        seconds: float,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        from tilewright.evolve.intake.winner import gaps_of

        found = self.functions.setdefault(name, CapturedCalls(function))
        found.seconds += seconds
        if call.text in found.calls:
            return
        found.calls.append(call.text)
        found.kept.append(call)
        named = {**{str(n): value for n, value in enumerate(args)}, **kwargs}
        found.notes += [note for key, value in named.items() if (note := gaps_of(key, value))]


class _Kind(enum.IntEnum):
    """What is called, the one first that counts most."""

    BACKWARD = 0
    APPLY = 1
    FUNCTION = 2
    METHOD = 3


@dataclass
class _Frame:
    kind: _Kind
    launched: bool = False


def _now() -> float:
    """Seconds, once a device has done what it was given, unless a graph is being captured."""
    import torch

    if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return time.perf_counter()
