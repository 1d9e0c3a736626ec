"""The exponentials of a softmax in base two."""

import ast
from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, resolve, small, statements
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.accumulation import dot_of, full_index
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.static import StaticNames
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall, pairs
from tilewright.fitness.dialect_names import names

LOG2E = "1.4426950408889634"
HUGE = 1e20
"""A mask's value at or above this stays one in base two."""

_EXP = ("jax.numpy.exp", "jax.lax.exp")
_KEEPS_UNIT = frozenset(
    f"jax.numpy.{name}"
    for name in names("max amax maximum concatenate broadcast_to repeat reshape where full full_like zeros zeros_like")
) | {"jax.experimental.pallas.tpu.repeat"}

ScaledPowers = tuple[dict[cst.CSTNode, cst.BaseExpression], list[cst.Call]]
"""Factors of scores by statement, and the exponentials of their differences."""


class BaseTwoSoftmax(CallRule[ScaledPowers]):
    """Raise two instead of e: scores are scaled by log2(e) as well, in the factor that scales them anyway."""

    name = "pallas_base_two_softmax"
    why = (
        "The hardware raises two to a power; e to a power is that after a product with log2(e) for every score. Folded "
        "into the scale of the scores, the product costs nothing."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, ScaledPowers]]:
        for name, group in scalings(view).items():
            powers = _Units(view, name, group).powers()
            if powers:
                yield f"{name} in base two, {len(powers)} exponentials", (group, powers)

    def change(self, edit: Edit, view: PallasCall, payload: ScaledPowers) -> None:
        kernel = view.kernel
        group, powers = payload
        numpy = edit.ensure_import("jax.numpy", "jnp")
        for factor in group.values():
            edit.replace(factor, f"({kernel.code(factor)} * {LOG2E})")
        for call in powers:
            edit.replace(call.func, f"{numpy}.exp2")


Scalings = dict[cst.CSTNode, cst.BaseExpression]
"""Statements ``scores = product * factor`` and the factor, a Python number."""


def scalings(view: PallasCall) -> dict[str, Scalings]:
    """Products of a dot's result with a Python number, by the scores' name."""
    static = StaticNames(view.kernel, view.function)
    found: dict[str, Scalings] = {}
    for statement in statements(view.function.body):
        line = small(statement)
        target: cst.BaseExpression
        sides: list[tuple[cst.BaseExpression, cst.BaseExpression]]
        if isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.MultiplyAssign):
            target, sides = line.target, [(line.target, line.value)]
        elif isinstance(line, cst.Assign) and isinstance(line.value, cst.BinaryOperation):
            if not isinstance(line.value.operator, cst.Multiply):
                continue
            target = line.targets[0].target
            sides = [(line.value.left, line.value.right), (line.value.right, line.value.left)]
        else:
            continue
        for scored, factor in sides:
            if isinstance(target, cst.Name) and static(factor) and _from_dot(view, scored):
                found.setdefault(target.value, {})[statement] = factor
                break
    return found


def _from_dot(view: PallasCall, node: cst.BaseExpression) -> bool:
    """Whether ``node`` is a matrix product, or a name that is bound to one first."""
    if dot_of(view.kernel, node) is not None:
        return True
    if not isinstance(node, cst.Name):
        return False
    places = definitions(view.function).get(node.value, [])
    values = [v for place in places[:1] for n, v in pairs(place) if n == node.value]
    return bool(values) and dot_of(view.kernel, values[0]) is not None


