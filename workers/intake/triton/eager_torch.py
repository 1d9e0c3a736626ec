"""Torch without its compiler: what is read in runs eagerly, and importing the compiler takes seconds."""

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

_NAME = "torch._dynamo"


class _Dynamo(types.ModuleType):
    """Stands in for ``torch._dynamo`` where torch wants to be sure that it does not compile a function of its own. The
    real one is imported as soon as anything else of it is asked for."""

    def disable(self, fn: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # which imports of its submodules ask for
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def without_dynamo() -> None:
    """Put the stand-in in place, unless the compiler is there."""
    sys.modules.setdefault(_NAME, _Dynamo(_NAME))
