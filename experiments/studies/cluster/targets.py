"""Several targets in one Ray cluster: three campaigns at once, on nodes of their own, while nodes join and leave.

    python -m experiments.studies.cluster.targets --out experiments/records

A real cluster on this machine: a head that offers ``target:h200`` and nodes that offer ``target:interpreter`` and
``target:gfx950``. Three campaigns are started on it as anybody would, each by ``tilewright run --address`` in a
process of its own: tpu7x (modelled), which no node offers at first, Triton's interpreter (measured), and gfx950
(compiled only). A node for tpu7x joins; the one of gfx950 is lost while it works, and another joins. Every evaluation
must have come from a node that offers its campaign's target. Writes ``cluster_targets.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._private import state
from ray.cluster_utils import Cluster

from testkit import FIXTURES
from tilewright.evolve.record.home import ENVIRONMENT
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.targets import load_target

CAMPAIGNS: Mapping[str, str] = {
    "tpu7x": "small_gemm/good",
    "interpreter": "small_fp8/gemm_nt",
    "gfx950": "small_fp8/gemm_nt",
}
"""Operator of the campaign on each target."""

PATIENCE_SECONDS = 900.0
TRIES = 4

T = TypeVar("T")


def node(target: str) -> dict[str, Any]:
    return {"num_cpus": 1, "resources": {f"target:{target}": 1.0}, "object_store_memory": 80 << 20}


@dataclass
class Watch:
    """Which node every process of an actor was seen on, and what each node offers."""

    offers: dict[str, str] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)

    def look(self) -> None:
        """Note where actors are now."""
        for one in ray.nodes():
            targets = [name for name in one["Resources"] if name.startswith("target:")]
            self.offers.setdefault(one["NodeID"], targets[0].removeprefix("target:") if targets else "")
        for actor in state.actors().values():
            if actor["Address"]["NodeID"] and actor["Pid"]:
                self.places[actor["Pid"]] = actor["Address"]["NodeID"]


def start_campaign(target: str, address: str, home: Path, evaluations: int) -> subprocess.Popen[bytes]:
    """``tilewright run`` on the cluster."""
    path = home / f"{target}.yaml"
    config = {
        "name": target,
        "operator": f"{FIXTURES}/{CAMPAIGNS[target]}",
        "target": target,
        "suite": "tiny",
        "baselines": [],
        "budget": {"evaluations": evaluations},
        "search": {"proposers": ["parameters"], "lag": 2},
        "workers": {"count": 1},
        "mlflow": {"enabled": False},
    }
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "tilewright.evolve.cli", "run", str(path), "--address", address]
    with open(home / f"{target}.log", "wb") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, ENVIRONMENT: str(home)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def evaluations(home: Path, target: str) -> list[tuple[str, str]]:
    """(verdict, worker) of what the journal of a target's campaign holds."""
    for path in home.glob(f"campaigns/{target}*/journal.sqlite"):
        with Journal(path) as journal:
            return [(e.verdict.value, e.worker) for _, _, e, _ in journal.evaluations()]
    return []


def wait_for(what: str, done: Any, watch: Watch) -> float:
    """Seconds until ``done()``; looks at the cluster meanwhile. Raises TimeoutError."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise TimeoutError(what)
        watch.look()
        time.sleep(0.5)
    watch.look()
    return time.monotonic() - began


def started(make: Callable[[], T]) -> T:
    """A node; on a busy machine one may not start within the half minute that Ray gives it."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):  # Ray raises a bare one
            return make()
    return make()


def run(home: Path, budget: int) -> list[str]:
    """The lines of the report. Raises AssertionError when something is not as it should be."""
    head = {**node("h200"), "include_dashboard": False}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    lost = started(lambda: cluster.add_node(**node("gfx950")))
    started(lambda: cluster.add_node(**node("interpreter")))
    ray.init(address=cluster.address, log_to_driver=False)
    watch, drivers = Watch(), {}
    try:
        watch.look()
        for target in CAMPAIGNS:
            drivers[target] = start_campaign(target, cluster.address, home, budget)
        lines = []
        wait_for("a first gfx950 evaluation", lambda: len(evaluations(home, "gfx950")) > 0, watch)
        assert not evaluations(home, "tpu7x"), "a worker of tpu7x found a place where no node offers it"
        lines.append("* tpu7x waits: no node offers it, and it takes no place on the others' nodes")
        started(lambda: cluster.add_node(**node("tpu7x")))
        seconds = wait_for("a first tpu7x evaluation", lambda: evaluations(home, "tpu7x"), watch)
        lines.append(f"* a node for tpu7x joined: its first evaluation {seconds:.0f} s later")
        before = len(evaluations(home, "gfx950"))
        cluster.remove_node(lost, allow_graceful=False)
        started(lambda: cluster.add_node(**node("gfx950")))
        lines.append(f"* the node of gfx950 was lost after {before} evaluations, and another joined")
        ended = wait_for(
            "the end", lambda: all(driver.poll() is not None for driver in drivers.values()), watch
        )
        lines.append(f"* all three campaigns ended {ended:.0f} s later")
        return [*lines, "", *table(home, drivers, watch, budget)]
    finally:
        for driver in drivers.values():
            if driver.poll() is None:
                driver.kill()
        ray.shutdown()
        cluster.shutdown()


def table(
    home: Path, drivers: Mapping[str, subprocess.Popen[bytes]], watch: Watch, budget: int
) -> Sequence[str]:
    """What each campaign's journal says. Raises AssertionError."""
    rows = [
        "| target | exit code | evaluations | verdicts | nodes it worked on |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for target, driver in drivers.items():
        found = evaluations(home, target)
        verdicts = {verdict: sum(v == verdict for v, _ in found) for verdict, _ in found}
        nodes = {watch.places[int(worker.rpartition(":")[2])] for _, worker in found if ":" in worker}
        said = (home / f"{target}.log").read_text(errors="replace")[-2000:]
        assert driver.returncode == 0 and len(found) == budget, (
            f"{target}: {driver.returncode}, {found}\n{said}"
        )
        assert "infra_error" not in verdicts, verdicts
        assert {watch.offers[one] for one in nodes} == {target}, [watch.offers[one] for one in nodes]
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        rows.append(
            f"| {load_target(target).label} | {driver.returncode} | {len(found)} | {counts} "
            f"| {len(nodes)}, offering {target} |"
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=6, help="of each campaign")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        lines = run(Path(home), arguments.evaluations)
    head = [
        f"# Three targets in one Ray cluster, {time.strftime('%Y-%m-%d')}",
        "",
        f"Written by `python -m experiments.studies.cluster.targets` with ray {ray.__version__}: up to five "
        "Ray nodes on one",
        "machine of two cores under other load. Each campaign is a `tilewright run --address` of its own.",
        "",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    (arguments.out / "cluster_targets.md").write_text("\n".join([*head, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
