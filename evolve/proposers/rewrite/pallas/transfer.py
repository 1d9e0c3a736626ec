"""Rules on who moves blocks, and where to: copies one step ahead, a pipeline inside the kernel, scalars in SMEM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, resolve, substitute
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.find import pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.memory import copy_sites, leave_in_hbm
from tilewright.evolve.proposers.rewrite.pallas.view import (
    PALLAS_TPU,
    PallasCall,
    Ref,
    first_statement,
    with_keyword,
)


class DoubleBufferedCopy:
    """Fetch an input's blocks by explicit copies, each one grid step ahead of its use."""

    name = "pallas_double_buffered_copy"
    language = Language.PALLAS
    why = (
        "The grid pipeline decides when an input is copied and into how many buffers. Copies written out, with two "
        "slots and the next step's copy under way during this step's work, can be moved, split or skipped."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        return copy_sites(kernel, "one step ahead by hand")

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        view, ref = site.payload
        edit = Edit(kernel)
        tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
        tile, slots, done = (kernel.fresh(f"{ref.name}_{w}") for w in ("tile", "slots", "done"))
        dims, dtype = leave_in_hbm(edit, view, ref, tile)
        scratch = [(slots, f"{tpu}.VMEM((2, {dims}), {dtype})"), (done, f"{tpu}.SemaphoreType.DMA((2,))")]
        view.add_scratch(edit, scratch)
        edit.before(first_statement(view.body), _ahead(view, ref, tpu, tile, slots, done))
        for axis in range(len(view.grid)):
            view.make_sequential(edit, axis)
        return edit.finish()


def _ahead(view: PallasCall, ref: Ref, tpu: str, tile: str, slots: str, done: str) -> str:
    """Statements that start the copy of the next step's block and wait for this one's."""
    kernel, pallas, spec = view.kernel, view.pallas, ref.spec
    assert spec is not None
    step, total, fetch, at, begin, follow = (
        kernel.fresh(f"{ref.name}_{w}") for w in ("step", "steps", "fetch", "at", "begin", "follow")
    )
    counts = [f"{pallas}.num_programs({axis})" for axis in range(len(view.grid))]
    linear = f"{pallas}.program_id(0)"
    for axis in range(1, len(counts)):
        linear = f"({linear}) * {counts[axis]} + {pallas}.program_id({axis})"
    places = []
    for position, index in enumerate(spec.index):
        ids = {name: _unravelled(at, axis, counts) for axis, name in enumerate(spec.axes)}
        size = f"{slots}.shape[{position + 1}]"
        places.append(f"{pallas}.ds(({substitute(kernel, index, ids)}) * {size}, {size})")
    return (
        f"{step} = {linear}\n"
        f"{total} = {' * '.join(counts)}\n"
        f"def {fetch}({at}):\n"
        f"    source = {ref.name}.at[{', '.join(places)}]\n"
        f"    return {tpu}.make_async_copy(source, {slots}.at[{at} % 2], {done}.at[{at} % 2])\n"
        f"@{pallas}.when({step} == 0)\n"
        f"def {begin}():\n"
        f"    {fetch}({step}).start()\n"
        f"@{pallas}.when({step} + 1 < {total})\n"
        f"def {follow}():\n"
        f"    {fetch}({step} + 1).start()\n"
        f"{fetch}({step}).wait()\n"
        f"{tile} = {slots}.at[{step} % 2]"
    )


def _unravelled(step: str, axis: int, counts: Sequence[str]) -> str:
    """The program id along ``axis`` at a step counted over the whole grid."""
    after = " * ".join(counts[axis + 1 :])
    text = f"({step} // ({after}))" if after else step
    return f"({text} % {counts[axis]})" if axis else f"({text})"


class EmitPipeline:
    """Run the grid as a pipeline inside one kernel call."""

    name = "pallas_emit_pipeline"
    language = Language.PALLAS
    why = (
        "With the pipeline inside the kernel, scratch and code around it live once for all steps: work that the grid "
        "would have to guard with a condition on the step can stand before or after the pipeline."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        return [
            Site(f"{v.name}/pipeline", f"{v.name}: run the grid as a pipeline inside the kernel", v)
            for v in pallas_calls(kernel)
            if v.operands and all(r.spec is not None for r in (*v.inputs, *v.outputs))
        ]

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        view: PallasCall = site.payload
        edit = Edit(kernel)
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
        edit.transform(view.call, partial(_without_keyword, keyword="grid"))
        settings = view.args.get("compiler_params")
        given = resolve(kernel, settings.value) if settings is not None else None
        if isinstance(given, cst.Call):
            edit.transform(given, partial(_without_keyword, keyword="dimension_semantics"))
        return edit.finish()


class DeepPipeline:
    """Run the grid as a pipeline inside the kernel, with a number of buffers of each input that is a parameter."""

    name = "pallas_deep_pipeline"
    language = Language.PALLAS
    why = (
        "With two buffers the copies of a step begin one step before it. Where a step is shorter than a copy's latency "
        "it waits; more buffers let copies begin several steps ahead. The grid's own pipeline has two at most."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        return [
            Site(f"{site.payload.name}/deep", f"{site.description}, with more buffers", site.payload)
            for site in EmitPipeline().sites(kernel)
            if all("pipeline_mode" not in kernel.code(r.spec.node) for r in site.payload.inputs)
            and not _shared(site.payload)
        ]

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        view: PallasCall = site.payload
        edit = Edit(kernel)
        parameter = edit.add_parameter("pipeline_buffers", (2, 3, 4), 3)
        access = parameter_access(kernel, view.call, parameter)
        mode = f"{view.pallas}.Buffered({access})"
        for node in {id(r.spec.node): r.spec.node for r in view.inputs if r.spec is not None}.values():
            edit.transform(node, partial(with_keyword, keyword="pipeline_mode", text=mode))
        deep = edit.finish()
        if deep is None:
            return None
        source = KernelSource(deep.source)
        outer = EmitPipeline()
        inner = next((s for s in outer.sites(source) if s.payload.name == view.name), None)
        pipeline = outer.apply(source, inner, rng) if inner is not None else None
        if pipeline is None:
            return None
        return RewrittenKernel(pipeline.source, {**deep.added, **pipeline.added}, deep.dropped)


def _shared(view: PallasCall) -> bool:
    """Whether an output has the block specification of an input: outputs have two buffers."""
    given = {id(r.spec.node) for r in view.inputs if r.spec is not None}
    return any(r.spec is not None and id(r.spec.node) in given for r in view.outputs)


def _without_keyword(call: cst.Call, keyword: str) -> cst.Call:
    kept = [a for a in call.args if a.keyword is None or a.keyword.value != keyword]
    if kept and len(kept) < len(call.args) and call.args[-1] not in kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=kept)


class ScalarInputInSmem:
    """Keep an input that is only read one element at a time in scalar memory."""

    name = "pallas_scalar_input_in_smem"
    language = Language.PALLAS
    why = (
        "A scale read as one element per step wastes a vector load and a move to the scalar unit, and cannot be "
        "indexed freely along lanes; in SMEM it is a plain scalar load."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        return [
            Site(f"{v.name}/{r.name}", f"{v.name}: keep {r.name} in scalar memory", (v, r))
            for v in pallas_calls(kernel)
            for r in v.inputs
            if r.spec is not None
            and "memory_space" not in kernel.code(r.spec.node)
            and sum(1 for o in v.refs if o.spec is not None and o.spec.node is r.spec.node) == 1
            and _read_by_element(v, r)
        ]

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        _, ref = site.payload
        edit = Edit(kernel)
        tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
        edit.transform(ref.spec.node, partial(with_keyword, keyword="memory_space", text=f"{tpu}.SMEM"))
        return edit.finish()


def _read_by_element(view: PallasCall, ref: Ref) -> bool:
    """Whether every use is ``ref[i, j, ...]`` with one plain index for each dimension."""
    kernel, found = view.kernel, False
    assert ref.spec is not None
    for node in walk(view.function):
        if not isinstance(node, cst.Name) or node.value != ref.name:
            continue
        parent = kernel.parents[node]
        if isinstance(parent, cst.Param):
            continue
        if not isinstance(parent, cst.Subscript) or parent.value is not node:
            return False
        if len(parent.slice) != len(ref.spec.shape) or not all(map(_plain_index, parent.slice)):
            return False
        found = True
    return found


def _plain_index(element: cst.SubscriptElement) -> bool:
    return isinstance(element.slice, cst.Index) and not isinstance(element.slice.value, cst.Ellipsis)
