"""Runs of a kernel module in Triton's interpreter, in forked processes."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from tilewright.workers.child.launch import Deadline
from tilewright.workers.intake.child_program import first_line
from tilewright.workers.runners.triton.launch_guard import POISON, Canaries, LaunchGuard
from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

RUN_SECONDS = 12
"""Seconds of a processor that one run in the interpreter may take."""

MOST_SECONDS = 60
"""Seconds after which it is ended however few of a processor it had; those that it waited for one count beyond four
times as many."""

LOOK_SECONDS = 0.5


class TooSlow(Exception):
    """A run in the interpreter took too long."""


class Crashed(Exception):
    """A run ended its process: a kernel reads or writes outside its tensors."""


Given = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]
"""Parameters and inputs of a run."""


class Interpreter:
    """Runs of a kernel module in processes beside this one, which are kept: making one costs more than a small run.
    Where a run fails, its process ends."""

    spent = 0.0
    """Of a processor, that all runs had, of any module."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._idle: list[_Process] = []
        self._owner = os.getpid()
        self.seconds = 0.0
        """Of a processor, that the last run had: a busy machine makes it no more."""
        self.read_outside = False
        """Whether a kernel of the last run read beside its tensors."""

    def clock(self) -> float:
        """Seconds of a processor that this process and all its runs have had."""
        return time.process_time() + self.spent

    def outputs(
        self, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray], most: float = RUN_SECONDS
    ) -> list[np.ndarray]:
        """What ``launch`` returns. Raises RuntimeError with what it raised, TooSlow, Crashed."""
        (answer,) = self._answers([(params, inputs)], most)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def all(self, runs: Sequence[Given]) -> list[list[np.ndarray] | None]:
        """The outputs of runs, as many at once as there are processors; None for one that fails."""
        return [None if isinstance(answer, Exception) else answer for answer in self._answers(runs)]

    def _answers(self, runs: Sequence[Given], most: float = RUN_SECONDS) -> list[list[np.ndarray] | Exception]:
        count = min(len(runs), len(os.sched_getaffinity(0)))
        shares = [list(runs[n::count]) for n in range(count)]
        processes = [self._started(share) for share in shares]
        found: list[list[np.ndarray] | Exception] = []
        for place in range(len(runs)):
            share, process = shares[place % count], processes[place % count]
            found.append(process.answer(most))
            self.seconds, self.read_outside = process.seconds, process.read_outside
            Interpreter.spent += self.seconds
            del share[0]
            if isinstance(found[-1], Exception):
                process.end()
                if share:
                    processes[place % count] = self._started(share)
            elif not share:
                self._idle.append(process)
        return found

    def _started(self, share: Sequence[Given]) -> "_Process":
        if self._owner != os.getpid():  # forked: the processes are the other one's
            self._idle, self._owner = [], os.getpid()
        process = self._idle.pop() if self._idle else _Process(self._module)
        process.give(share)
        return process


def _spent(pid: int) -> float:
    """Seconds of a processor that a process has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Process:
    """A forked process that runs a kernel module. It ends with this one."""

    def __init__(self, module: ModuleType) -> None:
        self.seconds, self.read_outside = 0.0, False
        self._ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            _serve(theirs, module)
        theirs.close()

    def give(self, runs: Sequence[Given]) -> None:
        self._ours.send(runs)

    def answer(self, most: float) -> list[np.ndarray] | Exception:
        """Of the next run that it was given: its outputs, or why there are none."""
        before, deadline = _spent(self._pid), Deadline(self._pid, MOST_SECONDS)
        try:
            while not self._ours.poll(LOOK_SECONDS):
                self.seconds = _spent(self._pid) - before
                if self.seconds > most or deadline.seconds_left() <= 0:
                    return TooSlow()
            answer, self.read_outside, self.seconds = self._ours.recv()
        except (EOFError, ConnectionError):
            return Crashed("its process ended: a kernel reads or writes outside its tensors")
        return answer

    def end(self) -> None:
        self._ours.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _serve(asked: Connection, module: ModuleType) -> NoReturn:
    """Answer with outputs, or an exception, and seconds for each run that is asked for."""
    try:
        while True:
            for params, inputs in asked.recv():
                began = time.process_time()
                answer: list[np.ndarray] | RuntimeError
                # evidence about the user's own kernel, where what is left unwritten has to show: bounds follow
                # from its answers
                canaries = Canaries(POISON)
                canaries.watch()
                try:
                    tensors = {name: canaries.copy(to_torch(array, "cpu")) for name, array in inputs.items()}
                    with LaunchGuard(canaries):
                        results = module.launch(tensors, dict(params))
                    canaries.inspect()
                    answer = [to_numpy(result) for result in results]
                except Exception as error:  # noqa: BLE001 - sent to the parent
                    answer = RuntimeError(first_line(error)[:300])
                asked.send((answer, canaries.read_outside, time.process_time() - began))
    finally:
        os._exit(0)
