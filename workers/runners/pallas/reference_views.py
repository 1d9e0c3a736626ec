"""Views of references under JAX's interpreter, which by itself reads and writes ranges alone.

A kernel may read and write ``ref.reshape(...)``, ``ref.bitcast(...)`` and ``ref.transpose(...)``, and ranges of these.
What it asks of the memory is then the range before the first such view, and the rest follows on those values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import utils
from jax._src.state import types as state
from jax._src.state.indexing import NDIndexer


def install() -> None:
    """Let the interpreter know views; once is enough."""
    if hasattr(interpreter.get, "knows_views"):
        return
    get, store, swap = (made.__wrapped__ for made in (interpreter.get, interpreter.store, interpreter.swap))

    def got(token: Any, *call: Any, **options: Any) -> Any:
        ranges, views = _divided(call[4])
        token, found = get(token, *call[:4], ranges, *call[5:], **options)
        return token, view_of(found, views)

    def whole(call: tuple[Any, ...], ranges: tuple[Any, ...], options: dict[str, Any]) -> np.ndarray:
        named = {k: v for k, v in options.items() if k != "output_name"}
        return np.asarray(get(None, *call[:4], ranges, **named)[1])

    def stored(token: Any, *call: Any, **options: Any) -> Any:
        ranges, views = _divided(call[4])
        if views:
            changed = put(whole(call, ranges, options), views, np.array(call[5]))
            call = (*call[:4], ranges, changed, *call[6:])
        return store(token, *call, **options)

    def swapped(token: Any, *call: Any, **options: Any) -> Any:
        ranges, views = _divided(call[4])
        if not views:
            return swap(token, *call, **options)
        before, (value, mask) = whole(call, ranges, options), call[5:7]
        seen = view_of(before, views)
        value = np.array(value) if mask is None else np.where(np.array(mask), np.array(value), seen)
        return swap(token, *call[:4], ranges, put(before, views, value), None, **options)[0], seen

    _replace("get", got)
    _replace("store", stored)
    _replace("swap", swapped)


def _replace(name: str, made: Callable[..., Any]) -> None:
    kept = interpreter.fail_on_exception(made)
    kept.knows_views = True
    setattr(interpreter, name, kept)


def _divided(transforms: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The ranges before the first view, and what follows."""
    count = next((n for n, t in enumerate(transforms) if not isinstance(t, NDIndexer)), len(transforms))
    return tuple(transforms[:count]), jax.tree.map(int, tuple(transforms[count:]))


def view_of(array: np.ndarray, views: Sequence[Any]) -> np.ndarray:
    """What views make of an array. Raises IndexError for a range outside of it, NotImplementedError."""
    for view in views:
        if isinstance(view, NDIndexer):
            array = array[_within(array, view)]
        elif isinstance(view, state.ReshapeTransform):
            array = array.reshape(view.shape)
        elif isinstance(view, state.TransposeTransform):
            array = array.transpose(view.permutation)
        elif isinstance(view, state.BitcastTransform):
            array = _bitcast(array, np.dtype(view.dtype))
        else:
            raise NotImplementedError(f"a reference seen through {type(view).__name__}")
    return array


def put(array: np.ndarray, views: Sequence[Any], value: np.ndarray) -> np.ndarray:
    """The array in which ``value`` is what the views show. Raises like ``view_of``."""
    if not views:
        return value
    first, rest = views[0], views[1:]
    if isinstance(first, NDIndexer):
        made, at = array.copy(), _within(array, first)
        made[at] = put(array[at], rest, value)
        return made
    changed = put(view_of(array, [first]), rest, value)
    if isinstance(first, state.TransposeTransform):
        return changed.transpose(np.argsort(first.permutation))
    if isinstance(first, state.BitcastTransform):
        return _bitcast(changed, array.dtype)
    return changed.reshape(array.shape)


def _within(array: np.ndarray, view: Any) -> tuple[Any, ...]:
    at: tuple[Any, ...] = utils.to_range([view])
    if utils.is_range_out_of_bounds_for_shape(at, array.shape):
        raise IndexError(f"out-of-bounds access of a reference's view: [{at}] of shape {array.shape}")
    return at


def _bitcast(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """As a TPU does it: elements that become one lie along the last dimension but one."""
    before, after = array.dtype.itemsize, dtype.itemsize
    *rows, columns = array.shape
    if before < after:
        parts = array.reshape(*rows[:-1], -1, after // before, columns).swapaxes(-1, -2)
        return np.ascontiguousarray(parts).view(dtype)[..., 0]
    made = np.ascontiguousarray(array)[..., None].view(dtype)
    return made.swapaxes(-1, -2).reshape(*rows[:-1], -1, columns) if before > after else made[..., 0]
