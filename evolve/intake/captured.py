"""Real calls of a module's functions, noted while a program runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

from tilewright.evolve.errors import UserError


@dataclass
class CapturedCalls:
    """A function with its distinct calls, as texts."""

    function: Callable[..., Any]
    calls: list[str] = field(default_factory=list)


class Captured:
    """While entered, calls of the module's functions that launch a kernel are noted; the outermost one counts."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._before: dict[str, Any] = {}
        self._depth = 0
        self._launched = False
        self._restore: Callable[[], None] = lambda: None
        self.functions: dict[str, CapturedCalls] = {}

    def first(self) -> CapturedCalls:
        """The function that was called in most ways. Raises UserError."""
        if not self.functions:
            raise UserError(f"capture: no function of {self._module.__name__} launched a kernel.")
        return max(self.functions.values(), key=lambda found: len(found.calls))

    def __enter__(self) -> Captured:
        self._restore = self._watch_launches()
        for name, value in list(vars(self._module).items()):
            if inspect.isfunction(value) and value.__module__ == self._module.__name__:
                self._before[name] = value
                setattr(self._module, name, self._watched(name, value))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            setattr(self._module, name, value)
        self._restore()

    def _watch_launches(self) -> Callable[[], None]:
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        kept = [(kind, kind.run) for kind in (JITFunction, InterpretedFunction)]
        for kind, run in kept:

            def noting(kernel: Any, *args: Any, _run: Any = run, **kwargs: Any) -> Any:
                self._launched = True
                return _run(kernel, *args, **kwargs)

            kind.run = noting

        def restore() -> None:
            for kind, run in kept:
                kind.run = run

        return restore

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from tilewright.evolve.intake.winner import call_text

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            outermost, self._depth = self._depth == 0, self._depth + 1
            if outermost:
                self._launched = False
            text = call_text(args, kwargs) if outermost else ""
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if outermost and self._launched:
                    found = self.functions.setdefault(name, CapturedCalls(function))
                    if text not in found.calls:
                        found.calls.append(text)

        return watched
