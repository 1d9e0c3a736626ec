"""Mistakes to plant in a kernel module of Triton, and harmless changes: what a judge must tell apart.

Each is a change of the syntax tree at one place; ``planted`` yields a source for each of the first places it finds.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Change = Callable[[ast.AST], ast.AST | None]


@dataclass(frozen=True)
class Kind:
    """A change; at how many places a module is changed, one at a time, or (0) at all of them at once; in the kernels,
    or in ``launch``."""

    change: Change
    places: int = 1
    launch: bool = False


def _called(node: ast.AST, *names: str) -> ast.Call | None:
    return node if isinstance(node, ast.Call) and ast.unparse(node.func) in names else None


def _text(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def _tail_short(node: ast.AST) -> ast.AST | None:
    """A bound that leaves out the last element."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        node.comparators[0] = ast.BinOp(node.comparators[0], ast.Sub(), ast.Constant(1))
        return node
    return None


def _tail_long(node: ast.AST) -> ast.AST | None:
    """A bound that takes in one element more."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        node.ops[0] = ast.LtE()
        return node
    return None


def _unmasked(*names: str) -> Change:
    def change(node: ast.AST) -> ast.AST | None:
        call = _called(node, *names)
        if call is None or _keyword(call, "mask") is None:
            return None
        call.keywords = [k for k in call.keywords if k.arg not in ("mask", "other")]
        return call

    return change


def _padding(node: ast.AST) -> ast.AST | None:
    """What stands in for elements beyond the end."""
    call = _called(node, "tl.load")
    other = call and _keyword(call, "other")
    if call is None or other is None:
        return None
    other.value = ast.Constant(0.0 if "inf" in ast.unparse(other.value) else 1.0)
    return call


def _neighbour(node: ast.AST) -> ast.AST | None:
    call = _called(node, "tl.load")
    if call is None:
        return None
    call.args[0] = ast.BinOp(call.args[0], ast.Add(), ast.Constant(1))
    return call


def _stride(node: ast.AST) -> ast.AST | None:
    """Rows for columns."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "stride":
        axis = node.args[0] if node.args else None
        if isinstance(axis, ast.Constant) and isinstance(axis.value, int):
            node.args[0] = ast.Constant(axis.value - 1 if axis.value else 1)
            return node
    return None


def _size(node: ast.AST) -> ast.AST | None:
    """Another axis' size."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(".shape"):
        axis = node.slice
        if isinstance(axis, ast.Constant) and isinstance(axis.value, int):
            node.slice = ast.Constant(axis.value - 1 if axis.value else 1)
            return node
    return None


def _stale_sum(node: ast.AST) -> ast.AST | None:
    """A sum, a largest value or a product that is an eighth too small, as one of an earlier step is."""
    call = _called(node, "tl.sum", "tl.dot", "tl.max")
    return ast.BinOp(call, ast.Mult(), ast.Constant(0.875)) if call is not None else None


def _forgotten(node: ast.AST) -> ast.AST | None:
    """A step that is left out: a pointer, a scale or a running value stays that of an earlier one."""
    return ast.Pass() if isinstance(node, ast.AugAssign) else None


def _first_alone(node: ast.AST) -> ast.AST | None:
    """Loads in a loop that are those of its first turn."""
    call = _called(node, "tl.load")
    if call is None or not isinstance(call.args[0], ast.BinOp):
        return None
    names = [
        n
        for n in ast.walk(call.args[0])
        if isinstance(n, ast.Name) and n.id in ("i", "k", "start_n", "offset")
    ]
    if not names:
        return None
    changed = re.sub(rf"\b{names[0].id}\b", "0", ast.unparse(call.args[0]))
    call.args[0] = _text(changed)
    return call


def _bits(dtype: str, *names: str) -> Change:
    """What a call gives, or stores, rounded to a narrower type first."""

    def change(node: ast.AST) -> ast.AST | None:
        call = _called(node, *names)
        if call is None:
            return None
        if names == ("tl.store",):
            if len(call.args) < 2:
                return None
            call.args[1] = _text(
                f"({ast.unparse(call.args[1])}).to(tl.float32).to(tl.{dtype}).to(tl.float32)"
            )
            return call
        return _text(f"({ast.unparse(call)}).to(tl.float32).to(tl.{dtype}).to(tl.float32)")

    return change


def _rounded_sum(dtype: str) -> Change:
    """An accumulator that is kept in a narrower type from step to step."""

    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            name, value = ast.unparse(node.target), ast.unparse(node.value)
            if (
                "ptr" not in name
                and not name[0].isupper()
                and any(w in value for w in ("dot", "sum", "*", "b_yi"))
            ):
                return ast.parse(f"{name} = ({name} + {value}).to(tl.{dtype}).to(tl.float32)").body[0]
        product = _called(node.value, "tl.dot") if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and product is not None and len(product.args) == 3:
            name = ast.unparse(node.targets[0])
            return ast.parse(f"{name} = {ast.unparse(product)}.to(tl.{dtype}).to(tl.float32)").body[0]
        return None

    return change


def _uncast(node: ast.AST) -> ast.AST | None:
    """A load that stays in its narrow type."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to"):
        return None
    widened = ast.unparse(node.args[0]) == "tl.float32" and "tl.load" in ast.unparse(node.func.value)
    return node.func.value if widened else None


