"""Real calls of a module's functions, noted while a program runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
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


@dataclass
class CapturedCalls:
    """A function with its distinct calls, as texts, and the launches of each."""

    function: Callable[..., Any]
    calls: list[str] = field(default_factory=list)
    launches: list[list[CapturedLaunch]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What of a call can not be kept, such as gaps in a tensor."""


class Captured:
    """While entered, calls of the module's functions that launch a kernel are noted; the outermost one counts.

    A function is watched under every name it was imported as, and a ``torch.autograd.Function`` by its ``apply``.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._undo: list[Callable[[], None]] = []
        self._depth = 0
        self._timing = False
        """Whether Triton's own tuner tries configurations."""
        self._launched: list[CapturedLaunch] = []
        self.functions: dict[str, CapturedCalls] = {}

    def first(self) -> CapturedCalls:
        """The function that was called in most ways. Raises UserError."""
        if not self.functions:
            raise UserError(f"capture: no function of {self._module.__name__} launched a kernel.")
        return max(self.functions.values(), key=lambda found: len(found.calls))

    def __enter__(self) -> Captured:
        self._undo = [self._watch_launches()]
        for name, value in list(vars(self._module).items()):
            if getattr(value, "__module__", None) != self._module.__name__:
                continue
            if inspect.isfunction(value):
                watched = self._watched(name, value)
                for owner, known in list(names_of(value)):
                    setattr(owner, known, watched)
                    self._undo.append(functools.partial(setattr, owner, known, value))
            elif inspect.isclass(value) and hasattr(value, "forward") and hasattr(value, "apply"):
                setattr(value, "apply", staticmethod(self._watched(f"{name}.apply", value.apply)))  # noqa: B010
                self._undo.append(functools.partial(delattr, value, "apply"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def _watch_launches(self) -> Callable[[], None]:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        kept: list[tuple[Any, str, Any]] = [
            (kind, "run", kind.run) for kind in (JITFunction, InterpretedFunction)
        ]
        for kind, _, run in kept:

            def noting(kernel: Any, *args: Any, _run: Any = run, **kwargs: Any) -> Any:
                if self._depth and not (self._timing or kwargs.get("warmup")):
                    self._launched.append(_launch(kernel, args, kwargs))
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

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from tilewright.workers.intake.calls.call_values import call_text

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            outermost, self._depth = self._depth == 0, self._depth + 1
            if not outermost:
                try:
                    return function(*args, **kwargs)
                finally:
                    self._depth -= 1
            self._launched, text = [], call_text(args, kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._launched:
                    self._keep(name, function, text, args, kwargs)

        return watched

    def _keep(
        self,
        name: str,
        function: Callable[..., Any],
        text: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        from tilewright.evolve.intake.winner import gaps_of

        found = self.functions.setdefault(name, CapturedCalls(function))
        if text in found.calls:
            return
        found.calls.append(text)
        found.launches.append(self._launched)
        named = {**{str(n): value for n, value in enumerate(args)}, **kwargs}
        found.notes += [said for key, value in named.items() if (said := gaps_of(key, value))]


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
