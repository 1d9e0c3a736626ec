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

from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.serving import legal_shapes
from tilewright.evolve.promote.verify import Refusal
from tilewright.evolve.promote.version_files import Promotion
from tilewright.fitness.gpus import Gpu
from tilewright.library import store

TOOL = "compute-sanitizer"
TOOLS = {"memcheck": True, "synccheck": True, "racecheck": False}
"""By tool, whether what it finds refuses a promotion."""

SECONDS = 90.0
DONE = "all kernels ran"


def examine(promotion: Promotion, files: Mapping[str, bytes], receipt: Mapping[str, Any]) -> dict[str, int | str]:
    """By tool, what it counted in the new kernels of a version; why not, where it did not end. Raises Refusal."""
    resolved, used = promotion.nomination.resolved, {shape.genome for shape in promotion.judgement.shapes}
    genomes = [c.genome for c in promotion.nomination.candidates if c.genome.id in used]
    program, target = shutil.which(TOOL), resolved.target
    if program is None or not target.measured or not isinstance(target.part, Gpu):
        return {}
    checked = {w.id: dict(w.dims) for w in resolved.suite.check}
    shapes = {g.id: [checked[w] for w in sorted(legal_shapes(resolved, g) & checked.keys())] for g in genomes}
    with tempfile.TemporaryDirectory() as folder:
        writer = LibraryWriter(Path(folder))
        with writer.writing():
            version = writer.add(promotion.operator, files, dict(receipt), {"action": "promote"})
        place = str(writer.place(promotion.operator) / "versions" / version)
        child = [sys.executable, "-m", __name__, json.dumps([resolved.config.operator, place, shapes])]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        runs = {tool: subprocess.Popen([program, "--tool", tool, *child], **pipe) for tool in TOOLS}  # type: ignore[call-overload]
        try:
            return {tool: _reading(tool, run) for tool, run in runs.items()}
        finally:
            for run in runs.values():  # of a tool that is not asked after another one refused
                run.kill()
                run.wait()


def _reading(tool: str, run: subprocess.Popen[str]) -> int | str:
    try:
        text, _ = run.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        run.kill()
        return f"no answer in {SECONDS:g} s"
    found = re.search(r"SUMMARY: (\d+) ", text)
    lines = [plain for line in text.splitlines() if (plain := line.strip("= "))]
    if found is None or DONE not in lines:
        return f"did not end: {lines[-1][:200] if lines else 'no text'}"
    if int(found[1]) and TOOLS[tool]:
        first = next(line for line in lines if line not in (DONE, TOOL.upper()))
        raise Refusal(f"promotion refused: {tool} counts {found[1]} errors in its kernels, first: {first[:200]}.")
    return int(found[1])


def _run(operator: str, version: str, shapes: Mapping[str, list[dict[str, int]]]) -> None:
    """Every kernel once on each of its shapes."""
    import torch

    from tilewright.library import torch_launch
    from tilewright.library.torch_load import to_torch
    from tilewright.seeds.catalogue import load_operator
    from tilewright.seeds.operator import Workload

    device, made = torch.device("cuda:0"), load_operator(operator)
    table = store.version_table(Path(version), torch_launch.device_key(device))
    kernels = {region.kernel.name: region.kernel for region in table.regions}
    for name, dims in ((name, dims) for name, sizes in shapes.items() for dims in sizes):
        workload = Workload("check", dims)
        arrays = made.make_inputs(workload, 0, made.input_kinds[0])
        inputs = {s.name: to_torch(arrays[s.name], s.dtype, device) for s in made.inputs(workload)}
        order = tuple(dims[dimension] for dimension in table.dimensions)
        torch_launch.from_source(kernels[name], table.operands, order, device)(inputs)
    torch.cuda.synchronize()
    sys.stdout.write(f"{DONE}\n")


if __name__ == "__main__":
    _run(*json.loads(sys.argv[1]))
