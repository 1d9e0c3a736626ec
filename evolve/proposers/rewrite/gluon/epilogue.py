"""What stands behind the loop over K in the new kernel: the old kernel's statements, and the store of the tile.

Where the statements act on each column alone, they move into a function that finishes a part of the columns: each
part is stored while the next is computed, and what belongs to all columns of a wide tile, such as a bias, never lives
in registers at once.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.evolve.proposers.rewrite.gluon.beside import mixes
from tilewright.evolve.proposers.rewrite.gluon.context import Lowering, Parameters
from tilewright.evolve.proposers.rewrite.gluon.statements import Carrier, Statement, calls, sliced
from tilewright.evolve.proposers.rewrite.gluon.texts import FINISH, STORE, declared, filled, guarded, listed


@dataclass(frozen=True)
class Finish:
    """Statements that finish columns of the product ``sum``, and the parameters they need."""

    sum: str
    before: tuple[Statement, ...]
    after: tuple[Statement, ...]
    given: Parameters


class EpilogueText(Lowering):
    """Writes what becomes of a product."""

    @cached_property
    def _finish(self) -> Finish | None:
        """None where the statements behind the loop do not act on each column alone."""
        product, plan = self.product, self.plan
        if self.stored is None or self.stored.tile.limit or product.shared:
            return None
        if len({product.rows, product.columns, product.depth}) < 3:
            return None  # a range of columns is known by its extent
        after = tuple(s for s in plan.after if s.text != self.stored.statement.text)
        value = Statement(ast.parse(self.stored.value).body[0])
        if mixes([*after, value], plan) or any(calls(s.node, self.kernel.tl, "store") for s in after):
            return None
        free, bound = set[str](), set[str]()
        for statement in (*after, value):
            free |= statement.reads - bound
            bound |= statement.writes
        looped = {name for s in (*plan.early, *plan.late) for name in s.writes}
        own = {product.row_tile, product.column_tile}
        before = [*plan.outside, *plan.before]
        kept = sliced(before, free - looped, own | looped)
        first = tuple(s for i, s in enumerate(before) if i in kept)
        needed = (*first, *after)
        read = free & looped
        made = [s for s in (*needed, value) if calls(s.node, self.kernel.tl, "zeros", "full")]
        if len(read) != 1 or made or not after or not self._is_tile(min(read)):
            return None
        wanted = {name for s in (*needed, value) for name in s.reads}
        return Finish(min(read), first, after, self._chosen(wanted))

    def _store(self, table: Mapping[str, str]) -> str:
        """The functions that store a tile."""
        found = self._finish
        if found is None:
            plain = {"finished": "columns", "finish_parameters": "", "narrowed": "value = value.to(c_desc.dtype)"}
            return filled(STORE, {**table, **plain})
        name, product = f"{self.entry}_finish", self.product
        columns = (self.product.columns, "FIRST", "WIDTH")
        shape = (product.rows, product.columns)
        carrier = Carrier(self.kernel.tl, "gl", shape, "", self.helper_names, False, None, columns)
        own = [product.row_tile, product.column_tile]
        made = {
            **table,
            "finish": name,
            "sum": found.sum,
            "finish_declared": declared(found.given.runtime, found.given.fixed),
            "finish_parameters": listed(own) + declared(found.given.runtime, found.given.fixed),
            "finish_before": "\n".join(carrier.carry(s) for s in found.before),
            "finish_after": "\n".join(carrier.carry(s) for s in found.after),
            "finish_value": carrier.expression(self.stored.value) if self.stored else "",
            "finished": f"{name}(columns, {listed([*own, *found.given.all])}part * WIDTH, WIDTH)",
            "narrowed": "",
        }
        return filled(FINISH, made) + "\n\n\n" + filled(STORE, made)

    def _after(self) -> str:
        stored = self.stored.statement.text if self.stored else None
        first, second = (self._after_of(piece, stored) for piece in (0, 1))
        return f"{first}\n{guarded(second)}"

    def _after_of(self, piece: int, stored: str | None) -> str:
        carrier = self._carrier(self._renamed(piece))
        lines = []
        finish = self._finish
        for statement in self.plan.after:
            if finish is not None and statement.text != stored:
                continue
            if statement.text != stored:
                lines.append(carrier.carry(statement))
                continue
            assert self.stored is not None
            value = carrier.expression(self.stored.value if finish is None else finish.sum)
            row, column = (carrier.expression(a.start) for a in self.stored.tile.axes)
            own = f"{self.names['c_slots']}, {self.names['group']} * SLOTS, {piece}"
            layouts = f"{self.product.columns} // PARTS, HALF, NARROW"
            if self.product.shared:
                row = f"{row} + {self.names['group']} * ({self._rows})"
            tiles = [self.product.row_tile, carrier.expression(self.product.column_tile)]
            passed = listed([*tiles, *finish.given.all]) if finish is not None else ""
            text = f"store_tile(c_desc, {own}, {value}, {row}, {column}, {passed}SLOTS, PARTS, {layouts})"
            if limit := self.stored.tile.limit:
                inside = f"if {row} + {self._rows} <= {carrier.expression(limit)}:"
                text = f"{inside}\n    {text}\nelse:\n    {carrier.carry(statement)}"
            lines.append(text)
        return "\n".join(lines)

    def _slots_made(self) -> str:
        if self.stored is None:
            return ""
        box = f"{self._rows}, {self.product.columns} // PARTS"
        slots = self.names["c_slots"]
        return f"{slots} = gl.allocate_shared_memory(c_desc.dtype, [CONSUMERS * SLOTS, {box}], C_LAYOUT)"

    def _store_layouts(self) -> str:
        if self.stored is None:
            return ""
        made = "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {} // {}, K_INSTRUCTION])"
        half = made.format(self.product.columns, "min(PARTS, 2)")
        narrow = made.format(self.product.columns, "PARTS")
        return f"HALF: gl.constexpr = {half}\nNARROW: gl.constexpr = {narrow}"
