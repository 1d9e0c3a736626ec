"""Computes reference outputs on a device, in a trusted process that never loads a candidate.

The process is ``workers.intake.judge.reference_process``, where questions and answers are described. It starts with the
first question, and locks the device while it computes, so that nothing is timed meanwhile.
"""

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tilewright.seeds.sampled import Sample
from tilewright.workers.child.frames import Frame, FrameError, FrameReader, encode
from tilewright.workers.child.launch import own_environment
from tilewright.workers.child.session import SessionDied
from tilewright.workers.device.lock import exclusive

log = logging.getLogger(__name__)

START_SECONDS, ANSWER_SECONDS = 60.0, 60.0
"""How long the process may take to open its device, and to answer a question."""

KEPT = 16
"""Samples that are kept: evaluators in other processes ask for the same ones."""

_LIMIT = 1 << 31


class DeviceOracle:
    """The process, used by several threads in turn. It ends when this process does, at the latest."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = FrameReader(_LIMIT)
        self._identity: str | None = None
        self._ready = False
        self._turn = threading.Lock()
        self._made: OrderedDict[str, Sample | None] = OrderedDict()
        self._closed = self._late = False

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        """Reference outputs at sampled positions. ``asked``: what ``seeds.sampled.Heavy.elsewhere`` returns for a
        shape.

        None where the reference does not run on this device, and after it took longer than ``ANSWER_SECONDS`` once:
        what is timed on the device waits meanwhile. Raises SessionDied after ``close``.
        """
        key = f"{seed} {json.dumps(asked, sort_keys=True)}"
        with self._turn:
            if self._late and not self._closed:
                return self._made.get(key)
            if key not in self._made:
                self._made[key] = self._answer_or_none(Frame("sample", {"operator": asked, "seed": seed}))
                while len(self._made) > KEPT:
                    self._made.popitem(last=False)
            if self._closed:
                raise SessionDied("the oracle's process was closed")
            return self._made[key]

    def close(self) -> None:
        """Kill the process; calls of ``sample`` under way raise SessionDied."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _answer_or_none(self, question: Frame) -> Sample | None:
        try:
            answer = self._answer(question)
            if answer.kind != "sampled":
                raise RuntimeError(str(answer.data.get("why", "no answer")))
            return _sample(answer)
        except (OSError, RuntimeError, KeyError, FrameError) as error:
            if not self._closed:
                log.warning("the reference runs on the host: %s", error)
            return None

    def _answer(self, question: Frame) -> Frame:
        """Send a question and wait for its answer. Raises RuntimeError if none comes, OSError if no process can
        start."""
        process = self._ready_process()
        with exclusive(self._identity):
            assert process.stdin is not None
            process.stdin.write(encode(question))
            process.stdin.flush()
            return self._next_frame(process, ANSWER_SECONDS)

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the process if none runs, without waiting for it. Raises OSError, and RuntimeError after ``close``."""
        with self._turn:
            return self._running_process()

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise RuntimeError("it is closed")
        if self._process is None or self._process.poll() is not None:
            self._reader, self._ready = FrameReader(_LIMIT), False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.workers.intake.judge.reference_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=own_environment(),
            )
        return self._process

    def _ready_process(self) -> subprocess.Popen[bytes]:
        process = self._running_process()
        if not self._ready:
            ready = self._next_frame(process, START_SECONDS)
            if ready.kind != "ready":
                raise RuntimeError(str(ready.data.get("why", "no device")))
            self._identity, self._ready = ready.data.get("identity"), True
        return process

    def _next_frame(self, process: subprocess.Popen[bytes], seconds: float) -> Frame:
        """The next frame. Raises RuntimeError if the process ends or takes longer than ``seconds``; then it is
        killed."""
        assert process.stdout is not None
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            if not (data := os.read(process.stdout.fileno(), 1 << 20)):
                raise RuntimeError("the process that runs it on the device ended")
            if frames := self._reader.feed(data):
                return frames[0]
        with contextlib.suppress(OSError):
            process.kill()
        self._late = True
        raise RuntimeError(f"no answer from the device within {seconds:g} s")


def _sample(answer: Frame) -> Sample:
    where = {
        name: [answer.arrays[f"where/{name}/{n}"] for n in range(count)] for name, count in answer.data["axes"].items()
    }
    references: dict[str, dict[str, Any]] = {}
    for key, array in answer.arrays.items():
        kind, by, name = key.split("/")
        if kind == "due":
            references.setdefault(by, {})[name] = array
    return Sample(where, references)
