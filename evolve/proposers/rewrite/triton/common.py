"""A base for rules whose site is one node of a jitted kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    Language,
    RewrittenKernel,
    Site,
    Unsupported,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, jit_kernels


class NodeRule:
    """Finds nodes in every jitted kernel (``find``) and edits one (``change``)."""

    name: str
    why: str
    language = Language.TRITON
    launched = False
    """Only kernels that the host launches, exactly once."""

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        """(description, payload) of every place in ``kernel``."""
        raise NotImplementedError

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        raise NotImplementedError

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        problem: Unsupported | None = None
        for item in jit_kernels(kernel, entry_only=self.launched):
            if self.launched and len(item.launches) != 1:
                continue
            try:
                for number, (description, payload) in enumerate(self.find(item)):
                    key = f"{item.name}/{number}/{description}"[:120]
                    found.append(Site(key, f"{item.name}: {description}", (item, payload)))
            except Unsupported as error:
                problem = error
        if problem is not None and not found:
            raise problem
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        item, payload = site.payload
        edit = Edit(kernel)
        self.change(edit, item, payload)
        return edit.finish()


def short(kernel: KernelSource, node: cst.CSTNode) -> str:
    """One line of a node, for descriptions."""
    return " ".join(kernel.code(node).split())[:60]


def add_device_helper(edit: Edit, kernel: TritonKernel, text: str) -> None:
    """A jitted helper before the kernel; ``{jit}`` and ``{tl}`` in ``text`` are filled in."""
    decorator = kernel.source.code(kernel.function.decorators[0].decorator)
    filled = text.replace("{jit}", decorator).replace("{tl}", kernel.tl)
    edit.before(kernel.source.statement(kernel.function), "\n\n" + filled)
