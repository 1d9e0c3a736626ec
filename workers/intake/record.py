"""Records one call of a wrapper: what it allocates, how it looks at its tensors, and which kernels it launches.

Tensors have shapes and no memory (torch's meta device) and say that they lie on a GPU; kernels are noted and not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tilewright.workers.intake import symbols
from tilewright.workers.intake.device import DEVICE
from tilewright.workers.intake.trace import PACKED_RANK, Refusal, Trace, Var, opened, user_line

_VIEWS = {
    "view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "flatten", "expand", "narrow",
    "swapaxes", "movedim", "view_as", "reshape_as", "unflatten",
}  # fmt: skip
_FREE = {"detach", "requires_grad_", "is_contiguous", "data_ptr", "dim", "ndimension", "element_size",
         "is_floating_point",
         "storage_offset", "get_device", "is_complex", "__repr__", "__format__", "__hash__", "__len__", "is_pinned",
         "untyped_storage", "storage", "is_set_to", "record_stream", "__deepcopy__", "register_hook", "is_signed",
         "is_inference", "is_same_size", "type", "__bool__", "__index__", "__int__", "__float__"}  # fmt: skip


class Recording(TorchFunctionMode):
    """While open, what torch is asked for is noted in ``trace``."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        owner = getattr(func, "__self__", None)
        if name == "__get__":
            return self._property(getattr(owner, "__name__", ""), func, args)
        if name in ("__set__", "__delete__"):
            return func(*args, **options)
        if name in _METADATA:
            return self._metadata(name, func, args, options)
        if name in ("empty", "zeros", "empty_like", "zeros_like", "new_empty", "new_zeros", "empty_strided", "full",
                    "full_like", "ones", "ones_like", "new_full", "new_ones", "new_empty_strided"):  # fmt: skip
            return self._made(name, func, args, options)
        if name in ("zero_", "fill_"):
            return self._reset(name, args)
        if name in ("contiguous", "to", "cuda", "float", "half", "bfloat16", "type_as", "clone"):
            return self._same(name, func, args, options)
        if name in _VIEWS or name in ("__getitem__", "chunk", "split", "unbind", "view_as_real"):
            return self._view(name, func, args, options)
        if name in (
            "item",
            "tolist",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "nonzero",
            "cpu",
            "numpy",
        ):
            raise Refusal(f"the wrapper reads a tensor's values ({name})", user_line())
        if name == "data_ptr":
            return 0
        result = func(*args, **_meta(options))
        if name not in _FREE:
            self._foreign(name, result)
        return result

    # -- what a wrapper asks ---------------------------------------------------------------------

    def _var(self, tensor: torch.Tensor) -> Var | None:
        return self._trace.find(tensor)

    def _property(self, name: str, func: Any, args: Sequence[Any]) -> Any:
        value = func(*args)
        if name == "device":
            return DEVICE
        if name in ("is_cuda", "is_cpu", "is_meta"):
            return name == "is_cuda"
        var = self._var(args[0])
        if name == "shape" and var is not None:
            return torch.Size(self._sizes(var, value))
        if isinstance(value, torch.Tensor) and name in ("T", "mT", "data"):
            if var is None or name == "data":
                return args[0] if name == "data" else value
            text = f"{var.name}.T" if name == "T" and value.dim() == 2 else f"{var.name}.transpose(-1, -2)"
            return self._note_view(value, var, text)
        return value

    def _sizes(self, var: Var, values: Sequence[int]) -> list[Any]:
        return [
            symbols.traced(int(v), f"{var.name}.shape[{n}]", frozenset(["shape"]))
            for n, v in enumerate(values)
        ]

    def _metadata(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._var(args[0]), func(*args, **options)
        if var is None:
            return value
        if name in ("numel", "nelement"):
            return symbols.traced(value, f"{var.name}.numel()", frozenset(["shape"]))
        where = args[1] if len(args) > 1 else options.get("dim")
        if where is not None:
            rank = args[0].dim()
            place = symbols.plain(where) % rank if rank else 0
            text = f"{var.name}.shape[{place}]" if name == "size" else f"{var.name}.stride({place})"
            return symbols.traced(int(value), text, frozenset(["shape"]))
        if name == "size":
            return torch.Size(self._sizes(var, value))
        return tuple(
            symbols.traced(int(v), f"{var.name}.stride({n})", frozenset(["shape"]))
            for n, v in enumerate(value)
        )

    def _made(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        line = user_line()
        asked = dict(options)
        value = func(*args, **_meta(options))
        if not value.is_contiguous():
            raise Refusal(f"torch.{name} makes a tensor that is not contiguous", line)
        like = name.endswith("_like")
        if like:
            base = self._var(args[0])
            sizes: Sequence[Any] = self._sizes(base, value.shape) if base else list(value.shape)
        else:
            given = args[1:] if name.startswith("new_") else args
            size = asked.get("size", given[0] if given else ())
            spread = not isinstance(size, tuple | list | torch.Size)
            sizes = [a for a in given if isinstance(a, int)] if spread else list(size)
        filled = "full" in name or "ones" in name
        if filled:
            fill = asked.get("fill_value", args[-1] if "full" in name else 1)
            if symbols.plain(fill) != 0:
                self._foreign(name, value)
                return value
        zeros = filled or "zeros" in name
        shape = ", ".join(map(symbols.code_of, sizes)) + ("," if len(sizes) == 1 else "")
        dtype = str(value.dtype)
        text = f"torch.{'zeros' if zeros else 'empty'}(({shape}), dtype={dtype})"
        var = Var(self._trace.fresh_name("t"), value, "zeros" if zeros else "fresh", text, line=line)
        self._trace.add(var)
        return value

    def _reset(self, name: str, args: Sequence[Any]) -> Any:
        var = self._var(args[0])
        if var is None or (name == "fill_" and symbols.plain(args[1]) != 0):
            raise Refusal(f"torch computes {name} on a tensor", user_line())
        self._trace.steps.append((var, "zero_"))
        return args[0]

    def _same(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        tensor = args[0]
        if name == "contiguous" and tensor.is_contiguous(**options):
            return tensor
        var = self._var(tensor)
        if name == "contiguous" and var is not None and tensor.dim() <= PACKED_RANK:
            return self._packed(var, tensor)
        if name in ("to", "cuda"):
            wanted = [a for a in (*args[1:], *options.values()) if isinstance(a, torch.dtype)]
            others = [a.dtype for a in args[1:] if isinstance(a, torch.Tensor)]
            if all(d == tensor.dtype for d in (*wanted, *others)):
                return tensor
            kept = [a for a in args[1:] if isinstance(a, torch.dtype)] + others
            result = tensor.to((kept or wanted)[0])
        else:
            result = func(*args, **options)
            if result is tensor:
                return tensor
        self._foreign(name, result)
        return result

    def _packed(self, var: Var, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy, which a kernel of ours will make."""
        value = tensor.contiguous()
        shape = "".join(f"{symbols.code_of(n)}, " for n in self._sizes(var, value.shape))
        text = f"torch.empty(({shape}), dtype={value.dtype})"
        self._trace.add(
            Var(self._trace.fresh_name("t"), value, "packed", text, None, user_line(), var.foreign, var)
        )
        return value

    def _view(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._var(args[0]), func(*args, **options)
        if var is None:
            return value
        if isinstance(value, tuple | list):
            for part in value:
                self._foreign(name, part)
            return value
        shared = value.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        if not shared:
            self._foreign(name, value)
            return value
        if name == "__getitem__":
            return self._note_view(value, var, f"{var.name}[{_index(args[1])}]")
        rest = [*map(_argument, args[1:]), *(f"{k}={_argument(v)}" for k, v in options.items())]
        if name in ("flatten", "unflatten", "view_as", "reshape_as", "unsqueeze", "narrow", "movedim"):
            shape = ", ".join(str(n) for n in value.shape)
            if not value.is_contiguous():
                self._foreign(name, value)
                return value
            sizes = _reshaped(args[0], value, self._sizes(var, args[0].shape)) or shape
            return self._note_view(value, var, f"{var.name}.view(({sizes},))")
        if value is args[0]:
            return value
        if name == "t":
            return self._note_view(value, var, f"{var.name}.T" if value.dim() == 2 else var.name)
        return self._note_view(value, var, f"{var.name}.{name}({', '.join(rest)})")

    def _note_view(self, value: torch.Tensor, base: Var, text: str) -> torch.Tensor:
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

    def _foreign(self, name: str, result: Any) -> None:
        line = user_line()
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, torch.Tensor) and self._trace.vars.get(id(part)) is None:
                found = self._trace.find(part)
                if found is None or found.tensor is not part:
                    var = Var(self._trace.fresh_name("u"), part, "foreign", None, None, line, name)
                    self._trace.vars[id(part)] = var


_METADATA = ("size", "stride", "numel", "nelement")


def _meta(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in options.items() if k not in ("device", "pin_memory")}
    return {**kept, "device": "meta"} if "device" in options else kept


def _argument(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "(" + "".join(f"{_argument(v)}, " for v in value) + ")"
    if isinstance(value, int | float):
        return symbols.code_of(value)
    return str(value) if isinstance(value, torch.dtype) else repr(value)


def _index(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_index, value))
    if isinstance(value, slice):
        parts = [("" if p is None else symbols.code_of(p)) for p in (value.start, value.stop)]
        return ":".join(parts) + (f":{symbols.code_of(value.step)}" if value.step is not None else "")
    if value is Ellipsis:
        return "..."
    return "None" if value is None else symbols.code_of(value)


def _reshaped(old: torch.Tensor, new: torch.Tensor, sizes: Sequence[Any]) -> str | None:
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


def record(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    inputs: Mapping[str, torch.Tensor],
    files: Sequence[str],
) -> Trace:
    """One call. Raises Refusal, or whatever the wrapper raises."""
    trace = Trace({})
    for name, tensor in inputs.items():
        trace.inputs[name] = trace.add(Var(name, tensor, "input"))
    with opened(trace, files), torch.no_grad(), Recording(trace):
        result = function(*arguments, **options)
    trace.results = list(_flat(result))
    return trace


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple | list):
        for part in result:
            yield from _flat(part)
    elif isinstance(result, dict):
        yield from _flat(tuple(result.values()))
    elif isinstance(result, torch.Tensor):
        yield result
