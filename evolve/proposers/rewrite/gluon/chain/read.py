"""A chain of two products in a loop as a Triton kernel writes it: scores = Q K, then sums += f(scores) V.

Read by structure: which loads the two products multiply, what stands between them, and the sum that the second one adds
to, which the first does not need.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import dedented
from tilewright.evolve.proposers.rewrite.gluon.chain.copies import Box, BoxReader
from tilewright.evolve.proposers.rewrite.gluon.chain.scale import number_in_host, unscaled
from tilewright.evolve.proposers.rewrite.gluon.chain.several import Operand, Product, RowNumbers, arranged, by_ring
from tilewright.evolve.proposers.rewrite.gluon.chain.written_out import bound_once, written_out
from tilewright.evolve.proposers.rewrite.gluon.statements import (
    Statement,
    calls,
    device_call,
    is_idle,
    names_in,
    sliced,
)
from tilewright.evolve.proposers.rewrite.gluon.tiles import in_host
from tilewright.evolve.proposers.rewrite.sums import Sum, SumReader
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel


@dataclass(frozen=True)
class Chain:
    """One loop, as texts and statements of the kernel: ``early`` statements need no scores, ``middle`` ones do,
    ``late`` ones change the sums before the second product is added to them."""

    variable: str
    start: str
    stop: str
    step: str
    left: str
    """Text of the first product's left operand."""

    key: Box
    value: Box
    early: tuple[Statement, ...]
    first: Statement
    """The statement of the first product."""

    middle: tuple[Statement, ...]
    late: tuple[Statement, ...]
    operand: str
    """Text of the second product's left operand."""

    sums: str
    """The name that the second product adds to."""

    tiles: frozenset[str]
    """Names of the tiles that the loop loads for its products."""

    scale: str = ""
    """The factor that the scores are still to be multiplied by where they are used."""

    positive: str = ""
    """Condition on that factor, for the host to check; "" for none."""

    numbers: tuple[RowNumbers, ...] = ()
    """Numbers of the loop's rows that come with a tile."""

    several: tuple[Product, ...] = ()
    """All products of a step with more than two; ``middle`` has their statements, ``first`` is one of these."""

    @property
    def products(self) -> tuple[Product, ...]:
        two = (Product(self.first, 0, turned=self.key.turned), Product(self.first, 1, 0, self.operand, self.sums))
        return self.several or two

    def sequence(self, middle: Sequence[Statement]) -> list[Statement | Product]:
        """A step's products among the statements between them."""
        if not self.several:
            return [self.products[0], *middle, self.products[1]]
        return [next((p for p in self.several if p.statement is s), s) for s in middle]

    @property
    def firsts(self) -> tuple[Statement, ...]:
        return tuple(p.statement for p in self.products if not p.sums)

    @property
    def added(self) -> tuple[Statement, ...]:
        """Statements of products that are added to sums."""
        return tuple(p.statement for p in self.several if p.sums)

    @property
    def operands(self) -> tuple[str, ...]:
        """Texts of the sums' left operands."""
        return tuple(p.left for p in self.products if p.sums)

    @property
    def all_sums(self) -> set[str]:
        return {p.sums for p in self.products if p.sums}

    @property
    def body(self) -> tuple[Statement, ...]:
        return (*self.early, *(() if self.several else (self.first,)), *self.middle, *self.late)

    @property
    def carried(self) -> set[str]:
        """Names whose values a step takes from the step before it."""
        bound: set[str] = set()
        found: set[str] = set()
        for statement in self.body:
            found |= statement.reads - bound
            bound |= statement.writes
        return (found & bound) | self.all_sums


