"""Search spaces: the typed parameters of a kernel, their constraints, and the legal points between them.

A point is a mapping from parameter to value, or, for vectorised work, a row of value indices in the order
of ``Space.names``. A point is legal when every constraint holds under every set of constants (one set for
each workload a candidate will meet).
"""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from types import MappingProxyType
from typing import Self

import numpy as np

from tilewright.evolve.space.constraints import (
    TABLE_LIMIT,
    Constants,
    Kind,
    Rows,
    SpaceError,
    SpaceRule,
    compile_constraint,
    kind_of,
)
from tilewright.evolve.space.genome import DECLARATIONS, Value

__all__ = ["Constants", "Declarations", "Rows", "Space", "SpaceError", "nearest_point", "read_declarations"]

ENUMERATION_LIMIT = 400_000
"""Legal points up to which a space is enumerated as a whole."""

_EXPANSION_LIMIT = 3_000_000
"""Partial points held while enumerating; beyond it a space counts as large."""

MAX_TEXT = 256
"""Characters of a value that is text."""

MOST_CHANGED = 3
"""Parameters that may differ where a space is too large to be enumerated."""

LARGEST_RING = 1 << 12
"""Points looked at for one choice of parameters to change."""

_REJECTION_TRIES = 64
_GUIDED_TRIES = 400


@dataclass(frozen=True)
class Declarations:
    """The three literals of a kernel module, read and never executed."""

    space: Mapping[str, tuple[Value, ...]]
    defaults: Mapping[str, Value]
    constraints: Mapping[str, str]


def read_declarations(source: str) -> Declarations:
    """SPACE, DEFAULTS and CONSTRAINTS of a module; a missing one is empty. Raises SpaceError."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpaceError(f"the kernel source does not parse: {error}.") from error
    found: dict[str, object] = dict.fromkeys(DECLARATIONS)
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and target.id in DECLARATIONS and isinstance(node, ast.Assign):
            found[target.id] = _literal(target.id, node.value)
    space, defaults, constraints = (found[name] or {} for name in DECLARATIONS)
    return Declarations(_checked_space(space), _checked_defaults(defaults), _checked_constraints(constraints))


def _literal(name: str, node: ast.expr) -> dict:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise SpaceError(f"{name} must be a literal dict (found {_source(node)}).") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise SpaceError(f"{name} must be a dict with text keys.")
    return value


def _source(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:60].encode(errors="backslashreplace").decode()
    except (ValueError, RecursionError):
        return "something too long to show"


def _checked_space(space: object) -> Mapping[str, tuple[Value, ...]]:
    assert isinstance(space, dict)
    checked: dict[str, tuple[Value, ...]] = {}
    for name, values in space.items():
        if not isinstance(values, tuple | list) or not values:
            raise SpaceError(f"SPACE: {name} needs a tuple of at least one value.")
        for value in values:
            if not _is_plain_value(value):
                raise SpaceError(f"SPACE: {name}: {_shortened(value)} is not allowed (allowed: {_ALLOWED_VALUES}).")
        if len({_key(value) for value in values}) < len(values):
            raise SpaceError(f"SPACE: {name} lists a value twice.")
        if not name.isidentifier():
            raise SpaceError(f"SPACE: {name!r} is not a name.")
        checked[name] = tuple(values)
    return MappingProxyType(checked)


def _checked_defaults(defaults: object) -> Mapping[str, Value]:
    assert isinstance(defaults, dict)
    for name, value in defaults.items():
        if not _is_plain_value(value):
            raise SpaceError(f"DEFAULTS: {name}: {_shortened(value)} is not allowed (allowed: {_ALLOWED_VALUES}).")
    return MappingProxyType(dict(defaults))


_ALLOWED_VALUES = f"finite numbers below 2^63, bool, text of at most {MAX_TEXT} characters"


def _is_plain_value(value: object) -> bool:
    """Whether a parameter may have this value: journals, MLflow and JSON must hold it."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < 1 << 63


