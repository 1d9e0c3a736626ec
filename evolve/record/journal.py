"""The journal: one append-only SQLite file per campaign, from which everything else about it is derived.

Every row is written before anything acts on it, in its own transaction. Triggers refuse updates and
deletes, so a crash can lose nothing but the row being written. Readers (status, report, the MLflow
mirror) may open the file while the campaign runs.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.history import Candidate, Mutation, MutationKind
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation

FORMAT = 1
_TABLES = {
    "meta": "key TEXT PRIMARY KEY, value TEXT NOT NULL",
    "sources": "id TEXT PRIMARY KEY, text TEXT NOT NULL",
    "candidates": (
        "idx INTEGER PRIMARY KEY, genome TEXT NOT NULL UNIQUE, source TEXT NOT NULL REFERENCES sources(id), "
        "params TEXT NOT NULL, parents TEXT NOT NULL, kind TEXT NOT NULL, proposer TEXT NOT NULL, "
        "detail TEXT NOT NULL, generation INTEGER NOT NULL, island INTEGER NOT NULL, seen INTEGER NOT NULL, "
        "at REAL NOT NULL"
    ),
    "evaluations": (
        "arrival INTEGER PRIMARY KEY AUTOINCREMENT, idx INTEGER NOT NULL UNIQUE REFERENCES candidates(idx), "
        "evaluation TEXT NOT NULL, at REAL NOT NULL"
    ),
    "reference_points": (
        "name TEXT NOT NULL, scope TEXT NOT NULL, evaluation TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (name, scope)"
    ),
    "exchanges": "key TEXT PRIMARY KEY, exchange TEXT NOT NULL, at REAL NOT NULL",
    "events": ("seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, detail TEXT NOT NULL, at REAL NOT NULL"),
}
_CANDIDATES = "SELECT idx, source, params, parents, kind, proposer, detail, generation, island, seen FROM candidates"
_MOST_TEXTS = 512
"""Sources whose text stays in memory."""

TOKENS_SPENT = "tokens_spent"
"""Kind of the event that the token budget of a language model is spent; its ``said`` holds the error."""

WORKERS = "workers"
"""Kind of the event that says on how many nodes of which cluster the workers run."""

TUNED = "tuned"
"""Key in ``meta`` of what writing a tuned function's module needs, also after the campaign is resumed."""


@dataclass(frozen=True)
class Event:
    """One event of the campaign, such as ``started`` or ``resumed``. ``at``: Unix seconds."""

    seq: int
    kind: str
    detail: dict[str, Any]
    at: float


