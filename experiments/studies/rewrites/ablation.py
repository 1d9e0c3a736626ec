"""What each kind of mutation is worth: equal budgets of evaluations, the same seeds, one kind at a time.

    python -m experiments.studies.rewrites.ablation --dims M=512 N=2048 K=4096 --out
    experiments/records/rewrites/ablation_tpu7x
    python -m experiments.studies.rewrites.ablation --operator gemm_fp8_blockwise/gemm_nt --target h200 \\
        --suite primus-few --kernel pointer --measured --lag 8 --evaluations 40 --out
        experiments/records/rewrites/ablation_h200

Every arm starts from one seed kernel and runs the campaign of ``evolve.campaign.loop``; arms differ in their proposers
only. On a modelled target a verdict is a function of the genome, so verdicts are kept in a file (``--memo``) that
arms and seeds share: a budget counts every evaluation all the same; ``--dims`` runs on one shape there, timed and
checked, instead of the suite's. ``--measured`` evaluates everything anew in the workers' pool, as a campaign does;
several processes may share a device, which does one measurement at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.studies.rewrites.ablation_report import write_report
from tilewright.evolve.campaign.config import CampaignConfig, parse_config
from tilewright.evolve.campaign.evaluator import Evaluator, Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan
from tilewright.evolve.campaign.preparation import pool_settings
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.campaign.searcher import build_searcher
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.seeds.operator import Suite, Workload
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.cluster.pool import make_pool
from tilewright.workers.request import GIB, Limits

PARAMETERS = ("parameters", "surrogate", "crossover")
ARMS: dict[str, tuple[str, ...]] = {
    "parameters": PARAMETERS,
    "rewrites": ("rewrite",),
    "rewrites + parameters": (*PARAMETERS, "rewrite"),
    "rewrites + parameters + crossover": (*PARAMETERS, "rewrite", "source_crossover"),
}
GATE_SEED = 2
"""Inputs of the gates: the same for every genome, so that the oracle is asked once. On a shape that is both timed
and checked it picks the third kind of inputs; for FP8 operators that is a magnitude of its own for every block."""

LIMITS = Limits(trace=ChildLimits(600.0, 8 * GIB), compile=ChildLimits(900.0, 12 * GIB))
"""Wall clocks that only a hung child reaches, on a machine that is busy with other things."""


@dataclass
class Memo:
    """Implements ``Evaluator``: evaluates one job at a time and remembers every verdict in a JSONL file.

    Several processes may share the file. Duplicates depend on what a campaign has seen, so they are told from the
    remembered artefact and never kept.
    """

    resolved: Resolved
    path: Path
    asked: int = 0
    evaluated: int = 0
    _known: dict[str, Evaluation] = field(default_factory=dict)
    _queue: deque[Job] = field(default_factory=deque)
    _cascade: ModelledCascade | None = None

    _read: int = 0

    def __post_init__(self) -> None:
        self._cascade = ModelledCascade(
            self.resolved.operator, self.resolved.target, self.resolved.suite, LIMITS
        )

    @property
    def slots(self) -> int:
        return 1

    def submit(self, job: Job) -> None:
        self._queue.append(dataclasses.replace(job, known_artefacts=frozenset(job.known_artefacts)))

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        if not self._queue:
            return []
        job = self._queue.popleft()
        self.asked += 1
        self._catch_up()
        evaluation = self._known.get(job.genome.id) or self._evaluate(job.genome)
        if evaluation.artefact in job.known_artefacts and evaluation.verdict is Verdict.OK:
            evaluation = _duplicate(evaluation)
        return [(job.index, evaluation)]

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None: ...

    def _catch_up(self) -> None:
        """Read what was added to the file, by whichever process, up to its last whole line."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                evaluation = Evaluation.model_validate_json(line)
                self._known[evaluation.genome] = evaluation

    def _evaluate(self, genome: Genome) -> Evaluation:
        assert self._cascade is not None
        found = self._cascade.evaluate(genome.id, genome.source, genome.params, seed=GATE_SEED, best=math.inf)
        self.evaluated += 1
        slim = found.model_copy(update={"log": found.log[-500:]})
        if found.verdict is not Verdict.INFRA_ERROR:
            with self.path.open("a") as file:
                file.write(slim.model_dump_json() + "\n")
        return slim


def _duplicate(evaluation: Evaluation) -> Evaluation:
    """What the cascade says of a genome that compiles to what is known."""
    changes = {
        "verdict": Verdict.DUPLICATE,
        "stage": Stage.COMPILE,
        "reason": "compiles to the same artefact as an earlier genome",
        "fitness": None,
        "interval": None,
        "workloads": (),
    }
    return Evaluation.model_validate({**evaluation.model_dump(), **changes})


def configured(options: argparse.Namespace, arm: str, seed: int) -> CampaignConfig:
    """The campaign of one arm and one seed, as a YAML file would say it."""
    return parse_config(
        {
            "name": "ablation",
            "operator": options.operator,
            "target": options.target,
            "suite": options.suite,
            "seeds": [options.kernel],
            "baselines": [],
            "seed": seed,
            "budget": {"evaluations": options.evaluations},
            "search": {"proposers": list(ARMS[arm]), "islands": 1, "lag": options.lag},
            "workers": {"count": options.workers},
            "mlflow": {"enabled": False},
        }
    )


def _resolved(options: argparse.Namespace, arm: str, seed: int) -> Resolved:
    resolved = resolve(configured(options, arm, seed))
    if not options.dims:
        return resolved
    dims = {name: int(size) for name, _, size in (item.partition("=") for item in options.dims)}
    shape = Workload("x".join(map(str, dims.values())), dims)
    return dataclasses.replace(resolved, suite=Suite(options.suite, (shape,), (shape,)))


