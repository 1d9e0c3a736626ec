"""MLflow's own pages show campaign, candidates and parents; a server that comes late gets everything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testkit.browser import browser_page, missing_browser
from testkit.mlflow_pages import PLAIN_PAGE, MlflowPages
from testkit.sample_campaign import SampleCampaign, write_sample
from tilewright.evolve.errors import UserError
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.evolve.mlflow_mirror import ui
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load

needs_browser = pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))


def campaign(home: Path, name: str = "quickstart-001") -> Path:
    return home / "campaigns" / name / "journal.sqlite"


def test_no_store_and_no_campaign_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mirror_process.URI_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"no MLflow store at sqlite:.*tilewright run quickstart"):
        ui.serve_ui(tmp_path, print)
    monkeypatch.setenv(mirror_process.URI_VARIABLE, "http://mlflow.example:5000")
    with pytest.raises(UserError, match="is a server already"):
        ui.serve_ui(tmp_path, print)


def test_a_taken_port_gives_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert port < ui.free_port("127.0.0.1", port) <= port + ui.PORTS_TRIED
        monkeypatch.setattr(ui, "LAST_PORT", port)
        with pytest.raises(UserError, match=f"--port: none of {port} to {port} is free"):
            ui.free_port("127.0.0.1", port)
    with pytest.raises(UserError, match=r"--host: '192\.0\.2\.1' is no address of this machine"):
        ui.free_port("192.0.2.1", 5000)
    with pytest.raises(UserError, match=r"--port: 0 must be from 1 to"):
        ui.free_port("127.0.0.1", 0)


def test_a_server_of_this_machine_alone_answers_to_its_own_name() -> None:
    made = ui.server_environment({"A": "b", "MLFLOW_SERVER_ALLOWED_HOSTS": "mine"}, "127.0.0.1")
    assert made["MLFLOW_SERVER_ALLOWED_HOSTS"] == "mine" and made["A"] == "b"
    assert made["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == f"http://{ui.OWN_NAME}:*"
    hosts = ui.server_environment({}, "localhost")["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {"127.0.0.1:*", f"{ui.OWN_NAME}:*", "10.*"} <= set(hosts) and "*" not in hosts
    assert "MLFLOW_SERVER_ALLOWED_HOSTS" not in ui.server_environment({}, "0.0.0.0")
    assert (ui.link_host("0.0.0.0"), ui.link_host("localhost")) == ("0.0.0.0", ui.OWN_NAME)


def test_which_campaigns_are_late(tmp_path: Path) -> None:
    uri = mirror_process.store_uri(tmp_path, {})
    complete, late, empty = (campaign(tmp_path, f"c-00{n}") for n in (1, 2, 3))
    write_sample(complete, 2)
    write_sample(late, 2)
    empty.parent.mkdir()
    Journal(empty, write=True, create=True).close()
    follower = mirror_process.Follower(complete, uri, tmp_path, None)
    follower._report(mirror_process.Progress(uri, "/#/x", 2, complete=True))
    assert ui.late_campaigns(tmp_path, uri) == [late]
    assert ui.late_campaigns(tmp_path, "sqlite:///other.db") == [complete, late]
    with mirror_process._only_one(late, follower):
        assert ui.late_campaigns(tmp_path, uri) == []


@needs_browser
@pytest.mark.slow
def test_a_server_that_comes_late_shows_campaigns_and_ends_whole(tmp_path: Path) -> None:
    """A mirror writes to a server that is not there yet; ``serve_ui`` then makes its store from other journals.

    Pages show both campaigns; SIGTERM ends the server and all it started.
    """
    here, there = campaign(tmp_path / "here", "other-001"), campaign(tmp_path / "there")
    port = ui.free_port("127.0.0.1", 5700)
    address = f"http://127.0.0.1:{port}"
    write_sample(here, 3, campaign="other-001")
    there.parent.mkdir(parents=True)
    sample = SampleCampaign(there)
    env = {**os.environ, mirror_process.URI_VARIABLE: address}
    mirror = mirror_process.start_mirror(there, tmp_path / "there", env)
    sample.grow(8)
    sample.finish()
    sample.close()
    _await(lambda: "trying again" in (there.parent / mirror_process.LOG).read_text())
    assert mirror.lag() == 8
    with _served(tmp_path / "here", port):
        assert mirror_process.read_progress(here).complete
        assert mirror.wait(120), (there.parent / mirror_process.LOG).read_text()
        assert mirror.lag() == 0
        with browser_page(1440, 1000, storage=PLAIN_PAGE) as browser, Journal(there) as journal:
            data = load(journal)
            pages = MlflowPages(browser, address, address, data, settle=0.0)
            assert sorted(pages.candidates) == list(range(8))
            _look(pages, browser, data)
            own = (address, f"blob:{address}", "data:", "about:")
            assert [r for r in browser.requests if not r.startswith(own)] == []
    _await(lambda: not _answers(f"{address}/health"))


@contextmanager
def _served(home: Path, port: int) -> Iterator[None]:
    code = (
        "import sys, pathlib; from tilewright.evolve.mlflow_mirror.ui import serve_ui; "
        "sys.exit(serve_ui(pathlib.Path(sys.argv[1]), print, port=int(sys.argv[2])))"
    )
    env = {k: v for k, v in os.environ.items() if k != mirror_process.URI_VARIABLE}
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(home), str(port)], env=env, stderr=subprocess.DEVNULL
    )
    try:
        _await(lambda: server.poll() is not None or _answers(f"http://127.0.0.1:{port}/health"))
        assert server.poll() is None
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def _look(pages: MlflowPages, browser, data) -> None:  # type: ignore[no-untyped-def]
    page = browser.page
    pages.view()
    pages.await_text(f"{len(pages.candidates)} matching runs")
    links = page.locator("[role=row] a", has_text="00")
    links.first.wait_for(timeout=60_000)
    rows = links.all_inner_texts()
    fittest = max(data.points, key=lambda point: point.evaluation.fitness or 0.0)
    assert rows[0].startswith(f"{fittest.candidate.index:04d} "), rows
    for column in ("gain_over_seed_modelled", "verdict", "mutation", "proposer"):
        page.get_by_role("columnheader", name=column).first.wait_for(timeout=60_000)
    pages.view(charts=True)
    page.locator(".js-plotly-plot").nth(2).wait_for(timeout=60_000)
    child = next(c for c in data.candidates.values() if c.parents)
    pages.run(pages.candidates[child.index])
    for part in (
        page.get_by_text("Parent run"),
        page.get_by_role("link", name="quickstart-001"),
        page.get_by_text("lineage.parents"),
    ):
        part.first.wait_for(timeout=60_000)
    pages.artifact(pages.campaign, "report.html")
    frame = page.frame_locator("iframe[sandbox]").first
    frame.get_by_role("heading", name="Lineage of the winner").wait_for(timeout=60_000)


def _await(true: Callable[[], bool], timeout_seconds: float = 150.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=2).close()
    except OSError:
        return False
    return True