@dataclass(frozen=True)
class Chains:
    """A kernel's loops and the statements around them; ``between[i]`` are those before loop i."""

    kernel: TritonKernel
    queries: tuple[Box, ...]
    """The one or two tiles that are loaded before the loops and stay."""

    query_names: frozenset[str]
    """Names of these tiles and of what ``prepared`` makes of them."""

    prepared: tuple[Statement, ...]
    """Statements before the loops that compute a product's operand from the tile."""

    loops: tuple[Chain, ...]
    between: tuple[tuple[Statement, ...], ...]
    after: tuple[Statement, ...]
    grid: tuple[str, ...]
    """Sizes of the grid, as texts of the host."""

    whole: str
    """Condition on the grid, for the host to check; "" for none."""

    axis: int
    """Axis of the grid along which programs share the operands of the loops."""

    bound: Mapping[str, ast.expr]
    sums: SumReader
    absent: str
    """Condition under which a program does nothing; "" where all do something."""

    @property
    def query(self) -> Box:
        return self.queries[0]

    @property
    def rows(self) -> str:
        return self.query.rows

    @property
    def depth(self) -> str:
        return self.query.columns

    @property
    def columns(self) -> str:
        return self.loops[0].key.rows

    @property
    def width(self) -> str:
        """Number of columns of the sums, as a text."""
        return self.loops[0].value.columns

    @property
    def everything(self) -> list[Statement]:
        found = list[Statement]()
        for before, loop in zip(self.between, self.loops, strict=True):
            found += [*before, *loop.body]
        return [*found, *self.after]


def program(axis: int) -> str:
    return f"program_{axis}"


class _Programs(ast.NodeTransformer):
    """Replaces calls of ``program_id`` by names, and drops casts of products to float32, which they are already."""

    def __init__(self, tl: str) -> None:
        self.tl = tl

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if device_call(node, self.tl) == "program_id":
            given = [*node.args, *(k.value for k in node.keywords)]
            if len(given) != 1 or not isinstance(given[0], ast.Constant):
                raise Unsupported("a program's number along an axis that is computed")
            return ast.Name(program(int(given[0].value)), ast.Load())  # type: ignore[arg-type]
        if ast.unparse(node.func).endswith(").to") and ast.unparse(node.args[0]) == f"{self.tl}.float32":
            cast = node.func.value  # type: ignore[attr-defined]
            if device_call(cast, self.tl) == "dot" and not cast.keywords:
                return self.generic_visit(cast)  # what a product is without being asked
        return self.generic_visit(node)


def read(kernel: TritonKernel) -> Chains:
    """The chain of a kernel. Raises Unsupported that names the construct which is not understood."""
    try:
        return _read(kernel, False)
    except Unsupported as error:
        try:
            return _read(kernel, True)
        except Unsupported:
            raise error from None


def _read(kernel: TritonKernel, whole: bool) -> Chains:
    """The chain; ``whole``: where programs are read as ``p % n`` and ``p // n``, n is taken to be 1."""
    (function,) = ast.parse(dedented(kernel.source, kernel.function)).body
    assert isinstance(function, ast.FunctionDef)
    parameters = [p.arg for p in function.args.args]
    function.body = bound_once(written_out(function.body, kernel), parameters)
    function = _Programs(kernel.tl).visit(function)
    body = [Statement(s) for s in ast.parse(ast.unparse(ast.Module(function.body, []))).body]
    body = [s for s in body if not is_idle(s, kernel.tl)]
    body, absent = _without_returns(body, kernel.tl)
    _refuse(body, kernel.tl)
    body, grid, found = _axes(body, kernel, _bound(body, parameters), whole)
    places = [i for i, s in enumerate(body) if isinstance(s.node, ast.For) and calls(s.node, kernel.tl, "dot")]
    if not places:
        raise Unsupported("no loop with two products")
    dots = sum(len(calls(s.node, kernel.tl, "dot")) for s in body)
    bound = _bound(body, parameters)
    loops, left = [], set[str]()
    before = body[: places[0]]
    if dots != 2 * len(places):
        return _several(kernel, body, places, bound, grid, found, absent)
    for place in places:
        loop = body[place].node
        assert isinstance(loop, ast.For)
        made = _chain(kernel, loop, bound)
        loops.append(made)
        left.add(made.left)
    if (
        len(left) != 1
        or len({(c.sums, c.key.extents, c.value.extents, c.key.tensor, c.value.tensor) for c in loops}) != 1
    ):
        raise Unsupported("loops of different operands")
    name = left.pop()
    query, names, prepared = _query(kernel, name, before, bound)
    between = [tuple(s for s in before if not s.writes & names)]
    between += [tuple(body[a + 1 : b]) for a, b in pairwise(places)]
    axis = _shared_axis(loops, query, body)
    loops, parts = unscaled(loops, [*between, body[places[-1] + 1 :]], kernel, bound)
    sums = SumReader(kernel.tl, bound, {})
    if axis >= len(grid):
        raise Unsupported("a grid with fewer axes than the kernel asks for")
    return Chains(
        kernel,
        (query,),
        names,
        prepared,
        tuple(loops),
        tuple(parts[:-1]),
        parts[-1],
        grid,
        found,
        axis,
        bound,
        sums,
        absent,
    )