def _lost(node: ast.AST) -> ast.AST | None:
    """A store of which every fifth program's is lost, as where two write one place."""
    called = node.value if isinstance(node, ast.Expr) else None
    if called is not None and _called(called, "tl.store"):
        return ast.parse(f"if tl.program_id(0) % 5 != 1:\n    {ast.unparse(node)}").body[0]
    return None


def _late(node: ast.AST) -> ast.AST | None:
    """A store that programs far into the grid leave out."""
    called = node.value if isinstance(node, ast.Expr) else None
    if called is not None and _called(called, "tl.store"):
        return ast.parse(
            f"if tl.program_id(0) < tl.num_programs(0) - 1 or tl.program_id(0) == 0:\n    {ast.unparse(node)}"
        ).body[0]
    return None


def _short_loop(node: ast.AST) -> ast.AST | None:
    """A loop that ends one step early where it has several."""
    if isinstance(node, ast.For) and (call := _called(node.iter, "range", "tl.range")):
        if len(call.args) == 3:
            start, stop, step = map(ast.unparse, call.args)
            if step.startswith("-"):
                call.args[1] = _text(f"{step[1:]} if {start} > {step[1:]} else {stop}")
            else:
                call.args[1] = _text(f"{stop} - ({step} if {stop} > {step} else 0)")
        else:
            stop = ast.unparse(call.args[-1])
            call.args[-1] = _text(f"{stop} - (1 if {stop} > 1 else 0)")
        return node
    return None


def _two_steps(node: ast.AST) -> ast.AST | None:
    """A loop that runs twice at most."""
    if isinstance(node, ast.For) and (call := _called(node.iter, "range", "tl.range")):
        if len(call.args) == 3:
            start, stop, step = map(ast.unparse, call.args)
            if step.startswith("-"):
                call.args[1] = _text(f"max({start} + 2 * ({step}), {stop})")
            else:
                call.args[1] = _text(f"min({stop}, {start} + 2 * ({step}))")
        else:
            call.args[-1] = _text(f"min({ast.unparse(call.args[-1])}, 2)")
        return node
    return None


def _whole_blocks(node: ast.AST) -> ast.AST | None:
    """A count of blocks without the last part."""
    call = _called(node, "tl.cdiv", "triton.cdiv")
    if call is None:
        return None
    size, block = map(ast.unparse, call.args)
    return _text(f"max({size} // ({block}), 1)")


