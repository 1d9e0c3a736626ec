"""The local search: finds the top of what it can climb, follows the rim, waits for what it asked, repeats itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.evolve.proposers.local_search import LocalSearch
from tilewright.evolve.proposers.portfolio import FLOOR, RISING, RISING_AFTER, RISING_MOST, Portfolio
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict

SEED = Mutation(MutationKind.SEED, "seed", "start")
RIM = Space({"a": tuple(range(12)), "b": tuple(range(12)), "c": ("x", "y")}, {"a + b <= 11": "fits"})


def evaluated(candidate: Candidate, fitness: float) -> Evaluation:
    return Evaluation(
        genome=candidate.genome.id,
        target="t",
        suite="s",
        stage=Stage.MEASURE,
        verdict=Verdict.OK,
        fitness=fitness,
    )


class Climb:
    """A history in which the local search alone proposes."""

    def __init__(self, space: Space, start: dict, worth) -> None:
        self.history, self.worth = History(), worth
        self.search = LocalSearch(lambda source: space)
        self.add(Candidate(0, Genome("kernel", start), (), SEED, 0, 0, 0))

    def add(self, candidate: Candidate, *, done: bool = True) -> None:
        self.history.propose(candidate)
        if done:
            self.finish(candidate)

    def finish(self, candidate: Candidate) -> None:
        self.history.integrate(candidate, evaluated(candidate, self.worth(candidate.genome.params)))

    def propose(self) -> Proposal | None:
        return self.search.propose(self.history, 0, np.random.default_rng(0))

    def step(self) -> Genome | None:
        proposal = self.propose()
        if proposal is None:
            return None
        index = len(self.history.candidates)
        self.add(Candidate(index, proposal.genome, proposal.parents, proposal.mutation, 1, 0, index))
        return proposal.genome


def test_follows_the_rim_of_a_constraint_to_the_top() -> None:
    """From (0, 11) only trades of a for b lead anywhere: the sum is at its limit."""
    climb = Climb(
        RIM, {"a": 0, "b": 11, "c": "x"}, lambda p: 10.0 + 3 * p["a"] + 2 * p["b"] + (p["c"] == "y")
    )
    while climb.history.best[0].genome.params != {"a": 11, "b": 0, "c": "y"}:
        assert climb.step() is not None
        assert len(climb.history.candidates) < 40


def test_while_it_waits_it_asks_for_other_neighbours_and_then_for_nothing() -> None:
    climb = Climb(RIM, {"a": 3, "b": 3, "c": "x"}, lambda p: 1.0)
    asked = []
    while (proposal := climb.propose()) is not None:
        asked.append(proposal.genome)
        index = len(climb.history.candidates)
        climb.add(Candidate(index, proposal.genome, proposal.parents, proposal.mutation, 1, 0, 1), done=False)
    assert {(g.params["a"], g.params["b"], g.params["c"]) for g in asked} == {
        (2, 3, "x"), (4, 3, "x"), (3, 2, "x"), (3, 4, "x"), (3, 3, "y"),
    }  # fmt: skip


class Silent:
    kind = MutationKind.PARAMETER

    def __init__(self, name: str) -> None:
        self.name = name

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        return None


def test_its_share_rises_while_nothing_improves_and_falls_when_something_does() -> None:
    portfolio = Portfolio([Silent("surrogate"), Silent(RISING)])
    history, shares = History(), []
    for index, fitness in enumerate([5.0, *[4.0] * 70, 6.0]):
        mutation = Mutation(MutationKind.PARAMETER, "surrogate", "")
        candidate = Candidate(index, Genome("kernel", {"a": index}), (), mutation, 0, 0, index)
        history.propose(candidate)
        history.integrate(candidate, evaluated(candidate, fitness))
        portfolio.propose(history, 0, np.random.default_rng(0))
        shares.append(portfolio.shares()[RISING])
    assert shares[0] == pytest.approx(FLOOR)
    assert shares[int(RISING_AFTER)] == pytest.approx(FLOOR)
    assert all(later > earlier for earlier, later in itertools.pairwise(shares[int(RISING_AFTER) : -1]))
    assert 0.7 * RISING_MOST < shares[-2] < RISING_MOST
    assert shares[-1] == pytest.approx(FLOOR)
