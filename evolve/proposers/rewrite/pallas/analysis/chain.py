"""The part of a kernel that depends on some of its inputs only, such as the quantisation of one operand.

``find_chain`` slices it out by data flow: every assignment that reads nothing but the given references, static
values and other such assignments. The *values* of a chain are what the rest of the kernel takes from it.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, children, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    BUILTINS,
    assigned_value,
    dedented,
    definitions,
    loop_bounds,
    reads_of,
    small,
    target_names,
    turn_text,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall, when_of

_STATIC_ATTRIBUTES = ("shape", "dtype", "ndim", "size")
MINIMUM_WORK = 2
"""Operations below which a chain is not worth a buffer."""


@dataclass(frozen=True)
class ChainValue:
    """A value the rest of the kernel takes: a name, or an inline expression that gets ``name``."""

    name: str
    loop: cst.For | None
    inline: cst.BaseExpression | None = None
    at: cst.CSTNode | None = None
    """Last defining statement, or the statement that holds the inline expression."""


@dataclass
class Chain:
    """``body`` gives the text that computes every value, each then stored where a mapping from its name says."""

    refs: list[str]
    values: list[ChainValue]
    doomed: list[cst.CSTNode]
    """Statements that only the chain needs."""
    first: int
    """Index of the kernel's first top-level statement that takes part."""
    body: Callable[[Mapping[str, str]], str]


def ordinal(kernel: KernelSource, loop: cst.For) -> str | None:
    """Text of the number of the current iteration, None for loops that are not over ``range``."""
    if isinstance(loop.iter, cst.Call) and kernel.code(loop.iter.func) == "enumerate":
        from_zero = len(loop.iter.args) == 1 and isinstance(loop.target, cst.Tuple)
        return target_names(loop.target)[0] if from_zero else None
    bounds = loop_bounds(kernel, loop)
    return None if bounds is None else turn_text(kernel.code(loop.target), bounds)


