"""One run of a taken module in the interpreter, in a forked process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tilewright.workers.runners.triton.launch_guard import Canaries, LaunchGuard
from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

RUN_SECONDS = 12
"""Seconds of a processor that one run in the interpreter may take."""

MOST_SECONDS = 60
"""Seconds after which it is ended however few of a processor it had."""

LOOK_SECONDS = 0.5


class TooSlow(Exception):
    """A run in the interpreter took too long."""


class Crashed(Exception):
    """A run in the interpreter ended its process: a kernel that reads or writes where no tensor is."""


def run(module: Any, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a taken module, run in a process of its own. Raises what it raises, TooSlow, Crashed."""
    return timed(module, params, inputs)[0]


def timed(
    module: Any, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray], float]:
    """What ``run`` returns, and the seconds of a processor that it took: a busy machine makes them no more."""
    running = Running(module, params, inputs)
    return running.outputs(), running.took


def _spent(pid: int) -> float:
    """Seconds of a processor that a process has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Running:
    """A taken module in a process of its own, beside others. ``outputs`` must be called, once; from then on ``took`` is
    the seconds of a processor that it had."""

    def __init__(self, module: Any, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> None:
        self.took = 0.0
        self._receive, send = multiprocessing.Pipe(duplex=False)
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._receive.close()
            _answer(send, module, params, inputs)
        send.close()

    def outputs(self) -> list[np.ndarray]:
        """What ``launch`` returned. Raises what it raises, TooSlow, Crashed."""
        try:
            began = time.monotonic()
            while not self._receive.poll(LOOK_SECONDS):
                if _spent(self._pid) > RUN_SECONDS or time.monotonic() - began > MOST_SECONDS:
                    os.kill(self._pid, signal.SIGKILL)
                    raise TooSlow
            said = self._receive.recv()
        except EOFError:
            raise Crashed("its process ends: a kernel reads or writes where no tensor is") from None
        finally:
            self._receive.close()
            _, _, usage = os.wait4(self._pid, 0)
            self.took = usage.ru_utime + usage.ru_stime
        if isinstance(said, Exception):
            raise said
        return list(said)


def _answer(send: Any, module: Any, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> NoReturn:
    """In the forked process: outputs or the exception, and its end."""
    said: Any
    try:
        canaries = Canaries()
        tensors = {name: canaries.copy(to_torch(array, "cpu")) for name, array in inputs.items()}
        with LaunchGuard(canaries):
            results = module.launch(tensors, dict(params))
        canaries.inspect()
        said = [to_numpy(result) for result in results]
    except Exception as error:  # noqa: BLE001 - told to the parent
        said = RuntimeError(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    try:
        send.send(said)
    finally:
        os._exit(0)
