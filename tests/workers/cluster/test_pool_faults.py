"""What the pool does when a worker, not a candidate, is at fault. (One Ray at a time in a process.)"""

from __future__ import annotations

import os
import time

import pytest

from testkit.pool import FAMILY, drain, genome, pool_settings
from tilewright.evolve.campaign.evaluator import Job
from tilewright.fitness.evaluation import Verdict
from tilewright.workers.cluster.crew import Crew
from tilewright.workers.cluster.head_start import HeadStart
from tilewright.workers.cluster.pool import FEW_SEATS, RayPool
from tilewright.workers.cluster.ray_start import PoolUnavailable
from tilewright.workers.cluster.retries import RETRIES
from tilewright.workers.cluster.settings import PoolSettings


def test_faults_are_retried_and_then_reported_never_held_against_the_genome() -> None:
    """An operator that is not there fails in the worker's constructor, every time."""
    broken = RayPool(pool_settings(operator=f"{FAMILY}/nowhere", count=1))
    broken.start()
    try:
        broken.submit(Job(7, genome(), 1))
        done = drain(broken, 1)
    finally:
        broken.close()
    assert done[7].verdict is Verdict.INFRA_ERROR
    assert broken.retried == RETRIES


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(PoolUnavailable, match=r"127\.0\.0\.1:1 cannot be joined"):
        RayPool(pool_settings(address="127.0.0.1:1")).start()


@pytest.mark.parametrize(("count", "more"), [(1, 0), (9, 0), (17, 1)])
def test_workers_are_started_beside_one_device_where_this_process_has_too_few_places(
    count: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[RayPool] = []
    monkeypatch.setattr(RayPool, "start_beside", lambda pool: starts.append(pool))
    monkeypatch.setattr(HeadStart, "measures", True)
    pool = RayPool(pool_settings(gpus=1, count=count))
    pool.start_more()
    assert starts == [pool]  # nothing is judged here yet
    try:
        pool.open()
        pool.start_more()
        assert len(starts) == 1 + more
    finally:
        pool.close()


def test_a_token_that_is_refused_is_told_at_once_and_a_slow_cluster_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import ray
    import ray._raylet

    from tilewright.workers.cluster import ray_start

    said: list[Exception] = [ray.exceptions.AuthenticationError("no such token"), TimeoutError("slow")]

    def client(address: str) -> None:
        os.write(2, b"gcs_client.cc:210: Failed to get cluster ID\n")
        os.write(2, b"something else\n")
        raise said.pop(0)

    monkeypatch.setattr(ray._raylet, "GcsClient", client)
    with pytest.raises(PoolUnavailable, match=r"10\.0\.0\.1:6379 refuses this machine's token"):
        ray_start._require_token("10.0.0.1:6379")
    ray_start._require_token("10.0.0.1:6379")
    ray_start._require_token("auto")
    assert not said and capfd.readouterr().err == "something else\n" * 2


@pytest.mark.parametrize(("count", "more"), [(1, 0), (FEW_SEATS, 0), (FEW_SEATS + 1, 1)])
def test_few_workers_of_a_model_are_threads_of_this_process_and_need_no_ray(
    count: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[RayPool] = []
    monkeypatch.setattr(RayPool, "start_beside", lambda pool: starts.append(pool))
    monkeypatch.setattr("tilewright.workers.cascade.modelled.Template.warm", lambda template: None)
    pool = RayPool(pool_settings(count=count))
    pool.open()
    try:
        pool.start_more()
        assert len(starts) == more
        assert pool._head is not None and pool._head.seats == (1 if more else count)
    finally:
        pool.close()


def test_ray_starts_once_there_is_a_first_verdict_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    monkeypatch.setattr(RayPool, "_made_workers", lambda pool: begun.append(time.monotonic()) or Crew([], []))
    monkeypatch.setattr(HeadStart, "measures", True)
    pool = RayPool(pool_settings(gpus=1, count=17))
    pool.open()
    try:
        pool.start_beside()
        assert pool.wait(0.1) == [] and not begun
        monkeypatch.setattr(HeadStart, "begin", lambda head, item, request: None)
        monkeypatch.setattr(HeadStart, "finished", lambda head, seconds: [(Job(0, genome(), 1), None)])
        assert pool.wait(0.0) == [], "it failed, and is tried again"
        pool._take_workers(wait=True)
        assert begun
    finally:
        pool.close()


def test_a_few_jobs_for_one_device_wait_for_no_ray_unless_this_process_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: list[RayPool] = []
    monkeypatch.setattr(RayPool, "start_beside", lambda pool: starts.append(pool))
    few = RayPool(pool_settings(gpus=1, count=1))
    few.start_for_few()
    try:
        few.submit(Job(7, genome(), 1))
        assert any("candidate 7" in line for line in few.activity()) and not starts
        monkeypatch.setattr(PoolSettings, "deadline_seconds", lambda settings, scope: 0.0)
        assert few.wait(0.5) == []
        assert starts == [few] and few.retried == 1
    finally:
        few.close()
