"""One call of a Pallas function, observed: which lines run, and what its names hold that is no array.

A wrapper decides in Python what to launch: by flags, by what is None, by objects that hold block sizes. What
was decided is known once it has run on shapes, and its text can be cut down to that.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

_PLAIN = (type(None), bool, int, float, str)


@dataclass
class Observed:
    """``lines``: how often each was executed, by file. ``given``: by (file, first line) of a function, what its
    parameters held in every call. ``held``: the same for its local names at its end."""

    lines: dict[str, Counter[int]] = field(default_factory=dict)
    given: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    held: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    samples: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """By function: an object of a class of the user's own for each name that held one; none where classes differ."""
    returned: dict[tuple[str, int], Any] = field(default_factory=dict)
    """By function: what every call of it returned, where that is known before any array is."""
    frozen: set[tuple[str, int]] = field(default_factory=set)
    """Functions whose calls are what they returned: what they do cannot be said."""
    owners: dict[str, Any] = field(default_factory=dict)
    """By name of a field that became a knob: the object it is of."""
    root: str = ""
    """The folder of the user's file."""
    methods: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Methods that became functions, by the names they are called with in texts that were cut down."""

    def own(self, kind: Any) -> bool:
        """Whether a class is defined in a file of the user's, or in one of JAX's own kernels."""
        if not isinstance(kind, type) or issubclass(kind, enum.Enum | BaseException):
            return False
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        return file.startswith(self.root) or "/pallas/ops/" in file

    def ran(self, file: str, first: int, last: int) -> bool:
        """Whether any line of a range ran."""
        known = self.lines.get(file, Counter())
        return any(line in known for line in range(first, last + 1))


class Unknown:
    """What differs between calls, or is an array."""


UNKNOWN = Unknown()


def static(value: Any) -> bool:
    """Whether a value is known before any array is."""
    if isinstance(value, tuple | list):
        return all(map(static, value))
    return isinstance(value, (*_PLAIN, np.dtype, types.FunctionType, type)) or opaque(value)


def opaque(value: Any) -> bool:
    """Whether it is an object that only holds plain values, such as a dataclass of block sizes."""
    if isinstance(value, type | jax.Array):
        return False
    if dataclasses.is_dataclass(value):
        own = type(value).__module__.partition(".")[0] not in ("jax", "jaxlib")
        return own or type(value).__name__ in ("CostEstimate", "TpuInfo")
    return isinstance(value, tuple) and hasattr(value, "_fields") and static(tuple(value))


def observe(call: Callable[[], Any], root: Path, device: str) -> Observed:
    """Run ``call`` and watch the functions of files below ``root`` and of JAX's own kernels. Raises what it raises."""
    seen = Observed(root=str(root))
    top, returned = seen.root, dict[str, Any]()

    def enter(frame: types.FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not (file.startswith(top) or "/pallas/ops/" in file):
            return None
        key = (file, frame.f_code.co_firstlineno)
        count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
        count += bool(frame.f_code.co_flags & 4) + bool(frame.f_code.co_flags & 8)
        names = frame.f_code.co_varnames[:count]
        _keep(seen.given.setdefault(key, {}), {n: frame.f_locals[n] for n in names if n in frame.f_locals})
        lines = seen.lines.setdefault(file, Counter())
        _sampled(seen, key, frame.f_locals)

        def local(inner: types.FrameType, event: str, result: Any) -> Any:
            if event == "line":
                lines[inner.f_lineno] += 1
            elif event == "return":
                _keep(returned, {str(key): result})
                _keep(seen.held.setdefault(key, {}), inner.f_locals)
                _sampled(seen, key, inner.f_locals)
            return local

        return local

    kinds = [types.SimpleNamespace(device_kind=device, platform="tpu", num_cores=1, id=0)]
    before = sys.gettrace()
    with mock.patch.object(jax, "devices", return_value=kinds):
        sys.settrace(enter)
        try:
            call()
        finally:
            sys.settrace(before)
    seen.returned = {key: returned.get(str(key), UNKNOWN) for key in seen.given}
    return seen


def _sampled(seen: Observed, key: tuple[str, int], now: Mapping[str, Any]) -> None:
    known = seen.samples.setdefault(key, {})
    for name, value in now.items():
        if seen.own(type(value)) and value is not known.get(name):
            known[name] = value if name not in known or type(known[name]) is type(value) else UNKNOWN


def _keep(known: dict[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        kept = value if static(value) else dict.fromkeys(value, UNKNOWN) if _named(value) else UNKNOWN
        if name not in known:
            known[name] = kept
        elif not _same(known[name], kept):
            known[name] = UNKNOWN


def _named(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other)
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - what cannot be compared differs
        return one is other


def traced(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[[], Any]:
    """A call of ``function`` on shapes: arrays of the arguments are ShapeDtypeStructs."""
    flat, tree = jax.tree_util.tree_flatten((list(arguments), dict(keywords)))
    places = [n for n, leaf in enumerate(flat) if isinstance(leaf, jax.ShapeDtypeStruct)]

    def with_arrays(*arrays: Any) -> Any:
        leaves = list(flat)
        for place, array in zip(places, arrays, strict=True):
            leaves[place] = array
        given, named = jax.tree_util.tree_unflatten(tree, leaves)
        return function(*given, **named)

    return lambda: jax.make_jaxpr(with_arrays)(*(flat[n] for n in places))
