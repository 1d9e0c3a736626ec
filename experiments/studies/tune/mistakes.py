"""Changes planted into a kernel module of Triton: mistakes that a judge must refuse, and harmless ones it must pass.

Each changes the module's syntax tree at one place or at all of them.
"""

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


def called(node: ast.AST, *names: str) -> ast.Call | None:
    return node if isinstance(node, ast.Call) and ast.unparse(node.func) in names else None


def expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def rewritten(template: str, *names: str) -> Change:
    """Calls of ``names`` as ``template`` has them: ``{call}`` is the call, ``{0}`` its first argument."""

    def change(node: ast.AST) -> ast.AST | None:
        call = called(node, *names)
        return (
            expression(template.format(*map(ast.unparse, call.args), call=ast.unparse(call)))
            if call
            else None
        )

    return change


def first_argument(template: str, *names: str) -> Change:
    """Calls of ``names`` with another first argument; ``{0}`` in ``template`` is the one that they have."""

    def change(node: ast.AST) -> ast.AST | None:
        call = called(node, *names)
        if call is not None:
            call.args[0] = expression(template.format(ast.unparse(call.args[0])))
        return call

    return change


def compared(found: type[ast.cmpop], other: type[ast.cmpop]) -> Change:
    """A comparison by another operator."""

    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], found):
            node.ops[0] = other()
            return node
        return None

    return change


def other_axis(axis: ast.AST | None) -> ast.Constant | None:
    """The number of another axis."""
    if isinstance(axis, ast.Constant) and isinstance(axis.value, int):
        return ast.Constant(axis.value - 1 if axis.value else 1)
    return None


def planted(source: str, kinds: Mapping[str, Kind]) -> Iterator[tuple[str, str]]:
    """Name and source of each changed module, one for each of the first places of a kind; none that says the same."""
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


def _tail_short(node: ast.AST) -> ast.AST | None:
    """A bound that leaves out the last element."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        node.comparators[0] = ast.BinOp(node.comparators[0], ast.Sub(), ast.Constant(1))
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


def _stride(node: ast.AST) -> ast.AST | None:
    """Rows for columns."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "stride":
        axis = other_axis(node.args[0] if node.args else None)
        if axis is not None:
            node.args[0] = axis
            return node
    return None


