"""Functions that are registered as operations of torch stay functions, so that their launches are seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.library

_REGISTERS = (
    "register_fake",
    "register_kernel",
    "register_autograd",
    "register_vmap",
    "register_torch_dispatch",
)
_WITHOUT_DATA = ("META", "FAKE", "AUTOGRAD")
"""Beginnings of the dispatch keys under which no kernel is launched."""


def register_nothing() -> None:
    """From now on ``torch.library`` registers nothing but torch's own, and ``torch.ops`` has the functions
    themselves."""
    library: Any = torch.library
    library.wrap_triton = _kept
    instead = {"custom_op": _registered, "triton_op": _registered, "define": _nothing, "impl": _implemented}
    instead.update(
        dict.fromkeys(("register_fake", "impl_abstract", "register_autograd", "register_kernel"), _ignored)
    )
    for name, stand_in in instead.items():
        if hasattr(library, name):
            setattr(library, name, _unless_torch(getattr(library, name), stand_in))
    if library.Library is not _Library:
        _Library.torchs = library.Library
        library.Library = _Library


def _unless_torch(original: Any, stand_in: Any) -> Any:
    """``stand_in``, but ``original`` where torch itself registers what it has only now come to need."""

    def either(*given: Any, **named: Any) -> Any:
        return (original if _from_torch() else stand_in)(*given, **named)

    return either


def _from_torch() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0] == "torch"


def _nothing(*_: Any, **__: Any) -> None:
    return


def _kept(function: Any) -> Any:
    return function


def _ignored(*given: Any, **_: Any) -> Any:
    """A registration of something else than the kernel, as a call or as a decorator."""
    return _kept if not any(map(callable, given)) else next(g for g in given if callable(g))


def _place(name: str, function: Any) -> None:
    """``torch.ops.SPACE.NAME`` becomes the function."""
    space, _, operation = name.partition("::")
    operation = operation.partition("(")[0].partition(".")[0]
    if operation and space != "aten":
        setattr(getattr(torch.ops, space), operation, _with_registers(function))


def _with_registers(function: Any) -> Any:
    for name in _REGISTERS:
        setattr(function, name, _ignored)
    function.default = function
    return function


def _registered(name: str, function: Any = None, /, **_: Any) -> Any:
    """Stands in for ``custom_op`` and ``triton_op``."""

    def keep(plain: Any) -> Any:
        plain = _with_registers(plain)
        _place(name, plain)
        return plain

    return keep if function is None else keep(function)


def _implemented(name: Any, types: Any = "", function: Any = None, **_: Any) -> Any:
    """Stands in for ``torch.library.impl``, also of a library as its first argument, and as a decorator."""
    if isinstance(name, _Library):
        library, operation = name, str(types)

        def added(made: Any) -> Any:
            library.impl(operation, made)
            return made

        return added

    def keep(plain: Any) -> Any:
        if not str(types).upper().startswith(_WITHOUT_DATA):
            _place(str(name), plain)
        return plain

    return keep if function is None else keep(function)


class _Library:
    """Stands in for ``torch.library.Library``."""

    torchs: Any = None

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return cls.torchs(*given, **named) if cls.torchs and _from_torch() else super().__new__(cls)

    def __init__(self, ns: str = "", kind: str = "", dispatch_key: str = "") -> None:
        self.ns, self._key = ns, dispatch_key

    def define(self, schema: str, *_: Any, **__: Any) -> str:
        return schema.partition("(")[0]

    def impl(self, name: Any, function: Callable[..., Any], dispatch_key: str = "", **_: Any) -> None:
        key = (dispatch_key or self._key).upper()
        if not key.startswith(_WITHOUT_DATA):
            _place(f"{self.ns}::{str(name).rpartition('::')[2]}", function)

    def _register_fake(self, *_: Any, **__: Any) -> None:
        return

    def _destroy(self) -> None:
        return
