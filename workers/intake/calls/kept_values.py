"""The caller's own values: tensors of recorded calls in one file, by shape and operand.

A child that reads a function in is given a file by number of call and tensor, in the order of the call's text; the
operator's folder holds the same by shape and operand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.workers.intake.calls.call_text import GIVEN
from tilewright.workers.intake.calls.call_values import contents, order_of
from tilewright.workers.intake.calls.dtypes import is_float, numpy_dtype

if TYPE_CHECKING:
    from tilewright.workers.intake.operator import Operand

FILE = "values.npz"
MOST_BYTES = 64 << 20
"""Most that the values of one call take; larger ones are drawn."""

Call = Sequence[np.ndarray]


def values_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[np.ndarray]:
    """A call's tensors as they lie in memory, in the order of its text; none where they are larger than MOST_BYTES."""
    tensors = [t for value in (*arguments, *keywords.values()) for t in _tensors(value)]
    size = sum(int(np.prod(t.shape)) * numpy_dtype(str(t.dtype).rpartition(".")[2]).itemsize for t in tensors)
    return [_array(tensor) for tensor in tensors] if size <= MOST_BYTES else []


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        yield value
        return
    for _, part in contents(value):
        yield from _tensors(part)


def _array(tensor: Any) -> np.ndarray:
    if not hasattr(tensor, "is_contiguous"):
        return np.array(tensor)
    import torch

    plain = tensor.detach().permute(order_of(tensor)).contiguous().cpu()
    name = str(plain.dtype).rpartition(".")[2]
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    flat = plain.reshape(-1).view(width).numpy().copy()
    return flat.view(numpy_dtype(name)).reshape(tuple(plain.shape))


def write(path: Path, calls: Sequence[Call]) -> None:
    """The values of calls, by number. Raises OSError."""
    _save(path, {f"{n}/{place}": array for n, call in enumerate(calls) for place, array in enumerate(call)})


def with_values(path: str, folder: Path, labels: Sequence[str], operands: Sequence[Operand]) -> list[Operand]:
    """Operands with the caller's own values where there are any, by the labels of the calls' shapes."""
    to = folder / FILE
    if not path or not write_renamed(Path(path), to, labels, [operand.name for operand in operands]):
        return list(operands)
    return [replace(operand, values=str(to)) for operand in operands]


def ways_to_draw(operands: Sequence[Operand]) -> list[list[Operand]]:
    """Ways to make operands: all of them drawn; with the caller's own integers; with the caller's own values."""
    if not any(operand.values for operand in operands):
        return [list(operands)]
    plain = [o.dtype != "bool" and not is_float(o.dtype) for o in operands]
    return [
        [replace(o, form=GIVEN) if o.values and kept else o for o, kept in zip(operands, which, strict=True)]
        for which in ([False] * len(plain), plain, [True] * len(plain))
    ]


def write_renamed(path: Path, to: Path, labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Write the same by the labels of the calls' shapes and the operands' names; those labels. Raises OSError."""
    with np.load(path) as file:
        arrays = {
            f"{label}/{name}": file[f"{n}/{place}"]
            for n, label in enumerate(labels)
            for place, name in enumerate(names)
            if f"{n}/{place}" in file
        }
    _save(to, arrays)
    return list(dict.fromkeys(key.partition("/")[0] for key in arrays))


def kept_value(path: str, label: str, name: str, dtype: str, shape: Sequence[int]) -> np.ndarray | None:
    """The caller's value of an operand at a shape; None where there is none."""
    raw = _arrays_of(path).get(f"{label}/{name}")
    return None if raw is None else raw.view(numpy_dtype(dtype)).reshape(tuple(shape)).copy()


@functools.lru_cache(maxsize=4)
def _arrays_of(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Bytes alone: a file of arrays knows no 8-bit and 16-bit floats of ours."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        raw: dict[str, Any] = {k: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for k, a in arrays.items()}
        np.savez(file, **raw)
    part.replace(path)
