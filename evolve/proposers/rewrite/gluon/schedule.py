"""How the statements of a product's loop are laid out when a program computes several of its tiles side by side."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.product import Product
from tilewright.evolve.proposers.rewrite.gluon.statements import (
    Statement,
    affected,
    calls,
    device_call,
    names_in,
    sliced,
)


@dataclass(frozen=True)
class Plan:
    """The statements that the result needs, in the order they are written in.

    Of the loop, ``early`` ones stand before the product is started, ``late`` ones, the product's among them, behind.
    """

    product: Product
    """With loads taken out of the late statements."""

    outside: tuple[Statement, ...]
    before: tuple[Statement, ...]
    early: tuple[Statement, ...]
    late: tuple[Statement, ...]
    after: tuple[Statement, ...]
    per_piece: frozenset[str]
    """Names that differ between tiles of columns."""

    accumulators: tuple[str, ...]
    """Names that the loop's late statements carry from step to step."""

    split: bool
    """Whether each tile of columns may run all late statements before the next begins."""


def planned(product: Product) -> Plan:
    """Raises Unsupported where the result needs the number of its program."""
    tl = product.kernel.tl
    product = _with_loads_apart(_with_early_loads(product))
    known = {product.row_tile, product.column_tile}
    everything = [*product.outside, *product.before, *product.body, *product.after]
    roots = [s for s in product.after if ".store(" in s.text]
    if not roots:
        raise Unsupported("a product that is never stored")
    copied = {s.statement.text for s in product.stored}
    if product.left.limit and any(root.text not in copied for root in roots):
        raise Unsupported("rows past their limit that a store may not leave out")
    wanted: set[str] = names_in(ast.unparse(product.loop.iter))
    for root in roots:
        stored = next((s for s in product.stored if s.statement.text == root.text), None)
        if stored is None:
            wanted |= root.reads
        else:
            axes = stored.tile.axes
            for text in (stored.value, axes[0].start, axes[1].start):
                wanted |= names_in(text)
            if stored.tile.limit:
                wanted |= root.reads
    dot = everything.index(product.dot)
    bare = [without_operands(s, tl) if i == dot else s for i, s in enumerate(everything)]
    kept = sliced(bare, wanted, known) | {everything.index(r) for r in roots} | {dot}
    needed = [s for i, s in enumerate(everything) if i in kept]
    for statement in needed:
        if statement.text not in copied and ("program_id(" in statement.text or "num_programs(" in statement.text):
            raise Unsupported("a result that depends on the program's number")
    body = [s for s in product.body if s in needed]
    late = _late(body, product.dot)
    early = [s for s in body if s not in late]
    loose = [s for i, s in enumerate(bare) if i in kept]
    seeds = {product.column_tile, *product.dot.writes}
    per_piece = affected(loose, seeds)
    return Plan(
        product,
        tuple(s for s in product.outside if s in needed),
        tuple(s for s in product.before if s in needed),
        tuple(early),
        tuple(late),
        tuple(s for s in product.after if s in needed),
        frozenset(per_piece),
        tuple(sorted(_carried(late))),
        all(s.writes & per_piece for s in late),
    )


def without_operands(statement: Statement, tl: str) -> Statement:
    """A dot's statement as if its operands were constants."""

    class Bare(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            if device_call(node, tl) == "dot":
                kept = [*node.args[2:], *(k.value for k in node.keywords if k.arg == "acc")]
                return ast.copy_location(ast.Tuple([ast.Constant(0), *kept], ast.Load()), node)
            return self.generic_visit(node)

    fresh = ast.parse(statement.text).body[0]
    made = ast.fix_missing_locations(Bare().visit(fresh))
    return Statement(ast.parse(ast.unparse(made)).body[0])


def _with_early_loads(product: Product) -> Product:
    """Loads that stand behind the product and do not need it, in front of it: their time passes beside its own."""
    late = _late(product.body, product.dot)
    written = {name for s in late for name in s.writes}
    early: list[Statement] = []
    changed = {}
    for statement in late:
        taker = _Taker(product, written)
        fresh = taker.visit(ast.parse(statement.text).body[0])
        if taker.taken:
            early += taker.taken
            changed[statement] = Statement(ast.parse(ast.unparse(ast.fix_missing_locations(fresh))).body[0])
    body: list[Statement] = []
    for statement in product.body:
        if statement is product.dot:
            body += early
        body.append(changed.get(statement, statement))
    return replace(product, body=tuple(body), dot=changed.get(product.dot, product.dot))


def _with_loads_apart(product: Product) -> Product:
    """Each load in front of the product as a statement of its own."""
    late = _late(product.body, product.dot)
    body: list[Statement] = []
    for statement in product.body:
        node, tl = statement.node, product.kernel.tl
        alone = isinstance(node, ast.Assign) and device_call(node.value, tl) == "load"
        choice = any(isinstance(n, ast.IfExp) for n in ast.walk(node))
        if statement not in late and not alone and not choice and calls(node, tl, "load"):
            taker = _Taker(product, set())
            fresh = taker.visit(ast.parse(statement.text).body[0])
            body += taker.taken
            statement = Statement(ast.parse(ast.unparse(ast.fix_missing_locations(fresh))).body[0])
        body.append(statement)
    return replace(product, body=tuple(body))


class _Taker(ast.NodeTransformer):
    """Takes loads of known addresses out of a statement; branches of known conditions go with them."""

    def __init__(self, product: Product, written: set[str]) -> None:
        self.kernel, self.written = product.kernel, written
        self.taken: list[Statement] = []
        self.conditions: list[ast.expr] = []

    def visit_If(self, node: ast.If) -> ast.AST:
        known = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)} <= self.kernel.constexprs
        if not known:
            return node
        for branch, test in ((node.body, node.test), (node.orelse, ast.UnaryOp(ast.Not(), node.test))):
            self.conditions.append(test)
            for position, inner in enumerate(branch):
                branch[position] = self.visit(inner)
            self.conditions.pop()
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = device_call(node, self.kernel.tl)
        if name == "dot":
            return node
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if name != "load" or read & self.written:
            return self.generic_visit(node)
        held = self.kernel.source.fresh("loaded")
        made: ast.stmt = ast.Assign([ast.Name(held, ast.Store())], node)
        for test in reversed(self.conditions):
            made = ast.If(test, [made], [])
        self.taken.append(Statement(ast.parse(ast.unparse(ast.fix_missing_locations(made))).body[0]))
        return ast.Name(held, ast.Load())


def _late(body: Sequence[Statement], dot: Statement) -> list[Statement]:
    """The dot and what must stay behind it."""
    late: list[Statement] = []
    for statement in body:
        if statement is dot or any(statement.conflicts(earlier) for earlier in late):
            late.append(statement)
    return late


def _carried(late: Sequence[Statement]) -> set[str]:
    """Names read before they are bound in one step's late statements, and bound by them."""
    bound: set[str] = set()
    carried: set[str] = set()
    for statement in late:
        carried |= statement.reads - bound
        bound |= statement.writes
    return carried & bound
