"""The new launch's text: layouts and descriptors, how many tiles and stages, what the kernel is given."""

import re
import textwrap
from collections.abc import Sequence

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import dedented
from tilewright.evolve.proposers.rewrite.gluon.context import Lowering, Parameters
from tilewright.evolve.proposers.rewrite.gluon.texts import HOST, LAUNCH, filled
from tilewright.evolve.proposers.rewrite.gluon.tile import Tile
from tilewright.evolve.proposers.rewrite.triton.view import SPARE, argument, device_calls


class HostText(Lowering):
    """Writes what the host does."""

    def _launches(self) -> str:
        """The new launch, and the old one for tensors whose rows do not begin at 16 bytes, or tiles of too few."""
        statement = self.source.statement(self.kernel.launch())
        if not (
            isinstance(statement, cst.SimpleStatementLine)
            and len(statement.body) == 1
            and isinstance(statement.body[0], cst.Expr)
        ):
            raise Unsupported("a launch that is part of a statement")
        tiles = [self.product.left, self.product.right, *([self.stored.tile] if self.stored else [])]
        wanted = [f"{t.tensor}.stride({1 if t.sheets else 0}) * {t.tensor}{SPARE}" for t in tiles]
        depth = f"{self._host_text(self.product.depth)} * {tiles[0].tensor}.element_size() % 32 == 0"
        fits = " and ".join(dict.fromkeys([*wanted, depth, *(text for t in tiles for text in t.sheets)]))
        new = textwrap.indent(f"{self._host()}\n{self._launch()}", "    ")
        old = textwrap.indent(spare_launch(self.source, statement), "    ")
        why = "# a descriptor's rows begin at 16 bytes, and a matrix instruction takes 32 bytes of each"
        return f"if {fits}:\n{new}\nelse:\n    {why}\n{old}"

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
            **self._tiles_there_are(),
            "group_rows": self._host_rows,
            **{key: self._param(key) for key in ("consumers", "pieces", "stages")},
            "c_width": f" - {self._param('consumers')} * {self._param('slots')} * "
            f"{self._host_rows} * ({self._host_text(self.product.columns)} // "
            f"{self._param('parts')}) * {self._c()}.element_size()"
            if self.stored
            else "",
            "c_layout": f"c_layout = gl.NVMMASharedLayout(min(128, {self._host_text(self.product.columns)} // "
            f"{self._param('parts')} * {self._c()}.element_size()), 8 * {self._c()}.element_size())"
            if self.stored
            else "",
        }
        table |= self._ring_host()
        self._check_free(("a_layout", "b_layout", "c_layout", "s_layout", "ring", "stages", "stage_bytes", "room"))
        return filled(HOST, table)

    def _tiles_there_are(self) -> dict[str, str]:
        """How many tiles of the old kernel there are, and how many rows of programs."""
        left, right, rows = self.product.left, self.product.right, self._host_text(self.product.rows)
        consumers, last = self._param("consumers"), self.names["last_row_tile"]
        if self.product.shared:
            grid = [self.source.code(element) for element in self.kernel.grid()]
            first = self._axis_of_rows()
            return {
                "rows_there_are": f"({grid[first]})",
                "columns_there_are": f"({grid[1 - first]})",
                "rows_of_programs": f"{last} + 1",
            }
        columns = self._host_text(self.product.columns)
        return {
            "rows_there_are": f"-(-{left.tensor}.shape[{int(left.turned)}] // {rows})",
            "columns_there_are": f"-(-{right.tensor}.shape[{int(not right.turned)}] // {columns})",
            "rows_of_programs": f"{last} // {consumers} + 1",
        }

    def _axis_of_rows(self) -> int:
        """The grid's axis that numbers tiles of rows."""
        columns = self.product.column_number
        (call,) = [
            c
            for c in device_calls(self.source, self.kernel.function, "program_id")
            if columns not in (self.source.code(c), *(n for n in self.kernel.bound if self.kernel.value_of(n) is c))
        ]
        axis = argument(call, "axis", 0)
        assert isinstance(axis, cst.Integer)
        return axis.evaluated_value

    def _ring_host(self) -> dict[str, str]:
        """Whether the ring carries the rows' numbers: a bulk copy begins at 16 bytes."""
        if self.numbers is None:
            return {"ring_host": "", "ring_room": ""}
        tensor, rows = self.numbers.tensor, self._host_text(self.product.rows)
        size = f"{tensor}.element_size()"
        fits = [f"({self._given(name)}) * {size} % 16 == 0" for name in self.numbers.strides]
        lines = (
            f"s_layout = gl.NVMMASharedLayout(0, 8 * {size}, rank=1)",
            f"ring = {' and '.join([self._param('ring'), *fits])}",
        )
        return {"ring_host": "\n".join(lines), "ring_room": f" + {rows} * {self._param('consumers')} * {size}"}

    def _ring_launch(self) -> str:
        if self.numbers is None:
            return ""
        flat, rows = f"{self.numbers.tensor}.reshape(-1)", self._host_text(self.product.rows)
        made = f"TensorDescriptor({flat}, [{self.numbers.tensor}.numel()], [1], [{rows}], s_layout)"
        size = f"{rows} * {self.numbers.tensor}.element_size()"
        return f"s_desc={made}, S_LAYOUT=s_layout, S_BYTES={size}, RING=ring, "

    def _check_free(self, names: Sequence[str]) -> None:
        clash = set(names) & self.source.own_names - set(self.tunables.values()) - set(self.source.space)
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
                n for n in self._order if n in {*self._needed_by_producer().fixed, *self._needed_by_consumer().fixed}
            ),
        )
        given = [f"{name}={self._given(name)}" for name in passed.all]
        stored = []
        if self.stored is not None:
            width = f"{self._host_text(self.product.columns)} // {self._param('parts')}"
            box = f"[{self._host_rows}, {width}]"
            stored = [
                f"c_desc={_descriptor(self.stored.tile, box, 'c_layout')}",
                f"SLOTS={self._param('slots')}",
                f"PARTS={self._param('parts')}",
                "C_LAYOUT=c_layout",
            ]
        mode = "IN_FLIGHT" if self.product.accumulates is not None else "PIN"
        apart = f"2 if {left.tensor}.element_size() == 1 else " if self._added_apart else ""
        a_box, b_box = self._box(left, left.axes[0], host=True), self._box(right, None, host=True)
        table = {
            **self.names,
            "kernel": self.entry,
            "a_desc": _descriptor(left, f"[{', '.join(a_box)}]", "a_layout"),
            "b_desc": _descriptor(right, f"[{', '.join(b_box)}]", "b_layout"),
            "given": "".join(f"{text}, " for text in [*given, *stored]),
            "ring": self._ring_launch(),
            "mode": f"IN_FLIGHT={apart}int({self._param('in_flight')} and stages > 1)"
            if mode == "IN_FLIGHT"
            else f"PIN={self._param('pin')}",
            **{key: self._param(key) for key in ("consumers", "pieces", "walk_rows", "programs", "producer_registers")},
            "a": left.tensor,
            "a_elements": " * ".join(a_box),
            "b_elements": " * ".join(b_box),
        }
        return filled(LAUNCH, table).strip()

    def _given(self, name: str) -> str:
        given = self.kernel.given(name)
        if given is None:
            raise Unsupported(f"parameter {name}, which the launch does not pass")
        return self._host_text(name) if name == self.product.depth else self.source.code(given)


