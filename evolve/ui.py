"""The MLflow UI on the campaigns of a home folder."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.mlflow_mirror.process import (
    ARTIFACTS,
    behind,
    being_mirrored,
    mirror_command,
    mirror_environment,
    store_uri,
)
from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal

FIRST_MIRROR_SECONDS = 120.0
PORTS_TRIED = 50
LAST_PORT = 65535

# Without these the server starts four workers and a job runner: 2.3 GB and half a minute.
SERVER_SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def serve_ui(home: Path, host: str = "127.0.0.1", port: int = 5000, uri: str | None = None) -> int:
    """Serve the MLflow UI until Ctrl-C; returns the server's exit code. The server itself says where.

    Campaigns that MLflow does not have whole are brought up to date first (when there is no store yet) or
    meanwhile. Raises UserError when there is nothing to show, or no port to show it on.
    """
    uri = uri or store_uri(home)
    if uri.startswith(("http:", "https:")):
        raise UserError(f"MLFLOW_TRACKING_URI: {uri} is a server already; open it in a browser.")
    late = late_campaigns(home, uri)
    environment = mirror_environment(os.environ)
    if not _exists(uri):
        late = _make_store(home, uri, late, environment)
    chosen = free_port(host, port)
    children = [_start(server_command(home, uri, host, chosen), {**environment, **SERVER_SETTINGS})]
    if late:
        children.append(_start(mirror_command(late, home, uri), environment, quiet=True))
    before = signal.signal(signal.SIGTERM, lambda *_: _end(children))
    try:
        code = children[0].wait()
    except KeyboardInterrupt:
        code = 0
    finally:
        _end(children)
        signal.signal(signal.SIGTERM, before)
    return max(code, 0)


def _start(command: list[str], env: Mapping[str, str], *, quiet: bool = False) -> subprocess.Popen[bytes]:
    """In a session of its own: the server has children, and they must all end together."""
    output = subprocess.DEVNULL if quiet else None
    return subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)


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
