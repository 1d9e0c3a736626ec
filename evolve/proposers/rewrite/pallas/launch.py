"""Rules on what the launch tells the compiler: semantics, buffers, memory limit, parameter ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule, pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS_TPU, PallasCall, Spec


class DimensionSemantics(CallRule[int | None]):
    """Declare a grid axis parallel or sequential."""

    name = "pallas_dimension_semantics"
    why = (
        "A parallel axis may be split over cores and reordered; a sequential one lets buffers carry over. Only axes "
        "without state between their steps may be parallel."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, int | None]]:
        kernel = view.kernel
        elements = view.semantics()
        if elements is None:
            yield "declare the grid's semantics", None
            return
        kinds = ["parallel" in kernel.code(e.value).lower() for e in elements]
        first = kinds.index(False) if False in kinds else len(kinds)
        for axis, parallel in enumerate(kinds):
            # parallel axes come first: one ends where the other begins
            if axis == first - 1 if parallel else axis == first and self._stateless(view, axis):
                word = "sequential" if parallel else "parallel"
                yield f"make grid axis {axis} {word}", axis

    def _stateless(self, view: PallasCall, axis: int) -> bool:
        """Whether every output moves with the axis and no scratch outlives a step."""
        moved = all(r.spec and axis in r.spec.grid_axes(view.kernel) for r in view.outputs)
        used = {a for w in view.whens for a in view.axis_reads(view.kernel.code(w.condition))}
        return moved and axis not in used

    def change(self, edit: Edit, view: PallasCall, axis: int | None) -> bool:
        kernel = view.kernel
        if axis is None:
            words = ["parallel" if self._stateless(view, a) else "arbitrary" for a in range(len(view.grid))]
            add_compiler_parameter(edit, view, "dimension_semantics", repr(tuple(words)))
            return True
        elements = view.semantics()
        assert elements is not None
        value = elements[axis].value
        text = kernel.code(value)
        for old, new in (("parallel", "arbitrary"), ("PARALLEL", "ARBITRARY")):
            if old in text:
                edit.replace(value, text.replace(old, new))
                return True
            if new in text:
                edit.replace(value, text.replace(new, old))
                return True
        return False


def add_compiler_parameter(edit: Edit, view: PallasCall, keyword: str, text: str) -> None:
    """Add a keyword to the launch's compiler parameters, creating them if there are none."""
    argument = view.args.get("compiler_params")
    if argument is None:
        tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
        view.add_launch_argument(edit, "compiler_params", f"{tpu}.CompilerParams({keyword}={text})")
        return
    value = resolve(view.kernel, argument.value)
    if isinstance(value, cst.Call):
        edit.transform(value, partial(with_keyword, keyword=keyword, text=text))


class BufferCount(CallRule[tuple[str, Spec]]):
    """Make the number of pipeline buffers of an input a parameter."""

    name = "pallas_buffer_count"
    why = (
        "Inputs are double buffered by default. An input that seldom changes wastes the second buffer; with one buffer "
        "the VMEM can go to larger blocks."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[str, Spec]]]:
        kernel = view.kernel
        for r in view.inputs:
            if r.spec is not None and "pipeline_mode" not in kernel.code(r.spec.node):
                yield f"choose the buffers of {r.name}", (r.name, r.spec)

    def change(self, edit: Edit, view: PallasCall, place: tuple[str, Spec]) -> None:
        kernel = view.kernel
        name, spec = place
        parameter = edit.add_parameter(f"{name.removesuffix('_ref')}_buffers", (1, 2), 1)
        access = parameter_access(kernel, view.call, parameter)
        text = f"{view.pallas}.Buffered({access})"
        edit.transform(spec.node, partial(with_keyword, keyword="pipeline_mode", text=text))


class VmemLimit(CallRule[None]):
    """Make the kernel's VMEM limit a parameter."""

    name = "pallas_vmem_limit"
    why = "The default limit rejects blocks the chip could hold; a higher one leaves less for the compiler's own use."

    def find(self, view: PallasCall) -> Iterator[tuple[str, None]]:
        if not self._is_parameter(view):
            yield "choose the VMEM limit", None

    def _is_parameter(self, view: PallasCall) -> bool:
        node = self._limit_of(view)
        return node is not None and "[" in view.kernel.code(node)

    def _limit_of(self, view: PallasCall) -> cst.BaseExpression | None:
        argument = view.args.get("compiler_params")
        for node in walk(resolve(view.kernel, argument.value)) if argument else ():
            if isinstance(node, cst.Arg) and node.keyword and node.keyword.value == "vmem_limit_bytes":
                return node.value
        return None

    def change(self, edit: Edit, view: PallasCall, payload: None) -> None:
        kernel = view.kernel
        parameter = edit.add_parameter("vmem_limit_mib", (32, 40, 48, 56, 60), 56)
        text = f"{parameter_access(kernel, view.call, parameter)} * 1048576"
        given = self._limit_of(view)
        if given is not None:
            edit.replace(given, text)
        else:
            add_compiler_parameter(edit, view, "vmem_limit_bytes", text)


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
