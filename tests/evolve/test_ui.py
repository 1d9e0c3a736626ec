"""MLflow's own pages show campaign, candidates and parents; a server that comes late gets everything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from evolve import tracking, ui
from evolve.errors import UserError
from evolve.journal import Journal
from evolve.report.data import load
from experiments.browser import browser_page, missing_browser
from experiments.screenshots import PLAIN_PAGE, MlflowPages, candidate_columns, mlflow_server
from tests.evolve.sample_campaign import SampleCampaign, write_sample

needs_browser = pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))


def campaign(home: Path, name: str = "quickstart-001") -> Path:
    return home / "campaigns" / name / "journal.sqlite"


def test_no_store_and_no_campaign_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tracking.URI_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"no MLflow store at sqlite:.*tilewright run quickstart"):
        ui.serve_ui(tmp_path)
    monkeypatch.setenv(tracking.URI_VARIABLE, "http://mlflow.example:5000")
    with pytest.raises(UserError, match="is a server already"):
        ui.serve_ui(tmp_path)


def test_a_taken_port_gives_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < ui.free_port("127.0.0.1", port) <= port + ui.PORTS_TRIED
    with pytest.raises(UserError, match="--port: none of"):
        ui.free_port("192.0.2.1", 5000)


def test_which_campaigns_are_late(tmp_path: Path) -> None:
    uri = tracking.store_uri(tmp_path, {})
    whole, late, empty = (campaign(tmp_path, f"c-00{n}") for n in (1, 2, 3))
    write_sample(whole, 2)
    write_sample(late, 2)
    empty.parent.mkdir()
    Journal(empty, write=True, create=True).close()
    follower = tracking.Follower(whole, uri, tmp_path, None)
    follower._report(tracking.Progress(uri, 2, complete=True))
    assert ui.late_campaigns(tmp_path, uri) == [late]
    assert ui.late_campaigns(tmp_path, "sqlite:///other.db") == [whole, late]
    with tracking._only_one(late, follower):
        assert ui.late_campaigns(tmp_path, uri) == []


@needs_browser
def test_server_comes_late_and_its_pages_show_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror starts against a server that is not there; the campaign ends; then the server starts."""
    path, port = campaign(tmp_path), ui.free_port("127.0.0.1", 5700)
    address = f"http://127.0.0.1:{port}"
    path.parent.mkdir(parents=True)
    sample = SampleCampaign(path)
    mirror = tracking.start_mirror(path, tmp_path, {**os.environ, tracking.URI_VARIABLE: address})
    sample.grow(8)
    sample.finish()
    sample.close()
    deadline = time.monotonic() + 60
    while not tracking.read_progress(path).problem and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "trying again" in (path.parent / tracking.LOG).read_text() and mirror.lag() == 8
    with Journal(path) as journal:
        data = load(journal)
    with mlflow_server(tmp_path, f"sqlite:///{tmp_path}/server.db", port) as base:
        assert mirror.wait(120), (path.parent / tracking.LOG).read_text()
        assert mirror.lag() == 0
        with browser_page(1440, 1000, storage=PLAIN_PAGE) as browser:
            pages = MlflowPages(browser, base, address, data)
            assert sorted(pages.candidates) == list(range(8))
            _look(pages, browser, data)
            foreign = [
                r for r in browser.requests if not r.startswith((base, "blob:" + base, "data:", "about:"))
            ]
            assert foreign == []


def _look(pages: MlflowPages, browser, data) -> None:  # type: ignore[no-untyped-def]
    page = browser.page
    pages.candidates_table(candidate_columns(data))
    page.get_by_text("quickstart-001", exact=True).first.wait_for(timeout=30_000)
    child = next(c for c in data.candidates.values() if c.parents)
    for text in ("0000 seed kernel naive", f"{child.index:04d} {child.mutation.detail}"[:20]):
        page.get_by_text(text).first.wait_for(timeout=30_000)
    pages.run(pages.candidates[child.index])
    page.get_by_text("Parent run").first.wait_for(timeout=30_000)
    assert page.get_by_role("link", name="quickstart-001").count() >= 1
    assert page.get_by_text("lineage.parents").count() >= 1
    pages.artifact(pages.campaign, "report.html")
    frame = page.frame_locator("iframe[sandbox]").first
    frame.get_by_role("heading", name="Lineage of the winner").wait_for(timeout=30_000)


def test_serving_brings_late_campaigns_up_to_date_and_ends_whole(tmp_path: Path) -> None:
    """No store yet: it is made from the journals; SIGTERM ends the server and all it started."""
    write_sample(campaign(tmp_path), 3)
    port = ui.free_port("127.0.0.1", 5800)
    code = (
        "import sys, pathlib; from evolve.ui import serve_ui; "
        "sys.exit(serve_ui(pathlib.Path(sys.argv[1]), port=int(sys.argv[2])))"
    )
    env = {k: v for k, v in os.environ.items() if k != tracking.URI_VARIABLE}
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(port)], env=env, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not _answers(f"http://127.0.0.1:{port}/health") and time.monotonic() < deadline:
            assert server.poll() is None
            time.sleep(0.3)
        assert tracking.read_progress(campaign(tmp_path)).complete
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    deadline = time.monotonic() + 20
    while _answers(f"http://127.0.0.1:{port}/health") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _answers(f"http://127.0.0.1:{port}/health")


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=2).close()
    except OSError:
        return False
    return True
