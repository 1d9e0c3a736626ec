"""Scores that stay unscaled: a factor above zero goes behind a row's largest and into the exponent.

There the multiplication takes the place of the one by log2(e), so that a step has one less for each score.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, device_call, names_in
from tilewright.evolve.proposers.rewrite.sums import expanded
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel

if TYPE_CHECKING:
    from tilewright.evolve.proposers.rewrite.gluon.chain.read import Chain

_HIDDEN = frozenset({"float('-inf')", "-float('inf')"})


def unscaled(
    loops: Sequence[Chain], outside: Sequence[Sequence[Statement]], kernel: TritonKernel, bound: Mapping[str, ast.expr]
) -> tuple[list[Chain], list[tuple[Statement, ...]]]:
    """The loops, and the statements before each and behind the last, with the scores' factor in their exponents.

    ``exp(score * factor - row)`` and ``exp(row - row)`` become ``exp2((left - right) * factor)`` of numbers without the
    factor. Only such a difference comes to zero for a row's largest score, however large that is: a compiler fuses the
    product and the difference of scaled numbers, which comes to the rounding of a number of that size, and for scores
    of 2 ** 80 that is 2 ** 56 or its negative.

    Everything as it is unless each exponent's row is a largest score, and is read nowhere else in a loop than in
    exponents and in differences of two such rows.
    """
    names = {n for part in outside for s in part for n in s.reads}
    found = [_found(loop, kernel, bound, names) for loop in loops]
    unchanged = list(loops), [tuple(part) for part in outside]
    made = [each for each in found if each is not None]
    if len(made) < len(loops) or len({each[0].scale for each in made}) > 1:
        return unchanged
    scaled = made[0][1]
    exponents = [e for chain, of_loop in made for e in of_loop.exponents(chain)]
    inside = [s for chain, _ in made for s in chain.body]
    rows = _Rows(scaled, inside, [s for part in outside for s in part])
    if not exponents or None in exponents or not all(rows.add(str(row)) for row in exponents):
        return unchanged
    if not rows.close():
        return unchanged
    chains = [
        replace(chain, early=rows.of(chain.early), middle=rows.of(chain.middle), late=rows.of(chain.late))
        for chain, _ in made
    ]
    return chains, [rows.of(part) for part in outside]


def _found(
    chain: Chain, kernel: TritonKernel, bound: Mapping[str, ast.expr], outside: Collection[str]
) -> tuple[Chain, _Scaled] | None:
    """A loop with its scores' factor moved to their uses; None without one. ``outside``: names read elsewhere."""
    node, tl, middle = chain.first.node, kernel.tl, list(chain.middle)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    name, value, after = node.targets[0].id, node.value, middle[0].node if middle else None
    factor: ast.expr | None = None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        value, factor = _factor(value, lambda side: device_call(side, tl) == "dot")
    elif isinstance(after, ast.AugAssign | ast.Assign) and _names_of(after) == [name]:
        product = after.value
        if isinstance(after, ast.AugAssign):
            product = ast.BinOp(ast.Name(name, ast.Load()), after.op, after.value)
        if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
            factor = _factor(product, lambda side: ast.unparse(side) == name)[1]
            middle = middle[1:] if factor is not None else middle
    written = {n for s in chain.body for n in s.writes} | {chain.variable}
    host = None if factor is None else number_in_host(factor, kernel, bound)
    if factor is None or host is None or device_call(value, tl) != "dot":
        return None
    before = {n for s in chain.early for n in s.reads}  # of the step before
    if names_in(ast.unparse(factor)) & written or name in {*outside, *before, *names_in(chain.operand)}:
        return None
    scaled, pending, made = _Scaled(tl, name, factor), True, list[Statement]()
    for statement in middle:
        if pending and not _hides(statement.node, name, tl):
            made.append(scaled.of(statement))
            pending = name not in statement.writes
        else:
            made.append(statement)
    late = tuple(scaled.of(s) if pending else s for s in chain.late)
    first = Statement(ast.parse(f"{name} = {ast.unparse(value)}").body[0])
    scale, positive = ast.unparse(factor), f"{host} > 0"
    return replace(chain, first=first, middle=tuple(made), late=late, scale=scale, positive=positive), scaled


def _factor(product: ast.BinOp, wanted: Callable[[ast.expr], bool]) -> tuple[ast.expr, ast.expr | None]:
    """(wanted side, other side) of a product; (the product, None) where neither side is wanted."""
    sides = ((product.left, product.right), (product.right, product.left))
    return next((pair for pair in sides if wanted(pair[0])), (product, None))


