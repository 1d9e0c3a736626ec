"""A Triton or Gluon launch as rules see it, and the pieces of a jitted kernel that rules ask for."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    assigned_value,
    definitions,
    loop_bounds,
    parameters,
    reads,
    resolve,
    small,
    turn_text,
)
from tilewright.evolve.proposers.rewrite.edit import COMMA, Edit, with_keyword
from tilewright.evolve.proposers.rewrite.place_rule import Place, PlaceRule

LANGUAGES = ("triton.language", "triton.experimental.gluon.language")
JITS = ("triton.jit", "triton.experimental.gluon.jit")


def parsed(text: str) -> ast.expr:
    """An expression, which may go on over several lines."""
    return ast.parse(f"({text})", mode="eval").body


def device_name(kernel: KernelSource, node: cst.CSTNode) -> str:
    """``load`` for ``tl.load`` however the language module is spelled; "" for anything else."""
    path = kernel.qualified(node)
    for language in LANGUAGES:
        if path.startswith(language + "."):
            return path[len(language) + 1 :]
    return ""


def device_calls(kernel: KernelSource, inside: cst.CSTNode, *names: str) -> list[cst.Call]:
    """Calls of the device language's functions ``names`` below ``inside``."""
    return [n for n in walk(inside) if isinstance(n, cst.Call) and device_name(kernel, n.func) in names]


def argument(call: cst.Call, name: str, position: int) -> cst.BaseExpression | None:
    """An argument given by keyword or by position."""
    for item in call.args:
        if item.keyword is not None and item.keyword.value == name:
            return item.value
    free = [a.value for a in call.args if a.keyword is None and not a.star]
    return free[position] if position < len(free) else None


@dataclass
class TritonKernel:
    """A jitted function with the launches that use it."""

    source: KernelSource
    function: cst.FunctionDef
    launches: list[cst.Call]

    @property
    def name(self) -> str:
        return self.function.name.value

    @cached_property
    def body(self) -> Sequence[cst.CSTNode]:
        if not isinstance(self.function.body, cst.IndentedBlock):
            raise Unsupported(f"{self.name} is written on one line")
        return self.function.body.body

    @cached_property
    def tl(self) -> str:
        """Spelling of the device language module that this function is written in."""
        gluon = any("gluon" in self.source.qualified(_bare(d.decorator)) for d in self.function.decorators)
        for language in LANGUAGES[::-1] if gluon else LANGUAGES:
            alias = self.source.alias_of(language)
            if alias:
                return alias
        raise Unsupported("device functions imported by name")

    @cached_property
    def bound(self) -> dict[str, list[cst.CSTNode]]:
        return definitions(self.function)

    @cached_property
    def constexprs(self) -> set[str]:
        return {
            p.name.value
            for p in parameters(self.function)
            if p.annotation is not None and self.source.code(p.annotation.annotation).endswith("constexpr")
        }

    def value_of(self, name: str) -> cst.BaseExpression | None:
        """The one expression bound to ``name`` in the kernel."""
        places = self.bound.get(name, [])
        found = assigned_value(places[0]) if len(places) == 1 else None
        return found[1] if found and len(found[0]) == 1 else None

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """The expressions of names that are bound once."""
        found = {name: self.value_of(name) for name in self.bound}
        return {n: parsed(self.source.code(v)) for n, v in found.items() if v is not None}

    def definition_closure(self, node: cst.CSTNode) -> set[str]:
        """Names ``node`` depends on through every binding in the kernel."""
        seen: set[str] = set()
        wanted = list(reads(self.source, node))
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            for place in self.bound.get(name, ()):
                line = small(place)
                value = getattr(line, "value", None)
                if isinstance(place, cst.For):
                    value = place.iter
                if value is not None:
                    wanted += reads(self.source, value)
        return seen

    # -- the launch -------------------------------------------------------------------------------------------

    def launch(self) -> cst.Call:
        """The only launch. Raises Unsupported if there are several or none."""
        if len(self.launches) != 1:
            raise Unsupported(f"{self.name} is launched {len(self.launches)} times")
        return self.launches[0]

    def given(self, name: str) -> cst.BaseExpression | None:
        """What the launch passes for parameter ``name``."""
        names = [p.name.value for p in parameters(self.function)]
        call = self.launch()
        if any(a.star for a in call.args):
            raise Unsupported("a launch with starred arguments")
        position = names.index(name) if name in names else len(call.args)
        return argument(call, name, position)

    def grid(self) -> list[cst.BaseExpression]:
        """Elements of a literal grid. Raises Unsupported for other grids."""
        func = self.launch().func
        assert isinstance(func, cst.Subscript)
        elements = [e.slice for e in func.slice]
        alone = len(elements) == 1 and not isinstance(func.slice[0].comma, cst.Comma)
        if alone and isinstance(elements[0], cst.Index):
            value = resolve(self.source, elements[0].value)
            if isinstance(value, cst.Tuple | cst.List):
                return [e.value for e in value.elements]
            raise Unsupported(f"a grid given as {type(value).__name__}")
        return [e.value for e in elements if isinstance(e, cst.Index)]

    def add_argument(self, edit: Edit, name: str, text: str, constexpr: bool) -> None:
        """One more kernel parameter at the end, passed by keyword at the launch.

        Raises Unsupported for a constexpr where Triton's interpreter would not know it for one: it looks for
        ``tl.constexpr`` by these letters.
        """
        if constexpr and self.tl not in ("tl", "gl"):
            raise Unsupported(f"a parameter of the compiler's in a module that calls the language {self.tl}")
        annotation = f"{self.tl}.constexpr" if constexpr else None
        edit.transform(self.function.params, partial(_with_parameter, name=name, annotation=annotation))
        edit.transform(self.launch(), partial(with_keyword, keyword=name, text=text))