def _small_grid(node: ast.AST) -> ast.AST | None:
    """One program less, where there are several."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.ctx, ast.Load)
    ):
        grid = node.slice
        if isinstance(grid, ast.Tuple) and not getattr(node, "done", False):
            first = ast.unparse(grid.elts[0])
            grid.elts[0] = _text(f"max({first} - 1, 1)")
            return node
    return None


def _values(condition: str, value: str) -> Change:
    """A loaded value that is another one where ``condition`` holds of ``x``."""

    def change(node: ast.AST) -> ast.AST | None:
        call = _called(node, "tl.load")
        if call is None or any(w in ast.unparse(call.args[0]) for w in ("label", "seq", "idx", "cu_")):
            return None
        text = ast.unparse(call)
        x = f"({text})"
        wide = f"{x}.to(tl.float32)"
        return _text(
            f"tl.where({condition.replace('x', wide)}, {value.replace('x', wide)}, {wide}).to({x}.dtype)"
        )

    return change


def _stabiliser(node: ast.AST) -> ast.AST | None:
    """The largest value that exponents are taken relative to, left out."""
    call = _called(node, "tl.max")
    return ast.BinOp(call, ast.Mult(), ast.Constant(0.0)) if call is not None else None


def _maximum_alone(node: ast.AST) -> ast.AST | None:
    """A running largest value that forgets what went before."""
    call = _called(node, "tl.maximum")
    return call.args[0] if call is not None else None


def _epsilon(factor: str) -> Change:
    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Name) and node.id in ("eps", "epsilon") and isinstance(node.ctx, ast.Load):
            return _text(f"{node.id} * {factor}")
        return None

    return change


def _sign(node: ast.AST) -> ast.AST | None:
    """A sum for a difference."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and "load" not in ast.unparse(node):
        node.op = ast.Add()
        return node
    return None


def _flush(node: ast.AST) -> ast.AST | None:
    """Exponents clipped, as of a fast approximation."""
    call = _called(node, "tl.exp", "tl.exp2")
    if call is None:
        return None
    call.args[0] = _text(f"tl.maximum({ast.unparse(call.args[0])}, -4.0)")
    return call


MISTAKES: Mapping[str, Kind] = {
    "tail: last element left out": Kind(_tail_short, 3),
    "tail: one element more": Kind(_tail_long, 3),
    "tail: loads unmasked": Kind(_unmasked("tl.load"), 0),
    "tail: stores unmasked": Kind(_unmasked("tl.store"), 0),
    "tail: other padding": Kind(_padding, 2),
    "place: neighbour's element": Kind(_neighbour, 3),
    "place: another stride": Kind(_stride, 3, launch=True),
    "place: another axis' size": Kind(_size, 3, launch=True),
    "stale: an eighth too small": Kind(_stale_sum, 2),
    "stale: a step forgotten": Kind(_forgotten, 9),
    "stale: the first turn's load": Kind(_first_alone, 2),
    "precision: products in bfloat16": Kind(_bits("bfloat16", "tl.dot"), 0),
    "precision: products in float16": Kind(_bits("float16", "tl.dot"), 0),
    "precision: sums in bfloat16": Kind(_bits("bfloat16", "tl.sum"), 0),
    "precision: sums in float16": Kind(_bits("float16", "tl.sum"), 0),
    "precision: functions in bfloat16": Kind(_bits("bfloat16", "tl.exp", "tl.log", "tl.rsqrt", "tl.sigmoid"), 0),
    "precision: stored by way of bfloat16": Kind(_bits("bfloat16", "tl.store"), 0),
    "precision: stored by way of float16": Kind(_bits("float16", "tl.store"), 0),
    "precision: stored by way of float8": Kind(_bits("float8e4nv", "tl.store"), 0),
    "precision: accumulated in bfloat16": Kind(_rounded_sum("bfloat16"), 0),
    "precision: accumulated in float16": Kind(_rounded_sum("float16"), 0),
    "precision: loads not widened": Kind(_uncast, 0),
    "precision: inputs in float8": Kind(_bits("float8e4nv", "tl.load"), 0),
    "race: every fifth store lost": Kind(_lost, 3),
    "race: the last program's store lost": Kind(_late, 2),
    "loop: ends a step early": Kind(_short_loop, 2),
    "loop: two steps at most": Kind(_two_steps, 2),
    "loop: whole blocks alone": Kind(_whole_blocks, 3),
    "unwritten: whole blocks of the grid alone": Kind(_whole_blocks, 2, launch=True),
    "unwritten: a program less": Kind(_small_grid, 2, launch=True),
    "values: zeros are one": Kind(_values("x == 0", "1.0"), 2),
    "values: below -3 is positive": Kind(_values("x < -3.0", "-x"), 2),
    "values: clipped at 8": Kind(_values("x > 8.0", "8.0"), 2),
    "values: clipped at 100": Kind(_values("x > 100.0", "100.0"), 2),
    "values: clipped at -100": Kind(_values("x < -100.0", "-100.0"), 2),
    "values: small ones are zero": Kind(_values("tl.abs(x) < 0.002", "0.0"), 2),
    "values: no stabiliser": Kind(_stabiliser, 1),
    "values: the largest forgets": Kind(_maximum_alone, 2),
    "values: exponents clipped": Kind(_flush, 2),
    "values: epsilon left out": Kind(_epsilon("0.0"), 0),
    "values: epsilon ten times": Kind(_epsilon("10.0"), 0),
    "sign": Kind(_sign, 2),
}  # fmt: skip
"""By name: what a hurried or a clever mutation does wrong."""