def _shortened(value: object) -> str:
    """A value's text of at most 60 characters, all of which can be printed."""
    try:
        return repr(value)[:60].encode(errors="backslashreplace").decode()
    except ValueError:
        return "a number of thousands of digits"


def _checked_constraints(constraints: object) -> Mapping[str, str]:
    assert isinstance(constraints, dict)
    for expression, reason in constraints.items():
        if not isinstance(reason, str) or not reason:
            raise SpaceError(f"CONSTRAINTS: {expression!r} needs a reason in words.")
    return MappingProxyType(dict(constraints))


def _key(value: Value) -> tuple[bool, Value]:
    """A key that tells True from 1, which are equal in Python."""
    return isinstance(value, bool), value


class Space:
    """Typed parameters with constraints. Raises SpaceError when malformed or without a legal point.

    ``constraints`` maps an expression to its reason. ``defaults`` is a point, legal or not as declared.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Value]],
        constraints: Mapping[str, str] | None = None,
        constants: Sequence[Constants] | Constants = (),
        defaults: Mapping[str, Value] | None = None,
    ) -> None:
        self.parameters = _checked_space(dict(parameters))
        self.names = tuple(self.parameters)
        self.defaults: Mapping[str, Value] = _checked_defaults(dict(defaults or {}))
        sets = [constants] if isinstance(constants, Mapping) else list(constants)
        self._sizes = np.array([len(values) for values in self.parameters.values()], dtype=np.int64)
        self._values = tuple(self.parameters.values())
        self._positions = [{_key(v): i for i, v in enumerate(values)} for values in self._values]
        self.kinds: Mapping[str, Kind] = self._kinds(sets)
        self.some_constants: Constants = dict(sets[0]) if sets else {}
        self._rules = [
            SpaceRule(compile_constraint(e, r, self.kinds), self.names, self._values, sets)
            for e, r in _checked_constraints(dict(constraints or {})).items()
        ]
        self._require_a_point()

    @classmethod
    def from_source(cls, source: str, constants: Sequence[Constants] | Constants = ()) -> Self:
        """The space a kernel module declares, legal under every mapping of constants."""
        declared = read_declarations(source)
        missing = [name for name in declared.space if name not in declared.defaults]
        if missing:
            raise SpaceError(f"DEFAULTS: {missing[0]} has no default value.")
        return cls(declared.space, declared.constraints, constants, declared.defaults)

    def _kinds(self, sets: Sequence[Constants]) -> dict[str, Kind]:
        common = set(sets[0]).intersection(*sets[1:]) if sets else set()
        kinds = dict.fromkeys(common, Kind.NUMBER)
        return {**kinds, **{name: kind_of(values) for name, values in self.parameters.items()}}

    def _require_a_point(self) -> None:
        for rule in self._rules:
            if not rule.columns and (unmet := rule.unmet) is not None:
                where = ", ".join(f"{name} is {value}" for name, value in unmet.items())
                why = f"{rule.constraint.reason} ({rule.constraint.expression})"
                raise SpaceError(f"the space is empty: {why}{where and f', and {where}'}.")
        # all points of a space of a million take a third of a second
        if not self.legal(self.defaults) and self._some_row() is None:
            reasons = "; ".join(rule.constraint.expression for rule in self._rules)
            raise SpaceError(f"the space is empty: no point satisfies {reasons}.")

    def _some_row(self) -> Rows | None:
        if self.points is not None:
            return self.points[0] if len(self.points) else None
        return self._guided(np.random.default_rng(0), _GUIDED_TRIES)

    @property
    def constraints(self) -> tuple[tuple[str, str], ...]:
        """(expression, reason) of each constraint."""
        return tuple((rule.constraint.expression, rule.constraint.reason) for rule in self._rules)

    @cached_property
    def size_bound(self) -> int:
        """Number of points without constraints: an upper bound on the legal ones."""
        return math.prod(len(values) for values in self._values)

    def is_ordinal(self, name: str) -> bool:
        """Whether the values of a parameter have an order: numbers do, text and bools do not."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.parameters[name])

    # -- legality ----------------------------------------------------------------------------------

    def violations(self, params: Mapping[str, Value]) -> list[str]:
        """Reasons why a point is illegal; empty for a legal point."""
        faults = [
            f"{name} is no parameter (known: {', '.join(self.names)})" for name in params if name not in self.parameters
        ]
        for name, values in self.parameters.items():
            if name not in params:
                faults.append(f"{name} is missing")
            elif _key(params[name]) not in self._positions[self.names.index(name)]:
                faults.append(f"{name}={params[name]!r} is not among {', '.join(map(repr, values))}")
        if faults:
            return faults
        row = self.encode(params)
        broken = [rule.constraint for rule in self._rules if not rule.allows(row)]
        return [f"{constraint.reason} ({constraint.expression})" for constraint in broken]

    def legal(self, params: Mapping[str, Value]) -> bool:
        """Whether ``violations`` is empty, without wording them."""
        return self.legal_row(params) is not None

    def legal_row(self, params: Mapping[str, Value]) -> Rows | None:
        """Value indices of a legal point; ``None`` for any other."""
        if len(params) != len(self.names):
            return None
        try:
            row = self.encode(params)
        except KeyError:
            return None
        return row if self.is_legal_row(row) else None

    def is_legal_row(self, row: Rows) -> bool:
        """Whether one row of value indices is legal; of many ``legal_rows`` is quicker."""
        places = row.tolist()
        return all(rule.allows(places) for rule in self._rules)

    def legal_rows(self, rows: Rows) -> np.ndarray:
        """bool [points]: which rows are legal."""
        keep = np.ones(len(rows), dtype=bool)
        for rule in self._rules:
            keep[keep] = rule.allow(rows[keep])
        return keep

    # -- points as rows of indices -------------------------------------------------------------------

    def encode(self, params: Mapping[str, Value]) -> Rows:
        """Value indices of a point whose values are all listed. Raises KeyError otherwise."""
        values = map(params.__getitem__, self.names)
        places = [positions[_key(v)] for v, positions in zip(values, self._positions, strict=True)]
        return np.array(places, dtype=np.int16)

    def decode(self, row: Rows) -> dict[str, Value]:
        return {name: values[i] for name, values, i in zip(self.names, self._values, row, strict=True)}

    def codes(self, rows: Rows) -> np.ndarray:
        """One number per row, equal for equal rows: int64, or Python ints for products beyond it."""
        if self.size_bound < 2**62:
            return rows.astype(np.int64) @ self._strides
        codes = np.zeros(len(rows), dtype=object)
        for column, size in enumerate(self._sizes):
            codes = codes * int(size) + rows[:, column].astype(object)
        return codes

    @cached_property
    def _strides(self) -> np.ndarray:
        """By parameter, the step of a code for one step of its value's index."""
        return np.append(np.cumprod(self._sizes[:0:-1])[::-1], 1)[: len(self._sizes)].astype(np.int64)

    @cached_property
    def points(self) -> Rows | None:
        """Every legal point in a fixed order, or None when there are too many to enumerate."""
        rows = np.zeros((1, 0), dtype=np.int16)
        for column, size in enumerate(self._sizes):
            if len(rows) * int(size) > _EXPANSION_LIMIT:
                return None
            rows = np.hstack(
                [np.repeat(rows, size, axis=0), np.tile(np.arange(size, dtype=np.int16), len(rows))[:, None]]
            )
            for rule in self._rules:
                if rule.columns and max(rule.columns) == column:
                    if not rule.tabulated and len(rows) > TABLE_LIMIT:
                        return None
                    rows = rows[rule.allow(rows)]
        return rows if len(rows) <= ENUMERATION_LIMIT else None

    # -- moves -----------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> dict[str, Value]:
        """A random legal point: uniform where the space is enumerated or points are dense enough."""
        return self.decode(self.sample_rows(rng, 1)[0])

    def sample_rows(self, rng: np.random.Generator, count: int) -> Rows:
        """``count`` random legal rows, drawn with replacement."""
        if self.points is not None:
            return self.points[rng.integers(len(self.points), size=count)]
        found: list[Rows] = []
        missing = count
        for _ in range(_REJECTION_TRIES):
            rows = rng.integers(self._sizes, size=(max(64, 2 * missing), len(self._sizes))).astype(np.int16)
            rows = rows[self.legal_rows(rows)][:missing]
            found.append(rows)
            missing -= len(rows)
            if missing <= 0:
                break
        while missing > 0:
            row = self._guided(rng, _GUIDED_TRIES)
            assert row is not None  # a point was found when the space was made
            found.append(row[None])
            missing -= 1
        return np.concatenate(found)[:count]

    def _guided(self, rng: np.random.Generator, tries: int) -> Rows | None:
        """Random assignment that gives up a branch as soon as a fully bound constraint fails."""
        for _ in range(tries):
            row = np.zeros(len(self.names), dtype=np.int16)
            for column, size in enumerate(self._sizes):
                due = [rule for rule in self._rules if rule.columns and max(rule.columns) == column]
                for place in rng.permutation(int(size)):
                    row[column] = place
                    if all(rule.allows(row) for rule in due):
                        break
                else:
                    break
            else:
                return row
        return None

    def neighbour_rows(self, row: Rows, steps: int | None = 1) -> Rows:
        """Legal rows that differ in one parameter: by up to ``steps`` places where it is ordinal
        (``None``: any distance), by any value where it is not."""
        columns, places = self._moves
        here = row[columns]
        near = places != here
        if steps is not None:
            near &= ~self._ordered[columns] | (np.abs(places - here) <= steps)
        columns, places = columns[near], places[near]
        rows = np.repeat(row[None], len(columns), axis=0)
        rows[np.arange(len(columns)), columns] = places
        return rows[self.legal_rows(rows)]

    @cached_property
    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        """Every column with every place of it: columns [moves], places [moves] int16."""
        columns = np.repeat(np.arange(len(self._sizes)), self._sizes)
        places = [np.arange(int(size), dtype=np.int16) for size in self._sizes]
        return columns, np.concatenate([np.zeros(0, dtype=np.int16), *places])

    @cached_property
    def _ordered(self) -> np.ndarray:
        return np.array([self.is_ordinal(name) for name in self.names], dtype=bool)


