"""Real calls of a module's functions, noted while a program runs."""

from __future__ import annotations

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
class CapturedLaunch:
    """A kernel as it was launched: grid, and arguments by name, tensors by dtype, shape and strides."""

    kernel: str
    grid: tuple[int, ...]
    arguments: dict[str, str]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={said}" for name, said in self.arguments.items())
        return f"{self.kernel}[{', '.join(map(str, self.grid))}]({given})"


@dataclass(frozen=True)
class KeptCall:
    """A call as text, with the values of its tensors as they were before it (see ``kept_values``)."""

    text: str
    values: list[Any]


@dataclass
class CapturedCalls:
    """A function with its distinct calls, as texts, their values, and the launches of each.

    ``seconds``: time of all calls, of the device where there is one, else of the host.
    """

    function: Callable[..., Any]
    calls: list[str] = field(default_factory=list)
    kept: list[KeptCall] = field(default_factory=list)
    seconds: float = 0.0
    backwards: int = 0
    """Backward passes that launched kernels."""

    launches: list[list[CapturedLaunch]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What of a call can not be kept, such as gaps in a tensor."""


class Captured:
    """While entered, calls of the functions of modules that launch a kernel are noted.

    ``modules``: modules with all that is loaded below them. A function is watched under every name it was imported as,
    a ``torch.autograd.Function`` by its ``apply`` and its ``backward``, a method of any other class by itself. Of calls
    within calls a Function's counts, else the outermost function's, else the outermost method's.
    """

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        self._modules = _with_parts(modules)
        self._names = ", ".join(module.__name__ for module in modules)
        self._stack = contextlib.ExitStack()
        self._timing = False
        """Whether Triton's own tuner tries configurations."""
        self._frames: list[_Frame] = []
        self.functions: dict[str, CapturedCalls] = {}

    def sorted(self) -> list[CapturedCalls]:
        """The functions, those that took the most time first. Raises UserError where there is none."""
        if not self.functions:
            raise UserError(f"capture: no function of {self._names} launched a kernel.")
        return sorted(self.functions.values(), key=lambda found: -found.seconds)

    def __enter__(self) -> Captured:
        from tilewright.workers.toolchains.triton import gpu_count

        with contextlib.ExitStack() as stack:
            if not gpu_count():
                from tilewright.workers.runners.triton.live_launch import interpreted

                stack.enter_context(interpreted())
            stack.callback(self._watch_launches())
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

    def _watch_launches(self) -> Callable[[], None]:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        kept: list[tuple[Any, str, Any]] = [
            (kind, "run", kind.run) for kind in (JITFunction, InterpretedFunction)
        ]
        for kind, _, run in kept:

            def noting(kernel: Any, *args: Any, _run: Any = run, **kwargs: Any) -> Any:
                if self._frames and not (self._timing or kwargs.get("warmup")):
                    self._frames[-1].launched.append(_launch(kernel, args, kwargs))
                return _run(kernel, *args, **kwargs)

            kind.run = noting
        kept.append((Autotuner, "_bench", Autotuner._bench))

        def timing(tuner: Any, *args: Any, _bench: Any = Autotuner._bench, **kwargs: Any) -> Any:
            self._timing = True
            try:
                return _bench(tuner, *args, **kwargs)
            finally:
                self._timing = False

        Autotuner._bench = timing

        def restore() -> None:
            for owner, name, value in kept:
                setattr(owner, name, value)

        return restore

    def _watched(self, kind: _Kind, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from tilewright.workers.intake.calls.call_values import call_text
        from tilewright.workers.intake.calls.kept_values import values_of

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            around = [frame.kind for frame in self._frames]
            # a call within one that counts more, or within one of its own kind, is part of that
            counts = all(frame > kind for frame in around) and kind is not _Kind.BACKWARD
            call = KeptCall("", [])
            if counts:
                call = KeptCall(call_text(args, kwargs), values_of(args, kwargs))
            frame = _Frame(kind)
            self._frames.append(frame)
            clock = _Clock()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = clock.seconds()
                self._frames.pop()
                if kind is _Kind.BACKWARD and name in self.functions and frame.launched:
                    self.functions[name].backwards += 1
                    self.functions[name].seconds += seconds
                elif counts and frame.launched:
                    self._keep(name, function, call, frame.launched, seconds, args, kwargs)
                elif self._frames:
                    self._frames[-1].launched += frame.launched

        return watched

    def _keep(
        self, name: str, function: Callable[..., Any], call: KeptCall, launched: list[CapturedLaunch], seconds: float,
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        from tilewright.evolve.intake.winner import gaps_of

        found = self.functions.setdefault(name, CapturedCalls(function))
        found.seconds += seconds
        if call.text in found.calls:
            return
        found.calls.append(call.text)
        found.kept.append(call)
        found.launches.append(launched)
        named = {**{str(n): value for n, value in enumerate(args)}, **kwargs}
        found.notes += [said for key, value in named.items() if (said := gaps_of(key, value))]


class _Kind(enum.IntEnum):
    """What is called, the one first that counts most."""

    BACKWARD = 0
    APPLY = 1
    FUNCTION = 2
    METHOD = 3


@dataclass
class _Frame:
    kind: _Kind
    launched: list[CapturedLaunch] = field(default_factory=list)


class _Clock:
    """Seconds from its making: of the device, where there is one and no graph is being captured, else of the host."""

    def __init__(self) -> None:
        import torch

        self._device = torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()
        if self._device:
            self._begin = torch.cuda.Event(enable_timing=True)
            self._begin.record()
        self._began = time.perf_counter()

    def seconds(self) -> float:
        if not self._device:
            return time.perf_counter() - self._began
        import torch

        end = torch.cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()
        return float(self._begin.elapsed_time(end)) / 1e3


def _with_parts(modules: Sequence[ModuleType]) -> list[ModuleType]:
    """Modules, and what is loaded below them."""
    names = [module.__name__ for module in modules]
    below = [
        module
        for known, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and any(known.startswith(f"{name}.") for name in names)
    ]
    return list(dict.fromkeys([*modules, *below]))


def _launch(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CapturedLaunch:
    names = list(kernel.arg_names)
    named = {**dict(zip(names, args, strict=False)), **{k: v for k, v in kwargs.items() if k in names}}
    grid = kwargs.get("grid", ())
    try:
        grid = grid(named) if callable(grid) else grid
        sizes = tuple(int(n) for n in (grid if isinstance(grid, tuple | list) else (grid,)))
    except Exception:  # noqa: BLE001 - a grid that cannot be asked is the program's own, and it will be
        sizes = ()
    return CapturedLaunch(kernel.fn.__name__, sizes, {k: _said(v) for k, v in named.items()})


def _said(value: Any) -> str:
    if not (hasattr(value, "dtype") and hasattr(value, "stride")):
        return repr(value)
    return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)} strides {list(value.stride())}"
