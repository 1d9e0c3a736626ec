"""What a pool asks Ray for: resources of workers and stations, and the nodes of a cluster that offer them.

A node offers a target with ``ray start --resources='{"target:tpu7x": 8}'``: then workers of other targets stay off it,
and at most 8 of this one come. On a cluster no node of which offers any target, every node serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target
from tilewright.workers.toolchains import tpu as tpu_toolchain

SLIVER = 0.001
"""Of a node's resource: enough to be placed there."""


def local_resources(workers: int, gpus: int) -> dict[str, int]:
    """What a Ray that is started on this machine offers; its TPU chips Ray finds by itself."""
    return {"num_cpus": workers, "num_gpus": gpus}


def worker_resources(target: str) -> dict[str, Any]:
    """What one worker asks of a node: a CPU, since its children do the work, and a share of the target.

    A target that no node offers yet waits for one that joins, rather than for a place on another target's nodes.
    """
    return {"num_cpus": 1, "resources": {f"target:{target}": 1.0} if _offered_targets() else {}}


def station_resources(target: Target, gpus: int) -> list[dict[str, Any]]:
    """What each station asks of a node: one station for each of ``gpus`` GPUs (0: all of the target's nodes) or TPUs.

    Under the interpreter ``gpus`` processes of a CPU stand in for them, at least one. A station on a node that is lost
    may restart on any; it refuses a GPU of another product.
    """
    asked: list[dict[str, Any]]
    if target.interpreted:
        nodes = [node for node, _ in _nodes(target)]
        count = max(1, gpus)
        asked = [
            {"num_gpus": 0, **(_on(nodes[number % len(nodes)]) if nodes else {})} for number in range(count)
        ]
    elif isinstance(target.part, Chip):
        count = max(1, int(ray.cluster_resources().get(tpu_toolchain.RESOURCE, 1)))
        asked = [{"resources": {tpu_toolchain.RESOURCE: 1}}] * count
    else:
        places = [node for node, has in _nodes(target) for _ in range(int(has.get("GPU", 0)))]
        if places and not gpus:
            asked = [{"num_gpus": 1, **_on(node)} for node in places]
        else:
            # a target that only others' nodes could take waits for a node that offers it
            awaited = {f"target:{target.name}": SLIVER} if _offered_targets() and not places else {}
            asked = [{"num_gpus": 1, "resources": awaited}] * max(1, gpus)
    return [{"num_cpus": 0, **one} for one in asked]


def missing_resource(target: Target) -> str:
    """What no node of the cluster has for a target, in one sentence; empty where one has.

    Workers of the target wait for a node that joins.
    """
    name, offered = f"target:{target.name}", _offered_targets()
    if offered and name not in offered:
        others = ", ".join(sorted(offered))
        return f"no node of the cluster offers {name}, only {others}: workers wait for one that joins"
    gpu = target.measured and not target.interpreted and not isinstance(target.part, Chip)
    if gpu and not ray.cluster_resources().get("GPU"):
        return f"no node of the cluster has a GPU for {target.name}: workers wait for one that joins"
    return ""


def _offered_targets() -> set[str]:
    """The ``target:NAME`` resources of the cluster's nodes."""
    return {name for name in ray.cluster_resources() if name.startswith("target:")}


def _nodes(target: Target) -> list[tuple[str, Mapping[str, float]]]:
    """Ids and resources of the nodes for a target: those that offer it; all, where no node offers any."""
    alive = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return [one for one in alive if f"target:{target.name}" in one[1]] if _offered_targets() else alive


def _on(node: str) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
