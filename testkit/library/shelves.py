"""Libraries for tests, filled with seed kernels without the hours a promotion takes."""

import json
from collections.abc import Mapping
from typing import Any

from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.version_files import fitted_operands, kernel_files, language
from tilewright.evolve.space.space import read_declarations
from tilewright.library import store
from tilewright.seeds.catalogue import load_operator


def put(
    writer: LibraryWriter,
    operator: str,
    seed: str,
    shapes: tuple[tuple[int, ...], ...],
    *,
    serves: str = store.INTERPRET,
    target: str = "interpreter",
    params: Mapping[str, Any] | None = None,
    toolchain: Mapping[str, tuple[str, str]] | None = None,
) -> str:
    """A version that serves ``operator`` with a seed kernel near ``shapes``; its id."""
    known = load_operator(operator)
    source = known.kernels[seed].source
    declared = read_declarations(source)
    point = {**declared.defaults, **known.kernels[seed].overrides, **(params or {})}
    facts, files = kernel_files(operator, target, source)
    files["kernel.py"] = files.pop(facts["file"])
    facts["file"] = "kernel.py"
    names = ("M", "N", "K") if len(shapes[0]) == 3 else ("M", "K")
    kernel = {**facts, "params": point, "constraints": list(declared.constraints)}
    entry = {
        "kind": "measured",
        "serves": [serves],
        "language": language(source),
        "toolchain": toolchain or {},
        "constants": {**known.constants, "vmem_bytes": 64 << 20},
        "reach": 8.0,
        "kernels": {seed: kernel},
        "regions": [
            {"workload": "x".join(map(str, shape)), "dims": dict(zip(names, shape, strict=True)), "kernel": seed}
            for shape in shapes
        ],
    }
    dispatch = {"format": store.FORMAT, "operator": operator, "dimensions": list(names), "targets": {target: entry}}
    if (operands := fitted_operands(known, names)) is not None:
        dispatch["operands"] = operands.data()
    files = {**files, store.DISPATCH: json.dumps(dispatch).encode()}
    receipt = {"format": store.FORMAT, "operator": operator, "targets": {target: {"test": True}}}
    with writer.writing():
        return writer.add(operator, files, receipt, {"action": "promote"})


SMALL = {"block_m": 64, "block_n": 64, "num_stages": 2, "group_m": 4}
"""Tiles of the plain Triton product that its interpreter gets through quickly."""
