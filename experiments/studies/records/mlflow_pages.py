"""MLflow's pages of a campaign in a browser."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testkit.browser import Watched
from tilewright.evolve.mlflow_mirror.content import CANDIDATE, UID, campaign_uid, experiment_name
from tilewright.evolve.mlflow_mirror.process import mirror_environment
from tilewright.evolve.mlflow_mirror.ui import SERVER_SETTINGS, free_port, server_command
from tilewright.evolve.mlflow_mirror.view import page
from tilewright.evolve.report.data import CampaignData

SETTLE_SECONDS = 4.0
"""Seconds until a page is complete: MLflow's pages load their parts later, and their requests never end."""

SLOWEST_SECONDS = 120.0


# Settings of MLflow's pages: open on runs, without the panels of a first visit.
PLAIN_PAGE = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.panelOpen": "false",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad": "true",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
}


@contextmanager
def mlflow_server(home: Path, uri: str, port: int | None = None) -> Iterator[str]:
    """A small MLflow server on this machine; yields its address. Raises TimeoutError."""
    port = port or free_port("127.0.0.1", 5600)
    environment = {**mirror_environment(os.environ), **SERVER_SETTINGS}
    command = server_command(home, uri, "127.0.0.1", port)
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        _await(f"http://127.0.0.1:{port}/health", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def _await(address: str, server: subprocess.Popen[bytes], timeout_seconds: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except OSError:
            time.sleep(0.25)
    raise TimeoutError(f"no MLflow server at {address}")


class MlflowPages:
    """MLflow's pages of one campaign, in an open browser."""

    def __init__(self, browser: Watched, base: str, uri: str, data: CampaignData) -> None:
        from mlflow import MlflowClient

        self._browser, self._base = browser, base
        client = MlflowClient(uri)
        started = next(event.at for event in data.events if event.kind == "started")
        self._uid = uid = campaign_uid(str(data.facts.get("id")), started)
        experiment = client.get_experiment_by_name(experiment_name(data.facts))
        assert experiment is not None, "the campaign has not been mirrored"
        self._experiment = experiment.experiment_id
        runs = client.search_runs([self._experiment], f"tags.`{UID}` = '{uid}'", max_results=1000)
        (self.campaign,) = [run.info.run_id for run in runs if CANDIDATE not in run.data.tags]
        self.candidates = {
            int(r.data.tags[CANDIDATE]): r.info.run_id for r in runs if CANDIDATE in r.data.tags
        }

    def view(self, charts: bool = False) -> None:
        """The campaign's view: its candidates by rate, or the charts beside them."""
        self._open(page(self._experiment, self._uid) + ("&compareRunsMode=CHART" if charts else ""))

    def run(self, run_id: str, tab: str = "") -> None:
        """A run's page; ``tab`` is empty, ``model-metrics`` or ``artifacts``."""
        self._open(f"/#/experiments/{self._experiment}/runs/{run_id}/{tab}".rstrip("/"))

    def artifact(self, run_id: str, name: str) -> None:
        self.run(run_id, "artifacts")
        self._browser.page.get_by_text(name, exact=True).first.click()
        time.sleep(SETTLE_SECONDS / 2)

    def await_text(self, text: str) -> None:
        """Wait until the page shows ``text``, and a moment more."""
        self._browser.page.get_by_text(text).first.wait_for(timeout=SLOWEST_SECONDS * 1e3)
        time.sleep(SETTLE_SECONDS / 2)

    def _open(self, path: str) -> None:
        self._browser.page.goto("about:blank")
        self._browser.page.goto(self._base + path, wait_until="load")
        time.sleep(SETTLE_SECONDS)
