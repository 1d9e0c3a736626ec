"""Statements of a kernel that are carried over: what each reads and binds, which are needed, how they may be moved."""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.fitness.dialect_names import names

GLUON_NAMES = names(
    "abs arange associative_scan assume bfloat16 broadcast cast cdiv ceil cos div_rn erf exp exp2 expand_dims "
    "fdiv float16 float32 float64 float8e4nv float8e5 floor fma full full_like int1 int16 int32 int64 int8 join "
    "load log log2 max max_constancy max_contiguous maximum min minimum mul multiple_of num_programs permute "
    "program_id reshape rsqrt sin split sqrt sqrt_rn static_assert static_range store sub sum uint16 uint32 "
    "uint64 uint8 umulhi where zeros zeros_like constexpr dtype add"
)
"""What ``triton.language`` and Gluon's language both have under one name and with one meaning."""

IDLE = frozenset({"assume", "static_assert", "static_print", "device_assert", "debug_barrier"})
"""Calls that a kernel can do without."""


@dataclass(frozen=True)
class Statement:
    """One statement of a kernel's function, loop or branch included."""

    node: ast.stmt

    @cached_property
    def reads(self) -> frozenset[str]:
        found = {n.id for n in ast.walk(self.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for n in ast.walk(self.node):
            if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
                found.add(n.target.id)
        return frozenset(found)

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset(n.id for n in ast.walk(self.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))

    def conflicts(self, earlier: Self) -> bool:
        """Whether it must stay behind ``earlier``."""
        return bool(self.writes & (earlier.reads | earlier.writes) or self.reads & earlier.writes)

    @property
    def text(self) -> str:
        return ast.unparse(self.node)


def statements_of(text: str) -> list[Statement]:
    return [Statement(node) for node in ast.parse(text).body]


def names_in(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}


def device_call(node: ast.AST, tl: str) -> str:
    """``dot`` for ``tl.dot(...)``, "" for anything else."""
    return device_path(node.func, tl) if isinstance(node, ast.Call) else ""


def device_path(node: ast.AST, tl: str) -> str:
    """``exp`` for ``tl.exp`` and ``tl.math.exp``, "" for anything else."""
    if not isinstance(node, ast.Attribute):
        return ""
    root: ast.AST = node
    while isinstance(root, ast.Attribute):
        root = root.value
    path = ast.unparse(node)
    if not isinstance(root, ast.Name) or not path.startswith(f"{tl}."):
        return ""
    return path[len(tl) + 1 :].removeprefix("math.")


def calls(node: ast.AST, tl: str, *names: str) -> list[ast.Call]:
    """Calls of the device language's functions ``names`` in ``node``."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Call) and device_call(n, tl) in names]


def is_idle(statement: Statement, tl: str) -> bool:
    """A docstring, or a hint to the compiler."""
    node = statement.node
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or device_call(node.value, tl) in IDLE


def sliced(statements: Sequence[Statement], wanted: Collection[str], given: Collection[str]) -> set[int]:
    """Indices of the statements that names ``wanted`` depend on, over all turns of loops; names ``given`` are known."""
    needed, kept = set(wanted) - set(given), set[int]()
    while True:
        more = {i for i, s in enumerate(statements) if i not in kept and s.writes & needed}
        if not more:
            return kept
        kept |= more
        for i in more:
            needed |= statements[i].reads - set(given)


def affected(statements: Sequence[Statement], names: Collection[str]) -> set[str]:
    """Names whose value may depend on one of ``names``, these included."""
    found = set(names)
    while True:
        more = {name for s in statements if (s.reads | s.writes) & found for name in s.writes} - found
        if not more:
            return found
        found |= more


class Carrier(ast.NodeTransformer):
    """Writes a statement of Triton's in Gluon's words. Tiles of ``shape`` get the layout named ``layout``, with
    ``rows`` their rows' numbers that of one of its slices. ``part``: the rows that are kept of a tile's, as the number
    of the first and how many; ``columns``: of how many columns which are kept, likewise.

    Raises Unsupported for what Gluon has no word for.
    """

    def __init__(
        self,
        tl: str,
        gl: str,
        shape: tuple[str, str],
        layout: str,
        renamed: Mapping[str, str],
        rows: bool = False,
        part: tuple[str, str] | None = None,
        columns: tuple[str, str, str] | None = None,
    ) -> None:
        self.tl, self.gl, self.shape, self.layout, self.renamed = tl, gl, shape, layout, renamed
        self.rows = rows and shape[0] != shape[1]
        self.part, self.columns = part, columns

    def carry(self, statement: Statement) -> str:
        fresh = ast.parse(statement.text).body[0]
        return ast.unparse(ast.fix_missing_locations(self.visit(fresh)))

    def expression(self, text: str) -> str:
        node = ast.parse(text, mode="eval").body
        return ast.unparse(ast.fix_missing_locations(self.visit(node)))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.renamed:
            return ast.copy_location(ast.Name(self.renamed[node.id], node.ctx), node)
        if node.id == self.tl:
            raise Unsupported(f"{self.tl} as a value")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if name := device_path(node, self.tl):
            if name not in GLUON_NAMES:
                raise Unsupported(f"{ast.unparse(node)}, which Gluon does not have")
            return ast.Attribute(ast.Name(self.gl, ast.Load()), name, node.ctx)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = device_call(node, self.tl)
        if name == "sigmoid":
            return self.visit(_parsed(f"1.0 / (1.0 + {self.tl}.exp(-({ast.unparse(node.args[0])})))"))
        if name == "clamp":
            x, low, high = (ast.unparse(a) for a in node.args[:3])
            return self.visit(_parsed(f"{self.tl}.minimum({self.tl}.maximum({x}, {low}), {high})"))
        if self.part is not None and name == "arange" and self._is_all_rows(node):
            first, count = self.part
            return _parsed(f"{first} + {self.gl}.arange(0, {count})")
        if self.columns is not None and name == "arange":
            whole, first, count = self.columns
            if [ast.unparse(a) for a in node.args] == ["0", whole]:
                return _parsed(f"{first} + {self.gl}.arange(0, {count})")
        if name in ("zeros", "full") and (layout := self._layout(node)):
            made = self.generic_visit(node)
            assert isinstance(made, ast.Call)
            if self.part is not None:
                shape = made.args[0] if made.args else next(k.value for k in made.keywords if k.arg == "shape")
                assert isinstance(shape, ast.Tuple | ast.List)
                shape.elts[0] = _parsed(self.part[1])
            made.keywords.append(ast.keyword("layout", _parsed(layout)))
            return made
        if name in ("load", "store"):
            node.keywords = [k for k in node.keywords if k.arg not in ("boundary_check", "padding_option")]
        return self.generic_visit(node)

    def _is_all_rows(self, node: ast.Call) -> bool:
        return [ast.unparse(a) for a in node.args] == ["0", self.shape[0]]

    def _layout(self, node: ast.Call) -> str:
        """Of what ``zeros`` or ``full`` makes; "" where it is left to be inferred."""
        shape = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg == "shape")
        parts = [ast.unparse(e) for e in shape.elts] if isinstance(shape, ast.Tuple | ast.List) else []
        if tuple(parts) == self.shape:
            return self.layout
        return f"{self.gl}.SliceLayout(1, {self.layout})" if self.rows and parts == [self.shape[0]] else ""


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