def _exp2(node: ast.AST) -> ast.AST | None:
    call = _called(node, "tl.exp")
    return _text(f"tl.exp2(({ast.unparse(call.args[0])}) * 1.4426950408889634)") if call else None


def _reciprocal(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _text(f"({ast.unparse(node.left)}) * (1.0 / ({ast.unparse(node.right)}))")
    return None


def _root(node: ast.AST) -> ast.AST | None:
    call = _called(node, "tl.rsqrt")
    return _text(f"1.0 / tl.sqrt({ast.unparse(call.args[0])})") if call else None


def _logistic(node: ast.AST) -> ast.AST | None:
    call = _called(node, "tl.sigmoid")
    return _text(f"1.0 / (1.0 + tl.exp(-({ast.unparse(call.args[0])})))") if call else None


def _fused(node: ast.AST) -> ast.AST | None:
    call = _called(node.value, "tl.dot") if isinstance(node, ast.AugAssign) else None
    if not isinstance(node, ast.AugAssign) or call is None or len(call.args) != 2 or call.keywords:
        return None
    name = ast.unparse(node.target)
    first, second = map(ast.unparse, call.args)
    return ast.parse(f"{name} = tl.dot({first}, {second}, {name})").body[0]


def _swapped(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if "load" not in left + right and "offs" not in left + right:
            node.left, node.right = node.right, node.left
            return node
    return None


HARMLESS: Mapping[str, Kind] = {
    "exp2 for exp": Kind(_exp2, 0),
    "a reciprocal for a quotient": Kind(_reciprocal, 0),
    "a quotient for rsqrt": Kind(_root, 0),
    "exp for sigmoid": Kind(_logistic, 0),
    "products added in the unit": Kind(_fused, 0),
    "operands the other way round": Kind(_swapped, 0),
}
"""By name: roundings in another order, which no recipe forbids."""


def planted(source: str, kinds: Mapping[str, Kind] = MISTAKES) -> Iterator[tuple[str, str]]:
    """Name and source of each changed module, those that say the same left out."""
    seen = {ast.unparse(ast.parse(source))}
    for name, kind in kinds.items():
        for number in range(max(kind.places, 1)):
            tree = ast.parse(source)
            walker = _Planted(kind.change, number if kind.places else None)
            for function in tree.body:
                if isinstance(function, ast.FunctionDef) and _meant(function, kind.launch):
                    walker.visit(function)
            if not walker.done:
                break
            text = ast.unparse(ast.fix_missing_locations(tree))
            if text not in seen:
                seen.add(text)
                yield (f"{name} ({number + 1})" if kind.places > 1 else name), text


def _meant(function: ast.FunctionDef, launch: bool) -> bool:
    if launch or function.name == "launch":
        return launch and function.name == "launch"
    return not function.name.startswith(("torch_", "copy_argument"))


class _Planted(ast.NodeTransformer):
    """Changes the place of a number, or every one."""

    def __init__(self, change: Change, place: int | None) -> None:
        self._change, self._place, self._met, self.done = change, place, 0, False

    def visit(self, node: ast.AST) -> ast.AST:
        if self._place is not None and self.done:
            return node
        made = self._change(copy.deepcopy(node))
        if made is not None:
            self._met += 1
            if self._place is None or self._met - 1 == self._place:
                self.done = True
                return ast.copy_location(made, node)
        found: ast.AST = self.generic_visit(node)
        return found
