"""A rule on a launch: the ranges of its parameters."""

from collections.abc import Sequence

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import pallas_calls


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
            if wide <= 16384 and f"{name} <= {max(sizes)}" not in kernel.constraints:
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