def _names_of(node: ast.Assign | ast.AugAssign) -> list[str]:
    """Targets of an assignment, as texts."""
    return [ast.unparse(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]


def _difference(node: ast.AST, tl: str) -> tuple[ast.expr, ast.expr] | None:
    """(left, right) of ``exp(left - right)`` and of ``exp2``."""
    if device_call(node, tl) in ("exp", "exp2") and isinstance(node, ast.Call) and len(node.args) == 1:
        inner = node.args[0]
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            return inner.left, inner.right
    return None


def _row(row: ast.expr) -> str:
    """The name in ``row`` or ``row[:, None]``; empty for another expression."""
    value = row.value if isinstance(row, ast.Subscript) and expanded(row) is not None else row
    return value.id if isinstance(value, ast.Name) else ""


class _Rows:
    """Rows of largest scores that are kept without the factor, under names of their own.

    Rounding keeps an order: the largest of products is the product of the largest, to the last bit.
    """

    def __init__(self, scaled: _Scaled, inside: Sequence[Statement], outside: Sequence[Statement]) -> None:
        self.scaled, self.inside, self.outside = scaled, inside, outside
        self.names = set[str]()

    def add(self, name: str) -> bool:
        """Add a row and those it is computed from; False where one is anything but a largest score."""
        if not name or name in self.names:
            return bool(name)
        writers = [s for s in (*self.inside, *self.outside) if name in s.writes]
        self.names.add(name)
        names = {n for s in (*self.inside, *self.outside) for n in s.reads | s.writes}
        if not writers or _bare(name) in names:
            return False
        for statement in writers:
            node = statement.node
            if not isinstance(node, ast.Assign) or [ast.unparse(t) for t in node.targets] != [name]:
                return False
            if statement not in self.inside and _is_lowest(node.value, self.scaled.tl):
                continue
            leaves = self._leaves(node.value)
            if leaves is None or not all(map(self.add, leaves)):
                return False
        return True

    def close(self) -> bool:
        """Add rows that rows are compared with; False where a loop reads rows in a way that ``of`` does not rewrite."""
        while True:
            known = set(self.names)
            found = [_Exponents(self, s) for s in self.inside]
            if not all(self.add(name) for each in found for name in each.others):
                return False
            if known == self.names:
                return not any(each.left & known for each in found)

    def of(self, statements: Iterable[Statement]) -> tuple[Statement, ...]:
        """The statements in words of unscaled rows; the others remain for what reads them around the loops."""
        made = list[Statement]()
        for statement in statements:
            node = statement.node
            (name,) = statement.writes if len(statement.writes) == 1 else ("",)
            if name not in self.names or not isinstance(node, ast.Assign):
                made.append(_Exponents(self, statement).made)
                continue
            value = ast.parse(ast.unparse(node.value), mode="eval").body
            bare = ast.unparse(self._without_factor(value))
            made.append(Statement(ast.parse(f"{_bare(name)} = {bare}").body[0]))
            if name in self._read:
                own = f"{_bare(name)} * {self._factor}"
                own = ast.unparse(node.value) if _is_lowest(node.value, self.scaled.tl) else own
                made.append(Statement(ast.parse(f"{name} = {own}").body[0]))
        return tuple(made)

    @property
    def _read(self) -> set[str]:
        """Names that are read around the loops."""
        return set[str]().union(*(_Exponents(self, s).left for s in self.outside))

    @property
    def _factor(self) -> str:
        text = ast.unparse(self.scaled.factor)
        return text if text.isidentifier() else f"({text})"

    def exponent(self, name: str, left: str, right: str) -> str:
        """``name``, a base's function, of a difference of numbers without the factor."""
        factor = f"({self._factor} * 1.4426950408889634)" if name == "exp" else self._factor
        return f"{self.scaled.tl}.exp2(({left} - {right}) * {factor})"

    def _leaves(self, value: ast.expr) -> list[str] | None:
        """The rows that a largest score is computed of; None for anything else."""
        if isinstance(value, ast.Name):
            return [value.id]
        if device_call(value, self.scaled.tl) == "maximum" and isinstance(value, ast.Call) and not value.keywords:
            found = [self._leaves(a) for a in value.args]
            return None if None in found else [n for some in found for n in some or ()]
        return [] if self._is_largest(value) else None

    def _is_largest(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            return False
        row, factor = value.left, ast.unparse(value.right)
        of_scores = isinstance(row, ast.Call) and ast.unparse(row.args[0]) == self.scaled.name
        largest = device_call(row, self.scaled.tl) == "max"
        return of_scores and largest and factor == ast.unparse(self.scaled.factor)

    def _without_factor(self, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Name):
            return ast.Name(_bare(value.id), ast.Load())
        if self._is_largest(value) and isinstance(value, ast.BinOp):
            return value.left
        if device_call(value, self.scaled.tl) == "maximum" and isinstance(value, ast.Call):
            value.args = [self._without_factor(a) for a in value.args]
        return value


def _is_lowest(value: ast.expr, tl: str) -> bool:
    """Whether a row is minus infinity throughout, which is its own multiple."""
    if device_call(value, tl) == "full" and isinstance(value, ast.Call):
        given = [*value.args[1:2], *(k.value for k in value.keywords if k.arg == "value")]
        return [ast.unparse(g) in _HIDDEN for g in given] == [True]
    zeros = isinstance(value, ast.BinOp) and device_call(value.left, tl) == "zeros"
    return (
        zeros
        and isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Sub)
        and (ast.unparse(value.right) == "float('inf')")
    )


def _bare(row: str) -> str:
    return f"{row}_unscaled"


class _Exponents(ast.NodeTransformer):
    """A statement with its exponents in words of unscaled ``rows``. ``left``: names that it reads otherwise;
    ``others``: rows of a difference of which one is known."""

    def __init__(self, rows: _Rows, statement: Statement) -> None:
        self.rows, self.tl, self.others = rows, rows.scaled.tl, set[str]()
        made = ast.fix_missing_locations(self.visit(ast.parse(statement.text).body[0]))
        self.made = Statement(ast.parse(ast.unparse(made)).body[0])
        self.left = set[str]() if statement.writes & rows.names else set(self.made.reads)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        sides, names = _difference(node, self.tl), self.rows.names
        if sides is None:
            return self.generic_visit(node)
        left, right = (ast.unparse(side) for side in sides)
        rows = {row for side in sides if (row := _row(side))}
        if left == self.rows.scaled.text:
            rows, left = {_row(sides[1])}, self.rows.scaled.name
        elif len(rows) < 2 or not rows <= names:
            self.others |= rows - names if rows & names else set()
            return self.generic_visit(node)
        else:
            left = left.replace(_row(sides[0]), _bare(_row(sides[0])), 1)
        if not rows <= names:
            return self.generic_visit(node)
        right = right.replace(_row(sides[1]), _bare(_row(sides[1])), 1)
        return ast.parse(self.rows.exponent(device_call(node, self.tl), left, right), mode="eval").body


def _hides(node: ast.stmt, name: str, tl: str) -> bool:
    """Whether a statement only puts minus infinity, which is its own multiple, in place of some scores."""
    if not isinstance(node, ast.Assign) or [ast.unparse(t) for t in node.targets] != [name]:
        return False
    call = node.value
    if device_call(call, tl) != "where" or not isinstance(call, ast.Call) or len(call.args) != 3:
        return False
    mask, kept, other = (ast.unparse(a) for a in call.args)
    return kept == name and other in _HIDDEN and name not in names_in(mask)


class _Scaled(ast.NodeTransformer):
    """Puts the product of ``name`` and its factor where ``name`` is read."""

    def __init__(self, tl: str, name: str, factor: ast.expr) -> None:
        self.tl, self.name, self.factor = tl, name, factor
        self.text = ast.unparse(ast.BinOp(ast.Name(name), ast.Mult(), factor))

    def of(self, statement: Statement) -> Statement:
        node = ast.parse(statement.text).body[0]
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == self.name:
            target = ast.Name(self.name, ast.Store())
            node = ast.Assign([target], ast.BinOp(ast.Name(self.name, ast.Load()), node.op, node.value))
        made = ast.fix_missing_locations(self.visit(node))
        return Statement(ast.parse(ast.unparse(made)).body[0])

    def exponents(self, chain: Chain) -> list[str | None]:
        """Names of the rows below which scores are exponents; None where scores are subtracted from otherwise."""
        found = list[str | None]()
        for statement in (*chain.middle, *chain.late):
            known = set[ast.AST]()
            for node in ast.walk(statement.node):
                sides = _difference(node, self.tl)
                if sides is not None and ast.unparse(sides[0]) == self.text:
                    found.append(_row(sides[1]) or None)
                    known.add(node.args[0])  # type: ignore[attr-defined]
                elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and node not in known:
                    found += [None] * (self.text in (ast.unparse(node.left), ast.unparse(node.right)))
        return found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        plain = len(node.args) + len(node.keywords) == 2 and all(k.arg == "axis" for k in node.keywords)
        if device_call(node, self.tl) == "max" and plain and ast.unparse(node.args[0]) == self.name:
            return ast.BinOp(node, ast.Mult(), self.factor)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self.name and isinstance(node.ctx, ast.Load):
            return ast.BinOp(node, ast.Mult(), self.factor)
        return node


def number_in_host(node: ast.expr, kernel: TritonKernel, bound: Mapping[str, ast.expr]) -> str | None:
    """A number of the kernel as the host says it; None where the host does not know it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return repr(node.value)
    if isinstance(node, ast.Name) and node.id in bound:
        return number_in_host(bound[node.id], kernel, bound)
    if isinstance(node, ast.Name) and node.id not in kernel.bound:
        given = kernel.given(node.id)
        return None if given is None else f"({kernel.source.code(given)})"
    if device_call(node, kernel.tl) == "cdiv" and isinstance(node, ast.Call) and len(node.args) == 2:
        sides = [number_in_host(n, kernel, bound) for n in node.args]
        return None if None in sides else f"(-(-{sides[0]} // {sides[1]}))"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Sub | ast.FloorDiv):
        sides = [number_in_host(n, kernel, bound) for n in (node.left, node.right)]
        sign = {ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.FloorDiv: "//"}[type(node.op)]
        return None if None in sides else f"({sides[0]} {sign} {sides[1]})"
    return None
