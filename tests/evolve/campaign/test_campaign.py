"""The loop: never more than ``lag`` in flight, deterministic by seed, resumable from any instant."""

import contextlib
import dataclasses

import numpy as np
import pytest

from testkit.evaluations import failed
from testkit.faults.campaigns import Table, answer
from testkit.spaces.campaigns import Nowhere
from testkit.toy_campaign import Nothing, ShuffledEvaluator, Walk, content, go, judge, plan
from tilewright.evolve.campaign import loop
from tilewright.evolve.campaign.config import Order
from tilewright.evolve.campaign.loop import GATE_EPOCH, Budget, Campaign, Plan, Start, StopReason
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.workers.cluster.jobs import Job


@pytest.mark.parametrize("lag", [1, 4, 7])
def test_which_worker_was_faster_changes_nothing(tmp_path, lag):
    for name, arrival in (("a", 1), ("b", 2)):
        evaluator = ShuffledEvaluator(np.random.default_rng(arrival))
        assert go(tmp_path / name, plan(lag=lag), evaluator) is StopReason.EVALUATIONS
        assert evaluator.most_in_flight <= lag
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_duplicates_are_free_up_to_the_budget_in_any_order_of_arrival(tmp_path):
    for arrival in range(2):
        evaluator = Table(np.random.default_rng(arrival))
        assert go(tmp_path / str(arrival), plan(), evaluator) is StopReason.EVALUATIONS
        assert content(tmp_path / str(arrival)) == content(tmp_path / "0")
    with Journal(tmp_path / "0") as journal:
        verdicts = [evaluation.verdict for _, _, evaluation, _ in journal.evaluations()]
    duplicates = verdicts.count(Verdict.DUPLICATE)
    assert 0 < duplicates <= 30 and len(verdicts) - duplicates == 30


def test_duplicates_alone_end_a_campaign_as_a_resumed_one(tmp_path):
    changes = {"verdict": Verdict.DUPLICATE, "fitness": None, "workloads": (), "reason": "known"}
    known = lambda job: answer(job).model_copy(update=changes) if job.index > 4 else None  # noqa: E731
    for die_after in (9, None):
        evaluator = Table(np.random.default_rng(0), die_after, fault=known)
        with contextlib.suppress(KeyboardInterrupt):
            assert go(tmp_path / "j", plan(evaluations=60), evaluator) is StopReason.DUPLICATES
    assert len(content(tmp_path / "j")["evaluations"]) == 5 + loop.DUPLICATES_LIMIT + plan().lag - 1


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("kills", [(0,), (29,), (1, 3, 3)])
def test_a_killed_campaign_ends_as_an_unbroken_one(tmp_path, order, kills):
    """In index order the end is that of any unbroken run; in arrival order nothing is lost or repeated."""
    path, rng = tmp_path / "killed", np.random.default_rng(5)
    for die_after in kills:
        with pytest.raises(KeyboardInterrupt):
            go(path, plan(order=order), ShuffledEvaluator(rng, die_after))
    submitted = ShuffledEvaluator(rng)
    assert go(path, plan(order=order), submitted) is StopReason.EVALUATIONS
    killed = content(path)
    assert len(killed["candidates"]) == len(killed["evaluations"]) == 30
    assert submitted.finished == 30 - sum(kills)
    if order is Order.INDEX:
        go(tmp_path / "whole", plan(), ShuffledEvaluator(np.random.default_rng(9)))
        assert killed == content(tmp_path / "whole")


def test_the_target_ends_it_early_and_deterministically(tmp_path):
    for name in ("a", "b"):
        evaluator = ShuffledEvaluator(np.random.default_rng(ord(name)))
        assert go(tmp_path / name, plan(fitness=950.0), evaluator) is StopReason.TARGET
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert max(e["fitness"] or 0 for e in content(tmp_path / "a")["evaluations"].values()) >= 950


def test_a_space_that_runs_dry_ends_the_campaign(tmp_path):
    class Dry(Walk):
        def propose(self, history, island, rng):
            return super().propose(history, island, rng) if len(history.candidates) < 5 else None

    with Journal(tmp_path / "j", write=True, create=True) as journal:
        evaluator = ShuffledEvaluator(np.random.default_rng(0))
        campaign = Campaign(plan(evaluations=30), Dry(), Nothing(), evaluator, journal)
        assert campaign.run() is StopReason.EXHAUSTED
    assert len(content(tmp_path / "j")["candidates"]) == 5


def test_a_seed_that_fails_ends_the_campaign(tmp_path):
    bad = Plan([Start("bad", Genome("k", {"x": 3}))], Budget(evaluations=9), 1, 1)
    assert go(tmp_path / "j", bad, ShuffledEvaluator(np.random.default_rng(0))) is StopReason.SEED_FAILED


def test_infrastructure_faults_are_not_the_genomes_and_end_a_hopeless_campaign(tmp_path):
    class Broken(ShuffledEvaluator):
        def wait(self, timeout_seconds):
            job = self.running.pop()
            fault = failed(job.genome, Verdict.INFRA_ERROR, stage=Stage.COMPILE, reason="node lost")
            return [(job.index, fault)]

    evaluator = Broken(np.random.default_rng(0))
    assert go(tmp_path / "j", plan(), evaluator) is StopReason.INFRASTRUCTURE


def test_known_artefacts_are_those_integrated_when_the_job_was_made():
    jobs: list[Job] = []

    class Watching(ShuffledEvaluator):
        def submit(self, job):
            jobs.append(Job(job.index, job.genome, job.seed, frozenset(job.known_artefacts)))
            super().submit(job)

    campaign = Campaign(plan(lag=3), Walk(), Nothing(), Watching(np.random.default_rng(0)), Nowhere())
    campaign.run()
    for job in jobs:
        seen = campaign.history.candidates[job.index].seen
        done = [e.artefact for _, e in campaign.history.evaluated[:seen] if e.artefact]
        assert job.known_artefacts == frozenset(done)
    assert len({job.seed for job in jobs}) == -(-len(jobs) // GATE_EPOCH)


class Slow(ShuffledEvaluator):
    """Never finishes one job, and remembers what nobody waits for any more."""

    dropped: tuple[int, ...] = ()

    def wait(self, timeout_seconds):
        left = [job for job in self.running if job.index != 4]
        if not left:
            return []
        self.running.remove(left[0])
        return [(left[0].index, judge(left[0].genome))]

    def drop(self, indices):
        self.dropped = tuple(indices)


@pytest.mark.parametrize("order", list(Order))
def test_seconds_end_a_campaign_whatever_is_still_in_flight(tmp_path, order, monkeypatch):
    monkeypatch.setattr(loop, "PATIENCE_SECONDS", 0.05)
    evaluator = Slow(np.random.default_rng(0))
    budget = Budget(evaluations=8, wall_seconds=0.2)
    ended = go(tmp_path / "c", dataclasses.replace(plan(order=order), budget=budget), evaluator)
    assert ended in (StopReason.WALL_TIME, StopReason.EVALUATIONS) and evaluator.dropped == (4,)
    with Journal(tmp_path / "c") as journal:
        proposed = [candidate.index for candidate in journal.candidates()]
        evaluated = [index for _, index, _, _ in journal.evaluations()]
    assert sorted({*evaluated, 4}) == proposed and 4 not in evaluated