def _several(
    kernel: TritonKernel,
    body: Sequence[Statement],
    places: Sequence[int],
    bound: Mapping[str, ast.expr],
    grid: tuple[str, ...],
    found: str,
    absent: str,
) -> Chains:
    """The chain of loops with more than two products each, all of the same tiles."""
    before, made = body[: places[0]], [_steps(kernel, body, place, places[0], bound) for place in places]
    (stay, first), loops = made[0], [loop for _, loop in made]
    boxes, moved = tuple(o.box for o in stay), (first.key, first.value)
    alike = all(
        [o.box for o in tiles] == list(boxes) and (loop.key, loop.value) == moved and loop.all_sums == first.all_sums
        for tiles, loop in made
    )
    ranks = {len(b.outer) for b in (*boxes, *moved)}
    rows = len({b.rows for b in boxes}) + len({b.rows for b in moved})
    if not alike or absent or len(ranks) != 1 or rows != 2:
        raise Unsupported("several products of tiles of several shapes")
    wide = sorted({in_host(kernel, b.columns) for b in (*boxes, *moved)})
    whole = " and ".join(filter(None, [found, *(f"{wide[0]} == {one}" for one in wide[1:])]))
    names = frozenset[str]().union(*(o.names for o in stay))
    axes = {_shared_axis(loops, box, body) for box in boxes}
    if len(axes) != 1 or max(axes) >= len(grid):
        raise Unsupported("no axis of the grid along which programs share what their loops load")
    between = [tuple(s for s in before if not s.writes & names)]
    between += [tuple(body[a + 1 : b]) for a, b in pairwise(places)]
    return Chains(
        kernel,
        boxes,
        names,
        (),
        tuple(loops),
        tuple(between),
        tuple(body[places[-1] + 1 :]),
        grid,
        whole,
        axes.pop(),
        bound,
        SumReader(kernel.tl, bound, {}),
        "",
    )


def _steps(
    kernel: TritonKernel, body: Sequence[Statement], place: int, first_place: int, bound: Mapping[str, ast.expr]
) -> tuple[tuple[Operand, ...], Chain]:
    """The tiles that stay, and the loop at ``place`` with its several products."""
    tl, loop = kernel.tl, body[place].node
    assert isinstance(loop, ast.For)
    start, stop, step = _range(loop, tl)
    variable = ast.unparse(loop.target)
    inside = [s for s in map(Statement, loop.body) if not is_idle(s, tl)]
    inside, running = _without_advances(inside, variable, start, step, bound, tl)
    boxes, before = BoxReader(kernel, SumReader(tl, bound, running), variable), body[:first_place]

    def operand(node: ast.expr) -> Operand | None:
        inner, turned = _turned(node, tl)
        root = ast.unparse(inner)
        if any(root in s.writes for s in before) and not any(root in s.writes for s in inside):
            box, names, prepared = _query(kernel, root, before, bound)
            if prepared:
                raise Unsupported("several products of a tile that is made of another one")
            return Operand(names, replace(box, turned=box.turned ^ turned), False)
        try:
            name, box = _tile(boxes, node, inside, tl)
        except Unsupported:
            if any(calls(s.node, tl, "load") for s in inside if root in s.writes):
                raise
            return None  # the step's own
        return Operand(frozenset({name}), box, True)

    made = arranged(inside, before, operand, lambda statement, call: _added(statement, call, tl), tl)
    begun = min(made.body.index(p.statement) for p in made.products)
    early, hot = made.body[:begun], made.body[begun:]
    early, hot, numbers = by_ring(early, hot, made, boxes, start, step)
    first = next(p.statement for p in made.products if not p.sums)
    last = [p for p in made.products if p.sums][-1]
    tiles = frozenset[str]().union(*(o.names for o in made.loaded))
    key, value = (replace(o.box, turned=False) for o in made.loaded)
    chain = Chain(
        variable,
        start,
        stop,
        step,
        "",
        key,
        value,
        early,
        first,
        hot,
        (),
        last.left,
        last.sums,
        tiles,
        numbers=numbers,
        several=made.products,
    )
    return tuple(replace(o, box=replace(o.box, turned=False)) for o in made.stay), chain


