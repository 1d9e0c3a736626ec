"""A small campaign on a table, whose journal every fault must leave as it is without one."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testkit.journals import journal_content
from testkit.toy_campaign import ShuffledEvaluator, go, judge, plan
from tilewright.evolve.campaign.loop import StopReason
from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.workers.cluster.jobs import Job


def answer(job: Job) -> Evaluation:
    """What the table says, or that it said so before."""
    evaluation = judge(job.genome)
    if evaluation.artefact in job.known_artefacts:
        changes = {"verdict": Verdict.DUPLICATE, "fitness": None, "workloads": (), "reason": "known"}
        return evaluation.model_copy(update=changes)
    return evaluation


@dataclass
class Table(ShuffledEvaluator):
    """Answers in an order of its own. ``fault`` may answer in the table's place, ``pause`` slows it down (s)."""

    fault: Callable[[Job], Evaluation | None] = lambda job: None
    pause: float = 0.0

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        if self.finished == self.die_after:
            raise KeyboardInterrupt
        self.finished += 1
        time.sleep(self.pause)
        job = self.running.pop(int(self.rng.integers(len(self.running))))
        return [(job.index, self.fault(job) or answer(job))]


def finish(path: Path, seed: int = 0) -> None:
    """Resume to the end, without faults."""
    if not begun(path):
        clear(path)
    assert go(path, plan(), Table(np.random.default_rng(seed))) is StopReason.EVALUATIONS


def begun(path: Path) -> bool:
    """Whether there is a journal; not if its creation was cut off. Raises JournalError for one that is damaged."""
    if not path.exists():
        return False
    try:
        with Journal(path, write=True) as journal:  # which mends what a kill has left half done
            journal_content(journal)
    except JournalError as error:
        if "no such table: meta" in str(error) or "format None" in str(error):
            return False
        raise
    return True


def clear(path: Path) -> None:
    """Remove a journal whose creation was cut off: there never was one."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def forked(work: Callable[[], object], seconds: float | None = None) -> int:
    """Exit status of ``work`` in a process of its own, killed after ``seconds``; -9 if it was."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if work() is not None else 2
        os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def driven(path: Path, seed: int, seconds: float) -> bool:
    """One driver's life on a journal; whether it was cut short by SIGKILL."""
    if not begun(path):
        clear(path)
    evaluator = Table(np.random.default_rng(seed), pause=0.001)
    return forked(lambda: go(path, plan(), evaluator), seconds) == -signal.SIGKILL
