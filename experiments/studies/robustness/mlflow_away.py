"""A campaign whose MLflow server is away, beside the same campaign with a server that is always there.

    python -m experiments.studies.robustness.mlflow_away --candidates 300 --out experiments/records

Three campaigns with the same journal, each with a real MLflow server of its own and a real mirror process: the server
is up throughout; down until the campaign has finished; killed and started again all along. At the end the three stores
must hold the same runs: parameters, metrics with their steps and times, tags. Writes ``mlflow_away.md``. Exit code 0
when they do.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from mlflow import MlflowClient
from mlflow.entities import Run

from testkit.sample_campaign import SampleCampaign
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.evolve.mlflow_mirror.ui import free_port, server_command

HOST, CAMPAIGN = "127.0.0.1", "away-001"
START_SECONDS, CATCH_UP_SECONDS = 120.0, 580.0
UP_SECONDS, DOWN_SECONDS = 6.0, 3.0


class Server:
    """A real MLflow server with a store of its own, which can be killed and started again."""

    def __init__(self, home: Path, port: int) -> None:
        self.store = f"sqlite:///{home}/mlflow.db"
        self.uri = f"http://{HOST}:{port}"
        self._command = server_command(home, self.store, HOST, port)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait until it answers."""
        environment = {**os.environ, **mirror_process.SETTINGS}
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def kill(self) -> None:
        """SIGKILL to the server and its workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                MlflowClient(self.uri).search_experiments(max_results=1)
                return
            time.sleep(0.5)
        raise TimeoutError(f"no MLflow server at {self.uri}")


class Outage:
    """What befalls a server while a campaign runs: nothing, absence to its end, or kills all along."""

    def __init__(self, name: str, server: Server) -> None:
        self.kills = 0
        self._name, self._server = name, server
        self._up, self._changed = name != "down", time.monotonic()

    def begin(self) -> None:
        if self._up:
            self._server.start()
            self._server.wait()

    def look(self) -> None:
        """Between two candidates."""
        if self._name != "flapping":
            return
        if time.monotonic() - self._changed > (UP_SECONDS if self._up else DOWN_SECONDS):
            self._up, self._changed = not self._up, time.monotonic()
            self.kills += not self._up
            (self._server.start if self._up else self._server.kill)()

    def end(self) -> None:
        if not self._up:
            self._server.start()


def arm(name: str, home: Path, candidates: int, pause: float) -> tuple[str, dict[str, Any]]:
    """One campaign, at a clock of its own so that all journals are the same; its store, and what is worth telling."""
    path = home / "campaigns" / CAMPAIGN / "journal.sqlite"
    path.parent.mkdir(parents=True)
    server = Server(home, free_port(HOST, 5600))
    outage = Outage(name, server)
    outage.begin()
    mirror, lags, begun = None, [], time.monotonic()
    try:
        with mock.patch(
            "tilewright.evolve.record.journal.time.time", mock.Mock(side_effect=itertools.count(1.7e9, 0.5))
        ):
            campaign = SampleCampaign(path, CAMPAIGN)
            mirror = mirror_process.start_mirror(
                path, home, {**os.environ, mirror_process.URI_VARIABLE: server.uri}
            )
            for _ in range(candidates):
                campaign.grow(1)
                outage.look()
                lags.append(mirror.lag())
                time.sleep(pause)
            campaign.finish()
            campaign.close()
        told = {"campaign_seconds": time.monotonic() - begun, "most_lag": max(lags), "lag_at_end": lags[-1]}
        outage.end()
        finished = time.monotonic()
        while (
            mirror.lag() or mirror._process.poll() is None
        ):  # as a campaign does, it revives a mirror that died
            if time.monotonic() - finished > CATCH_UP_SECONDS:
                raise TimeoutError((path.parent / mirror_process.LOG).read_text()[-2000:])
            time.sleep(0.2)
        return server.store, {
            **told,
            "caught_up_seconds": time.monotonic() - finished,
            "server_kills": outage.kills,
        }
    finally:
        if mirror is not None:
            mirror._process.kill()
            mirror._process.wait()
        server.kill()


def holdings(store: str) -> dict[str, Any]:
    """Everything a store says about the campaign's runs, by candidate; ids of runs read as what they stand for."""
    client = MlflowClient(store)
    (experiment,) = [e for e in client.search_experiments() if e.name.startswith("tilewright/")]
    runs: list[Run] = list(client.search_runs([experiment.experiment_id], max_results=5000))
    names = {run.info.run_id: run.data.tags.get("tilewright.candidate", "campaign") for run in runs}
    assert len(set(names.values())) == len(runs), "a run was written twice"
    found = {}
    for run in runs:
        history = {
            key: sorted(
                (m.step, m.timestamp, m.value) for m in client.get_metric_history(run.info.run_id, key)
            )
            for key in run.data.metrics
        }
        found[names[run.info.run_id]] = {
            "info": (run.info.status, run.info.start_time, run.info.end_time),
            "params": run.data.params,
            "tags": run.data.tags,
            "metrics": history,
        }
    text = json.dumps(found, sort_keys=True)
    text = re.sub(r"\b[0-9a-f]{32}\b", lambda match: f"run of {names.get(match[0], match[0])}", text)
    return json.loads(text)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Runs and fields in which two stores differ."""
    if set(one) != set(other):
        return [f"runs {sorted(set(one) ^ set(other))}"]
    return [f"{run}: {field}" for run in one for field in one[run] if one[run][field] != other[run][field]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--candidates", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two candidates")
    parser.add_argument("--arms", nargs="*", default=["up", "down", "flapping"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    stores, rows, wanted = {}, [], None
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.arms:
            stores[name], told = arm(name, Path(folder) / name, arguments.candidates, arguments.pause)
            held = holdings(stores[name])
            wanted = wanted or held
            said = differences(wanted, held)
            rows.append((name, told, len(held), said))
            sys.stderr.write(json.dumps([name, told, len(held), said[:5]]) + "\n")
    version = importlib.metadata.version("mlflow")
    text = [
        f"# MLflow away, {time.strftime('%Y-%m-%d')}",
        "",
        f"Written by `python -m experiments.studies.robustness.mlflow_away --candidates "
        f"{arguments.candidates}` with mlflow {version}: a "
        f"made-up campaign, {arguments.candidates} candidates, with a real journal, mirror process and server.",
        "",
        "| server | runs in MLflow | behind at most | behind at the end | caught up after | kills | differences |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, told, runs, said in rows:
        text.append(
            f"| {name} | {runs} | {told['most_lag']} | {told['lag_at_end']} | {told['caught_up_seconds']:.0f} s "
            f"| {told['server_kills']} | {'; '.join(said[:4]) or 'none'} |"
        )
    (arguments.out / "mlflow_away.md").write_text("\n".join(text) + "\n")
    return 1 if any(said for *_, said in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
