"""Functions that are registered as operations of torch stay functions, so that their launches are seen."""

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.library

_BESIDE = ("register_fake", "register_kernel", "register_autograd", "register_vmap", "register_torch_dispatch")
"""What registers something else than the kernel."""

_WITHOUT_DATA = ("META", "FAKE", "AUTOGRAD")
"""Beginnings of the dispatch keys under which no kernel is launched."""


def register_nothing() -> None:
    """From now on ``torch.library`` registers nothing but torch's own, and ``torch.ops`` has the functions
    themselves."""
    library: Any = torch.library
    if library.Library is _Library:
        return  # what stands in for another stand-in sees that it was called from here, not from torch
    instead = {
        "custom_op": _registered,
        "triton_op": _registered,
        "define": _ignored,
        "impl": _implemented,
        "wrap_triton": lambda kernel: kernel,
        **dict.fromkeys(("impl_abstract", *_BESIDE), _ignored),
    }
    for name, stand_in in instead.items():
        if hasattr(library, name):
            setattr(library, name, _unless_torch(getattr(library, name), stand_in))
    _Library.torchs = library.Library
    library.Library = _Library
    decompositions: Any = torch._decomp
    add = decompositions._add_op_to_registry
    decompositions._add_op_to_registry = lambda table, operation, *how: (
        None if isinstance(operation, FunctionType) else add(table, operation, *how)
    )


def _unless_torch(original: Any, stand_in: Any) -> Any:
    """``stand_in``, but ``original`` where torch itself registers what it has only now come to need."""
    return lambda *given, **named: (original if _from_torch() else stand_in)(*given, **named)


def _from_torch() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0] == "torch"


def _ignored(*given: Any, **_: Any) -> Any:
    """A registration of something else than the kernel, as a call or as a decorator."""
    return next((g for g in given if callable(g)), lambda function: function)


def _placed(name: str, function: Any) -> Any:
    """``torch.ops.SPACE.NAME`` becomes the function."""
    space, _, operation = name.partition("::")
    operation = operation.partition("(")[0].partition(".")[0]
    if operation and space != "aten":
        for register in _BESIDE:
            setattr(function, register, _ignored)
        function.default = function
        setattr(getattr(torch.ops, space), operation, function)
    return function


def _registered(name: str, function: Any = None, /, **_: Any) -> Any:
    """Stands in for ``custom_op`` and ``triton_op``."""
    return _placed(name, function) if function is not None else lambda plain: _placed(name, plain)


def _implemented(name: Any, kind: Any = "", function: Any = None, **_: Any) -> Any:
    """Stands in for ``torch.library.impl``, also of a library as its first argument, and as a decorator."""
    if isinstance(name, _Library):
        name, kind = f"{name.ns}::{kind}", function if isinstance(function, str) and function else name.kind

    def placed(plain: Any) -> Any:
        return plain if str(kind).upper().startswith(_WITHOUT_DATA) else _placed(str(name), plain)

    return placed if function is None or isinstance(function, str) else placed(function)


class _Library:
    """Stands in for ``torch.library.Library``."""

    torchs: Any = None

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return cls.torchs(*given, **named) if cls.torchs and _from_torch() else super().__new__(cls)

    def __init__(self, ns: str = "", kind: str = "", dispatch_key: str = "") -> None:
        self.ns, self.kind = ns, dispatch_key

    def define(self, schema: str, *_: Any, **__: Any) -> str:
        return schema.partition("(")[0]

    def impl(self, name: Any, function: Callable[..., Any], dispatch_key: str = "", **_: Any) -> None:
        operation = f"{self.ns}::{str(name).rpartition('::')[2]}"
        _implemented(operation, dispatch_key or self.kind, function)

    _register_fake = _destroy = _ignored
