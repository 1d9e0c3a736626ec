"""The driver against a simulated cluster: the real campaign, journal and searcher, workers on virtual time.

    python -m experiments.studies.cluster.simulation --workers 1000 --evaluations 10000 --out experiments/records

Latencies are log-normal around 30 s; some evaluations hang until their deadline and some workers are lost, both
retried as the Ray pool does. Virtual time costs nothing, so what the clock of the process counts is the driver: the
searcher, the journal and the requests that would go to the workers. Figures are of a simulation (modelled), but for
the driver's CPU time and memory, which are measured on this machine.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Order, Plan, Start
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import ParameterProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import HELD, History
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.workers.cluster.artefacts import Told
from tilewright.workers.cluster.retries import RETRIES
from tilewright.workers.cluster.work import request_for

MEDIAN_SECONDS, SPREAD = 30.0, 0.4
DEADLINE_SECONDS = 390.0
HANG_SHARE, LOSS_SHARE, RESTART_SECONDS = 0.001, 0.002, 10.0
LEVELS = 8

SOURCE = f'''"""A kernel with many knobs."""

SPACE = {{{", ".join(f'"p{n}": {tuple(2**i for i in range(LEVELS))}' for n in range(8))}}}
DEFAULTS = {{{", ".join(f'"p{n}": 1' for n in range(8))}}}
CONSTRAINTS = {{}}


def build(params):
    return params
'''


@dataclass
class Cluster:
    """``wait`` moves the clock to the next event. All times in virtual seconds."""

    workers: int
    rng: np.random.Generator
    now: float = 0.0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    retried: int = 0
    request_bytes: int = 0
    finished: int = 0
    _free: list[Told] = field(default_factory=list)
    _queue: deque[Job] = field(default_factory=deque)
    _events: list[tuple[float, int, str, Job | None, float, Told]] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self._free = [Told() for _ in range(self.workers)]

    @property
    def slots(self) -> int:
        return self.workers

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        self._assign()

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        done: list[tuple[int, Evaluation]] = []
        while self._events and not done:
            self.now, _, kind, job, useful, told = heapq.heappop(self._events)
            self.busy_seconds += useful
            if kind == "up" or job is None:
                self._free.append(told)
            else:
                done += self._ended(kind, job, told)
            self._assign()
        self.finished += len(done)
        return done

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None: ...

    def _assign(self) -> None:
        while self._free and self._queue:
            told, job = self._free.pop(), self._queue.popleft()
            self.request_bytes += len(request_for(job, told))
            luck = self.rng.random()
            seconds = float(self.rng.lognormal(math.log(MEDIAN_SECONDS), SPREAD))
            if luck < HANG_SHARE:
                self._later(DEADLINE_SECONDS, "hung", job, told)
            elif luck < HANG_SHARE + LOSS_SHARE:
                self._later(seconds * float(self.rng.random()), "lost", job, told)
            else:
                self._later(seconds, "done", job, told, seconds)

    def _later(self, seconds: float, kind: str, job: Job | None, told: Told, useful: float = 0.0) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + seconds, self._sequence, kind, job, useful, told))

    def _ended(self, kind: str, job: Job, told: Told) -> list[tuple[int, Evaluation]]:
        if kind == "done":
            self._free.append(told)
            return [(job.index, judge(job.genome))]
        self._later(RESTART_SECONDS, "up", None, Told())
        if self._attempts.get(job.index, 0) < RETRIES:
            self._attempts[job.index] = self._attempts.get(job.index, 0) + 1
            self.retried += 1
            self._queue.append(job)
            return []
        return [(job.index, answer(job.genome, None, f"the worker was {kind}"))]


def judge(genome: Genome) -> Evaluation:
    """A smooth landscape, an eighth of it incorrect."""
    levels = [math.log2(int(value)) for value in genome.params.values()]
    if sum(map(int, levels)) % 8 == 5:
        return answer(genome, None, "gate exact on randn: 12.0 dB, at least 45 dB needed")
    return answer(genome, 1000.0 - sum((level - 4.5) ** 2 for level in levels), "")


def answer(genome: Genome, fitness: float | None, reason: str) -> Evaluation:
    infra = reason.startswith("the worker")
    ok = fitness is not None
    verdict = Verdict.OK if ok else Verdict.INFRA_ERROR if infra else Verdict.INCORRECT
    figures = ()
    if fitness is not None:
        figures = tuple(
            WorkloadFigures(
                workload=f"w{n}",
                seconds=1e-3 / fitness,
                tflops=fitness,
                roofline_fraction=0.5,
                kind=FigureKind.MODELLED,
                diagnosis={"cycles": 1000, "units": {"mxu": 0.5, "valu": 0.25}},
            )
            for n in range(4)
        )
    return Evaluation(
        genome=genome.id,
        target="simulated",
        suite="simulated",
        stage=Stage.MEASURE if ok else Stage.CHECK,
        verdict=verdict,
        reason=reason,
        fitness=fitness,
        workloads=figures,
        descriptors={"p0": str(genome.params["p0"]), "p1": str(genome.params["p1"])},
        artefact=genome.id if ok else None,
    )


def simulate(workers: int, evaluations: int, lag: int, folder: Path, marks: int = 10) -> dict[str, Any]:
    """One campaign: useful worker seconds over all, and the driver's CPU and memory on the way.

    The rows' utilisation is of the time since the row before; the whole campaign's includes its start and its end.
    """
    archive, space = Archive(4, 50), Space.from_source(SOURCE)
    cluster = Cluster(workers, np.random.default_rng(1))
    rows: list[dict[str, float]] = []
    begun = time.process_time()
    last = [begun, 0.0, 0.0, 0.0]

    def progress(campaign: Campaign) -> None:
        if cluster.finished - last[1] < max(1, evaluations // marks):
            return
        spent = time.process_time()
        rows.append(
            {
                "evaluations": cluster.finished,
                "driver_cpu_ms_per_evaluation": 1e3 * (spent - last[0]) / (cluster.finished - last[1]),
                "rss_mib": _rss_mib(),
                "utilisation": (cluster.busy_seconds - last[2]) / (workers * (cluster.now - last[3])),
                "request_kib": cluster.request_bytes / cluster.finished / 1024,
            }
        )
        last[:] = [spent, cluster.finished, cluster.busy_seconds, cluster.now]
        sys.stderr.write(json.dumps(rows[-1]) + "\n")

    defaults = {f"p{n}": 1 for n in range(8)}
    plan = Plan([Start("seed", Genome(SOURCE, defaults))], Budget(evaluations), 1, lag, 4, Order.ARRIVAL)
    with Journal(folder / "journal.sqlite", write=True, create=True) as journal:
        searcher = Portfolio([ParameterProposer(archive, lambda source: space)])
        campaign = Campaign(
            plan, searcher, archive, cluster, journal, on_progress=progress, history=History(journal)
        )
        campaign.run()
        recorded = sum(1 for _ in journal.evaluations())
    per = 1e3 * (time.process_time() - begun) / max(1, cluster.finished)
    return {
        "workers": workers,
        "lag": lag,
        "evaluations": recorded,
        "virtual_hours": cluster.now / 3600,
        "utilisation": cluster.busy_seconds / (workers * cluster.now),
        "driver_cpu_ms_per_evaluation": per,
        "driver_cores_in_real_time": per * 1e-3 * recorded / cluster.now,
        "retried": cluster.retried,
        "journal_mib": (folder / "journal.sqlite").stat().st_size / 2**20,
        "rows": rows,
    }


def _rss_mib() -> float:
    """Resident memory now, or its peak where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def markdown(found: Mapping[str, Any]) -> str:
    """The record of a run. Growth is the slope of memory over the second half."""
    rows = found["rows"]
    late = rows[len(rows) // 2 :]
    counts, sizes = ([row[key] for row in late] for key in ("evaluations", "rss_mib"))
    slope = float(np.polyfit(counts, sizes, 1)[0]) * 2**20 if len(late) > 1 else math.nan
    lines = [
        f"# The driver against {found['workers']:,} simulated workers, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python -m experiments.studies.cluster.simulation --workers {found['workers']} --evaluations "
        f"{found['budget']}`:",
        f"the real campaign (order of arrival, lag {found['lag']}), searcher, archive, journal and requests; workers",
        f"in virtual time, log-normal latencies around {MEDIAN_SECONDS:.0f} s, one in 1,000 hanging to its deadline of",
        f"{DEADLINE_SECONDS:.0f} s, two in 1,000 lost. Latency, hangs, losses, utilisation are simulated (modelled);",
        "CPU time and memory of the driver are measured.",
        "",
        "| evaluations | utilisation since the row before | driver CPU an evaluation | memory | request on average |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['evaluations']} | {100 * row['utilisation']:.1f} % | {row['driver_cpu_ms_per_evaluation']:.2f} ms "
            f"| {row['rss_mib']:.0f} MiB | {row['request_kib']:.1f} KiB |"
        )
    lines += [
        "",
        f"* Utilisation of the whole campaign, start and end included: {100 * found['utilisation']:.1f} %.",
        f"* Driver: {found['driver_cpu_ms_per_evaluation']:.2f} ms of CPU an evaluation; in real time "
        f"{found['driver_cores_in_real_time']:.3f} of a core, without Ray's own work.",
        f"* Memory grows by {slope:.0f} bytes an evaluation over the second half. The latest {HELD} candidates and",
        "  evaluations are held whole; of an older one its hash, place, fitness, artefact and point of the space.",
        f"* {found['evaluations']} evaluations are {found['virtual_hours'] * 60:.0f} minutes of these workers;",
        f"  simulating them took {found['wall_seconds'] / 60:.1f} minutes. Journal: {found['journal_mib']:.0f} MiB.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("--lag", type=int, help="proposals in flight; workers and a twentieth by default")
    parser.add_argument("--out", type=Path, help="folder for cluster_sim.json and .md")
    arguments = parser.parse_args()
    lag = arguments.lag or arguments.workers + arguments.workers // 20
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = simulate(arguments.workers, arguments.evaluations, lag, Path(folder))
    found.update(budget=arguments.evaluations, wall_seconds=time.monotonic() - began)
    if arguments.out:
        (arguments.out / "cluster_sim.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "cluster_sim.md").write_text(markdown(found))
    sys.stdout.write(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
