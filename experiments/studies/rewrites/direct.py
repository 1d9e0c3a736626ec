"""The search alone on an H200: many campaigns at once, whose candidates share compilers and one GPU.

    python -m experiments.studies.rewrites.direct --plan pointer:niches:0-2 softmax:niches:0 --evaluations 60 \\
        --seconds 150 --folder direct --out experiments/records/rewrites/direct_h200.json
    python -m experiments.studies.rewrites.direct --plan pointer:all:0-4 --evaluations 40 --folder F --out FILE

The searcher is a campaign's own (niches, rules, surrogate, its seed kernel alone at the start); instead of workers
there is ``lab``: processes that compile, and one that launches plans as ``points`` does. ``--plan`` names campaigns as
CASE:ARM:SEEDS; arms as in ``structures``, ``all`` for the four. Every campaign has the same number of evaluations.
A genome that several campaigns try is compiled and measured once and read by all of them, so that the seconds of a
campaign are not those of its evaluations: ``compile_seconds`` and ``device_seconds`` are what these took. In the end
the naive kernel, all winners and torch are timed side by side in interleaved rounds, case by case.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from experiments.studies.rewrites.lab import Ask, Lab, Reading
from experiments.studies.rewrites.point_cases import CASES, Case, seed
from experiments.studies.rewrites.structures import ARMS, CALLS, FAMILY, KERNELS
from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Order, Plan
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.campaign.searcher import build_searcher
from tilewright.evolve.intake.tune import Request, config_of, prepare, target_named
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures

Json = dict[str, Any]
LAG = 6
HAND_WRITTEN: Mapping[str, tuple[Callable[[], str], Json]] = {
    "pointer": (seed("gemm_fp8_blockwise/kernels/gluon_ws.py"), {"group_m": 12}),
}
"""Kernels by a person that stand beside the winners, and what differs from their defaults."""


class Asking:
    """Implements ``Evaluator`` over a pipe to the lab."""

    def __init__(self, case: Case, campaign: str, pipe: Connection) -> None:
        self.case, self.campaign, self._pipe = case, campaign, pipe
        self._jobs: dict[int, Job] = {}
        self.compile_seconds = self.device_seconds = 0.0

    @property
    def slots(self) -> int:
        return LAG

    def submit(self, job: Job) -> None:
        genome = job.genome
        self._jobs[job.index] = job
        ask = Ask(self.case.name, genome.id, genome.source, dict(genome.params), self.campaign, job.index)
        self._pipe.send(ask)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        if not self._jobs or not self._pipe.poll(timeout_seconds):
            return []
        index, reading = self._pipe.recv()
        self.compile_seconds += reading.compile_seconds
        self.device_seconds += reading.device_seconds
        return [(index, evaluated(self.case, self._jobs.pop(index), reading))]

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None:
        self._pipe.close()


def fitness_of(case: Case, us: Mapping[str, float]) -> float:
    """Geometric mean of the rates over shapes, in the case's unit."""
    return math.exp(sum(math.log(rate) for rate in _rates(case, us).values()) / len(us))


def _rates(case: Case, us: Mapping[str, float]) -> dict[str, float]:
    scale = 1e3 if case.unit == "GB/s" else 1e6
    return {shape: case.work[shape] / time_us / scale for shape, time_us in us.items()}


def evaluated(case: Case, job: Job, reading: Reading) -> Evaluation:
    """What a cascade would have said."""
    common: Json = {
        "genome": job.genome.id,
        "target": "h200",
        "suite": case.name,
        "artefact": reading.code or None,
    }
    if reading.code and reading.code in job.known_artefacts:
        return Evaluation(
            **common, stage=Stage.COMPILE, verdict=Verdict.DUPLICATE, reason="compiles to what is known"
        )
    if reading.stage == "lost":
        return Evaluation(**common, stage=Stage.COMPILE, verdict=Verdict.TIMEOUT, reason=reading.problem)
    if reading.problem:
        verdict = {"compile": Verdict.COMPILE_ERROR}.get(reading.stage, Verdict.INCORRECT)
        stage = Stage.COMPILE if reading.stage == "compile" else Stage.CHECK
        reason = reading.problem.splitlines()[0][:200]
        return Evaluation(**common, stage=stage, verdict=verdict, reason=reason)
    fitness, rates = fitness_of(case, reading.us), _rates(case, reading.us)
    figures = tuple(
        WorkloadFigures(
            workload=s, seconds=t * 1e-6, tflops=rates[s], roofline_fraction=0.0, kind=FigureKind.MEASURED
        )
        for s, t in reading.us.items()
    )
    interval = (fitness * 0.99, fitness * 1.01)
    return Evaluation(
        **common,
        stage=Stage.MEASURE,
        verdict=Verdict.OK,
        fitness=fitness,
        interval=interval,
        workloads=figures,
    )


