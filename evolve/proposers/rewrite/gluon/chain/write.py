"""The rule that writes two products of one loop, such as those of attention, in Gluon for Hopper.

The new kernel and launch, with the statements that are carried over.
"""

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, RewrittenKernel, Site, Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access, parameters
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.chain import texts
from tilewright.evolve.proposers.rewrite.gluon.chain.copies import Box, BoxReader, apart, described
from tilewright.evolve.proposers.rewrite.gluon.chain.read import Chain, Chains, program, read
from tilewright.evolve.proposers.rewrite.gluon.chain.steps import StepText
from tilewright.evolve.proposers.rewrite.gluon.chain.texts import CONSTRAINTS, SPACE
from tilewright.evolve.proposers.rewrite.gluon.device import with_product
from tilewright.evolve.proposers.rewrite.gluon.host import read_parameter, spare_launch
from tilewright.evolve.proposers.rewrite.gluon.lower import IMPORTS, TAKEN
from tilewright.evolve.proposers.rewrite.gluon.statements import (
    Carrier,
    Statement,
    affected,
    calls,
    device_call,
    names_in,
    sliced,
)
from tilewright.evolve.proposers.rewrite.gluon.texts import filled, listed, only
from tilewright.evolve.proposers.rewrite.gluon.tiles import in_host
from tilewright.evolve.proposers.rewrite.sums import Sum, conjuncts, constant, expanded
from tilewright.evolve.proposers.rewrite.triton.view import SPARE, NodeRule, TritonKernel, jit_kernels


class LowerChain(NodeRule[Chains]):
    """Write a loop of two products, the second of what is made of the first, in Gluon."""

    name = "triton_lower_chain_to_gluon"
    launched = True
    why = (
        "The tensor cores wait while a step's scores become weights. Written out, the first product of a step runs "
        "beside the second of the step before it, and a warp that copies feeds several groups of warps."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Chains]]:
        text = kernel.source.code(kernel.function)
        held = [f for f in kernel.source.functions if f"{f.name.value}(" in text]  # itself, and helpers
        if not any(".dot(" in kernel.source.code(f) for f in held):
            return  # it would hide what keeps another kernel of the source
        chains = read(kernel)
        loop = chains.loops[0]
        yield f"two products for {chains.query.tensor} x {loop.key.tensor} x {loop.value.tensor}", chains

    def change(self, edit: Edit, kernel: TritonKernel, payload: Chains) -> None:
        if set(TAKEN) & kernel.source.identifiers and not lowered(kernel.source):
            raise Unsupported("a module that uses the names Gluon's imports would get")
        space = dict(SPACE)
        if payload.loops[0].several:
            space["rows"], space["columns"] = ((64,), 64), ((0, 32, 64), 0)
        for key in ("rows", "columns"):
            extent = getattr(payload, key)
            if extent.isdigit() or (key == "columns" and extent == payload.rows):
                del space[key]
        if payload.query.there is not None:  # tiles that cost nobody knows what even out over more of them
            space["laps"] = (space["laps"][0], 2)
        given = [kernel.given(n) for n in (payload.rows, payload.columns)]
        own = [read_parameter(kernel.source, g) if g is not None else "" for g in given]
        several = len(payload.loops) > 1 and "columns" in space
        if several:  # which steps a mask spares may rest on what the source says of its tiles
            known, widest = kernel.source.space.get(own[1], (32, 64)), 256 if all(own) else 64
            values = tuple(v for v in space["columns"][0] if v in known and 0 < v <= widest) or (64,)
            most = 64 if own[0] == own[1] else 128
            space["columns"] = (values, max(v for v in values if v <= most or v == values[0]))
        if payload.rows.isdigit() and payload.rows not in ("64", "128"):
            raise Unsupported("rows that no group of warps multiplies")
        tunables = {key: edit.add_parameter(key, values, default) for key, (values, default) in space.items()}
        names = {"rows": payload.rows, "columns": tunables.get("rows", payload.columns), **tunables}
        for expression, reason in CONSTRAINTS.items():
            edit.add_constraint(re.sub(r"[a-z_]+", lambda found: names[found[0]], expression), reason)
        if several and own[0] == own[1] != "" and "rows" in tunables:
            edit.add_constraint(f"{tunables['columns']} == {tunables['rows']}", "one number in the source")
        text = ChainText(edit, payload, tunables)
        edit.insert_before(kernel.source.statement(kernel.function), text.functions() + "\n\n\n")
        edit.replace_statement(kernel.source.statement(kernel.launch()), text.launches())
        edit.imports += () if lowered(kernel.source) else IMPORTS

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        """With all other kernels of the source that the rule finds a place in."""
        made = super().apply(kernel, site, rng)
        while made is not None and len(jit_kernels(kernel, entry_only=True)) > 1:
            further = KernelSource(made.source)
            try:
                more = super().apply(further, self.sites(further)[0], rng)
            except (Unsupported, IndexError):
                return made
            assert more is not None
            made = RewrittenKernel(more.source, {**made.added, **more.added}, (*made.dropped, *more.dropped))
        return made


def lowered(source: KernelSource) -> bool:
    """Whether another kernel of it is."""
    return IMPORTS[-1] in source.source


