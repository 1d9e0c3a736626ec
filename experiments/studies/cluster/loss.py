"""A real Ray cluster of several nodes on this machine, one of which is lost while it evaluates.

    python -m experiments.studies.cluster.loss --out experiments/records

A head that offers ``target:h200`` and two nodes that offer ``target:tpu7x``: a pool for tpu7x must place its workers
on the latter. The same candidates are evaluated three times: undisturbed; with one node's raylet killed, and all on it,
when it has just begun; and with another node in its place. Every evaluation must come out the same. Writes
``cluster_loss.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from testkit.pool import genome, pool_settings
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.record.journal import VOLATILE
from tilewright.fitness.evaluation import Evaluation
from tilewright.workers.cluster.pool import RayPool

SHAPES = ({}, {"block_m": 256}, {"block_n": 256}, {"block_k": 256}, {"block_m": 256, "block_n": 256})
PATIENCE_SECONDS = 600.0


def node(target: str) -> dict[str, Any]:
    return {"num_cpus": 1, "resources": {f"target:{target}": 1.0}, "object_store_memory": 80 << 20}


def evaluate(pool: RayPool, on_begin: Any = None) -> tuple[dict[int, Evaluation], float]:
    """All candidates, and the seconds they took. ``on_begin`` is called once every worker is busy."""
    for index, shape in enumerate(SHAPES):
        pool.submit(Job(index, genome(**shape), 1))
    done: dict[int, Evaluation] = {}
    begun = time.monotonic()
    while len(done) < len(SHAPES):
        if time.monotonic() - begun > PATIENCE_SECONDS:
            raise TimeoutError(f"{len(done)} of {len(SHAPES)} candidates; {pool.activity()}")
        done.update(pool.wait(0.5))
        if on_begin is not None and sum("candidate" in line for line in pool.activity()) == pool.slots:
            time.sleep(0.5)
            on_begin()
            on_begin = None
    return done, time.monotonic() - begun


def stable(done: dict[int, Evaluation]) -> dict[int, Any]:
    """Evaluations less what differs between any two runs."""
    return {i: e.model_dump(mode="json", exclude=set(VOLATILE)) for i, e in sorted(done.items())}


def run() -> list[str]:
    """The lines of the report. Raises AssertionError when something is not as it should be."""
    cluster = Cluster(initialize_head=True, head_node_args={**node("h200"), "include_dashboard": False})
    nodes = [cluster.add_node(**node("tpu7x")) for _ in range(2)]
    pool = RayPool(pool_settings(address=cluster.address, count=2))
    try:
        pool.start()
        first, seconds = evaluate(pool)
        free = ray.available_resources()
        assert free.get("target:h200") == 1.0 and not free.get("target:tpu7x"), free
        lines = [f"* undisturbed: {len(first)} evaluations in {seconds:.0f} s, both workers on tpu7x nodes"]
        lost: list[float] = []

        def lose() -> None:
            lost.append(time.monotonic())
            cluster.remove_node(nodes[0], allow_graceful=False)

        retried = pool.retried
        second, seconds = evaluate(pool, lose)
        assert lost and pool.retried > retried, "the node was lost while it evaluated"
        lines.append(
            f"* a node lost in the midst: {len(second)} evaluations in {seconds:.0f} s, {pool.retried - retried} tried "
            f"again, {len({e.worker for e in second.values()})} worker(s) answered"
        )
        joined = time.monotonic()
        cluster.add_node(**node("tpu7x"))
        while not all("idle" in line for line in pool.activity()):
            assert time.monotonic() - joined < PATIENCE_SECONDS, pool.activity()
            pool.wait(0.5)
            pool._assign()
            time.sleep(0.2)
        back = time.monotonic() - joined
        third, seconds = evaluate(pool)
        lines.append(
            f"* another node joined: its worker in service after {back:.0f} s, {len(third)} evaluations in "
            f"{seconds:.0f} s"
        )
        assert stable(first) == stable(second) == stable(third), "evaluations differ"
        lines.append("* every evaluation the same in all three, but for its wall time, worker and log")
        return lines
    finally:
        pool.close()
        cluster.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    head = [
        f"# A Ray node lost in the midst of an evaluation, {time.strftime('%Y-%m-%d')}",
        "",
        f"Written by `python -m experiments.studies.cluster.loss` with ray {ray.__version__}: three Ray nodes "
        "on one machine "
        "of two cores, the small GEMM of `testkit/fixtures`, tpu7x (modelled). Times are under other load.",
        "",
    ]
    lines = run()
    sys.stdout.write("\n".join(lines) + "\n")
    (arguments.out / "cluster_loss.md").write_text("\n".join([*head, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