# -- one campaign ----------------------------------------------------------------------------------------------


def resolved_case(case: Case, arm: str, seed: int, folder: Path) -> Resolved:
    """What a campaign of this case would resolve to."""
    overrides: Json = {"seed": seed, "mlflow.enabled": False, "search.transfer": []}
    for text in ARMS[arm]:
        key, _, value = text.partition("=")
        listed = value.startswith("[")
        overrides[key] = value.strip("[]").split(", ") if listed else value != "false"
    if (family := family_of(case)) is not None:
        import yaml

        data = yaml.safe_load(Path(family).read_text())
        data |= {"name": "direct", "seed": seed, "mlflow": {"enabled": False}}
        search = data["search"] | {"transfer": []}
        data["search"] = search | {
            k.partition(".")[2]: v for k, v in overrides.items() if k.startswith("search.")
        }
        return resolve(parse_config(data))
    request, target = _request(case), target_named("h200")
    return resolve(config_of(request, target, folder / f"operator-{case.name}", overrides))


def family_of(case: Case) -> str | None:
    """The campaign file of a case that is a family's; none for a user's function."""
    return FAMILY.get(case.name.removesuffix("_few"))


def _request(case: Case) -> Request:
    function, reference, calls = CALLS[case.name]
    return Request(KERNELS, function, reference, tuple(calls))


def take_in(cases: Sequence[Case], folder: Path) -> None:
    """Operators of users' functions, once."""
    for case in cases:
        where = folder / f"operator-{case.name}"
        if family_of(case) is None and not (where / "operator.py").exists():
            prepare(_request(case), target_named("h200"), where, lambda line: None)


def search(
    case: Case, arm: str, seed: int, evaluations: int, seconds: float, folder: Path, pipe: Connection
) -> None:
    """One campaign, in its own process; sends its row."""
    name = f"{case.name}-{arm}-{seed}"
    try:
        resolved = resolved_case(case, arm, seed, folder)
        settings = resolved.config.search
        archive = Archive(settings.islands, settings.migration_interval)
        home = folder / name
        home.mkdir(parents=True, exist_ok=True)
        asking = Asking(case, name, pipe)
        curve: list[tuple[float, int]] = []
        with Journal(home / JOURNAL, write=True, create=True) as journal:
            searcher = build_searcher(resolved, archive, journal, home).searcher
            budget = Budget(evaluations=evaluations, wall_seconds=seconds)
            plan = Plan(resolved.starts, budget, seed, LAG, settings.islands, Order.ARRIVAL)
            campaign = Campaign(plan, searcher, archive, asking, journal)
            begun = time.monotonic()
            campaign.on_progress = lambda c: _note(curve, begun, len(c.history.evaluated))
            stopped = campaign.run()
        pipe.send(_row_of(case, arm, seed, campaign, asking, curve) | {"stopped": stopped.value})
    except Exception as error:  # noqa: BLE001 - a campaign that breaks is a row that says so
        pipe.send(
            {"case": case.name, "arm": arm, "seed": seed, "error": str(error), "at": traceback.format_exc()}
        )


def _note(curve: list[tuple[float, int]], begun: float, count: int) -> None:
    if not curve or curve[-1][1] != count:
        curve.append((round(time.monotonic() - begun, 1), count))


def _row_of(
    case: Case, arm: str, seed: int, campaign: Campaign, asking: Asking, curve: Sequence[tuple[float, int]]
) -> Json:
    done = campaign.history.evaluated
    worked = [(c, e) for c, e in done if e.fitness]
    row: Json = {
        "case": case.name, "arm": arm, "seed": seed, "unit": case.unit, "evaluations": len(done),
        "seconds": round(campaign.elapsed_seconds, 1), "compile_seconds": round(asking.compile_seconds, 1),
        "device_seconds": round(asking.device_seconds, 1),
        "verdicts": dict(Counter(e.verdict.value for _, e in done)),
    }  # fmt: skip
    if not worked:
        return row | {"reasons": [e.reason for _, e in done][:3]}
    best, evaluation = max(worked, key=lambda pair: pair[1].fitness or 0.0)
    first = min(worked, key=lambda pair: pair[0].index)
    by_index = {c.genome.id: c for c, _ in done}
    fitness = {c.genome.id: e.fitness for c, e in done}
    return row | {
        "seed_fitness": first[1].fitness, "best": evaluation.fitness, "id": best.genome.id,
        "params": dict(best.genome.params), "source": best.genome.source, "seed_id": first[0].genome.id,
        "steps": _steps(best, by_index), "progress": list(curve),
        "evaluated": [
            [
                c.mutation.kind.value, c.mutation.proposer, c.mutation.detail[:240], e.verdict.value,
                round(e.fitness, 2) if e.fitness else None,
                round(max((fitness.get(p) or 0.0 for p in c.parents), default=0.0), 2),
            ]
            for c, e in done
        ],
    }  # fmt: skip


