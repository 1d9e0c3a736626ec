"""The rule that writes two products of one loop, such as those of attention, in Gluon for Hopper."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.chain.read import Chains, read
from tilewright.evolve.proposers.rewrite.gluon.chain.texts import CONSTRAINTS, SPACE
from tilewright.evolve.proposers.rewrite.gluon.chain.write import ChainText
from tilewright.evolve.proposers.rewrite.gluon.lower import IMPORTS, TAKEN
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel


class LowerChain(NodeRule[Chains]):
    """Write a loop of two products, the second of what is made of the first, in Gluon."""

    name = "triton_lower_chain_to_gluon"
    launched = True
    why = (
        "The tensor cores wait while a step's scores become weights. Written out, the first product of a step runs "
        "beside the second of the step before it, and a warp that copies feeds several groups of warps."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Chains]]:
        chains = read(kernel)
        loop = chains.loops[0]
        yield f"two products for {chains.query.tensor} x {loop.key.tensor} x {loop.value.tensor}", chains

    def change(self, edit: Edit, kernel: TritonKernel, payload: Chains) -> None:
        if set(TAKEN) & kernel.source.identifiers:
            raise Unsupported("a module that uses the names Gluon's imports would get")
        space = dict(SPACE)
        for key in ("rows", "columns"):
            extent = getattr(payload, key)
            if extent.isdigit() or (key == "columns" and extent == payload.rows):
                del space[key]
        if payload.rows.isdigit() and payload.rows not in ("64", "128"):
            raise Unsupported("rows that no group of warps multiplies")
        tunables = {key: edit.add_parameter(key, values, default) for key, (values, default) in space.items()}
        names = {"rows": payload.rows, "columns": tunables.get("rows", payload.columns), **tunables}
        for expression, reason in CONSTRAINTS.items():
            edit.add_constraint(re.sub(r"[a-z_]+", lambda found: names[found[0]], expression), reason)
        text = ChainText(edit, payload, tunables)
        edit.before(kernel.source.statement(kernel.function), text.functions() + "\n\n\n")
        edit.replace_statement(kernel.source.statement(kernel.launch()), text.launches())
        edit.imports += IMPORTS