def value_reads(text: str) -> set[str]:
    """Free names whose values are read, not only their static attributes."""
    tree = ast.parse(text)

    class Prune(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            if node.attr in _STATIC_ATTRIBUTES:
                return ast.copy_location(ast.Constant(0), node)
            return self.generic_visit(node)

    return reads_of(ast.unparse(Prune().visit(tree)))


def _levels(body: Sequence[cst.CSTNode]) -> Iterator[tuple[int, cst.CSTNode, cst.For | None]]:
    """(top-level index, statement, enclosing loop) of straight code and of loops one level deep."""
    for position, statement in enumerate(body):
        yield position, statement, None
        if isinstance(statement, cst.For) and isinstance(statement.body, cst.IndentedBlock):
            for inner in statement.body.body:
                yield position, inner, statement


class ChainFinder:
    """Data-flow classification of one kernel body against a set of references."""

    def __init__(self, view: PallasCall, refs: Sequence[str]) -> None:
        self.view, self.kernel = view, view.kernel
        self.refs = set(refs)
        self.defs = definitions(view.function)
        self.levels = list(_levels(view.body))
        self.placed = {statement: (position, loop) for position, statement, loop in self.levels}
        self.statics = set(view.keyword_names)
        self.tainted = {r.name for r in view.refs} - self.refs | set(view.axis_names)
        self._taint()
        self.touching = set(self.refs)
        self._touch()

    def _taint(self) -> None:
        """Names that depend on anything but the references and static values, to a fixed point."""
        for name, places in self.defs.items():
            if any(p not in self.placed or isinstance(p, cst.FunctionDef) for p in places):
                self.tainted.add(name)
        changed = True
        while changed:
            changed = False
            for name, places in self.defs.items():
                if name not in self.tainted and any(not self._pure_binding(p) for p in places):
                    self.tainted.add(name)
                    changed = True

    def _pure_binding(self, statement: cst.CSTNode) -> bool:
        if isinstance(statement, cst.For):
            return self.pure(self.kernel.code(statement.iter))
        return assigned_value(statement) is not None and self.pure(dedented(self.kernel, statement))

    def pure(self, text: str) -> bool:
        """Whether code reads nothing but the references, pure locals, static parameters and outer names."""
        if "program_id(" in text or ".at[" in text or "pl.load(" in text or "async_copy" in text:
            return False
        return not (reads_of(text) & self.tainted)

    def _touch(self) -> None:
        changed = True
        while changed:
            changed = False
            for name, places in self.defs.items():
                if name in self.tainted or name in self.touching:
                    continue
                for place in places:
                    text = self.kernel.code(place.iter) if isinstance(place, cst.For) else dedented(self.kernel, place)
                    if value_reads(text) & self.touching:
                        self.touching.add(name)
                        changed = True
                        break

    def touches(self, text: str) -> bool:
        return bool(value_reads(text) & self.touching)

    def is_load(self, statement: cst.CSTNode) -> bool:
        """``x = ref[...]``: cheap, and no work to move."""
        found = assigned_value(statement)
        value = found[1] if found is not None else None
        return isinstance(value, cst.Subscript) and isinstance(value.value, cst.Name)

    def links(self) -> list[cst.CSTNode]:
        """Assignments of the chain, loads included, in order."""
        names = self.touching - self.refs
        return [
            s
            for _, s, _ in self.levels
            if (found := assigned_value(s)) and all(n in names or n == "_" for n in found[0])
        ]

    def inline(self, statement: cst.CSTNode) -> list[cst.BaseExpression]:
        """Maximal pure expressions with work in a statement outside the chain."""
        found: list[cst.BaseExpression] = []
        known = self.statics | set(self.defs) | self.refs | BUILTINS | self._outer()

        def visit(node: cst.CSTNode) -> None:
            if isinstance(node, cst.Call | cst.BinaryOperation) and _work(node):
                text = self.kernel.code(node)
                if self.pure(text) and self.touches(text) and reads_of(text) <= known:
                    found.append(node)
                    return
            if not isinstance(node, cst.FunctionDef | cst.Lambda | cst.For):
                for child in children(node):
                    visit(child)

        visit(statement)
        return found

    def _outer(self) -> set[str]:
        outer = set(self.kernel.aliases) | {f.name.value for f in self.kernel.functions}
        for statement in self.kernel.module.body:
            found = assigned_value(statement)
            outer |= set(found[0]) if found else set()
        scope = self.kernel.enclosing(self.view.function, cst.FunctionDef)
        if scope is not None:
            outer |= set(definitions(scope)) | {p.name.value for p in scope.params.params}
        return outer


def _work(node: cst.CSTNode) -> bool:
    return any(isinstance(n, cst.BinaryOperation | cst.Call) for n in walk(node))


def find_chain(view: PallasCall, refs: Sequence[str]) -> Chain | None:
    """The chain over ``refs``, None if there is none worth moving.

    Raises Unsupported when its values sit in loops that cannot be numbered.
    """
    finder = ChainFinder(view, refs)
    links = finder.links()
    computed = [s for s in links if not finder.is_load(s)]
    rest = [s for _, s, _ in finder.levels if s not in set(links)]
    values = _named_values(finder, computed, rest) + _inline_values(finder, rest)
    if not values:
        return None
    kernel = view.kernel
    for value in values:
        if value.loop is not None and ordinal(kernel, value.loop) is None:
            raise Unsupported("a quantisation inside a loop that is not over range")
    needed, names = _needed_statements(finder, values)
    count = sum(
        3 if isinstance(n, cst.Call) and kernel.function(kernel.code(n.func), near=view.call) else 1
        for s in [*needed, *(v.inline for v in values if v.inline is not None)]
        if not isinstance(s, cst.For) and finder.touches(dedented(kernel, s))
        for n in walk(s)
        if isinstance(n, cst.BinaryOperation | cst.Call)
    )
    if count < MINIMUM_WORK:
        return None
    used = [r.name for r in view.inputs if r.name in names]
    doomed = _superfluous_statements(finder, computed, links, values)
    first = min(finder.placed[v.at][0] for v in values if v.at is not None)
    first = min([first, *(finder.placed[s][0] for s in computed if s in set(needed))])
    return Chain(used, values, doomed, first, partial(_body, finder, needed, values))


def _named_values(
    finder: ChainFinder, computed: Sequence[cst.CSTNode], rest: Sequence[cst.CSTNode]
) -> list[ChainValue]:
    read_names: set[str] = set()
    for statement in rest:
        if isinstance(statement, cst.For) and finder.placed[statement][1] is None:
            read_names |= reads_of(finder.kernel.code(statement.iter))
        else:
            read_names |= reads_of(dedented(finder.kernel, statement))
    values = []
    for statement in computed:
        names, _ = assigned_value(statement) or ([], None)
        for name in names:
            if name in read_names and finder.defs[name][-1] is statement:
                values.append(ChainValue(name, finder.placed[statement][1], None, statement))
    return values


def _inline_values(finder: ChainFinder, rest: Sequence[cst.CSTNode]) -> list[ChainValue]:
    values = []
    for statement in rest:
        if isinstance(statement, cst.For) or when_of(finder.kernel, statement):
            continue
        if isinstance(statement, cst.FunctionDef) or not small(statement):
            continue
        loop = finder.placed[statement][1]
        for expression in finder.inline(statement):
            name = finder.kernel.fresh("cached_value")
            values.append(ChainValue(name, loop, expression, statement))
    return values


def _needed_statements(finder: ChainFinder, values: Sequence[ChainValue]) -> tuple[list[cst.CSTNode], set[str]]:
    """Statements that compute the values, in order, and every name they read."""
    kernel = finder.kernel
    names: set[str] = set()
    wanted = [v.name for v in values if v.inline is None]
    for value in values:
        if value.inline is not None:
            wanted += reads_of(kernel.code(value.inline))
        if value.loop is not None:
            wanted += reads_of(kernel.code(value.loop.iter))
    while wanted:
        name = wanted.pop()
        if name in names:
            continue
        names.add(name)
        for place in finder.defs.get(name, ()):
            text = kernel.code(place.iter) if isinstance(place, cst.For) else dedented(kernel, place)
            wanted += reads_of(text)
            loop = finder.placed[place][1]
            if loop is not None:
                wanted += [*target_names(loop.target)]
    needed = [
        s
        for _, s, _ in finder.levels
        if not isinstance(s, cst.For) and (found := assigned_value(s)) and any(n in names for n in found[0])
    ]
    return needed, names


def _superfluous_statements(
    finder: ChainFinder, computed: Sequence[cst.CSTNode], links: Sequence[cst.CSTNode], values: Sequence[ChainValue]
) -> list[cst.CSTNode]:
    """Chain statements without readers once the values come from elsewhere."""
    kernel = finder.kernel
    inline = {v.inline for v in values}
    left: set[str] = set()
    for _, statement, outer in finder.levels:
        if statement in set(links):
            continue
        if isinstance(statement, cst.For) and outer is None:
            left |= reads_of(kernel.code(statement.iter))
            continue
        text = dedented(kernel, statement)
        for expression in inline:
            if expression is not None:
                text = text.replace(kernel.code(expression), "None")
        left |= reads_of(text)
    loads = [s for s in links if s not in set(computed)]
    return [*computed, *(s for s in loads if not (set((assigned_value(s) or ([], None))[0]) & left))]


def _body(
    finder: ChainFinder, needed: Sequence[cst.CSTNode], values: Sequence[ChainValue], places: Mapping[str, str]
) -> str:
    kernel, wanted = finder.kernel, set(needed)

    def after(here: Sequence[ChainValue]) -> list[str]:
        lines = [f"{v.name} = {kernel.code(v.inline)}" for v in here if v.inline is not None]
        return lines + [f"{places[v.name]} = {v.name}" for v in here if v.name in places]

    lines: list[str] = []
    for position, statement in enumerate(finder.view.body):
        if statement in wanted:
            lines.append(dedented(kernel, statement))
        if isinstance(statement, cst.For):
            inner = [
                dedented(kernel, s)
                for p, s, loop in finder.levels
                if p == position and loop is statement and s in wanted
            ]
            inner += after([v for v in values if v.loop is statement])
            if inner:
                lines.append(f"for {kernel.code(statement.target)} in {kernel.code(statement.iter)}:")
                lines += ["    " + line for text in inner for line in text.splitlines()]
        lines += after([v for v in values if v.at is statement and v.loop is None])
    return "\n".join(lines)


def take_from(edit: Edit, chain: Chain, read: dict[str, str]) -> None:
    """Drop the chain from the kernel and bind its values to ``read[name]`` (text) instead."""
    bound: dict[cst.CSTNode, list[str]] = {}
    for value in chain.values:
        assert value.at is not None
        if value.inline is not None:
            edit.replace(value.inline, value.name)
            edit.insert_before(value.at, f"{value.name} = {read[value.name]}")
        else:
            bound.setdefault(value.at, []).append(f"{value.name} = {read[value.name]}")
    for statement in (*chain.doomed, *bound):
        edit.replace_statement(statement, "\n".join(bound.get(statement, [])))
