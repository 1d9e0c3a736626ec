"""A learned choice among proposers: who improved the search lately proposes more often.

Credit is improvement per cost of evaluation. Cost is counted by how far the cascade went, not by the clock: a
choice that hung on wall time would differ between two runs of one seed. Credit fades, because what helps
early rarely helps late, and every proposer keeps a floor, so that it can be found useful again.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.record.history import Candidate, History, Proposal, Proposer
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict

FLOOR = 0.02
"""Least probability of a proposer that has something to offer."""

FADE = 0.97
"""What remains of credit after one evaluation."""

PRIOR_TRIALS = 6.0
"""Evaluations' worth of belief a proposer starts with and fades back to."""

SHARPNESS = 2.0
"""Exponent that turns credit into preference."""

GAIN_SCALE = 0.05
"""Relative gain over the best so far that earns full credit."""

NEAR_SHARE = 0.25
"""Most that a candidate among the best recent ones earns without being the best."""

RECENT = 50

STAGE_COST: Mapping[Stage, float] = {Stage.DIALECT: 0.05, Stage.COMPILE: 0.4, Stage.CHECK: 0.7, Stage.MEASURE: 1.0}
"""Cost of an evaluation by its last stage, in full evaluations."""

PRIOR: Mapping[str, float] = {"parameters": 0.1, "crossover": 0.1}
"""Credit expected of a proposer without evidence, relative to the average of all; 1 for others. Moves that
learn nothing are presumed to be worth less than those of a model."""

FIRST_RATE = 0.2
"""The average presumed before any evidence, and how many evaluations that presumption weighs."""

FIRST_TRIALS = 4.0


@dataclass
class _Account:
    prior: float
    credit: float = 0.0
    cost: float = 0.0

    def rate(self, average: float) -> float:
        """Credit per full evaluation, shrunk to the prior's multiple of the average."""
        return (self.credit + PRIOR_TRIALS * self.prior * average) / (self.cost + PRIOR_TRIALS)


@dataclass
class Portfolio:
    """Chooses a proposer for each proposal; a fold over the history, so a resume chooses the same."""

    proposers: Sequence[Proposer]
    _accounts: dict[str, _Account] = field(default_factory=dict, init=False)
    _recent: deque[float] = field(default_factory=deque, init=False)
    _ranked: list[float] = field(default_factory=list, init=False)
    """The recent ones in ascending order."""

    _best: float | None = field(default=None, init=False)
    _folded: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.proposers:
            raise ValueError("a portfolio needs at least one proposer")
        self._accounts = {p.name: _Account(PRIOR.get(p.name, 1.0)) for p in self.proposers}

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """Ask proposers in a random order that favours the credited, until one has something to offer."""
        self._fold(history)
        shares = self.shares()
        weights = np.array([shares[p.name] for p in self.proposers])
        # Gumbel's trick: one draw gives the whole order, each prefix distributed by the weights.
        keys = np.log(weights) + rng.gumbel(size=len(weights))
        for place in np.argsort(-keys):
            proposal = self.proposers[int(place)].propose(history, island, rng)
            if proposal is not None:
                return proposal
        return None

    def shares(self) -> dict[str, float]:
        """The probability of each proposer to be asked first, summing to 1."""
        accounts = self._accounts.values()
        credit, cost = sum(a.credit for a in accounts), sum(a.cost for a in accounts)
        average = (credit + FIRST_TRIALS * FIRST_RATE) / (cost + FIRST_TRIALS)
        rates = {name: account.rate(average) ** SHARPNESS for name, account in self._accounts.items()}
        total = sum(rates.values())
        free = 1.0 - FLOOR * len(rates)
        return {name: FLOOR + free * rate / total for name, rate in rates.items()}

    def _fold(self, history: History) -> None:
        for candidate, evaluation in history.evaluated[self._folded :]:
            self._account(candidate, evaluation)
        self._folded = len(history.evaluated)

    def _account(self, candidate: Candidate, evaluation: Evaluation) -> None:
        if evaluation.verdict is Verdict.INFRA_ERROR:
            return
        for account in self._accounts.values():
            account.credit *= FADE
            account.cost *= FADE
        credit = self._credit(evaluation.fitness)
        if (owner := self._accounts.get(candidate.mutation.proposer)) is not None:
            owner.credit += credit
            owner.cost += STAGE_COST[evaluation.stage]
        if evaluation.fitness is not None:
            self._recent.append(evaluation.fitness)
            insort(self._ranked, evaluation.fitness)
            if len(self._recent) > RECENT:
                del self._ranked[bisect_left(self._ranked, self._recent.popleft())]
            self._best = max(self._best or 0.0, evaluation.fitness)

    def _credit(self, fitness: float | None) -> float:
        if fitness is None or fitness <= 0.0 or not self._recent or not self._best:
            return 0.0
        beaten = bisect_right(self._ranked, fitness) / len(self._ranked)
        near = NEAR_SHARE * max(0.0, 2.0 * beaten - 1.0)
        gain = math.log(fitness / self._best)
        return near + (min(1.0, gain / GAIN_SCALE) if gain > 0 else 0.0)
