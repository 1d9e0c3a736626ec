"""The new launch's text: layouts and descriptors, how many tiles and stages, what the kernel is given."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.context import Lowering, Parameters
from tilewright.evolve.proposers.rewrite.gluon.texts import (
    HOST,
    LAUNCH,
    filled,
)
from tilewright.evolve.proposers.rewrite.gluon.tile import Tile


class HostText(Lowering):
    """Writes what the host does."""

    def _host(self) -> str:
        left, right = self.product.left, self.product.right
        table = {
            **self.names,
            "a": left.tensor,
            "b": right.tensor,
            "a_inner": self._host_text(left.inner.extent),
            "b_inner": self._host_text(right.inner.extent),
            "rows": self._host_text(self.product.rows),
            "columns": self._host_text(self.product.columns),
            "depth": self._host_text(self.product.depth),
            "a_side": "1" if left.turned else "0",
            "b_side": "0" if right.turned else "1",
            **{key: self._param(key) for key in ("consumers", "pieces", "stages")},
            "c_width": f" - {self._param('consumers')} * {self._param('slots')} * "
            f"{self._host_text(self.product.rows)} * ({self._host_text(self.product.columns)} // "
            f"{self._param('parts')}) * {self._c()}.element_size()"
            if self.stored
            else "",
            "c_layout": f"c_layout = gl.NVMMASharedLayout(min(128, {self._host_text(self.product.columns)} // "
            f"{self._param('parts')} * {self._c()}.element_size()), 8 * {self._c()}.element_size())"
            if self.stored
            else "",
        }
        self._check_free(("a_layout", "b_layout", "c_layout", "stages", "room"))
        return filled(HOST, table)

    def _check_free(self, names: Sequence[str]) -> None:
        clash = set(names) & self.source.identifiers - set(self.tunables.values()) - set(self.source.space)
        if clash:
            raise Unsupported(f"a launch that already uses the name {min(clash)}")

    def _launch(self) -> str:
        left, right = self.product.left, self.product.right
        passed = Parameters(
            tuple(
                n
                for n in self._order
                if n in {*self._needed_by_producer().runtime, *self._needed_by_consumer().runtime}
            ),
            tuple(
                n
                for n in self._order
                if n in {*self._needed_by_producer().fixed, *self._needed_by_consumer().fixed}
            ),
        )
        given = [f"{name}={self._given(name)}" for name in passed.all]
        stored = []
        if self.stored is not None:
            width = f"{self._host_text(self.product.columns)} // {self._param('parts')}"
            box = f"[{self._host_text(self.product.rows)}, {width}]"
            stored = [
                f"c_desc={_descriptor(self._c(), box, 'c_layout')}",
                f"SLOTS={self._param('slots')}",
                f"PARTS={self._param('parts')}",
                "C_LAYOUT=c_layout",
            ]
        mode = "IN_FLIGHT" if self.product.accumulates is not None else "PIN"
        table = {
            **self.names,
            "kernel": self.kernel.name,
            "a_desc": _descriptor(left.tensor, self._box(left), "a_layout"),
            "b_desc": _descriptor(right.tensor, self._box(right), "b_layout"),
            "given": "".join(f"{text}, " for text in [*given, *stored]),
            "ahead": f"AHEAD={self._param('ahead')}, " if self._loads_ahead() else "",
            "mode": f"{mode}={self._param('in_flight' if mode == 'IN_FLIGHT' else 'pin')}",
            **{
                key: self._param(key)
                for key in ("consumers", "pieces", "walk_rows", "programs", "producer_registers")
            },
            "a": left.tensor,
            "a_elements": f"{self._host_text(left.outer.extent)} * {self._host_text(left.inner.extent)}",
            "b_elements": f"{self._host_text(right.outer.extent)} * {self._host_text(right.inner.extent)}",
        }
        return filled(LAUNCH, table).strip()

    def _given(self, name: str) -> str:
        given = self.kernel.given(name)
        if given is None:
            raise Unsupported(f"parameter {name}, which the launch does not pass")
        return self.source.code(given)

    def _box(self, tile: Tile) -> str:
        return f"[{self._host_text(tile.outer.extent)}, {self._host_text(tile.inner.extent)}]"


def _descriptor(tensor: str, box: str, layout: str) -> str:
    return f"TensorDescriptor({tensor}, list({tensor}.shape), list({tensor}.stride()), {box}, {layout})"