def _with_parameter(node: cst.Parameters, name: str, annotation: str | None) -> cst.Parameters:
    note = cst.Annotation(cst.parse_expression(annotation)) if annotation else None
    fresh = cst.Param(cst.Name(name), annotation=note)
    listed = list(node.params)
    if listed:
        fresh = fresh.with_changes(comma=listed[-1].comma)
        listed[-1] = listed[-1].with_changes(comma=COMMA)
    if any(p.default is not None for p in listed):
        raise Unsupported("a kernel with default arguments")
    return node.with_changes(params=[*listed, fresh])


def jit_kernels(kernel: KernelSource, entry_only: bool = False) -> list[TritonKernel]:
    """Jitted functions; with ``entry_only`` those that are launched from the host."""
    key = f"jitted kernels, {entry_only}"
    if key not in kernel.notes:
        kernel.notes[key] = _jit_kernels(kernel, entry_only)
    return list(kernel.notes[key])


def _jit_kernels(kernel: KernelSource, entry_only: bool) -> list[TritonKernel]:
    if kernel.language is Language.PALLAS:
        return []
    launches: dict[str, list[cst.Call]] = {}
    for node in walk(kernel.module):
        launched = node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Subscript) else None
        if isinstance(node, cst.Call) and isinstance(launched, cst.Name):
            launches.setdefault(launched.value, []).append(node)
    found = []
    for function in kernel.functions:
        marks = [kernel.qualified(_bare(d.decorator)) for d in function.decorators]
        if any(m in JITS for m in marks):
            mine = launches.get(function.name.value, [])
            if mine and all(_is_spare(kernel, call) for call in mine):
                continue
            if mine or not entry_only:
                found.append(TritonKernel(kernel, function, mine))
    return found


SPARE = ".element_size() % 16 == 0"
"""In the condition under which a launch copies by descriptors: another kernel serves the tensors that it cannot."""


def _is_spare(kernel: KernelSource, launch: cst.Call) -> bool:
    """Whether a launch serves only tensors that no descriptor describes: not what a search should change."""
    branch = kernel.enclosing(launch, cst.Else)
    choice = kernel.parents.get(branch) if branch is not None else None
    return isinstance(choice, cst.If) and SPARE in kernel.code(choice.test)


def _bare(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def range_of(kernel: KernelSource, loop: cst.For) -> tuple[str, str, str] | None:
    """(start, stop, step) texts of a loop over ``range`` or ``tl.range`` with one target."""
    bounds = loop_bounds(kernel, loop)
    if bounds is None and isinstance(loop.iter, cst.Call) and device_name(kernel, loop.iter.func) == "range":
        return loop_bounds(kernel, loop, kernel.code(loop.iter.func))
    return bounds


def turn_of(kernel: KernelSource, loop: cst.For) -> str | None:
    """The number of a loop's turn, from 0, as a text; None for a loop that ``range_of`` does not read."""
    bounds = range_of(kernel, loop)
    return None if bounds is None else turn_text(kernel.code(loop.target), bounds)


class NodeRule(PlaceRule[TritonKernel, Place]):
    """A rule whose places are in one jitted kernel."""

    language = Language.TRITON
    launched = False
    """Only kernels that the host launches, exactly once."""

    def views(self, kernel: KernelSource) -> Iterator[TritonKernel]:
        for view in jit_kernels(kernel, entry_only=self.launched):
            if not self.launched or len(view.launches) == 1:
                yield view