NAMES = (
    "tiles others last lap row other stage phase q_phase q_stages k_stages v_stages bars "
    "q_now nothing scores out operand_layout partial operand held held_phase wrapped turn first count "
    "query heads all_laps many there groups own_first own skipped whole masked o_stages keys "
    "k_bar v_bar k_landed v_landed q_rows k_rows v_rows r_stages r_now"
)
"""That the new kernel binds."""


@dataclass(frozen=True)
class Step:
    """The statements of a loop's step in the order they run in. ``hidden``: by a statement of ``middle``, under which
    conditions (numbers below zero) its mask hides anything, what only the mask needs, and the statement where nothing
    is hidden."""

    early: tuple[Statement, ...]
    middle: tuple[Statement, ...]
    late: tuple[Statement, ...]
    hidden: Mapping[Statement, tuple[tuple[Sum, ...], tuple[Statement, ...], Statement]]

    @property
    def conditions(self) -> list[Sum]:
        return [one for some, _, _ in self.hidden.values() for one in some]


class ChainCarrier(Carrier):
    """Statements in Gluon's words: rows of scores and of sums in the layouts of their products."""

    def __init__(self, chains: Chains, names: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        shape = (chains.rows, chains.columns)
        super().__init__(chains.kernel.tl, "gl", shape, names["scores"], renamed)
        self.chains, self.names = chains, names
        self.sums = False
        """Whether a statement's tiles are those of the sums."""

        self.foreign: Collection[str] = ()
        """Names whose rows are those of scores."""

    def of(self, statement: Statement, sums: bool, foreign: Collection[str]) -> str:
        self.sums, self.foreign = sums, foreign
        return self.carry(statement)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Sums over a row's number as their product with its inverse: one division a row in place of one an element."""
        row = node.right
        if self.sums and isinstance(node.op, ast.Div) and isinstance(row, ast.Subscript) and expanded(row) == 0:
            row.value = ast.BinOp(ast.Constant(1.0), ast.Div(), row.value)
            node.op = ast.Mult()
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        reads = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        made = self.generic_visit(node)
        assert isinstance(made, ast.Subscript)
        if self.sums and expanded(node) == 0 and reads & set(self.foreign):
            text = f"gl.convert_layout({ast.unparse(made.value)}, gl.SliceLayout(1, {self.names['out']}))"
            made.value = ast.parse(text, mode="eval").body
        return made

    def _layout(self, node: ast.Call) -> str:
        shape = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg == "shape")
        parts = [ast.unparse(e) for e in shape.elts] if isinstance(shape, ast.Tuple | ast.List) else []
        if self.sums:
            return self.names["out"]
        if parts == [self.chains.rows]:
            return f"gl.SliceLayout(1, {self.layout})"
        return self.layout if parts == [self.chains.rows, self.chains.columns] else ""


