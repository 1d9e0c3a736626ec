"""For promotion tests: a finished campaign of the small GEMM family, and an evaluator that follows a formula."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testkit import FIXTURES
from testkit.evaluations import candidate, figures, passed
from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.promote.command import Options, PromotionOutcome, promote
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, GateReading
from tilewright.fitness.tpu import time_model
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.device.comparison import Comparison

FAMILY = FIXTURES / "small_gemm"
TILED = (FAMILY / "kernels" / "tiled.py").read_text()
SEED = Genome(TILED, {"block_m": 128, "block_n": 128, "block_k": 128})
CHILD = Genome(TILED, {"block_m": 256, "block_n": 256, "block_k": 512})
OTHER = Genome(TILED, {"block_m": 256, "block_n": 128, "block_k": 512})
GENOMES = (SEED, CHILD, OTHER)
OPERATOR = "small_gemm/good"
SHAPES = ("256x256x512", "512x256x512")

Seconds = Callable[[Genome, str], float]


def write_campaign(
    home: Path,
    *,
    winner: Genome = CHILD,
    target: str = "tpu7x",
    family: Path = FAMILY,
    genomes: Sequence[Genome] = GENOMES,
    seeds: Sequence[str] = (),
) -> Path:
    """A campaign of ``genomes``, the seed first, in ``home``; its folder."""
    folder = home / "campaigns" / "tiny-001"
    folder.mkdir(parents=True)
    common = {"target": target, "suite": "tiny"}
    budget = {"seed": 3, "budget": {"evaluations": 3}, "workers": {"count": 2}}
    config = {"name": "tiny", "operator": f"{family}/good", "seeds": list(seeds), **common, **budget}
    kind = "modelled" if target == "tpu7x" else "measured"
    with Journal(folder / JOURNAL, write=True, create=True) as journal:
        facts = {"id": "tiny-001", "operator": "small_gemm/good", "target_kind": kind, "seeds": ["tiled"]}
        journal.set_meta("campaign", {**facts, **common})
        journal.set_meta("config", parse_config(config).model_dump(mode="json"))
        journal.set_meta("toolchain", {})
        journal.add_event("started")
        seed = {"kind": MutationKind.SEED, "proposer": "seed", "detail": "seed kernel tiled"}
        journal.add_candidate(candidate(0, genomes[0], **seed))
        for index, genome in enumerate(genomes[1:], 1):
            step = {"detail": "block_k 128 -> 512\n# evil\x1b[31m", "generation": 1}
            journal.add_candidate(candidate(index, genome, parents=(genomes[0].id,), **step))
        pool = FormulaPool(resolve(parse_config(config), ended=True), quick_child)
        for index, genome in enumerate(genomes):
            pool.submit(Job(index, genome, 1))
        for index, evaluation in pool.wait(0):
            journal.add_evaluation(index, evaluation)
        journal.add_event("finished", reason="evaluations", winner=winner.id)
    return folder


def quick_child(genome: Genome, workload: str) -> float:
    """The baseline takes 100 us, the seed 90, the child 50, the other 40."""
    return {SEED.id: 90e-6, CHILD.id: 50e-6, OTHER.id: 40e-6}.get(genome.id, 100e-6)


@dataclass
class FormulaPool:
    """Answers at once with ``seconds``; ``spoil`` may change an evaluation."""

    resolved: Resolved
    seconds: Seconds
    spoil: Callable[[Job, Evaluation], Evaluation] = lambda job, evaluation: evaluation
    failed: dict[str, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    closed: bool = False
    _waiting: list[Job] = field(default_factory=list)

    @property
    def slots(self) -> int:
        return 1

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self._waiting.append(job)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        jobs, self._waiting = self._waiting, []
        return [(job.index, self.spoil(job, self._evaluation(job))) for job in jobs]

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def compare(
        self, genomes: Sequence[Genome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        """Six rounds of three calls, each with the same made-up noise for everyone and a little of its own."""
        assert self.resolved.target.measured, "nothing to compare on a modelled target"
        rng = np.random.default_rng(7)
        rounds: dict[str, dict[str, list[list[float]]]] = {}
        for shape in self.resolved.suite.workloads:
            drift = 1 + 0.1 * rng.random(6)
            rounds[shape.id] = {
                genome.id: [
                    [self.seconds(genome, shape.id) * d * (1 + 0.01 * e) for e in rng.standard_normal(3)] for d in drift
                ]
                for genome in genomes
                if only is None or shape.id in only[genome.id]
            }
        return Comparison(self.resolved.target.name, {}, rounds, {}, self.failed)

    def close(self) -> None:
        self.closed = True

    def _evaluation(self, job: Job) -> Evaluation:
        suite, operator = self.resolved.suite, self.resolved.operator
        shapes = suite.final if job.scope is Scope.FINAL and suite.final else suite.workloads
        model = None if self.resolved.target.measured else time_model.VERSION
        timed = [
            figures(
                shape.id,
                seconds := self.seconds(job.genome, shape.id),
                tflops=operator.flops(shape) / seconds / 1e12,
                kind=self.resolved.target.kind,
                model_version=model,
            )
            for shape in shapes
            if job.only is None or shape.id in job.only
        ]
        fitness = math.exp(sum(math.log(f.tflops) for f in timed) / len(timed))
        read = {"gate": "exact", "inputs": "randn", "value": 55.0, "passed": True}
        return passed(
            job.genome,
            *timed,
            target=self.resolved.target.name,
            suite=suite.name,
            fitness=fitness,
            interval=(fitness, fitness),
            gates=() if job.baseline else tuple(GateReading(workload=f.workload, **read) for f in timed),
            artefact=f"{job.genome.id}-{job.scope}",
            toolchain={"jax": "0.10.2", "libtpu": "0.0.51"},
        )


def run(
    folder: Path,
    writer: LibraryWriter,
    options: Options | None = None,
    seconds: Seconds = quick_child,
    spoil: Callable[[Job, Evaluation], Evaluation] = lambda job, evaluation: evaluation,
    **settings: Any,
) -> PromotionOutcome:
    make = lambda resolved: FormulaPool(resolved, seconds, spoil, **settings)  # noqa: E731
    return promote(folder, writer, options or Options(), lambda line: None, make)


def one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text and "Traceback" not in text
