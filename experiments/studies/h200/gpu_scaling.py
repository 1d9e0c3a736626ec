"""Several GPUs of one machine: evaluations per hour against one GPU, and whether devices agree on a kernel's time.

    python -m experiments.studies.h200.gpu_scaling --gpus 2 --out experiments/records      on a machine with two H200

Both arms run the campaign's own loop, journal, pool and cascade over a list of genomes (a searcher that reads it out
instead of choosing): one GPU over its beginning, all GPUs over the whole, so that each GPU has as many evaluations and
worker processes in either arm, and a campaign's beginning and end weigh the same. Every kernel is compiled before the
first of them, and workers have answered once. Then the seeds are timed side by side on all devices at the same time,
twice: the second time says what one device's own repeatability is. Writes ``gpu_scaling.json`` and ``gpu_scaling.md``,
after each part what there is by then. All figures are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Order, Plan
from tilewright.evolve.campaign.preparation import pool_settings
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import History, Mutation, MutationKind, Proposal
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.intervals import Ratio, paired_ratio
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.pool import RayPool
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.device.calibration import CARRIED
from tilewright.workers.device.comparison import Comparison

ENOUGH = 0.9
"""Of linear scaling."""

ARM_SECONDS = 75.0
"""No proposals after so much of one arm."""


@dataclass(frozen=True)
class Listed:
    """A searcher that reads out a list."""

    genomes: Sequence[Genome]

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """The next of the list; None at its end."""
        place = len(history.candidates)
        if place >= len(self.genomes):
            return None
        mutation = Mutation(MutationKind.PARAMETER, "listed", f"point {place} of the list")
        return Proposal(self.genomes[place], (), mutation)


@dataclass
class Recording:
    """The pool, with the time of every arrival, in seconds of the monotonic clock."""

    pool: RayPool
    arrivals: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def slots(self) -> int:
        return self.pool.slots

    def submit(self, job: Job) -> None:
        self.pool.submit(job)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        found = [
            one for one in self.pool.wait(timeout_seconds) if one[0] >= 0
        ]  # not what was left to warm up
        self.arrivals += [time.monotonic()] * len(found)
        self.evaluations += [evaluation for _, evaluation in found]
        return found

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return self.pool.activity()

    def close(self) -> None: ...


def listed(resolved: Resolved, count: int, seed: int) -> list[Genome]:
    """The seeds, then random legal points of their spaces in turn, each once."""
    rng = np.random.default_rng(seed)
    sources = [start.genome.source for start in resolved.starts]
    spaces = [resolved.space(source) for source in sources]
    found = {start.genome.id: start.genome for start in resolved.starts}
    for number in range(20 * count):
        which = number % len(sources)
        genome = Genome(sources[which], spaces[which].sample(rng))
        if len(found) < count:
            found.setdefault(genome.id, genome)
    return list(found.values())


def drain(pool: RayPool, jobs: Sequence[Job], seconds: float) -> float:
    """Have jobs evaluated, whatever comes of them; the wall seconds it took."""
    began, left = time.monotonic(), len(jobs)
    for job in jobs:
        pool.submit(job)
    while left and time.monotonic() - began < seconds:
        left -= len(pool.wait(0.25))
    return time.monotonic() - began


def warm(pool: RayPool, genomes: Sequence[Genome], seconds: float) -> float:
    """Compile every genome and time it on one shape."""
    return drain(
        pool, [Job(-1 - n, genome, 1, scope=Scope.TIMELINE) for n, genome in enumerate(genomes)], seconds
    )


def arm(pool: RayPool, resolved: Resolved, genomes: Sequence[Genome], lag: int) -> dict[str, Any]:
    """One campaign over the list."""
    recording, archive = Recording(pool), Archive(1, 50)
    budget = Budget(len(genomes), wall_seconds=ARM_SECONDS)
    plan = Plan(resolved.starts, budget, resolved.config.seed, lag, 1, Order.ARRIVAL, must_pass=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(Path(folder) / "journal.sqlite", write=True, create=True) as journal,
    ):
        campaign = Campaign(plan, Listed(genomes), archive, recording, journal)
        began, cpu = time.monotonic(), time.process_time()
        reason = campaign.run()
    seconds = recording.arrivals[-1] - began
    devices = Counter(
        str(next((f.diagnosis.get("device", "the only one") for f in e.workloads), "none"))
        for e in recording.evaluations
    )
    return {
        "devices": max(1, len(pool.scales)),
        "evaluations": len(recording.evaluations),
        "seconds": seconds,
        "evaluations_per_hour": 3600 * len(recording.evaluations) / seconds,
        "stopped": reason.value,
        "verdicts": Counter(e.verdict.value for e in recording.evaluations),
        "by_device": devices,
        "confirmed": sum(
            "confirmation" in e.workloads[0].diagnosis for e in recording.evaluations if e.workloads
        ),
        "driver_cpu_seconds": time.process_time() - cpu,
        "wall_seconds_of_an_evaluation": statistics.median(e.wall_seconds for e in recording.evaluations),
        "arrivals": [at - began for at in recording.arrivals],
    }


@contextlib.contextmanager
def started(settings: PoolSettings) -> Iterator[tuple[RayPool, float]]:
    """A pool in service, and how many seconds its start took."""
    pool, began = RayPool(settings), time.monotonic()
    try:
        pool.start()
        yield pool, time.monotonic() - began
    finally:
        pool.close()


def agreement(
    pool: RayPool, comparisons: Sequence[Sequence[Comparison]], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Per kernel and device after the first: its times over the first's, raw and calibrated, beside the noise.

    ``comparisons``: of each repeat, one a device. They agree when what is left after calibration is no more than the
    interval, the calibration's error and the larger difference of two repeats on one device.
    """
    first, again = comparisons[0], comparisons[-1]
    scales = list(pool.scales.values())  # in the order of the stations
    rows = []
    for place in range(1, len(first)):
        for genome in first[0].genomes:
            if not all(genome in c.genomes for c in (*first, *again)):
                continue
            ratio = between(first[place], first[0], genome)
            repeats = [between(again[n], first[n], genome).value for n in (0, place)]
            left = ratio.value / scales[place].ratio
            own = genome == first[0].genomes[0]  # the kernel that devices were calibrated with
            carried = math.sqrt(max(0.0, scales[place].error ** 2 - (CARRIED**2 if own else 0.0)))
            noise = (
                math.log(ratio.high / ratio.low) / 2 + 1.96 * carried + max(abs(math.log(r)) for r in repeats)
            )
            rows.append(
                {
                    "kernel": names.get(genome, genome),
                    "device": place,
                    "raw": dataclasses.asdict(ratio),
                    "calibrated": left,
                    "repeats": repeats,
                    "noise": noise,
                    "agree": abs(math.log(left)) <= noise,
                }
            )
    return rows


