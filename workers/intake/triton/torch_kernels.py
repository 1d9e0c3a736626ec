"""What torch computes between launches, as kernels of ours: elementwise functions, copies and reductions.

A candidate may only launch kernels, and wrappers add up partial sums, scale a loss or cast a result with torch. Each
such step becomes a kernel of the module, found by the search like any other, and its time counts.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.texts import stored_text
from tilewright.workers.intake.triton.trace import Trace, Var, Work

KINDS = ("unary", "binary", "ternary")
MOST_DIMENSIONS = 6
_BLOCK = 1024

POWERS: Mapping[float, str] = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
"""Exponents of ``pow`` that are functions of one tensor."""

_START: Mapping[str, str] = {
    **dict.fromkeys(("cumsum", "sum", "mean"), "0"),
    "amax": '-float("inf")',
    "amin": 'float("inf")',
}
REDUCTIONS = frozenset(_START)


def known(name: str) -> bool:
    """Whether a kernel of ours can do it."""
    plain = stored_text("same_as").get(name, name).removesuffix("_")  # also in place
    return plain in {*REDUCTIONS, *COMPOSED} or any(plain in stored_text(kind) for kind in KINDS)


# -- elementwise ---------------------------------------------------------------------------------------


def elementwise(trace: Trace, what: str, expression: str, values: Sequence[Any], target: Var, line: int) -> bool:
    """Add ``target[...] = expression`` over Vars and numbers, which broadcast; False where no kernel can."""
    rank = target.tensor.dim()
    operands = [v for v in values if isinstance(v, Var)]
    compute = computed_type(operands, values)
    if rank > MOST_DIMENSIONS or compute is None:
        return False
    shape = target.tensor.shape
    flat = all(v.tensor.is_contiguous() and v.tensor.shape == shape for v in (*operands, target))
    scalars = [v for v in values if not isinstance(v, Var)]
    tensors, numbers = (itertools.count() for _ in range(2))
    names = [f"x{next(tensors)}" if isinstance(v, Var) else f"c{next(numbers)}" for v in values]
    filled = expression.format(*names) if "{" in expression else expression
    dims = 0 if flat else rank
    kernel = f"torch_{what.strip('_')}_{compute[3:]}_{'flat' if flat else f'{rank}d'}{'_c' * len(scalars)}"
    text = _elementwise_text(kernel, len(operands), len(scalars), dims, compute, filled)
    given = [o.name for o in (*operands, target)]
    given += [*map(traced_numbers.code_of, scalars), f"{target.name}.numel()"]
    if not flat:
        given += [f"{target.name}.shape[{n}]" for n in range(1, rank)]
        for operand in (*operands, target):
            given += strides(operand, rank)
    call = f"{kernel}[(triton.cdiv({target.name}.numel(), {_BLOCK}),)]({', '.join([*given, str(_BLOCK)])})"
    asked = (filled, tuple(values))
    trace.steps.append(Work(kernel, text, call, tuple(operands), target, what, line, asked))
    return True


def strides(var: Var, rank: int) -> list[str]:
    """Its strides as text, 0 along which it is repeated to ``rank`` dimensions."""
    own = var.tensor.dim()
    zeros = ["0"] * (rank - own)
    return zeros + ["0" if size == 1 else f"{var.name}.stride({n})" for n, size in enumerate(var.tensor.shape)]


def computed_type(operands: Sequence[Var], values: Sequence[Any]) -> str | None:
    """The dtype to compute in, of triton.language."""
    dtypes = [o.tensor.dtype for o in operands]
    if any(str(d).startswith(("torch.float8", "torch.complex")) for d in dtypes):
        return None
    if torch.float64 in dtypes:
        return "tl.float64"
    fractions = any(isinstance(v, float) for v in values if not isinstance(v, Var))
    if fractions or any(d.is_floating_point for d in dtypes):
        return "tl.float32"
    return "tl.int64"


def _elementwise_text(kernel: str, tensors: int, scalars: int, rank: int, compute: str, expression: str) -> str:
    inputs = [f"x{n}_ptr" for n in range(tensors)]
    sizes = [f"n{n}" for n in range(1, rank)]
    steps = [f"{p}_{n}" for p in (*(f"x{n}" for n in range(tensors)), "t") for n in range(rank)]
    numbers = [f"c{n}" for n in range(scalars)]
    head = ", ".join([*inputs, "target", *numbers, "size", *sizes, *steps, "BLOCK: tl.constexpr"])
    body = ["at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "inside = at < size"]
    body += _places(rank, [f"x{n}" for n in range(tensors)])
    body += [f"x{n} = tl.load(x{n}_ptr + x{n}_at, mask=inside).to({compute})" for n in range(tensors)]
    body.append(f"tl.store(target + t_at, {expression}, mask=inside)")
    if tensors == 0:
        body[-1] = f"tl.store(target + t_at, tl.zeros((BLOCK,), {compute}) + {expression}, mask=inside)"
    return _function(kernel, head, body)


def _places(rank: int, names: Sequence[str]) -> list[str]:
    """Lines that make ``NAME_at`` and ``t_at`` of the number ``at`` of an element."""
    every = [*names, "t"]
    if rank == 0:
        return [f"{name}_at = at" for name in every]
    body, rest = [], "at"
    for n in range(rank - 1, 0, -1):
        body += [f"i{n} = {rest} % n{n}", f"r{n} = {rest} // n{n}"]
        rest = f"r{n}"
    body.append(f"i0 = {rest}")
    return body + [f"{name}_at = {' + '.join(f'i{n} * {name}_{n}' for n in range(rank))}" for name in every]


def _function(name: str, head: str, body: Sequence[str]) -> str:
    return f"@triton.jit\ndef {name}({head}):\n" + "\n".join(f"    {row}" for row in body)


# -- reductions ----------------------------------------------------------------------------------------


def reduction(trace: Trace, what: str, source: Var, dim: int, target: Var, line: int) -> bool:
    """Add ``target = what(source, dim)``, with or without the reduced dimension; ``cumsum`` has all of it."""
    dtype, rank = source.tensor.dtype, source.tensor.dim()
    exact = not dtype.is_floating_point
    if str(dtype).startswith(("torch.float8", "torch.complex")) or (exact and "sum" not in what):
        return False
    compute = "tl.int64" if exact else "tl.float64" if dtype == torch.float64 else "tl.float32"
    outer = [n for n in range(rank) if n != dim]
    if len(outer) > MOST_DIMENSIONS:
        return False
    kept, depth = target.tensor.dim() == rank, len(outer)
    rows = source.tensor.stride(dim) == 1 or target.tensor.numel() == 1 or what == "cumsum"
    kernel = f"torch_{what}_{compute[3:]}_{'rows' if rows else 'columns'}_{depth}d"
    text = _reduction_text(kernel, what, depth, compute)
    size = f"{target.name}.numel()" if depth else "1"
    if what == "cumsum":
        size += f" // {source.name}.shape[{dim}]" if depth else ""
    given = [source.name, target.name, size, *(f"{source.name}.shape[{n}]" for n in outer[1:])]
    given += [f"{source.name}.stride({n})" for n in outer]
    given += [f"{target.name}.stride({n if kept else place})" for place, n in enumerate(outer)]
    given += [f"{source.name}.shape[{dim}]", f"{source.name}.stride({dim})"]
    given += [f"{target.name}.stride({dim})"] if what == "cumsum" else []
    tile = (1, _BLOCK) if rows else (128, 8)
    call = f"{kernel}[(triton.cdiv({size}, {tile[0]}),)]({', '.join([*given, *map(str, tile)])})"
    trace.steps.append(Work(kernel, text, call, (source,), target, what, line, (what, dim)))
    return True


def _reduction_text(kernel: str, what: str, rank: int, compute: str) -> str:
    sizes = [f"n{n}" for n in range(1, rank)]
    steps = [f"{p}_{n}" for p in ("x0", "t") for n in range(rank)]
    tile = [*(["along"] if what == "cumsum" else []), "ROWS: tl.constexpr", "BLOCK: tl.constexpr"]
    head = ", ".join(["source", "target", "size", *sizes, *steps, "count", "step", *tile])
    join = {"amax": "tl.maximum(total, part)", "amin": "tl.minimum(total, part)"}.get(what, "total + part")
    whole = {"amax": "tl.max", "amin": "tl.min"}.get(what, "tl.sum")
    start, end = _START[what], " / count" if what == "mean" else ""
    body = [
        "at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)",
        *(_places(rank, ["x0"]) if rank else ["x0_at = at * 0", "t_at = at * 0"]),
        f"total = tl.full((ROWS, BLOCK), {start}, {compute})",
        "for first in range(0, count, BLOCK):",
        "    k = first + tl.arange(0, BLOCK)[None, :]",
        "    inside = (at < size)[:, None] & (k < count)",
        f"    part = tl.load(source + x0_at[:, None] + k * step, mask=inside, other={start}).to({compute})",
        *[
            "    to = target + t_at[:, None] + k * along",
            "    so_far = tl.sum(total, axis=1)[:, None]",
            "    tl.store(to, tl.cumsum(part, axis=1) + so_far, mask=inside)",
        ][: 3 * (what == "cumsum")],
        f"    total = {join}",
        f"tl.store(target + t_at, {whole}(total, axis=1){end}, mask=at < size)",
    ]
    return _function(kernel, head, body[: -1 if what == "cumsum" else None])


# -- what is put together of the others ------------------------------------------------------------------


def _exponentials(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest along an axis, and exponentials below it, in float32 at least."""
    wide = x if x.dtype == torch.float64 else x.float()
    top = wide.amax(dim, True)
    return top, (wide - top).exp()


