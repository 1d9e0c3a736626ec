"""Sizes that a kernel's own text tells apart: ``k == 192``, or ``m * n == 1001``, wherever they come from.

A truth of a module is tried on sizes. What it is about is followed to where it comes from: through names that are given
a value before, and from the parameters of a function of the module to the arguments of its call. What is no arithmetic
(``x.shape[1]``) counts as one unknown, by its text; truths of one or two unknowns are tried.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 1 << 24
"""No size is larger."""

TRIED, BESIDE = 2048, 48
"""Sizes below this are tried in a source's truths, and below that of the second of two unknowns."""

RARE, RUNS = 16, 4
"""Sizes count as few if they are at most one in ``RARE`` of those tried, in at most ``RUNS`` runs."""

PAIRS = 16
"""Of two sizes, most that a truth names."""

DEPTH, PARTS, NESTED = 8, 200, 40
"""Most names between a truth and what it is about, most parts of it in terms of that, and how deep these nest."""


@dataclass(frozen=True)
class NamedSizes:
    """Sizes at which truths of a source turn that depend on one unknown: those ``few`` that are unlike all others, and
    both sides of each of its ``turns``; ``pairs``: sizes of two unknowns that are few together.

    ``k == 192``, ``k // 64 == 3`` and ``(k % 64 == 0) & (k * 5 == 960)`` name 192 in the first list, and the second
    the neighbours up to which it holds; ``k > 200`` names 200 and 201 in the second.
    """

    few: tuple[int, ...]
    turns: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...] = ()


def named_sizes(source: str, params: Mapping[str, Any]) -> NamedSizes:
    """Of a module that is run with ``params``."""
    whole = tuple(sorted((name, value) for name, value in params.items() if type(value) is int))
    return _named(source, whole)