def between(over: Comparison, under: Comparison, genome: str) -> Ratio:
    """One kernel's times in two comparisons, over all shapes."""
    return paired_ratio(*({w: r[genome] for w, r in one.rounds.items()} for one in (over, under)))


def markdown(found: Mapping[str, Any]) -> str:
    """What there is, as tables."""
    lines = [
        f"# Several GPUs of one machine, {found['date']}",
        "",
        f"`{found['command']}`; {found['about']}",
        "",
    ]
    arms = [found[name] for name in ("one", "all") if name in found]
    if arms:
        lines += [
            "| devices | evaluations | seconds | evaluations per hour (measured) | by device | met a champion |",
            "| ---: | ---: | ---: | ---: | --- | ---: |",
        ]
        for one in arms:
            spread = ", ".join(str(count) for _, count in sorted(one["by_device"].items()))
            lines.append(
                f"| {one['devices']} | {one['evaluations']} | {one['seconds']:.1f} | "
                f"{one['evaluations_per_hour']:.0f} | {spread} | {one['confirmed']} |"
            )
    if "linear" in found:
        lines += ["", f"* Share of linear scaling: {found['linear']:.3f} (at least {ENOUGH} wanted)."]
    if "scales" in found:
        said = ", ".join(f"{s['ratio']:.4f} ± {1.96 * s['error']:.4f}" for s in found["scales"].values())
        lines += ["", f"* Calibration, times over the first device's (95 %): {said}."]
    if "agreement" in found:
        lines += [
            "",
            "| kernel | device | times over the first device's (95 %) | calibrated | one device, twice | noise | |",
            "| --- | ---: | --- | ---: | --- | ---: | --- |",
        ]
        for row in found["agreement"]:
            raw, twice = row["raw"], ", ".join(f"{r:.4f}" for r in row["repeats"])
            lines.append(
                f"| {row['kernel']} | {row['device']} | {raw['value']:.4f} ({raw['low']:.4f} to {raw['high']:.4f}) | "
                f"{row['calibrated']:.4f} | {twice} | {row['noise']:.4f} | {'agree' if row['agree'] else 'differ'} |"
            )
    return "\n".join(lines) + "\n"


