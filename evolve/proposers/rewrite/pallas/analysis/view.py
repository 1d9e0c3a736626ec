"""A Pallas launch as rules see it: grid, block specs, scratch and the roles of the kernel's references."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    assigned_value,
    dedented,
    definitions,
    parameter_access,
    parameters,
    reads_of,
    resolve,
    statements,
)
from tilewright.evolve.proposers.rewrite.edit import COMMA, Edit, with_keyword

PALLAS = "jax.experimental.pallas"
PALLAS_TPU = "jax.experimental.pallas.tpu"


@dataclass
class Spec:
    """A BlockSpec: block extents, and what each extent's block index is as text over ``axes``."""

    node: cst.Call
    shape: list[cst.BaseExpression]
    axes: list[str]
    index: list[cst.BaseExpression]
    map_node: cst.CSTNode

    def depends(self, kernel: KernelSource, position: int) -> set[int]:
        """Grid axes that dimension ``position`` moves with."""
        names = reads_of(kernel.code(self.index[position]))
        return {a for a, name in enumerate(self.axes) if name in names}

    def grid_axes(self, kernel: KernelSource) -> set[int]:
        """Grid axes the block moves with."""
        return set().union(*(self.depends(kernel, p) for p in range(len(self.index))))


@dataclass
class Ref:
    """A reference the kernel receives. ``spec`` is None for scratch and for specs that are not literal."""

    name: str
    role: str
    position: int
    spec: Spec | None = None
    declared: cst.BaseExpression | None = None


@dataclass
class When:
    """A ``pl.when(condition)`` block."""

    node: cst.FunctionDef
    condition: cst.BaseExpression


