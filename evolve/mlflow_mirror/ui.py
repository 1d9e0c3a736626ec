"""The MLflow UI on the campaigns of a home folder."""

from __future__ import annotations

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
from pathlib import Path
from typing import IO

from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.mlflow_mirror.process import (
    ARTIFACTS,
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
SERVER_LOG = "mlflow-server.log"

# Without these the server starts four workers and a job runner: 2.3 GB and half a minute.
SERVER_SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

LOOPBACK = ("127.0.0.1", "localhost")
OWN_NAME = "tilewright.localhost"
"""Browsers know every name below localhost as this machine (RFC 6761, 6.3). MLflow 3.17 opens its assistant over a page
on a first visit where the address is ``localhost`` or ``127.0.0.1``, and has no setting for it; under another name it
does not."""

PRIVATE_HOSTS = ("192.168.*", "10.*", *(f"172.{n}.*" for n in range(16, 32)))
"""Further hosts that MLflow serves unless told otherwise."""


def serve_ui(
    home: Path,
    say: Callable[[str], None],
    host: str = "127.0.0.1",
    port: int = 5000,
    uri: str | None = None,
    campaign: Path | None = None,
) -> int:
    """Serve the MLflow UI until Ctrl-C; returns the server's exit code. Says one link, to ``campaign``'s view.

    Campaigns that MLflow does not have whole are brought up to date first (when there is no store yet) or
    meanwhile. What the server itself says goes into a file. Raises UserError when there is nothing to show, or no
    port to show it on. Where MLflow is somebody's server already, it only says the link.
    """
    uri = uri or store_uri(home)
    wanted = campaign or _newest(home)
    if uri.startswith(("http:", "https:")):
        page = _page(wanted, uri)
        if not page:
            raise UserError(f"MLFLOW_TRACKING_URI: {uri} is a server already; open it in a browser.")
        say(f"MLflow: {link(uri, page)}")
        return 0
    late = late_campaigns(home, uri)
    environment = mirror_environment(os.environ)
    if not _exists(uri):
        late = _make_store(home, uri, late, environment)
    chosen = free_port(host, port)
    log = home / SERVER_LOG
    with open(log, "ab") as output:
        children = [
            _start(server_command(home, uri, host, chosen), server_environment(environment, host), output)
        ]
        if late:
            children.append(_start(mirror_command(late, home, uri), environment, output))
    before = signal.signal(signal.SIGTERM, lambda *_: _end(children))
    try:
        address = f"http://{host}:{chosen}"
        if _answers(address, children[0]):
            _until_mirrored(wanted, uri, children)
            said = link(f"http://{shown(host)}:{chosen}", _page(wanted, uri))
            say(f"MLflow: {said}  (Ctrl-C ends it)")
            if shown(host) != host:
                say(f"        for a program that does not know {OWN_NAME}, it is {address}")
        code = children[0].wait()
    except KeyboardInterrupt:
        code = 0
    finally:
        _end(children)
        signal.signal(signal.SIGTERM, before)
    if code > 0:
        raise UserError(f"MLflow's server ended with {code}; {log} says why.")
    return 0


def _newest(home: Path) -> Path | None:
    """The newest campaign that MLflow has or will have; without one the newest."""
    known = list(reversed(campaigns(home)))
    return next((c for c in known if _wants_mlflow(c / JOURNAL)), next(iter(known), None))


def closing_link(campaign: Path, home: Path, env: Mapping[str, str] = os.environ) -> str | None:
    """What the end of a run says of MLflow: one link, and the command that serves it where no server does."""
    uri = store_uri(home, env)
    page = _page(campaign, uri)
    if not page:
        return None
    if uri.startswith(("http:", "https:")):
        return f"MLflow: {link(uri, page)}"
    return f"MLflow: tilewright ui {campaign.name}  serves {link(f'http://{OWN_NAME}:5000', page)}"


def link(address: str, page: str) -> str:
    """A page's address on a server; the server's own address for no page."""
    return address.rstrip("/") + page


def _page(campaign: Path | None, uri: str) -> str:
    """Where a store shows a campaign; empty while the store has nothing of it."""
    if campaign is None:
        return ""
    progress = read_progress(campaign / JOURNAL)
    return progress.page if progress.uri == uri else ""


def _answers(address: str, server: subprocess.Popen[bytes]) -> bool:
    """Waits for the server. False where it has ended or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2).close()
            return True
        except OSError:
            time.sleep(POLL_SECONDS)
    return False


def _until_mirrored(campaign: Path | None, uri: str, children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits a moment for a campaign that is being written, so that the link leads to it."""
    deadline = time.monotonic() + FIRST_PAGE_SECONDS
    while not _page(campaign, uri) and time.monotonic() < deadline:
        if any(child.poll() is None for child in children[1:]):
            time.sleep(POLL_SECONDS)
        else:
            return


def _start(command: list[str], env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own: the server has children, and they must all end together."""
    return subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)


def shown(host: str) -> str:
    """The name by which a link calls a host that the server binds to."""
    return OWN_NAME if host in LOOPBACK else host


def server_environment(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """The server's, which answers to its own name where it is bound to this machine alone."""
    names = (*LOOPBACK, OWN_NAME)
    allowed = {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join((*names, *(f"{name}:*" for name in names), *PRIVATE_HOSTS)),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"http://{OWN_NAME}:*",
    }
    return {**(allowed if host in LOOPBACK else {}), **environment, **SERVER_SETTINGS}


def server_command(home: Path, uri: str, host: str, port: int) -> list[str]:
    """The command line of a small MLflow server."""
    artifacts = (home / ARTIFACTS).resolve().as_uri()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--artifacts-destination", artifacts, "--workers", "1"]
    return [*command, "--host", host, "--port", str(port)]


def late_campaigns(home: Path, uri: str) -> list[Path]:
    """Journals of campaigns that should be in MLflow, are not whole there, and nobody is mirroring."""
    journals = [folder / JOURNAL for folder in campaigns(home)]
    return [j for j in journals if behind(j, uri) and not being_mirrored(j) and _wants_mlflow(j)]


def free_port(host: str, port: int) -> int:
    """``port``, or the next one that is free. Raises UserError."""
    if not 1 <= port <= LAST_PORT:
        raise UserError(f"--port: {port} must be from 1 to {LAST_PORT}.")
    last = min(port + PORTS_TRIED - 1, LAST_PORT)
    for candidate in range(port, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError as error:
                if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                    raise UserError(f"--host: {host!r} is no address of this machine.") from error
                continue
            return candidate
    raise UserError(f"--port: none of {port} to {last} is free on {host}.")


def _make_store(home: Path, uri: str, late: list[Path], environment: Mapping[str, str]) -> list[Path]:
    """Create the store by mirroring the newest campaign; returns the campaigns still to do."""
    if not late:
        raise UserError(f"no MLflow store at {uri}; start a campaign with 'tilewright run quickstart'.")
    try:
        command = mirror_command(late[-1:], home, uri)
        subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=FIRST_MIRROR_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    if not _exists(uri):
        raise UserError(f"no MLflow store at {uri} and it could not be made; see mirror.log of the campaign.")
    return late[:-1]


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