def configured(options: argparse.Namespace) -> Resolved:
    """The campaign of both arms."""
    return resolve(
        parse_config(
            {
                "name": "gpu-scaling",
                "operator": options.operator,
                "target": options.target,
                "suite": options.suite,
                "seeds": options.kernels,
                "baselines": [],
                "budget": {"evaluations": options.evaluations},
                "workers": {"count": options.workers, "check_seconds": 60, "measure_seconds": 90},
            }
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operator", default="gemm_fp8_blockwise/gemm_nt")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--suite", default="primus-core")
    parser.add_argument("--kernels", nargs="+", default=["gluon_ws", "tma", "pointer"], help="seed kernels")
    parser.add_argument("--evaluations", type=int, default=40, help="for each GPU")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8, help="evaluator processes for each GPU")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    resolved = configured(options)
    genomes = listed(resolved, options.evaluations * options.gpus, 7)
    names = {start.genome.id: start.name for start in resolved.starts}
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m experiments.studies.h200.gpu_scaling " + " ".join(argv or sys.argv[1:]),
        "about": f"{resolved.target.label}, {options.operator}, suite {options.suite}, {len(genomes)} genomes of "
        f"{', '.join(options.kernels)}, {options.workers} evaluator processes for each GPU, kernels compiled before.",
    }
    began = time.monotonic()

    def keep(**more: Any) -> None:
        found.update(more, wall_seconds=time.monotonic() - began)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu_scaling.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "gpu_scaling.md").write_text(markdown(found))
        sys.stderr.write(f"{found['wall_seconds']:.0f} s: {', '.join(more)}\n")

    settings = pool_settings(resolved)
    workers = options.workers * options.gpus
    with started(dataclasses.replace(settings, gpus=options.gpus, count=workers)) as (pool, start):
        keep(start_seconds=start, scales={k: dataclasses.asdict(s) for k, s in pool.scales.items()})
        keep(cold_compile_seconds=warm(pool, genomes, 90.0))
        keep(all=arm(pool, resolved, genomes, workers + 4))
        chosen = [start.genome for start in resolved.starts]
        twice = [pool.compare_on_all(chosen, 3 + n) for n in range(2)]
        keep(comparisons=[[dataclasses.asdict(c) for c in one] for one in twice])
        keep(agreement=agreement(pool, twice, names))
    with started(dataclasses.replace(settings, gpus=1, count=options.workers)) as (pool, start):
        warm(pool, [genomes[n % len(chosen)] for n in range(options.workers)], 60.0)
        beginning = genomes[: options.evaluations]
        keep(one=arm(pool, resolved, beginning, options.workers + 4), start_seconds_one=start)
    ratio = found["all"]["evaluations_per_hour"] / found["one"]["evaluations_per_hour"]
    keep(linear=ratio / found["all"]["devices"])
    sys.stdout.write(markdown(found))
    agreed = all(row["agree"] for row in found["agreement"])
    return 0 if agreed and found["linear"] >= ENOUGH and found["all"]["devices"] == options.gpus else 1


if __name__ == "__main__":
    sys.exit(main())
