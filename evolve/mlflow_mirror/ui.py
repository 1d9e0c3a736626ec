"""The MLflow UI on the campaigns of a home folder."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.mlflow_mirror.process import (
    ARTIFACTS,
    SETTINGS,
    URI_VARIABLE,
    behind,
    being_mirrored,
    mirror_command,
    mirror_environment,
    read_progress,
    store_uri,
)
from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal

FIRST_MIRROR_SECONDS = 120.0
START_SECONDS = 120.0
FIRST_PAGE_SECONDS = 20.0
POLL_SECONDS = 0.25
PORTS_TRIED = 50
LAST_PORT = 65535
MOST_RUNS = 2000
"""Most runs that one command line names."""
SERVER_LOG = "mlflow-server.log"
NO_CAMPAIGN = "start a campaign with 'tilewright run quickstart'"

# Without these the server starts four workers and a job runner: 2.3 GB and half a minute.
SERVER_SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def serve_ui(
    home: Path,
    print_line: Callable[[str], None],
    host: str = "127.0.0.1",
    port: int = 5000,
    campaign: Path | None = None,
) -> int:
    """Serve the MLflow UI until Ctrl-C and print a link to ``campaign``'s view; returns the server's exit code.

    A mirror writes the campaigns that MLflow lacks, the newest first; the server starts when ``campaign`` (else the
    newest that uses MLflow) has a page.
    The server's own output goes into a file. If MLflow is a running server, only the link is printed. Raises UserError
    without a campaign, or without a free port.
    """
    uri = store_uri(home)
    known = campaigns(home)[::-1]
    wanted = campaign or next((c for c in known if _wants_mlflow(c / JOURNAL)), next(iter(known), None))
    if uri.startswith(("http:", "https:")):
        if not (page := _page(wanted, uri)):
            raise UserError(f"MLFLOW_TRACKING_URI: {uri} is a server already; open it in a browser.")
        print_line(f"MLflow: {link(uri, page)}")
        return 0
    if find_spec("flask") is None:
        raise UserError(
            "MLflow's server is not installed; pip install 'tilewright[ui]', or 'tilewright report' writes one page."
        )
    chosen, log = free_port(host, port), home / SERVER_LOG
    if not home.is_dir():
        raise UserError(f"no campaigns in {home}; {NO_CAMPAIGN}.")
    environment = mirror_environment(os.environ)
    children: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with open(log, "ab") as output:
            print_line("starting MLflow's server; its link follows, and Ctrl-C stops it")
            if late := late_campaigns(home, uri):
                newest_first = mirror_command(late[::-1], home, uri)
                children.append(_start(newest_first, environment, output))
                # wait a moment until the mirror has written the campaign, so that the link leads to it
                deadline = time.monotonic() + (FIRST_PAGE_SECONDS if _exists(uri) else FIRST_MIRROR_SECONDS)
                while not _page(wanted, uri) and children[0].poll() is None and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)
            if not _exists(uri):
                reason = "see mirror.log of the campaign" if late else NO_CAMPAIGN
                raise UserError(f"no MLflow store at {uri}; {reason}.")
            command = server_command(home, uri, host, chosen)
            server = _start(command, {**environment, **SERVER_SETTINGS}, output)
            children.append(server)
        address = f"http://{host}:{chosen}"
        if _answers(address, server):
            print_line(f"MLflow: {link(address, _page(wanted, uri))}")
        code = server.wait()
    except KeyboardInterrupt:
        code = 0
    finally:
        _end(children)
        signal.signal(signal.SIGTERM, before)
    if code > 0:
        raise UserError(f"MLflow's server ended with code {code}; see {log}.")
    return 0


def delete_runs(campaign: Path, home: Path) -> str:
    """Delete a campaign's runs from MLflow, of a store in a file for good; what was deleted, in a sentence. Raises
    UserError where MLflow does not answer."""
    from mlflow.exceptions import MlflowException

    from tilewright.evolve.mlflow_mirror.writer import Mirror

    uri, runs = store_uri(home), list[str]()
    os.environ.update({**SETTINGS, **os.environ})
    with Journal(campaign / JOURNAL) as journal:
        if _exists(uri) and journal.events():
            try:
                runs = Mirror(journal, uri, home / ARTIFACTS).delete()
            except (MlflowException, OSError) as error:
                raise UserError(f"MLflow at {uri} cannot delete {campaign.name}: {error}.") from error
    left = f"; 'mlflow gc' removes them from the trash of {uri}" if runs else ""
    if uri.startswith("sqlite:"):
        environment = {**mirror_environment(os.environ), URI_VARIABLE: uri}
        command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", uri, "--run-ids"]
        cleared = (
            subprocess.run([*command, ",".join(lot)], env=environment, capture_output=True, check=False)
            for lot in (runs[first : first + MOST_RUNS] for first in range(0, len(runs), MOST_RUNS))
        )
        left = "" if all(done.returncode == 0 for done in cleared) else left
    return f"deleted {len(runs)} runs of {campaign.name} from MLflow{left}"


def closing_link(campaign: Path, home: Path) -> str | None:
    """The last line of a run: a link to the campaign in MLflow, after the command that serves it."""
    uri = store_uri(home)
    if not (page := _page(campaign, uri)):
        return None
    if uri.startswith(("http:", "https:")):
        return f"MLflow: {link(uri, page)}"
    return f"MLflow: 'tilewright ui {campaign.name}' prints its link"


def link(address: str, page: str) -> str:
    """The address of a page on a server, or of the server without a page."""
    return address.rstrip("/") + page


def _page(campaign: Path | None, uri: str) -> str:
    """The path of a campaign's page in a store; empty while the store lacks the campaign."""
    if campaign is None:
        return ""
    progress = read_progress(campaign / JOURNAL)
    return progress.page if progress.uri == uri else ""


