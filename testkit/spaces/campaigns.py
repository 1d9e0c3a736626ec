"""Campaigns on recorded spaces: the search as a user runs it, without a device."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from testkit.spaces.tables import Table, TableEvaluator
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Record, Start
from tilewright.evolve.campaign.transfer import EarlierSource, LeadsFirst, leads_of, records_of
from tilewright.evolve.proposers.crossover import ParameterCrossover
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, ParameterProposer
from tilewright.evolve.proposers.surrogate.proposer import SurrogateProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, Proposer, Searcher
from tilewright.fitness.evaluation import Evaluation

ISLANDS = 2


MIGRATION_INTERVAL = 20


PROPOSERS = ("parameters", "surrogate", "crossover")


@dataclass(frozen=True)
class Setting:
    """One way to run the benchmark. ``noise`` is the relative standard deviation of a reading."""

    budget: int = 200
    lag: int = 1
    noise: float = 0.0
    proposers: tuple[str, ...] = PROPOSERS


@dataclass(frozen=True)
class Run:
    """One campaign on one table. ``curve`` [budget]: true score of the best true configuration so far.

    ``handed`` is the true score of the best reading, which is what a user is handed; without noise, of the best.
    """

    space: str
    seed: int
    curve: np.ndarray
    handed: float
    cpu_seconds: float
    sequence: tuple[str, ...]
    """Genome ids in order of proposal."""


class Nowhere:
    """A record nobody keeps."""

    def add_candidate(self, candidate: Candidate) -> None: ...

    def add_evaluation(self, index: int, evaluation: Evaluation) -> None: ...


def table_campaign(
    table: Table, seed: int, setting: Setting, earlier: Sequence[EarlierSource] = (), record: Record | None = None
) -> Campaign:
    """A campaign on a table from a random legal point, or from the best that ``earlier`` campaigns found."""
    archive = Archive(ISLANDS, MIGRATION_INTERVAL)
    records = records_of(earlier, table.space_of)
    spaces = KnownSpaces(table.space_of)
    builders: dict[str, Callable[[], Proposer]] = {
        "parameters": lambda: ParameterProposer(archive, spaces),
        "surrogate": lambda: SurrogateProposer(spaces, records),
        "crossover": lambda: ParameterCrossover(archive, spaces),
    }
    searcher: Searcher = Portfolio([builders[name]() for name in setting.proposers])
    leads = leads_of(earlier, table.space_of)
    start = Start("random", table.random_genome(np.random.default_rng([seed, 1])))
    if leads:
        start, searcher = Start("lead", leads[0]), LeadsFirst(leads[1:], searcher)
    plan = Plan([start], Budget(evaluations=setting.budget), seed, setting.lag, islands=ISLANDS, must_pass=False)
    evaluator = TableEvaluator(table, setting.lag, setting.noise)
    return Campaign(plan, searcher, archive, evaluator, record or Nowhere())


def run_search(table: Table, seed: int, setting: Setting) -> Run:
    """One campaign from a random legal point."""
    began = time.process_time()
    campaign = table_campaign(table, seed, setting)
    campaign.run()
    proposed = campaign.history.candidates
    scores = np.zeros(setting.budget)
    scores[: len(proposed)] = [table.fraction(candidate.genome) for candidate in proposed]
    curve = np.maximum.accumulate(scores)
    handed = table.fraction(campaign.history.best[0].genome) if campaign.history.best else 0.0
    cpu = time.process_time() - began
    sequence = tuple(candidate.genome.id for candidate in proposed)
    return Run(table.name, seed, curve, handed, cpu, sequence)


def digest(run: Run) -> str:
    """12 hex digits over what the run proposed, in order: equal on every machine."""
    return hashlib.sha256(" ".join(run.sequence).encode()).hexdigest()[:12]
