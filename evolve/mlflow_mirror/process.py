"""The mirror: a process beside a campaign that follows the journal and writes MLflow.

The campaign starts the mirror and never waits for it. The mirror retries while the store cannot be reached, ends by
itself, and may be killed and started again at any instant. To bring MLflow up to date by hand: ``python -m
tilewright.evolve.mlflow_mirror.process JOURNAL``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tilewright
from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal, is_running

if TYPE_CHECKING:
    from tilewright.evolve.mlflow_mirror.writer import Mirror

URI_VARIABLE = "MLFLOW_TRACKING_URI"
STORE, ARTIFACTS = "mlflow.db", "mlartifacts"
LOCK, PROGRESS, LOG = "mirror.lock", "mirror.json", "mirror.log"

POLL_SECONDS = 0.5
BACKOFF_SECONDS = (1.0, 30.0)
"""First and longest pause after a failed attempt; each pause doubles."""
PATIENCE_SECONDS = 600.0
"""How long a mirror retries without success once its campaign has ended."""
STOP_SECONDS = 30.0
"""How long a mirror goes on writing after a request to stop."""
REVIVALS = 3
NICENESS = 10

# One short attempt a request: the loop here retries, and first reads which runs MLflow has.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

log = logging.getLogger("tilewright.mirror")


def store_uri(home: Path, env: Mapping[str, str] = os.environ) -> str:
    """``MLFLOW_TRACKING_URI`` if set, else the SQLite file in ``home``."""
    return env.get(URI_VARIABLE) or f"sqlite:///{(home / STORE).resolve()}"


def start_mirror(journal_path: Path, home: Path, env: Mapping[str, str] | None = None) -> MirrorProcess:
    """Follow a journal in a process of its own. ``env`` (default: this process's) may name the store."""
    environment = dict(os.environ if env is None else env)
    command = mirror_command([journal_path], home, store_uri(home, environment), os.getpid())
    return MirrorProcess(journal_path, command, environment)


def mirror_command(journal_paths: Sequence[Path], home: Path, uri: str, parent: int | None = None) -> list[str]:
    """The command line of a mirror; without ``parent`` it writes what is missing and ends."""
    command = [sys.executable, "-m", "tilewright.evolve.mlflow_mirror.process"]
    command += [str(path.resolve()) for path in journal_paths]
    command += ["--uri", uri, "--artifacts", str((home / ARTIFACTS).resolve())]
    return command + (["--parent", str(parent)] if parent is not None else [])


def mirror_environment(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with MLflow's settings, and this project importable."""
    root = str(Path(tilewright.__file__).parent.parent)
    return {**env, **SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))}


class MirrorProcess:
    """A running mirror, seen from the campaign."""

    def __init__(self, journal_path: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._journal_path = journal_path
        self._command = list(command)
        self._env = mirror_environment(env)
        self._revivals = 0
        self._process = self._spawn()

    def lag(self) -> int:
        """Evaluations in the journal that MLflow does not have yet. Restarts a mirror that died."""
        if self._process.poll() not in (None, 0) and self._revivals < REVIVALS:
            self._revivals += 1
            self._process = self._spawn()
        return max(0, _evaluations(self._journal_path) - read_progress(self._journal_path).mirrored)

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the mirror ended within the timeout with everything written."""
        try:
            return self._process.wait(timeout_seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask the mirror to end after ``STOP_SECONDS``. Returns at once; the journal keeps everything."""
        if self._process.poll() is None:
            self._process.terminate()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with open(self._journal_path.with_name(LOG), "ab") as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._env,
                start_new_session=True,  # Ctrl-C in the terminal is the campaign's to handle
            )


@dataclass(frozen=True)
class Progress:
    """A mirror's progress: ``mirrored`` evaluations, and the ``state`` that MLflow shows.

    ``page`` is the path of the campaign's page on the server. MLflow itself decides what is missing.
    """

    uri: str = ""
    page: str = ""
    mirrored: int = 0
    state: str = "running"