def _steps(best: Candidate, known: Mapping[str, Candidate]) -> list[str]:
    steps, current = [], best
    while True:
        steps.append(f"{current.mutation.proposer}: {current.mutation.detail}")
        if not current.parents or current.parents[0] not in known:
            return steps[::-1]
        current = known[current.parents[0]]


# -- the study -------------------------------------------------------------------------------------------------


def planned(texts: Sequence[str]) -> list[tuple[Case, str, int]]:
    """(case, arm, seed) of ``CASE:ARM:SEEDS``; ``SEEDS`` is 0, 0-2 or 0,3."""
    by_name = {case.name: case for case in CASES}
    found = []
    for text in texts:
        name, arm, seeds = text.split(":")
        first, dash, last = seeds.partition("-")
        numbers = range(int(first), int(last) + 1) if dash else [int(s) for s in seeds.split(",")]
        found += [(by_name[name], a, n) for n in numbers for a in (ARMS if arm == "all" else [arm])]
    return found


def finals(case: Case, rows: Sequence[Json], lab: Lab) -> Json:
    """Seed kernel, winners, a person's kernel where there is one, and torch, in one run."""
    asks: dict[str, tuple[str, Ask]] = {}
    for row in rows:
        if "best" in row:
            label = f"{row['arm']} {row['seed']}"
            asks.setdefault(row["seed_id"], ("naive", Ask(case.name, row["seed_id"], "", {})))
            asks.setdefault(row["id"], (label, Ask(case.name, row["id"], "", row["params"])))
    if case.name in HAND_WRITTEN:
        source, changes = HAND_WRITTEN[case.name]
        text = source()
        ask = Ask(case.name, "hand-written", text, {**read_declarations(text).defaults, **changes})
        if not lab.compile_now([ask])["hand-written"]:
            asks["hand-written"] = ("hand-written", ask)
    lines = lab.side_by_side(case.name, list(asks.values())) or []
    shapes = [line for line in lines if "final" in line]
    rates: dict[str, float] = {}
    for name in shapes[0]["final"] if shapes else []:
        us = {line["shape"]: line["final"][name] for line in shapes if name in line["final"]}
        if len(us) == len(case.shapes):
            label = asks[name][0] if name in asks else name
            rates[label] = round(fitness_of(case, us), 2)
    return {"case": case.name, "unit": case.unit, "means": rates, "shapes": shapes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", nargs="+", required=True, help="CASE:ARM:SEEDS, such as pointer:niches:0-2")
    parser.add_argument("--evaluations", type=int, default=60, help="of each campaign")
    parser.add_argument("--seconds", type=float, default=150.0, help="wall clock of all campaigns together")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--take-in", action="store_true", help="only make the operators of users' functions")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = planned(options.plan)
    cases = list({case.name: case for case, _, _ in wanted}.values())
    take_in(cases, folder)
    if options.take_in:
        return
    from tilewright.workers.runners.triton.compile import prepare as prepare_compiler

    prepare_compiler()
    begun = time.monotonic()
    rows: list[Json] = []
    data: Json = {"command": sys.argv, "campaigns": rows, "side_by_side": []}
    lab = Lab(cases, folder, options.processes)

    def write() -> None:
        data["seconds"] = round(time.monotonic() - begun, 1)
        data["device"], data["device_seconds"] = lab.device, round(lab.device_seconds, 1)
        data["genomes"] = len(lab.readings)
        options.out.write_text(json.dumps(data, indent=1) + "\n")

    def said(row: Json) -> None:
        rows.append(row)
        write()

    def body(case: Case, arm: str, seed: int) -> Callable[[Connection], None]:
        wall = options.seconds - 6.0
        return lambda pipe: search(case, arm, seed, options.evaluations, wall, folder, pipe)

    try:
        bodies = {f"{case.name}-{arm}-{seed}": body(case, arm, seed) for case, arm, seed in wanted}
        lab.serve(bodies, options.seconds, said)
        write()
        for case in cases:
            data["side_by_side"].append(finals(case, [r for r in rows if r["case"] == case.name], lab))
            write()
    finally:
        lab.close()


if __name__ == "__main__":
    main()
