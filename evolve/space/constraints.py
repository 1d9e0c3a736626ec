"""Constraint expressions: a small, total subset of Python expressions, compiled once to closures.

Constraints come from kernel sources, which may be written by a model, and are evaluated in the driver. So
nothing here calls ``eval``: a syntax tree of known nodes becomes nested closures, operand kinds are checked
while compiling (no text or tuple ever reaches arithmetic), and powers are bounded.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import product

import numpy as np

from tilewright.evolve.errors import UserError
from tilewright.evolve.space.genome import Value

Environment = Mapping[str, Value]
Evaluate = Callable[[Environment], object]
Constants = Mapping[str, int | float]
Rows = np.ndarray
"""int16 [points, parameters]: indices into each parameter's values."""

TABLE_LIMIT = 200_000
"""Combinations of one constraint's parameters and constants up to which its answers are tabulated."""

MAX_EXPRESSION = 2000
"""Characters of one expression."""

_MAX_DEPTH = 60
_MAX_POWER_BASE = 2**64
_MAX_EXPONENT = 64


class SpaceError(UserError):
    """A space that cannot be used: malformed declarations or constraints, or no legal point."""


class Kind(Enum):
    NUMBER = "number"
    TEXT = "text"
    MIXED = "mixed"
    """A parameter whose values are partly numbers, partly text: it can only be compared for equality."""

    TUPLE = "tuple"


