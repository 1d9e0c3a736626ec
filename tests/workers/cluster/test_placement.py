"""Where workers and stations of a target may go, by what the nodes of a cluster offer."""

from types import SimpleNamespace
from typing import Any

from tilewright.fitness.targets import load_target
from tilewright.workers.cluster import ray_start, ray_stations


class FakeCluster:
    """Stands in for ``ray``: nodes by id, each with its resources; notes where actors are put."""

    def __init__(self, **nodes):
        self._nodes = nodes
        self.placed: list[tuple[str | None, dict[str, Any]]] = []

    def nodes(self):
        return [{"NodeID": name, "Alive": True, "Resources": has} for name, has in self._nodes.items()]

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="10.0.0.1:6379")

    def cluster_resources(self):
        return {name: amount for has in self._nodes.values() for name, amount in has.items()}

    def remote(self, **wanted):
        place = wanted.get("scheduling_strategy")

        def create(*arguments):
            self.placed.append((place and place.node_id, wanted))
            return f"actor {len(self.placed)}"

        return lambda actor: SimpleNamespace(remote=create)


A, B, C = "a" * 56, "b" * 56, "c" * 56


def cluster(monkeypatch, **nodes):
    made = FakeCluster(**nodes)
    for module in (ray_start, ray_stations):
        monkeypatch.setattr(module, "ray", made)
    return made


def test_workers_of_a_target_wait_for_its_nodes_where_any_target_is_offered(monkeypatch):
    cluster(monkeypatch, **{A: {"CPU": 4}})
    assert ray_start.worker_resources("tpu7x")["resources"] == {}
    cluster(monkeypatch, **{A: {"CPU": 4}, B: {"target:h200": 8}})
    assert ray_start.worker_resources("h200")["resources"] == {"target:h200": 1.0}
    assert ray_start.worker_resources("tpu7x")["resources"] == {"target:tpu7x": 1.0}, "never a place on an h200 node"


def test_what_a_cluster_lacks_for_a_target_is_one_sentence(monkeypatch):
    def said(target, **nodes):
        cluster(monkeypatch, **nodes)
        return ray_start.missing_resource(load_target(target))

    assert "no node of the cluster has a GPU for h200" in said("h200", **{A: {"CPU": 4}})
    assert said("h200", **{A: {"CPU": 4, "GPU": 1}}) == ""
    assert said("tpu7x", **{A: {"CPU": 4}}) == "", "modelled on any node"
    assert "has a CPU: workers wait for one that joins (ray start --address=10.0.0.1:6379 " in said(
        "tpu7x", **{A: {"CPU": 0}}
    )
    assert "offers target:tpu7x, only target:h200" in said("tpu7x", **{A: {"target:h200": 8}})
    assert said("h200", **{A: {"target:h200": 8, "CPU": 4, "GPU": 1}}) == ""


def test_a_station_for_each_gpu_of_the_nodes_that_offer_the_target(monkeypatch):
    nodes = {A: {"target:h200": 8, "GPU": 2}, B: {"target:gfx950": 8, "GPU": 8}, C: {"target:h200": 8, "GPU": 1}}
    found = cluster(monkeypatch, **nodes)
    assert len(ray_stations.start_stations(load_target("h200"), 0)) == 3
    assert [node for node, _ in found.placed] == [A, A, C]
    assert all(wanted["num_gpus"] == 1 for _, wanted in found.placed)
