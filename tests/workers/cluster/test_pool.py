"""The pool on a real local Ray: results, a killed worker, and what it does with infrastructure faults."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from testkit.pool import drain, genome, pool_settings
from tilewright.evolve.campaign.evaluator import Job
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.pool import RayPool


def blas_threads() -> list[int]:
    return [int(library["num_threads"]) for library in threadpool_info() if library["user_api"] == "blas"]


def evaluator_processes() -> list[int]:
    """Process ids of this process's own evaluator actors (other tests may run beside this one)."""
    parents, named = {}, []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            parents[int(status.parent.name)] = int(lines["PPid"])
            if lines["Name"].strip().startswith("ray::Evaluator"):
                named.append(int(status.parent.name))
    return [process for process in named if os.getpid() in ancestors(process, parents)]


def ancestors(process: int, parents: dict[int, int]) -> Iterator[int]:
    while (process := parents.get(process, 0)) > 0:
        yield process


TERMINATED: list[int] = []
USUAL: list[int] = []
"""Threads of BLAS before a pool was opened."""


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    before = signal.signal(signal.SIGTERM, lambda number, frame: TERMINATED.append(number))
    running = RayPool(pool_settings())
    USUAL.extend(blas_threads())
    running.open()
    assert set(blas_threads()) == {1}, "a fork of Ray's amid a product on several threads would hang it"
    running.submit(Job(0, genome(), 1, best=math.inf))  # judged here, while Ray starts
    running.start()
    assert set(blas_threads()) == {1}, "nor are several threads that judge to take several each"
    yield running
    running.close()
    signal.signal(signal.SIGTERM, before)


def test_verdicts_scopes_and_descriptors_come_back(pool: RayPool) -> None:
    """Of workers, and of the job that was submitted before there were any."""
    pool.submit(Job(1, genome("wrong"), 1))
    pool.submit(Job(-1, genome("whole"), 1, baseline="whole"))
    pool.submit(Job(-2, genome(), 1, scope=Scope.FINAL))
    pool.submit(Job(-3, genome(), 1, scope=Scope.TIMELINE))
    assert any("candidate 0" in line for line in pool.activity())
    done = drain(pool, 5)
    assert {i: e.verdict for i, e in done.items()} == {
        0: Verdict.OK, 1: Verdict.INCORRECT, -1: Verdict.OK, -2: Verdict.OK, -3: Verdict.OK
    }  # fmt: skip
    assert done[0].descriptors["block_m"] == "128" and "vmem" in done[0].descriptors
    path = done[0].workloads[0].diagnosis["critical_path"]
    assert path[done[0].descriptors["stall"]] == max(path.values())
    assert done[-2].workloads[0].workload == "512x512x512"
    assert done[-3].workloads[0].diagnosis["timeline"]["lanes"]
    assert all(e.wall_seconds > 0 and e.worker for e in done.values())
    here = {index for index, e in done.items() if e.worker.endswith(f":{os.getpid()}")}
    assert 0 in here


def test_workers_take_over_once_they_are_ready(pool: RayPool) -> None:
    deadline = time.monotonic() + 60.0
    while not pool.workers_ready and time.monotonic() < deadline:
        assert pool.wait(0.2) == []
    assert pool.judged_here > 0.0, "what it took is known"
    assert blas_threads() == USUAL
    pool.submit(Job(2, genome(), 1, best=math.inf))
    assert not drain(pool, 1)[2].worker.endswith(f":{os.getpid()}")


def test_an_artefact_seen_before_is_a_duplicate(pool: RayPool) -> None:
    pool.submit(Job(0, genome(), 1, best=math.inf))
    artefact = drain(pool, 1)[0].artefact
    assert artefact
    pool.submit(Job(1, genome(), 1, known_artefacts={artefact}, best=math.inf))
    assert drain(pool, 1)[1].verdict is Verdict.DUPLICATE


def test_killed_workers_cost_nothing_but_time(pool: RayPool) -> None:
    """With every worker restarting at once, jobs wait for one to answer rather than use up their retries."""
    retried = pool.retried
    for index in (1, 2):
        pool.submit(Job(index, genome(block_k=256 * index), 1, best=math.inf))
    time.sleep(0.5)
    actors = evaluator_processes()
    assert len(actors) == 2
    for process in actors:
        os.kill(process, signal.SIGKILL)
    done = drain(pool, 2)
    assert {e.verdict for e in done.values()} == {Verdict.OK}
    assert pool.retried == retried + 2


def test_a_driver_that_is_told_to_end_answers_itself(pool: RayPool) -> None:
    """Ray's own handler of SIGTERM would end this process at once, with its folder left behind."""
    os.kill(os.getpid(), signal.SIGTERM)
    assert TERMINATED == [signal.SIGTERM]