def _softmax(x: torch.Tensor, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> torch.Tensor:
    _, powers = _exponentials(x, dim)
    return (powers / powers.sum(dim, True)).to(dtype or x.dtype)


def _logsumexp(x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    top, powers = _exponentials(x, dim)
    return (powers.sum(dim, keepdim).log() + (top if keepdim else top.squeeze(dim))).to(x.dtype)


def _clamp(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    x = x if min is None else x.clamp_min(min)
    return x if max is None else x.clamp_max(max)


def _pow(x: torch.Tensor, power: Any) -> torch.Tensor:
    made: torch.Tensor = getattr(x, POWERS[traced_numbers.plain(power)])()
    return made


COMPOSED: Mapping[str, Callable[..., torch.Tensor]] = {
    "softmax": _softmax,
    "logsumexp": _logsumexp,
    "clamp": _clamp,
    "pow": _pow,
    "masked_fill": lambda x, mask, value: torch.where(mask, value, x),
}


def joined(parts: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """``torch.cat``: a new tensor, and a copy into each part of it."""
    dim %= parts[0].dim()
    sizes = list(parts[0].shape)
    sizes[dim] = functools.reduce(operator.add, (part.shape[dim] for part in parts))
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    made, start = torch.empty(sizes, dtype=dtype), 0
    for part in parts:
        made.narrow(dim, start, part.shape[dim]).copy_(part)
        start = start + part.shape[dim]
    return made


def stacked(parts: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """``torch.stack``."""
    return joined([part.unsqueeze(dim) for part in parts], dim)


def broadcast(*given: Any) -> tuple[torch.Tensor, ...]:
    """``torch.broadcast_tensors``, each size that of a tensor that has it."""
    parts = given[0] if isinstance(given[0], tuple | list) else given
    places = range(-max(part.dim() for part in parts), 0)
    known = [[part.shape[n] for part in parts if part.dim() >= -n] for n in places]
    sizes = [next((size for size in of if size != 1), 1) for of in known]
    return tuple(part.expand(sizes) for part in parts)


TOGETHER: Mapping[str, Callable[..., Any]] = {
    "cat": joined,
    "concat": joined,
    "concatenate": joined,
    "stack": stacked,
    "broadcast_tensors": broadcast,
}
"""Functions of several tensors."""


def over_axes(
    what: str, x: torch.Tensor, dim: Any = None, keepdim: bool = False, axis: Any = None, dtype: Any = None
) -> torch.Tensor:
    """A reduction over several axes or all, one after the other."""
    dim = axis if dim is None else dim
    flat = dim is None and not keepdim
    source = x.reshape(-1) if flat else x
    places = [0] if flat else sorted(traced_numbers.plain(d) % x.dim() for d in dim or range(x.dim()))
    rounds = len(places) > 1 and what in ("sum", "mean") and x.dtype in (torch.float16, torch.bfloat16)
    options = {"dtype": torch.float32} if rounds else {} if dtype is None else {"dtype": dtype}
    for place in reversed(places):  # the last first, so that places before it stay
        source = getattr(source, what)(place, keepdim, **options)
    return source.to(dtype or x.dtype) if rounds else source


# -- what torch was asked, taken apart ----------------------------------------------------------------

Make = Callable[[torch.Tensor, Sequence[Any]], Var]
"""Allocates a contiguous tensor like a value, of these sizes, and notes it."""


class TorchKernels:
    """Notes torch's functions in a trace as work of kernels. ``make`` allocates; ``sizes`` says a Var's sizes."""

    def __init__(self, trace: Trace, make: Make, sizes: Callable[[Var], Sequence[Any]]) -> None:
        self._trace, self._make, self._sizes = trace, make, sizes

    def copied(self, source: Var, value: torch.Tensor, line: int) -> Var | None:
        """A contiguous copy of ``source``, in the dtype of ``value``."""
        if value.dtype == torch.bool and source.tensor.dtype != torch.bool:
            return None
        return self.new(value, self._sizes(source), "copy", "x0", [source], line)

    def new(
        self, value: torch.Tensor, sizes: Sequence[Any], what: str, expression: str, given: Sequence[Any], line: int
    ) -> Var | None:
        """A new tensor like ``value``, of ``expression`` over Vars and numbers; None where no kernel can say it."""
        target = self._make(value, sizes)
        return target if elementwise(self._trace, what, expression, given, target, line) else None

    def assigned(self, target: Var, value: Any, line: int) -> bool:
        """``target[...] = value``."""
        if isinstance(value, Var):
            return elementwise(self._trace, "copy", "x0", [value], target, line)
        return elementwise(self._trace, "fill", "{0}", [value], target, line)

    def computed(
        self, name: str, values: Sequence[Any], options: Mapping[str, Any], result: Any, line: int
    ) -> Var | None:
        """The result of torch's function ``name`` of Vars and numbers; None where no kernel says it."""
        plain = stored_text("same_as").get(name, name)
        if plain in REDUCTIONS:
            return self._reduced(plain, values, options, result, line)
        function = plain.removesuffix("_")
        expression = stored_text(KINDS[len(values) - 1]).get(function) if 0 < len(values) <= len(KINDS) else None
        if expression is None or options or not all(isinstance(v, Var | int | float) for v in values):
            return None
        target = values[0] if plain.endswith("_") else self._make(result, self._shape(values, result))
        return target if elementwise(self._trace, function, expression, values, target, line) else None

    def _shape(self, values: Sequence[Any], result: torch.Tensor) -> list[Any]:
        """Sizes of a broadcast result, each from an operand that has it."""
        found: list[Any] = [int(size) for size in result.shape]
        for value in (v for v in reversed(values) if isinstance(v, Var)):
            sizes, shape = self._sizes(value), value.tensor.shape
            for behind in range(1, len(shape) + 1):
                if shape[-behind] == result.shape[-behind]:
                    found[-behind] = sizes[-behind]
        return found

    def _reduced(
        self, what: str, values: Sequence[Any], options: Mapping[str, Any], result: Any, line: int
    ) -> Var | None:
        """Over one axis."""
        named = dict(zip(("source", "dim", "keepdim"), values, strict=False)) | dict(options)
        source, place = named["source"], traced_numbers.plain(named.get("dim"))
        if not isinstance(source, Var) or type(place) is not int or not isinstance(result, torch.Tensor):
            return None
        place, sizes = place % source.tensor.dim(), list(self._sizes(source))
        if what != "cumsum":
            sizes[place : place + 1] = [1] if named.get("keepdim") else []
        target = self._make(result, sizes)
        return target if reduction(self._trace, what, source, place, target, line) else None
