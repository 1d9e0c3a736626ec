"""A history that holds only its latest: the same campaign, the same answers, from the journal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testkit.evaluations import candidate, failed
from testkit.toy_campaign import Nothing, ShuffledEvaluator, Walk, plan
from tilewright.evolve.campaign.config import Order
from tilewright.evolve.campaign.loop import Campaign
from tilewright.evolve.record.history import LOG_CHARACTERS, History, Mutation, MutationKind
from tilewright.evolve.record.journal import Journal

HELD = 3


class LookingBack(Walk):
    """Searches from old candidates as well, and so asks for what is not held any more."""

    def propose(self, history, island, rng):
        proposal = super().propose(history, island, rng)
        if proposal is None or not history.evaluated:
            return proposal
        candidate, evaluation = history.evaluated[int(rng.integers(len(history.evaluated)))]
        detail = f"{candidate.genome.id} {evaluation.reason} {len(history.successes())}"
        return type(proposal)(
            proposal.genome, (candidate.genome.id,), Mutation(MutationKind.REWRITE, "walk", detail)
        )


def ran(path: Path, order: Order, recalls: bool) -> tuple[dict, History]:
    with Journal(path, write=True, create=True) as journal:
        history = History(journal, HELD) if recalls else History()
        evaluator = ShuffledEvaluator(np.random.default_rng(5))
        campaign = Campaign(
            plan(order=order, evaluations=40), LookingBack(), Nothing(), evaluator, journal, history=history
        )
        campaign.run()
        content = journal.content()
        views(history)  # while the journal is open
        return content, history


def views(history: History) -> dict:
    """All that a proposer can see."""
    return {
        "candidates": [(c.genome.id, c.parents, c.mutation, c.generation) for c in history.candidates],
        "evaluated": [(c.index, e.genome, e.fitness) for c, e in history.evaluated],
        "successes": [c.index for c, _ in history.successes()],
        "fittest": [c.index for c, _ in history.fittest(7)],
        "best": history.best and history.best[0].index,
        "verdicts": dict(history.verdicts),
        "rewritten": set(history.rewritten(history.candidates[0].genome.source_id)),
        "slices": [c.index for c in history.candidates[5:9]] + [history.evaluated[-1][0].index],
        "pending": [c.index for c in history.pending()],
        "by genome": [history.evaluation(c.genome.id) for c in history.candidates[:4]],
    }


@pytest.mark.parametrize("order", list(Order))
def test_a_campaign_does_not_notice_what_is_recalled(tmp_path: Path, order: Order) -> None:
    whole, held = ran(tmp_path / "whole.sqlite", order, recalls=False)
    recalled, history = ran(tmp_path / "recalled.sqlite", order, recalls=True)
    assert recalled == whole
    assert len(history._candidates._held) == len(history._evaluations._held) == HELD
    with Journal(tmp_path / "recalled.sqlite") as journal:
        again = History(journal, HELD)
        for candidate in journal.candidates():
            again.propose(candidate)
        for _, index, evaluation, _ in journal.evaluations():
            again.integrate(again.candidates[index], evaluation)
        expected = views(held)
        if order is Order.ARRIVAL:
            assert views(again) == expected
        assert views(again)["candidates"] == expected["candidates"]


def test_logs_are_as_short_when_they_come_back(tmp_path: Path) -> None:
    long = failed(log="x" * 9000)
    with Journal(tmp_path / "j.sqlite", write=True, create=True) as journal:
        history = History(journal, 1)
        for index in range(3):
            made = candidate(index)
            journal.add_candidate(made)
            history.propose(made)
            journal.add_evaluation(index, long)
            history.integrate(made, long)
        assert len(history.evaluated[0][1].log) == LOG_CHARACTERS
        assert history.candidates[0].genome.source is history.candidates[1].genome.source
        with pytest.raises(KeyError):
            journal.evaluation(3)
        with pytest.raises(KeyError):
            journal.candidate(3)
