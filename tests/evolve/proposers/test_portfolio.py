"""The portfolio learns who helps, forgets, never silences anyone, and chooses the same after a resume."""

from dataclasses import dataclass

import numpy as np

from testkit.evaluations import failed, passed
from tilewright.evolve.proposers.portfolio import FLOOR, Portfolio
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome


@dataclass
class Fixed:
    name: str
    kind: MutationKind = MutationKind.PARAMETER
    dry: bool = False

    def propose(self, history, island, rng):
        if self.dry:
            return None
        genome = Genome(self.name, {"x": len(history.candidates)})
        return Proposal(genome, (), Mutation(self.kind, self.name, "next"))


def play(portfolio, history, rounds, worth):
    """Each proposal raises the best by its proposer's ``worth``; a negative worth fails."""
    for _ in range(rounds):
        index = len(history.candidates)
        proposal = portfolio.propose(history, 0, np.random.default_rng([1, index]))
        assert proposal is not None
        candidate = Candidate(index, proposal.genome, (), proposal.mutation, 0, 0)
        history.propose(candidate)
        gain = worth[proposal.mutation.proposer]
        best = history.best[1].fitness if history.best else 100.0
        wall = {"wall_seconds": float(np.random.default_rng().random())}
        made = passed(proposal.genome, fitness=best * (1 + gain), **wall) if gain >= 0 else failed(**wall)
        history.integrate(candidate, made)


def test_credit_follows_who_improves_and_changes_sides():
    portfolio, history = Portfolio([Fixed("a"), Fixed("b"), Fixed("c")]), History()
    play(portfolio, history, 80, {"a": 0.02, "b": 0.0, "c": -1.0})
    portfolio._fold(history)
    shares = portfolio.shares()
    assert shares["a"] > 0.5
    assert min(shares.values()) >= FLOOR
    assert abs(sum(shares.values()) - 1) < 1e-12
    play(portfolio, history, 300, {"a": -1.0, "b": 0.02, "c": -1.0})
    portfolio._fold(history)
    assert portfolio.shares()["b"] > 0.5


def test_who_has_nothing_to_offer_is_passed_over():
    portfolio = Portfolio([Fixed("a", dry=True), Fixed("b")])
    play(portfolio, History(), 20, {"b": 0.0})
    assert Portfolio([Fixed("a", dry=True)]).propose(History(), 0, np.random.default_rng(0)) is None
