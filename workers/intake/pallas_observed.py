"""One call of a Pallas function, observed: which lines run, and what its names hold that is no array.

A wrapper decides in Python what to launch: by flags, by what is None, by objects that hold block sizes. What
was decided is known once it has run on shapes, and its text can be cut down to that.
"""

from __future__ import annotations

import dataclasses
import sys
import types
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
    """``lines``: executed, by file. ``given``: by (file, first line) of a function, what its parameters held in every
    call. ``held``: the same for its local names at its end."""

    lines: dict[str, set[int]] = field(default_factory=dict)
    given: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    held: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def ran(self, file: str, first: int, last: int) -> bool:
        """Whether any line of a range ran."""
        known = self.lines.get(file, set())
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
    seen = Observed()
    top = str(root)

    def enter(frame: types.FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not (file.startswith(top) or "/pallas/ops/" in file):
            return None
        key = (file, frame.f_code.co_firstlineno)
        count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
        count += bool(frame.f_code.co_flags & 4) + bool(frame.f_code.co_flags & 8)
        names = frame.f_code.co_varnames[:count]
        _keep(seen.given.setdefault(key, {}), {n: frame.f_locals[n] for n in names if n in frame.f_locals})
        lines = seen.lines.setdefault(file, set())

        def local(inner: types.FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines.add(inner.f_lineno)
            elif event == "return":
                _keep(seen.held.setdefault(key, {}), inner.f_locals)
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
    return seen


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
