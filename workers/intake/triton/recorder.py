"""Records one call of a wrapper: what it allocates, how it looks at its tensors, and which kernels it launches.

Tensors have shapes and no memory (torch's meta device) and say that they lie on a GPU; kernels are noted and not run.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.judge.reference import flat
from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.source.load import forget
from tilewright.workers.intake.texts import stored_text
from tilewright.workers.intake.triton import scalar_reads, torch_kernels
from tilewright.workers.intake.triton.stub_device import DEVICE
from tilewright.workers.intake.triton.tensor_views import SAID, VIEWS, ViewRecorder, foreign, sizes_of
from tilewright.workers.intake.triton.trace import Address, Trace, Var, caller, opened, user_line

_FREE_NAMES = (
    "detach requires_grad_ is_contiguous data_ptr dim ndimension element_size is_floating_point _set_grad_enabled "
    "storage_offset get_device is_complex __repr__ __format__ __hash__ __len__ is_pinned untyped_storage storage "
    "is_set_to record_stream __deepcopy__ register_hook is_signed is_inference is_same_size type __bool__ __index__ "
    "__int__ __float__"
)
_FREE = frozenset(_FREE_NAMES.split())
_MAKERS = (
    "empty",
    "zeros",
    "empty_like",
    "zeros_like",
    "new_empty",
    "new_zeros",
    "empty_strided",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "new_full",
    "new_ones",
    "new_empty_strided",
)


class Recording(TorchFunctionMode):
    """While open, what torch is asked for is noted in ``trace``."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self._work = torch_kernels.TorchKernels(
            trace, lambda value, sizes: self._allocated(_like(value), sizes), lambda v: sizes_of(v, v.tensor.shape)
        )
        self._views = ViewRecorder(trace, self._work)

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
        if name in _MAKERS:
            return self._made(name, func, args, options)
        if name in ("zero_", "fill_"):
            return self._reset(name, args)
        if name in ("copy_", "__setitem__"):
            target = args[0] if name == "copy_" else self._views.made("__getitem__", _ITEM, args[:2], {})
            self._assigned(target, args[-1], name)
            return args[0]
        if name in ("equal", "allclose"):
            self._trace.left_out.append(f"line {user_line()}: torch.{name} of two tensors is taken as False")
            return False
        if name == "cpu":
            return args[0]
        if name in ("contiguous", "to", "cuda", "float", "half", "bfloat16", "type_as", "clone"):
            return self._same(name, func, args, options)
        if name in SAID and self._var(args[0]) is not None:
            with self:
                return SAID[name](*args, **options)
        if name in VIEWS:
            return self._views.made(name, func, args, options)
        if name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "numpy"):
            return self._read(name, args[0])
        if name == "data_ptr":
            address = Address()
            address.tensor = args[0]
            return address
        if name == "arange":
            return self._counted(func, args, options)
        if name in ("tensor", "as_tensor", "scalar_tensor") and isinstance(args[0], int | float | list | tuple):
            return self._listed(args[0], {"dtype": torch.tensor(args[0]).dtype, **options})
        if name in torch_kernels.TOGETHER and options.keys() <= {"dim"} and self._known(args):
            with self:
                return torch_kernels.TOGETHER[name](*args, **options)
        if name not in _FREE and (torch_kernels.known(name) or name in ("max", "min")):
            return self._computed(name, func, args, options)
        result = func(*args, **_meta(options))
        if name not in _FREE:
            foreign(self._trace, name, result)
            if result is None:
                self._trace.left_out.append(f"line {user_line()}: torch.{name} is not done")
            elif isinstance(result, torch.Tensor) and any(result is a for a in args) and self._var(result):
                self._trace.refusals.append((user_line(), f"torch computes {name} on a tensor"))
        return result

    def _listed(self, value: Any, options: Mapping[str, Any]) -> torch.Tensor:
        """A tensor of a number, or of nested lists of numbers, each of which becomes a kernel."""
        shape, alone = torch.tensor(value).shape, value
        while isinstance(alone, list | tuple) and len(alone) == 1:
            alone = alone[0]
        if 0 in shape or not isinstance(alone, list | tuple):
            return self._made("full", torch.full, (list(shape), 0 if 0 in shape else alone), dict(options))
        with self:
            return torch.stack([self._listed(part, options) for part in value])

    # -- values that a wrapper reads -------------------------------------------------------------

    def _read(self, name: str, tensor: torch.Tensor) -> Any:
        """A number that stands for the value of a tensor of one element; of a condition, that the call goes on."""
        line = user_line()
        if name == "__bool__":
            decided = scalar_reads.guarded(*caller())
            if decided is not None:
                self._trace.left_out.append(f"line {line}: a condition on a tensor's values is taken as met")
                return decided
        var = self._var(tensor)
        if name == "__bool__" and (compared := self._trace.compared(var)):
            self._trace.left_out.append(f"line {line}: two tensors of one element are taken as different")
            return compared == "ne"
        plain = name in ("item", "tolist", "__int__", "__float__")
        if not plain or var is None or tensor.numel() != 1 or tensor.dtype == torch.bool:
            raise Refusal(f"the wrapper reads a tensor's values ({name})", line)
        if var.is_foreign:
            raise Refusal(f"torch computes {var.foreign} on a tensor", line)
        known = next((atom for atom, other in self._trace.reads.items() if other is var), None)
        atom = known or f"I{len(self._trace.reads)}_"
        self._trace.reads[atom] = var
        value: Any = 1.0 if tensor.dtype.is_floating_point else self._trace.likely(var)
        if name == "__float__":
            value = float(value)
        if name == "__int__":
            value = int(value)
        self._trace.notes.append(f"line {line}: a value read from a tensor is loaded by the kernels that are given it")
        return traced_numbers.traced(value, atom, frozenset([atom, scalar_reads.READ]))

    # -- what a wrapper asks ---------------------------------------------------------------------

    def _var(self, tensor: torch.Tensor) -> Var | None:
        return self._trace.find(tensor)

    def _known(self, args: Sequence[Any]) -> bool:
        """Whether all tensors that a function of several is given are made of what kernels can say."""
        found = [self._var(t) for t in (args[0] if isinstance(args[0], tuple | list) else args)]
        return all(v is not None and not v.is_foreign for v in found)

    def _property(self, name: str, func: Any, args: Sequence[Any]) -> Any:
        value = func(*args)
        if name == "device":
            return DEVICE
        self._trace.asks_gradients |= name in ("requires_grad", "is_leaf", "grad_fn")
        if name in ("is_cuda", "is_cpu", "is_meta"):
            return name == "is_cuda"
        var = self._var(args[0])
        if name == "shape" and var is not None:
            return torch.Size(sizes_of(var, value))
        if isinstance(value, torch.Tensor) and name in ("T", "mT", "data"):
            if var is None or name == "data":
                return args[0] if name == "data" else value
            text = f"{var.name}.T" if name == "T" and value.dim() == 2 else f"{var.name}.transpose(-1, -2)"
            return self._views.note(value, var, text)
        return value

    def _metadata(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._var(args[0]), func(*args, **options)
        if var is None:
            return value
        if name in ("numel", "nelement"):
            return traced_numbers.traced(value, f"{var.name}.numel()", frozenset(["shape"]))
        where = args[1] if len(args) > 1 else options.get("dim")
        if where is not None:
            rank = args[0].dim()
            place = traced_numbers.plain(where) % rank if rank else 0
            text = f"{var.name}.shape[{place}]" if name == "size" else f"{var.name}.stride({place})"
            return traced_numbers.traced(int(value), text, frozenset(["shape"]))
        if name == "size":
            return torch.Size(sizes_of(var, value))
        return tuple(
            traced_numbers.traced(int(v), f"{var.name}.stride({n})", frozenset(["shape"])) for n, v in enumerate(value)
        )

    def _made(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        line = user_line()
        asked = dict(options)
        if any(isinstance(size, torch.Tensor) for size in _sizes_given(name, args, options)):
            raise Refusal(f"torch.{name} takes a size from a tensor's values", line)
        value = func(*args, **_meta(options))
        order = sorted(range(value.dim()), key=lambda n: -value.stride(n))
        dense = value.permute(order)
        if not dense.is_contiguous():
            raise Refusal(f"torch.{name} makes a tensor that is not contiguous", line)
        if name.endswith("_like"):
            base = self._var(args[0])
            sizes: Sequence[Any] = sizes_of(base, value.shape) if base else list(value.shape)
        else:
            given = args[1:] if name.startswith("new_") else args
            size = asked.get("size", given[0] if given else ())
            spread = not isinstance(size, tuple | list | torch.Size)
            sizes = [a for a in given if isinstance(a, int)] if spread else list(size)
        if any(map(scalar_reads.is_read, sizes)):
            self._trace.refusals.append((line, f"torch.{name} takes a size from a tensor's values"))
        number: Any = 1 if "ones" in name else 0
        if "full" in name:
            number = asked.get("fill_value", args[-1])
        if isinstance(number, torch.Tensor):
            foreign(self._trace, name, value)
            return value
        if traced_numbers.plain(number) != 0:
            var = self._work.new(value, sizes, "fill", "{0}", [number], line)
            if var is not None:
                return var.tensor
            foreign(self._trace, name, value)
            return value
        zeros = "empty" not in name
        if value.is_contiguous():
            self._allocated(value, sizes, zeros=zeros)
            return value
        made = self._allocated(dense.contiguous(), [sizes[n] for n in order], zeros=zeros)
        back = ", ".join(str(order.index(n)) for n in range(value.dim()))
        return self._views.note(
            made.tensor.permute([order.index(n) for n in range(value.dim())]), made, f"{made.name}.permute({back})"
        )

    def _allocated(self, value: torch.Tensor, sizes: Sequence[Any], *, zeros: bool = False) -> Var:
        """A new contiguous tensor."""
        shape = ", ".join(map(traced_numbers.code_of, sizes)) + ("," if len(sizes) == 1 else "")
        text = f"torch.{'zeros' if zeros else 'empty'}(({shape}), dtype={value.dtype})"
        kind = "zeros" if zeros else "fresh"
        return self._trace.add(Var(self._trace.fresh_name("t"), value, kind, text, line=user_line()))

    def _reset(self, name: str, args: Sequence[Any]) -> Any:
        var = self._var(args[0])
        number = args[1] if name == "fill_" else 0
        if var is None or isinstance(number, torch.Tensor):
            raise Refusal(f"torch computes {name} on a tensor", user_line())
        if traced_numbers.plain(number) == 0 and var.tensor.is_contiguous():
            self._trace.steps.append((var, "zero_"))
        elif not self._work.assigned(var, number, user_line()):
            raise Refusal(f"torch computes {name} on a tensor", user_line())
        return args[0]

    def _assigned(self, target: torch.Tensor, value: Any, name: str) -> None:
        """``target[...] = value``."""
        var = self._var(target)
        given = self._var(value) if isinstance(value, torch.Tensor) else value
        if target is value:
            return
        known = var is not None and given is not None and not getattr(given, "foreign", "")
        if not known or not self._work.assigned(var, given, user_line()):  # type: ignore[arg-type]
            raise Refusal(f"torch computes {name} on a tensor", user_line())

    def _same(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        tensor = args[0]
        if name == "contiguous" and tensor.is_contiguous(**options):
            return tensor
        if name in ("to", "cuda"):
            wanted = [a for a in (*args[1:], *options.values()) if isinstance(a, torch.dtype)]
            others = [a.dtype for a in args[1:] if isinstance(a, torch.Tensor)]
            if all(d == tensor.dtype for d in (*wanted, *others)) and not options.get("copy"):
                return tensor
            kept = [a for a in args[1:] if isinstance(a, torch.dtype)] + others
            result = tensor.to((kept or wanted)[0])
        else:
            result = func(*args, **options)
            if result is tensor:
                return tensor
        var = self._var(tensor)
        if var is None or var.is_foreign:
            foreign(self._trace, var.foreign if var and var.foreign else name, result)
            return result
        copy = self._work.copied(var, result.contiguous(), user_line())
        if copy is None:
            foreign(self._trace, name, result)
            return result
        return copy.tensor

    def _computed(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """torch computes something: by a kernel of ours where one can say it."""
        result = func(*args, **_meta(options))
        plain = name.removesuffix("_")
        if result is args[0] and plain in {*torch_kernels.COMPOSED, *torch_kernels.REDUCTIONS}:  # in place
            with self:
                self._assigned(args[0], getattr(torch.Tensor, plain)(*args, **options), name)
            return args[0]
        made = _put_together(stored_text("same_as").get(name, name), args, options, result)
        if made is not None and isinstance(args[0], torch.Tensor) and self._var(args[0]) is not None:
            with self, contextlib.suppress(KeyError, TypeError):  # another power or option
                found = made(*args, **options)
                if isinstance(result, tuple):  # and the places, which torch alone knows
                    foreign(self._trace, name, result[1])
                    return type(result)((found, result[1]))
                return found
        values = [self._var(a) if isinstance(a, torch.Tensor) else self._unread(a) for a in args]
        sound = all(v is not None and not (isinstance(v, Var) and v.is_foreign) for v in values)
        if sound and isinstance(result, torch.Tensor):
            var = self._work.computed(name, values, options, result, user_line())
            if var is not None:
                return var.tensor
        first = next((v.foreign for v in values if isinstance(v, Var) and v.foreign), name)
        foreign(self._trace, first, result)
        return result

    def _unread(self, value: Any) -> Any:
        """The tensor in place of a number that was read from it; None where it was reckoned with since."""
        return self._trace.reads.get(value.code) if scalar_reads.is_read(value) else value

    def _counted(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """``torch.arange``."""
        value = func(*args, **_meta(options))
        start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
        plain = all(isinstance(n, int) for n in args) and not value.dtype.is_floating_point
        size = args[0] if len(args) == 1 else value.shape[0]
        count = "{0} + {1} * at"
        known = plain and bool(args)
        var = self._work.new(value, [size], "arange", count, [start, step], user_line()) if known else None
        if var is None:
            foreign(self._trace, "arange", value)
            return value
        return var.tensor


_ITEM = torch.Tensor.__getitem__


def _like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of its own storage, contiguous."""
    return torch.empty(tuple(map(int, value.shape)), dtype=value.dtype, device="meta")


_METADATA = ("size", "stride", "numel", "nelement")


def _sizes_given(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Any]:
    """What is given as sizes to a function that makes a tensor."""
    if name.endswith("_like"):
        return
    given = args[1:] if name.startswith("new_") else args
    for size in (*(given[:1] if "full" in name else given), options.get("size", ())):
        yield from size if isinstance(size, tuple | list) else (size,)


def _meta(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in options.items() if k not in ("device", "pin_memory")}
    return {**kept, "device": "meta"} if "device" in options else kept


def _put_together(name: str, args: Sequence[Any], options: Mapping[str, Any], result: Any) -> Callable[..., Any] | None:
    """What torch computes as a function of other tensors' functions; None where it is none."""
    if name not in torch_kernels.REDUCTIONS:
        return torch_kernels.COMPOSED.get(name)
    dims = args[1] if len(args) > 1 else options.get("dim", options.get("axis"))
    if isinstance(result, tuple):  # ``max`` along an axis
        return torch.Tensor.amax if name == "amax" else torch.Tensor.amin
    return None if isinstance(dims, int) else functools.partial(torch_kernels.over_axes, name)


def record(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    inputs: Mapping[str, torch.Tensor],
    files: Sequence[str],
    views: Sequence[tuple[torch.Tensor, str, str]] = (),
) -> Trace:
    """One call. ``views``: of inputs, as (tensor, input, text). Raises Refusal, or whatever the wrapper raises."""
    forget(function)
    trace = Trace({})
    for name, tensor in inputs.items():
        trace.inputs[name] = trace.add(Var(name, tensor, "input"))
    for tensor, name, text in views:
        trace.add(Var(trace.fresh_name("v"), tensor, "view", text, trace.inputs[name]))
    with opened(trace, files), torch.no_grad(), Recording(trace):
        result = function(*arguments, **options)
    trace.returned = result if trace.split is None else trace.returned  # of a pair, what its forward returned
    trace.results = flat(result)
    return trace
