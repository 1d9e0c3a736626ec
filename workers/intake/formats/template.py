"""Writes a plain Triton kernel for a problem whose reference is of a family that a template knows.

A problem is a KernelBench file, or a flashinfer-bench Definition with a call.

Families: element by element; along one axis (sums, means, largest and smallest values, and what is done with them); a
product of two matrices with what follows it element by element. The text is a user's file like any other, which is
then taken in as it stands. This module is a program: it reads a request ``{"path", "calls"}`` as JSON from stdin and
writes ``{"source", "function", "call"}``, or ``{"refusals"}`` and the call, where the problem says it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.workers.intake.calls.call_text import DTYPES, parse
from tilewright.workers.intake.child_program import Answer, Request, answer_request, first_line, refused
from tilewright.workers.intake.formats.template_text import (
    FUNCTION,
    Step,
    matmul_text,
    pointwise_text,
    rows_text,
)
from tilewright.workers.intake.judge.reference import function_of
from tilewright.workers.intake.source.load import load

SHORT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}

POINTWISE: Mapping[str, str] = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})", "neg": "(-{0})",
    "exp": "tl.exp({0})", "log": "tl.log({0})", "sqrt": "tl.sqrt({0})", "rsqrt": "tl.rsqrt({0})",
    "abs": "tl.abs({0})", "relu": "tl.maximum({0}, 0.0)", "sigmoid": "tl.sigmoid({0})", "erf": "tl.erf({0})",
    "tanh": "(2.0 * tl.sigmoid(2.0 * {0}) - 1.0)", "maximum": "tl.maximum({0}, {1})", "expm1": "(tl.exp({0}) - 1.0)",
    "minimum": "tl.minimum({0}, {1})", "where": "tl.where({0}, {1}, {2})", "log1p": "tl.log(1.0 + {0})",
    "gt": "({0} > {1})", "ge": "({0} >= {1})", "lt": "({0} < {1})", "le": "({0} <= {1})", "reciprocal": "(1.0 / {0})",
}  # fmt: skip
"""Operations of torch, element by element, as the kernel's language says them."""

REDUCED: Mapping[str, tuple[str, str, str]] = {
    "sum": ("0.0", "{0} + {1}", "tl.sum({0}, axis=0)"),
    "mean": ("0.0", "{0} + {1}", "tl.sum({0}, axis=0) / n"),
    "amax": ('float("-inf")', "tl.maximum({0}, {1})", "tl.max({0}, axis=0)"),
    "amin": ('float("inf")', "tl.minimum({0}, {1})", "tl.min({0}, axis=0)"),
}
"""Reductions: where they begin, how an element joins, and what is left of a block."""

MOST_MADE = 1 << 26
"""Elements up to which inputs are made, where integers among them have a bound to find."""

SHAPED = (
    "_to_copy",
    "to",
    "view",
    "_unsafe_view",
    "expand",
    "squeeze",
    "unsqueeze",
    "clone",
    "detach",
    "alias",
    "reshape",
)
PRODUCTS = ("mm", "bmm")
DECOMPOSED = (
    "_softmax _log_softmax gelu elu leaky_relu hardtanh softplus hardsigmoid hardswish silu selu mish "
    "log_sigmoid_forward softsign threshold linalg_vector_norm norm addmm baddbmm rsub square addcmul celu"
)


class Unfit(Exception):
    """The reference is of no family that a template knows. The message is one sentence."""


@dataclass(frozen=True)
class Problem:
    """What is computed, on tensors without memory, and how ``--args`` says it. ``why``: what no template can do about
    it, empty where one may."""

    compute: Callable[..., Any]
    inputs: Sequence[torch.Tensor]
    call: str
    why: str = ""


def written(path: Path, call: str = "") -> dict[str, Any]:
    """The answer for a problem's file. Raises Unfit."""
    problem = read(path, call)
    if problem.why:
        raise Unfit(problem.why)
    if not problem.inputs or not all(t.dtype in SHORT for t in problem.inputs):
        raise Unfit("its inputs are not tensors of floats alone")
    graph = _graph(problem.compute, problem.inputs)
    name = re.sub(r"^[0-9_]+|[^a-z0-9_]|_+$", "", path.stem.lower()) or FUNCTION
    return {"source": _text(graph, path.name).replace(FUNCTION, name), "function": name, "call": problem.call}