def nearest_point(space: Space, params: Mapping[str, Value]) -> dict[str, Value] | None:
    """A legal point that differs from ``params`` in the fewest parameters, by the fewest steps in all.

    None if ``params`` has values the space does not list, or if nothing near is legal.
    """
    if set(params) != set(space.names):
        return None
    try:
        here = space.encode(params)
    except KeyError:
        return None
    if space.points is not None:
        return _best(space, here, space.points)
    for changed in range(MOST_CHANGED + 1):
        rings = [_ring(space, here, columns) for columns in combinations(range(len(here)), changed)]
        rows = np.concatenate(rings)
        found = _best(space, here, rows[space.legal_rows(rows)])
        if found is not None:
            return found
    return None


def _ring(space: Space, here: Rows, columns: tuple[int, ...]) -> Rows:
    """Every row that differs from ``here`` in exactly these columns, or none where they are too many."""
    sizes = [len(space.parameters[space.names[column]]) for column in columns]
    if np.prod(sizes, dtype=float) > LARGEST_RING:
        return np.zeros((0, len(here)), dtype=here.dtype)
    others = [
        [place for place in range(size) if place != here[column]] for column, size in zip(columns, sizes, strict=True)
    ]
    places = list(product(*others))
    rows = np.repeat(here[None], len(places), axis=0)
    rows[:, list(columns)] = np.array(places, dtype=here.dtype).reshape(len(places), len(columns))
    return rows


def _best(space: Space, here: Rows, rows: Rows) -> dict[str, Value] | None:
    if not len(rows):
        return None
    distance = np.abs(rows.astype(np.int64) - here)
    ordinal = np.array([space.is_ordinal(name) for name in space.names])
    steps = np.where(ordinal, distance, distance > 0).sum(axis=1)
    return space.decode(rows[np.lexsort((steps, (distance > 0).sum(axis=1)))[0]])
