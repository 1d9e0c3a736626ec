"""Rules on how blocks and scratch lie in VMEM and how they come there: lanes, pipelines in the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    RewrittenKernel,
    Site,
    walk,
)
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword, without_keyword
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule, pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import (
    PALLAS_TPU,
    PallasCall,
    Ref,
)


class LanePaddedScale(CallRule):
    """Keep a column of row scales spread over all lanes of its scratch."""

    name = "pallas_lane_padded_scale"
    why = (
        "A [rows, 1] column fills one lane of every register: each store is masked and each use broadcasts across "
        "lanes. Stored 128 lanes wide, the same registers hold it ready to use."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Any]]:
        kernel = view.kernel
        for r in view.scratch:
            if _is_column(kernel, r) and (uses := _plain_uses(view, r)) is not None:
                yield f"spread {r.name} over lanes", (r, uses)

    def change(self, edit: Edit, view: PallasCall, payload: Any) -> None:
        kernel = view.kernel
        ref, (reads, stores) = payload
        numpy = edit.ensure_import("jax.numpy", "jnp")
        shape = ref.declared.args[0].value
        edit.replace(shape.elements[-1].value, "128")
        for node in reads:
            edit.replace(node, f"{kernel.code(node)}[..., :1]")
        for value in stores:
            name = kernel.fresh("column")
            edit.before(kernel.statement(value), f"{name} = {kernel.code(value)}")
            edit.replace(value, f"{numpy}.broadcast_to({name}, (*{name}.shape[:-1], 128))")


def _is_column(kernel: KernelSource, ref: Ref) -> bool:
    """Declared as VMEM with at least two extents, the last one 1."""
    if not isinstance(ref.declared, cst.Call) or len(ref.declared.args) != 2:
        return False
    shape = ref.declared.args[0].value
    return (
        isinstance(shape, cst.Tuple)
        and len(shape.elements) >= 2
        and kernel.code(shape.elements[-1].value) == "1"
        and kernel.qualified(ref.declared.func).endswith(".VMEM")
    )


def _plain_uses(view: PallasCall, ref: Ref) -> tuple[list[cst.CSTNode], list[cst.BaseExpression]] | None:
    """(reads, stored values) if every use is ``ref[...]`` or leading indices; None otherwise."""
    kernel = view.kernel
    rank = len(ref.declared.args[0].value.elements)  # type: ignore[union-attr]
    reads: list[cst.CSTNode] = []
    stores: list[cst.BaseExpression] = []
    for node in walk(view.function):
        if not isinstance(node, cst.Name) or node.value != ref.name:
            continue
        parent = kernel.parents[node]
        if isinstance(parent, cst.Param):
            continue
        if not isinstance(parent, cst.Subscript) or parent.value is not node or len(parent.slice) >= rank:
            return None
        holder = kernel.parents[parent]
        if isinstance(holder, cst.AssignTarget):
            line = kernel.parents[holder]
            assert isinstance(line, cst.Assign)
            stores.append(line.value)
        elif isinstance(holder, cst.AugAssign):
            return None
        else:
            reads.append(parent)
    return (reads, stores) if reads and stores else None


class EmitPipeline(CallRule):
    """Run the grid as a pipeline inside one kernel call."""

    name = "pallas_emit_pipeline"
    why = (
        "With the pipeline inside the kernel, scratch and code around it live once for all steps: work that the grid "
        "would have to guard with a condition on the step can stand before or after the pipeline."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Any]]:
        if view.operands and all(r.spec is not None for r in (*view.inputs, *view.outputs)):
            yield "run the grid as a pipeline inside the kernel", None

    def change(self, edit: Edit, view: PallasCall, payload: Any) -> None:
        kernel = view.kernel
        tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
        outer, step = kernel.fresh("pipelined"), kernel.fresh("pipeline_step")
        moved = [r.name for r in (*view.inputs, *view.outputs)]
        blocks = [kernel.fresh(f"{name}_block") for name in moved]
        kept = [r.name for r in view.scratch]
        body = kernel.code(view.call.args[0].value)
        grid = ", ".join(kernel.code(extent) for extent in view.grid)
        specs = {k: kernel.code(view.args[k].value) for k in ("in_specs", "out_specs")}
        edit.before(
            kernel.statement(view.call),
            f"def {outer}({', '.join([*moved, *kept])}):\n"
            f"    def {step}({', '.join(blocks)}):\n"
            f"        {body}({', '.join([*blocks, *kept])})\n"
            f"    {tpu}.emit_pipeline(\n"
            f"        {step}, grid=({grid},), in_specs={specs['in_specs']}, out_specs={specs['out_specs']}\n"
            f"    )({', '.join(moved)})",
        )
        whole = f"{view.pallas}.BlockSpec(memory_space={view.pallas}.ANY)"
        edit.replace(view.call.args[0].value, outer)
        edit.replace(view.args["in_specs"].value, f"[{', '.join([whole] * len(view.inputs))}]")
        several = not isinstance(resolve(kernel, view.args["out_specs"].value), cst.Call)
        outs = f"[{', '.join([whole] * len(view.outputs))}]" if several else whole
        edit.replace(view.args["out_specs"].value, outs)
        edit.transform(view.call, partial(without_keyword, keyword="grid"))
        settings = view.args.get("compiler_params")
        given = resolve(kernel, settings.value) if settings is not None else None
        if isinstance(given, cst.Call):
            edit.transform(given, partial(without_keyword, keyword="dimension_semantics"))


class DeepPipeline(EmitPipeline):
    """Run the grid as a pipeline inside the kernel, with a number of buffers of each input that is a parameter."""

    name = "pallas_deep_pipeline"
    why = (
        "With two buffers the copies of a step begin one step before it. Where a step is shorter than a copy's latency "
        "it waits; more buffers let copies begin several steps ahead. The grid's own pipeline has two at most."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Any]]:
        set_already = any(r.spec and "pipeline_mode" in view.kernel.code(r.spec.node) for r in view.inputs)
        if not set_already and not _shared(view):
            for description, payload in super().find(view):
                yield f"{description}, with more buffers", payload

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        view: PallasCall = site.payload[0]
        edit = Edit(kernel)
        parameter = edit.add_parameter("pipeline_buffers", (2, 3, 4), 3)
        access = parameter_access(kernel, view.call, parameter)
        mode = f"{view.pallas}.Buffered({access})"
        for node in {id(r.spec.node): r.spec.node for r in view.inputs if r.spec is not None}.values():
            edit.transform(node, partial(with_keyword, keyword="pipeline_mode", text=mode))
        deep = edit.finish()
        if deep is None:
            return None
        second = KernelSource(deep.source)
        inner = next(v for v in pallas_calls(second) if v.name == view.name)
        edit = Edit(second)
        self.change(edit, inner, None)
        pipeline = edit.finish()
        if pipeline is None:
            return None
        return RewrittenKernel(pipeline.source, {**deep.added, **pipeline.added}, deep.dropped)


def _shared(view: PallasCall) -> bool:
    """Whether an output has the block specification of an input: outputs have two buffers."""
    given = {id(r.spec.node) for r in view.inputs if r.spec is not None}
    return any(r.spec is not None and id(r.spec.node) in given for r in view.outputs)
