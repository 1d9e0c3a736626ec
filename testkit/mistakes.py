"""Mistakes to plant in a kernel module of Triton: what a judge must refuse."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from testkit.planting import Change, Kind, called, expression, keyword


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
        call = called(node, *names)
        if call is None or keyword(call, "mask") is None:
            return None
        call.keywords = [k for k in call.keywords if k.arg not in ("mask", "other")]
        return call

    return change


def _padding(node: ast.AST) -> ast.AST | None:
    """What stands in for elements beyond the end."""
    call = called(node, "tl.load")
    other = call and keyword(call, "other")
    if call is None or other is None:
        return None
    other.value = ast.Constant(0.0 if "inf" in ast.unparse(other.value) else 1.0)
    return call


def _neighbour(node: ast.AST) -> ast.AST | None:
    call = called(node, "tl.load")
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
    call = called(node, "tl.sum", "tl.dot", "tl.max")
    return ast.BinOp(call, ast.Mult(), ast.Constant(0.875)) if call is not None else None


def _forgotten(node: ast.AST) -> ast.AST | None:
    """A step that is left out: a pointer, a scale or a running value stays that of an earlier one."""
    return ast.Pass() if isinstance(node, ast.AugAssign) else None


def _first_alone(node: ast.AST) -> ast.AST | None:
    """Loads in a loop that are those of its first turn."""
    call = called(node, "tl.load")
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
    call.args[0] = expression(changed)
    return call


def _bits(dtype: str, *names: str) -> Change:
    """What a call gives, or stores, rounded to a narrower type first."""

    def change(node: ast.AST) -> ast.AST | None:
        call = called(node, *names)
        if call is None:
            return None
        if names == ("tl.store",):
            if len(call.args) < 2:
                return None
            call.args[1] = expression(
                f"({ast.unparse(call.args[1])}).to(tl.float32).to(tl.{dtype}).to(tl.float32)"
            )
            return call
        return expression(f"({ast.unparse(call)}).to(tl.float32).to(tl.{dtype}).to(tl.float32)")

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
        product = called(node.value, "tl.dot") if isinstance(node, ast.Assign) else None
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
    value = node.value if isinstance(node, ast.Expr) else None
    if value is not None and called(value, "tl.store"):
        return ast.parse(f"if tl.program_id(0) % 5 != 1:\n    {ast.unparse(node)}").body[0]
    return None


def _late(node: ast.AST) -> ast.AST | None:
    """A store that programs far into the grid leave out."""
    value = node.value if isinstance(node, ast.Expr) else None
    if value is not None and called(value, "tl.store"):
        return ast.parse(
            f"if tl.program_id(0) < tl.num_programs(0) - 1 or tl.program_id(0) == 0:\n    {ast.unparse(node)}"
        ).body[0]
    return None


def _short_loop(node: ast.AST) -> ast.AST | None:
    """A loop that ends one step early where it has several."""
    if isinstance(node, ast.For) and (call := called(node.iter, "range", "tl.range")):
        if len(call.args) == 3:
            start, stop, step = map(ast.unparse, call.args)
            if step.startswith("-"):
                call.args[1] = expression(f"{step[1:]} if {start} > {step[1:]} else {stop}")
            else:
                call.args[1] = expression(f"{stop} - ({step} if {stop} > {step} else 0)")
        else:
            stop = ast.unparse(call.args[-1])
            call.args[-1] = expression(f"{stop} - (1 if {stop} > 1 else 0)")
        return node
    return None


def _two_steps(node: ast.AST) -> ast.AST | None:
    """A loop that runs twice at most."""
    if isinstance(node, ast.For) and (call := called(node.iter, "range", "tl.range")):
        if len(call.args) == 3:
            start, stop, step = map(ast.unparse, call.args)
            if step.startswith("-"):
                call.args[1] = expression(f"max({start} + 2 * ({step}), {stop})")
            else:
                call.args[1] = expression(f"min({stop}, {start} + 2 * ({step}))")
        else:
            call.args[-1] = expression(f"min({ast.unparse(call.args[-1])}, 2)")
        return node
    return None


def _whole_blocks(node: ast.AST) -> ast.AST | None:
    """A count of blocks without the last part."""
    call = called(node, "tl.cdiv", "triton.cdiv")
    if call is None:
        return None
    size, block = map(ast.unparse, call.args)
    return expression(f"max({size} // ({block}), 1)")


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
            grid.elts[0] = expression(f"max({first} - 1, 1)")
            return node
    return None


def _values(condition: str, value: str) -> Change:
    """A loaded value that is another one where ``condition`` holds of ``x``."""

    def change(node: ast.AST) -> ast.AST | None:
        call = called(node, "tl.load")
        if call is None or any(w in ast.unparse(call.args[0]) for w in ("label", "seq", "idx", "cu_")):
            return None
        text = ast.unparse(call)
        x = f"({text})"
        wide = f"{x}.to(tl.float32)"
        return expression(
            f"tl.where({condition.replace('x', wide)}, {value.replace('x', wide)}, {wide}).to({x}.dtype)"
        )

    return change


def _stabiliser(node: ast.AST) -> ast.AST | None:
    """The largest value that exponents are taken relative to, left out."""
    call = called(node, "tl.max")
    return ast.BinOp(call, ast.Mult(), ast.Constant(0.0)) if call is not None else None


def _maximum_alone(node: ast.AST) -> ast.AST | None:
    """A running largest value that forgets what went before."""
    call = called(node, "tl.maximum")
    return call.args[0] if call is not None else None


def _epsilon(factor: str) -> Change:
    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Name) and node.id in ("eps", "epsilon") and isinstance(node.ctx, ast.Load):
            return expression(f"{node.id} * {factor}")
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
    call = called(node, "tl.exp", "tl.exp2")
    if call is None:
        return None
    call.args[0] = expression(f"tl.maximum({ast.unparse(call.args[0])}, -4.0)")
    return call


def _begins_at(value: float) -> Change:
    """A running largest value, or what stands in for one, that begins at a number and not below all."""

    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-float('inf')":
            return expression(str(value))
        return None

    return change


def _later_equal(node: ast.AST) -> ast.AST | None:
    """Of equals the later one."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt):
        node.ops[0] = ast.GtE()
        return node
    return None


def _case_forgotten(node: ast.AST) -> ast.AST | None:
    """A value that is treated as any other: a label that is ignored."""
    if (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.Eq)
    ):
        node.test = ast.Constant(False)
        return node
    return None


def _without(*names: str) -> Change:
    """A function's argument in its place."""

    def change(node: ast.AST) -> ast.AST | None:
        call = called(node, *names)
        return call.args[0] if call is not None else None

    return change


def _other_program(node: ast.AST) -> ast.AST | None:
    """Programs in pairs that do one's work."""
    call = called(node, "tl.program_id")
    return expression(f"{ast.unparse(call)} // 2 * 2") if call is not None else None


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
    "values: begins at zero": Kind(_begins_at(0.0), 3),
    "values: begins at -100": Kind(_begins_at(-100.0), 3),
    "values: the later of equals": Kind(_later_equal, 2),
    "values: a case forgotten": Kind(_case_forgotten, 2),
    "values: no absolute": Kind(_without("tl.abs"), 2),
    "values: no rounding": Kind(_without("tl.floor", "tl.ceil", "libdevice.rint", "libdevice.round"), 2),
    "place: another program's": Kind(_other_program, 3),
    "sign": Kind(_sign, 2),
}  # fmt: skip
"""By name: what a hurried or a clever mutation does wrong."""