class ChainText:
    """Writes one lowering. ``tunables``: what a parameter of the new space is called there."""

    def __init__(self, edit: Edit, chains: Chains, tunables: Mapping[str, str]) -> None:
        self.edit, self.chains, self.tunables = edit, chains, tunables
        self.kernel, self.source = chains.kernel, chains.kernel.source
        self.entry = self.source.fresh(f"{self.kernel.name}_lowered")
        used_names = {n for s in chains.everything for n in s.reads | s.writes}
        self.names = {name: self._fresh(name, used_names) for name in NAMES.split()}
        functions = ("place_of", "ring_of", "cleared")
        self.names |= {name: self.source.fresh(name) for name in functions}
        self.grid = chains.grid
        self.order = [p.name.value for p in parameters(self.kernel.function)]
        self.sums = chains.loops[0].all_sums
        self.results = {n for loop in chains.loops for s in loop.body for n in s.writes} | self.sums
        outer = [s for part in chains.between for s in part] + list(chains.after)
        self.dependent = affected(outer, self.results)
        self.stored = self._stored()
        loop = chains.loops[0]
        self.fixed = dict(zip("qr", chains.queries, strict=False))
        self.kept = dict(zip("op", self.stored, strict=False))
        """What is stored by bulk copies: statement, value and box."""

        stores = {n: box for n, (_, _, box) in self.kept.items()}
        self.boxes = {**self.fixed, "k": loop.key, "v": loop.value, **stores}
        if loop.several and len({len(box.outer) for box in self.boxes.values()}) > 1:
            raise Unsupported("tiles of tensors of several ranks")
        copied = [pair for c in chains.loops for pair in (("k", c.key), ("v", c.value))]
        self.cut = list(dict.fromkeys(which for which, box in copied if box.there is not None))
        """Of copies, those whose last rows may be another's, which only the device knows."""

        tensors = dict.fromkeys(n.tensor for c in chains.loops for n in c.numbers)
        self.ring = {tensor: self.source.fresh(f"numbers_{n}") for n, tensor in enumerate(tensors)}
        """Of the tensors whose numbers come through the ring, what its stages of them are called."""

        self.of_sums = affected([Statement(n.node) for n in outer], self.sums) - self._rows_of_scores()

    def _fresh(self, name: str, used_names: Collection[str]) -> str:
        found = self.source.fresh(name)
        while found in used_names:
            found = self.source.fresh(f"{found}_")
        return found

    def _rows_of_scores(self) -> set[str]:
        """Names that loops carry beside the sums."""
        return {n for loop in self.chains.loops for n in loop.carried} - self.sums

    # -- which statements and parameters -----------------------------------------------------------------

    def _slice(self, wanted: Collection[str], among: Sequence[Statement]) -> list[Statement]:
        return [among[i] for i in sorted(sliced(among, wanted, ()))]

    def _before(self) -> list[Statement]:
        """Statements around the loops that need nothing of them."""
        outer = [s for part in self.chains.between for s in part] + list(self.chains.after)
        return [s for s in outer if not s.writes & self.dependent and s.writes]

    def _scalars(self, wanted: Collection[str]) -> list[Statement]:
        return self._slice(wanted, self._before())

    def _parameters(self, names: Iterable[str]) -> tuple[str, str]:
        """(declared, passed) parameters of the old kernel among ``names``."""
        wanted = set(names)
        kept = [n for n in self.order if n in wanted]
        fixed = self.kernel.constexprs
        runtime = [n for n in kept if n not in fixed]
        last = [n for n in kept if n in fixed]
        return listed([*runtime, *(f"{n}: gl.constexpr" for n in last)]), listed([*runtime, *last])

    @staticmethod
    def _reads(statements: Iterable[Statement], *texts: str) -> set[str]:
        return {n for s in statements for n in s.reads}.union(*map(names_in, texts))

    # -- texts --------------------------------------------------------------------------------------------

    def functions(self) -> str:
        self.table = self._table()
        parts = [filled(texts.CLEARED, self.table)] if self.cut else []
        parts.append(filled(texts.COMMON, {**self.table, "tl": self.kernel.tl}))
        parts += [filled(texts.STEPS, {**self.table, **self._steps(i)}) for i in range(len(self.chains.loops))]
        parts += [filled(text, self.table) for text in (texts.PRODUCER, texts.CONSUMER, texts.ENTRY)]
        return "\n\n\n".join(["", *parts])

    def _carrier(self, renamed: Mapping[str, str] | None = None) -> ChainCarrier:
        loaded = frozenset[str]().union(*(loop.tiles for loop in self.chains.loops))
        tiles = dict.fromkeys(loaded, self.names["v_stages"])
        tiles |= dict.fromkeys(self.chains.query_names, self.names["q_stages"])
        return ChainCarrier(self.chains, self.names, {**tiles, **(renamed or {})})

    def expression(self, text: str, renamed: Mapping[str, str] | None = None) -> str:
        """In Gluon's words."""
        return self._carrier(renamed).expression(text)

    def _programs(self, mine: str = "") -> str:
        own = mine or program(self.chains.axis)
        return listed([own if a == self.chains.axis else program(a) for a in range(len(self.grid))])

    def _table(self) -> dict[str, str]:
        chains, names = self.chains, self.names
        others = [a for a in range(len(self.grid)) if a != chains.axis]
        self.sizes = [self.source.fresh("size")] if len(others) == 2 else []
        self.numbers = [names[n] for n in ("tiles", "others", "last", "heads", "all_laps")] + self.sizes
        if len(others) == 2:
            split = f"{program(others[0])} = {names['other']} % {self.sizes[0]}\n"
            split += f"{program(others[1])} = {names['other']} // {self.sizes[0]}"
        else:
            split = "\n".join(f"{program(a)} = {names['other']}" for a in others)
        loop = chains.loops[0]
        table = {
            **names,
            "advance": filled(texts.ADVANCE, names),
            "kernel": self.entry,
            "programs": self._programs(),
            "programs_next": self._programs("following"),
            "next_program": f"following = min({program(chains.axis)} + each, {names['last']})",
            "mine": program(chains.axis),
            "programs_of_other": split,
            "numbers": listed(self.numbers),
            **{n.upper(): getattr(chains, n) for n in ("rows", "columns", "width", "depth")},
            **{f"{n}_at": self._at(box) for n, box in self.fixed.items()},
            **{f"{n}_desc": f"{n}_desc, " if n in self.boxes else "" for n in "rp"},
            "fixed_given": f"{names['q_stages']}, " + f"{names['r_stages']}, " * ("r" in self.fixed),
            "q_bytes": str(2 * len(self.fixed)),
            **{f"{n}_box": "1, " * len(b.outer) + f"{b.rows}, {b.columns}" for n, b in self.boxes.items()},
            "landings": "\n".join(f"{names[f'{which}_landed']} = 0" for which in self.cut),
            "one_more": " + 1" if self.cut else "",
            "producer_registers": self.producer_registers,
            "ring_descs": "".join(f"{name}_desc, " for name in self.ring.values()),
            "ring_stages": "".join(f"{name}, " for name in self.ring.values()),
            "ring_layout": ", NUMBERS_LAYOUT: gl.constexpr" if self.ring else "",
            "ring_made": "\n".join(
                f"{name} = gl.allocate_shared_memory({name}_desc.dtype, [STAGES, {chains.columns}], NUMBERS_LAYOUT)"
                for name in self.ring.values()
            ),
        }
        self.table = table
        table |= {f"r_{n}": filled(text, table) if "r" in self.fixed else "" for n, text in texts.SECOND_FIXED.items()}
        reads = set[str]().union(*(box.reads for box in chains.queries))
        table["query_scalars"] = self.lines(self._scalars(reads))
        producing = self._reads(self._scalars(reads)) | reads
        loops, query = [], filled(texts.QUERY, table)
        for number, each in enumerate(chains.loops):
            wanted = each.key.reads | each.value.reads | self._reads((), *(n.start for n in each.numbers))
            scalars = self._scalars(wanted)
            producing |= self._reads(scalars) | wanted | self._step_names(number)
            parts = [self._partial(n, b, each.variable) for n, b in (("k", each.key), ("v", each.value))]
            table_of_loop = {
                **table,
                **self._steps(number),
                **parts[0][1],
                **parts[1][1],
                "copy_scalars": "\n".join([self.lines(scalars), *(text for text, _ in parts)]),
                "query_first": only(f"{names['turn']} == 0", query if number == 0 else ""),
                "query_none": only(f"{names['count']} == 0", query if number == 0 else ""),
                "variable": each.variable,
                "k_at": self._at(each.key),
                "v_at": self._at(each.value),
                **self._brought(each),
            }
            loops.append(filled(texts.PRODUCER_LOOP, table_of_loop))
        consuming, consumed = self._consumer_loops()
        finished, after = self._after()
        there = chains.query.there
        own = self._reads((), there.text()) if there is not None else set()
        scalars = self._scalars(own | self._reads(chains.prepared) - chains.query_names)
        made_of = dict.fromkeys(chains.query_names, names["query"])
        begun = [
            f"{program(chains.axis)} = min({names['row']} * CONSUMERS + GROUP, {names['last']})",
            self.lines(scalars),
        ]
        if there is not None:
            begun.append(filled(texts.CUT, {**table, "rows": self.expression(there.text())}))
        if chains.prepared:
            begun.append(filled(texts.PREPARED, {**table, "prepare": self.lines(chains.prepared, made_of)}))
        prepared = "\n".join(begun) if len(begun) > 2 else ""
        extents = {chains.rows, chains.columns, chains.width, chains.depth}
        consuming |= own | self._reads([*scalars, *chains.prepared]) | finished | extents
        producing |= extents
        boxes = {*extents, loop.key.columns, loop.value.rows}
        made = {}
        names_of = {"producer": producing, "consumer": consuming, "entry": producing | consuming | boxes}
        for kind, wanted in names_of.items():
            made[f"{kind}_parameters"], made[f"{kind}_arguments"] = self._parameters(wanted)
        self.passed = [n for n in self.order if n in names_of["entry"]]
        runtime = [*self.numbers, *(n for n in self.passed if n not in self.kernel.constexprs)]
        made["unspecialized"] = ", ".join(f'"{name}"' for name in runtime)
        parts_of_text = {"loops": "\n".join(loops), "after": after, "consumer_loops": consumed, "prepared": prepared}
        return {**table, **made, **parts_of_text}

    @property
    def producer_registers(self) -> str:
        return "40" if self.cut else "24"

    def _brought(self, loop: Chain) -> dict[str, str]:
        """What a loop's copies of tiles bring beside them."""
        made = {}
        for number, which in enumerate("kv"):
            mine = [n for n in loop.numbers if n.loaded == number]
            made[f"{which}_numbers"] = f" + {4 * len(mine)} * ({self.chains.columns})" if mine else ""
            places = [(self.ring[n.tensor], self._places([n.start], names_in(n.start))) for n in mine]
            bar, stage = f"{which}_ready.index({self.names['stage']})", self.names["stage"]
            made[f"{which}_brings"] = "\n".join(
                f"tma.async_copy_global_to_shared({name}_desc, [{at}], {bar}, {name}.index({stage}))"
                for name, at in places
            )
        return made

    def landed(self, statement: Statement, loop: Chain) -> list[str]:
        """What takes a statement's numbers of rows out of the ring."""
        stage, layout = self.names["stage"], f"gl.SliceLayout(0, {self.names['scores']})"
        mine = [n for n in loop.numbers if n.statement is statement]
        return [f"{n.landed} = {self.ring[n.tensor]}.index({stage}).load({layout})" for n in mine]

    def _partial(self, which: str, box: Box, variable: str) -> tuple[str, dict[str, str]]:
        """(text in front of a loop, table): the barrier that a copy lands on, and what is done where its last rows are
        another's."""
        names = self.names
        if box.there is None:
            return "", {f"{which}_bar": names["stage"], f"{which}_partial": "", f"{which}_landed": ""}
        moving = Sum({p: c for p, c in box.there.parts.items() if variable in p})
        slots = {name: names[f"{which}_{name}"] for name in ("rows", "bar", "landed")}
        table = {
            **names,
            **slots,
            "which": which,
            "ROWS": box.rows,
            "WIDTH": box.columns,
            "view": self.stage(which, box, "stage", False),
            "moving": f" + {self.expression(moving.text())}" if moving.parts else "",
        }
        made = {f"{which}_{n}": filled(t, table) for n, t in (("partial", texts.PARTIAL), ("landed", texts.LANDED))}
        fixed = f"{slots['rows']} = {self.expression((box.there - moving).text())}"
        return fixed, {f"{which}_bar": slots["bar"], **made}

    def _step_names(self, number: int) -> set[str]:
        loop = self.chains.loops[number]
        bounds = (loop.start, loop.stop, loop.step, self.chains.absent or "0")
        scalars = self._scalars(self._reads((), *bounds))
        return self._reads(scalars, *bounds)

    def _steps(self, number: int) -> dict[str, str]:
        loop = self.chains.loops[number]
        stop = f"gl.where({self.chains.absent}, {loop.start}, {loop.stop})" if self.chains.absent else loop.stop
        bounds = (loop.start, stop, loop.step)
        declared, passed = self._parameters(self._step_names(number))
        start, stop, step = (self.expression(t) for t in bounds)
        return {
            "number": str(number),
            "scalars": self.lines(self._scalars(self._reads((), *bounds))),
            "step_parameters": declared,
            "step_arguments": passed,
            "start": start,
            "stop": stop,
            "step": step,
        }

    def _at(self, box: Box, renamed: Mapping[str, str] | None = None) -> str:
        wide = box.there is not None
        return f"{self._places([*(index for index, _ in box.outer), box.start], box.reads, renamed, wide)}, 0"

    def _places(
        self, texts: Iterable[str], reads: Collection[str], renamed: Mapping[str, str] | None = None, wide: bool = False
    ) -> str:
        """Coordinates of a copy."""
        scalars = "".join(s.text for s in self._scalars(reads))
        wide = wide or "int64" in self.source.code(self.kernel.function) or ".load(" in scalars
        places = [self._carrier(renamed).expression(text) for text in texts]
        return ", ".join(f"gl.cast({t}, gl.int32)" if wide and not t.isdigit() else t for t in places)

    def lines(self, statements: Iterable[Statement], renamed: Mapping[str, str] | None = None) -> str:
        return "\n".join(self.carried(s, renamed) for s in statements)

    def carried(self, statement: Statement, renamed: Mapping[str, str] | None = None) -> str:
        sums = bool((statement.reads | statement.writes) & self.of_sums)
        return self._carrier(renamed).of(statement, sums, self.results | self.dependent - self.of_sums)

    # -- the consumers' loops -----------------------------------------------------------------------------

    def _consumer_loops(self) -> tuple[set[str], str]:
        """(names they need, text)."""
        chains, wanted, made = self.chains, set[str](), list[str]()
        for number, loop in enumerate(chains.loops):
            step = self._step(loop)
            later = self._reads(chains.after) | {n for part in chains.between[number + 1 :] for n in self._reads(part)}
            later |= {n for other in chains.loops[number + 1 :] for n in self._reads(other.body)}
            kept = self._kept(step, loop)
            before = self._between(number, kept, later)
            own = {n for s in kept for n in s.writes} - loop.carried - later
            first = {n: f"{n}_first" for n in sorted(own | ({loop.variable} - later))}
            conditions = [c.text() for c in step.conditions]
            wanted |= self._reads([*kept, *before], *conditions, *loop.operands) | self._step_names(number)
            table = {
                **self.table,
                **self._steps(number),
                "before": self.lines(before),
                **self._phases(number, step, loop),
                "variable": loop.variable,
                "variable_first": first.get(loop.variable, loop.variable),
            }
            steps, skipped = self.names["own"], self.names["skipped"]
            release = "mbarrier.arrive(q_empty.index(GROUP), count=1)" * (loop is chains.loops[-1])
            table |= {"release": release, "release_none": only(f"{steps} <= 0", release)}
            skips = {"first": skipped, "last": f"{self.names['count']} - {skipped} - {steps}"}
            for name, number_of in skips.items():
                table[f"skip_{name}"] = filled(texts.SKIP, {**table, "how_many": number_of})
            text = StepText(self, step, loop, release)
            inside: dict[str, str] | None = {} if loop.several else None
            table |= {f"step_{mode}": text.written(mode, inside) for mode in ("alone", "next")}
            table |= {"step_first": text.written("first", first), "step_last": text.last()}
            made.append(filled(texts.CONSUMER_LOOP, table))
        return wanted, "\n".join(made)

    def stage(self, which: str, box: Box, stage: str, turned: bool) -> str:
        view = f"{self.names[which + '_stages']}.index({self.names[stage]})"
        if box.outer:
            view += f".reshape([{box.rows}, {box.columns}])"
        return view + (".permute((1, 0))" if turned else "")

    def _kept(self, step: Step, loop: Chain) -> list[Statement]:
        masks = [s for _, only, _ in step.hidden.values() for s in only]
        return [*step.early, *masks, *loop.firsts, *step.middle, *step.late]

    def _between(self, number: int, kept: Sequence[Statement], later: Collection[str]) -> list[Statement]:
        """Statements in front of a loop that it or the results need."""
        wanted = {n for n in later if n in self.dependent}
        for following in range(number, len(self.chains.loops)):
            loop = self.chains.loops[following]
            steps = kept if following == number else self._kept(self._step(loop), loop)
            wanted |= self._reads(steps, *loop.operands) | loop.all_sums | self._condition_names(following)
        return self._slice(wanted, self.chains.between[number])

    def _condition_names(self, number: int) -> set[str]:
        step = self._step(self.chains.loops[number])
        return self._reads((), *(c.text() for c in step.conditions))

    def _step(self, loop: Chain) -> Step:
        """A step without statements that the results do not need; masks by the condition they hide something."""
        tl = self.kernel.tl
        later = {n for s in self.chains.after for n in s.reads} | {
            n for part in self.chains.between for s in part for n in s.reads
        }
        written = {n for s in loop.body for n in s.writes}
        roots = self._reads((), *loop.operands) | loop.all_sums | loop.carried | (written & later)
        bare = {s: Statement(with_product(s, "True", tl).node) for s in loop.firsts}
        body = [bare.get(s, s) for s in loop.body if s not in loop.added]
        needed = {body[i] for i in sliced(body, roots, ())}
        open_: dict[Statement, tuple[tuple[Sum, ...], Statement]] = {}
        for statement in loop.middle:
            found = self._unmasked(statement) if statement in needed else None
            if found is not None and not self._reads((), *(c.text() for c in found[0])) & written:
                open_[statement] = found
        plain = [open_[s][1] if s in open_ else s for s in body]
        seen = {body[i] for i in sliced(plain, roots, ())}
        hidden = {}
        for statement, (conditions, visible) in open_.items():
            among = [s for s in body[: body.index(statement)] if s in needed and s not in seen]
            only = self._slice(statement.reads, among)
            hidden[statement] = (conditions, tuple(only), visible)
        kept = seen | set(open_)
        return Step(
            tuple(s for s in loop.early if s in kept),
            tuple(s for s in loop.middle if s in kept or s in loop.added or s in bare),
            tuple(s for s in loop.late if s in kept),
            hidden,
        )

    def _unmasked(self, statement: Statement) -> tuple[tuple[Sum, ...], Statement] | None:
        """(numbers of which one is below zero where a mask hides something, the statement where it does not)."""
        tl = self.kernel.tl
        found = calls(statement.node, tl, "where")
        if len(found) != 1 or len(found[0].args) != 3 or not isinstance(statement.node, ast.Assign | ast.AugAssign):
            return None
        try:
            parts = [self._hides(*one) for one in conjuncts(found[0].args[0], self.chains.bound)]
        except Unsupported:
            return None
        spares = tuple(p for p in parts if p is not None)
        if not spares or len(spares) != len(parts):
            return None
        open_ = statement.text.replace(ast.unparse(found[0]), f"({ast.unparse(found[0].args[1])})")
        return spares, Statement(ast.parse(open_).body[0])

    def _hides(self, node: ast.expr, axis: int | None) -> Sum | None:
        """What is below zero where a comparison fails somewhere in a tile; None where that is not known."""
        sides = self.chains.sums.less(node, axis)
        return None if sides is None else (sides[1] - sides[0] + constant(-1)).least()

    def _last_whole(self, spare: Sum, loop: Chain) -> Sum | None:
        """The last value of the loop's variable at which ``spare`` is not below zero; None where there is no such."""
        last = spare + Sum({(loop.variable,): 1})
        changing = {n for s in loop.body for n in s.writes} | {loop.variable}
        return None if self._reads((), last.text()) & changing else last

    def _phases(self, number: int, step: Step, loop: Chain) -> dict[str, str]:
        """The loop in two: first the steps in whose tiles masks hide nothing, then the others."""
        names, by = self.names, f"({self._steps(number)['step']})"
        lasts = [last for c in step.conditions if (last := self._last_whole(c, loop)) is not None]
        lasts = [] if loop.several else lasts  # whose text would be twice as long
        if not lasts:
            bounds = {"begin": "0", "begin_first": "1", "end": names["own"]}
            return {"phases": "1", "whole_steps": "", **bounds}
        whole, masked, start = names["whole"], names["masked"], names["own_first"]
        lines = [f"{whole} = {names['own']}"]
        for text in dict.fromkeys(self._carrier().expression(one.text()) for one in lasts):
            lines.append(f"{whole} = min({whole}, max({text} - {start} + {by}, 0) // {by})")
        return {
            "phases": "2",
            "whole_steps": "\n".join(lines),
            "begin": f"{whole} if {masked} else 0",
            "begin_first": f"max({whole}, 1) if {masked} else 1",
            "end": f"{names['own']} if {masked} else {whole}",
        }

    def shown(self, statement: Statement, step: Step, loop: Chain, renamed: Mapping[str, str] | None) -> str:
        """A statement of ``middle``; one that masks as a branch where something is hidden and one where nothing is."""
        if statement not in step.hidden:
            return self.carried(statement, renamed)
        conditions, only_there, visible = step.hidden[statement]
        rest = [c for c in conditions if renamed is not None or self._last_whole(c, loop) is None]
        text = " | ".join(f"({self._carrier(renamed).expression(c.text())} < 0)" for c in rest)
        if len(rest) < len(conditions):
            text = " | ".join([f"({self.names['masked']} == 1)", *([text] if text else [])])
        lines = [f"if {text}:\n" + _indented(self.lines([*only_there, statement], renamed))]
        shown = self.carried(visible, renamed)
        left, _, right = shown.partition(" = ")
        if left != right:
            lines.append("else:\n" + _indented(shown))
        return "\n".join(lines)

    # -- behind the loops ---------------------------------------------------------------------------------

    def _after(self) -> tuple[set[str], str]:
        """(names it needs, text): each result's places are computed anew, in the layout of what is stored there."""
        lines, wanted = [], set[str]()
        roots = [s for s in self.chains.after if calls(s.node, self.kernel.tl, "store")]
        needed = set(map(id, self._slice({n for s in roots for n in s.reads}, list(self.chains.after))))
        for number, statement in enumerate(self.chains.after):
            is_root = any(statement is r for r in roots)
            if not is_root and (id(statement) not in needed or not statement.writes & self.dependent):
                continue
            which, (_, value, box) = next(
                ((n, kept) for n, kept in self.kept.items() if kept[0] is statement), ("", self.stored[0])
            )
            copied = bool(which)
            reads = self._reads((), value) | box.reads if copied else statement.reads
            reads |= statement.reads if box.there is not None else set()
            places = self._scalars(reads - self.dependent)
            renamed = {n: f"{n}_at_{number}" for s in places for n in s.writes}
            lines += [self.carried(s, renamed) for s in places]
            if copied:
                stored = self.carried(Statement(ast.parse(f"stored = {value}").body[0]), renamed)
                slot = {"o_at": self._at(box, renamed), "value": stored.partition(" = ")[2], "to": f"{which}_desc"}
                text = filled(texts.STORE, {**self.table, **slot})
                if box.there is not None:  # a bulk copy would write into rows that are another's
                    whole = f"{self._carrier(renamed).expression(box.there.text())} >= {box.rows}"
                    text = only(whole, text) + "\nelse:\n" + _indented(self.carried(statement, renamed))
                lines.append(text)
            else:
                lines.append(self.carried(statement, renamed))
            wanted |= self._reads(places) | reads
        if absent := self.chains.absent:
            scalars = self._scalars(names_in(absent))
            wanted |= self._reads(scalars, absent)
            lines = [self.lines(scalars), f"if {self.expression(absent)}:\n    pass\nelse:", *map(_indented, lines)]
        return wanted, "\n".join(lines)

    def _stored(self) -> list[tuple[Statement, str, Box]]:
        """(statement, value, box) of the stores of sums, which bulk copies do: of a step of two products the first."""
        of_sums, found, loop = affected(self.chains.after, self.sums), [], self.chains.loops[0]
        for statement in self.chains.after:
            call = statement.node.value if isinstance(statement.node, ast.Expr) else None
            if not isinstance(call, ast.Call) or device_call(call, self.kernel.tl) != "store":
                continue
            given = {str(k.arg): k.value for k in call.keywords}
            given |= dict(zip(("pointer", "value", "mask"), call.args, strict=False))
            value = ast.unparse(given["value"])
            try:
                box = BoxReader(self.kernel, self.chains.sums, None).read(given["pointer"], given.get("mask"))
            except Unsupported:
                continue
            widths = {b.columns for b in (loop.key, loop.value)} if loop.several else {self.chains.width}
            fits = not box.turned and box.rows == self.chains.rows and box.columns in widths
            if fits and names_in(value) & of_sums and not box.reads & self.dependent:
                found.append((statement, value, box))
        if len(found) < len(self.sums):
            raise Unsupported("sums that are not stored as a tile of a tensor")
        return found[: len(self.sums)]

    # -- the host -----------------------------------------------------------------------------------------

    def launches(self) -> str:
        chains, names = self.chains, self.names
        fits = [f"{box.tensor}.element_size() == 2" for n, box in self.boxes.items() if n not in self.kept]
        fits += [f"{box.tensor}.dtype == {self.boxes['o'].tensor}.dtype" for n, box in self.boxes.items() if n == "p"]
        fits += [text for text in (chains.whole, *(each.positive for each in chains.loops)) if text]
        for box in self.boxes.values():
            fits += [f"{s} * {box.tensor}{SPARE}" for s in (box.stride, *(t for _, t in box.outer))]
            fits += [*box.conditions, *apart(box)]
            if not box.bound:
                fits.append(f"{box.stride} in {box.tensor}.stride()")
        fits += [f"{tensor}.dtype == torch.float32" for tensor in self.ring]
        fits += [text for loop in chains.loops for each in loop.numbers for text in each.conditions]
        others = [a for a in range(len(self.grid)) if a != chains.axis]
        host = {n: self._extent(getattr(chains, n)) for n in ("rows", "columns", "depth", "width")}
        made = {}
        for which, box in self.boxes.items():
            extents = [self._extent(e) for e in (box.rows, box.columns)]
            made[f"{which}_desc"] = described(
                box, extents, f"{'oq'[which in 'qr'] if which not in 'kv' else which}_layout"
            )
            made[f"{which}_rank"] = str(len(box.outer) + 2)
        given = "".join(f"{n}={self._given(n)}, " for n in self.passed)
        access = {key: self._param(key) for key in self.tunables}
        chosen = ""
        if "columns" in self.tunables:
            # two stages beside the groups' own tiles, or one of 64 keys: two of 32 hold as many bytes, in twice as many
            # steps (head 256, soft cap, one H200, measured: 295 us with 32 keys, 227 with 64)
            few = f"several > 1 or {host['depth']} + {host['width']} > 256"
            wide = self._registers("64", host["width"])["spread"]
            # more spills, less so where no numbers of rows are addressed
            most = (
                f"(64 if {wide} <= {384 if self.ring else 320} else 32)"
                if chains.loops[0].several
                else f"(64 if {few} else 128)"
            )
            chosen = f"{names['keys']} = {self._given_to('columns')} or {most}"
        table = {
            **names,
            **access,
            **host,
            **made,
            "chosen": chosen,
            "more_descs": "".join(f"{n}_desc={made[f'{n}_desc']},\n" for n in "rp" if n in self.boxes)
            + "".join(
                f"{name}_desc=TensorDescriptor({tensor}, [1 + sum((n - 1) * s for n, s in "
                f"zip({tensor}.shape, {tensor}.stride()))], [1], [{host['columns']}], "
                "gl.NVMMASharedLayout(0, 32, rank=1)),\n"
                for tensor, name in self.ring.items()
            )
            + "NUMBERS_LAYOUT=gl.NVMMASharedLayout(0, 32, rank=1),\n" * bool(self.ring),
            "tiles_kept": str(2 * len(self.fixed)),
            **self._registers(host["columns"], host["width"]),
            "producer_registers": self.producer_registers,
            "o_bytes": f"{self.boxes['o'].tensor}.element_size()",
            "kernel": self.entry,
            "grid_of_axis": self._resized(self.grid[chains.axis], True),
            "grid_of_others": " * ".join(f"({self._resized(self.grid[a])})" for a in others) or "1",
            "sizes_given": "".join(f"{s}={self._resized(self.grid[others[0]])}, " for s in self.sizes),
            "given": given,
        }
        clashes = set(re.findall(r"(?m)^(\w+) = ", texts.HOST)) & self.source.own_names
        clashes = set() if lowered(self.source) else clashes
        if clashes := clashes - set(self.source.space) - set(self.tunables.values()):
            raise Unsupported(f"a launch that already uses the name {min(clashes)}")
        new = _indented(filled(texts.HOST, table))
        statement = self.source.statement(self.kernel.launch())
        old = _indented(spare_launch(self.source, statement))
        condition = " and ".join(dict.fromkeys(fits))
        return f"if {condition}:\n{new}\nelse:\n    # a descriptor's rows begin at 16 bytes\n{old}"

    def _registers(self, columns: str, width: str) -> dict[str, str]:
        """What a row's products hold, up to how much of it three groups fit, and what else registers are for where a
        step's sums are added to beside the next one's first products."""
        loop, added = self.chains.loops[0], len(self.sums)
        if not loop.several:
            return {"spread": f"{columns} + {width}", "three": "12288", "beside": "96"}
        spread = f"{len(loop.products) - added} * {columns} + {added} * {width}"
        return {"spread": spread, "three": "16384", "beside": f"48 - {added} * {columns} // 4"}

    def _extent(self, extent: str) -> str:
        """A tile's extent as the new launch says it."""
        for key in ("rows", "columns"):
            if extent == getattr(self.chains, key) and key in self.tunables:
                return self._param(key)
        return in_host(self.kernel, extent)

    def _resized(self, text: str, tiled: bool = False) -> str:
        """A host's expression with the new extents of tiles. ``tiled``: where a number equal to that of rows is it."""
        for key in ("rows", "columns"):
            extent = getattr(self.chains, key)
            if key not in self.tunables:
                continue
            before = in_host(self.kernel, extent)
            given = self.kernel.given(extent)
            known = {before, self.source.code(given) if given is not None else before}
            known |= {one.replace("'", '"') for one in known} | {one.replace('"', "'") for one in known}
            first = text
            for one in known:
                if one.isdigit() and not (tiled and key == "rows"):
                    continue
                put, alone = self._param(key).replace("\\", ""), rf"(?<![\w.\"']){re.escape(one)}(?![\w\"'])"
                divisor = rf"(cdiv\((?:[^()]|\([^()]*\))*, |// ?){alone}"  # not as what else a number may be
                if one.isdigit() and re.search(divisor, text):
                    text = re.sub(divisor, rf"\g<1>{put}", text)
                else:
                    text = re.sub(alone, put, text)
            if tiled and key == "rows" and text == first:
                known_as = read_parameter(self.source, given) if given is not None else ""
                if known_as not in self.source.defaults:
                    raise Unsupported("a grid that does not say how many rows a program has")
                text = f"-(-({text}) * {self.source.defaults[known_as]} // {self._param(key)})"  # as many rows
        return text

    def _given(self, name: str) -> str:
        given = self.kernel.given(name)
        if given is None:
            raise Unsupported(f"parameter {name}, which the launch does not pass")
        return self._extent(name) if name in (self.chains.rows, self.chains.columns) else self.source.code(given)

    def _param(self, key: str) -> str:
        return self.names["keys"] if key == "columns" else self._given_to(key)

    def _given_to(self, key: str) -> str:
        return parameter_access(self.source, self.kernel.launch(), self.tunables[key])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