def spare_launch(source: KernelSource, statement: cst.CSTNode) -> str:
    """A launch as it was; parameters that nothing before it reads are what they are by default."""
    function = source.enclosing(statement, cst.FunctionDef)
    assert function is not None
    inside = set(map(id, walk(statement)))
    places = [n for n in walk(function) if isinstance(n, cst.Subscript) and read_parameter(source, n)]
    elsewhere = {read_parameter(source, n) for n in places if id(n) not in inside}
    text = dedented(source, statement)
    for node in places:
        name = read_parameter(source, node)
        if id(node) in inside and name not in elsewhere:
            text = text.replace(source.code(node), repr(source.defaults[name]))
    return text


def read_parameter(source: KernelSource, node: cst.CSTNode) -> str:
    """The parameter of the space that a subscript reads; "" for another expression."""
    found = re.fullmatch(r"\w+\[[\"'](\w+)[\"']\]", source.code(node))
    return found[1] if found and found[1] in source.space else ""


def _descriptor(tile: Tile, box: str, layout: str) -> str:
    tensor = tile.tensor
    sides, strides, of = f"list({tensor}.shape)", f"list({tensor}.stride())", tensor
    if tile.sheets:
        of = f"{tensor}.reshape(-1, {tensor}.shape[2])"
        sides, strides = (f"[{tensor}.shape[0] * {tensor}.shape[1], {tensor}.shape[2]]", f"[{tensor}.stride(1), 1]")
    return f"TensorDescriptor({of}, {sides}, {strides}, {box}, {layout})"
