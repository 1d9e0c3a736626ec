"""The rule that writes a tiled product of Triton's in Gluon, for Hopper.

A program of the new kernel computes ``consumers`` x ``pieces`` tiles of the old one side by side: a producer warp
copies their operands into a ring of stages by TMA, each consumer group of warps multiplies its rows with every piece
of columns out of shared memory, and runs what the old kernel did with the product, statement by statement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, parameters
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.product import Product, StoredTile, Tile, read
from tilewright.evolve.proposers.rewrite.gluon.schedule import Plan, names_in, planned
from tilewright.evolve.proposers.rewrite.gluon.statements import Carrier, Statement, calls, device_call
from tilewright.evolve.proposers.rewrite.gluon.texts import (
    CONSUMER,
    ENTRY,
    HOST,
    IN_PLACE,
    LAUNCH,
    PARTIAL,
    PRODUCER,
    SPACE,
    STORE,
    WALK,
    filled,
)
from tilewright.evolve.proposers.rewrite.triton.common import NodeRule
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, jit_kernels

IMPORTS = (
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as gl",
    "from triton.experimental.gluon.language.nvidia.hopper import "
    "fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait",
    "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor",
)
_TAKEN = ("gluon", "gl", "fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")

LOCALS = [
    "tile",
    "rows_of_tiles",
    "columns_of_tiles",
    "last_row_tile",
    "last_column_tile",
    "walk",
    "stage",
    "phase",
    "ready_at",
    "a_stages",
    "b_stages",
    "c_slots",
    "empty",
    "ready",
    "ready_more",
    "piece",
    "group",
    "mma",
    "nothing",
    "step_done",
    "a_now",
    "wrapped",
    "launched",
]
"""Names the new functions use; each is made fresh."""


class LowerProduct(NodeRule):
    """Write a loop of loads, a dot and what follows it in Gluon: TMA ring, producer warp, consumer groups of warps."""

    name = "triton_lower_to_gluon"
    launched = True
    why = (
        "What a compiler schedules by rules of thumb becomes explicit: a warp that only copies, a ring of stages, "
        "groups of warps that multiply while others promote, stores that overlap the next tile. Each is a parameter "
        "then, and other rules can change it."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        product = read(kernel)
        plan = planned(product)
        yield f"ring, producer and consumers for {_shown(product)}", plan

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        if set(_TAKEN) & kernel.source.identifiers:
            raise Unsupported("a module that uses the names Gluon's imports would get")
        _Lowering(edit, payload).write()


def _shown(product: Product) -> str:
    return f"{product.left.tensor} x {product.right.tensor}"


@dataclass(frozen=True)
class _Parameters:
    """Parameters of the old kernel that code needs, by kind, in its order."""

    runtime: tuple[str, ...]
    fixed: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.runtime, *self.fixed)


class _Lowering:
    def __init__(self, edit: Edit, plan: Plan) -> None:
        self.edit, self.product, self.plan = edit, plan.product, plan
        self.kernel = plan.product.kernel
        self.source = self.kernel.source
        self.names = {name: self.source.fresh(name) for name in LOCALS}
        self.stored = self.product.stored[-1] if self.product.stored else None
        """One store goes through shared memory; others stay as they are."""

        self.helpers = self._helpers()

    def write(self) -> None:
        edit = self.edit
        self.tunables = {
            key: edit.add_parameter(key, values, default) for key, (values, default) in self._space().items()
        }
        self._constraints()
        edit.replace_statement(self.source.statement(self.kernel.function), self._functions())
        edit.replace(self.kernel.launch(), self._launch())
        edit.before(self.source.statement(self.kernel.launch()), self._host())
        edit.imports += IMPORTS
        self._drop_imports()
        for function in self.helpers:
            edit.remove(self.source.statement(function))

    # -- space --------------------------------------------------------------------------------------------

    def _space(self) -> dict[str, tuple[tuple[Any, ...], Any]]:
        space = dict(SPACE)
        if self.product.accumulates is None:
            del space["in_flight"]
        else:
            del space["pin"]
        if self.stored is None:
            del space["slots"]
        return space

    def _constraints(self) -> None:
        rows, columns = self._host_text(self.product.rows), self._host_text(self.product.columns)
        names = {key: self.tunables[key] for key in self.tunables}
        row, column = (self._as_constraint(text) for text in (rows, columns))
        add = self.edit.add_constraint
        if row is not None:
            add(f"{row} % 64 == 0", "a group of warps multiplies 64 rows at a time")
        if column is not None:
            add(f"{column} % 16 == 0 and {column} <= 256", "columns of one matrix instruction")
        if row is not None and column is not None:
            extra = "" if self.product.accumulates is not None else " + 1"
            add(
                f"{row} * {column} * ({names['pieces']}{extra}) <= 26624",
                "sums and partials live in the registers of one group of warps",
            )
        if "slots" in names:
            add(f"{names['slots']} <= {names['pieces']}", "a slot for every piece at most")

    def _as_constraint(self, host: str) -> str | None:
        """A host's expression in the words of constraints."""
        if host.isdigit():
            return host
        found = re.fullmatch(r"\w+\[[\"'](\w+)[\"']\]", host)
        return found[1] if found and found[1] in self.source.space else None

    def _host_text(self, extent: str) -> str:
        """A tile's extent as the host says it."""
        if extent.isdigit():
            return extent
        given = self.kernel.given(extent) if extent in self.kernel.constexprs else None
        if given is None:
            raise Unsupported(f"a tile extent that is no constexpr: {extent}")
        text = self.source.code(given)
        from tilewright.evolve.proposers.rewrite.dataflow import resolve

        resolved = self.source.code(resolve(self.source, given))
        return resolved if '["' in resolved or "['" in resolved or resolved.isdigit() else text

    # -- device -------------------------------------------------------------------------------------------

    def _functions(self) -> str:
        table = self._table()
        parts = [*(self._helper(f) for f in self.helpers), filled(WALK, table)]
        if self.stored is not None:
            parts.append(filled(STORE, table))
        parts += [filled(text, table) for text in (PRODUCER, CONSUMER, ENTRY)]
        return "\n\n\n".join(["", *parts])

    def _table(self) -> dict[str, str]:
        product, plan, names = self.product, self.plan, self.names
        producing, consuming = self._needed_by_producer(), self._needed_by_consumer()
        everywhere = _Parameters(
            tuple(n for n in self._order if n in {*producing.runtime, *consuming.runtime}),
            tuple(n for n in self._order if n in {*producing.fixed, *consuming.fixed}),
        )
        left, right = product.left, product.right
        table = {
            **names,
            "kernel": self.kernel.name,
            "producer_arguments": _listed(producing.all),
            "producer_parameters": _declared(producing),
            "consumer_arguments": _listed(consuming.all),
            "consumer_parameters": _declared(consuming),
            "entry_parameters": _declared(everywhere),
            "ROWS": product.rows,
            "COLUMNS": product.columns,
            "DEPTH": product.depth,
            "row_tile": product.row_tile,
            "column_tile": product.column_tile,
            "loop": f"for {ast.unparse(product.loop.target)} in {self._range()}:",
            "a_box": f"{left.outer.extent}, {left.inner.extent}",
            "b_box": f"{right.outer.extent}, {right.inner.extent}",
            "a_view": ".permute((1, 0))" if left.turned else "",
            "b_view": ".permute((1, 0))" if right.turned else "",
            "a_at": self._coordinates(left, {}),
            "b_at": self._coordinates(right, {}),
            "producer_outside": self._lines(plan.outside, {}, self._producer_slice()),
            "producer_before": self._lines(plan.before + self._more(), {}, self._producer_slice()),
            "producer_body": self._lines(self._body_for_copies(), {}, None),
            "outside": self._lines(plan.outside, {}, None),
            "before": self._pieces(plan.before),
            "early": self._pieces(plan.early),
            "body": self._body(),
            "end": self._end(),
            "after": self._after(),
            "store_parameters": "c_desc, " if self.stored else "",
            "store_wait": "tma.store_wait(0)" if self.stored else "",
            "c_slots_made": self._slots_made(),
            "consumer_c": f"c_desc, {names['c_slots']}, " if self.stored else "",
            "entry_c": "c_desc, " if self.stored else "",
            "slots_parameter": "SLOTS: gl.constexpr, C_LAYOUT: gl.constexpr, " if self.stored else "",
            "slots_fixed": "SLOTS: gl.constexpr, " if self.stored else "",
            "slots_argument": "SLOTS, " if self.stored else "",
            "mode": "IN_FLIGHT" if product.accumulates is not None else "PIN",
        }
        return table

    # what the copies need -------------------------------------------------------------------------------

    def _producer_wanted(self) -> set[str]:
        left, right = self.product.left, self.product.right
        texts = [axis.start for tile in (left, right) for axis in (tile.outer, tile.inner)]
        return {n for t in texts for n in names_in(t)} | names_in(ast.unparse(self.product.loop.iter))

    def _everything(self) -> list[Statement]:
        product = self.product
        return [*product.outside, *product.before, *product.body]

    def _producer_slice(self) -> set[str]:
        from tilewright.evolve.proposers.rewrite.gluon.statements import sliced

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

    def _needed_by_producer(self) -> _Parameters:
        wanted = self._producer_wanted() | {self.product.rows, self.product.columns, self.product.depth}
        kept = self._producer_slice()
        for statement in self._everything():
            if statement.text in kept:
                wanted |= statement.reads
        return self._chosen(wanted)

    def _needed_by_consumer(self) -> _Parameters:
        plan, product = self.plan, self.product
        wanted = {product.rows, product.columns, product.depth} | names_in(ast.unparse(product.loop.iter))
        stored = self.stored.statement.text if self.stored else None
        for statement in (*plan.outside, *plan.before, *plan.early, *plan.late, *plan.after):
            if statement is product.dot:
                from tilewright.evolve.proposers.rewrite.gluon.schedule import without_operands

                wanted |= without_operands(statement, self.kernel.tl).reads
            elif statement.text != stored:
                wanted |= statement.reads
        if self.stored is not None:
            axes = self.stored.tile.axes
            for text in (self.stored.value, axes[0].start, axes[1].start):
                wanted |= names_in(text)
        return self._chosen(wanted)

    @property
    def _order(self) -> list[str]:
        return [p.name.value for p in parameters(self.kernel.function)]

    def _chosen(self, wanted: set[str]) -> _Parameters:
        fixed = self.kernel.constexprs
        return _Parameters(
            tuple(n for n in self._order if n in wanted and n not in fixed),
            tuple(n for n in self._order if n in wanted and n in fixed),
        )

    # statements ------------------------------------------------------------------------------------------

    def _carrier(self, renamed: Mapping[str, str]) -> Carrier:
        shape = (self.product.rows, self.product.columns)
        return Carrier(self.kernel.tl, "gl", shape, self.names["mma"], renamed)

    def _range(self) -> str:
        call = self.product.loop.iter
        assert isinstance(call, ast.Call)
        return f"range({', '.join(self._carrier({}).expression(ast.unparse(a)) for a in call.args)})"

    def _coordinates(self, tile: Tile, renamed: Mapping[str, str]) -> str:
        carrier = self._carrier(renamed)
        return f"[{carrier.expression(tile.outer.start)}, {carrier.expression(tile.inner.start)}]"

    def _lines(
        self, statements: Sequence[Statement], renamed: Mapping[str, str], only: set[str] | None
    ) -> str:
        carrier = self._carrier(renamed)
        return "\n".join(carrier.carry(s) for s in statements if only is None or s.text in only)

    def _renamed(self, piece: int) -> dict[str, str]:
        return {name: f"{name}_{piece}" for name in sorted(self.plan.per_piece)}

    def _pieces(self, statements: Sequence[Statement]) -> str:
        """Statements for every tile of columns: once where they are the same for all of them."""
        lines = []
        for statement in statements:
            if not statement.writes & self.plan.per_piece:
                lines.append(self._carrier({}).carry(statement))
                continue
            lines.append(self._carrier(self._renamed(0)).carry(statement))
            lines.append(_guarded(self._carrier(self._renamed(1)).carry(statement)))
        return "\n".join(_joined(lines))

    def _body(self) -> str:
        """From the first product of a step to its end."""
        late, product = list(self.plan.late), self.product
        if product.accumulates is not None and late == [product.dot]:
            table = {**self.names, "sum_0": f"{product.accumulates}_0", "sum_1": f"{product.accumulates}_1"}
            table |= {"a_view": ".permute((1, 0))" if product.left.turned else ""}
            table |= {"b_view": ".permute((1, 0))" if product.right.turned else ""}
            return filled(IN_PLACE, table)
        if not self.plan.split:
            raise Unsupported("statements behind the product that all tiles share")
        first, second = (self._late(late, piece) for piece in (0, 1))
        return f"{first}\n{_guarded(second)}"

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
                "a_view": ".permute((1, 0))" if self.product.left.turned else "",
                "b_view": ".permute((1, 0))" if self.product.right.turned else "",
            }
            lines.append(filled(PARTIAL, table))
            lines.append(
                self._carrier(self._renamed(piece)).carry(_with_product(statement, partial, self.kernel.tl))
            )
        for name in self.plan.accumulators:
            if self._is_tile(name):
                own = f"{name}_{piece}"
                lines.append(f"if PIN:\n    {own} = warpgroup_mma_wait(num_outstanding=0, deps=({own},))")
        return "\n".join(lines)

    def _is_tile(self, name: str) -> bool:
        """Whether a name begins as a tile of zeros, so that its type is that of the product."""
        for statement in self.plan.before:
            if name in statement.writes:
                made = calls(statement.node, self.kernel.tl, "zeros", "full")
                shape = ast.unparse(made[0].args[0]) if made and made[0].args else ""
                return shape.strip("()[]").replace(" ", "") == f"{self.product.rows},{self.product.columns}"
        return False

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
            if IN_FLIGHT:
                mbarrier.arrive(
                    {empty}.index(gl.where({stage} == 0, STAGES - 1, {stage} - 1)), count=1, pred={launched} == 1
                )
            """,
            {**self.names, "sum": name},
        )

    def _after(self) -> str:
        stored = self.stored.statement.text if self.stored else None
        first, second = (self._after_of(piece, stored) for piece in (0, 1))
        return f"{first}\n{_guarded(second)}"

    def _after_of(self, piece: int, stored: str | None) -> str:
        carrier = self._carrier(self._renamed(piece))
        lines = []
        for statement in self.plan.after:
            if statement.text != stored:
                lines.append(carrier.carry(statement))
                continue
            assert self.stored is not None
            value = carrier.expression(self.stored.value)
            row, column = (carrier.expression(a.start) for a in self.stored.tile.axes)
            slot = f"{self.names['c_slots']}.index({self.names['group']} * SLOTS + {piece} % SLOTS)"
            lines.append(f"store_tile(c_desc, {slot}, {value}, {row}, {column}, SLOTS)")
        return "\n".join(lines)

    def _slots_made(self) -> str:
        if self.stored is None:
            return ""
        box = f"{self.product.rows}, {self.product.columns}"
        slots = self.names["c_slots"]
        return f"{slots} = gl.allocate_shared_memory(c_desc.dtype, [CONSUMERS * SLOTS, {box}], C_LAYOUT)"

    # helpers ---------------------------------------------------------------------------------------------

    def _helpers(self) -> list[cst.FunctionDef]:
        """Jitted functions that the carried statements call."""
        used = set()
        for statement in (*self.plan.before, *self.plan.early, *self.plan.late, *self.plan.after):
            used |= {
                n.func.id
                for n in ast.walk(statement.node)
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            }
        found = [k.function for k in jit_kernels(self.source) if k.name in used]
        for function in found:
            users = [
                n
                for n in walk(self.source.module)
                if isinstance(n, cst.Name) and n.value == function.name.value
            ]
            inside = [n for n in users if self.source.enclosing(n, cst.FunctionDef) is self.kernel.function]
            if len(users) != len(inside) + 1:
                raise Unsupported(f"a helper {function.name.value} that others call, too")
        return found

    def _helper(self, function: cst.FunctionDef) -> str:
        (node,) = ast.parse(self.source.code(function)).body
        assert isinstance(node, ast.FunctionDef)
        node.decorator_list = [ast.parse("gluon.jit", mode="eval").body]
        return ast.unparse(ast.fix_missing_locations(self._carrier({}).visit(node)))

    def _drop_imports(self) -> None:
        """Of ``triton.language`` when nothing in the module speaks it any more."""
        gone = {self.kernel.name, *(f.name.value for f in self.helpers)}
        if any(k.name not in gone for k in jit_kernels(self.source)):
            return
        for statement in self.source.module.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            text = self.source.code(statement)
            alias = re.fullmatch(r"(?:import triton\.language as|from triton import language as) (\w+)", text)
            if alias or text == "from triton.tools.tensor_descriptor import TensorDescriptor":
                self.edit.remove(statement)

    # -- host ---------------------------------------------------------------------------------------------

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
            f"{self._host_text(self.product.rows)} * {self._host_text(self.product.columns)} * "
            f"{self._c()}.element_size()"
            if self.stored
            else "",
            "c_layout": f"c_layout = gl.NVMMASharedLayout(min(128, {self._host_text(self.product.columns)} * "
            f"{self._c()}.element_size()), 8 * {self._c()}.element_size())"
            if self.stored
            else "",
        }
        self._check_free(("a_layout", "b_layout", "c_layout", "stages", "room"))
        return filled(HOST, table)

    def _c(self) -> str:
        assert self.stored is not None
        return self.stored.tile.tensor

    def _check_free(self, names: Sequence[str]) -> None:
        clash = set(names) & self.source.identifiers - set(self.tunables.values()) - set(self.source.space)
        if clash:
            raise Unsupported(f"a launch that already uses the name {min(clash)}")

    def _param(self, key: str) -> str:
        return parameter_access(self.source, self.kernel.launch(), self.tunables[key])

    def _launch(self) -> str:
        left, right = self.product.left, self.product.right
        passed = _Parameters(
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
            box = f"[{self._host_text(self.product.rows)}, {self._host_text(self.product.columns)}]"
            stored = [
                f"c_desc={_descriptor(self._c(), box, 'c_layout')}",
                f"SLOTS={self._param('slots')}",
                "C_LAYOUT=c_layout",
            ]
        mode = "IN_FLIGHT" if self.product.accumulates is not None else "PIN"
        table = {
            **self.names,
            "kernel": self.kernel.name,
            "a_desc": _descriptor(left.tensor, self._box(left), "a_layout"),
            "b_desc": _descriptor(right.tensor, self._box(right), "b_layout"),
            "given": "".join(f"{text}, " for text in [*given, *stored]),
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


def _listed(names: Sequence[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _declared(given: _Parameters) -> str:
    return _listed([*given.runtime, *(f"{name}: gl.constexpr" for name in given.fixed)])


def _guarded(text: str) -> str:
    """Only with two pieces of columns."""
    lines = [f"    {line}" for line in text.splitlines() if line.strip()]
    return "\n".join(["if PIECES == 2:", *lines]) if lines else ""


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


def _with_product(statement: Statement, partial: str, tl: str) -> Statement:
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


__all__ = ["LowerProduct", "StoredTile"]