def _without_returns(body: Sequence[Statement], tl: str) -> tuple[list[Statement], str]:
    """The statements without returns of programs that have nothing to do, and where one returns. What a program loads
    only where it goes on must be tiles of the chain, which copies bring from inside of their tensors."""
    ends = [
        i
        for i, s in enumerate(body)
        if isinstance(s.node, ast.If) and [ast.unparse(n) for n in s.node.body] == ["return"] and not s.node.orelse
    ]
    loops = [i for i, s in enumerate(body) if isinstance(s.node, ast.For)]
    if not ends or not loops:
        return list(body), ""
    dots = {n for i in loops for call in calls(body[i].node, tl, "dot") for n in names_in(ast.unparse(call))}
    behind = [s for s in body[ends[0] : loops[0]] if calls(s.node, tl, "load", "store") and not s.writes & dots]
    if ends[-1] > loops[0] or behind:
        raise Unsupported("a program that returns early, between what it loads")
    tests = [body[i].node.test for i in ends]  # type: ignore[attr-defined]
    return [s for i, s in enumerate(body) if i not in ends], " | ".join(f"({ast.unparse(t)})" for t in tests)


def _refuse(body: Sequence[Statement], tl: str) -> None:
    for statement in body:
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Return | ast.While):
                raise Unsupported("a program that returns early or loops while a condition holds")
            if device_call(node, tl).startswith("atomic"):
                raise Unsupported("atomics, where programs past the end would add twice")
            if device_call(node, tl) == "num_programs":
                raise Unsupported("a program that asks how many there are")


def _axes(
    body: Sequence[Statement], kernel: TritonKernel, bound: Mapping[str, ast.expr], whole: bool
) -> tuple[list[Statement], tuple[str, ...], str]:
    """The statements, the grid as the host says it, and what the host must find true of it: a grid of one axis, whose
    programs are read as ``p % n`` and ``p // n`` alone, as the two that it stands for; ``whole``: n is one."""
    grid = tuple(kernel.source.code(e) for e in kernel.grid())
    own = (program(0), f"{program(0)}.to({kernel.tl}.int64)")
    names = {program(0)} | {n for n, v in bound.items() if ast.unparse(v) in own}
    kept = [s.text for s in body if not s.writes & names]
    parts = _Parts(names, whole)
    made = [Statement(parts.visit(node)) for node in ast.parse("\n".join(kept)).body]
    sizes = [] if parts.left else [number_in_host(n, kernel, bound) for n in parts.sizes.values()]
    size = sizes[0] if len(sizes) == 1 else None
    if size is None or whole != (len(grid) > 1):
        return list(body), grid, ""
    if whole:
        return made, grid, f"{size} == 1"
    return made, (size, f"({grid[0]}) // {size}"), f"({grid[0]}) % {size} == 0"