def _answers(address: str, server: subprocess.Popen[bytes]) -> bool:
    """Wait for the server; False if it ended or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2).close()
            return True
        except OSError:
            time.sleep(POLL_SECONDS)
    return False


def _start(command: list[str], env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own: the server has children, and they must all end together."""
    return subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)


def server_command(home: Path, uri: str, host: str, port: int) -> list[str]:
    """The command line of a small MLflow server."""
    artifacts = (home / ARTIFACTS).resolve().as_uri()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--artifacts-destination", artifacts, "--workers", "1"]
    return [*command, "--host", host, "--port", str(port)]


def late_campaigns(home: Path, uri: str) -> list[Path]:
    """Journals of campaigns that use MLflow, are incomplete there, and that no mirror writes now."""
    journals = [folder / JOURNAL for folder in campaigns(home)]
    return [j for j in journals if behind(j, uri) and not being_mirrored(j) and _wants_mlflow(j)]


def free_port(host: str, port: int) -> int:
    """``port``, or the next one that is free. Raises UserError."""
    if not 1 <= port <= LAST_PORT:
        raise UserError(f"--port: {port} must be from 1 to {LAST_PORT}.")
    nowhere = UserError(f"--host: {host!r} is no address of this machine.")
    if not host:  # a socket takes it for every address there is
        raise nowhere
    last = min(port + PORTS_TRIED - 1, LAST_PORT)
    for candidate in range(port, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except (OSError, UnicodeError) as error:
                if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
                    raise nowhere from error
                continue
            return candidate
    raise UserError(f"--port: none of {port} to {last} is free on {host}.")


def _exists(uri: str) -> bool:
    for scheme in ("sqlite:///", "file://"):
        if uri.startswith(scheme):
            return Path(uri.removeprefix(scheme)).exists()
    return "://" in uri or Path(uri).exists()


def _wants_mlflow(journal_path: Path) -> bool:
    try:
        with Journal(journal_path) as journal:
            started = any(event.kind == "started" for event in journal.events())
            config = journal.meta("config") or {}
            return started and config.get("mlflow", {}).get("enabled", True)
    except JournalError:
        return False
