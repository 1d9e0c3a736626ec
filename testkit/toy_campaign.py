"""A campaign on a made-up landscape: its evaluator, its proposer and its plan."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testkit.evaluations import failed, figures, passed
from testkit.journals import journal_content
from tilewright.evolve.campaign.config import Order
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start, StopReason
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation
from tilewright.workers.cluster.jobs import Job

SIZE = 400


def judge(genome: Genome) -> Evaluation:
    """A fixed landscape with failures and repeated artefacts."""
    x = int(genome.params["x"])
    if x % 7 == 3:
        return failed(genome)
    fitness = 1000.0 - abs(x - 137)
    return passed(genome, figures(seconds=1 / fitness), fitness=fitness, artefact=str(x // 2))


@dataclass
class ShuffledEvaluator:
    """Finishes jobs in an order of its own, and can stop answering as a killed driver's would."""

    rng: np.random.Generator
    die_after: int | None = None
    running: list[Job] = field(default_factory=list)
    finished: int = 0
    most_in_flight: int = 0
    slots: int = 3

    def submit(self, job: Job) -> None:
        self.running.append(job)
        self.most_in_flight = max(self.most_in_flight, len(self.running))

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        if self.finished == self.die_after:
            raise KeyboardInterrupt
        self.finished += 1
        job = self.running.pop(int(self.rng.integers(len(self.running))))
        return [(job.index, judge(job.genome))]

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None: ...


class Walk:
    """Proposes steps from the best so far; every choice depends on what has been integrated."""

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        best = history.best
        centre = int(best[0].genome.params["x"]) if best else 0
        for _ in range(50):
            x = int(np.clip(centre + rng.integers(-30, 31), 0, SIZE))
            genome = Genome("k", {"x": x})
            if genome.id not in history:
                parents = (best[0].genome.id,) if best else ()
                return Proposal(genome, parents, Mutation(MutationKind.PARAMETER, "walk", f"x={x}"))
        return None


class Nothing:
    def add(self, candidate: Candidate, evaluation: Evaluation) -> None: ...


def plan(seed: int = 1, lag: int = 4, order: Order = Order.INDEX, **budget: float) -> Plan:
    limits = Budget(**(budget or {"evaluations": 30}))  # type: ignore[arg-type]
    return Plan([Start("a", Genome("k", {"x": 0}))], limits, seed, lag, islands=2, order=order)


def go(path: Path, the_plan: Plan, evaluator: Any, stop_after: int | None = None) -> StopReason:
    """Start or resume; the campaign is asked to stop after so many evaluations."""

    def progress(campaign: Campaign) -> None:
        if stop_after is not None and len(campaign.history.evaluated) >= stop_after:
            campaign.stop()

    with Journal(path, write=True, create=not path.exists()) as journal:
        campaign = Campaign(the_plan, Walk(), Nothing(), evaluator, journal, on_progress=progress)
        campaign.restore(list(journal.candidates()), [(i, e) for _, i, e, _ in journal.evaluations()])
        return campaign.run()


def content(path: Path) -> dict[str, Any]:
    with Journal(path) as journal:
        return journal_content(journal)
