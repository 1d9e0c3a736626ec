"""A user's step: loaded from its file, started from one seed, called."""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SEED = 20
LAST_BIT = 2.0**-8


class BadStep(Exception):
    """The step cannot be used: one sentence says why."""


@dataclass
class Program:
    """``step`` with its ``setup``: the step takes what the setup returns, or nothing where there is no setup."""

    name: str
    step: Callable[..., Any]
    setup: Callable[[], Any] | None = None
    state: Any = None
    """What the last setup returned."""

    def started(self, start: int = 0) -> Callable[[], Any]:
        """The step from a fresh start, as a function without arguments. Raises BadStep.

        ``start``: starts other than 0 have another seed, and parameters that differ in the last bit of bfloat16: of a
        setup that seeds itself, too.
        """
        torch.manual_seed(SEED + start)
        if self.setup is None:
            return lambda: self._called(self.step)
        try:
            state = self.state = self.setup()
        except (Exception, SystemExit) as error:
            raise BadStep(f"{self.name}: its setup raises {reason(error)}") from error
        if start:
            self.nudge()
        return lambda: self._called(self.step, state)

    @torch.no_grad()
    def nudge(self) -> None:
        """Change the last bit of bfloat16 of every parameter, up or down or not."""
        for _, p in parameters(self.state):
            p.mul_(1 + LAST_BIT * torch.randint_like(p, -1, 2))

    def _called(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except (Exception, SystemExit) as error:
            raise BadStep(f"{self.name} raises {reason(error)}") from error


def parameters(state: Any, depth: int = 4) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The parameters of the modules that a setup's result leads to."""
    if isinstance(state, torch.nn.Module):
        yield from state.named_parameters()
    elif depth and isinstance(state, list | tuple):
        for part in state:
            yield from parameters(part, depth - 1)
    elif depth and isinstance(state, Mapping):
        yield from parameters(list(state.values()), depth - 1)
    elif depth and not isinstance(state, type | ModuleType):
        held = [c.cell_contents for c in getattr(state, "__closure__", None) or ()]
        held += [getattr(state, name, None) for name in getattr(type(state), "__slots__", ())]
        yield from parameters(held + list(getattr(state, "__dict__", {}).values()), depth - 1)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of floats, sparse ones among their zeros; others as they are."""
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def results(value: Any) -> Iterator[torch.Tensor]:
    """The numbers and tensors of what a step returns, as tensors."""
    if torch.is_tensor(value):
        yield real(value.detach())
    elif isinstance(value, complex | float | int):
        yield real(torch.tensor(value if isinstance(value, complex) else float(value)))
    elif isinstance(value, list | tuple | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from results(part)


def program_of(path: str, step: str, setup: str = "") -> Program:
    """The functions of a file, which is run once. Raises BadStep."""
    file = Path(path)
    sys.path[:0] = [str(Path.cwd()), str(file.parent)]
    found = loaded(file)
    for name in filter(None, (step, setup)):
        if not callable(found.get(name)):
            raise BadStep(f"{file.name} has no function {name}")
        if inspect.isgeneratorfunction(found[name]) or inspect.iscoroutinefunction(found[name]):
            raise BadStep(f"{file.name}:{name} is a generator or a coroutine: to call it runs nothing")
    given, named = ((None,), f"the setup {setup}") if setup else ((), "no setup")
    try:
        with contextlib.suppress(ValueError):  # what has no signature
            inspect.signature(found[step]).bind(*given)
    except TypeError as error:
        why = f"{file.name}:{step} has {named}, and its call then fails: {error}"
        raise BadStep(f"{why}; --setup names the function that makes its one argument") from error
    return Program(f"{file.name}:{step}", found[step], found[setup] if setup else None)


def loaded(file: Path) -> dict[str, Any]:
    """The names of a file, which becomes a module so that its kernels have a place to be replaced at."""
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) != str(file):
        raise BadStep(f"{file.name} has the name of a module that is in use; rename it")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BadStep(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadStep(f"{file.name} raises {reason(error)} when it is loaded") from error
    return vars(module)


def reason(error: BaseException) -> str:
    """An error as one line."""
    line = (str(error).strip().splitlines() or [""])[0][:200]
    kind = "" if isinstance(error, BadStep) else type(error).__name__
    return ": ".join(filter(None, (kind, line)))


def synchronise() -> None:
    """Wait for the device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