def read(path: Path, call: str = "") -> Problem:
    """The problem in a file. ``call``: for a Definition, which says none. Raises Unfit."""
    if path.suffix == ".json":
        given = parse(call)
        inputs = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in given.tensors()]
        other = len(inputs) < len(given.arguments) or given.keywords
        return Problem(
            function_of(f"{path}:run"), inputs, call, "it is called with numbers or lists" if other else ""
        )
    module, _ = load(path, None, traced=False)
    if not all(hasattr(module, name) for name in ("Model", "get_inputs")):
        raise Unfit("it has no Model and get_inputs")
    with torch.device("meta"):
        made = module.Model(*getattr(module, "get_init_inputs", list)())
        values = module.get_inputs()
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    integers = any(not t.is_floating_point() for t in tensors)
    if integers and sum(t.numel() for t in tensors) <= MOST_MADE:
        values = module.get_inputs()  # which says what bounds them
    weighted = next(made.parameters(), None) is not None
    why = "its model has weights, which a template gives no arguments" if weighted else ""
    if len(tensors) < len(values):
        why = "its inputs are not tensors alone"
    return Problem(made, tensors, ", ".join(map(_value_text, values)), why)


def _value_text(value: Any) -> str:
    """An input as ``--args`` has it."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value_text, value))}]"
    if not isinstance(value, torch.Tensor):
        return repr(value)
    long = str(value.dtype).removeprefix("torch.")
    text = f"{next((s for s, n in DTYPES.items() if n == long), long)}[{', '.join(map(str, value.shape))}]"
    counted = long.startswith(("int", "uint")) and value.device.type != "meta" and value.numel()
    return f"{text} < {int(value.max()) + 1}" if counted else text


def _graph(compute: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Nodes of what it computes, in torch's small set of operations. Raises Unfit."""
    from torch._decomp import get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    aten: Any = torch.ops.aten
    named = [getattr(aten, name) for name in DECOMPOSED.split() if hasattr(aten, name)]
    table: Any = get_decompositions(named)
    try:
        traced = make_fx(compute, decomposition_table=table, tracing_mode="fake")(*inputs)
    except Exception as error:
        raise Unfit(f"it cannot be traced: {type(error).__name__}: {error}".splitlines()[0][:200]) from error
    traced.graph.eliminate_dead_code()
    return list(traced.graph.nodes)


def _name(node: Any) -> str:
    return str(getattr(node.target, "_opname", getattr(node.target, "__name__", node.target)))


def _text(nodes: Sequence[Any], title: str) -> str:
    works = [n for n in nodes if n.op == "call_function"]
    unknown = {_name(n) for n in works} - {*POINTWISE, *REDUCED, *SHAPED, *PRODUCTS}
    unknown -= {
        "clamp",
        "pow",
        "permute",
        "t",
        "transpose",
        "scalar_tensor",
        "full_like",
        "full",
        "clamp_min",
        "clamp_max",
    }
    if unknown:
        raise Unfit(f"no template has {', '.join(sorted(unknown))}")
    products = [n for n in works if _name(n) in PRODUCTS]
    reductions = [n for n in works if _name(n) in REDUCED]
    inputs = [n for n in nodes if n.op == "placeholder"]
    (out,) = (n for n in nodes if n.op == "output")
    result = out.args[0][0] if isinstance(out.args[0], tuple | list) else out.args[0]
    if products and not reductions and len(products) == 1:
        return matmul_text(title, *_product(products[0], inputs, result))
    if products:
        raise Unfit("a product beside a reduction, or several products, is of no template's family")
    shape = tuple(inputs[0].meta["val"].shape)
    if any(tuple(n.meta["val"].shape) != shape for n in inputs):
        raise Unfit("its inputs have several shapes")
    writer = _Writer({n: f"v{place}" for place, n in enumerate(inputs)}, len(shape))
    if not reductions:
        return pointwise_text(title, len(inputs), writer.lines(works), writer.text(result))
    axes = {_axis(n, len(shape)) for n in reductions}
    if len(axes) != 1:
        raise Unfit("it reduces along several axes")
    axis = axes.pop()
    steps: list[Step] = []
    for node in reductions:
        before = [n for n in works[: works.index(node)] if n not in reductions]
        begin, join, end = REDUCED[_name(node)]
        name = f"r{len(steps)}"
        steps.append((name, begin, join, end, writer.lines(before), writer.text(node.args[0])))
        writer.known[node] = name
    whole = tuple(result.meta["val"].shape) == shape
    lines = writer.lines([n for n in works if n not in reductions])
    kept = _kept(result, shape, axis)
    return rows_text(title, len(inputs), axis, len(shape), steps, lines, writer.text(result), whole, kept)


def _axis(node: Any, rank: int) -> int:
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    if len(dims) != 1:
        raise Unfit("it reduces along several axes at once")
    return int(dims[0]) % rank