def cdiv(numerator: float, denominator: float) -> float:
    """Quotient rounded up."""
    return -(-numerator // denominator)


def _power(base: float, exponent: float) -> float:
    if abs(base) > _MAX_POWER_BASE or abs(exponent) > _MAX_EXPONENT:
        raise OverflowError("power out of bounds")
    return base**exponent


_ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_ORDER: dict[type, Callable] = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_EQUALITY: dict[type, Callable] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_UNARY: dict[type, Callable] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
FUNCTIONS: dict[str, Callable] = {"min": min, "max": max, "cdiv": cdiv, "abs": abs}


def kind_of(values: tuple[Value, ...]) -> Kind:
    kinds = {Kind.TEXT if isinstance(v, str) else Kind.NUMBER for v in values}
    return kinds.pop() if len(kinds) == 1 else Kind.MIXED


@dataclass(frozen=True)
class Constraint:
    """An expression that must hold, and the reason shown when it does not."""

    expression: str
    reason: str
    names: frozenset[str]
    """Every name the expression uses."""

    evaluate: Evaluate

    def holds(self, environment: Environment) -> bool:
        """False also where the expression has no value there, such as a division by zero."""
        try:
            return bool(self.evaluate(environment))
        except (ZeroDivisionError, OverflowError, TypeError, ValueError, MemoryError):
            return False  # a root of a negative number is complex, and no order is defined on that


def compile_constraint(expression: str, reason: str, kinds: Mapping[str, Kind]) -> Constraint:
    """Compile over names of the given kinds. Raises SpaceError that names the expression and the fault."""
    if len(expression) > MAX_EXPRESSION:
        raise SpaceError(f"constraint {expression[:40]!r}... is longer than {MAX_EXPRESSION} characters.")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpaceError(f"constraint {expression!r} is not an expression: {error}.") from error
    compiler = _Compiler(expression, kinds)
    evaluate, _ = compiler.visit(tree.body, 0)
    return Constraint(expression, reason, frozenset(compiler.names), evaluate)


class _Compiler:
    def __init__(self, expression: str, kinds: Mapping[str, Kind]) -> None:
        self.expression = expression
        self.kinds = kinds
        self.names: set[str] = set()

    def fail(self, message: str) -> SpaceError:
        return SpaceError(f"constraint {self.expression!r}: {message}.")

    def visit(self, node: ast.expr, depth: int) -> tuple[Evaluate, Kind]:
        if depth > _MAX_DEPTH:
            raise self.fail("nested too deeply")
        handler = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if handler is None:
            allowed = "arithmetic, comparisons, and/or/not, in, if-else, " + ", ".join(FUNCTIONS)
            raise self.fail(f"{type(node).__name__} is not allowed (allowed: {allowed})")
        return handler(node, depth + 1)

    def number(self, node: ast.expr, depth: int) -> Evaluate:
        evaluate, kind = self.visit(node, depth)
        if kind is not Kind.NUMBER:
            raise self.fail(f"{ast.unparse(node)} is {kind.value} where a number is needed")
        return evaluate

    def on_constant(self, node: ast.Constant, depth: int) -> tuple[Evaluate, Kind]:
        value = node.value
        if not isinstance(value, bool | int | float | str):
            raise self.fail(f"the literal {ast.unparse(node)} is not a number, bool or text")
        return lambda env: value, kind_of((value,))

    def on_name(self, node: ast.Name, depth: int) -> tuple[Evaluate, Kind]:
        name = node.id
        if name not in self.kinds:
            raise self.fail(f"{name} is unknown (known: {', '.join(sorted(self.kinds)) or 'nothing'})")
        self.names.add(name)
        return operator.itemgetter(name), self.kinds[name]

    def on_tuple(self, node: ast.Tuple | ast.List | ast.Set, depth: int) -> tuple[Evaluate, Kind]:
        items = [self.visit(item, depth) for item in node.elts]
        if any(kind is Kind.TUPLE for _, kind in items):
            raise self.fail("a tuple within a tuple is not allowed")
        parts = [evaluate for evaluate, _ in items]
        return lambda env: tuple(part(env) for part in parts), Kind.TUPLE

    on_list = on_tuple
    on_set = on_tuple

    def on_binop(self, node: ast.BinOp, depth: int) -> tuple[Evaluate, Kind]:
        function = _ARITHMETIC.get(type(node.op))
        if function is None:
            raise self.fail(f"the operator {type(node.op).__name__} is not allowed")
        left, right = self.number(node.left, depth), self.number(node.right, depth)
        return lambda env: function(left(env), right(env)), Kind.NUMBER

    def on_unaryop(self, node: ast.UnaryOp, depth: int) -> tuple[Evaluate, Kind]:
        function = _UNARY.get(type(node.op))
        if function is None:
            raise self.fail(f"the operator {type(node.op).__name__} is not allowed")
        operand = self.visit(node.operand, depth)[0] if function is operator.not_ else None
        part = operand or self.number(node.operand, depth)
        return lambda env: function(part(env)), Kind.NUMBER

    def on_boolop(self, node: ast.BoolOp, depth: int) -> tuple[Evaluate, Kind]:
        parts = [self.visit(value, depth)[0] for value in node.values]
        combine = all if isinstance(node.op, ast.And) else any
        return lambda env: combine(part(env) for part in parts), Kind.NUMBER

    def on_compare(self, node: ast.Compare, depth: int) -> tuple[Evaluate, Kind]:
        operands = [self.visit(operand, depth) for operand in (node.left, *node.comparators)]
        checks = [self._link(op, *operands[place], *operands[place + 1]) for place, op in enumerate(node.ops)]
        if len(checks) == 1:
            return checks[0], Kind.NUMBER
        return lambda env: all(check(env) for check in checks), Kind.NUMBER

    def _link(self, op: ast.cmpop, left: Evaluate, left_kind: Kind, right: Evaluate, right_kind: Kind) -> Evaluate:
        if isinstance(op, ast.In | ast.NotIn):
            if right_kind is not Kind.TUPLE or left_kind is Kind.TUPLE:
                raise self.fail("'in' needs a value on its left and a tuple on its right")
            wanted = isinstance(op, ast.In)
            return lambda env: (left(env) in right(env)) is wanted  # type: ignore[operator]
        function = _ORDER.get(type(op))
        if function is not None and (left_kind, right_kind) != (Kind.NUMBER, Kind.NUMBER):
            raise self.fail("order is defined between numbers only")
        function = function or _EQUALITY.get(type(op))
        if function is None:
            raise self.fail(f"the comparison {type(op).__name__} is not allowed")
        return lambda env: function(left(env), right(env))

    def on_ifexp(self, node: ast.IfExp, depth: int) -> tuple[Evaluate, Kind]:
        test = self.visit(node.test, depth)[0]
        then, then_kind = self.visit(node.body, depth)
        other, other_kind = self.visit(node.orelse, depth)
        kind = then_kind if then_kind is other_kind else Kind.MIXED
        if kind is Kind.MIXED and Kind.TUPLE in (then_kind, other_kind):
            raise self.fail("both branches of if-else must be tuples or neither")
        return lambda env: then(env) if test(env) else other(env), kind

    def on_call(self, node: ast.Call, depth: int) -> tuple[Evaluate, Kind]:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in FUNCTIONS or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise self.fail(f"the call {name}(...) is not allowed (allowed: {', '.join(FUNCTIONS)})")
        arity = {"abs": (1, 1), "cdiv": (2, 2)}.get(name, (2, 16))
        if not arity[0] <= len(node.args) <= arity[1]:
            raise self.fail(f"{name} takes {arity[0]} to {arity[1]} arguments")
        parts = [self.number(argument, depth) for argument in node.args]
        function = FUNCTIONS[name]
        return lambda env: function(*(part(env) for part in parts)), Kind.NUMBER


class SpaceRule:
    """One constraint over the rows of a space, under every set of constants it depends on."""

    def __init__(
        self,
        constraint: Constraint,
        names: tuple[str, ...],
        values: tuple[tuple[Value, ...], ...],
        sets: Sequence[Constants],
    ) -> None:
        self.constraint = constraint
        self.columns = [column for column, name in enumerate(names) if name in constraint.names]
        self._names = [names[column] for column in self.columns]
        self._values = [values[column] for column in self.columns]
        fixed = sorted(constraint.names - set(names))
        self._sets = (
            [
                dict(zip(fixed, key, strict=True))
                for key in dict.fromkeys(tuple(constants[name] for name in fixed) for constants in sets)
            ]
            if fixed
            else [{}]
        )
        self.size = math.prod(len(v) for v in self._values)
        self.tabulated = self.size * len(self._sets) <= TABLE_LIMIT

    @property
    def unmet(self) -> Constants | None:
        """The first constants under which a constraint without parameters does not hold."""
        return next((constants for constants in self._sets if not self.constraint.holds(constants)), None)

    def _holds(self, places: Sequence[int]) -> bool:
        chosen: dict[str, Value] = {n: v[i] for n, v, i in zip(self._names, self._values, places, strict=True)}
        return all(self.constraint.holds({**constants, **chosen}) for constants in self._sets)

    def allows(self, row: Rows | Sequence[int]) -> bool:
        """Whether it holds at a row of value indices; a list is quicker than an array."""
        if self.tabulated:
            return bool(self._table[tuple([row[column] for column in self.columns])])
        return self._holds([int(row[column]) for column in self.columns])

    @cached_property
    def _table(self) -> np.ndarray:
        shape = [len(v) for v in self._values]
        answers = [self._holds(places) for places in product(*map(range, shape))]
        return np.array(answers, dtype=bool).reshape(shape)

    def allow(self, rows: Rows) -> np.ndarray:
        """bool [points]; a large constraint is evaluated once per distinct combination."""
        places = rows[:, self.columns]
        if self.tabulated:
            return self._table[tuple(places.T)] if self.columns else np.full(len(rows), self.unmet is None)
        distinct, inverse = np.unique(places, axis=0, return_inverse=True)
        answers = np.array([self._holds(tuple(place)) for place in distinct.tolist()], dtype=bool)
        return answers[inverse.ravel()]
