"""Views of tensors as text: indices, arguments, sizes of a reshape by the sizes before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.workers.intake.source import traced_numbers as symbols


def sliced(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> str:
    """The index that says ``unsqueeze`` or ``narrow``."""
    dim = int(symbols.plain(args[1] if len(args) > 1 else options["dim"]))
    if name == "unsqueeze":
        return ":, " * (dim % (args[0].dim() + 1)) + "None"
    start, length = (
        args[2] if len(args) > 2 else options["start"],
        args[3] if len(args) > 3 else options["length"],
    )
    return (
        ":, " * (dim % args[0].dim())
        + f"{symbols.code_of(start)}:{symbols.code_of(start)} + {symbols.code_of(length)}"
    )


def argument(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "(" + "".join(f"{argument(v)}, " for v in value) + ")"
    if isinstance(value, int | float):
        return symbols.code_of(value)
    return str(value) if isinstance(value, torch.dtype) else repr(value)


def index(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(index, value))
    if isinstance(value, slice):
        parts = [("" if p is None else symbols.code_of(p)) for p in (value.start, value.stop)]
        return ":".join(parts) + (f":{symbols.code_of(value.step)}" if value.step is not None else "")
    if value is Ellipsis:
        return "..."
    return "None" if value is None else symbols.code_of(value)


def reshaped(old: torch.Tensor, new: torch.Tensor, sizes: Sequence[Any]) -> str | None:
    """The new sizes as products of the old ones, where runs of old dimensions make them."""
    found, place = [], 0
    for size in new.shape:
        if size == 1:
            found.append("1")
            continue
        while place < old.dim() and old.shape[place] == 1:
            place += 1
        made, parts = 1, []
        while made < size and place < old.dim():
            made *= old.shape[place]
            parts.append(symbols.code_of(sizes[place]))
            place += 1
        if made != size:
            return None
        found.append(" * ".join(parts))
    return ", ".join(found)
