"""Races inside a campaign: what is stopped never counts, contenders are never stopped, a resume stops the same."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.evaluations import candidate, figures, passed
from testkit.spaces.suites import SuiteEvaluator, SuiteTable
from tilewright.evolve.campaign.conclusion import contenders
from tilewright.evolve.campaign.config import Order
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start, StopReason
from tilewright.evolve.campaign.racing import LEAST_RECORDS, Racing
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import ParameterProposer
from tilewright.evolve.proposers.surrogate.proposer import SurrogateProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import History
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import FigureKind, Verdict

KERNEL = '"""made up"""\n'
PARAMETERS = {name: tuple(range(6)) for name in "abcd"}


def suite(seed: int, apart: float = 0.03, workloads: int = 8) -> SuiteTable:
    """Times are products of what parameters contribute, a little different on each workload."""
    rng = np.random.default_rng(seed)
    space = Space(PARAMETERS, {})
    points = np.array(list(np.ndindex(6, 6, 6, 6)), dtype=np.int16)
    common = rng.normal(0, 0.2, (4, 6, 1)) + rng.normal(0, apart, (4, 6, workloads))
    logs = sum(common[axis][points[:, axis]] for axis in range(4)) + rng.normal(0, 1, workloads)
    codes = space.codes(points)
    order = np.argsort(codes)
    names = tuple(f"w{n}" for n in range(workloads))
    return SuiteTable("s", KERNEL, space, codes[order], np.exp(logs)[order], names, FigureKind.MODELLED)


class Dying(SuiteEvaluator):
    """Stops answering as a killed driver's does."""

    die_after: int | None = None

    def wait(self, timeout_seconds: float):
        if self.die_after is not None and len(self.spent) >= self.die_after:
            raise KeyboardInterrupt
        return super().wait(timeout_seconds)


def search(
    path: Path, table: SuiteTable, *, racing: bool = True, die_after: int | None = None, **plan
) -> Campaign:
    archive = Archive(2, 20)
    searcher = Portfolio(
        [ParameterProposer(archive, table.space_of), SurrogateProposer(archive, table.space_of)]
    )
    start = Start("first", Genome(KERNEL, dict.fromkeys("abcd", 0)))
    settings = {"seed": 1, "lag": 4, "islands": 2, **plan}
    evaluator = Dying(table)
    evaluator.die_after = die_after
    racer = Racing(table.workloads, archive) if racing else None
    with Journal(path, write=True, create=not path.exists()) as journal:
        budget = Budget(evaluations=60)
        campaign = Campaign(
            Plan([start], budget, **settings), searcher, archive, evaluator, journal, racer=racer
        )
        campaign.restore(list(journal.candidates()), [(i, e) for _, i, e, _ in journal.evaluations()])
        if die_after is None:
            assert campaign.run() is StopReason.EVALUATIONS
        else:
            with pytest.raises(KeyboardInterrupt):
                campaign.run()
    return campaign


def stopped(history: History) -> list[str]:
    return [c.genome.id for c, e in history.evaluated if e.verdict is Verdict.OUTPACED]


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.01, 0.1]))
def test_what_is_stopped_is_never_an_elite_nor_the_best_nor_compared(
    tmp_path_factory: pytest.TempPathFactory, seed: int, apart: float
) -> None:
    campaign = search(tmp_path_factory.mktemp("r") / "j", suite(seed, apart))
    history, archive = campaign.history, campaign.archive
    losers = set(stopped(history))
    assert isinstance(archive, Archive)
    kept = {elite.candidate.genome.id for island in range(2) for elite in archive.elites(island)}
    kept |= {candidate.genome.id for candidate, _ in archive.per_workload.values()}
    kept |= {genome.id for genome in contenders(history, most=100)}
    assert not losers & kept and history.best is not None and history.best[0].genome.id not in losers
    for _, evaluation in history.evaluated:
        whole = len(evaluation.workloads) == 8
        assert (evaluation.verdict is Verdict.OK) == whole, "a fitness is of the whole suite, or none"
        assert (evaluation.projected is not None) == (evaluation.verdict is Verdict.OUTPACED)


@pytest.mark.parametrize("order", [Order.INDEX, Order.ARRIVAL])
def test_a_killed_campaign_stops_the_same_candidates(tmp_path: Path, order: Order) -> None:
    table = suite(5)
    unbroken = search(tmp_path / "unbroken", table, order=order)
    for kill in (12, 15, 15):
        search(tmp_path / "killed", table, order=order, die_after=kill)
    search(tmp_path / "killed", table, order=order)
    assert stopped(unbroken.history)
    with Journal(tmp_path / "unbroken") as one, Journal(tmp_path / "killed") as other:
        assert one.content() == other.content()


def test_few_records_or_one_workload_stop_nobody(tmp_path: Path) -> None:
    campaign = search(tmp_path / "one", suite(5, workloads=1))
    assert not stopped(campaign.history)
    campaign = search(tmp_path / "many", suite(5))
    order = [e.verdict for _, e in campaign.history.evaluated]
    assert Verdict.OUTPACED not in order[:LEAST_RECORDS]


def test_workloads_that_speak_for_the_suite_are_screened_on() -> None:
    """Six workloads agree but for a shift; two go their own way in opposite directions."""
    rng = np.random.default_rng(0)
    archive = Archive(1, 10)
    racing = Racing([f"w{n}" for n in range(8)], archive)
    quality, odd = rng.normal(0, 0.1, 40), rng.normal(0, 0.3, 40)
    rates = quality[:, None] + np.zeros(8) + rng.normal(0, 1e-3, (40, 8))
    rates[:, 6] += odd
    rates[:, 7] -= odd
    rungs = racing._chosen(rates)
    assert [len(rung.workloads) for rung in rungs] == [2, 4]
    assert set(rungs[0].workloads) <= {f"w{n}" for n in range(6)}
    assert 0 < rungs[0].half_width < 0.01 and math.isfinite(rungs[0].offset)


def test_a_workload_on_its_floor_decides_no_race() -> None:
    """Of two that tell the same, the first is at the roofline."""
    archive = Archive(1, 10)
    archive.add(candidate(0), passed("g", figures("w0"), figures("w1")))
    rates = np.random.default_rng(0).normal(0, 0.1, (16, 1)) + np.zeros(2)
    chosen = {}
    for floor in (0.5, 0.99):
        floors = {"w0": {"mxu": floor}, "w1": {"mxu": 0.5}}
        (rung,) = Racing(["w0", "w1"], archive, floors)._chosen(rates)
        chosen[floor] = rung.workloads
    assert chosen == {0.5: ("w0",), 0.99: ("w1",)}
