"""NVIDIA's compute-sanitizer on kernels that are about to be promoted, where a device and the tool are.

Each tool runs in a process of its own, in which every kernel runs once on each shape that it is checked on. An access
at fault or a barrier used wrongly refuses the promotion. Hazards that racecheck counts go into the receipt and refuse
nothing: it does not follow an order that goes through one lane's arrival at a barrier.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.serving import legal_shapes
from tilewright.evolve.promote.verify import Refusal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.gpus import Gpu
from tilewright.library import store

TOOL = "compute-sanitizer"
TOOLS = {"memcheck": True, "synccheck": True, "racecheck": False}
"""By tool, whether what it finds refuses a promotion."""

SECONDS = 90.0
DONE = "all kernels ran"
_SUMMARY = re.compile(r"SUMMARY: (\d+) ")


def examine(
    resolved: Resolved,
    operator: str,
    files: Mapping[str, bytes],
    receipt: Mapping[str, Any],
    genomes: list[Genome],
) -> dict[str, int | str]:
    """By tool, what it counted in these kernels of a version; why not, where it did not end. Raises Refusal."""
    program = shutil.which(TOOL)
    if program is None or not resolved.target.measured or not isinstance(resolved.target.part, Gpu):
        return {}
    checked = {w.id: dict(w.dims) for w in resolved.suite.check}
    shapes = {g.id: [checked[w] for w in sorted(legal_shapes(resolved, g) & checked.keys())] for g in genomes}
    with tempfile.TemporaryDirectory() as folder:
        writer = LibraryWriter(Path(folder))
        with writer.writing():
            version = writer.add(operator, files, dict(receipt), {"action": "promote"})
        place = writer.place(operator) / "versions" / version
        told = json.dumps([resolved.config.operator, str(place), shapes])
        command = [sys.executable, "-m", __name__, told]
        runs = {
            tool: subprocess.Popen(
                [program, "--tool", tool, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for tool in TOOLS
        }
        return {tool: _reading(tool, run) for tool, run in runs.items()}


def _reading(tool: str, run: subprocess.Popen[str]) -> int | str:
    try:
        text, _ = run.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        run.kill()
        return f"no answer in {SECONDS:g} s"
    found = _SUMMARY.search(text)
    lines = [line.strip("= \n") for line in text.splitlines()]
    if found is None or DONE not in lines:
        return f"did not end: {next((line for line in reversed(lines) if line), 'no text')[:200]}"
    if int(found[1]) and TOOLS[tool]:
        first = next(line for line in lines if line and DONE not in line and TOOL.upper() not in line)
        raise Refusal(
            f"promotion refused: {tool} counts {found[1]} errors in its kernels, first: {first[:200]}."
        )
    return int(found[1])


def _run(operator: str, version: Path, shapes: Mapping[str, list[dict[str, int]]]) -> None:
    """Every kernel once on each of its shapes."""
    import torch

    from tilewright.library import torch_launch
    from tilewright.library.torch_load import to_torch
    from tilewright.seeds.catalogue import load_operator
    from tilewright.seeds.operator import Workload

    device, made = torch.device("cuda:0"), load_operator(operator)
    table = store.version_table(version, torch_launch.device_key(device))
    kernels = {region.kernel.name: region.kernel for region in table.regions}
    for name, sizes in shapes.items():
        for dims in sizes:
            workload = Workload("check", dims)
            arrays = made.make_inputs(workload, 0, made.input_kinds[0])
            inputs = {
                spec.name: to_torch(arrays[spec.name], spec.dtype, device) for spec in made.inputs(workload)
            }
            order = tuple(dims[dimension] for dimension in table.dimensions)
            torch_launch.from_source(kernels[name], table.operands, order, device)(inputs)
    torch.cuda.synchronize()
    sys.stdout.write(f"{DONE}\n")


if __name__ == "__main__":
    _operator, _version, _shapes = json.loads(sys.argv[1])
    _run(_operator, Path(_version), _shapes)
