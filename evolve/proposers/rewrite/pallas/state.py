"""Rules on running state: what a loop carries lives in values, or in scratch memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, resolve, small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.accumulation import full_index
from tilewright.evolve.proposers.rewrite.pallas.find import pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.static import StaticNames
from tilewright.evolve.proposers.rewrite.pallas.view import PALLAS_TPU, PallasCall, Ref, When, when_of

_LIKE = tuple(f"jax.numpy.{word}_like" for word in ("full", "zeros", "ones", "empty"))


@dataclass
class Region:
    """A loop that Python unrolls, the blocks in it that Python decides, and the scratch it carries."""

    view: PallasCall
    loop: cst.For
    whens: list[When]
    refs: list[Ref]


class StateInValues:
    """Carry scratch buffers through an unrolled loop as values: one load before it, one store after it."""

    name = "pallas_state_in_values"
    language = Language.PALLAS
    why = (
        "A buffer read and written in every iteration costs a load and a store of all of it each time, and orders the "
        "iterations by memory; values stay in registers, and independent iterations overlap."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for view in pallas_calls(kernel):
            for number, region in enumerate(_regions(view)):
                names = ", ".join(r.name for r in region.refs)
                found.append(
                    Site(
                        f"{view.name}/loop{number}",
                        f"{view.name}: carry {names} through a loop as values",
                        region,
                    )
                )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        region: Region = site.payload
        view, edit = region.view, Edit(kernel)
        numpy = edit.ensure_import("jax.numpy", "jnp")
        for ref in region.refs:
            value = kernel.fresh(f"{ref.name}_value")
            for node in _uses(region.loop, ref.name):
                subscript = kernel.parents[node]
                if not isinstance(subscript, cst.Subscript):
                    continue
                edit.replace(subscript, value)
                line = kernel.parents.get(kernel.parents.get(subscript, subscript))
                if (
                    isinstance(line, cst.Assign)
                    and subscript in [t.target for t in line.targets]
                    and _number(line.value)
                ):
                    edit.replace(
                        line.value,
                        f"{numpy}.full({ref.name}.shape, {kernel.code(line.value)}, {ref.name}.dtype)",
                    )
            edit.before(region.loop, f"{value} = {ref.name}[...]")
            edit.after(region.loop, f"{ref.name}[...] = {value}")
        static = StaticNames(kernel, view.function)
        for when in region.whens:
            text = static.python_condition(when.condition)
            edit.transform(when.node, partial(_branch, condition=text))
        return edit.finish()


def _branch(node: cst.FunctionDef, condition: str) -> cst.If:
    """The body of a ``pl.when`` block under a condition that Python decides."""
    return cst.If(test=cst.parse_expression(condition), body=node.body, leading_lines=node.leading_lines)


def _number(value: cst.BaseExpression) -> bool:
    """Whether a stored value is a number, which fills the buffer."""
    if isinstance(value, cst.UnaryOperation):
        value = value.expression
    return isinstance(value, cst.Integer | cst.Float)


def _uses(node: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    return [n for n in walk(node) if isinstance(n, cst.Name) and n.value == name]


def _regions(view: PallasCall) -> list[Region]:
    """Outermost loops that carry scratch, with the buffers whose every use in them can be followed."""
    static = StaticNames(view.kernel, view.function)
    found = []
    for loop in _outermost(view):
        decided = [w for w in static.whens(loop.body) if _inlinable(view, w)]
        refs = [r for r in view.scratch if _float_vmem(view, r) and _followed(view, loop, r, decided)]
        if refs and any(_stores(view, loop, r) for r in refs):
            found.append(Region(view, loop, decided, refs))
    return found


def _outermost(view: PallasCall) -> list[cst.For]:
    """Python loops at the top of the kernel, or of a ``pl.when`` block at its top."""
    blocks = [view.body]
    for statement in view.body:
        when = when_of(view.kernel, statement)
        if when is not None and isinstance(when.node.body, cst.IndentedBlock):
            blocks.append(when.node.body.body)
    return [s for block in blocks for s in block if isinstance(s, cst.For) and s.orelse is None]


def _float_vmem(view: PallasCall, ref: Ref) -> bool:
    """Whether a scratch buffer is VMEM of float32, which mixed arithmetic does not widen."""
    declared = ref.declared
    return (
        isinstance(declared, cst.Call)
        and view.kernel.qualified(declared.func) == f"{PALLAS_TPU}.VMEM"
        and len(declared.args) == 2
        and view.kernel.qualified(resolve(view.kernel, declared.args[1].value)) == "jax.numpy.float32"
    )


def _followed(view: PallasCall, loop: cst.For, ref: Ref, decided: Sequence[When]) -> bool:
    """Whether every use of a buffer in a loop is of all of it, in code that Python runs in order."""
    kernel = view.kernel
    inlined = {when.node for when in decided}
    uses = _uses(loop.body, ref.name)
    for node in uses:
        parent = kernel.parents.get(node)
        if (
            isinstance(parent, cst.Attribute)
            and parent.value is node
            and parent.attr.value in ("shape", "dtype")
        ):
            continue
        if isinstance(parent, cst.Arg) and kernel.qualified(kernel.parents[parent].func) in _LIKE:  # type: ignore[attr-defined]
            continue
        if not (isinstance(parent, cst.Subscript) and parent.value is node and full_index(parent)):
            return False
        for scope in _scopes(kernel, node, loop):
            if scope not in inlined:
                return False
    return bool(uses)


def _scopes(kernel: KernelSource, node: cst.CSTNode, loop: cst.For) -> Iterator[cst.CSTNode]:
    """Functions, lambdas and loops that are not Python's between ``node`` and ``loop``."""
    current = kernel.parents[node]
    while current is not loop:
        if isinstance(current, cst.FunctionDef | cst.Lambda | cst.ListComp | cst.GeneratorExp | cst.While):
            yield current
        current = kernel.parents[current]


