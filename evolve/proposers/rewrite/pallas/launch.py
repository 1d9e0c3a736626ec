"""Rules on the bounds of a launch: its memory limit, and the ranges of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule, pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS_TPU, PallasCall


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
        argument = view.args.get("compiler_params")
        if given is not None:
            edit.replace(given, text)
        elif argument is None:
            tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
            view.add_launch_argument(
                edit, "compiler_params", f"{tpu}.CompilerParams(vmem_limit_bytes={text})"
            )
        else:
            value = resolve(kernel, argument.value)
            edit.transform(value, partial(with_keyword, keyword="vmem_limit_bytes", text=text))


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
