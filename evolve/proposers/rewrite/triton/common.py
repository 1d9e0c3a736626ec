"""A base for rules whose site is one node of a jitted kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.place_rule import PlaceRule
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, jit_kernels


class NodeRule(PlaceRule[TritonKernel]):
    """A rule whose places are in one jitted kernel."""

    language = Language.TRITON
    launched = False
    """Only kernels that the host launches, exactly once."""

    def views(self, kernel: KernelSource) -> Iterator[TritonKernel]:
        for view in jit_kernels(kernel, entry_only=self.launched):
            if not self.launched or len(view.launches) == 1:
                yield view


def add_device_helper(edit: Edit, kernel: TritonKernel, text: str) -> None:
    """A jitted helper before the kernel; ``{jit}`` and ``{tl}`` in ``text`` are filled in."""
    decorator = kernel.source.code(kernel.function.decorators[0].decorator)
    filled = text.replace("{jit}", decorator).replace("{tl}", kernel.tl)
    edit.before(kernel.source.statement(kernel.function), "\n\n" + filled)
