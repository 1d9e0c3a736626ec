"""The search alone on an H200: campaigns whose candidates are compiled beside the GPU and timed one after the other.

    python -m experiments.studies.rewrites.direct --case pointer --seeds 0 1 2 --seconds 70 --folder direct \\
        --out experiments/records/rewrites/direct_h200.json

The searcher is a campaign's own (niches, rules, surrogate, its seed kernel alone at the start); instead of workers
there is a pool of compilers and one process that launches plans as ``points`` does: answers against float32 on some
rows, then device times with L2 flushed. A campaign of one minute sees about a hundred candidates so. ``--arms`` as in
``structures``. In the end the naive kernel, all winners and torch are timed side by side in interleaved rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from experiments.studies.rewrites import points
from experiments.studies.rewrites.point_cases import CASES, Case
from experiments.studies.rewrites.structures import ARMS, CALLS, FAMILY, KERNELS
from testkit.compile_ahead import start
from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Order, Plan
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.campaign.searcher import build_searcher
from tilewright.evolve.intake.tune import Request, config_of, prepare, target_named
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures

Json = dict[str, Any]
LAG = 20
MEASURE_SECONDS = 25.0
"""A candidate that takes longer over all shapes hangs."""


def _measure(pipe: Connection, name: str, plans: Path) -> None:
    """The process that has the GPU: a row in, its times out; ``final`` for rounds side by side."""
    from experiments.studies.rewrites.point_device import Bench

    case = next(c for c in CASES if c.name == name)
    lines: list[Json] = []
    bench = Bench(plans, lines.append, [])
    pipe.send("ready")
    while True:
        what, rows = pipe.recv()
        lines.clear()
        if what == "final":
            bench.final(case, rows)
        else:
            bench.all_shapes(case, rows[0])
        pipe.send([line for line in lines if "at" not in line])


@dataclass
class Lab:
    """Implements ``Evaluator``: compiles in many processes, measures in one."""

    case: Case
    folder: Path
    processes: int
    cache: str = "cache"
    begun: float = field(default_factory=time.monotonic)
    curve: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, fitness) of everything measured."""

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            self.processes, self._context, initializer=start, initargs=(str(self.folder / "cache"),)
        )
        self._jobs: deque[tuple[Job, Json, Future[str]]] = deque()
        self.rows: dict[str, Json] = {}
        self._child()

    def _child(self) -> None:
        self._pipe, other = self._context.Pipe()
        self._process = self._context.Process(target=_measure, args=(other, self.case.name, self.folder))
        self._process.start()
        self._pipe.poll(120)
        self._pipe.recv()

    @property
    def slots(self) -> int:
        return LAG

    def submit(self, job: Job) -> None:
        genome = job.genome
        row = {
            "case": self.case.name,
            "id": genome.id,
            "label": genome.source_id[:8],
            "params": dict(genome.params),
        }
        stem, cache = str(self.folder / genome.id), str(self.folder / self.cache)
        done = self._pool.submit(
            points.compile_point, genome.source, dict(genome.params), self.case.workloads(), stem, cache
        )
        self._jobs.append((job, row, done))

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        until = time.monotonic() + timeout_seconds
        while self._jobs and time.monotonic() < until:
            ready = next((entry for entry in self._jobs if entry[2].done()), None)
            if ready is None:
                time.sleep(0.01)
                continue
            self._jobs.remove(ready)
            job, row, done = ready
            return [(job.index, self._evaluated(job, row, done))]
        return []

    def _evaluated(self, job: Job, row: Json, done: Future[str]) -> Evaluation:
        problem = "the compiler died" if done.exception() else done.result()
        if problem:
            return self._failed(job, Stage.COMPILE, Verdict.COMPILE_ERROR, problem)
        first = next(iter(self.case.shapes))
        code = hashlib.sha256((self.folder / f"{row['id']}.{first}.plan").read_bytes()).hexdigest()[:32]
        if code in job.known_artefacts:
            return self._failed(job, Stage.COMPILE, Verdict.DUPLICATE, "compiles to what is known", code)
        lines = self.asked("one", [row])
        if lines is None:
            return self._failed(job, Stage.CHECK, Verdict.TIMEOUT, "hangs or kills its process", code)
        wrong = next((line["error"] for line in lines if "error" in line), None)
        times = {line["shape"]: line["us"] * 1e-6 for line in lines if "us" in line}
        if wrong or len(times) < len(self.case.shapes):
            return self._failed(job, Stage.CHECK, Verdict.INCORRECT, wrong or "no time", code)
        scale = 1e9 if self.case.unit == "GB/s" else 1e12
        rates = {shape: self.case.work[shape] / s / scale for shape, s in times.items()}
        fitness = math.exp(sum(map(math.log, rates.values())) / len(rates))
        self.rows[row["id"]] = {**row, "us": {s: t * 1e6 for s, t in times.items()}}
        self.curve.append((round(time.monotonic() - self.begun, 1), round(fitness, 1)))
        figures = tuple(
            WorkloadFigures(
                workload=s, seconds=t, tflops=rates[s], roofline_fraction=0.0, kind=FigureKind.MEASURED
            )
            for s, t in times.items()
        )
        return Evaluation(
            genome=job.genome.id, target="h200", suite=self.case.name, stage=Stage.MEASURE, verdict=Verdict.OK,
            fitness=fitness, interval=(fitness * 0.99, fitness * 1.01), workloads=figures, artefact=code,
        )  # fmt: skip

    def _failed(self, job: Job, stage: Stage, verdict: Verdict, reason: str, code: str = "") -> Evaluation:
        return Evaluation(
            genome=job.genome.id, target="h200", suite=self.case.name, stage=stage, verdict=verdict,
            reason=reason.splitlines()[0][:200], artefact=code or None,
        )  # fmt: skip

    def asked(self, what: str, rows: Sequence[Json], seconds: float = MEASURE_SECONDS) -> list[Json] | None:
        """The measuring process's lines; None, and another process, where it hangs or dies."""
        try:
            self._pipe.send((what, list(rows)))
            if self._pipe.poll(seconds):
                return list(self._pipe.recv())
        except (EOFError, OSError):
            pass
        self._process.kill()
        self._process.join()
        self._child()
        return None

    def activity(self) -> list[str]:
        return []

    def close(self) -> None:
        self._process.kill()
        for child in list(getattr(self._pool, "_processes", {}).values()):
            child.kill()


