"""Whatever goes wrong, the journal ends as it does when nothing goes wrong, up to order."""

import numpy as np
import pytest

from testkit.faults.campaigns import Table
from testkit.faults.cluster import NEVER, Cluster, pool_of
from testkit.faults.kinds import FAULTS, differences
from testkit.toy_campaign import content, go, plan
from tilewright.evolve.campaign.loop import StopReason
from tilewright.evolve.space.genome import Genome
from tilewright.workers.cluster.jobs import Job


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    path = tmp_path_factory.mktemp("unbroken") / "j.sqlite"
    assert go(path, plan(), Table(np.random.default_rng(0))) is StopReason.EVALUATIONS
    found = content(path)
    verdicts = {e["verdict"] for e in found["evaluations"].values()}
    assert verdicts == {"ok", "incorrect", "duplicate"}, "a campaign that everything happens in"
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_journal_is_as_without_the_fault(fault, tmp_path, wanted):
    found = content(fault.inject(tmp_path, 3, wanted))
    assert differences(fault, found, wanted) == []


def test_a_difference_is_seen(wanted):
    fault = FAULTS[-1]
    lost = {**wanted, "evaluations": {i: e for i, e in wanted["evaluations"].items() if i != 4}}
    assert differences(fault, lost, wanted) == ["other evaluations", "evaluation 4 differs"]
    assert differences(fault, {**wanted, "candidates": []}, wanted) == ["other candidates"]


def test_a_worker_without_a_place_gets_no_job_until_a_node_joins(monkeypatch):
    cluster = Cluster(np.random.default_rng(1), {})
    pool = pool_of(cluster, 1, monkeypatch)
    (actor,) = cluster.actors
    actor.down = NEVER
    pool._workers[0].health.doubt(0.0)
    pool.submit(Job(0, Genome("k", {"x": 1}), 1))
    while cluster.now < 5000.0:
        assert pool.wait(30.0) == []
    assert pool.retried == 0 and "lost" in pool.activity()[0], "it waited, rather than fail"
    actor.down = 0.0
    actor.calls[-1].at, actor.calls[-1].value = cluster.now, None
    found = [index for _ in range(5) for index, _ in pool.wait(30.0)]
    assert found == [0]
