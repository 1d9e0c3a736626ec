"""What is known of one lowering: its plan, the names it uses, and the parameters that each partition needs."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, parameters
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.beside import mixes_rows, row_numbers
from tilewright.evolve.proposers.rewrite.gluon.schedule import Plan, without_operands
from tilewright.evolve.proposers.rewrite.gluon.statements import Carrier, Statement, calls, names_in, sliced
from tilewright.evolve.proposers.rewrite.gluon.tile import Axis, Tile
from tilewright.evolve.proposers.rewrite.gluon.tiles import in_host
from tilewright.fitness.dialect_names import names

LOCALS = names(
    "tile rows_of_tiles columns_of_tiles last_row_tile last_column_tile walk stage phase ready_at a_stages "
    "b_stages c_slots s_stages empty ready ready_more piece group mma nothing step_done a_now wrapped launched"
)
"""Names the new functions use; each is made fresh."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of the old kernel that code needs, by kind, in its order."""

    runtime: tuple[str, ...]
    fixed: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.runtime, *self.fixed)


class Lowering:
    """What the parts of a lowering share: the plan, its names, the parameters that code needs."""

    def __init__(self, edit: Edit, plan: Plan) -> None:
        self.edit, self.product, self.plan = edit, plan.product, plan
        self.kernel = plan.product.kernel
        self.source = self.kernel.source
        self.names = {name: self.source.fresh(name) for name in sorted(LOCALS)}
        self.stored = self.product.stored[-1] if self.product.stored else None
        """One store goes through shared memory; others stay as they are."""

        if self.product.left.limit and mixes_rows(plan):
            raise Unsupported("rows past their limit that others are mixed with")
        self.numbers = None if self.product.shared else row_numbers(plan)
        """Of each row in each step, that the ring may carry."""

        self.helpers: list[cst.FunctionDef] = []
        """Functions that carried statements call."""

        self.helper_names: dict[str, str] = {}
        """What they are called in Gluon, beside the old ones."""

        self.row_layouts = self.numbers is not None
        """Whether rows' numbers that begin as zeros take the layout of the product's rows, as those of the ring do."""

        self.entry = self.source.fresh(f"{self.kernel.name}_lowered")

        self.tunables: dict[str, str] = {}
        """What a parameter of the new space is called there."""

    @property
    def _added_apart(self) -> bool:
        """What ``acc += dot(a, b)`` adds of 8-bit operands, and ``dot(a, b, acc)`` leaves to the tensor cores."""
        return self.product.accumulates is not None and isinstance(self.product.dot.node, ast.AugAssign)

    def _host_text(self, extent: str) -> str:
        """A tile's extent as the host says it; of the depth, with 0 the 128 bytes that a row of shared memory holds."""
        if extent == self.product.depth and "depth" in self.tunables:
            return f"({self._param('depth')} or 128 // {self.product.left.tensor}.element_size())"
        return in_host(self.kernel, extent)

    @property
    def _rows(self) -> str:
        """Rows of a group of warps, in the kernel."""
        rows = self.product.rows
        return f"{rows} // CONSUMERS" if self.product.shared else rows

    @property
    def _host_rows(self) -> str:
        rows = self._host_text(self.product.rows)
        return f"({rows} // {self._param('consumers')})" if self.product.shared else rows

    def _box(self, tile: Tile, rows: Axis | None, host: bool) -> tuple[str, str]:
        """Extents of what a copy of a tile brings, of which ``rows`` are those of a group of warps."""
        own = self._host_rows if host else self._rows
        sides = [
            own if axis is rows else self._host_text(axis.extent) if host else axis.extent
            for axis in (tile.outer, tile.inner)
        ]
        return sides[0], sides[1]

    def _producer_wanted(self) -> set[str]:
        left, right = self.product.left, self.product.right
        texts = [axis.start for tile in (left, right) for axis in (tile.outer, tile.inner)]
        texts += [left.limit] if left.limit else []
        return {n for t in texts for n in names_in(t)} | names_in(ast.unparse(self.product.loop.iter))

    def _everything(self) -> list[Statement]:
        product = self.product
        return [*product.outside, *product.before, *product.body]

    def _producer_slice(self) -> set[str]:

        statements = self._everything()
        kept = sliced(statements, self._producer_wanted(), {self.product.row_tile, self.product.column_tile})
        return {statements[i].text for i in kept}

    def _more(self) -> tuple[Statement, ...]:
        """Statements before the loop that only the copies need."""
        kept = self._producer_slice()
        return tuple(s for s in self.product.before if s.text in kept and s not in self.plan.before)

    def _body_for_copies(self) -> tuple[Statement, ...]:
        kept = self._producer_slice()
        body = tuple(s for s in self.product.body if s.text in kept)
        if any(calls(s.node, self.kernel.tl, "load", "dot") for s in body):
            raise Unsupported("a copy whose place is loaded")
        return body

    def _needed_by_producer(self) -> Parameters:
        wanted = self._producer_wanted() | {self.product.rows, self.product.columns, self.product.depth}
        if self.numbers is not None:
            wanted |= names_in(self.numbers.offset)
        kept = self._producer_slice()
        for statement in self._everything():
            if statement.text in kept:
                wanted |= statement.reads
        return self._chosen(wanted)

    def _needed_by_consumer(self) -> Parameters:
        plan, product = self.plan, self.product
        wanted = {product.rows, product.columns, product.depth} | names_in(ast.unparse(product.loop.iter))
        limit = self.product.left.limit
        stored = self.stored.statement.text if self.stored and not limit else None
        wanted |= names_in(limit) if limit else set()
        for statement in (*plan.outside, *plan.before, *plan.early, *plan.late, *plan.after):
            if statement is product.dot:
                wanted |= without_operands(statement, self.kernel.tl).reads
            elif statement.text != stored:
                wanted |= statement.reads
        if self.stored is not None:
            axes = self.stored.tile.axes
            for text in (self.stored.value, axes[0].start, axes[1].start):
                wanted |= names_in(text)
        return self._chosen(wanted)

    def _carrier(self, renamed: Mapping[str, str]) -> Carrier:
        shape = (self.product.rows, self.product.columns)
        names = {**self.helper_names, **renamed}
        part = (f"{self.names['group']} * ({self._rows})", self._rows) if self.product.shared else None
        return Carrier(self.kernel.tl, "gl", shape, self.names["mma"], names, self.row_layouts, part)

    def _renamed(self, piece: int) -> dict[str, str]:
        return {name: f"{name}_{piece}" for name in sorted(self.plan.per_piece)}

    def _is_tile(self, name: str) -> bool:
        """Whether a name begins as a tile of zeros, so that its type is that of the product."""
        for statement in self.plan.before:
            if name in statement.writes:
                made = calls(statement.node, self.kernel.tl, "zeros", "full")
                shape = ast.unparse(made[0].args[0]) if made and made[0].args else ""
                return shape.strip("()[]").replace(" ", "") == f"{self.product.rows},{self.product.columns}"
        return False

    @property
    def _order(self) -> list[str]:
        return [p.name.value for p in parameters(self.kernel.function)]

    def _chosen(self, wanted: set[str]) -> Parameters:
        fixed = self.kernel.constexprs
        return Parameters(
            tuple(n for n in self._order if n in wanted and n not in fixed),
            tuple(n for n in self._order if n in wanted and n in fixed),
        )

    def _c(self) -> str:
        assert self.stored is not None
        return self.stored.tile.tensor

    def _param(self, key: str) -> str:
        return parameter_access(self.source, self.kernel.launch(), self.tunables[key])
