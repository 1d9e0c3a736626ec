"""One run of a kernel module in Triton's interpreter, in a forked process."""

from __future__ import annotations

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

from tilewright.workers.intake.child_program import first_line
from tilewright.workers.runners.triton.launch_guard import POISON, Canaries, LaunchGuard
from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

RUN_SECONDS = 12
"""Seconds of a processor that one run in the interpreter may take."""

MOST_SECONDS = 60
"""Seconds after which it is ended however few of a processor it had."""

LOOK_SECONDS = 0.5


class TooSlow(Exception):
    """A run in the interpreter took too long."""


class Crashed(Exception):
    """A run ended its process: a kernel reads or writes outside its tensors."""


def run(module: ModuleType, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a kernel module, run in a process of its own. Raises RuntimeError, TooSlow, Crashed."""
    return Run(module, params, inputs).outputs()


def run_all(
    module: ModuleType, runs: Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]
) -> list[list[np.ndarray] | None]:
    """The outputs of runs with these parameters and inputs, all at once; None for one that fails."""
    found: list[list[np.ndarray] | None] = []
    for process in [Run(module, params, inputs) for params, inputs in runs]:
        try:
            found.append(process.outputs())
        except (TooSlow, Crashed, RuntimeError):
            found.append(None)
    return found


def _spent(pid: int) -> float:
    """Seconds of a processor that a process has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Run:
    """A run of a kernel module in a process of its own, beside other runs. ``outputs`` must be called once; from then
    on ``seconds`` is the processor time that it had: a busy machine makes it no more."""

    def __init__(
        self, module: ModuleType, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
    ) -> None:
        self.seconds = 0.0
        self._receive, send = multiprocessing.Pipe(duplex=False)
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._receive.close()
            _answer(send, module, params, inputs)
        send.close()

    def outputs(self) -> list[np.ndarray]:
        """What ``launch`` returned. Raises RuntimeError with what it raised, TooSlow, Crashed."""
        try:
            began = time.monotonic()
            while not self._receive.poll(LOOK_SECONDS):
                if _spent(self._pid) > RUN_SECONDS or time.monotonic() - began > MOST_SECONDS:
                    os.kill(self._pid, signal.SIGKILL)
                    raise TooSlow
            answer = self._receive.recv()
        except EOFError:
            raise Crashed("its process ended: a kernel reads or writes outside its tensors") from None
        finally:
            self._receive.close()
            _, _, usage = os.wait4(self._pid, 0)
            self.seconds = usage.ru_utime + usage.ru_stime
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


def _answer(
    send: Connection, module: ModuleType, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> NoReturn:
    """Send outputs or the exception from the forked process, and end it."""
    answer: list[np.ndarray] | RuntimeError
    try:
        # evidence about the user's own kernel, where what is left unwritten has to show: bounds follow from its answers
        canaries = Canaries(POISON)
        tensors = {name: canaries.copy(to_torch(array, "cpu")) for name, array in inputs.items()}
        with LaunchGuard(canaries):
            results = module.launch(tensors, dict(params))
        canaries.inspect()
        answer = [to_numpy(result) for result in results]
    except Exception as error:  # noqa: BLE001 - sent to the parent
        answer = RuntimeError(first_line(error)[:300])
    try:
        send.send(answer)
    finally:
        os._exit(0)