def _stores(view: PallasCall, loop: cst.For, ref: Ref) -> bool:
    for node in walk(loop.body):
        if isinstance(node, cst.AssignTarget | cst.AugAssign):
            target = node.target
            if isinstance(target, cst.Subscript) and view.kernel.code(target.value) == ref.name:
                return True
    return False


def _inlinable(view: PallasCall, when: When) -> bool:
    """Whether the names a block binds are its own, so that they may become the kernel's."""
    kernel = view.kernel
    own = set(definitions(when.node))
    if any(isinstance(n, cst.Return) for n in walk(when.node)) or not isinstance(
        when.node.body, cst.IndentedBlock
    ):
        return False
    inside = set(walk(when.node))
    read = {n for n in walk(view.function) if isinstance(n, cst.Name) and n.value in own and n not in inside}
    for name in read:
        block = kernel.enclosing(name, cst.FunctionDef)
        # another block that binds the name for itself keeps doing so
        if block is view.function or block is None or name.value not in definitions(block):
            return False
    return True


class StateInScratch:
    """The reverse: a value that a loop carries between a buffer's load and its store stays in the buffer."""

    name = "pallas_state_in_scratch"
    language = Language.PALLAS
    why = (
        "Values that a long unrolled loop carries hold hundreds of registers and spill; a buffer is read and written "
        "where it is needed."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for view in pallas_calls(kernel):
            for loop in _outermost(view):
                for name, load, store, target in _carried(view, loop):
                    found.append(
                        Site(
                            f"{view.name}/{name}",
                            f"{view.name}: keep {name} in its buffer through the loop",
                            (loop, name, load, store, target),
                        )
                    )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        loop, name, load, store, target = site.payload
        edit = Edit(kernel)
        edit.remove(load)
        edit.remove(store)
        for node in _uses(loop.body, name):
            edit.replace(node, target)
        return edit.finish()


def _carried(view: PallasCall, loop: cst.For) -> Iterator[tuple[str, cst.CSTNode, cst.CSTNode, str]]:
    """(name, load, store, text of the buffer) of values that one loop carries for a buffer it does not touch."""
    kernel = view.kernel
    block = kernel.parents[loop].body  # type: ignore[attr-defined]
    place = list(block).index(loop)
    buffers = {r.name for r in [*view.scratch, *view.outputs]}
    for load in block[:place]:
        line = small(load)
        if not (isinstance(line, cst.Assign) and len(line.targets) == 1 and full_index(line.value)):
            continue
        name, target = kernel.code(line.targets[0].target), kernel.code(line.value)
        assert isinstance(line.value, cst.Subscript)
        buffer = kernel.code(line.value.value)
        if buffer not in buffers or not name.isidentifier() or _touches(kernel, loop, buffer):
            continue
        for store in block[place + 1 :]:
            after = small(store)
            if isinstance(after, cst.Assign) and kernel.code(after.targets[0].target) == target:
                whole = len(_uses(view.function, name)) == len(_uses(loop.body, name)) + 2
                if kernel.code(after.value) == name and whole and _bound_plainly(loop, name):
                    yield name, load, store, target
                break


def _touches(kernel: KernelSource, loop: cst.For, buffer: str) -> bool:
    return any(isinstance(kernel.parents.get(n), cst.Subscript) for n in _uses(loop.body, buffer))


def _bound_plainly(loop: cst.For, name: str) -> bool:
    """Whether a loop binds a name by assignments to it alone, no tuples and no functions of the same name."""
    for node in walk(loop.body):
        if isinstance(node, cst.Tuple) and any(
            isinstance(e.value, cst.Name) and e.value.value == name for e in node.elements
        ):
            return False
        if isinstance(node, cst.FunctionDef | cst.Lambda):
            return False
    return True
