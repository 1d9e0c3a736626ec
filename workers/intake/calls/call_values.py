"""A call's values as the text that ``arguments.parse`` reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.workers.intake.calls.call_text import DISTINCT, OFFSETS, Literal

FEWEST, MOST_LOOKED = 2, 1 << 16
"""Integers of a tensor that are looked at one by one."""

UNLIKELY = 6
"""Numbers drawn below another all differ with probability e^-3 where their squared count is so many times that one."""

_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


def call_text(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """A call's values as ``--args`` has them: dtypes, shapes, and integers' bound."""
    said = [value_text(a) for a in arguments]
    return ", ".join([*said, *(f"{k}={value_text(v)}" for k, v in keywords.items())])


def text_of(call: Any) -> str:
    """A call's text: of a tuple of arguments, the last of which may be a dictionary of keywords; of one argument; of a
    dictionary of keywords; a text stays as it is."""
    if isinstance(call, str):
        return call
    if isinstance(call, Mapping):
        return call_text((), call)
    if not isinstance(call, tuple | list):
        call = (call,)
    keywords = call[-1] if call and isinstance(call[-1], dict) else {}
    return call_text(call[: len(call) - 1] if keywords else call, keywords)


def _order(tensor: Any) -> list[int]:
    """Its dimensions in the order in which they lie in memory; as they are where it is no plain permutation."""
    plain = list(range(len(tensor.shape)))
    if not hasattr(tensor, "is_contiguous") or tensor.is_contiguous():
        return plain
    order = sorted(plain, key=lambda n: -tensor.stride(n))
    return order if tensor.permute(order).is_contiguous() else plain


def value_text(value: Any) -> str:
    """An argument as ``--args`` has it."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = str(value.dtype).rpartition(".")[2]
        order = _order(value)
        shape = [int(value.shape[n]) for n in order]
        text = f"{_SHORT.get(dtype, dtype)}[{', '.join(map(str, shape))}]"
        if order != sorted(order):
            text += f".permute({', '.join(str(order.index(n)) for n in range(len(order)))})"
        return text + _integers(value) if dtype.startswith(("int", "uint")) else text
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, Literal):
        return value.text
    if type(value).__name__ == "dtype" and str(value).startswith("torch."):
        return str(value)
    if type(value).__name__ == "device":
        return 'torch.device("cuda")'
    return repr(value)


def _integers(value: Any) -> str:
    """What is said of integers: where parts begin, or their bound, and whether all differ that would not by chance."""
    below, count = int(value.max()) + 1, math.prod(value.shape)
    if not FEWEST <= count <= MOST_LOOKED:
        return f" < {below}"
    given = [int(n) for n in value.reshape(-1).tolist()]
    steps = [after - before for before, after in itertools.pairwise(given)]
    if len(value.shape) == 1 and given[0] == 0 and min(steps) >= 0 and given[-1] > count:
        return f".{OFFSETS}({given[-1]}, {max(steps)})"
    unlikely = count * count > UNLIKELY * below
    return f".{DISTINCT}() < {below}" if unlikely and len(set(given)) == count else f" < {below}"
