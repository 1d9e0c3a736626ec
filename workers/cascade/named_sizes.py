"""Sizes that a kernel's own text tells apart: ``k == 192``, or ``m * n == 1001``, wherever they come from.

A truth of a module is tried on sizes. What it is about is followed to where it comes from: through names that are given
a value before, and from parameters of the module's functions to the arguments of their calls. What is no arithmetic
(``x.shape[1]``) counts as one unknown, by its text; truths of one or two unknowns are tried.
"""

import ast
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

LARGEST = 1 << 24
"""The largest size that is tried."""

TRIED, BESIDE = 2048, 48
"""Sizes below this are tried in a source's truths, and below that of the second of two unknowns."""

RARE, RUNS, PAIRS = 16, 4, 16
"""Sizes are few if they are at most one in ``RARE`` of those tried; runs of them, and pairs, that count of a truth."""

DEPTH, PARTS, NESTED = 8, 200, 40
"""Most names between a truth and what it is about, most parts of it in terms of that, and how deep these nest."""

_DECIDED = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)
_ARITHMETIC = (
    *_DECIDED,
    ast.Name,
    ast.Tuple,
    ast.IfExp,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
_CALLED = {
    "min()": min,
    "max()": max,
    "abs()": abs,
    "int()": int,
    "len()": len,
    "str()": str,
    "gcd()": math.gcd,
    "cdiv()": lambda n, by: -(-n // by),
    "next_power_of_2()": lambda n: 1 << max(0, int(n) - 1).bit_length(),
    "sqrt()": math.sqrt,
}
"""Functions of numbers that a module may call, by their last name and ``()``, which no name ends in."""

_COUNTED: Mapping[str, int] = {
    **dict.fromkeys(("sum()", "max()", "min()", "reduce()", "count_nonzero()", "num_programs()"), 0),
    **dict.fromkeys(("program_id()", "arange()", "broadcasted_iota()"), 1),
}
"""Calls that make one number of a tensor or of a size; by call, how far the number stays below that size."""


class NamedSizes(NamedTuple):
    """Sizes at which truths of one unknown turn: those ``few`` that are unlike all others, and both sides of each of
    its ``turns``; ``pairs``: sizes of two unknowns that are few together.

    ``k == 192``, ``k // 64 == 3`` and ``(k % 64 == 0) & (k * 5 == 960)`` name 192 among the few, and the second the
    neighbours up to which it holds; ``k > 200`` names 200 and 201 among the turns.
    """

    few: tuple[int, ...]
    turns: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


def named_sizes(source: str, params: Mapping[str, Any]) -> NamedSizes:
    """The named sizes of a module that runs with ``params``."""
    return _named(source, tuple(sorted((name, n) for name, n in params.items() if type(n) is int)))


@functools.lru_cache(maxsize=16)
def _named(source: str, params: tuple[tuple[str, int], ...]) -> NamedSizes:
    tree = ast.parse(source)
    origins = _Origins(tree, dict(params))
    few, turns, pairs = dict[int, None](), dict[int, None](), dict[tuple[int, int], None]()
    left: list[tuple[ast.AST, str]] = [(tree, "")]
    while left:
        node, scope = left.pop()
        decides = isinstance(node, ast.Expr)
        tested = origins.of(node, scope) if decides or isinstance(node, _DECIDED) else None
        unknown = _unknown(tested) if tested is not None else []
        if tested is not None and len(unknown) == 1:
            sizes, _ = _tried(tested)
            holds = _holds(tested, {}, unknown[0], sizes, decides)
            if holds is not None:
                at = np.flatnonzero(np.diff(holds.astype(np.int8)))
                turns |= dict.fromkeys(int(sizes[n]) for turn in at[: 2 * RUNS] for n in (turn, turn + 1))
                few |= dict.fromkeys(int(sizes[run[n]]) for run in _rare(holds) for n in (0, -1, len(run) // 2))
                continue
        elif tested is not None and len(unknown) == 2 and not decides:
            pairs |= dict.fromkeys(_pairs(tested, *unknown))
        scope = node.name if isinstance(node, ast.FunctionDef) and not scope else scope
        left += [(child, scope) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            left.append((ast.copy_location(ast.Expr(node.test), node.test), scope))
    return NamedSizes(tuple(few), tuple(turns), tuple(pairs))


class _Origins:
    """Where names come from: by function and name the line, the value, and the function and line where that is said."""

    def __init__(self, tree: ast.Module, params: Mapping[str, int]) -> None:
        self._params, self._left = params, 0
        self._held: dict[tuple[str, str], list[tuple[int, ast.AST | None, str, int]]] = {}
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        places = [(name, node) for name, top in functions.items() for node in ast.walk(top)]
        for scope, node in (*(("", node) for node in tree.body), *places):
            given: list[tuple[str, str, int, ast.AST | None]] = []
            line = getattr(node, "lineno", 0) if scope else 0
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                parts = itertools.chain(*(_given(target, node.value) for target in targets))
                given = [(scope, name, line, value) for name, value in parts]
            elif isinstance(node, ast.For | ast.AugAssign):
                given = [(scope, name, line, None) for name, _ in _given(node.target, node.target)]
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func).partition("[")[0]  # a kernel's grid stands in brackets
                names = [arg.arg for arg in functions[called].args.args] if called in functions else []
                own = [*zip(names, node.args, strict=False), *((str(k.arg), k.value) for k in node.keywords)]
                given = [(called, name, 0, value) for name, value in own if names]
            for function, name, since, value in given:
                self._held.setdefault((function, name), []).append((since, value, scope, line))

    def of(self, node: ast.AST, scope: str) -> ast.expr | None:
        """A truth in terms of what its names come from; None where that is too long."""
        self._left = PARTS
        tested = node.value if isinstance(node, ast.Expr) else node
        found = self._of(tested, scope, getattr(node, "lineno", 0), 0, 0)
        return found if isinstance(found, ast.expr) and self._left > 0 else None

    def _of(self, node: ast.AST, scope: str, line: int, depth: int, nested: int) -> ast.AST:
        """``line``: where it is said; ``depth``: names that were followed; ``nested``: how deep it stands."""
        self._left -= 1 if nested < NESTED else PARTS
        if self._left <= 0:
            return node
        if isinstance(node, ast.Name):
            held = [one for one in self._held.get((scope, node.id), ()) if one[0] < line]
            held = held or [one for one in self._held.get(("", node.id), ()) if scope or one[0] < line]
            _, value, at, value_line = max(held, key=lambda one: one[0]) if held else (0, None, "", 0)
            if value is not None and depth < DEPTH:
                return self._of(value, at, value_line, depth + 1, nested + 1)
            known = self._params.get(node.id)
            return ast.Name(node.id, ast.Load()) if known is None or held else ast.Constant(known)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "params":
            key = ast.unparse(node.slice).strip("'")
            return ast.Constant(self._params[key]) if key in self._params else ast.Name(key, ast.Load())
        called = f"{ast.unparse(node.func).rpartition('.')[2]}()" if isinstance(node, ast.Call) else ""
        if called == "to()" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = ast.Call(ast.Name("int()", ast.Load()), [node.func.value], [])
        elif isinstance(node, ast.Call) and called in _CALLED and not node.keywords:
            node = ast.Call(ast.Name(called, ast.Load()), node.args, [])
        elif isinstance(node, ast.NamedExpr):
            return self._of(node.value, scope, line, depth, nested + 1)
        elif called in _COUNTED:
            size = ast.Name(ast.unparse(node).replace("(", "["), ast.Load())  # as a size, and as no call
            return ast.BinOp(size, ast.Sub(), ast.Constant(_COUNTED[called]))
        elif not isinstance(node, (*_ARITHMETIC, ast.Constant)):
            return ast.Name(ast.unparse(node), ast.Load())
        elif isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value.is_integer():
            return ast.Constant(int(node.value))
        made: dict[str, Any] = {}
        for field, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            own = [self._of(p, scope, line, depth, nested + 1) if isinstance(p, ast.AST) else p for p in parts]
            made[field] = own if isinstance(value, list) else own[0]
        return type(node)(**made)


def _given(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(name, part of the value) pairs of an assignment."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        alike = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for place, part in enumerate(target.elts):
            yield from _given(part, alike[place] if alike else ast.Subscript(value, ast.Constant(place)))


def _tried(node: ast.AST) -> tuple[np.ndarray, list[int]]:
    """Sizes to try a truth with: all small ones, and what its numbers make; and those beside its numbers alone."""
    constants = [str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant)]
    numbers = sorted({n for n in map(int, filter(str.isdecimal, constants)) if n <= LARGEST})[:8]
    made = {*numbers, *(a * b for a in numbers for b in numbers), *(a + b for a in numbers for b in numbers)}
    made |= {a // b for a in numbers for b in numbers if b}
    near = {n + by for n in made for by in (-1, 0, 1)}
    sizes = sorted({*range(1, TRIED), *(n for n in near if 0 < n <= LARGEST)})
    return np.array(sizes, np.int64), sorted({*numbers, *range(BESIDE)} - {0})


def _unknown(tested: ast.expr) -> list[str]:
    """Unknown names in a truth; none where it is no plain arithmetic of sizes, or could make long texts."""
    parts = list(ast.walk(tested))
    raised = sum(isinstance(part, ast.Pow | ast.LShift) for part in parts)
    text = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)
    unknown = {part.id for part in parts if isinstance(part, ast.Name)} - _CALLED.keys()
    long = raised > 1 or (text and any(isinstance(part, ast.BinOp) for part in parts))
    calls = any("(" in name for name in unknown)
    return [] if long or calls or not all(map(_is_plain, parts)) else sorted(unknown)


def _pairs(tested: ast.expr, one: str, two: str) -> Iterator[tuple[int, int]]:
    """Sizes of two unknowns, either way, at which a truth is unlike almost everywhere else."""
    sizes, others = _tried(tested)
    held = ((other, _holds(tested, {two: other}, one, sizes, False)) for other in others)
    found = [(run, other) for other, holds in held if holds is not None for run in _rare(holds)]
    if sum(len(run) for run, _ in found) <= 2 * len(found):  # and not all sizes below the other
        pairs = ((int(sizes[run[0]]), other) for run, other in found[:: -(-len(found) // PAIRS) or 1])
        yield from itertools.chain(*(((a, b), (b, a)) for a, b in pairs))


def _rare(holds: np.ndarray) -> list[np.ndarray]:
    """Runs of places at which a truth is unlike almost all others, if they are few; some of many runs."""
    rare = holds if 2 * np.count_nonzero(holds) < len(holds) else ~holds
    at = np.flatnonzero(np.diff(holds.astype(np.int8)))
    runs = [run for run in np.split(np.arange(len(holds)), at + 1) if rare[run[0]]]
    return runs[:: -(-len(runs) // RUNS) or 1] if RARE * np.count_nonzero(rare) <= len(holds) else []


def _holds(
    tested: ast.expr, names: Mapping[str, int], unknown: str, sizes: np.ndarray, decides: bool
) -> np.ndarray | None:
    """Whether a truth holds at these sizes of the unknown; None of what raises, or is a number that decides nothing."""
    code = compile(ast.fix_missing_locations(ast.Expression(tested)), "", "eval")
    held = {**names, "__builtins__": {}, **_CALLED}
    try:
        found = [eval(code, held, {unknown: size}) for size in sizes.tolist()]
    except (ArithmeticError, TypeError, ValueError):
        return None
    return np.array(found, np.bool_) if decides or type(found[0]) is bool else None


def _is_plain(part: ast.AST) -> bool:
    """Whether an expression computes with whole numbers of bounded length."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow | ast.LShift):
        by = part.right.value if isinstance(part.right, ast.Constant) else None
        return type(by) is int and by < 24
    whole = isinstance(part, ast.Constant) and type(part.value) in (int, str)
    return whole or isinstance(part, (*_ARITHMETIC, ast.Call))