class Journal:
    """One campaign's journal. ``write=True`` takes the campaign's lock until ``close``.

    Raises JournalError when the file is missing, not a journal, or written by another process.
    """

    def __init__(self, path: Path, *, write: bool = False, create: bool = False) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._texts: dict[str, str] = {}
        if not create and not path.is_file():
            raise JournalError(f"no journal at {path}.")
        if write:
            if not create:
                Journal(path).close()  # one that cannot be read gets no lock
            self._lock = _take_lock(path)
        try:
            if create:
                _create(path)
            self._db = _connect(path, write=write)
            self._check_format()
        except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError, MemoryError) as error:
            self.close()
            why = str(error) or type(error).__name__
            raise JournalError(f"{path} is not a readable journal: {why}.") from error

    def _check_format(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT):  # 0: written before the number was
            raise JournalError(f"{self.path} has journal format {version}; this version reads {FORMAT}.")
        row = self._db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if row is None or json.loads(row[0]) != FORMAT:
            raise JournalError(f"{self.path} has journal format {row and row[0]}; this version reads {FORMAT}.")

    @property
    def running(self) -> bool:
        """Whether a process writes it."""
        return self._lock is not None or is_running(self.path)

    def close(self) -> None:
        db = getattr(self, "_db", None)
        if db is not None:
            db.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, all or nothing. Raises JournalError when the file cannot take it."""
        try:
            with self._db:
                yield
        except sqlite3.OperationalError as error:
            raise JournalError(f"{self.path} cannot be written: {error}.") from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises JournalError for what no journal of this version holds."""
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # Python's own errors have none
            if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
                raise  # locked or out of reach for the moment
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise JournalError(f"{self.path} holds a damaged row: {what}.") from error

    def set_meta(self, key: str, value: Any) -> None:
        with self._writing():
            self._db.execute("INSERT INTO meta VALUES (?, ?)", (key, json.dumps(value, sort_keys=True)))

    def add_candidate(self, candidate: Candidate) -> None:
        genome, mutation = candidate.genome, candidate.mutation
        # Keyed by the exact text: declarations and comments are no part of a genome's identity but are part of what a
        # resumed campaign must see again.
        source = hashlib.sha256(genome.source.encode()).hexdigest()[:16]
        with self._writing():
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (source, genome.source))
            self._db.execute(
                "INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    candidate.index,
                    genome.id,
                    source,
                    json.dumps(dict(genome.params)),
                    json.dumps(candidate.parents),
                    mutation.kind.value,
                    mutation.proposer,
                    mutation.detail,
                    candidate.generation,
                    candidate.island,
                    candidate.seen,
                    time.time(),
                ),
            )

    def add_evaluation(self, index: int, evaluation: Evaluation) -> None:
        with self._writing():
            self._db.execute(
                "INSERT INTO evaluations (idx, evaluation, at) VALUES (?, ?, ?)",
                (index, evaluation.model_dump_json(), time.time()),
            )

    def add_reference(self, name: str, scope: str, evaluation: Evaluation) -> None:
        """A baseline's or the winner's figures; ``scope`` is ``suite`` or ``final``."""
        with self._writing():
            self._db.execute(
                "INSERT INTO reference_points VALUES (?, ?, ?, ?)",
                (name, scope, evaluation.model_dump_json(), time.time()),
            )

    def add_event(self, kind: str, **detail: Any) -> None:
        with self._writing():
            self._db.execute(
                "INSERT INTO events (kind, detail, at) VALUES (?, ?, ?)", (kind, json.dumps(detail), time.time())
            )

    def add_exchange(self, key: str, text: str) -> None:
        """A question to a language model and its answer."""
        with self._writing():
            self._db.execute("INSERT INTO exchanges VALUES (?, ?, ?)", (key, text, time.time()))

    # -- reading ---------------------------------------------------------------------------------

    def meta(self, key: str, default: Any = None) -> Any:
        with self._reading():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return default if row is None else json.loads(row[0])

    def candidates(self, start: int = 0) -> Iterator[Candidate]:
        """Candidates from index ``start`` on, in proposal order."""
        with self._reading():
            for row in self._db.execute(f"{_CANDIDATES} WHERE idx >= ? ORDER BY idx", (start,)):
                yield self._candidate(*row)

    def _candidate(
        self,
        idx: int,
        source: str,
        params: str,
        parents: str,
        kind: str,
        proposer: str,
        detail: str,
        generation: int,
        island: int,
        seen: int,
    ) -> Candidate:
        genome = Genome(self._text(source), json.loads(params))
        mutation = Mutation(MutationKind(kind), proposer, detail)
        return Candidate(idx, genome, tuple(json.loads(parents)), mutation, generation, island, seen)

    def _text(self, source: str) -> str:
        """A source's text, the same object for all genomes that have it."""
        if source not in self._texts:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            (text,) = self._db.execute("SELECT text FROM sources WHERE id = ?", (source,)).fetchone()
            self._texts[source] = text
        return self._texts[source]

    def evaluations(self, after_arrival: int = 0) -> Iterator[tuple[int, int, Evaluation, float]]:
        """(arrival, candidate index, evaluation, finished at) in order of arrival."""
        with self._reading():
            rows = self._db.execute(
                "SELECT arrival, idx, evaluation, at FROM evaluations WHERE arrival > ? ORDER BY arrival",
                (after_arrival,),
            )
            for arrival, idx, text, at in rows:
                yield arrival, idx, Evaluation.model_validate_json(text), at

    def references(self, scope: str) -> dict[str, Evaluation]:
        with self._reading():
            rows = self._db.execute("SELECT name, evaluation FROM reference_points WHERE scope = ?", (scope,))
            return {name: Evaluation.model_validate_json(text) for name, text in rows}

    def reference_rows(self) -> list[tuple[str, str, Evaluation, float]]:
        """(name, scope, evaluation, finished at) of every reference, in the order they were recorded."""
        with self._reading():
            rows = self._db.execute("SELECT name, scope, evaluation, at FROM reference_points ORDER BY rowid")
            return [(name, scope, Evaluation.model_validate_json(text), at) for name, scope, text, at in rows]

    def exchange(self, key: str) -> str | None:
        with self._reading():
            row = self._db.execute("SELECT exchange FROM exchanges WHERE key = ?", (key,)).fetchone()
            return None if row is None else row[0]

    def exchanges(self) -> Iterator[tuple[str, str]]:
        """(key, exchange) in the order they were made."""
        with self._reading():
            yield from self._db.execute("SELECT key, exchange FROM exchanges ORDER BY rowid")

    def events(self) -> list[Event]:
        with self._reading():
            rows = self._db.execute("SELECT seq, kind, detail, at FROM events ORDER BY seq")
            return [Event(seq, kind, json.loads(detail), at) for seq, kind, detail, at in rows]


def _take_lock(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115 - held until close
    except OSError as error:
        raise JournalError(f"cannot write to {path.parent}: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise JournalError(f"{path.parent.name} is already run by another process; stop that first.") from error
    return lock


def is_running(path: Path) -> bool:
    """Whether a process holds the lock of the journal at ``path``."""
    try:
        with open(path.with_suffix(".lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock: no process has ever written it here
        return False
    return False


def _connect(path: Path, *, write: bool) -> sqlite3.Connection:
    # Beside a journal in a folder that is for reading only, SQLite cannot keep the index of its log.
    closed = not os.access(path.parent, os.W_OK, effective_ids=True)
    still = closed and not path.with_name(f"{path.name}-wal").exists()
    uri = path.absolute().as_uri() + ("" if write else "?mode=ro" + "&immutable=1" * still)
    try:
        db = sqlite3.connect(uri, uri=True, timeout=10.0, check_same_thread=False)
        if write:
            db.execute("PRAGMA journal_mode = WAL")
            # In WAL mode NORMAL survives a killed process; only a power cut may lose the last rows.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
    except sqlite3.OperationalError as error:
        raise JournalError(f"cannot open the journal {path}: {error}.") from error
    return db


def _create(path: Path) -> None:
    """A new journal appears whole: whoever looks finds none, or one to read. Raises sqlite3.DatabaseError."""
    if path.exists():
        raise sqlite3.OperationalError("there is one already")
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(unfinished)) as db, db:
        for table, columns in _TABLES.items():
            db.execute(f"CREATE TABLE {table} ({columns})")
            for action in ("UPDATE", "DELETE"):
                db.execute(
                    f"CREATE TRIGGER {table}_{action.lower()} BEFORE {action} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
                )
        db.execute("INSERT INTO meta VALUES ('format', ?)", (json.dumps(FORMAT),))
        db.execute(f"PRAGMA user_version = {FORMAT}")
    unfinished.rename(path)
