"""A step of several products, as gradients of attention have: of tiles that stay and tiles that the loop loads, then of
what is made of those and the loop's tiles, added to sums.

Where a step's tiles lie the other way, as in ``dot(q, trans(k))`` beside ``dot(trans(p), g)``, the step is read across:
its tiles are the kernel's transposed, so that a group of warps keeps the left operands of its sums in registers.
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.beside import MIXING
from tilewright.evolve.proposers.rewrite.gluon.chain.copies import Box, BoxReader
from tilewright.evolve.proposers.rewrite.gluon.device import with_product
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, calls, device_call, names_in
from tilewright.evolve.proposers.rewrite.sums import expanded

SHAPED = MIXING - {"T", "trans"} | {"expand_dims", "broadcast_to", "zeros", "full"}
"""Functions that tell a tile's rows from its columns."""


@dataclass(frozen=True)
class Operand:
    """A tile that is loaded, in the loop (``looped``) or before it; ``box`` as a product takes it."""

    names: frozenset[str]
    box: Box
    looped: bool


@dataclass(frozen=True)
class Product:
    """One that is added to ``sums``, whose left operand is the text ``left``, or where that is empty one of the tile
    that stays number ``stays``. ``loaded``: number of the loop's tile."""

    statement: Statement
    loaded: int
    stays: int = 0
    left: str = ""
    sums: str = ""
    turned: bool = True
    """Whether the loop's tile is transposed, of one that is not added to sums."""


@dataclass(frozen=True)
class Step:
    """``body`` holds the statements of all products, in the order of the kernel."""

    body: tuple[Statement, ...]
    products: tuple[Product, ...]
    stay: tuple[Operand, ...]
    loaded: tuple[Operand, ...]


@dataclass(frozen=True)
class RowNumbers:
    """Numbers of 32 bits, one for each row of a loop's tiles, that come with tile number ``loaded`` through the ring:
    those of the host's ``tensor`` from element ``start`` on. ``statement`` takes them under the name ``landed``."""

    loaded: int
    tensor: str
    start: str
    landed: str
    statement: Statement
    conditions: tuple[str, ...]
    """For the host to check."""


def by_ring(
    early: Sequence[Statement], hot: Sequence[Statement], step: Step, boxes: BoxReader, begin: str, by: str
) -> tuple[tuple[Statement, ...], tuple[Statement, ...], tuple[RowNumbers, ...]]:
    """``early`` statements and those from the first product on, with such loads of theirs taken from the ring, each in
    front of what reads it first. They come with a tile that the step gives back at its end.

    Loaded where they are read they wait for memory in each step, and their addresses and masks take registers (dK and
    dV of attention, one H200, measured: 1335 us, and 908 by the ring)."""
    tl, before, made, found = boxes.kernel.tl, list(early), list(hot), list[RowNumbers]()
    added = {p.loaded for p in step.products if p.sums}
    kept = [p.loaded for p in step.products if not p.sums and p.loaded in added and by == step.loaded[0].box.rows]
    for statement in (*early, *hot) if kept and "torch" in boxes.kernel.source.own_names else ():
        node = statement.node
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if device_call(node.value, tl) != "load" or len(statement.writes) != 1:
            continue
        try:
            first = boxes.sums.read(ast.parse(begin, mode="eval").body)
            tensor, start, mask, conditions = boxes.row_numbers(node.value, step.loaded[0].box.rows, first)
        except Unsupported:
            continue
        (target,) = statement.writes
        landed, given = f"{target}_landed", {k.arg: k.value for k in node.value.keywords}
        readers = [s for s in made if target in s.reads]
        if not readers or landed in boxes.kernel.source.own_names or any(target in s.reads for s in before):
            continue
        other = node.value.args[2] if len(node.value.args) > 2 else given.get("other", ast.Constant(0.0))
        text = f"{tl}.where({mask}, {landed}, {ast.unparse(other)})" if mask else landed
        taken = Statement(ast.parse(f"{target} = {text}").body[0])
        made.insert(made.index(readers[0]), taken)
        (before if statement in before else made).remove(statement)
        found.append(RowNumbers(min(kept), tensor, start, landed, taken, tuple(conditions)))
    return tuple(before), tuple(made), tuple(found)