def run_arm(resolved: Resolved, evaluator: Evaluator, folder: Path) -> list[dict]:
    """One campaign; a row for each of its evaluations, in the order they were integrated."""
    config = resolved.config
    archive = Archive(config.search.islands, config.search.migration_interval)
    with Journal(folder / JOURNAL, write=True, create=True) as journal:
        plan = Plan(
            resolved.starts,
            Budget(config.budget.evaluations),
            config.seed,
            config.search.lag,
            1,
            must_pass=True,
        )
        searcher = build_searcher(resolved, archive, journal, folder).searcher
        campaign = Campaign(plan, searcher, archive, evaluator, journal)
        campaign.run()
    return [
        {
            "index": candidate.index,
            "kind": candidate.mutation.kind.value,
            "detail": candidate.mutation.detail,
            "params": dict(candidate.genome.params),
            "source": candidate.genome.source_id,
            "verdict": evaluation.verdict.value,
            "reason": evaluation.reason,
            "fitness_tflops": evaluation.fitness,
            "microseconds": [round(w.seconds * 1e6, 3) for w in evaluation.workloads],
        }
        for candidate, evaluation in campaign.history.evaluated
    ]


def exhaust(options: argparse.Namespace) -> list[dict]:
    """Every legal point of the seed kernel's space, the parameters of ``--bound`` fixed: what no search of
    parameters alone can beat, with any seed and any budget."""
    resolved = _resolved(options, "parameters", 0)
    memo = Memo(resolved, options.memo or options.out.with_suffix(".memo.jsonl"))
    source = resolved.starts[0].genome.source
    space = resolved.space(source)
    fixed = dict(item.split("=") for item in options.bound)
    rows = []
    for values in itertools.product(*space.parameters.values()):
        params = dict(zip(space.parameters, values, strict=True))
        if any(str(params[name]) != value for name, value in fixed.items()) or not space.legal(params):
            continue
        memo.submit(Job(len(rows), Genome(source, params), GATE_SEED))
        (_, evaluation) = memo.wait(0)[0]
        rows.append(
            {"params": params, "verdict": evaluation.verdict.value, "fitness_tflops": evaluation.fitness}
        )
        sys.stderr.write(f"{params}: {evaluation.verdict.value}, {evaluation.fitness}\n")
    return rows


def recorded(paths: Sequence[Path]) -> list[dict]:
    """Runs that other processes wrote (``OUT.jsonl``), by seed and arm."""
    runs: dict[tuple[int, str], list[dict]] = {}
    for path in paths:
        for row in map(json.loads, path.read_text().splitlines()):
            runs.setdefault((row.pop("seed"), row.pop("arm")), []).append(row)
    return [{"arm": arm, "seed": seed, "rows": rows} for (seed, arm), rows in sorted(runs.items())]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operator", default="gemm_fp8_fused/g512")
    parser.add_argument("--target", default="tpu7x")
    parser.add_argument("--suite", default="small")
    parser.add_argument(
        "--dims", nargs="*", metavar="NAME=SIZE", help="one shape instead of the suite's (modelled)"
    )
    parser.add_argument("--kernel", default="naive", help="the seed kernel of every arm")
    parser.add_argument(
        "--evaluations", type=int, default=12, help="budget of each campaign, the seed included"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--memo", type=Path, help="file of remembered verdicts (default: beside the results)")
    parser.add_argument(
        "--measured", action="store_true", help="evaluate everything anew, in the workers' pool"
    )
    parser.add_argument("--lag", type=int, default=2, help="proposals under way at a time")
    parser.add_argument("--workers", type=int, help="of each campaign's pool (default: one a core)")
    parser.add_argument("--journals", type=Path, help="folder to keep the campaigns' journals in")
    parser.add_argument("--out", type=Path, required=True, help="results without suffix: .jsonl, .md, .svg")
    parser.add_argument(
        "--bound",
        nargs="*",
        metavar="NAME=VALUE",
        help="evaluate the seed kernel's whole space first, these fixed",
    )
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="JSONL", help="report what other processes ran; run nothing"
    )
    options = parser.parse_args(argv)
    if options.dims and options.measured:
        parser.error("--dims: workers of a measured target know the operator's suites only, see --suite")
    options.best_point = exhaust(options) if options.bound is not None else []
    memo_path = options.memo or options.out.with_suffix(".memo.jsonl")
    if options.merge:
        write_report(recorded(options.merge), options, _resolved(options, "parameters", 0))
        return
    runs: list[dict] = []
    for seed in options.seeds:
        for arm in options.arms:
            began = time.monotonic()
            resolved = _resolved(options, arm, seed)
            evaluator: Evaluator
            if options.measured:
                evaluator = pool = make_pool(pool_settings(resolved))
                pool.start()
            else:
                evaluator = Memo(resolved, memo_path)
            with tempfile.TemporaryDirectory() as scratch:
                folder = (options.journals or Path(scratch)) / f"{arm.replace(' + ', '-')}-{seed}"
                rows = run_arm(resolved, evaluator, folder)
            evaluator.close()
            runs.append({"arm": arm, "seed": seed, "rows": rows})
            write_report(runs, options, resolved)
            best = max((row["fitness_tflops"] or 0.0 for row in rows), default=0.0)
            sys.stderr.write(
                f"seed {seed}, {arm}: best {best:.0f} TFLOP/s after {len(rows)} evaluations, "
                f"{getattr(evaluator, 'evaluated', len(rows))} run, {time.monotonic() - began:.0f} s\n"
            )


if __name__ == "__main__":
    main()