class _Units:
    """What of a kernel is in the unit of its scores: they, their maxima, and what keeps those."""

    def __init__(self, view: PallasCall, name: str, scalings: Scalings) -> None:
        self.kernel, self.name, self.scalings = view.kernel, name, scalings
        self.static = StaticNames(view.kernel, view.function)
        self.places = {name}
        self.statements = list(statements(view.function.body))

    def powers(self) -> list[cst.Call]:
        """Exponentials of differences of scores; none where scores are used for anything else."""
        for _ in range(8):
            before = len(self.places)
            self._spread()
            if len(self.places) == before:
                break
        found: list[cst.Call] = []
        for statement in self.statements:
            line = small(statement)
            if line is None:
                if self._mentions(_header(statement)):
                    return []
                continue
            if statement in self.scalings or not self._mentions(line):
                continue
            powers = [
                n
                for n in walk(line)
                if isinstance(n, cst.Call) and self.kernel.qualified(n.func) in _EXP and self._difference(n)
            ]
            found += powers
            covered = {n for power in powers for n in walk(power.args[0].value)}
            if self._left_over(statement, line, covered):
                return []
        return found

    def _spread(self) -> None:
        """Add what is made of scores, and what is compared with them: it must be of their unit, or the rule refuses."""
        for statement in self.statements:
            line = small(statement)
            if not isinstance(line, cst.Assign) or len(line.targets) != 1 or statement in self.scalings:
                continue
            place = self._place(line.targets[0].target)
            if place is None:
                continue
            if place in self.places and (source := self._place(line.value)) is not None:
                self.places.add(source)
            for node in walk(line.value):
                if isinstance(node, cst.Call) and self.kernel.qualified(node.func) == "jax.numpy.maximum":
                    sides = [a.value for a in node.args]
                    if any(self._unit(side) for side in sides):
                        self.places |= {p for side in sides if (p := self._place(side)) is not None}
            if self._unit(line.value):
                self.places.add(place)

    def _place(self, node: cst.BaseExpression) -> str | None:
        if isinstance(node, cst.Name) or full_index(node):
            return self.kernel.code(node)
        return None

    def _unit(self, node: cst.BaseExpression) -> bool:
        """Whether ``node`` is in the scores' unit, and reads at least one place that is."""
        return self._fits(node) and self._mentions(node)

    def _mentions(self, node: cst.CSTNode | None) -> bool:
        if node is None:
            return False
        return any(
            isinstance(n, cst.Name | cst.Subscript)
            and self.kernel.code(n) in self.places
            and not self._is_description(n)
            for n in walk(node)
        )

    def _is_description(self, node: cst.CSTNode) -> bool:
        """Whether a place is read for its shape or dtype alone."""
        parent = self.kernel.parents.get(node)
        return isinstance(parent, cst.Attribute) and parent.attr.value in ("shape", "dtype", "ndim", "at")

    def _fits(self, node: cst.BaseExpression) -> bool:
        """Whether scaling every score scales ``node`` alike."""
        if self.kernel.code(node) in self.places or self._neutral(node):
            return True
        if isinstance(node, cst.Subscript):
            return self._fits(node.value)
        if isinstance(node, cst.List | cst.Tuple):
            return all(self._fits(e.value) for e in node.elements)
        if isinstance(node, cst.IfExp):
            return self.static(node.test) and self._fits(node.body) and self._fits(node.orelse)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.Multiply) and isinstance(node.left, cst.List):
                return self._fits(node.left)
            return isinstance(node.operator, cst.Add) and self._fits(node.left) and self._fits(node.right)
        if isinstance(node, cst.Call) and node.args:
            name = self.kernel.qualified(node.func)
            if name not in _KEEPS_UNIT:
                method = node.func if isinstance(node.func, cst.Attribute) else None
                return method is not None and method.attr.value in ("max", "reshape") and self._fits(method.value)
            free = [a.value for a in node.args if a.keyword is None]
            if name == "jax.numpy.where":
                return all(self._fits(a) for a in free[1:])
            if name == "jax.numpy.maximum":
                return all(self._fits(a) for a in free)
            if name in ("jax.numpy.full", "jax.numpy.full_like"):
                return len(free) > 1 and self._neutral(free[1])
            return name in ("jax.numpy.zeros", "jax.numpy.zeros_like") or self._fits(free[0])
        return False

    def _neutral(self, node: cst.BaseExpression) -> bool:
        """Whether a number is the same in any unit: zero, infinite, or huge as a mask's."""
        node = resolve(self.kernel, node)
        text = self.kernel.code(node).replace(" ", "")
        if text.lstrip("-").endswith((".inf", 'float("inf")')):
            return True
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return False
        return isinstance(value, int | float) and (value == 0 or abs(value) >= HUGE)

    def _difference(self, call: cst.Call) -> bool:
        """Whether an exponential is of a difference of two values in the scores' unit."""
        node = call.args[0].value
        if isinstance(node, cst.Name) and node.value not in self.places:
            return False
        return (
            isinstance(node, cst.BinaryOperation)
            and isinstance(node.operator, cst.Subtract)
            and self._unit(node.left)
            and self._unit(node.right)
        )

    def _left_over(self, statement: cst.CSTNode, line: cst.CSTNode, covered: set[cst.CSTNode]) -> bool:
        """Whether a statement uses scores outside of exponentials and of what stays in their unit."""
        if isinstance(line, cst.Assign) and len(line.targets) == 1:
            place = self._place(line.targets[0].target)
            if place in self.places:
                return not self._fits(line.value) and not self._raw(statement)
            outside = [line.value]
        else:
            outside = [line]  # type: ignore[list-item]
        for node in (n for part in outside for n in walk(part)):
            if node in covered or not isinstance(node, cst.Name | cst.Subscript):
                continue
            if self.kernel.code(node) in self.places and not self._is_description(node):
                return True
        return False

    def _raw(self, statement: cst.CSTNode) -> bool:
        """Whether a statement binds scores that the statement after it scales."""
        block = list(self.kernel.parents[statement].body)  # type: ignore[attr-defined]
        place = block.index(statement)
        line = small(statement)
        return (
            isinstance(line, cst.Assign)
            and self.kernel.code(line.targets[0].target) == self.name
            and not self._mentions(line.value)
            and any(s in self.scalings for s in block[place + 1 : place + 2])
        )


def _header(statement: cst.CSTNode) -> cst.CSTNode | None:
    """What a compound statement decides by."""
    if isinstance(statement, cst.If | cst.While):
        return statement.test
    return statement.iter if isinstance(statement, cst.For) else None
