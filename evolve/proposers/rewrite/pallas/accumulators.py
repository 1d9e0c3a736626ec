"""Rules on where a sum lives: in a reference, in a value, in no scratch at all, in the output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, walk
from tilewright.evolve.proposers.rewrite.dataflow import small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.accumulation import (
    Accumulate,
    accumulates,
    block_of,
    full_index,
)
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall, Ref


def _names(node: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    return [n for n in walk(node) if isinstance(n, cst.Name) and n.value == name]


class AccumulateInValue(CallRule[tuple[Accumulate, cst.For]]):
    """Read the accumulator once before a loop, add in a value, store it once after."""

    name = "pallas_accumulate_in_value"
    why = (
        "Adding to a VMEM buffer in every iteration of an unrolled loop costs a load and a store of the whole tile "
        "each time; a value is stored once. The store slot is often what bounds a scaled accumulation."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[Accumulate, cst.For]]]:
        for item in accumulates(view):
            loop = item.loop
            if item.ref is None or loop is None or item.statement not in loop.body.body or not item.is_whole:
                continue
            if len(_names(loop, item.ref)) == len(_names(item.statement, item.ref)):
                yield f"sum into {item.ref} in a value over the loop", (item, loop)

    def change(self, edit: Edit, view: PallasCall, place: tuple[Accumulate, cst.For]) -> None:
        kernel = view.kernel
        item, loop = place
        total, target = kernel.fresh("total"), kernel.code(item.target)
        edit.before(loop, f"{total} = {target}")
        edit.replace_statement(item.statement, f"{total} = {total} + {_operand(kernel, item.value)}")
        edit.after(loop, f"{target} = {total}")


def _operand(kernel: KernelSource, node: cst.BaseExpression) -> str:
    text = kernel.code(node)
    return f"({text})" if isinstance(node, cst.IfExp | cst.Comparison | cst.BooleanOperation) else text


class AccumulateInRef(CallRule):
    """The reverse: add to the reference in every iteration."""

    name = "pallas_accumulate_in_ref"
    why = (
        "A sum kept in a value over a long unrolled loop holds hundreds of registers live and spills; adding to the "
        "reference in place keeps each partial short-lived."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Any]]:
        for item in accumulates(view):
            if item.ref is None and item.loop is not None and isinstance(item.target, cst.Name):
                ends = _load_and_store(view, item.loop, item.target.value)
                if ends is not None:
                    yield f"add {item.target.value} to its reference in every iteration", (item, ends)

    def change(self, edit: Edit, view: PallasCall, payload: Any) -> None:
        kernel = view.kernel
        item, (load, store, target) = payload
        edit.remove(load)
        edit.remove(store)
        edit.replace_statement(item.statement, f"{target} += {kernel.code(item.value)}")


def _load_and_store(
    view: PallasCall, loop: cst.For, name: str
) -> tuple[cst.CSTNode, cst.CSTNode, str] | None:
    """``x = ref[...]`` before and ``ref[...] = x`` after the loop, if x is used nowhere else."""
    kernel = view.kernel
    load = store = None
    target = ""
    for statement in block_of(kernel, loop):
        line = small(statement)
        if not isinstance(line, cst.Assign) or len(line.targets) != 1:
            continue
        left, right = line.targets[0].target, line.value
        if isinstance(left, cst.Name) and left.value == name and full_index(right):
            load, target = statement, kernel.code(right)
        elif isinstance(right, cst.Name) and right.value == name and kernel.code(left) == target:
            store = statement
    if load is None or store is None:
        return None
    outside = len(_names(view.function, name)) - len(_names(loop, name))
    return (load, store, target) if outside == 2 else None


class DropAccumulatorScratch(CallRule[Ref]):
    """Replace a scratch accumulator that no grid step hands on by a local value."""

    name = "pallas_drop_accumulator_scratch"
    why = (
        "When the whole reduction happens within one grid step, the accumulator needs no memory: as a value it saves "
        "a zero fill, a read and a write of the tile, and the VMEM."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Ref]]:
        if not view.outputs:
            return
        for ref in view.scratch:
            if _local_only(view, ref):
                yield f"hold {ref.name} in a value instead of scratch", ref

    def change(self, edit: Edit, view: PallasCall, ref: Ref) -> None:
        kernel = view.kernel
        value = kernel.fresh(f"{ref.name}_value")
        declared = ref.declared
        shape = f"{view.outputs[0].name}.shape"
        assert isinstance(declared, cst.Call)  # see _local_only
        dtype = kernel.code(declared.args[1].value)
        for node in _names(view.function, ref.name):
            parent = kernel.parents[node]
            if isinstance(parent, cst.Subscript):
                edit.replace(parent, value)
            elif isinstance(parent, cst.Attribute):
                edit.replace(parent, shape if parent.attr.value == "shape" else dtype)
            elif isinstance(parent, cst.Arg):
                numpy = edit.ensure_import("jax.numpy", "jnp")
                edit.replace(kernel.parents[parent], f"{numpy}.zeros({shape}, {dtype})")
        remove_scratch(edit, view, ref)


def remove_scratch(edit: Edit, view: PallasCall, ref: Ref) -> None:
    """Take a scratch buffer out of the launch and out of the kernel's parameters."""
    assert view.scratch_node is not None
    keep = [e for e in view.scratch_node.elements if e.value is not ref.declared]
    edit.replacements[view.scratch_node] = view.scratch_node.with_changes(elements=keep)
    params = view.function.params
    keep_params = [p for p in params.params if p.name.value != ref.name]
    if not params.kwonly_params and keep_params:
        keep_params[-1] = keep_params[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    edit.replacements[params] = params.with_changes(params=keep_params)


def _local_only(view: PallasCall, ref: Ref) -> bool:
    """Whether every use is a whole-tile one in straight code, the first one a zero fill, shaped as the output."""
    kernel = view.kernel
    declared = ref.declared
    out = view.outputs[0].spec
    if not isinstance(declared, cst.Call) or len(declared.args) != 2 or out is None:
        return False
    shape = declared.args[0].value
    if not isinstance(shape, cst.Tuple):
        return False
    if [kernel.code(e.value) for e in shape.elements] != [kernel.code(d) for d in out.shape]:
        return False
    straight = set(view.body)
    for node in _names(view.function, ref.name):
        parent = kernel.parents[node]
        if isinstance(parent, cst.Param):
            continue
        if isinstance(parent, cst.Attribute) and parent.attr.value in ("shape", "dtype"):
            continue
        if isinstance(parent, cst.Arg):
            call = kernel.parents[parent]
            if isinstance(call, cst.Call) and kernel.qualified(call.func) == "jax.numpy.zeros_like":
                continue
            return False
        if not isinstance(parent, cst.Subscript) or not full_index(parent):
            return False
        if kernel.enclosing(node, cst.FunctionDef) is not view.function:
            return False
    first = next((s for s in view.body if _names(s, ref.name)), None)
    return first in straight and _is_zero_fill(kernel, first, ref.name)


def _is_zero_fill(kernel: KernelSource, statement: cst.CSTNode | None, name: str) -> bool:
    line = small(statement) if statement is not None else None
    if not isinstance(line, cst.Assign) or not isinstance(line.value, cst.Call):
        return False
    if not kernel.code(line.targets[0].target).startswith(f"{name}["):
        return False
    return kernel.qualified(line.value.func) in (
        "jax.numpy.zeros_like",
        "jax.numpy.zeros",
        "jax.numpy.full",
        "jax.numpy.full_like",
    )
