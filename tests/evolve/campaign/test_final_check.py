"""Who wins: the fittest finalist that passes the final check, nobody where none does."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from testkit.evaluations import failed, passed
from testkit.sample_campaign import SampleCampaign
from testkit.spaces.tables import AtOnce
from tilewright.evolve.campaign.conclusion import RESERVES, Finals, References
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.settings import PoolUnavailable

FINALISTS = [Genome("def build(): pass", {"x": x}) for x in range(3 + RESERVES + 2)]


@dataclass
class Checker(AtOnce):
    """Answers at once: ok unless the genome is among the failing."""

    failing: set[str]
    slots: int = 1
    jobs: list[Job] = field(default_factory=list)

    def evaluate(self, job):
        self.jobs.append(job)
        return failed(job.genome) if job.genome.id in self.failing else passed(job.genome)


ALL = 3 + RESERVES


@pytest.mark.parametrize(
    ("final", "failing", "winner", "checked", "phrases"),
    [
        ((), 0, 0, 1, []),
        ((), 2, 2, 3, []),
        ((), 3, 3, 4, ["the next best"]),
        ((), ALL, None, ALL, ["the next best", f"none of {ALL} finalists"]),
        (("4096",), 2, 2, 3, []),
        (("4096",), 5, 5, 6, ["the next best"]),
        (("4096",), ALL, None, ALL, ["the next best", f"none of {ALL} finalists"]),
    ],
)
def test_finalists_and_then_the_next_best_are_checked_until_one_passes(
    final, failing, winner, checked, phrases, tmp_path
):
    checker = Checker({genome.id for genome in FINALISTS[:failing]})
    notes: list[str] = []
    fittest = [(SimpleNamespace(genome=genome), None) for genome in FINALISTS]
    history = SimpleNamespace(fittest=lambda count: fittest[:count], evaluation=lambda genome: None)
    resolved = SimpleNamespace(
        suite=SimpleNamespace(final=final),
        config=SimpleNamespace(search=SimpleNamespace(finalists=3)),
        starts=[SimpleNamespace(name="naive", genome=FINALISTS[0])],
        baselines=[],
    )
    with Journal(tmp_path / "journal.sqlite", create=True, write=True) as journal:
        finals = Finals(resolved, journal, References(checker, journal, 3), notes.append, lambda: False)
        found = finals.winner(history)
        checks = [job for job in checker.jobs if job.best == 0.0]
        assert found == (None if winner is None else FINALISTS[winner])
        assert [job.genome for job in checks] == FINALISTS[:checked]
        beside = [job for job in checker.jobs if job.best == math.inf]
        assert len(beside) == len(final), "the best seed is timed there once, whatever fails"
        assert all(job.scope is Scope.FINAL for job in checker.jobs)
        assert ("winner" in journal.references("final")) == (winner is not None)
        assert len(notes) == 1 + len(phrases) and all(map(str.__contains__, notes[1:], phrases))


def test_a_report_names_no_winner_where_a_finished_campaign_has_none(tmp_path):
    sample = SampleCampaign(tmp_path / "journal.sqlite")
    sample.grow(5)
    sample.close()
    with Journal(tmp_path / "journal.sqlite", write=True) as journal:
        assert load(journal).winner is not None, "of one that goes on, the fittest so far"
        journal.add_event("finished", reason="evaluations", winner=None)
        assert load(journal).winner is None


def test_a_worker_that_failed_is_no_figure_of_a_finalist(tmp_path):
    lost = passed(FINALISTS[0]).model_copy(update={"verdict": Verdict.INFRA_ERROR, "reason": "no node."})
    inner = SimpleNamespace(submit=lambda job: None, wait=lambda seconds: [(-1, lost), (5, lost)])
    with Journal(tmp_path / "journal.sqlite", create=True, write=True) as journal:
        references = References(inner, journal, 3)
        references.request("finalist:a", Scope.FINAL, FINALISTS[0], verify=True)
        with pytest.raises(PoolUnavailable, match=r"the final check was not done: no node$"):
            references.drain(lambda: False)
        assert not journal.references("final"), "a resume checks it"
