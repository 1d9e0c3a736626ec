"""How a wrapper looks at its tensors: views of a recorded call as text, and copies where torch needs one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.triton import torch_kernels
from tilewright.workers.intake.triton.trace import Trace, Var, user_line


def sizes_of(var: Var, values: Sequence[int]) -> list[Any]:
    """Sizes of a tensor that carry their expressions."""
    return [traced_numbers.traced(int(v), f"{var.name}.shape[{n}]", frozenset(["shape"])) for n, v in enumerate(values)]


def foreign(trace: Trace, name: str, result: Any) -> None:
    """Note tensors that torch alone could make: refused if a kernel or the caller is given them."""
    line = user_line()
    for part in result if isinstance(result, tuple | list) else (result,):
        if isinstance(part, torch.Tensor) and trace.vars.get(id(part)) is None:
            found = trace.find(part)
            if found is None or found.tensor is not part:
                var = Var(trace.fresh_name("u"), part, "foreign", None, None, line, name)
                trace.vars[id(part)] = var


def _parts_of(name: str, tensor: torch.Tensor, asked: Any, dim: Any = 0) -> tuple[torch.Tensor, ...]:
    """What ``chunk`` and ``split`` make, each part as a slice."""
    dim = traced_numbers.plain(dim) % tensor.dim()
    size, widths = tensor.shape[dim], asked
    whole = int(size)
    if not isinstance(asked, tuple | list):
        width = -(-whole // int(asked)) if name == "chunk" else int(asked)
        even = size // asked if width * int(asked) == whole else width
        even = asked if name == "split" else even
        widths = [even] * (whole // width) + [whole % width] * (whole % width > 0)
    parts, start = [], 0
    for width in widths:
        parts.append(tensor.narrow(dim, start, width))
        start = start + width if parts[1:] else width
    return tuple(parts)


def _at(tensor: torch.Tensor, dim: Any, where: Any) -> torch.Tensor:
    return tensor[(*[slice(None)] * traced_numbers.plain(dim), where)]


def _flatten(x: torch.Tensor, start_dim: int = 0, end_dim: int = -1) -> torch.Tensor:
    first, last = start_dim % x.dim(), end_dim % x.dim()
    together = traced_numbers.product(x.shape[first : last + 1])
    return x.reshape(*x.shape[:first], together, *x.shape[last + 1 :])


def _moved(x: torch.Tensor, source: int, destination: int) -> torch.Tensor:
    order = [n for n in range(x.dim()) if n != source % x.dim()]
    order.insert(destination % x.dim(), source % x.dim())
    return x.permute(order)


SAID: Mapping[str, Callable[..., Any]] = {
    "chunk": lambda x, chunks, dim=0: _parts_of("chunk", x, chunks, dim),
    "split": lambda x, split_size=1, dim=0, split_size_or_sections=None: _parts_of(
        "split", x, split_size_or_sections or split_size, dim
    ),
    "unbind": lambda x, dim=0: tuple(_at(x, dim % x.dim(), n) for n in range(int(x.shape[dim]))),
    "narrow": lambda x, dim, start, length: _at(x, dim % x.dim(), slice(start, start + length)),
    "unsqueeze": lambda x, dim: _at(x, dim % (x.dim() + 1), None),
    "select": lambda x, dim, index: _at(x, dim % x.dim(), index),
    "expand_as": lambda x, other: x.expand(other.shape),
    "broadcast_to": lambda x, size: x.expand(size),
    "view_as": lambda x, other: x.view(other.shape),
    "reshape_as": lambda x, other: x.reshape(other.shape),
    "unflatten": lambda x, dim, sizes: x.view(*x.shape[: dim % x.dim()], *sizes, *x.shape[dim % x.dim() + 1 :]),
    "swapaxes": lambda x, one, other: x.transpose(one, other),
    "t": lambda x: x.transpose(0, 1) if x.dim() == 2 else x,
    "flatten": _flatten,
    "movedim": _moved,
}
"""Views that others say."""

VIEWS = frozenset(("view", "reshape", "transpose", "permute", "squeeze", "expand", "__getitem__", "view_as_real"))


class ViewRecorder:
    """Notes views in ``trace``; ``work`` makes the copies."""

    def __init__(self, trace: Trace, work: torch_kernels.TorchKernels) -> None:
        self._trace, self._work = trace, work

    def made(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._trace.find(args[0]), func(*args, **options)
        if var is None:
            return value
        shared = value.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        if not shared:
            return self._gathered(name, func, args, options, var, value)
        if value is args[0]:
            return value
        if name == "__getitem__":
            return self.note(value, var, f"{var.name}[{_index_text(args[1])}]")
        rest = [*map(_argument_text, args[1:]), *(f"{k}={_argument_text(v)}" for k, v in options.items())]
        return self.note(value, var, f"{var.name}.{name}({', '.join(rest)})")

    def _gathered(
        self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any], var: Var, value: torch.Tensor
    ) -> torch.Tensor:
        """A reshape that torch can only make by a copy: a copy of ours, and a view of that."""
        known = name == "reshape" and not var.is_foreign
        packed = self._work.copied(var, args[0].contiguous(), user_line()) if known else None
        if packed is None:
            foreign(self._trace, name, value)
            return value
        return self.made(name, func, (packed.tensor, *args[1:]), options)

    def note(self, value: torch.Tensor, base: Var, text: str) -> torch.Tensor:
        known = self._trace.find(value)
        if known is not None and known is base:
            return value if id(value) in self._trace.vars else self._alias(value, base)
        self._trace.add(Var(self._trace.fresh_name("v"), value, "view", text, base, user_line(), base.foreign))
        return value

    def _alias(self, value: torch.Tensor, base: Var) -> torch.Tensor:
        self._trace.vars[id(value)] = Var(base.name, value, "alias", None, base, base.line, base.foreign)
        return value


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