@functools.lru_cache(maxsize=16)
def _named(source: str, params: tuple[tuple[str, int], ...]) -> NamedSizes:
    tree = ast.parse(source)
    known = {
        target.id: node.value.value
        for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets if isinstance(target, ast.Name) and type(node.value.value) is int
    }  # fmt: skip
    known |= dict(params)
    origins = _Origins(tree, dict(params))
    few: dict[int, None] = {}
    turns: dict[int, None] = {}
    pairs: dict[tuple[int, int], None] = {}
    left: list[tuple[ast.AST, str]] = [(tree, "")]
    while left:
        node, scope = left.pop()
        tested = origins.of(node, scope) if isinstance(node, _TRUTHS) else None
        truth = _truth(tested, known, isinstance(node, ast.Expr)) if tested is not None else None
        if truth is None:
            pairs |= dict.fromkeys(_pairs(tested, known) if isinstance(node, _DECIDED) and tested else ())
            scope = node.name if isinstance(node, ast.FunctionDef) and not scope else scope
            left += [(child, scope) for child in ast.iter_child_nodes(node)]
            tests = isinstance(node, ast.If | ast.IfExp | ast.While)
            left += [(ast.copy_location(ast.Expr(node.test), node.test), scope)] if tests else []
            continue
        sizes, holds = truth
        at = np.flatnonzero(np.diff(holds.astype(np.int8)))
        turns |= dict.fromkeys(int(sizes[n]) for turn in at[: 2 * RUNS] for n in (turn, turn + 1))
        runs = _rare(holds)
        few |= dict.fromkeys(int(sizes[run[n]]) for run in runs for n in (0, -1, len(run) // 2))
    return NamedSizes(tuple(few), tuple(turns), tuple(pairs))


def _rare(holds: np.ndarray) -> list[np.ndarray]:
    """Runs of places at which a truth is unlike almost all others, if they are few."""
    rare = holds if 2 * np.count_nonzero(holds) < len(holds) else ~holds
    at = np.flatnonzero(np.diff(holds.astype(np.int8)))
    runs = [run for run in np.split(np.arange(len(holds)), at + 1) if rare[run[0]]]
    return runs if len(runs) <= RUNS and RARE * np.count_nonzero(rare) <= len(holds) else []


_DECIDED = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)
_TRUTHS = (*_DECIDED, ast.Expr)
_ARITHMETIC = (
    *_DECIDED, ast.Name, ast.Tuple, ast.IfExp, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_CALLED = {
    "min": min, "max": max, "abs": abs, "int": int, "len": len, "str": str, "divmod": divmod, "gcd": math.gcd,
    "cdiv": lambda n, by: -(-n // by), "next_power_of_2": lambda n: 1 << max(0, int(n) - 1).bit_length(),
}  # fmt: skip
"""What a module may call of numbers, by its last name."""
_FUNCTIONS = {f"{name}()": function for name, function in _CALLED.items()}
"""The same by names that no module has."""


class _Origins:
    """Where the names of a module come from: values by function, line and name, and arguments of calls."""

    def __init__(self, tree: ast.Module, params: Mapping[str, int]) -> None:
        self._params, self._left = params, 0
        self._held: dict[tuple[str, str], list[tuple[int, ast.expr | None, str, int]]] = {}
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for scope, top in functions.items():
            for node in ast.walk(top):
                if isinstance(node, ast.Assign):
                    for name, value in itertools.chain(*(_given(t, node.value) for t in node.targets)):
                        self._hold(scope, name, node.lineno, value, scope, node.lineno)
                elif isinstance(node, ast.For | ast.AugAssign):
                    for name, _ in _given(node.target, node.target):
                        self._hold(scope, name, node.lineno, None, scope, 0)
                elif isinstance(node, ast.Call):
                    called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
                    if isinstance(called, ast.Name) and called.id in functions:
                        taken = [arg.arg for arg in functions[called.id].args.args]
                        own = [
                            *zip(taken, node.args, strict=False),
                            *((k.arg, k.value) for k in node.keywords),
                        ]
                        for name, value in own:
                            self._hold(called.id, str(name), 0, value, scope, node.lineno)

    def _hold(self, scope: str, name: str, line: int, value: ast.expr | None, at: str, told: int) -> None:
        self._held.setdefault((scope, name), []).append((line, value, at, told))

    def of(self, node: ast.AST, scope: str) -> ast.expr | None:
        """A truth in terms of what its names come from; None where that is too long."""
        tested = node.value if isinstance(node, ast.Expr) else node
        self._left = PARTS
        found = self._of(tested, scope, getattr(node, "lineno", 0), 0, 0)
        return found if isinstance(found, ast.expr) and self._left > 0 else None

    def _of(self, node: ast.AST, scope: str, line: int, depth: int, nested: int) -> ast.AST:
        """``line``: where it is said; ``depth``: names that were followed; ``nested``: how deep it stands."""
        self._left -= 1 if nested < NESTED else PARTS
        if self._left <= 0:
            return node
        if isinstance(node, ast.Name):
            held = [one for one in self._held.get((scope, node.id), ()) if one[0] < line]
            _, value, at, told = max(held, key=lambda one: one[0]) if held else (0, None, "", 0)
            if value is None or depth >= DEPTH:
                return ast.Name(node.id, ast.Load())
            return self._of(value, at, told, depth + 1, nested + 1)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "params":
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return ast.Constant(self._params[key]) if key in self._params else ast.Name(str(key), ast.Load())
        name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in _CALLED and not node.keywords:
            node = ast.Call(ast.Name(f"{name}()", ast.Load()), node.args, [])
        elif not isinstance(node, (*_ARITHMETIC, ast.Constant)):
            return ast.Name(ast.unparse(node), ast.Load())
        made = {}
        for field, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            own = [
                self._of(p, scope, line, depth, nested + 1) if isinstance(p, ast.AST) else p for p in parts
            ]
            made[field] = own if isinstance(value, list) else own[0]
        return type(node)(**made)


def _given(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names that an assignment binds, and to what part of its value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        for place, part in enumerate(target.elts):
            own = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            at = value.elts[place] if own else ast.Subscript(value, ast.Constant(place), ast.Load())  # type: ignore[attr-defined]
            yield from _given(part, at)


def _tried(node: ast.AST, known: Mapping[str, int]) -> tuple[np.ndarray, list[int]]:
    """Sizes to try a truth with: all small ones, and what its numbers make; and those beside its numbers alone."""
    found = [known.get(n.id, 0) for n in ast.walk(node) if isinstance(n, ast.Name)]
    found += [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int]
    found += [
        int(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and str(n.value).isdecimal()
    ]
    numbers = sorted({abs(n) for n in found if abs(n) <= LARGEST})[:8]
    made = {*numbers, *(a * b for a in numbers for b in numbers), *(a + b for a in numbers for b in numbers)}
    made |= {a // b for a in numbers for b in numbers if b}
    near = {n + by for n in made for by in (-1, 0, 1)}
    sizes = sorted({*range(1, TRIED), *(n for n in near if 0 < n <= LARGEST)})
    return np.array(sizes, np.int64), sorted({n for n in numbers if n} | set(range(1, BESIDE)))


def _unknown(tested: ast.expr, known: Mapping[str, int]) -> list[str] | None:
    """Names that nobody knows; None where a truth is no plain arithmetic of sizes."""
    parts = list(ast.walk(tested))
    raised = sum(isinstance(part, ast.Pow | ast.LShift) for part in parts)
    unknown = {part.id for part in parts if isinstance(part, ast.Name)} - known.keys() - _FUNCTIONS.keys()
    text = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)
    if raised > 1 or not all(map(_is_plain, parts)) or any("(" in name for name in unknown - _COUNTS):
        return None
    if text and any(isinstance(part, ast.BinOp) for part in parts if not isinstance(part, ast.Compare)):
        return None  # texts could become long
    return sorted(unknown)


_COUNTS = frozenset(f"{of}num_programs({axis})" for of in ("tl.", "gl.", "pl.", "") for axis in range(3))
"""Calls that count what there is."""


def _truth(tested: ast.expr, known: Mapping[str, int], decides: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Sizes, and whether it holds, of the one name that nobody knows; None of what is no truth, or no arithmetic.

    ``decides``: a number is a truth, too.
    """
    unknown = _unknown(tested, known)
    if unknown is None or len(unknown) != 1:
        return None
    sizes, _ = _tried(tested, known)
    holds = _holds(tested, {**known}, unknown[0], sizes, decides)
    return None if holds is None else (sizes, holds)


def _pairs(tested: ast.expr, known: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Sizes of two unknowns, either way, at which a truth is unlike almost everywhere else."""
    unknown = _unknown(tested, known)
    if unknown is None or len(unknown) != 2:
        return
    sizes, others = _tried(tested, known)
    found: list[tuple[int, int]] = []
    places = 0
    for other in others:
        holds = _holds(tested, {**known, unknown[1]: other}, unknown[0], sizes, False)
        if holds is None:
            return
        places += sum(map(len, runs := _rare(holds)))
        found += [(int(sizes[run[0]]), other) for run in runs]
    if places <= 2 * len(others):
        yield from itertools.chain(*(((a, b), (b, a)) for a, b in found[:PAIRS]))


def _holds(
    tested: ast.expr, names: dict[str, Any], unknown: str, sizes: np.ndarray, decides: bool
) -> np.ndarray | None:
    """Whether a truth holds at these sizes of what is unknown; None of what is none, or raises."""
    code = compile(ast.fix_missing_locations(ast.Expression(tested)), "", "eval")
    names |= {"__builtins__": {}, **_FUNCTIONS}
    try:
        found = [eval(code, names, {unknown: size}) for size in sizes.tolist()]
    except (ArithmeticError, TypeError, ValueError):
        return None
    return np.array(found, np.bool_) if decides or type(found[0]) is bool else None


def _is_plain(part: ast.AST) -> bool:
    """Whether it computes with whole numbers, and with none that are many times as long."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow | ast.LShift):
        return (
            isinstance(part.right, ast.Constant) and type(part.right.value) is int and part.right.value < 24
        )
    if isinstance(part, ast.Constant):
        return type(part.value) is int or (isinstance(part.value, str) and len(part.value) < 24)
    return isinstance(part, (*_ARITHMETIC, ast.Call))
