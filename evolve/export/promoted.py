"""A promoted operator as exports see it: kernels, table, operands and receipt of its current version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.version_files import fitted_operands
from tilewright.library import operands, store
from tilewright.library.dispatch_rule import all_told
from tilewright.seeds.catalogue import UnknownOperator, load_operator


class Disagreement(UserError):
    """What the other program asks for is not what was promoted or won."""


@dataclass(frozen=True)
class PromotedKernel:
    """One kernel: ``module`` is its name as a Python module."""

    name: str
    module: str
    source: str
    params: Mapping[str, Any]
    constraints: tuple[str, ...]


@dataclass(frozen=True)
class PromotedTable:
    """What a version offers on one target. ``regions``: (workload, dimensions, kernel's name), in order.

    ``shares``: by region the fraction of the roofline, where the table has it.
    """

    operator: str
    target: str
    version: str
    language: str
    dimensions: tuple[str, ...]
    operands: operands.Operands
    constants: Mapping[str, float]
    reach: float
    kernels: Mapping[str, PromotedKernel]
    regions: tuple[tuple[str, Mapping[str, int], str], ...]
    receipt: bytes
    shares: list[float] | None = None

    @property
    def receipt_name(self) -> str:
        """Where the receipt lies below a package's folder; its SHA-256 begins with the version."""
        return f"kernels/{self.operator}/versions/{self.version}/{store.RECEIPT}"


def promoted(writer: LibraryWriter, operator: str, target: str | None) -> PromotedTable:
    """The current version's table for ``target``; None: its only one. Raises UserError."""
    version, _, dispatch = writer.version(operator)
    targets = dispatch["targets"]
    if target is None and len(targets) > 1:
        raise UserError(f"--target: {operator} is promoted for {', '.join(targets)}; name one.")
    name = target or next(iter(targets))
    if name not in targets:
        raise UserError(f"--target: {operator} is not promoted for {name} (allowed: {', '.join(targets)}).")
    entry, dimensions = targets[name], tuple(dispatch["dimensions"])
    kernels = {}
    for genome, kernel in entry["kernels"].items():
        source = writer.source(operator, version, kernel)
        constraints = tuple(kernel["constraints"])
        kernels[genome] = PromotedKernel(genome, f"kernel_{genome}", source, kernel["params"], constraints)
    return PromotedTable(
        operator,
        name,
        version,
        entry["language"],
        dimensions,
        _operands(operator, dispatch, dimensions),
        entry["constants"],
        float(entry["reach"]),
        kernels,
        tuple((r["workload"], r["dims"], r["kernel"]) for r in entry["regions"]),
        (writer.place(operator) / "versions" / version / store.RECEIPT).read_bytes(),
        all_told([region.get("share") for region in entry["regions"]]),
    )


def _operands(operator: str, dispatch: Mapping[str, Any], dimensions: tuple[str, ...]) -> operands.Operands:
    if recorded := dispatch.get("operands"):
        return operands.read(recorded, dimensions)
    try:
        found = fitted_operands(load_operator(operator), dimensions)
    except UnknownOperator:
        found = None
    if found is None:
        raise UserError(f"{operator}: its version lacks the shapes of its operands; promote it again.")
    return found
