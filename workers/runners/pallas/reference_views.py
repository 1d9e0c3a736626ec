"""Views of references under JAX's interpreter, which by itself reads and writes ranges alone.

A kernel may read and write ``ref.reshape(...)``, ``ref.bitcast(...)`` and ``ref.transpose(...)``, and ranges of these.
What it asks of the memory is then the range before the first such view, and the rest follows on those values.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import utils
from jax._src.state import types as state
from jax._src.state.indexing import NDIndexer

_GET, _STORE, _SWAP = interpreter.get.__wrapped__, interpreter.store.__wrapped__, interpreter.swap.__wrapped__
Place = tuple[Any, ...]
"""Device, core, memory and buffer."""


def install() -> None:
    """Let the interpreter know views."""
    for name, made in (("get", _get), ("store", _store), ("swap", _swap)):
        setattr(interpreter, name, interpreter.fail_on_exception(made))


def _get(token: Any, *call: Any, **options: Any) -> Any:
    ranges, views = _divided(call[4])
    token, found = _GET(token, *call[:4], ranges, *call[5:], **options)
    return token, view_of(found, views)


def _store(token: Any, *call: Any, **options: Any) -> Any:
    ranges, views = _divided(call[4])
    value = call[5]
    if views:
        before = _GET(None, *call[:4], ranges, **{k: v for k, v in options.items() if k != "output_name"})[1]
        value = put(before, views, np.array(value))
    return _STORE(token, *call[:4], ranges, value, *call[6:], **options)


def _swap(token: Any, *call: Any, **options: Any) -> Any:
    ranges, views = _divided(call[4])
    if not views:
        return _SWAP(token, *call, **options)
    before, value, mask = _GET(None, *call[:4], ranges, **options)[1], np.array(call[5]), call[6]
    seen = view_of(before, views)
    changed = put(before, views, value if mask is None else np.where(np.array(mask), value, seen))
    return _SWAP(token, *call[:4], ranges, changed, None, **options)[0], seen


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
    changed = put(view_of(array, [first]), rest, value)
    if isinstance(first, NDIndexer):
        made = array.copy()
        made[_within(array, first)] = changed
        return made
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