def _size(node: ast.AST) -> ast.AST | None:
    """Another axis' size."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(".shape"):
        axis = other_axis(node.slice)
        if axis is not None:
            node.slice = axis
            return node
    return None


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
    """What a call gives, rounded to a narrower type first."""
    return rewritten(f"({{call}}).to(tl.float32).to(tl.{dtype}).to(tl.float32)", *names)


def _stored_bits(dtype: str) -> Change:
    """What is stored, rounded to a narrower type first."""

    def change(node: ast.AST) -> ast.AST | None:
        call = called(node, "tl.store")
        if call is None or len(call.args) < 2:
            return None
        call.args[1] = expression(
            f"({ast.unparse(call.args[1])}).to(tl.float32).to(tl.{dtype}).to(tl.float32)"
        )
        return call

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


def _store_if(condition: str) -> Change:
    """A store that some programs leave out, as where two write one place."""

    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Expr) and called(node.value, "tl.store"):
            return ast.parse(f"if {condition}:\n    {ast.unparse(node)}").body[0]
        return None

    return change


def _loop(plain: str, up: str, down: str) -> Change:
    """A loop that ends elsewhere: of ``stop`` alone, and of ``start``, ``stop`` and a rising or falling ``step``."""

    def change(node: ast.AST) -> ast.AST | None:
        if not (isinstance(node, ast.For) and (call := called(node.iter, "range", "tl.range"))):
            return None
        if len(call.args) == 3:
            start, stop, step = map(ast.unparse, call.args)
            template = down if step.startswith("-") else up
            call.args[1] = expression(template.format(start=start, stop=stop, step=step, size=step[1:]))
        else:
            call.args[-1] = expression(plain.format(stop=ast.unparse(call.args[-1])))
        return node

    return change


_NOT_LAST = "tl.program_id(0) < tl.num_programs(0) - 1 or tl.program_id(0) == 0"
_SHORT_LOOP = _loop(
    "{stop} - (1 if {stop} > 1 else 0)",
    "{stop} - ({step} if {stop} > {step} else 0)",
    "{size} if {start} > {size} else {stop}",
)
_TWO_STEPS = _loop(
    "min({stop}, 2)", "min({stop}, {start} + 2 * ({step}))", "max({start} + 2 * ({step}), {stop})"
)
_WHOLE_BLOCKS = rewritten("max({0} // ({1}), 1)", "tl.cdiv", "triton.cdiv")


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


def _begins_at(value: float) -> Change:
    """A running largest value, or what stands in for one, that begins at a number and not below all."""

    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-float('inf')":
            return expression(str(value))
        return None

    return change


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


MISTAKES: Mapping[str, Kind] = {
    "tail: last element left out": Kind(_tail_short, 3),
    "tail: one element more": Kind(compared(ast.Lt, ast.LtE), 3),
    "tail: loads unmasked": Kind(_unmasked("tl.load"), 0),
    "tail: stores unmasked": Kind(_unmasked("tl.store"), 0),
    "tail: other padding": Kind(_padding, 2),
    "place: neighbour's element": Kind(first_argument("{0} + 1", "tl.load"), 3),
    "place: another stride": Kind(_stride, 3, launch=True),
    "place: another axis' size": Kind(_size, 3, launch=True),
    "stale: an eighth too small": Kind(rewritten("{call} * 0.875", "tl.sum", "tl.dot", "tl.max"), 2),
    "stale: a step forgotten": Kind(_forgotten, 9),
    "stale: the first turn's load": Kind(_first_alone, 2),
    "precision: products in bfloat16": Kind(_bits("bfloat16", "tl.dot"), 0),
    "precision: products in float16": Kind(_bits("float16", "tl.dot"), 0),
    "precision: sums in bfloat16": Kind(_bits("bfloat16", "tl.sum"), 0),
    "precision: sums in float16": Kind(_bits("float16", "tl.sum"), 0),
    "precision: functions in bfloat16": Kind(_bits("bfloat16", "tl.exp", "tl.log", "tl.rsqrt", "tl.sigmoid"), 0),
    "precision: stored by way of bfloat16": Kind(_stored_bits("bfloat16"), 0),
    "precision: stored by way of float16": Kind(_stored_bits("float16"), 0),
    "precision: stored by way of float8": Kind(_stored_bits("float8e4nv"), 0),
    "precision: accumulated in bfloat16": Kind(_rounded_sum("bfloat16"), 0),
    "precision: accumulated in float16": Kind(_rounded_sum("float16"), 0),
    "precision: loads not widened": Kind(_uncast, 0),
    "precision: inputs in float8": Kind(_bits("float8e4nv", "tl.load"), 0),
    "race: every fifth store lost": Kind(_store_if("tl.program_id(0) % 5 != 1"), 3),
    "race: the last program's store lost": Kind(_store_if(_NOT_LAST), 2),
    "loop: ends a step early": Kind(_SHORT_LOOP, 2),
    "loop: two steps at most": Kind(_TWO_STEPS, 2),
    "loop: whole blocks alone": Kind(_WHOLE_BLOCKS, 3),
    "unwritten: whole blocks of the grid alone": Kind(_WHOLE_BLOCKS, 2, launch=True),
    "unwritten: a program less": Kind(_small_grid, 2, launch=True),
    "values: zeros are one": Kind(_values("x == 0", "1.0"), 2),
    "values: below -3 is positive": Kind(_values("x < -3.0", "-x"), 2),
    "values: clipped at 8": Kind(_values("x > 8.0", "8.0"), 2),
    "values: clipped at 100": Kind(_values("x > 100.0", "100.0"), 2),
    "values: clipped at -100": Kind(_values("x < -100.0", "-100.0"), 2),
    "values: small ones are zero": Kind(_values("tl.abs(x) < 0.002", "0.0"), 2),
    "values: no stabiliser": Kind(rewritten("{call} * 0.0", "tl.max"), 1),
    "values: the largest forgets": Kind(rewritten("{0}", "tl.maximum"), 2),
    "values: exponents clipped": Kind(first_argument("tl.maximum({0}, -4.0)", "tl.exp", "tl.exp2"), 2),
    "values: epsilon left out": Kind(_epsilon("0.0"), 0),
    "values: epsilon ten times": Kind(_epsilon("10.0"), 0),
    "values: begins at zero": Kind(_begins_at(0.0), 3),
    "values: begins at -100": Kind(_begins_at(-100.0), 3),
    "values: the later of equals": Kind(compared(ast.Gt, ast.GtE), 2),
    "values: a case forgotten": Kind(_case_forgotten, 2),
    "values: no absolute": Kind(rewritten("{0}", "tl.abs"), 2),
    "values: no rounding": Kind(rewritten("{0}", "tl.floor", "tl.ceil", "libdevice.rint", "libdevice.round"), 2),
    "place: another program's": Kind(rewritten("{call} // 2 * 2", "tl.program_id"), 3),
    "sign": Kind(_sign, 2),
}  # fmt: skip
"""By name: what a hurried or a clever mutation does wrong."""


def _reciprocal(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return expression(f"({ast.unparse(node.left)}) * (1.0 / ({ast.unparse(node.right)}))")
    return None


def _fused(node: ast.AST) -> ast.AST | None:
    call = called(node.value, "tl.dot") if isinstance(node, ast.AugAssign) else None
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
    "exp2 for exp": Kind(rewritten("tl.exp2(({0}) * 1.4426950408889634)", "tl.exp"), 0),
    "a reciprocal for a quotient": Kind(_reciprocal, 0),
    "a quotient for rsqrt": Kind(rewritten("1.0 / tl.sqrt({0})", "tl.rsqrt"), 0),
    "exp for sigmoid": Kind(rewritten("1.0 / (1.0 + tl.exp(-({0})))", "tl.sigmoid"), 0),
    "products added in the unit": Kind(_fused, 0),
    "operands the other way round": Kind(_swapped, 0),
    "log2 for log": Kind(rewritten("tl.log2({0}) * 0.6931471805599453", "tl.log"), 0),
}
"""By name: roundings in another order, which no recipe forbids."""
