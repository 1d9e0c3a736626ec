"""What an earlier campaign found is tried first and taught to the model; figures of two campaigns never meet."""

import math

import numpy as np
import pytest

from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import SPACES, read_table, read_tables
from tilewright.evolve.campaign.transfer import EarlierSource, leads_of, read_earlier, records_of, related_campaigns
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space

SETTING = Setting(budget=24)


@pytest.fixture(scope="module")
def shapes():
    """Measured times of one quantiser on two shapes of the H200."""
    return [table for table in read_tables(SPACES / "own") if "h200-quant_dual" in table.kernel]


@pytest.fixture
def home(tmp_path, shapes):
    """A finished campaign ``first`` and one that never finished, ``torso``."""
    for name in ("first", "torso"):
        path = tmp_path / "campaigns" / name / JOURNAL
        with Journal(path, write=True, create=True) as journal:
            table_campaign(shapes[0], 1, SETTING, record=journal).run()
            if name == "first":
                journal.add_event("finished", reason="evaluations")
    return tmp_path


def sequence(history):
    return [candidate.genome.id for candidate in history.candidates]


def test_the_second_shape_starts_from_the_best_of_the_first(home, shapes):
    earlier = read_earlier(home, ["first"])
    best = max(earlier[0].points, key=lambda point: -math.inf if math.isnan(point[1]) else point[1])[0]
    campaign = table_campaign(shapes[1], 5, SETTING, earlier)
    campaign.run()
    assert campaign.history.candidates[0].genome == best
    assert campaign.history.candidates[1].mutation.proposer == "transfer"
    assert shapes[1].fraction(best) > 0.95
    assert len(set(sequence(campaign.history))) == SETTING.budget
    again = table_campaign(shapes[1], 5, SETTING, read_earlier(home, ["first"]))
    again.run()
    assert sequence(again.history) == sequence(campaign.history)


def test_only_what_this_space_knows_is_taken_over_and_only_relative_to_its_campaign():
    space = Space({"block": (16, 32, 64)}, {"block <= 32": "fits"})
    points = [(16, 3.0), (32, 5.0), (64, 9.0), (48, 8.0)]
    earlier = EarlierSource("c", "s", [(Genome("s", {"block": b}), t) for b, t in points])
    (records,) = records_of([earlier], lambda source: space)
    assert [int(row[0]) for row in records.rows] == [0, 1, 2]
    assert np.allclose(records.targets, [-6.0, -4.0, 0.0])
    assert records.earlier
    assert [lead.params["block"] for lead in leads_of([earlier], lambda source: space)] == [32, 16]


def test_a_home_offers_what_it_finished_of_the_same_source_or_operator(home, shapes):
    def found(operator, target, *sources):
        return related_campaigns(home, operator, target, sources, shapes[1].space_of)

    assert found("other", "h200", shapes[1].kernel) == ("first",)
    assert found("other", "h200") == ()
    with Journal(home / "campaigns" / "first" / JOURNAL, write=True) as journal:
        journal.set_meta("campaign", {"operator": "quant", "target": "h200"})
    assert found("quant", "h200") == ("first",)
    assert found("quant", "b200") == ()
    assert related_campaigns(home / "nowhere", "quant", "h200", (), shapes[1].space_of) == ()


def test_earlier_points_whose_fitness_is_inverted_are_dropped():
    """Kept, they would hold the search where it was worst."""
    table = read_table(SPACES / "conv_rtx3090_fail.json")
    rows = table.space.points[np.random.default_rng(9).choice(len(table.space.points), 80, replace=False)]
    genomes = [Genome(table.kernel, table.space.decode(row)) for row in rows]
    points = [(g, math.log(table.time(g))) for g in genomes]  # NaN for a failure
    best = []
    for seed in range(3):
        earlier = [EarlierSource("before", table.kernel, points)]
        campaign = table_campaign(table, seed, Setting(budget=60), earlier)
        campaign.run()
        (proposer,) = [p for p in campaign.searcher.then.proposers if p.name == "surrogate"]
        assert not proposer._earlier
        best.append(max(table.fraction(c.genome) for c in campaign.history.candidates))
    assert np.median(best) > 0.95
