"""MLflow's server: its address, the campaigns its store lacks; a server that comes late gets everything."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from testkit.browser import browser_page, missing_browser
from testkit.sample_campaign import write_sample
from tilewright.evolve.errors import UserError
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.evolve.mlflow_mirror import ui
from tilewright.evolve.record.journal import Journal


def campaign(home, name="quickstart-001"):
    return home / "campaigns" / name / "journal.sqlite"


def test_no_store_and_no_campaign_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv(mirror_process.URI_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"no MLflow store at sqlite:.*tilewright run quickstart"):
        ui.serve_ui(tmp_path, print)
    monkeypatch.setattr(ui, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed; pip install 'tilewright\[ui\]'"):
        ui.serve_ui(tmp_path, print)
    monkeypatch.setenv(mirror_process.URI_VARIABLE, "http://mlflow.example:5000")
    with pytest.raises(UserError, match="is a server already"):
        ui.serve_ui(tmp_path, print)


def test_a_taken_port_gives_the_next_one(monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert port < ui.free_port("127.0.0.1", port) <= port + ui.PORTS_TRIED
        monkeypatch.setattr(ui, "LAST_PORT", port)
        with pytest.raises(UserError, match=f"--port: none of {port} to {port} is free"):
            ui.free_port("127.0.0.1", port)
    for host in ("192.0.2.1", "", "two..dots"):
        with pytest.raises(UserError, match=f"--host: {host!r} is no address of this machine"):
            ui.free_port(host, 5000)
    with pytest.raises(UserError, match=r"--port: 0 must be from 1 to"):
        ui.free_port("127.0.0.1", 0)


def test_which_campaigns_are_late(tmp_path, monkeypatch):
    uri = mirror_process.store_uri(tmp_path, {})
    complete, late, empty = (campaign(tmp_path, f"c-00{n}") for n in (1, 2, 3))
    write_sample(complete, 2)
    write_sample(late, 2)
    empty.parent.mkdir()
    Journal(empty, write=True, create=True).close()
    follower = mirror_process.Follower(complete, uri, tmp_path, None)
    follower._report(mirror_process.Progress(uri, "/#/x", 2, "finished"))
    assert ui.late_campaigns(tmp_path, uri) == [late]
    assert ui.late_campaigns(tmp_path, "sqlite:///other.db") == [complete, late]
    with mirror_process._only_one(late, follower):
        assert ui.late_campaigns(tmp_path, uri) == []
    # a campaign that was killed together with its mirror, and one that runs
    started: list[object] = []
    monkeypatch.setattr(mirror_process, "MirrorProcess", lambda path, *_: started.append(path))
    follower._report(mirror_process.Progress(uri, "/#/x", 2))
    with Journal(complete, write=True):
        mirror_process.correct_ended(tmp_path)
        assert started == []
    mirror_process.correct_ended(tmp_path)
    assert started == [complete] and ui.late_campaigns(tmp_path, uri) == [complete, late]


@pytest.mark.slow
def test_a_server_shows_late_campaigns_and_ends_with_all_it_started(tmp_path):
    """A mirror writes to a server that is not there yet; ``serve_ui`` makes its own store from other journals."""
    here, there = campaign(tmp_path / "here", "other-001"), campaign(tmp_path / "there")
    port = ui.free_port("127.0.0.1", 5700)
    address = f"http://127.0.0.1:{port}"
    for path, count in ((here, 3), (there, 8)):
        write_sample(path, count, campaign=path.parent.name)
    command = mirror_process.mirror_command([there], tmp_path / "there", address)  # no campaign: it is not nice
    mirror = mirror_process.MirrorProcess(there, command, os.environ)
    _await(lambda: "trying again" in (there.parent / mirror_process.LOG).read_text())
    code = (
        "import sys, pathlib; from tilewright.evolve.mlflow_mirror.ui import serve_ui; "
        "sys.exit(serve_ui(pathlib.Path(sys.argv[1]), print, port=int(sys.argv[2])))"
    )
    env = {k: v for k, v in os.environ.items() if k != mirror_process.URI_VARIABLE}
    server = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "here"), str(port)], env=env)
    try:
        _await(lambda: server.poll() is not None or _answers(f"{address}/health"))
        assert mirror_process.read_progress(here).state == "finished"
        if missing_browser() is None:
            _read_pages(address, mirror_process.read_progress(here).page)
        assert mirror.wait(120) and mirror.lag() == 0, (there.parent / mirror_process.LOG).read_text()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    _await(lambda: not _answers(f"{address}/health"))


def _read_pages(address, view):
    """The candidates' columns, a candidate with a link to its parent, and the parent with a link back."""
    with browser_page(1280, 900, storage={"mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true"}) as browser:
        page = browser.page
        page.goto(address + view)
        child = page.get_by_role("link", name=re.compile("^0001 ")).first
        child.wait_for(timeout=60_000)
        head = page.locator(".ag-header").first.inner_text().split()
        assert {"tflops_modelled", "gain_modelled", "parents", "verdict", "proposer"} <= set(head)
        child.evaluate("link => link.click()")
        parent = page.get_by_role("link", name="candidate 0", exact=True)
        parent.wait_for(timeout=60_000)
        page.goto(f"{address}/{parent.get_attribute('href')}")
        page.get_by_role("link", name="1", exact=True).first.wait_for(timeout=60_000)
        assert page.get_by_text("Evaluation runs").count() == 0, "a classic page"


def _await(true, timeout_seconds=150.0):
    deadline = time.monotonic() + timeout_seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _answers(address):
    try:
        urllib.request.urlopen(address, timeout=2).close()
    except OSError:
        return False
    return True
