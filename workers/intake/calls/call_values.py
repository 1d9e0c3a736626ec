"""A call's values as the text that ``call_text.parse`` reads."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.workers.intake.calls.call_text import DISTINCT, ENDS, OFFSETS, SHORT, Literal
from tilewright.workers.intake.calls.objects import parts_of

FEWEST, MOST_LOOKED = 2, 1 << 16
"""Integers of a tensor that are looked at one by one."""

UNLIKELY = 6
"""Numbers drawn below another all differ with probability e^-3 where their squared count is so many times that one."""


def call_text(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """A call's values as ``--args`` has them: dtypes, shapes, and integers' bound."""
    texts = [value_text(a) for a in arguments]
    return ", ".join([*texts, *(f"{k}={value_text(v)}" for k, v in keywords.items())])


def arguments_of(call: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Arguments and keywords of a call: of a tuple of arguments, the last of which may be a dictionary of keywords; of
    one argument; of a dictionary of keywords."""
    if isinstance(call, Mapping):
        return (), call
    if type(call) not in (tuple, list):
        call = (call,)
    keywords = call[-1] if call and isinstance(call[-1], dict) else {}
    return call[: len(call) - 1] if keywords else call, keywords


def contents(value: Any) -> list[tuple[Any, Any]]:
    """The parts of a list, a dictionary or an object, by what they are given as."""
    if type(value) in (tuple, list):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    made = parts_of(value)
    return [] if made is None else list(made[1])


def order_of(tensor: Any) -> list[int]:
    """Its dimensions in the order in which they lie in memory; as they are where it is no plain permutation."""
    plain = list(range(len(tensor.shape)))
    if not hasattr(tensor, "is_contiguous") or tensor.is_contiguous():
        return plain
    order = sorted(plain, key=lambda n: -tensor.stride(n))
    return order if tensor.permute(order).is_contiguous() else plain


def value_text(value: Any) -> str:
    """An argument as ``--args`` has it. Raises LookupError for a sparse tensor."""
    if "sparse" in str(getattr(value, "layout", "")):
        raise LookupError("a sparse tensor is no argument: give a function its values and its indices")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = str(value.dtype).rpartition(".")[2]
        if dtype.startswith("key<"):
            raise TypeError("a random key is no array of numbers: make it in a function around this one")
        order = order_of(value)
        shape = [int(value.shape[n]) for n in order]
        text = f"{SHORT.get(dtype, dtype)}[{', '.join(map(str, shape))}]"
        if order != sorted(order):
            text += f".permute({', '.join(str(order.index(n)) for n in range(len(order)))})"
        return text + _integers(value) if dtype.startswith(("int", "uint")) else text
    if type(value) in (tuple, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {value_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Literal):
        return value.text
    if type(value).__name__ == "dtype" and str(value).startswith("torch."):
        return str(value)
    if type(value).__name__ == "device":
        return 'torch.device("cuda")'
    made = parts_of(value)
    if made is None:
        return repr(value)
    name, given = made
    if not given and "." in name:
        return name
    return f"{name}({', '.join(f'{k}={value_text(v)}' if k else value_text(v) for k, v in given)})"


def _integers(value: Any) -> str:
    """What is said of integers: where parts begin, or their bound, and whether all differ that would not by chance."""
    below, count = int(value.max()) + 1, math.prod(value.shape)
    least = int(value.min())
    if least < 0 or below < 1:
        return f" in [{least}, {max(below, least + 1)}]"
    if not FEWEST <= count <= MOST_LOOKED:
        return f" < {below}"
    given = [int(n) for n in value.reshape(-1).tolist()]
    steps = [after - before for before, after in itertools.pairwise(given)]
    if len(value.shape) == 1 and min(steps) >= given[0] == 0 and given[-1] > count:
        return f".{OFFSETS}({given[-1]}, {max(steps)})"
    if len(value.shape) == 1 and min(steps) > 0 and given[-1] > 2 * count:
        return f".{ENDS}({given[-1]}, {max(*steps, given[0])})"
    unlikely = count * count > UNLIKELY * below
    return f".{DISTINCT}() < {below}" if unlikely and len(set(given)) == count else f" < {below}"