class _Parts(ast.NodeTransformer):
    """Replaces ``p % n`` and ``p // n``, for p in ``names``, by programs along two axes; ``whole``: n is 1."""

    def __init__(self, names: set[str], whole: bool) -> None:
        self.names, self.whole, self.left = names, whole, False
        self.sizes: dict[str, ast.expr] = {}

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        inner = node.left
        if isinstance(inner, ast.Name) and inner.id in self.names and isinstance(node.op, ast.Mod | ast.FloorDiv):
            self.sizes[ast.unparse(node.right)] = node.right
            divided = isinstance(node.op, ast.FloorDiv)
            if self.whole and not divided:
                return ast.Constant(0)
            return ast.Name(program(int(divided and not self.whole)), ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        self.left |= node.id in self.names
        return node


def _bound(body: Sequence[Statement], given: Iterable[str]) -> dict[str, ast.expr]:
    """Expressions of names bound once, or always to the same; as ``x at first`` that of a name x advanced once."""
    values: dict[str, list[ast.expr | None]] = {name: [None] for name in given}
    advanced: dict[str, int] = {}
    for statement in body:
        plain: set[ast.AST] = set()
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
                plain.add(node.targets[0])
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                advanced[node.target.id] = advanced.get(node.target.id, 0) + 1
                plain.add(node.target)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in plain:
                values.setdefault(node.id, []).append(None)
    found: dict[str, ast.expr] = {}
    for name, all_of in values.items():
        if len(all_of) == 1 and all_of[0] is not None and advanced.get(name, 0) < 2:
            found[f"{name} at first" if name in advanced else name] = all_of[0]
    same = {n: [e for e in v if e is not None] for n, v in values.items() if len(v) > 1 and n not in advanced}
    same = {n: v for n, v in same.items() if len(v) == len(values[n]) and len(set(map(ast.unparse, v))) == 1}
    fixed = {n for n in given if len(values[n]) == 1 and n not in advanced}
    fixed |= {n for s in body if isinstance(s.node, ast.For) for n in names_in(ast.unparse(s.node.target))}
    while same:
        known = {n for n, v in same.items() if not names_in(ast.unparse(v[0])) & (set(values) - fixed - set(found))}
        if not known:
            break
        found |= {n: same.pop(n)[0] for n in known}
    return found


def _range(loop: ast.For, tl: str) -> tuple[str, str, str]:
    call = loop.iter
    ranged = isinstance(call, ast.Call) and (ast.unparse(call.func) == "range" or device_call(call, tl) == "range")
    if not ranged or not isinstance(loop.target, ast.Name) or loop.orelse:
        raise Unsupported("a loop over something other than a range")
    assert isinstance(call, ast.Call)
    texts = [ast.unparse(a) for a in call.args]
    if len(texts) == 1:
        return "0", texts[0], "1"
    return texts[0], texts[1], texts[2] if len(texts) > 2 else "1"


def _chain(kernel: TritonKernel, loop: ast.For, bound: Mapping[str, ast.expr]) -> Chain:
    tl = kernel.tl
    start, stop, step = _range(loop, tl)
    assert isinstance(loop.target, ast.Name)
    variable = loop.target.id
    body = [Statement(node) for node in loop.body]
    body = [s for s in body if not is_idle(s, tl)]
    body, running = _without_advances(body, variable, start, step, bound, tl)
    dots = [(s, calls(s.node, tl, "dot")[0]) for s in body if calls(s.node, tl, "dot")]
    if len(dots) != 2 or any(not isinstance(s.node, ast.Assign | ast.AugAssign) for s, _ in dots):
        raise Unsupported("products that are not statements of their loop")
    (first, one), (second, two) = dots
    reader = SumReader(tl, bound, running)
    boxes = BoxReader(kernel, reader, variable)
    key_name, key = _tile(boxes, one.args[1], body, tl)
    value_name, value = _tile(boxes, two.args[1], body, tl)
    if key.extents[1] == value.extents[1] == "" or key.rows != value.extents[0] or value.turned:
        raise Unsupported("a second product over other columns than those of the first")
    if key.extents[1] != key.rows:
        raise Unsupported("a first product whose columns are contiguous")
    tiles = {key_name, value_name}
    body = [s for s in body if not (s.writes and s.writes <= tiles)]
    sums, before, operand = _added(second, two, tl)
    place = body.index(second)
    body[place : place + 1] = before
    if sums in first.reads | first.writes:
        raise Unsupported("a first product that needs the second's sums")
    late: list[Statement] = []
    kept: list[Statement] = []
    for statement in body:
        (late if sums in statement.reads | statement.writes else kept).append(statement)
    if any(s.writes - {sums} for s in late):
        raise Unsupported("a step that needs the second product's sums of the step before")
    kept, late = _held(kept, late, body)
    place = kept.index(first)
    early, first = _not_added_to_zeros(kept[:place], first, one, tl)
    return Chain(
        variable,
        start,
        stop,
        step,
        ast.unparse(one.args[0]),
        key,
        value,
        early,
        first,
        tuple(kept[place + 1 :]),
        tuple(late),
        operand,
        sums,
        frozenset(tiles),
    )


def _not_added_to_zeros(
    early: Sequence[Statement], first: Statement, call: ast.Call, tl: str
) -> tuple[tuple[Statement, ...], Statement]:
    """The early statements and the first product's, where it is added to zeros without these zeros."""
    node = first.node
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and node.value is call:
        name = ast.unparse(node.target)
        made = [s for s in early if name in s.reads | s.writes]
        zeros = [s for s in made if isinstance(s.node, ast.Assign) and device_call(s.node.value, tl) == "zeros"]
        if len(made) == len(zeros) == 1:
            bound = Statement(ast.parse(f"{name} = {ast.unparse(call)}").body[0])
            return tuple(s for s in early if s is not made[0]), bound
    return tuple(early), first


def _without_advances(
    body: Sequence[Statement], variable: str, start: str, step: str, bound: Mapping[str, ast.expr], tl: str
) -> tuple[list[Statement], dict[str, Sum]]:
    """The statements without those that advance addresses which only loads read, and these addresses as sums."""
    running: dict[str, Sum] = {}
    kept = []
    reader = SumReader(tl, bound, {})
    for place, statement in enumerate(body):
        node = statement.node
        plus = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
        if plus and isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            later = {n for s in body[place + 1 :] for n in s.reads | s.writes}
            first = bound.get(f"{name} at first")
            by = _tried(reader, node.value)
            if first is not None and by is not None and name not in later and not by.factors & {variable}:
                stride = by.over(reader.read(ast.parse(step, mode="eval").body))
                if len(stride.parts) == len(by.parts):
                    turn = Sum({(variable,): 1}) - reader.read(ast.parse(start, mode="eval").body)
                    running[name] = reader.read(first) + stride * turn
                    if all(calls(s.node, tl, "load") or s is statement for s in body if name in s.reads):
                        continue
        kept.append(statement)
    return kept, running


def _tried(reader: SumReader, node: ast.expr) -> Sum | None:
    try:
        return reader.read(node)
    except Unsupported:
        return None


def _tile(boxes: BoxReader, node: ast.expr, body: Sequence[Statement], tl: str) -> tuple[str, Box]:
    """(name, box) of a product's right operand, loaded in the loop."""
    node, turned = _turned(node, tl)
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            node, again = _turned(node.func.value, tl)
        else:
            bound = [s.node.value for s in body if isinstance(s.node, ast.Assign) and ast.unparse(node) in s.writes]
            if len(bound) != 1 or not isinstance(_turned(bound[0], tl)[0], ast.Name):
                break
            node, again = _turned(bound[0], tl)  # a name of what another one holds, perhaps transposed
        turned ^= again
    name, loads = "", [node]
    if isinstance(node, ast.Name):
        name = node.id
        loads = [
            n.value
            for s in body
            for n in ast.walk(s.node)
            if isinstance(n, ast.Assign) and [ast.unparse(t) for t in n.targets] == [name]
        ]
        if sum(name in s.writes for s in body) != 1:
            raise Unsupported(f"operand {name} is changed after it is loaded")
        found = [_turned(n, tl) for n in loads]
        loads, turns = [n for n, _ in found], {again for _, again in found}
        if len(turns) > 1:
            raise Unsupported(f"operand {name}, which is transposed in one place and not in another")
        turned ^= True in turns
    if not loads or any(device_call(n, tl) != "load" for n in loads):
        raise Unsupported(f"an operand computed by {ast.unparse(node)[:40]}")
    # of several loads, chosen by what the compiler knows, the one that masks most
    box = None
    for load in sorted(loads, key=lambda n: len(ast.unparse(n))):
        assert isinstance(load, ast.Call)
        box = _loaded(boxes, load)
    assert box is not None
    return name, replace(box, turned=not box.turned) if turned else box


def _turned(node: ast.expr, tl: str) -> tuple[ast.expr, bool]:
    """The expression without its transpositions, and whether their number is odd."""
    turned = False
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "T":
            node, turned = node.value, not turned
        elif isinstance(node, ast.Call) and device_call(node, tl) == "trans" and len(node.args) == 1:
            node, turned = node.args[0], not turned
        else:
            return node, turned


def _loaded(boxes: BoxReader, load: ast.Call) -> Box:
    given = {k.arg: k.value for k in load.keywords}
    mask = load.args[1] if len(load.args) > 1 else given.get("mask")
    other = load.args[2] if len(load.args) > 2 else given.get("other")
    if other is not None and ast.unparse(other) not in ("0", "0.0"):
        raise Unsupported("an operand padded with something other than zero")
    return boxes.read(load.args[0], mask)


def _added(second: Statement, call: ast.Call, tl: str) -> tuple[str, list[Statement], str]:
    """(name, statements that change it before the product is added, left operand) of the second product."""
    node, operand = second.node, ast.unparse(call.args[0])
    given = [*call.args[2:3], *(k.value for k in call.keywords if k.arg == "acc")]
    refused = Unsupported("a second product that is not added to a name")
    assert isinstance(node, ast.Assign | ast.AugAssign)
    (target,) = node.targets[:1] if isinstance(node, ast.Assign) else [node.target]
    value = node.value
    if not isinstance(target, ast.Name) or second.writes != {target.id}:
        raise refused
    summed = value if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) else None
    if isinstance(node, ast.AugAssign):
        if not isinstance(node.op, ast.Add) or value is not call or given:
            raise refused
        return target.id, [], operand
    if value is call and given:
        rest = ast.unparse(given[0])
    elif summed is not None and call in (summed.left, summed.right) and not given:
        rest = ast.unparse(summed.right if summed.left is call else summed.left)
    else:
        raise refused
    if rest == target.id:
        return target.id, [], operand
    if target.id not in names_in(rest):
        raise Unsupported("a second product that is not added to its own sums")
    return target.id, [Statement(ast.parse(f"{target.id} = {rest}").body[0])], operand