@dataclass
class PallasCall:
    """One ``pallas_call`` and its kernel."""

    kernel: KernelSource
    call: cst.Call
    args: dict[str, cst.Arg]
    function: cst.FunctionDef
    bound: dict[str, cst.Arg]
    partial: cst.Call | None
    grid_node: cst.BaseExpression
    grid: list[cst.BaseExpression]
    refs: list[Ref]
    scratch_node: cst.List | cst.Tuple | None
    operands: list[cst.BaseExpression] = field(default_factory=list)

    @property
    def inputs(self) -> list[Ref]:
        return [r for r in self.refs if r.role == "in"]

    @property
    def outputs(self) -> list[Ref]:
        return [r for r in self.refs if r.role == "out"]

    @property
    def scratch(self) -> list[Ref]:
        return [r for r in self.refs if r.role == "scratch"]

    @property
    def name(self) -> str:
        return self.function.name.value

    def ref(self, name: str) -> Ref | None:
        return next((r for r in self.refs if r.name == name), None)

    @property
    def pallas(self) -> str:
        """Spelling of the pallas module."""
        alias = self.kernel.alias_of(PALLAS)
        if alias is None:
            raise Unsupported("pallas_call imported by name, without its module")
        return alias

    @cached_property
    def body(self) -> Sequence[cst.CSTNode]:
        """Top-level statements of the kernel."""
        if not isinstance(self.function.body, cst.IndentedBlock):
            raise Unsupported(f"{self.name} is written on one line")
        return self.function.body.body

    @cached_property
    def whens(self) -> list[When]:
        return [w for s in statements(self.function.body) if (w := when_of(self.kernel, s))]

    @cached_property
    def axis_names(self) -> dict[str, int]:
        """Names bound to ``program_id(axis)``, to nothing else, at the top of the kernel."""
        found: dict[str, int] = {}
        bound = definitions(self.function)
        for statement in self.body:
            for name, value in pairs(statement):
                axis = program_axis(self.kernel, value)
                if axis is not None and len(bound[name]) == 1:
                    found[name] = axis
        return found

    def axis_reads(self, text: str) -> set[int]:
        """Grid axes whose program id ``text`` (kernel code) reads, by name or by call."""
        axes = {self.axis_names[n] for n in reads_of(text) if n in self.axis_names}
        for node in walk(cst.parse_module(text + "\n")):
            if isinstance(node, cst.Call):
                axis = program_axis(self.kernel, node)
                if axis is not None:
                    axes.add(axis)
        return axes

    @property
    def keyword_names(self) -> list[str]:
        """Static parameters of the kernel: those after its references, and keyword-only ones."""
        positional = [p.name.value for p in parameters(self.function)][len(self.refs) :]
        return positional + [p.name.value for p in self.function.params.kwonly_params]

    def semantics(self) -> list[cst.Element] | None:
        """Elements of ``dimension_semantics``, None when the launch does not set them literally."""
        params = self.args.get("compiler_params")
        if params is None:
            return None
        value = resolve(self.kernel, params.value)
        for node in walk(value):
            if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "dimension_semantics":
                elements = resolve(self.kernel, node.value)
                if isinstance(elements, cst.Tuple | cst.List):
                    return [e for e in elements.elements if isinstance(e, cst.Element)]
        return None

    # -- common edits -----------------------------------------------------------------------------------

    def make_sequential(self, edit: Edit, axis: int) -> None:
        """Forbid the compiler to split ``axis`` over cores: state now flows along it."""
        elements = self.semantics()
        if elements is None or axis >= len(elements):
            return
        text = self.kernel.code(elements[axis].value)
        if "parallel" in text.lower():
            new = text.replace("PARALLEL", "ARBITRARY").replace("parallel", "arbitrary")
            edit.replace(elements[axis].value, new)

    def add_scratch(self, edit: Edit, entries: Sequence[tuple[str, str]]) -> None:
        """Append scratch buffers: (reference name, text of the shape)."""
        texts = [text for _, text in entries]
        if self.scratch_node is not None:
            edit.transform(self.scratch_node, partial(_with_elements, texts=texts))
        else:
            shapes = "[" + ", ".join(texts) + "]"
            edit.transform(self.call, partial(with_keyword, keyword="scratch_shapes", text=shapes))
        after, names = parameters(self.function)[len(self.refs) - 1].name.value, [name for name, _ in entries]
        edit.transform(self.function.params, partial(_with_parameters, after=after, names=names))

    def pass_static(self, edit: Edit, parameter: str) -> str:
        """Make launch parameter ``parameter`` readable in the kernel; returns the text that reads it there.

        Raises Unsupported when another launch shares the kernel.
        """
        access = parameter_access(self.kernel, self.call, parameter)
        if self.kernel.enclosing(self.function, cst.FunctionDef) is not None:
            return access
        return self._bind(edit, parameter, access)

    def pass_value(self, edit: Edit, name: str, value: cst.BaseExpression) -> str:
        """Make an expression of the launch readable in the kernel; returns the text that reads it there.

        Raises Unsupported when another launch shares the kernel, or a name means something else in the kernel.
        """
        if self.kernel.enclosing(self.function, cst.FunctionDef) is None:
            return self._bind(edit, self.kernel.fresh(name), self.kernel.code(value))
        text = self.kernel_text(value)
        if text is None:
            raise Unsupported("the launch's names are not in scope in the kernel")
        return text

    def kernel_text(self, value: cst.BaseExpression) -> str | None:
        """An expression of the launch as text for the kernel, None where its names mean something else there."""
        text = self.kernel.code(value)
        scope = self.kernel.enclosing(self.function, cst.FunctionDef)
        own_names = set(definitions(self.function)) | {p.name.value for p in parameters(self.function)}
        if scope is None or scope is not self.kernel.enclosing(self.call, cst.FunctionDef):
            return text if text.isdigit() else None
        if reads_of(text) & own_names:
            return None
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _bind(self, edit: Edit, parameter: str, text: str) -> str:
        """Hand ``text`` of the launch to a kernel of the module as keyword ``parameter``."""
        uses = [n for n in walk(self.kernel.module) if isinstance(n, cst.Name) and n.value == self.name]
        if len(uses) > 2:
            raise Unsupported("a kernel that several launches share")
        if self.partial is not None:
            edit.transform(self.partial, partial(with_keyword, keyword=parameter, text=text))
        else:
            tools = edit.ensure_import("functools", "functools")
            node = self.call.args[0].value
            edit.replace(node, f"{tools}.partial({self.kernel.code(node)}, {parameter}={text})")
        edit.transform(self.function.params, partial(_with_keyword_only, name=parameter))
        return parameter

    def parameter_of(self, node: cst.BaseExpression) -> str | None:
        """The launch parameter an extent such as ``bm`` is, if it is just that."""
        value = resolve(self.kernel, node)
        if isinstance(value, cst.Subscript) and len(value.slice) == 1:
            index = value.slice[0].slice
            if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
                name = index.value.evaluated_value
                return name if isinstance(name, str) and name in self.kernel.space else None
        return None


