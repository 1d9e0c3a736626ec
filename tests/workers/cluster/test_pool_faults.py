"""What a pool does when a worker, not a candidate, is at fault. (One Ray at a time in a process.)"""

from types import SimpleNamespace

import pytest
from ray._private import worker

from testkit.pool import drain, genome, pool_settings
from tilewright.evolve.record.home import LOGBOOK, logbook
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.workers.cluster import ray_pool, ray_start
from tilewright.workers.cluster.evaluator import Evaluator
from tilewright.workers.cluster.jobs import RETRIES, Job
from tilewright.workers.cluster.local_pool import LocalPool
from tilewright.workers.cluster.pool import MEASURING_THREADS, MODELLING_THREADS, make_pool
from tilewright.workers.cluster.ray_pool import Health, RayPool, Service, Worker
from tilewright.workers.cluster.settings import PoolSettings, PoolUnavailable


def test_a_cluster_that_is_not_there_is_named():
    with pytest.raises(PoolUnavailable, match=r"127\.0\.0\.1:1 cannot be joined"):
        RayPool(pool_settings(address="127.0.0.1:1")).start()


@pytest.mark.parametrize(
    ("settings", "local"),
    [
        ({"count": MODELLING_THREADS}, True),
        ({"count": MODELLING_THREADS + 1}, False),
        ({"count": 1, "address": "ray://head:10001"}, False),
        ({"target": "h200", "gpus": 1, "count": MEASURING_THREADS}, True),
        ({"target": "h200", "gpus": 1, "count": MEASURING_THREADS + 1}, False),
        ({"target": "h200", "gpus": 2, "count": 2}, False),
        ({"target": "interpreter", "count": 2}, True),
        ({"target": "gfx950", "count": 2}, True),
    ],
)
def test_few_workers_and_one_device_are_threads_of_this_process(settings, local):
    made = make_pool(pool_settings(**settings))
    assert isinstance(made, LocalPool if local else RayPool)


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_thread_that_fails_or_hangs_is_retried_and_then_reported(fault, monkeypatch):
    evaluate, calls = Evaluator.evaluate, []

    def faulty(evaluator, request):
        calls.append(evaluator)
        if fault == "raises":
            raise OSError("no space left")
        return evaluate(evaluator, request)

    monkeypatch.setattr(Evaluator, "evaluate", faulty)
    if fault == "hangs":
        monkeypatch.setattr(PoolSettings, "deadline_seconds", lambda settings, scope: 0.0)
    pool = LocalPool(pool_settings(count=1))
    pool.start()
    try:
        pool.submit(Job(7, genome(), 1))
        assert pool.activity()[0].startswith("worker 0: candidate 7, ")
        assert drain(pool, 1)[7].verdict is Verdict.INFRA_ERROR
    finally:
        pool.close()
    assert pool.retried == RETRIES
    assert len(set(calls)) == (1 if fault == "raises" else RETRIES + 1), "a thread that hangs is replaced"


def test_while_no_node_is_left_no_job_uses_up_its_tries(monkeypatch):
    lacks = ["no node of the cluster has a CPU"]
    monkeypatch.setattr(ray_pool, "missing_resource", lambda target: "".join(lacks))
    pool, calls = RayPool(pool_settings(address="head:1")), []
    handle = SimpleNamespace(evaluate=SimpleNamespace(remote=lambda *arguments: calls.append(arguments)))
    pool._queue.append(Job(7, genome(), 1))
    for number, state in enumerate((Service.RESTARTING, Service.RESTARTING, Service.LOST)):
        pool._workers = [Worker(handle, 0, Health(None, Service.LOST, _next=float("inf")))]
        pool._assign()
        assert pool._workers[0].health.state is state and len(calls) == (number == 2)
        lacks.clear()  # a node has joined: time to restart, and from then on their errors are the answer


def test_rays_own_lines_go_to_the_campaigns_log_and_not_to_the_terminal(tmp_path, capsys, monkeypatch):
    """What Ray's listener does with the news of a lost node."""
    lines: list[str] = []
    monkeypatch.setattr(ray_start, "missing_resource", lambda target: f"none is left for {target.name}")
    ray_start.keep_lines(load_target("tpu7x"), lines.append)
    lost = "The node with node id: ed80d5 and address: 10.0.0.7 and node name: a has been marked dead because"
    with logbook(tmp_path):
        worker.print_to_stdstream({"lines": ["[state-dump] x", lost], "pid": "raylet", "is_err": False}, False)
    assert "[state-dump] x" in (tmp_path / LOGBOOK).read_text()
    assert lines == ["warning: the cluster lost its node 10.0.0.7; none is left for tpu7x"]
    assert not "".join(capsys.readouterr())
