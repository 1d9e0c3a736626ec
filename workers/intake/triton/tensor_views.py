"""How a wrapper looks at its tensors: views of a recorded call as text, and copies where torch needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.triton import torch_kernels
from tilewright.workers.intake.triton.trace import Trace, Var, user_line


def sizes_of(var: Var, values: Sequence[int]) -> list[Any]:
    """Sizes of a tensor that carry their expressions."""
    return [
        traced_numbers.traced(int(v), f"{var.name}.shape[{n}]", frozenset(["shape"]))
        for n, v in enumerate(values)
    ]


def foreign(trace: Trace, name: str, result: Any) -> None:
    """Note tensors that torch alone could make: refused if a kernel or the caller is given them."""
    line = user_line()
    for part in result if isinstance(result, tuple | list) else (result,):
        if isinstance(part, torch.Tensor) and trace.vars.get(id(part)) is None:
            found = trace.find(part)
            if found is None or found.tensor is not part:
                var = Var(trace.fresh_name("u"), part, "foreign", None, None, line, name)
                trace.vars[id(part)] = var


def parts_of(
    name: str, tensor: torch.Tensor, asked: Any = 0, dim: Any = 0, **options: Any
) -> tuple[torch.Tensor, ...]:
    """What ``chunk``, ``split`` and ``unbind`` make, each part as a slice."""
    asked = next(iter(options.values()), asked)  # of whatever name
    dim = traced_numbers.plain(asked if name == "unbind" and not dim else dim) % tensor.dim()
    size = tensor.shape[dim]
    whole = int(size)
    if name == "unbind":
        return tuple(tensor[(*[slice(None)] * dim, n)] for n in range(whole))
    widths = asked
    if not isinstance(asked, tuple | list):
        width = -(-whole // int(asked)) if name == "chunk" else int(asked)
        even = (
            size // asked
            if name == "chunk" and width * int(asked) == whole
            else asked
            if name == "split"
            else width
        )
        widths = [even] * (whole // width) + [whole % width] * (whole % width > 0)
    parts, start = [], 0
    for width in widths:
        parts.append(tensor.narrow(dim, start, width))
        start = start + width if parts[1:] else width
    return tuple(parts)


class ViewRecorder:
    """Notes views in ``trace``; ``work`` makes the copies."""

    def __init__(self, trace: Trace, work: torch_kernels.TorchKernels) -> None:
        self._trace, self._work = trace, work

    def made(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._trace.find(args[0]), func(*args, **options)
        if var is None:
            return value
        if name == "expand_as":
            name, args, options = "expand", (args[0], *sizes_of(var, value.shape)), {}
        shared = value.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        if not shared:
            return self._gathered(name, func, args, options, var, value)
        if name == "__getitem__":
            return self.note(value, var, f"{var.name}[{_index_text(args[1])}]")
        rest = [*map(_argument_text, args[1:]), *(f"{k}={_argument_text(v)}" for k, v in options.items())]
        if name == "unsqueeze" or name == "narrow":
            return self.note(value, var, f"{var.name}[{_slice_text(name, args, options)}]")
        if name == "movedim" or (name == "flatten" and not value.is_contiguous()):
            foreign(self._trace, name, value)
            return value
        if name in ("flatten", "unflatten", "expand_as", "view_as", "reshape_as"):
            shape = ", ".join(str(n) for n in value.shape)
            sizes = _sizes_text(args[0], value, sizes_of(var, args[0].shape)) or shape
            return self.note(value, var, f"{var.name}.view(({sizes},))")
        if value is args[0]:
            return value
        if name == "t":
            return self.note(value, var, f"{var.name}.T" if value.dim() == 2 else var.name)
        return self.note(value, var, f"{var.name}.{name}({', '.join(rest)})")

    def _gathered(
        self,
        name: str,
        func: Any,
        args: Sequence[Any],
        options: dict[str, Any],
        var: Var,
        value: torch.Tensor,
    ) -> torch.Tensor:
        """A reshape that torch can only make by a copy: a copy of ours, and a view of that."""
        known = name in ("reshape", "flatten", "reshape_as") and not (var.foreign or var.kind == "foreign")
        packed = self._work.copied(var, args[0].contiguous(), user_line()) if known else None
        if packed is None:
            foreign(self._trace, name, value)
            return value
        return self.made(name, func, (packed.tensor, *args[1:]), options)

    def note(self, value: torch.Tensor, base: Var, text: str) -> torch.Tensor:
        known = self._trace.find(value)
        if known is not None and known is base:
            return value if id(value) in self._trace.vars else self._alias(value, base)
        self._trace.add(
            Var(self._trace.fresh_name("v"), value, "view", text, base, user_line(), base.foreign)
        )
        return value

    def _alias(self, value: torch.Tensor, base: Var) -> torch.Tensor:
        self._trace.vars[id(value)] = Var(base.name, value, "alias", None, base, base.line, base.foreign)
        return value


def _slice_text(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> str:
    """The index that says ``unsqueeze`` or ``narrow``."""
    dim = int(traced_numbers.plain(args[1] if len(args) > 1 else options["dim"]))
    if name == "unsqueeze":
        return ":, " * (dim % (args[0].dim() + 1)) + "None"
    start, length = (
        args[2] if len(args) > 2 else options["start"],
        args[3] if len(args) > 3 else options["length"],
    )
    return (
        ":, " * (dim % args[0].dim())
        + f"{traced_numbers.code_of(start)}:{traced_numbers.code_of(start)} + {traced_numbers.code_of(length)}"
    )


def _argument_text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "(" + "".join(f"{_argument_text(v)}, " for v in value) + ")"
    if isinstance(value, int | float):
        return traced_numbers.code_of(value)
    return str(value) if isinstance(value, torch.dtype) else repr(value)


def _index_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_index_text, value))
    if isinstance(value, slice):
        parts = [("" if p is None else traced_numbers.code_of(p)) for p in (value.start, value.stop)]
        return ":".join(parts) + (f":{traced_numbers.code_of(value.step)}" if value.step is not None else "")
    if value is Ellipsis:
        return "..."
    return "None" if value is None else traced_numbers.code_of(value)


def _sizes_text(old: torch.Tensor, new: torch.Tensor, sizes: Sequence[Any]) -> str | None:
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
            parts.append(traced_numbers.code_of(sizes[place]))
            place += 1
        if made != size:
            return None
        found.append(" * ".join(parts))
    return ", ".join(found)
