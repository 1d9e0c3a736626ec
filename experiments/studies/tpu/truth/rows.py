"""The truth set: a folder of kernel times that others measured, with what reproduces each kernel.

``rows.jsonl`` holds one row a line: ``id``, ``set``, ``chip``, ``kind``, ``lineage`` (rows of one are compared with
each other), ``measured_ms`` (raw times), ``spec`` (what ``child`` compiles, ``source`` relative to the folder),
``units`` (how many times the measured kernel is what was compiled), ``host_ms`` (time of the host in the measurement),
``second`` (``config`` of a second, larger reproduction and ``reach``: how many times the step from the first to it
leads to what was measured), ``whole`` (arguments of what was measured that differ: XLA's operations are those around
the whole, and of the reproduction its kernels alone count), ``copy_bytes`` (of copies of results that were measured,
too), ``grouped`` (of a grouped product: its schedule, see ``grouped``), ``provenance`` (repository, commit, file).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.studies.tpu.truth.grouped import grouped_events
from experiments.studies.tpu.truth.simulated import Operation, Run, simulate
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay

CALLED = "call_exported"


@dataclass(frozen=True)
class Row:
    """One measured time and how to reproduce its kernel; see the module."""

    id: str
    set: str
    chip: str
    kind: str
    lineage: str
    measured_ms: list[float]
    spec: dict[str, Any]
    provenance: dict[str, str]
    units: float = 1.0
    host_ms: float = 0.0
    copy_bytes: int = 0
    grouped: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The median of what was measured, the host's part left out."""
        return (median(self.measured_ms) - self.host_ms) * 1e-3

    @property
    def fitted(self) -> bool:
        """Whether constants may be fitted to it: one half, by a hash of the row."""
        return int(hashlib.sha256(self.id.encode()).hexdigest(), 16) % 2 == 0

    def specs(self, folder: Path) -> list[dict[str, Any]]:
        """What to compile: one reproduction, two of different sizes, or one and what XLA runs around the whole."""
        first = {**self.spec, "chip": self.chip, "source": str(folder / self.spec["source"])}
        if self.whole:
            return [{**first, "arguments": {**first["arguments"], **self.whole}, "around": True}, first]
        return [first, {**first, "config": self.second["config"]}] if self.second else [first]

    def runs(self, folder: Path, cache: Path) -> list[Run]:
        """The simulated reproductions."""
        return [simulate(spec, cache) for spec in self.specs(folder)]

    def modelled(self, runs: Sequence[Run], rules: Rules) -> float:
        """Seconds by the model, the host's part left out."""
        if self.whole:
            around, alone = runs
            kernels = sum(self._scaled(op, rules) for op in alone.operations if op.kernel)
            return kernels + sum(replay(op.events, rules).seconds * op.count for op in around.operations)
        first, *more = (self._modelled(run, rules) for run in runs)
        return first + (more[0] - first) * float(self.second["reach"]) if more else first

    def _modelled(self, run: Run, rules: Rules) -> float:
        copies = self.copy_bytes / 2 * (1 / rules.read + 1 / rules.write)
        if self.grouped:
            return replay(self.events(run), rules).seconds + copies
        return sum(self._scaled(op, rules) for op in run.operations) + copies

    def events(self, run: Run) -> Events:
        """Of a grouped product as a whole."""
        product = max(run.operations, key=lambda op: op.cycles)
        facts = self.grouped
        return grouped_events(
            facts["kind"],
            facts["shape"],
            facts["sizes"],
            facts["tiles"],
            facts["buffers"],
            int(product.events.work.sum()) / facts["steps"],
        )

    def _scaled(self, op: Operation, rules: Rules) -> float:
        """One operation ``units`` times: a pipeline fills and drains once, XLA's operations are their bytes."""
        whole = replay(op.events, rules).seconds
        if self.units * op.ratio == 1:
            return whole * op.count
        if not (op.kernel or op.name.startswith(CALLED)):
            sizes = {kind: op.events.sizes[op.events.kinds == kind].sum() for kind in (Kind.READ, Kind.WRITE)}
            return (
                float(sizes[Kind.READ] / rules.read + sizes[Kind.WRITE] / rules.write) * self.units * op.count
            )
        fill = replay(_until_first_wait(op.events), rules).seconds
        drain = whole - replay(_without_last_waits(op.events), rules).seconds
        return (fill + (whole - fill - drain) * self.units * op.ratio + drain) * op.count


def read_rows(folder: Path) -> list[Row]:
    """All rows of a truth set."""
    with (folder / "rows.jsonl").open(encoding="utf-8") as lines:
        return [Row(**json.loads(line)) for line in lines if line.strip()]


def _until_first_wait(events: Events) -> Events:
    """What happens before the first wait is over: a pipeline fills."""
    waits = np.flatnonzero(events.kinds == Kind.WAIT)
    if not len(waits):
        return Events.idle(0)
    end = int(waits[0]) + 1
    work = np.append(events.work[:end], 0)
    return Events(work, events.kinds[:end], events.sizes[:end], events.ready[:end])


def _without_last_waits(events: Events) -> Events:
    """The same, but that nothing is waited for once the last copy was started: a pipeline goes on."""
    starts = np.flatnonzero(events.kinds != Kind.WAIT)
    ready = events.ready.copy()
    ready[starts[-1] + 1 if len(starts) else 0 :] = -1
    return Events(events.work, events.kinds, events.sizes, ready)