def _with_elements(node: cst.List | cst.Tuple, texts: Sequence[str]) -> cst.List | cst.Tuple:
    elements = list(node.elements)
    new = [cst.Element(cst.parse_expression(t), comma=COMMA) for t in texts]
    if elements:
        between = elements[0].comma if len(elements) > 1 else COMMA
        new[-1] = new[-1].with_changes(comma=elements[-1].comma)
        elements[-1] = elements[-1].with_changes(comma=between)
    elif isinstance(node, cst.List):
        new[-1] = new[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(elements=[*elements, *new])


def _with_parameters(node: cst.Parameters, after: str, names: Sequence[str]) -> cst.Parameters:
    listed = list(node.params)
    place = next(i for i, p in enumerate(listed) if p.name.value == after) + 1
    fresh = [cst.Param(cst.Name(n), comma=COMMA) for n in names]
    if place == len(listed):
        fresh[-1] = fresh[-1].with_changes(comma=listed[-1].comma)
    listed[place - 1] = listed[place - 1].with_changes(comma=COMMA)
    return node.with_changes(params=[*listed[:place], *fresh, *listed[place:]])


def _with_keyword_only(node: cst.Parameters, name: str) -> cst.Parameters:
    fresh = cst.Param(cst.Name(name))
    if node.kwonly_params:
        listed = [*node.kwonly_params[:-1], node.kwonly_params[-1].with_changes(comma=COMMA)]
        return node.with_changes(kwonly_params=[*listed, fresh])
    positional = [*node.params[:-1], node.params[-1].with_changes(comma=COMMA)]
    return node.with_changes(params=positional, star_arg=cst.ParamStar(), kwonly_params=[fresh])


def pairs(statement: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]]:
    """(name, value) of simple and of element-wise tuple assignments."""
    found = assigned_value(statement)
    if found is None:
        return []
    names, value = found
    if len(names) == 1:
        return [(names[0], value)]
    if isinstance(value, cst.Tuple) and len(value.elements) == len(names):
        return [(n, e.value) for n, e in zip(names, value.elements, strict=True)]
    return []


def program_axis(kernel: KernelSource, node: cst.CSTNode, function: str = "program_id") -> int | None:
    """The axis of ``program_id(axis)`` or ``program_id(axis=axis)``, or of another function of the grid's axes."""
    if isinstance(node, cst.Call) and kernel.qualified(node.func) == f"{PALLAS}.{function}" and node.args:
        value = node.args[0].value
        return int(value.value) if isinstance(value, cst.Integer) else None
    return None


def num_programs_axis(kernel: KernelSource, node: cst.CSTNode) -> int | None:
    """The axis of ``num_programs(axis)``."""
    return program_axis(kernel, node, "num_programs")


def when_of(kernel: KernelSource, statement: cst.CSTNode) -> When | None:
    """The ``pl.when`` block that a statement is, if it is one."""
    if isinstance(statement, cst.FunctionDef) and len(statement.decorators) == 1:
        decorator = statement.decorators[0].decorator
        if isinstance(decorator, cst.Call) and kernel.qualified(decorator.func) == f"{PALLAS}.when":
            return When(statement, decorator.args[0].value)
    return None


def block_text(kernel: KernelSource, body: Sequence[cst.CSTNode]) -> str:
    """Statements as text at column 0."""
    return "\n".join(dedented(kernel, s) for s in body)