def read_progress(journal_path: Path) -> Progress:
    try:
        return Progress(**json.loads(journal_path.with_name(PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Progress()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 everything is in MLflow, 1 it is not, 2 the journal cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journals", type=Path, nargs="+", metavar="JOURNAL")
    parser.add_argument("--uri", help="MLflow store (default: MLFLOW_TRACKING_URI, else by the campaigns)")
    parser.add_argument("--artifacts", type=Path, help="folder of artifacts for a local store")
    parser.add_argument("--parent", type=int, help="follow until this process ends")
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    os.environ.update(SETTINGS)
    if arguments.parent is not None:  # beside a campaign, which is timing kernels
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
    return max(_follow(journal, arguments) for journal in arguments.journals)


def _follow(journal: Path, arguments: argparse.Namespace) -> int:
    home = journal.resolve().parent.parent.parent
    uri = arguments.uri or store_uri(home)
    follower = Follower(journal, uri, arguments.artifacts or home / ARTIFACTS, arguments.parent)
    signal.signal(signal.SIGTERM, lambda *_: follower.stop())
    try:
        with _only_one(journal, follower):
            return 0 if follower.run() else 1
    except JournalError as error:
        log.error("%s", error)
        return 2


@dataclass
class Follower:
    """The mirror's loop: write what is missing, wait, retry, end."""

    journal_path: Path
    uri: str
    artifacts: Path
    parent: int | None
    _deadline: float | None = None
    _last_success: float = 0.0

    def stop(self) -> None:
        self._deadline = time.monotonic() + STOP_SECONDS

    @property
    def orphaned(self) -> bool:
        """Whether the campaign's process has ended, or there is none."""
        return self.parent is None or os.getppid() != self.parent

    @property
    def stopping(self) -> bool:
        return self._deadline is not None

    def run(self) -> bool:
        """Follow the journal to its end; True when all of it is in MLflow."""
        self._last_success = time.monotonic()
        if self.journal_path.exists() and read_progress(self.journal_path).uri != self.uri:
            self._report(Progress(self.uri))  # so that a display counts what MLflow lacks
        pause = BACKOFF_SECONDS[0]
        mirror: Mirror | None = None
        problem = ""
        with Journal(self.journal_path) as journal:
            while True:
                try:
                    mirror = mirror or self._connect(journal)
                    if mirror is not None and self._pass(mirror, journal):
                        return True
                    pause, problem = BACKOFF_SECONDS[0], ""
                    self._last_success = time.monotonic()
                    time.sleep(POLL_SECONDS)
                except store_errors() as error:
                    problem = self._record_problem(error, problem, mirror)
                    self._sleep(pause)
                    pause = min(2 * pause, BACKOFF_SECONDS[1])
                if self._out_of_time():
                    why = problem or "this run ended"
                    log.error("the next mirror, or 'tilewright ui', writes the rest: %s", why)
                    return False

    def _connect(self, journal: Journal) -> Mirror | None:
        """None while the campaign has not begun."""
        if not any(event.kind == "started" for event in journal.events()):
            return None
        from tilewright.evolve.mlflow_mirror.writer import Mirror

        mirror = Mirror(journal, self.uri, self.artifacts)
        if self.uri.startswith("sqlite:///"):  # in WAL mode, the UI and the writer do not block each other
            path = Path(self.uri.removeprefix("sqlite:///"))
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode = WAL")
        return mirror

    def _pass(self, mirror: Mirror, journal: Journal) -> bool:
        """Write every row that the journal has now; True when the campaign has ended."""
        orphaned, state = self.orphaned, _state(journal)  # before the rows, so that none is missed
        if state == "running":
            mirror.show("running")
        while mirror.advance():
            self._report(Progress(self.uri, mirror.page, mirror.mirrored))
            self._last_success = time.monotonic()
            if not self.journal_path.exists() or (self._deadline and time.monotonic() > self._deadline):
                return False
        ended = state in ("finished", "interrupted")
        if ended or orphaned or self.stopping:
            state = state if ended or self.parent is None else "killed"
            mirror.show(state)
            self._report(Progress(self.uri, mirror.page, mirror.mirrored, state))
            return True
        return False

    def _record_problem(self, error: Exception, before: str, mirror: Mirror | None) -> str:
        """Log a fault once for as long as it lasts; returns it in one line."""
        if mirror is not None:
            mirror.forget()
        problem = " ".join(str(error).split())[:300]
        if not before:
            log.warning("MLflow at %s: %s; trying again", self.uri, problem)
        return problem

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._out_of_time():
            time.sleep(min(POLL_SECONDS, seconds))

    def _out_of_time(self) -> bool:
        now = time.monotonic()
        if not self.journal_path.exists() or (self._deadline is not None and now > self._deadline):
            return True
        return self.orphaned and now - self._last_success > PATIENCE_SECONDS

    def _report(self, progress: Progress) -> None:
        path = self.journal_path.with_name(PROGRESS)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(vars(progress)), encoding="utf-8")
        part.replace(path)


def store_errors() -> tuple[type[Exception], ...]:
    """Errors of a store that cannot be reached, is busy or half made; a retry may succeed."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError, sqlite3.Error)


@contextlib.contextmanager
def _only_one(journal_path: Path, follower: Follower) -> Iterator[None]:
    """Wait until no other mirror writes this campaign."""
    if not journal_path.parent.is_dir():
        raise JournalError(f"no journal at {journal_path}.")
    with open(journal_path.with_name(LOCK), "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if follower.stopping:
                    raise JournalError("another mirror is still writing this campaign.") from None
                time.sleep(POLL_SECONDS)
        yield


def _state(journal: Journal) -> str:
    """``interrupted`` or ``finished``, after the campaign's last event; else ``running`` or ``killed``, by its lock."""
    running = journal.running  # before the events: the last one comes before the lock is let go
    kinds = [e.kind for e in journal.events() if e.kind in ("started", "resumed", "interrupted", "finished")]
    if kinds and kinds[-1] in ("interrupted", "finished"):
        return kinds[-1]
    return "running" if running else "killed"


def correct_ended(home: Path) -> None:
    """Start mirrors of the campaigns that ended together with their mirror, so that MLflow shows them as running."""
    for folder in campaigns(home):
        journal, progress = folder / JOURNAL, read_progress(folder / JOURNAL)
        if progress.uri and _still_running(journal, progress) and not being_mirrored(journal):
            with contextlib.suppress(OSError):  # a folder for reading only
                MirrorProcess(journal, mirror_command([journal], home, progress.uri), os.environ)


def behind(journal_path: Path, uri: str) -> bool:
    """Whether a store may lack a part of this campaign, by the last mirror's progress."""
    progress = read_progress(journal_path)
    missing = progress.mirrored < _evaluations(journal_path)
    return progress.uri != uri or not progress.page or missing or _still_running(journal_path, progress)


def _still_running(journal_path: Path, progress: Progress) -> bool:
    """Whether MLflow shows a campaign as running that has ended."""
    return progress.state == "running" and not is_running(journal_path)


def being_mirrored(journal_path: Path) -> bool:
    """Whether a mirror writes this campaign now."""
    try:
        with open(journal_path.with_name(LOCK), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


def _evaluations(journal_path: Path) -> int:
    uri = f"{journal_path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            return int(db.execute("SELECT COALESCE(MAX(arrival), 0) FROM evaluations").fetchone()[0])
    except sqlite3.Error:
        return 0


if __name__ == "__main__":
    sys.exit(main())