def resolved_case(case: Case, arm: str, seed: int, folder: Path) -> Resolved:
    """What a campaign of this case would resolve to."""
    overrides: Json = {"seed": seed, "mlflow.enabled": False, "search.transfer": []}
    for text in ARMS[arm]:
        key, _, value = text.partition("=")
        listed = value.startswith("[")
        overrides[key] = value.strip("[]").split(", ") if listed else value != "false"
    if case.name in FAMILY:
        import yaml

        data = yaml.safe_load(Path(FAMILY[case.name]).read_text())
        data |= {"name": "direct", "seed": seed, "mlflow": {"enabled": False}}
        search = data["search"] | {"transfer": []}
        data["search"] = search | {
            k.partition(".")[2]: v for k, v in overrides.items() if k.startswith("search.")
        }
        return resolve(parse_config(data))
    named = next(name for name in CALLS if name.split()[0] == case.name)
    function, reference, calls = CALLS[named]
    request, target = Request(KERNELS, function, reference, tuple(calls)), target_named("h200")
    where = folder / "operator"
    if not (where / "operator.py").exists():
        prepare(request, target, where, lambda line: None)
    return resolve(config_of(request, target, where, overrides))


def run(case: Case, arm: str, seed: int, seconds: float, folder: Path, lab: Lab) -> Json:
    """One campaign."""
    resolved = resolved_case(case, arm, seed, folder)
    search = resolved.config.search
    archive = Archive(search.islands, search.migration_interval)
    home = folder / f"{case.name}-{arm}-{seed}"
    home.mkdir(parents=True, exist_ok=True)
    lab.cache, lab.curve = f"cache-{arm}-{seed}", []
    with Journal(home / JOURNAL, write=True, create=True) as journal:
        searcher = build_searcher(resolved, archive, journal, home).searcher
        budget = Budget(evaluations=100_000, wall_seconds=seconds)
        plan = Plan(resolved.starts, budget, seed, LAG, search.islands, Order.ARRIVAL)
        campaign = Campaign(plan, searcher, archive, lab, journal)
        lab.begun = time.monotonic()
        campaign.run()
    done = campaign.history.evaluated
    worked = [(c, e) for c, e in done if e.fitness]
    best, evaluation = max(worked, key=lambda pair: pair[1].fitness or 0.0)
    by_id = {c.genome.id: c for c, _ in done}
    steps, current = [], best
    while True:
        steps.append(f"{current.mutation.proposer}: {current.mutation.detail}")
        if not current.parents or current.parents[0] not in by_id:
            break
        current = by_id[current.parents[0]]
    (home / "winner.py").write_text(best.genome.source)
    verdicts: dict[str, int] = {}
    for _, e in done:
        verdicts[e.verdict.value] = verdicts.get(e.verdict.value, 0) + 1
    return {
        "case": case.name, "arm": arm, "seed": seed, "seconds": round(time.monotonic() - lab.begun, 1),
        "evaluations": len(done), "verdicts": verdicts, "seed_fitness": worked[0][1].fitness,
        "best": evaluation.fitness, "unit": case.unit, "id": best.genome.id, "params": dict(best.genome.params),
        "steps": steps[::-1], "curve": lab.curve,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True, choices=[c.name for c in CASES])
    parser.add_argument("--arms", nargs="*", default=["niches"], choices=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=70.0, help="wall clock of one campaign")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    case = next(c for c in CASES if c.name == options.case)
    found: list[Json] = []
    lab = Lab(case, folder, options.processes)
    try:
        for seed in options.seeds:
            for arm in options.arms:
                found.append(run(case, arm, seed, options.seconds, folder, lab))
                options.out.write_text(json.dumps({"command": sys.argv, "campaigns": found}, indent=1) + "\n")
        first = next(iter(lab.rows.values()))
        rows = {r["id"]: lab.rows[r["id"]] for r in found}
        final = lab.asked("final", [first, *rows.values()], 120.0)
        data = {"command": sys.argv, "campaigns": found, "seed_id": first["id"], "side_by_side": final}
        options.out.write_text(json.dumps(data, indent=1) + "\n")
    finally:
        lab.close()


if __name__ == "__main__":
    main()
