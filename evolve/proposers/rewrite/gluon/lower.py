"""The rule that writes a tiled product of Triton's in Gluon, for Hopper.

A program of the new kernel computes ``consumers`` x ``pieces`` tiles of the old one side by side: a producer warp
copies their operands into a ring of stages by TMA, each consumer group of warps multiplies its rows with every piece
of columns out of shared memory, and runs what the old kernel did with the product, statement by statement. The old
kernel stays for tensors that no descriptor describes.
"""

import re
from collections.abc import Iterable
from typing import Any

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.device import DeviceText
from tilewright.evolve.proposers.rewrite.gluon.host import HostText
from tilewright.evolve.proposers.rewrite.gluon.product import Product, read
from tilewright.evolve.proposers.rewrite.gluon.schedule import Plan, planned
from tilewright.evolve.proposers.rewrite.gluon.texts import SPACE
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel

IMPORTS = (
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as gl",
    "from triton.experimental.gluon.language.nvidia.hopper import "
    "fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait",
    "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor",
)
REGISTER_ELEMENTS = 26624
"""Sums and partials that the registers of one group of warps hold beside everything else."""

TAKEN = ("gluon", "gl", "fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")


class LowerProduct(NodeRule[Plan]):
    """Write a loop of loads, a dot and what follows it in Gluon: TMA ring, producer warp, consumer groups of warps."""

    name = "triton_lower_to_gluon"
    launched = True
    why = (
        "What a compiler schedules by rules of thumb becomes explicit: a warp that only copies, a ring of stages, "
        "groups of warps that multiply while others promote, stores that overlap the next tile. Each is a parameter "
        "then, and other rules can change it."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Plan]]:
        product = read(kernel)
        plan = planned(product)
        yield f"ring, producer and consumers for {_shown(product)}", plan

    def change(self, edit: Edit, kernel: TritonKernel, plan: Plan) -> None:
        if set(TAKEN) & kernel.source.identifiers:
            raise Unsupported("a module that uses the names Gluon's imports would get")
        _Writer(edit, plan).write()


def _shown(product: Product) -> str:
    return f"{product.left.tensor} x {product.right.tensor}"


class _Writer(DeviceText, HostText):
    """Puts a lowering into its source."""

    def write(self) -> None:
        self.helpers = self._helpers()
        names = [function.name.value for function in self.helpers]
        self.helper_names = {name: self.source.fresh(f"{name}_lowered") for name in names}
        edit = self.edit
        self._open_tiles()
        self.tunables = {
            key: edit.add_parameter(key, values, default) for key, (values, default) in self._space().items()
        }
        self._constraints()
        edit.insert_before(self.source.statement(self.kernel.function), self._functions() + "\n\n\n")
        edit.replace_statement(self.source.statement(self.kernel.launch()), self._launches())
        edit.imports += IMPORTS

    def _space(self) -> dict[str, tuple[tuple[Any, ...], Any]]:
        space = dict(SPACE)
        opened = self._added_apart and bool(self.edit.added) and self._at_first(self.product.depth) >= 128
        space["pieces"] = (space["pieces"][0], 1 if opened else self._pieces_at_first())
        if self.product.shared:
            space["consumers"] = ((1, 2), 1)
        elif opened:  # registers of three groups' threads hold both sums and partials
            space["consumers"] = (space["consumers"][0], 3)
        if self.product.accumulates is None:
            del space["in_flight"]
        else:
            del space["pin"]
        if self.numbers is None:
            del space["ring"]
        if depths := self._depths():
            space["depth"] = (depths, 0)
        if self.stored is None:
            del space["slots"], space["parts"]
        elif self._at_first(self.product.columns) >= 64:
            space |= {key: (space[key][0], 2) for key in ("slots", "parts")}  # as much memory, halves overlap
            if self._at_first(self.product.columns) > 128:  # of which one has room beside four stages
                space["slots"] = (space["slots"][0], 1)
        return space

    def _open_tiles(self) -> None:
        """Where the source's tiles may be so, begin with 64 rows a group of warps and the columns that its registers
        hold beside them: measured on an H200, the search seldom finds both in 30 evaluations from other tiles."""
        product = self.product
        wide = 256 if product.accumulates is not None and not self._added_apart else 128
        wanted = {
            self._as_constraint(self._host_text(text)) or "": value
            for text, value in ((product.rows, 64), (product.columns, wide))
        }
        known = all(value in self.source.space.get(name, ()) for name, value in wanted.items())
        if known and len(wanted) == 2 and not product.shared:
            self.edit.added |= wanted

    def _depths(self) -> tuple[int, ...]:
        """Depths of a step where the kernel's own may be any, and nothing but the kernel reads it: 128 bytes at first,
        which an author's number seldom is in 8 and in 16 bits."""
        product = self.product
        name = self._as_constraint(self._host_text(product.depth)) or ""
        known = [v for v in (32, 64, 128, 256) if v in self.source.space.get(name, ())]
        alone = len(re.findall(rf"\w\[[\"']{name}[\"']\]", self.source.source)) == 1
        told_apart = len({product.rows, product.columns, product.depth}) == 3
        plain = product.accumulates is not None and not product.shared
        return (0, *known) if {64, 128} <= set(known) and alone and told_apart and plain else ()

    def _pieces_at_first(self) -> int:
        """Two tiles side by side where their sums fit the registers: a wide tile reads less for each product."""
        rows, columns = (self._at_first(text) for text in (self.product.rows, self.product.columns))
        sums = sum(self._is_tile(name) for name in self.plan.accumulators)
        held = 2 if self.product.accumulates is not None else 2 * sums + 1
        return 2 if rows and columns and columns <= 128 and rows * columns * held <= REGISTER_ELEMENTS else 1

    def _at_first(self, extent: str) -> int:
        """A tile's extent by the kernel's defaults; 0 where they do not say it."""
        name = self._as_constraint(self._host_text(extent))
        if name is None:
            return 0
        return int(name) if name.isdigit() else int(self.edit.added.get(name, self.source.defaults.get(name, 0)))

    def _constraints(self) -> None:
        rows, columns = self._host_text(self.product.rows), self._host_text(self.product.columns)
        names = {key: self.tunables[key] for key in self.tunables}
        row, column = (self._as_constraint(text) for text in (rows, columns))
        add = self.edit.add_constraint
        if self.product.shared and row is not None:
            row = f"({row} // {names['consumers']})"
        if row is not None:
            add(f"{row} % 64 == 0", "a group of warps multiplies 64 rows at a time")
        if column is not None:
            add(f"{column} % 16 == 0 and {column} <= 256", "columns of one matrix instruction")
        depth = self._as_constraint(self._host_text(self.product.depth))
        if depth is not None:
            add(f"{depth} % 16 == 0", "a matrix instruction takes 32 bytes of every row")
        if row is not None and column is not None:
            extra = "" if self.product.accumulates is not None else " + 1"
            add(
                f"{row} * {column} * ({names['pieces']}{extra}) <= {REGISTER_ELEMENTS}",
                "sums and partials live in the registers of one group of warps",
            )
        if "slots" in names:
            add(f"{names['slots']} <= {names['pieces']} * {names['parts']}", "a slot for every part at most")
            if column is not None:
                add(f"{column} // {names['parts']} >= 32", "a part of a tile is stored in rows of 64 bytes or more")

    def _as_constraint(self, host: str) -> str | None:
        """A host's expression in the words of constraints."""
        if host.isdigit():
            return host
        found = re.fullmatch(r"\w+\[[\"'](\w+)[\"']\]", host)
        return found[1] if found and found[1] in self.source.space else None
