"""Torch without its compiler and its algebra: what is read in runs eagerly, on plain sizes, and importing them takes
seconds.
"""

import importlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any


class _StandIn(types.ModuleType):
    """A module with a few values, of which torch asks for nothing else on its eager way. The real one is imported as
    soon as anything else of it is asked for."""

    def __init__(self, name: str, asked: str, **values: object) -> None:
        super().__init__(name)
        vars(self).update(values, _asked=asked)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in self._asked:
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def undecorated(fn: object = None, *_: object, **__: object) -> Callable[..., Any]:
    """The function that a decorator of torch's compiler is given, or a decorator that does nothing."""
    return fn if callable(fn) else undecorated


class _Symbol:
    """What no number of a process without symbolic algebra is."""


def without_compiler() -> None:
    """Put stand-ins in place of ``torch._dynamo``, of symbolic sizes, and of the algebra under them, unless they are
    there."""
    plain: dict[str, object] = {
        **dict.fromkeys(("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious"), bool),
        "statically_known_true": bool,
        **dict.fromkeys(("guarding_hint_or_throw", "size_hint"), lambda size: size),
        "is_nested_int": lambda size: False,
        **dict.fromkeys(("has_guarding_hint", "has_hint"), lambda size: True),
        "free_unbacked_symbols": lambda given: set(),
        "sym_eq": operator.eq,
        "sym_and": lambda *given: all(given),
        "sym_or": lambda *given: any(given),
    }
    importlib.import_module("torch.fx.experimental._config")  # which the real ones bring
    names = "disable allow_in_graph assume_constant_result graph_break mark_dynamic mark_static"
    plainly = dict.fromkeys(names.split(), undecorated)
    package = "__path__ __all__"  # imports of its parts ask for them
    every = (
        _StandIn("torch._dynamo", package, substitute_in_graph=lambda *_, **__: undecorated, **plainly),
        _StandIn("sympy", package, Basic=_Symbol),
        _StandIn("torch.fx.experimental.symbolic_shapes", "__all__", **plain),
    )
    for module in every:
        sys.modules.setdefault(module.__name__, module)
