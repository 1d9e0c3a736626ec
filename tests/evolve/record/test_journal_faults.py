"""A bad day for the journal: full disk, torn file, two resumes, a jumping clock. Nothing lost, nothing twice."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from testkit.evaluations import failed
from testkit.toy_campaign import Nothing, ShuffledEvaluator, Walk, content, go, plan
from tests.evolve.record.test_journal import made
from tilewright.evolve.campaign.loop import Campaign, StopReason
from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.journal import Journal

WRITER = """
import resource, signal, sys
from pathlib import Path
from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.journal import Journal
from testkit.evaluations import failed
from tests.evolve.record.test_journal import made

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
written = 0
try:
    with Journal(Path(sys.argv[1]), write=True, create=True) as journal:
        while True:
            journal.add_candidate(made(written, source="x = " + "1" * 3000))
            journal.add_evaluation(written, failed())
            written += 1
except JournalError as error:
    print(written, str(error).replace(chr(10), " "))
"""


@pytest.fixture
def wanted(tmp_path: Path) -> dict:
    """The content of the unbroken campaign."""
    go(tmp_path / "unbroken", plan(), ShuffledEvaluator(np.random.default_rng(0)))
    return content(tmp_path / "unbroken")


def test_a_full_disk_is_one_sentence_and_what_was_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(path), str(400_000)], capture_output=True, text=True, check=True
    )
    count, _, message = done.stdout.partition(" ")
    assert "cannot be written" in message and int(count) > 3
    with Journal(path, write=True) as journal:
        indices = [index for _, index, _, _ in journal.evaluations()]
        assert indices == list(range(int(count)))
        recorded = [c.index for c in journal.candidates()]
        assert recorded in (indices, [*indices, int(count)]), "only the row being written may be missing"
        if len(recorded) == len(indices):
            journal.add_candidate(made(int(count)))
        journal.add_evaluation(int(count), failed())
        assert len(list(journal.evaluations())) == int(count) + 1


@pytest.mark.parametrize("left", [0, 30, 0.3, 0.9])
def test_a_log_torn_at_its_tail_loses_only_the_tail(tmp_path: Path, wanted: dict, left: float) -> None:
    """The write-ahead log as a power cut may leave it: a resume ends as the unbroken campaign did."""
    path = tmp_path / "torn"
    with Journal(path, write=True, create=True) as journal:
        journal._db.execute("PRAGMA wal_autocheckpoint = 0")
        saved = tmp_path / "saved"
        with pytest.raises(KeyboardInterrupt):
            Campaign(
                plan(), Walk(), Nothing(), ShuffledEvaluator(np.random.default_rng(3), 17), journal
            ).run()
        log = Path(f"{path}-wal").read_bytes()
        saved.write_bytes(path.read_bytes())
    keep = int(left if left >= 1 or left == 0 else left * len(log))
    path.write_bytes(saved.read_bytes())
    Path(f"{path}-wal").write_bytes(log[:keep] + b"\x5a" * min(100, len(log) - keep))
    try:
        before = content(path)
    except JournalError:
        return  # cut inside its first transaction: there never was a journal
    assert before["candidates"] == wanted["candidates"][: len(before["candidates"])]
    assert (
        go(path, plan(), ShuffledEvaluator(np.random.default_rng(9)), create=False) is StopReason.EVALUATIONS
    )
    assert content(path) == wanted


def test_of_two_resumes_at_once_one_goes_on_and_the_other_is_told(tmp_path: Path, wanted: dict) -> None:
    path = tmp_path / "c" / "j.sqlite"
    with pytest.raises(KeyboardInterrupt):
        go(path, plan(), ShuffledEvaluator(np.random.default_rng(3), die_after=9))
    gate, ends = threading.Barrier(2), []

    class Slow(ShuffledEvaluator):
        def wait(self, timeout_seconds: float) -> list:
            time.sleep(0.01)
            return super().wait(timeout_seconds)

    def resume(seed: int) -> None:
        gate.wait()
        try:
            ends.append(go(path, plan(), Slow(np.random.default_rng(seed)), create=False))
        except JournalError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=resume, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert StopReason.EVALUATIONS in ends
    assert all(end is StopReason.EVALUATIONS or "already run by another process" in end for end in ends)
    assert content(path) == wanted


def test_a_jumping_clock_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict
) -> None:
    """Wall-clock time runs backwards and leaps by years; order is by arrival, never by time."""
    rng = np.random.default_rng(5)
    monkeypatch.setattr("tilewright.evolve.record.journal.time.time", lambda: float(rng.uniform(-1e9, 4e9)))
    path = tmp_path / "jumping"
    with pytest.raises(KeyboardInterrupt):
        go(path, plan(), ShuffledEvaluator(np.random.default_rng(3), die_after=11))
    go(path, plan(), ShuffledEvaluator(np.random.default_rng(4)), create=False)
    assert content(path) == wanted
    with Journal(path) as journal:
        assert [n for n, *_ in journal.evaluations()] == sorted(n for n, *_ in journal.evaluations())
