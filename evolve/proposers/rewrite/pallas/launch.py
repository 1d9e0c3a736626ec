"""Rules on a launch: the ranges of its parameters, a pipeline with more buffers than the grid's."""

from collections.abc import Iterator, Sequence
from functools import partial

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword, without_keyword
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule, pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS_TPU, PallasCall


class WidenSpace:
    """Add a value beyond the largest or smallest one of an integer parameter."""

    name = "pallas_widen_space"
    language = Language.PALLAS
    why = (
        "The best block size may lie beyond the author's range, above all after a rewrite changed the kernel."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found: list[Site] = []
        if not pallas_calls(kernel):
            return found
        for name, values in kernel.space.items():
            sizes = [v for v in values if type(v) is int and v >= 8]
            if len(values) < 2 or len(sizes) != len(values):
                continue
            wide, narrow = 2 * max(sizes), min(sizes) // 2
            if wide <= 16384:
                found.append(Site(f"{name}/{wide}", f"allow {name} = {wide}", (name, wide, len(values))))
            if narrow >= 64:
                found.append(Site(f"{name}/{narrow}", f"allow {name} = {narrow}", (name, narrow, 0)))
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        name, value, place = site.payload
        edit = Edit(kernel)
        space = kernel.literals["SPACE"]
        for element in space.elements if space is not None else ():
            if isinstance(element, cst.DictElement) and kernel.code(element.key).strip("\"'") == name:
                values = list(kernel.space[name])
                values.insert(place, value)
                edit.replace(element.value, repr(tuple(values)))
        edit.added[name] = value
        return edit.finish()


class DeepPipeline(CallRule[None]):
    """Run the grid as a pipeline inside the kernel, with a number of buffers of each input that is a parameter."""

    name = "pallas_deep_pipeline"
    why = (
        "With two buffers the copies of a step begin one step before it. Where a step is shorter than a copy's latency "
        "it waits; more buffers let copies begin several steps ahead. The grid's own pipeline has two at most."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, None]]:
        ends = (*view.inputs, *view.outputs)
        set_already = any(r.spec and "pipeline_mode" in view.kernel.code(r.spec.node) for r in view.inputs)
        if view.operands and all(r.spec is not None for r in ends) and not set_already and not _shared(view):
            yield "run the grid as a pipeline inside the kernel, with more buffers", None

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
        self._pipelined(edit, inner)
        pipeline = edit.finish()
        if pipeline is None:
            return None
        return RewrittenKernel(pipeline.source, {**deep.added, **pipeline.added}, deep.dropped)

    def _pipelined(self, edit: Edit, view: PallasCall) -> None:
        """Move the grid into a pipeline of the kernel's own."""
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


def _shared(view: PallasCall) -> bool:
    """Whether an output has the block specification of an input: outputs have two buffers."""
    given = {id(r.spec.node) for r in view.inputs if r.spec is not None}
    return any(r.spec is not None and id(r.spec.node) in given for r in view.outputs)