def _held(
    kept: Sequence[Statement], late: Sequence[Statement], order: Sequence[Statement]
) -> tuple[list[Statement], list[Statement]]:
    """``kept`` and ``late`` statements, the late ones to run last: names bound anew behind them are copied."""
    made, moved = list(kept), []
    for number, statement in enumerate(late):
        place = order.index(statement)
        behind = {n for s in order[place + 1 :] if s in kept for n in s.writes}
        renamed = {n: f"{n}_held_{number}" for n in statement.reads & behind}
        for name, held in renamed.items():
            follower = next((s for s in order[place:] if s in made), None)
            copy = Statement(ast.parse(f"{held} = {name}").body[0])
            made.insert(made.index(follower) if follower is not None else len(made), copy)
        tree = ast.parse(statement.text).body[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in renamed:
                node.id = renamed[node.id]
        moved.append(Statement(tree))
    return made, moved


def _query(
    kernel: TritonKernel, left: str, before: Sequence[Statement], bound: Mapping[str, ast.expr]
) -> tuple[Box, frozenset[str], tuple[Statement, ...]]:
    """The box of the first product's left operand, names of its tile, and statements that compute the operand."""
    if not left.isidentifier():
        raise Unsupported(f"an operand computed by {left[:40]}")
    boxes = BoxReader(kernel, SumReader(kernel.tl, bound, {}), None)
    names, loads, prepared = {left}, list[ast.expr](), list[Statement]()
    loaded = {n for s in before if calls(s.node, kernel.tl, "load") for n in s.writes}
    for statement in reversed(before):
        if not statement.writes & names:
            continue
        found = [n.value for n in ast.walk(statement.node) if isinstance(n, ast.Assign)]
        if found and all(device_call(n, kernel.tl) == "load" for n in found):
            loads += found
        elif loads or len(statement.reads & loaded) != 1 or not isinstance(statement.node, ast.Assign):
            raise Unsupported(f"an operand computed by {statement.text[:40]}")
        else:
            prepared.insert(0, statement)
            names |= statement.reads & loaded
    if not loads:
        raise Unsupported(f"operand {left}, which is loaded in the loop")
    tiles = [_loaded(boxes, n) for n in sorted(loads, key=lambda n: len(ast.unparse(n))) if isinstance(n, ast.Call)]
    return tiles[-1], frozenset(names), tuple(prepared)


def _shared_axis(loops: Iterable[Chain], query: Box, body: Sequence[Statement]) -> int:
    """The axis of the grid that the query depends on and the loops' operands do not. Raises Unsupported."""
    wanted = set[str]()
    for loop in loops:
        wanted |= (loop.key.reads | loop.value.reads) - {loop.variable} | names_in(loop.step)
    shared = _dependencies(body, wanted)
    rows = _dependencies(body, query.reads)
    axes = [a for a in range(3) if program(a) in rows and program(a) not in shared]
    if len(axes) != 1:
        raise Unsupported("no axis of the grid along which programs share what their loops load")
    return axes[0]


def _dependencies(body: Sequence[Statement], names: set[str]) -> set[str]:
    found = set(names)
    for i in sliced(body, names, ()):
        found |= body[i].reads
    return found
