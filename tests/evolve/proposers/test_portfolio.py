"""The portfolio learns who helps, forgets, never silences anyone, and chooses the same after a resume."""

from dataclasses import dataclass

import numpy as np

from tilewright.evolve.proposers.portfolio import FLOOR, Portfolio
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict


@dataclass
class Fixed:
    name: str
    kind: MutationKind = MutationKind.PARAMETER
    dry: bool = False

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        if self.dry:
            return None
        genome = Genome(self.name, {"x": len(history.candidates)})
        return Proposal(genome, (), Mutation(self.kind, self.name, "next"))


def play(portfolio: Portfolio, history: History, rounds: int, worth: dict[str, float]) -> None:
    """Each proposal raises the best by its proposer's ``worth``; a negative worth fails."""
    for _ in range(rounds):
        index = len(history.candidates)
        proposal = portfolio.propose(history, 0, np.random.default_rng([1, index]))
        assert proposal is not None
        candidate = Candidate(index, proposal.genome, (), proposal.mutation, 0, 0)
        history.propose(candidate)
        gain = worth[proposal.mutation.proposer]
        best = history.best[1].fitness if history.best else None
        ok = gain >= 0
        evaluation = Evaluation(
            genome=proposal.genome.id,
            target="t",
            suite="s",
            stage=Stage.MEASURE if ok else Stage.COMPILE,
            verdict=Verdict.OK if ok else Verdict.COMPILE_ERROR,
            reason="" if ok else "no",
            fitness=(best or 100.0) * (1 + gain) if ok else None,
            wall_seconds=float(np.random.default_rng().random()),
        )
        history.integrate(candidate, evaluation)


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
