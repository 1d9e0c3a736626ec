"""Races inside a campaign: what is stopped never counts, contenders are never stopped, a resume stops the same."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from testkit.evaluations import candidate, failed, figures, passed
from testkit.journals import journal_content
from testkit.spaces.tables import AtOnce
from tilewright.evolve.campaign.conclusion import contenders
from tilewright.evolve.campaign.config import Order
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start, StopReason
from tilewright.evolve.campaign.racing import LEAST_RECORDS, Racing
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, ParameterProposer
from tilewright.evolve.proposers.surrogate.proposer import SurrogateProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.score import geometric_mean
from tilewright.seeds.operator import Workload
from tilewright.workers.cascade.common_stages import RaceStage
from tilewright.workers.request import Findings, Request

KERNEL = '"""made up"""\n'
SPACE = Space({name: tuple(range(6)) for name in "abcd"}, {})


@dataclass
class Suite(AtOnce):
    """An evaluator that reads made-up times workload by workload, as the cascade's own ``RaceStage`` asks for them.

    Times are products of what parameters contribute, a little different (``apart``) on each workload. ``spent``:
    workloads read by job. It raises KeyboardInterrupt after ``die_after`` jobs, as a killed driver stops.
    """

    seed: int
    apart: float = 0.03
    count: int = 8
    die_after: int | None = None
    slots: int = 1
    spent: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        effects = rng.normal(0, 0.2, (4, 6, 1)) + rng.normal(0, self.apart, (4, 6, self.count))
        self._effects, self._base = effects, rng.normal(0, 1, self.count)
        self.workloads = tuple(f"w{n}" for n in range(self.count))

    def wait(self, timeout_seconds):
        if self.die_after is not None and len(self.spent) >= self.die_after:
            raise KeyboardInterrupt
        return super().wait(timeout_seconds)

    def evaluate(self, job):
        point = [int(job.genome.params[name]) for name in "abcd"]
        logs = self._base + sum(self._effects[axis][place] for axis, place in enumerate(point))
        seconds = dict(zip(self.workloads, np.exp(logs).tolist(), strict=True))
        found = Findings()
        nothing = dict.fromkeys(("operator", "truth", "target", "limits"), cast(Any, None))
        request = Request(
            **nothing,
            source=KERNEL,
            params=job.genome.params,
            seed=job.seed,
            checked=(),
            folder=Path(),
            measured=tuple(Workload(name, {}) for name in self.workloads),
            race=job.race,
        )
        failure = RaceStage([Reading(seconds)], lambda found: {}).run(request, found)
        self.spent[job.index] = len(found.figures)
        timed = {"workloads": tuple(found.figures), "stage": Stage.MEASURE}
        if failure is not None:
            return failed(job.genome, failure.verdict, reason=failure.reason, projected=found.projected, **timed)
        return passed(job.genome, fitness=geometric_mean(f.rate for f in found.figures), **timed)


@dataclass(frozen=True)
class Reading:
    """A stage that reads the workloads it is asked for."""

    seconds: dict[str, float]
    stage: Stage = Stage.MEASURE

    def run(self, request, found):
        for workload in request.measured:
            read = figures(workload.id, self.seconds[workload.id], diagnosis={"relative_error": 0.0})
            found.figures.append(read)
        return None


def search(path, suite, **plan):
    archive, spaces = Archive(2, 20), KnownSpaces(lambda source: SPACE)
    searcher = Portfolio([ParameterProposer(archive, spaces), SurrogateProposer(spaces)])
    start = Start("first", Genome(KERNEL, dict.fromkeys("abcd", 0)))
    settings = {"seed": 1, "lag": 4, "islands": 2, **plan}
    racer = Racing(suite.workloads, archive)
    with Journal(path, write=True, create=not path.exists()) as journal:
        budget = Budget(evaluations=60)
        campaign = Campaign(Plan([start], budget, **settings), searcher, archive, suite, journal, racer=racer)
        campaign.restore(list(journal.candidates()), [(i, e) for _, i, e, _ in journal.evaluations()])
        if suite.die_after is None:
            assert campaign.run() is StopReason.EVALUATIONS
        else:
            with pytest.raises(KeyboardInterrupt):
                campaign.run()
    return campaign


def stopped(history):
    return [c.genome.id for c, e in history.evaluated if e.verdict is Verdict.OUTPACED]


def test_what_is_stopped_is_never_an_elite_nor_the_best_nor_compared(tmp_path):
    campaign = search(tmp_path / "j", Suite(2, 0.1))
    history, archive = campaign.history, campaign.archive
    losers = set(stopped(history))
    assert isinstance(archive, Archive)
    kept = {elite.candidate.genome.id for island in range(2) for elite in archive.elites(island)}
    kept |= {candidate.genome.id for candidate, _ in archive.per_workload.values()}
    kept |= {genome.id for genome in contenders(history, most=100)}
    assert not losers & kept and history.best is not None and history.best[0].genome.id not in losers
    assert all(e.verdict is not Verdict.OUTPACED for _, e in history.evaluated[:LEAST_RECORDS])
    for _, evaluation in history.evaluated:
        whole = len(evaluation.workloads) == 8
        assert (evaluation.verdict is Verdict.OK) == whole, "a fitness is of the whole suite, or none"
        assert (evaluation.projected is not None) == (evaluation.verdict is Verdict.OUTPACED)


@pytest.mark.parametrize("order", [Order.INDEX, Order.ARRIVAL])
def test_a_killed_campaign_stops_the_same_candidates(tmp_path, order):
    unbroken = search(tmp_path / "unbroken", Suite(5), order=order)
    for kill in (12, 30):
        search(tmp_path / "killed", Suite(5, die_after=kill), order=order)
    search(tmp_path / "killed", Suite(5), order=order)
    assert stopped(unbroken.history)
    with Journal(tmp_path / "unbroken") as one, Journal(tmp_path / "killed") as other:
        assert journal_content(one) == journal_content(other)


def test_workloads_that_speak_for_the_suite_are_screened_on():
    """Six workloads agree but for a shift; two go their own way in opposite directions."""
    rng = np.random.default_rng(0)
    archive = Archive(1, 10)
    racing = Racing([f"w{n}" for n in range(8)], archive)
    quality, odd = rng.normal(0, 0.1, 40), rng.normal(0, 0.3, 40)
    rates = quality[:, None] + np.zeros(8) + rng.normal(0, 1e-3, (40, 8))
    rates[:, 6] += odd
    rates[:, 7] -= odd
    rungs = racing._choose_rungs(rates)
    assert [len(rung.workloads) for rung in rungs] == [2, 4]
    assert set(rungs[0].workloads) <= {f"w{n}" for n in range(6)}
    assert 0 < rungs[0].half_width < 0.01 and math.isfinite(rungs[0].offset)


def test_a_workload_on_its_floor_decides_no_race():
    """Of two that tell the same, the first is at the roofline."""
    archive = Archive(1, 10)
    archive.add(candidate(0), passed("g", figures("w0"), figures("w1")))
    rates = np.random.default_rng(0).normal(0, 0.1, (16, 1)) + np.zeros(2)
    chosen = {}
    for floor in (0.5, 0.99):
        floors = {"w0": {"mxu": floor}, "w1": {"mxu": 0.5}}
        (rung,) = Racing(["w0", "w1"], archive, floors)._choose_rungs(rates)
        chosen[floor] = rung.workloads
    assert chosen == {0.5: ("w0",), 0.99: ("w1",)}
