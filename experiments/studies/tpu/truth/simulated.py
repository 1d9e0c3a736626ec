"""Terms of one reproduction: compiled and simulated once, then read from a cache.

The cache is a folder outside the repository: one ``.npz`` a run with the events of every operation and its counts.
"""

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.fitness.chips import CHIPS, Chip
from tilewright.fitness.tpu import simulation
from tilewright.fitness.tpu.events import Events, Kind, read_events
from tilewright.fitness.tpu.llo import (
    ExecutedWork,
    ParseError,
    opcodes_of,
    read_profile,
    scan_bundles,
    vmem_bytes,
)
from tilewright.fitness.tpu.timeline import read_critical_path
from tilewright.workers.toolchains import libtpu_simulator as recipe

ROOT = Path(__file__).resolve().parents[4]
FILE_LIMIT = 3 << 30
MEMORY_LIMIT = 15 << 30


@dataclass(frozen=True)
class Operation:
    """One HLO operation: the simulator's cycles, how often it runs, whether a Pallas kernel, counts, events."""

    name: str
    cycles: int
    count: int
    kernel: bool
    opcodes: dict[str, int]
    dmas: dict[str, int]
    dma_bytes: dict[str, int]
    spills: int
    fills: int
    vmem: int
    events: Events
    ratio: float = 1.0
    """How many times what follows the first wait is there in the whole: a grid was cut to a part."""


@dataclass(frozen=True)
class Run:
    """Everything kept of one simulated reproduction, or why there is nothing."""

    operations: tuple[Operation, ...]
    failure: str
    wall_seconds: float
    apart: bool = False
    """Whether kernels were simulated alone, and what XLA runs around them is counted by its bytes."""

    @property
    def longest(self) -> Operation:
        """The kernel that takes longest; of operations without a kernel's name the longest."""
        kernels = [op for op in self.operations if op.kernel] or self.operations
        return max(kernels, key=lambda op: op.cycles * op.count * op.ratio)


