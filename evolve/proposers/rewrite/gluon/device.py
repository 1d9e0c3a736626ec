"""The new kernel's text: producer, consumer and entry, with the statements that are carried over."""

import ast
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.context import Parameters
from tilewright.evolve.proposers.rewrite.gluon.epilogue import EpilogueText
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, device_call
from tilewright.evolve.proposers.rewrite.gluon.texts import (
    CONSUMER,
    ENTRY,
    IN_PLACE,
    PARTIAL,
    PRODUCER,
    WALK,
    declared,
    filled,
    guarded,
    listed,
    only,
)
from tilewright.evolve.proposers.rewrite.gluon.tile import Axis, Tile
from tilewright.evolve.proposers.rewrite.triton.view import jit_kernels


class DeviceText(EpilogueText):
    """Writes the device's functions."""

    def _functions(self) -> str:
        table = self._table()
        parts = [*(self._helper(f) for f in self.helpers), filled(WALK, table)]
        if self.stored is not None:
            parts.append(self._store(table))
        parts += [filled(text, table) for text in (PRODUCER, CONSUMER, ENTRY)]
        return "\n\n\n".join(["", *parts])

    def _table(self) -> dict[str, str]:
        product, plan, names = self.product, self.plan, self.names
        producing, consuming = self._needed_by_producer(), self._needed_by_consumer()
        everywhere = Parameters(
            tuple(n for n in self._order if n in {*producing.runtime, *consuming.runtime}),
            tuple(n for n in self._order if n in {*producing.fixed, *consuming.fixed}),
        )
        left, right = product.left, product.right
        slots = "SLOTS: gl.constexpr, PARTS: gl.constexpr, "
        table = {
            **names,
            "kernel": self.entry,
            "producer_arguments": listed(producing.all),
            "producer_parameters": declared(producing.runtime, producing.fixed),
            "consumer_arguments": listed(consuming.all),
            "consumer_parameters": declared(consuming.runtime, consuming.fixed),
            "entry_parameters": declared(everywhere.runtime, everywhere.fixed),
            "ROWS": self._rows,
            "COLUMNS": product.columns,
            "DEPTH": product.depth,
            "row_tile": product.row_tile,
            "column_tile": product.column_tile,
            "loop": f"for {ast.unparse(product.loop.target)} in {self._range()}:",
            "a_box": ", ".join(self._box(left, left.axes[0], host=False)),
            "b_box": f"{right.outer.extent}, {right.inner.extent}",
            "row_tile_of_group": names["group"] if product.shared else f"{names['group']} * CONSUMERS",
            "row_tile_of_each": names["group"]
            if product.shared
            else f"min({names['group']} * CONSUMERS + each, {names['last_row_tile']})",
            "row_tile_of_own": product.row_tile
            if product.shared
            else f"min({product.row_tile} * CONSUMERS + {names['group']}, {names['last_row_tile']})",
            "a_view": ".permute((1, 0))" if left.turned else "",
            "b_view": ".permute((1, 0))" if right.turned else "",
            "a_at": self._coordinates(left, left.axes[0] if product.shared else None),
            "b_at": self._coordinates(right, None),
            "producer_outside": self._lines(plan.outside, {}, self._producer_slice()),
            "producer_before": self._lines(plan.before + self._more(), {}, self._producer_slice()),
            "producer_body": self._lines(self._body_for_copies(), {}, None),
            "outside": self._lines(plan.outside, {}, None),
            "before": self._pieces(plan.before),
            "early": self._early(),
            **self._ring(),
            "body": self._body(),
            "end": self._end(),
            "after": self._after(),
            "store_parameters": "c_desc, " if self.stored else "",
            "store_wait": "tma.store_wait(0)" if self.stored else "",
            "c_slots_made": self._slots_made(),
            "store_layouts": self._store_layouts(),
            "consumer_c": f"c_desc, {names['c_slots']}, " if self.stored else "",
            "entry_c": "c_desc, " if self.stored else "",
            "slots_parameter": f"{slots}C_LAYOUT: gl.constexpr, " if self.stored else "",
            "slots_fixed": slots if self.stored else "",
            "slots_argument": "SLOTS, PARTS, " if self.stored else "",
            "mode": "IN_FLIGHT" if product.accumulates is not None else "PIN",
        }
        return table

    def _range(self) -> str:
        """Steps of K; none for a tile whose rows are all past their limit."""
        call = self.product.loop.iter
        assert isinstance(call, ast.Call)
        texts = [self._carrier({}).expression(ast.unparse(a)) for a in call.args]
        limit = self.product.left.limit
        if limit:
            start, below = (self._carrier({}).expression(t) for t in (self.product.left.axes[0].start, limit))
            place = 0 if len(texts) == 1 else 1
            texts[place] = f"gl.where({start} < {below}, {texts[place]}, 0)"
        return f"range({', '.join(texts)})"

    def _coordinates(self, tile: Tile, rows: Axis | None) -> str:
        """Where a copy of a tile begins; of ``rows``, those of group ``each`` of warps."""
        texts = []
        for axis in (tile.outer, tile.inner):
            text = self._carrier({}).expression(axis.start)
            text = f"{text} + each * ({self._rows})" if axis is rows else text
            texts.append(f"({text}).to(gl.int32)" if "int64" in text else text)
        return f"[{texts[0]}, {texts[1]}]"

    def _lines(self, statements: Sequence[Statement], renamed: Mapping[str, str], only: set[str] | None) -> str:
        carrier = self._carrier(renamed)
        return "\n".join(carrier.carry(s) for s in statements if only is None or s.text in only)

    def _pieces(self, statements: Sequence[Statement]) -> str:
        """Statements for every tile of columns: once where they are the same for all of them."""
        lines = []
        for statement in statements:
            if not statement.writes & self.plan.per_piece:
                lines.append(self._carrier({}).carry(statement))
                continue
            lines.append(self._carrier(self._renamed(0)).carry(statement))
            lines.append(guarded(self._carrier(self._renamed(1)).carry(statement)))
        return "\n".join(_joined(lines))

    def _early(self) -> str:
        """The statements before a step's product, one that the ring may make up for under that condition."""
        texts = []
        for statement in self.plan.early:
            text = self._pieces([statement])
            held = self.numbers is not None and statement is self.numbers.statement
            texts.append(only("not RING", text) if held else text)
        return "\n".join(texts)

    def _ring_read(self) -> str:
        """Takes the rows' numbers of this step out of the ring."""
        if self.numbers is None:
            return ""
        names, wanted = self.names, self.numbers.name
        first = self._renamed(0).get(wanted, wanted)
        place = f"{names['s_stages']}.index({names['stage']} * CONSUMERS + {names['group']})"
        layout = f"gl.SliceLayout(1, {names['mma']})"
        lines, loaded = [f"{first} = {place}.load({layout})"], [first]
        if first != wanted:
            loaded.append(self._renamed(1)[wanted])
            lines.append(guarded(f"{loaded[1]} = {first}"))
        given = [f"{name} = gl.set_auto_layout({name}, {layout})" for name in loaded]
        given[1:] = [guarded(text) for text in given[1:]]
        return only("RING", "\n".join(lines)) + "\n" + only("not RING", "\n".join(given))

    def _ring(self) -> dict[str, str]:
        """Where the ring carries the rows' numbers: what its functions take, what is copied and made."""
        names = "desc fixed bytes copy stages used entry layout made argument last"
        keys = names.split()
        if self.numbers is None:
            return {f"ring_{key}": "" for key in keys}
        stages, rows = self.names["s_stages"], self.product.rows
        row = f"{self.product.row_tile} * {rows}"
        place = self._carrier({}).expression(f"{self.numbers.offset} + {row}")
        copy = (
            f"tma.async_copy_global_to_shared(s_desc, [{place}], {self.names['ready_at']}, "
            f"{stages}.index({self.names['stage']} * CONSUMERS + each))"
        )
        texts = {
            "desc": f"s_desc, {stages}, ",
            "fixed": ", S_BYTES: gl.constexpr, RING: gl.constexpr",
            "bytes": " + (CONSUMERS * S_BYTES if RING else 0)",
            "copy": only("RING", copy),
            "stages": f"{stages}, ",
            "used": "RING: gl.constexpr, ",
            "entry": "s_desc, ",
            "layout": "S_LAYOUT: gl.constexpr, S_BYTES: gl.constexpr, RING: gl.constexpr, ",
            "made": f"{stages} = gl.allocate_shared_memory(s_desc.dtype, [STAGES * CONSUMERS, {rows}], S_LAYOUT)",
            "argument": "RING, ",
            "last": ", S_BYTES, RING",
        }
        return {f"ring_{key}": texts[key] for key in keys}

    def _body(self) -> str:
        """From the first product of a step to its end."""
        late, product = list(self.plan.late), self.product
        if product.accumulates is not None and late == [product.dot]:
            table = {**self.names, "sum_0": f"{product.accumulates}_0", "sum_1": f"{product.accumulates}_1"}
            table |= {"a_view": ".permute((1, 0))" if product.left.turned else ""}
            table |= {"b_view": ".permute((1, 0))" if product.right.turned else ""}
            apart = f"{self._late(late, 0)}\n{guarded(self._late(late, 1))}"
            apart, beside = (textwrap.indent(text, "    ") for text in (apart, filled(IN_PLACE, table)))
            return f"if IN_FLIGHT == 2:\n{apart}\nelse:\n{beside}"
        if not self.plan.split:
            raise Unsupported("statements behind the product that all tiles share")
        first, second = (self._late(late, piece) for piece in (0, 1))
        return f"{first}\n{guarded(second)}"

    def _late(self, late: Sequence[Statement], piece: int) -> str:
        lines = []
        for statement in late:
            if statement is not self.product.dot:
                lines.append(self._carrier(self._renamed(piece)).carry(statement))
                continue
            partial = f"{self.names['piece']}_product_{piece}"
            table = {
                **self.names,
                "partial": partial,
                "ready_of": self.names["ready" if piece == 0 else "ready_more"],
                "number": str(piece),
                "last": f"PIECES == {piece + 1}",
                "ring_read": self._ring_read() if piece == 0 else "",
                "a_view": ".permute((1, 0))" if self.product.left.turned else "",
                "b_view": ".permute((1, 0))" if self.product.right.turned else "",
            }
            lines.append(filled(PARTIAL, table))
            lines.append(self._carrier(self._renamed(piece)).carry(with_product(statement, partial, self.kernel.tl)))
        for name in self.plan.accumulators:
            if self._is_tile(name):
                own = f"{name}_{piece}"
                pinned = "PIN" if self.product.accumulates is None else "True"
                lines.append(f"if {pinned}:\n    {own} = warpgroup_mma_wait(num_outstanding=0, deps=({own},))")
        return "\n".join(lines)

    def _end(self) -> str:
        """What stands behind the loop over K."""
        if self.product.accumulates is None:
            return ""
        name = self.product.accumulates
        return filled(
            """
            if PIECES == 2:
                {sum}_0, {sum}_1 = warpgroup_mma_wait(num_outstanding=0, deps=({sum}_0, {sum}_1))
            else:
                {sum}_0 = warpgroup_mma_wait(num_outstanding=0, deps=({sum}_0,))
            if IN_FLIGHT == 1:
                mbarrier.arrive(
                    {empty}.index(gl.where({stage} == 0, STAGES - 1, {stage} - 1)), count=1, pred={launched} == 1
                )
            """,
            {**self.names, "sum": name},
        )

    def _helpers(self) -> list[cst.FunctionDef]:
        """Jitted functions that the carried statements call."""
        used = set()
        for statement in (*self.plan.before, *self.plan.early, *self.plan.late, *self.plan.after):
            used |= {
                n.func.id for n in ast.walk(statement.node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            }
        found = [k.function for k in jit_kernels(self.source) if k.name in used]
        return found

    def _helper(self, function: cst.FunctionDef) -> str:
        (node,) = ast.parse(self.source.code(function)).body
        assert isinstance(node, ast.FunctionDef)
        node.name = self.helper_names[node.name]
        node.decorator_list = [ast.parse("gluon.jit", mode="eval").body]
        return ast.unparse(ast.fix_missing_locations(self._carrier({}).visit(node)))


def _joined(lines: Iterable[str]) -> list[str]:
    """Neighbouring guards as one."""
    found: list[str] = []
    for text in lines:
        head = "if PIECES == 2:\n"
        if text.startswith(head) and found and found[-1].startswith(head):
            found[-1] += "\n" + text.removeprefix(head)
        else:
            found.append(text)
    return found


def with_product(statement: Statement, partial: str, tl: str) -> Statement:
    """A dot's statement with its call replaced by what holds its result."""

    class Put(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            if device_call(node, tl) == "dot":
                held = ast.Name(partial, ast.Load())
                more = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "acc")]
                if more and not isinstance(more[0], ast.Constant):
                    return ast.BinOp(more[0], ast.Add(), held)
                return held
            return self.generic_visit(node)

    made = ast.fix_missing_locations(Put().visit(ast.parse(statement.text).body[0]))
    return Statement(ast.parse(ast.unparse(made)).body[0])
