"""A rule that divides a running average by its running sum once, at the end, instead of in every step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, small, statements
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.accumulation import full_index
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall, pairs

_ZEROS = ("jax.numpy.zeros", "jax.numpy.zeros_like")
_FULL = ("jax.numpy.full", "jax.numpy.full_like")
OLD = "<old>"
"""Stands for what a running value was before the step."""

Factors = tuple[tuple[str, str], ...]
"""("*" or "/", text) pairs, whose product is one term of a sum."""


@dataclass
class Average:
    """A running average in one block: ``average = average * old_sum * more / sum + new / sum``.

    ``updates`` are the statements that do so, ``unnormalised`` the text of the sum they should leave, ``weights`` the
    running sum's place.
    """

    place: str
    updates: Sequence[cst.CSTNode]
    unnormalised: str
    weights: str
    reads: list[cst.CSTNode]


class NormaliseOnce(CallRule[Average]):
    """Keep a running average as a sum of weighted values, and divide by the sum of weights where it is read."""

    name = "pallas_normalise_once"
    why = (
        "Dividing the running output of a softmax by its sum in every step takes a reciprocal and two more products "
        "of the whole output each time; the quotient of two sums takes one at the end."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Average]]:
        blocks = (node for node in walk(view.function) if isinstance(node, cst.IndentedBlock))
        for block in blocks:
            for place in dict.fromkeys(p for s in block.body for p in _assigned_places(view.kernel, s)):
                if (average := _Block(view, block, place).average()) is not None:
                    yield f"divide {average.place} by its sum of weights once, where it is read", average

    def change(self, edit: Edit, view: PallasCall, average: Average) -> None:
        for statement in average.updates[:-1]:
            edit.remove(statement)
        edit.replace_statement(average.updates[-1], f"{average.place} = {average.unnormalised}")
        for node in average.reads:
            edit.replace(node, f"({average.place} / {average.weights})")


def _assigned_places(kernel: KernelSource, statement: cst.CSTNode) -> list[str]:
    """Texts of the places that a statement assigns to: names, and whole references."""
    line = small(statement)
    targets = [t.target for t in line.targets] if isinstance(line, cst.Assign) else []
    targets += [line.target] if isinstance(line, cst.AugAssign) else []
    return [kernel.code(t) for t in targets if isinstance(t, cst.Name) or full_index(t)]


class _Block:
    """One block of straight-line code, read as what it does to one place."""

    def __init__(self, view: PallasCall, block: cst.IndentedBlock, place: str) -> None:
        self.view, self.kernel, self.block, self.place = view, view.kernel, block, place
        self.bound = definitions(view.function)
        self.updates = [s for s in block.body if place in _assigned_places(self.kernel, s)]

    def average(self) -> Average | None:
        """The running average that the block keeps in the place, if it does."""
        terms = self._final()
        if terms is None or len(terms) < 2:
            return None
        carried = [t for t in terms if ("*", OLD) in t]
        if len(carried) != 1 or carried[0].count(("*", OLD)) != 1:
            return None
        for common in dict.fromkeys(carried[0]):
            if not all(common in t for t in terms):
                continue
            weights = self._sum_of(common)
            if weights is None:
                continue
            old = [f for f in carried[0] if f[0] == "*" and self._old_value(f[1], weights)]
            if len(old) != 1:
                continue
            texts = []
            for term in terms:
                rest = list(term)
                rest.remove(common)
                if term is carried[0]:
                    rest.remove(old[0])
                texts.append(self._product(rest))
            reads = self._reads(weights)
            if reads is not None:
                return Average(self.place, self.updates, " + ".join(texts), weights, reads)
        return None

    # -- the sum of products that the block leaves ----------------------------------------------------------

    def _final(self) -> list[Factors] | None:
        """Terms of the place's new value over its old one and values of the block."""
        current: list[Factors] = [(("*", OLD),)]
        for statement in self.updates:
            line = small(statement)
            if isinstance(line, cst.AugAssign):
                right = self._terms(line.value, current, 8)
                if isinstance(line.operator, cst.AddAssign):
                    current = current + right
                elif isinstance(line.operator, cst.MultiplyAssign) and len(right) == 1:
                    current = [t + right[0] for t in current]
                else:
                    return None
            elif isinstance(line, cst.Assign):
                current = self._terms(line.value, current, 8)
        return current

    def _terms(self, node: cst.BaseExpression, current: list[Factors], depth: int) -> list[Factors]:
        if self.kernel.code(node) == self.place or (full_index(node) and self._plain(node) == self.place):
            return current
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.Add):
                return self._terms(node.left, current, depth) + self._terms(node.right, current, depth)
            if isinstance(node.operator, cst.Multiply):
                left, right = self._terms(node.left, current, depth), self._terms(node.right, current, depth)
                if len(left) == 1 or len(right) == 1:
                    return [a + b for a in left for b in right]
            if isinstance(node.operator, cst.Divide):
                return [(*t, ("/", self._plain(node.right))) for t in self._terms(node.left, current, depth)]
        if isinstance(node, cst.Name) and depth:
            value = self._value(node.value)
            if value is not None and (isinstance(value, cst.BinaryOperation) or self._plain(value) == self.place):
                old: list[Factors] = [(("*", OLD),)]
                return self._terms(value, old if self._plain(value) == self.place else current, depth - 1)
        return [(("*", self._plain(node)),)]

    def _plain(self, node: cst.BaseExpression) -> str:
        """Text without the parentheses around it, on one line."""
        if isinstance(node, cst.BinaryOperation | cst.Name | cst.Call) and node.lpar:
            node = node.with_changes(lpar=[], rpar=[])
        return " ".join(self.kernel.code(node).split())

    def _value(self, name: str) -> cst.BaseExpression | None:
        """What a name bound once, in this block, stands for."""
        places = self.bound.get(name, [])
        if len(places) != 1 or places[0] not in self.block.body:
            return None
        return next((v for n, v in pairs(places[0]) if n == name), None)

    def _product(self, factors: Sequence[tuple[str, str]]) -> str:
        """Text of a product of factors, without those it was divided by first."""
        up = [self.place if text == OLD else _tight(text) for sign, text in factors if sign == "*"]
        down = [_tight(text) for sign, text in factors if sign == "/"]
        return " * ".join(up or ["1.0"]) + "".join(f" / {text}" for text in down)

    # -- the running sum -----------------------------------------------------------------------------------

    def _sum_of(self, factor: tuple[str, str]) -> str | None:
        """The place of the running sum that a factor divides by."""
        sign, text = factor
        if sign != "/":
            return None
        kept = self._kept_in(text) if text.isidentifier() else iter(())
        return next(kept, text if text in self._places() else None)

    def _places(self) -> set[str]:
        return {p for s in self.block.body for p in _assigned_places(self.kernel, s)} - {self.place}

    def _kept_in(self, name: str) -> Iterator[str]:
        """Places that the block sets to ``name``, once."""
        for place in self._places():
            stores = [s for s in self.block.body if place in _assigned_places(self.kernel, s)]
            line = small(stores[0])
            if len(stores) == 1 and isinstance(line, cst.Assign) and self.kernel.code(line.value) == name:
                yield place

    def _old_value(self, text: str, place: str) -> bool:
        """Whether a factor is what ``place`` held before the block changed it."""
        stores = [s for s in self.block.body if place in _assigned_places(self.kernel, s)]
        if text == place:
            return False
        places = self.bound.get(text, []) if text.isidentifier() else []
        value = self._value(text) if text.isidentifier() else None
        if value is None or self._plain(value) != place:
            return False
        body = list(self.block.body)
        return body.index(places[0]) < body.index(stores[0])  # type: ignore[arg-type]

    # -- everything else that touches the place --------------------------------------------------------------

    def _reads(self, weights: str) -> list[cst.CSTNode] | None:
        """Reads of the place outside the block; None where the place is used in a way that is not followed."""
        mine = {n for s in self.block.body for n in walk(s)}
        found: list[cst.CSTNode] = []
        for statement in statements(self.view.function.body):
            if statement in mine or isinstance(statement, cst.BaseCompoundStatement):
                continue
            if self.place in _assigned_places(self.kernel, statement):
                line = small(statement)
                if not isinstance(line, cst.Assign) or not self._starts(line.value):
                    return None
                continue
            found += [n for n in walk(statement) if self._is_place(n)]
        used = sum(1 for s in self.block.body if s not in self.updates for n in walk(s) if self._is_place(n))
        aliases = sum(
            1 for n in self.block.body if (v := small(n)) and isinstance(v, cst.Assign) and self._is_place(v.value)
        )
        if used != aliases or any(self._is_compound_use(s) for s in statements(self.view.function.body)):
            return None
        return found or None

    def _is_place(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Name) and node.value == self.place:
            return True
        return isinstance(node, cst.Subscript) and self.kernel.code(node) == self.place

    def _is_compound_use(self, statement: cst.CSTNode) -> bool:
        """Whether the condition of a compound statement reads the place."""
        if isinstance(statement, cst.If | cst.While):
            return any(self._is_place(n) for n in walk(statement.test))
        return isinstance(statement, cst.For) and any(self._is_place(n) for n in walk(statement.iter))

    def _starts(self, value: cst.BaseExpression) -> bool:
        """Whether a value is zeros."""
        if isinstance(value, cst.Call):
            name = self.kernel.qualified(value.func)
            if name in _ZEROS:
                return True
            return name in _FULL and len(value.args) > 1 and self.kernel.code(value.args[1].value) in ("0", "0.0")
        return isinstance(value, cst.Integer | cst.Float) and float(value.value) == 0.0


def _tight(text: str) -> str:
    node = cst.parse_expression(text)
    loose = isinstance(node, cst.BinaryOperation | cst.UnaryOperation | cst.IfExp | cst.Comparison)
    return f"({text})" if loose and not node.lpar else text