def key_of(spec: dict[str, Any]) -> str:
    """Cache key: the source's text, how it is called, the chip and the toolchain."""
    call = {name: spec[name] for name in sorted(spec) if name not in ("source", "paths", "root")}
    versions = {name: version for name, version in recipe.toolchain().items() if name != "time_model"}
    text = Path(spec["source"]).read_text() + json.dumps([call, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def simulate(spec: dict[str, Any], cache: Path, limit: float = 240.0) -> Run:
    """The run of a spec (see ``child``), compiled if the cache has none."""
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / f"{key_of(spec)}.npz"
    if not kept.is_file():
        run = _compile(spec, limit)
        _save(kept, run)
    return _load(kept)


def cached(spec: dict[str, Any], cache: Path) -> Run | None:
    """The run of a spec if it is in the cache."""
    kept = cache / f"{key_of(spec)}.npz"
    return _load(kept) if kept.is_file() else None


def _compile(spec: dict[str, Any], limit: float) -> Run:
    started = time.monotonic()
    if spec.get("around"):
        found = _attempt(spec, limit, "around")
        return _run(found, started, apart=True)
    found = "cut" if "steps" in spec else _attempt(spec, limit)
    apart = isinstance(found, str) and ("dma-general" in found or found == "cut")
    if apart:
        around, kernels = _attempt(spec, limit, "around"), _attempt(spec, limit, "apart")
        found = next((each for each in (around, kernels) if isinstance(each, str)), None) or (
            *around,
            *kernels,
        )
    return _run(found, started, apart=apart)


def _run(found: tuple[Operation, ...] | str, started: float, *, apart: bool) -> Run:
    took = time.monotonic() - started
    return Run((), found, took) if isinstance(found, str) else Run(found, "", took, apart)


def _attempt(spec: dict[str, Any], limit: float, mode: str = "") -> tuple[Operation, ...] | str:
    """What one child makes of a reproduction (``child``'s modes), or why it makes nothing."""
    chip = CHIPS[spec["chip"]]
    with tempfile.TemporaryDirectory(prefix="tpu_truth_") as name:
        folder = Path(name)
        environment = {**os.environ, **recipe.compile_environment(folder, simulate=mode != "around")}
        request = {
            "root": str(ROOT),
            "paths": [],
            **spec,
            "topology": chip.topology,
            "kind": chip.device_kind,
            "mode": mode,
        }
        (folder / "spec.json").write_text(json.dumps(request))
        child = Path(__file__).with_name("child.py")
        try:
            done = subprocess.run(
                [sys.executable, str(child), "spec.json"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit,
                preexec_fn=_limited,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"more than {limit:.0f} s to compile and simulate"
        if done.returncode != 0:
            return _reason(done)
        try:
            facts = json.loads((folder / "compiled.json").read_text())
            if mode == "around":
                return _around(facts["around"], facts["dots"], chip)
            operations = _read(folder, facts.get("ratios"))
        except ParseError as error:
            return f"dumps: {error}"
        return _followed(operations, facts["products"], chip) or operations


def _around(found: Sequence[dict[str, Any]], dots: int, chip: Chip) -> tuple[Operation, ...]:
    """XLA's operations as their copies, everything in, then everything out; matrix products together as their work."""
    made = []
    for operation in found:
        if not operation["product"]:
            sizes = [operation["read"], operation["written"]]
            made.append(_bare(operation["name"], [Kind.READ, Kind.WAIT, Kind.WRITE, Kind.WAIT], sizes, 0))
    products = [operation for operation in found if operation["product"]]
    if products:
        sizes = [sum(each[end] for each in products) for end in ("read", "written")]
        cycles = round(dots / (chip.peak("bf16") / chip.clock))
        made.append(_bare("products", [Kind.READ, Kind.WRITE, Kind.WAIT, Kind.WAIT], sizes, cycles))
    return tuple(made)


def _bare(name: str, kinds: Sequence[Kind], sizes: Sequence[int], cycles: int) -> Operation:
    """One read and one write, each with its wait, the core at work before the second wait."""
    starts = {kind: place for place, kind in enumerate(kinds) if kind != Kind.WAIT}
    ready, left = [], [starts[Kind.READ], starts[Kind.WRITE]]
    moved = []
    for kind in kinds:
        awaited = left.pop(0) if kind == Kind.WAIT else -1
        ready.append(awaited)
        moved.append(sizes[int(kind if awaited < 0 else kinds[awaited])])
    work = np.array([0, 0, cycles, 0, 0], np.int64)
    events = Events(work, np.array(kinds, np.int64), np.array(moved, np.int64), np.array(ready, np.int64))
    return Operation(name, cycles, 1, False, {}, {}, {}, 0, 0, 0, events)


def _followed(operations: Sequence[Operation], products: int | None, chip: Chip) -> str:
    """Why the simulation is not of the kernels' work; empty where it is."""
    kernels = [op for op in operations if op.kernel]
    done = sum(
        simulation.mxu_flops(ExecutedWork(opcodes=Counter(op.opcodes)), chip) * op.count for op in kernels
    )
    if products is not None and done < products:
        return f"the simulator did {done / products:.3f} of the kernels' products: it cannot follow their scalar code"
    return ""


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    for line in lines:
        if re.match(r"F\d{4} ", line):
            return line.split("] ", 1)[-1][:300]
    wanted = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return f"exit {done.returncode}: " + (wanted or lines or [""])[-1][:300]


def _read(folder: Path, ratios: Sequence[float] | None = None) -> tuple[Operation, ...]:
    """Every simulated operation. ``ratios``: of the kernels of a module of kernels alone, in their order."""
    found = []
    profiles = sorted((folder / "prof").glob("*_static_llo_profile.textproto"))
    if not profiles:
        raise ParseError("the simulator wrote no profile")
    kernels = json.loads((folder / "compiled.json").read_text())["kernels"]
    ratio_of = dict(zip(kernels, ratios, strict=True)) if ratios else {}
    originals = {path: path.read_text(errors="replace") for path in (folder / "llo").glob("*original.txt")}
    for path in profiles:
        profile = read_profile(path.read_text(errors="replace"))
        bundles = path.parent / f"{profile.name}_bundles.txt"
        critical = path.parent / f"{profile.name}_critical_path.txt"
        if not bundles.is_file() or not critical.is_file():
            raise ParseError(f"no bundles of {profile.name}")
        text = bundles.read_bytes()
        counts = scan_bundles(text, opcodes_of(text))
        own = [
            t for p, t in originals.items() if f"-{profile.name}-" in p.name or f"-{profile.name}." in p.name
        ]
        found.append(
            Operation(
                profile.name,
                profile.cycles,
                profile.count,
                profile.name in kernels,
                dict(counts.opcodes),
                dict(counts.dmas),
                dict(counts.dma_bytes),
                counts.spills,
                counts.fills,
                vmem_bytes(own),
                read_events(text, read_critical_path(critical.read_bytes(), profile.cycles), profile.cycles),
                ratio_of.get(profile.name, 1.0),
            )
        )
    return tuple(found)


def _save(path: Path, run: Run) -> None:
    record: dict[str, Any] = {
        "failure": run.failure,
        "wall_seconds": run.wall_seconds,
        "apart": run.apart,
        "operations": [],
    }
    arrays = {}
    for number, op in enumerate(run.operations):
        record["operations"].append({k: v for k, v in vars(op).items() if k != "events"})
        for field, values in vars(op.events).items():
            arrays[f"{number}.{field}"] = values
    temporary = path.with_suffix(".part.npz")
    np.savez_compressed(temporary, told=np.array(json.dumps(record)), **arrays)
    os.replace(temporary, path)


def _load(path: Path) -> Run:
    with np.load(path) as kept:
        record = json.loads(str(kept["told"]))
        operations = tuple(
            Operation(
                **entry, events=Events(*(kept[f"{n}.{f}"] for f in ("work", "kinds", "sizes", "ready")))
            )
            for n, entry in enumerate(record["operations"])
        )
    return Run(operations, record["failure"], record["wall_seconds"], record.get("apart", False))