def arranged(
    body: Sequence[Statement],
    before: Sequence[Statement],
    operand: Callable[[ast.expr], Operand | None],
    added: Callable[[Statement, ast.Call], tuple[str, list[Statement], str]],
    tl: str,
) -> Step:
    """``operand``: the tile that a side of a product is, None where the step makes it; ``added``: the name, statements
    and left operand of a product that is added to a name. Raises Unsupported."""
    tiles: dict[bool, dict[Box, Operand]] = {True: {}, False: {}}
    found = list[tuple[Statement, ast.Call, Operand | None, Operand]]()
    across = set[bool]()
    for statement in body:
        for call in calls(statement.node, tl, "dot"):
            left, right = operand(call.args[0]), operand(call.args[1])
            if left is not None and right is not None:
                across.add(left.looped)
                if left.looped == right.looped or left.box.turned or not right.box.turned:
                    raise Unsupported("a product of two tiles of which not one stays, row by row")
                left, right = (right, left) if left.looped else (left, right)
            elif right is None or not right.looped or right.box.turned:
                raise Unsupported("a product of what a step makes with something else than the loop's rows")
            for each in filter(None, (left, right)):
                if each.box.there is not None:
                    raise Unsupported("several products of sequences that end where the device alone knows")
                tiles[each.looped].setdefault(replace(each.box, turned=False), each)
            found.append((statement, call, left, right))
    stay, loaded = tiles[False], tiles[True]
    if len(across) != 1 or len(loaded) != 2 or len(stay) > 2 or len(found) > 5:
        raise Unsupported("more or fewer than two products in a loop")
    names = frozenset[str]().union(*(each.names for each in loaded.values()))
    turned = _Across(tl) if across == {True} else None
    made, products = list[Statement](), list[Product]()
    for statement in (s for s in body if not (s.writes and s.writes <= names)):
        mine = [(call, left, right) for at, call, left, right in found if at is statement]
        if len(mine) > 1 or (mine and not isinstance(statement.node, ast.Assign | ast.AugAssign)):
            raise Unsupported("products that are not statements of their loop")
        sums, text = "", ""
        if mine and mine[0][1] is None:
            sums, rest, text = added(statement, mine[0][0])
            if rest:
                raise Unsupported("sums that a step changes otherwise")
            text = ast.unparse(turned.operand(text)) if turned else text
        elif turned:
            statement = turned.statement(statement)
        made.append(statement)
        for _, left, right in mine:
            at = list(loaded).index(replace(right.box, turned=False))
            by = 0 if left is None else list(stay).index(replace(left.box, turned=False))
            products.append(Product(statement, at, by, text, sums))
    own = {id(p.statement) for p in products if p.sums}
    others = set[str]().union(*(with_product(s, tl, tl).reads for s in made if id(s) not in own))
    read = others.union(*(names_in(p.left) for p in products if p.sums))
    wide = {
        n
        for s in before
        for n in s.writes
        if calls(s.node, tl, *SHAPED)
        or any(isinstance(x, ast.Subscript) and expanded(x) is not None for x in ast.walk(s.node))
    }
    texts = [with_product(s, tl, tl).text for s in made if id(s) not in own] + [p.left for p in products if p.sums]
    tiles_read = {n for text in texts for n in re.findall(r"\b\w+\b(?!\.dtype)", text)} & names
    if not own or tiles_read or read & {p.sums for p in products}:
        raise Unsupported("sums or loaded tiles that a step reads otherwise")
    if turned and (others & turned.transposed or read & wide):
        raise Unsupported("a tile of a step that is read across, which stands the other way")
    return Step(tuple(made), tuple(products), tuple(stay.values()), tuple(loaded.values()))


class _Across(ast.NodeTransformer):
    """Statements of tiles as those of the tiles transposed. ``transposed``: names that the kernel itself transposes,
    which products alone may read."""

    def __init__(self, tl: str) -> None:
        self.tl, self.transposed = tl, set[str]()

    def statement(self, statement: Statement) -> Statement:
        node = ast.parse(statement.text).body[0]
        bare = isinstance(node, ast.Assign) and self._bare(node.value)
        if isinstance(node, ast.Assign) and bare:
            node.value = bare
            self.transposed |= statement.writes
        made = ast.fix_missing_locations(self.visit(node))
        return Statement(ast.parse(ast.unparse(made)).body[0])

    def operand(self, text: str) -> ast.expr:
        """A sum's left operand, which the kernel transposes there or under a name of its own."""
        node = ast.parse(text, mode="eval").body
        bare = self._bare(node)
        if bare is None and not names_in(text) - {self.tl} <= self.transposed:
            raise Unsupported("a left operand that no group of rows keeps in its registers")
        return ast.fix_missing_locations(self.visit(bare or node))

    def _bare(self, node: ast.expr) -> ast.expr | None:
        """What an expression transposes, perhaps casting it; None for anything else."""
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return node.value
        if device_call(node, self.tl) == "trans" and isinstance(node, ast.Call) and len(node.args) == 1:
            return node.args[0]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            inner = self._bare(node.func.value)
            if inner is not None:
                node.func.value = inner
                return node
        return None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if expanded(node) is not None and isinstance(node.slice, ast.Tuple):
            node.slice.elts.reverse()
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = device_call(node, self.tl)
        if name == "dot":
            return node
        if name in SHAPED or name == "trans":
            raise Unsupported(f"{name} of a tile of a step that is read across")
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == "T":
            raise Unsupported("a tile of a step that is read across, transposed")
        return self.generic_visit(node)
