"""Both pools on real workers: results, killed workers, and what they do to this process."""

import contextlib
import math
import os
import signal
import time
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from testkit.children import wait_until
from testkit.pool import drain, genome, pool_settings
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.local_pool import LocalPool
from tilewright.workers.cluster.pool import Pool
from tilewright.workers.cluster.ray_pool import RayPool


def blas_threads():
    return {int(library["num_threads"]) for library in threadpool_info() if library["user_api"] == "blas"}


def evaluator_processes():
    """Process ids of this process's own evaluator actors (other tests may run beside this one)."""
    parents, named = {}, []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            parents[int(status.parent.name)] = int(lines["PPid"])
            if lines["Name"].strip().startswith("ray::Evaluator"):
                named.append(int(status.parent.name))
    return [process for process in named if os.getpid() in ancestors(process, parents)]


def ancestors(process, parents):
    while (process := parents.get(process, 0)) > 0:
        yield process


@pytest.fixture(scope="module", params=[LocalPool, RayPool], ids=["local", "ray"])
def pool(request):
    terminated: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    usual = blas_threads()
    running: Pool = request.param(pool_settings())
    running.start()
    if isinstance(running, LocalPool):
        assert blas_threads() == {1}, "several threads that judge are not to take several each"
    yield running
    os.kill(os.getpid(), signal.SIGTERM)  # Ray's own handler would end this process, its folder left behind
    assert terminated == [signal.SIGTERM]
    running.close()
    assert blas_threads() == usual
    signal.signal(signal.SIGTERM, before)


def test_verdicts_scopes_and_descriptors_come_back(pool):
    local = isinstance(pool, LocalPool)
    pool.submit(Job(0, genome(), 1, best=math.inf))
    other = -2 if local else -1
    if local:
        pool.submit(Job(other, genome("whole"), 1, scope=Scope.FINAL))
    else:
        pool.submit(Job(other, genome("whole"), 1, baseline="whole"))
    assert any("candidate 0" in line for line in pool.activity())
    done = drain(pool, 2)
    assert {i: e.verdict for i, e in done.items()} == {0: Verdict.OK, other: Verdict.OK}
    assert done[0].descriptors["block_m"] == "128" and "vmem" in done[0].descriptors
    assert done[other].workloads[0].workload == ("512x256x512" if local else "256x256x512")
    assert all(e.wall_seconds > 0 for e in done.values())
    assert {e.worker.endswith(f":{os.getpid()}") for e in done.values()} == {local}
    assert (pool.thread_cpu_seconds > 0.0) is local
    artefact = done[0].artefact
    assert artefact
    if not local:
        return
    pool.submit(Job(2, genome(), 1, known_artefacts={artefact}, best=math.inf))
    assert drain(pool, 1)[2].verdict is Verdict.DUPLICATE


def test_killed_workers_cost_nothing_but_time(pool):
    """With every worker restarting at once, also one that had no job to fail, a job waits for one to answer rather than
    use up its retries."""
    if isinstance(pool, LocalPool):
        pytest.skip("its workers are this process")
    retried = pool.retried
    pool.submit(Job(1, genome("wrong", block_m=128), 1))
    wait_until(lambda: len(evaluator_processes()) == 2)
    time.sleep(0.5)  # until it has begun
    for process in evaluator_processes():
        os.kill(process, signal.SIGKILL)
    assert drain(pool, 1)[1].verdict is Verdict.INCORRECT
    assert pool.retried == retried + 1