def _kept(result: Any, shape: Sequence[int], axis: int) -> bool:
    """Whether a reduced result keeps its axis, of size 1."""
    found = tuple(result.meta["val"].shape)
    without = (*shape[:axis], *shape[axis + 1 :])
    if found not in (tuple(shape), without, (*shape[:axis], 1, *shape[axis + 1 :])):
        raise Unfit("its result is neither of the input's shape nor of that without one axis")
    return found != without


def _product(node: Any, inputs: Sequence[Any], result: Any) -> tuple[Any, ...]:
    """(turned operands, batched, lines after the product, what is stored)."""
    turned = []
    for operand in node.args:
        swaps = 0
        while operand.op == "call_function" and _name(operand) in ("t", "transpose", "permute", *SHAPED):
            swaps += _name(operand) in ("t", "transpose", "permute")
            operand = operand.args[0]
        if operand not in inputs or operand.meta["val"].dim() not in (2, 3):
            raise Unfit("its product is not of its inputs")
        turned.append((inputs.index(operand), swaps % 2 == 1))
    if [place for place, _ in turned] != [0, 1] or len(inputs) != 2:
        raise Unfit("its product is not of its two inputs in turn")
    if any(n.meta["val"].dim() != (3 if _name(node) == "bmm" else 2) for n in inputs):
        raise Unfit("its product's operands differ in rank")
    writer = _Writer({node: "acc"}, 0)
    after = _between(node, result)
    return [side for _, side in turned], _name(node) == "bmm", writer.lines(after), writer.text(result)


def _between(first: Any, last: Any) -> list[Any]:
    """Nodes that follow the first up to the last, in order. Raises Unfit where they need anything else."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if node is first or node in found:
            return
        if node.op == "placeholder":
            raise Unfit("what follows its product needs an input again")
        for part in node.all_input_nodes:
            visit(part)
        found.append(node)

    visit(last)
    return found


class _Writer:
    """Lines of a kernel. ``known``: nodes by the names of their values."""

    def __init__(self, known: dict[Any, str], rank: int) -> None:
        self.known = known
        self._rank = rank

    def text(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            if value in self.known:
                return self.known[value]
            if _name(value) in SHAPED:
                return self.text(value.args[0])
            if _name(value) == "scalar_tensor":
                return self.text(value.args[0])
            if _name(value) in ("full_like", "full"):
                return self.text(value.args[1])
            return f"t_{value.name}"
        if isinstance(value, bool | int | float):
            return f'float("{value}")' if math.isinf(float(value)) else repr(float(value))
        raise Unfit(f"a value such as {value!r} is of no template")

    def lines(self, nodes: Sequence[Any]) -> list[str]:
        """An assignment for each node that computes."""
        made = []
        for node in nodes:
            name = _name(node)
            if name in (*SHAPED, "scalar_tensor", "full_like", "full") or node in self.known:
                continue
            if any(n not in self.known and n not in nodes for n in node.all_input_nodes):
                continue
            made.append(f"t_{node.name} = {self._expression(node, name)}")
        return made

    def _expression(self, node: Any, name: str) -> str:
        texts = [self.text(a) for a in node.args if a is not None]
        if name == "pow":
            power = node.args[1]
            known = {2: "({0} * {0})", 3: "({0} * {0} * {0})", 0.5: "tl.sqrt({0})", -1: "(1.0 / {0})"}
            if power not in known:
                raise Unfit(f"no template has a power of {power}")
            return known[power].format(texts[0])
        if name in ("clamp", "clamp_min", "clamp_max"):
            low = node.args[1] if name != "clamp_max" and len(node.args) > 1 else None
            high = (
                node.args[2]
                if name == "clamp" and len(node.args) > 2
                else node.args[1]
                if name == "clamp_max"
                else None
            )
            low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
            text = texts[0] if low is None else f"tl.maximum({texts[0]}, {self.text(low)})"
            return text if high is None else f"tl.minimum({text}, {self.text(high)})"
        if name not in POINTWISE:
            raise Unfit(f"no template has {name} there")
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            texts[1] = f"({texts[1]} * {float(alpha)!r})"
        return POINTWISE[name].format(*texts)


def answer_to(request: Request) -> Answer:
    """The kernel for the request's file, or why there is none, with the call where the problem gives it."""
    path, call = Path(request["path"]), next(iter(request.get("calls") or ()), "")
    try:
        return written(path, call)
    except Exception as error:  # noqa: BLE001 - whatever the user's file raises
        answer = refused(str(error) if isinstance(error, Unfit) else first_line(error))
        with contextlib.suppress(Exception):  # a problem that cannot be read gives no call
            answer["call"] = read(path, call).call
        return answer


if __name__ == "__main__":
    answer_request(answer_to)
