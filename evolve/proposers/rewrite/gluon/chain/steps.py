"""The steps of a consumer's loop: products of tiles that stay begin at once, each is waited for where it is read, and
sums are added to where their operands are made, or beside the first products of the step that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tilewright.evolve.proposers.rewrite.gluon.chain.several import Product
from tilewright.evolve.proposers.rewrite.gluon.device import with_product
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement
from tilewright.evolve.proposers.rewrite.gluon.texts import only

if TYPE_CHECKING:
    from tilewright.evolve.proposers.rewrite.gluon.chain.read import Chain
    from tilewright.evolve.proposers.rewrite.gluon.chain.write import ChainText, Step

Renamed = Mapping[str, str] | None


class StepText:
    """``release``: what gives back the tiles that stay, "" where a later loop reads them."""

    def __init__(self, text: ChainText, step: Step, loop: Chain, release: str) -> None:
        self.text, self.step, self.loop, self.release, self.names = text, step, loop, release, text.names
        self.firsts = [p for p in loop.products if not p.sums]
        self.seconds = [p for p in loop.products if p.sums]
        self.mine, self.added = ({p.loaded for p in some} for some in (self.firsts, self.seconds))
        self.partials = self._numbered("partial", self.firsts)
        self.operands = self._numbered("operand", self.seconds)

    def _numbered(self, name: str, products: list[Product]) -> dict[Product, str]:
        return {p: self.names[name] + f"_{n}" * (len(products) > 1) for n, p in enumerate(products)}

    def _barrier(self, call: str, loaded: int, stage: str, more: str) -> str:
        kind = "ready" if call == "wait" else "empty"
        return f"mbarrier.{call}({'kv'[loaded]}_{kind}.index({self.names[stage]}), {more})"

    def _ready(self, loaded: int, stage: str = "stage") -> str:
        return self._barrier("wait", loaded, stage, self.names["phase" if stage == "stage" else "held_phase"])

    def _back(self, loaded: int, stage: str) -> str:
        return self._barrier("arrive", loaded, stage, "count=1")

    def _view(self, product: Product, stage: str) -> str:
        box = (self.loop.key, self.loop.value)[product.loaded]
        return self.text.stage("kv"[product.loaded], box, stage, not product.sums and product.turned)

    def _begin(self) -> Iterator[str]:
        for number, product in enumerate(self.firsts):
            if all(p.loaded != product.loaded for p in self.firsts[:number]):
                yield self._ready(product.loaded)
            left = self.names[f"{'qr'[product.stays]}_now"]
            given = f"{left}, {self._view(product, 'stage')}, {self.names['nothing']}"
            yield f"{self.partials[product]} = warpgroup_mma({given}, use_acc=False, is_async=True)"

    def _add(self, product: Product, stage: str) -> str:
        given = f"{self.operands[product]}, {self._view(product, stage)}, {product.sums}"
        return f"{product.sums} = warpgroup_mma({given}, is_async=True)"

    def _late(self) -> list[str]:
        """Waits for tiles of the step before that only sums read."""
        return [self._ready(n, "held") for n in sorted(self.added - self.mine)]

    def _end(self, stage: str) -> list[str]:
        ends = ", ".join([*dict.fromkeys(p.sums for p in self.seconds), *self.operands.values()])
        wait = f"{ends} = warpgroup_mma_wait(num_outstanding=0, deps=({ends}))"
        return [wait, *(self._back(n, stage) for n in sorted(self.added))]

    def last(self) -> str:
        """What is added behind the steps."""
        return "\n".join([*self._late(), *(self._add(p, "held") for p in self.seconds), *self._end("held")])

    def written(self, mode: str, renamed: Renamed) -> str:
        """A step ``alone``, or the ``first``, or the ``next``, which adds what the one before it made."""
        running = [*self.firsts, *(self.seconds if mode == "next" else ())]
        lines, names = [self.text.lines(self.step.early, renamed), *self._begin()], self.names
        late = self.text.lines(self.step.late, renamed)
        ready, waited = set(self.mine), 0
        if mode == "next":
            lines += [*self._late(), *(self._add(p, "held") for p in self.seconds)]
        for item in self.loop.sequence(self.step.middle):
            if isinstance(item, Statement):
                lines += self.text.landed(item, self.loop)
                lines.append(self.text.shown(item, self.step, self.loop, renamed))
            elif item.sums:
                target = self.operands[item] + "_next" * (mode == "next")
                made = self.text.expression(item.left, renamed)
                lines.append(f"{target} = gl.convert_layout({made}, {names['operand_layout']})")
                if mode == "next":
                    # passes at once: without it the compilers put the weights behind the wait for the sums
                    behind = len(running) - waited
                    lines.append(f"{target} = warpgroup_mma_wait(num_outstanding={behind}, deps=({target},))")
                elif mode == "alone":
                    lines += [late] if item == self.seconds[-1] else []
                    lines += [] if item.loaded in ready else [self._ready(item.loaded)]
                    lines.append(self._add(item, "stage"))
                    running.append(item)
            else:
                lines += self._waited(item, len(running), mode, renamed)
                waited = running.index(item) + 1
        if mode == "next":
            lines += [*self._late(), *self._end("held")]
            lines += [f"{name} = {name}_next" for name in self.operands.values()]
        lines += self._end("stage") if mode == "alone" else [late]
        if mode != "alone":
            lines += [f"{names['held']} = {names['stage']}", f"{names['held_phase']} = {names['phase']}"]
        return "\n".join([*lines, self.text.table["advance"]])

    def _waited(self, product: Product, running: int, mode: str, renamed: Renamed) -> Iterator[str]:
        partial, number = self.partials[product], self.firsts.index(product)
        behind = running - 1 - number
        yield f"{partial} = warpgroup_mma_wait(num_outstanding={behind}, deps=({partial},))"
        if product.loaded not in self.added | {p.loaded for p in self.firsts[number + 1 :]}:
            yield self._back(product.loaded, "stage")
        own, turn = self.names["own"], self.names["turn"]
        if number == len(self.firsts) - 1 and mode != "alone":
            yield only(f"{own} == 1" if mode == "first" else f"{turn} == {own} - 1", self.release)
        yield self.text.carried(with_product(product.statement, partial, self.text.kernel.tl), renamed)
