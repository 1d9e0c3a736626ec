"""The oracle on a device: a process of ours that holds the operator's reference and has never held a candidate.

``workers.intake.judge.reference_process`` says what it is asked and what it answers. It starts with the first question,
and holds the device while it computes, so that nothing is timed beside it.
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
"""Answers that are kept: evaluators in other processes ask for the same ones."""

_LIMIT = 1 << 31


class DeviceOracle:
    """Answers questions of several threads, each once; the process ends with this one at the latest."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = FrameReader(_LIMIT)
        self._identity: str | None = None
        self._ready = False
        self._turn = threading.Lock()
        self._made: OrderedDict[str, Sample | None] = OrderedDict()
        self._closed = False

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        """For what ``seeds.sampled.Heavy`` says of a shape; None where the reference does not run on this device.

        Raises SessionDied once it is closed: nobody waits for what the host would then begin.
        """
        key = f"{seed} {json.dumps(asked, sort_keys=True)}"
        with self._turn:
            if key not in self._made:
                self._made[key] = self._asked(Frame("sample", {"operator": asked, "seed": seed}))
                while len(self._made) > KEPT:
                    self._made.popitem(last=False)
            if self._closed:
                raise SessionDied("the oracle's process was closed")
            return self._made[key]

    def close(self) -> None:
        """Kill the process; who waits for it hears so."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _asked(self, question: Frame) -> Sample | None:
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
        """Raises RuntimeError where none comes, OSError where no process can be made."""
        process = self._started()
        with exclusive(self._identity):
            assert process.stdin is not None
            process.stdin.write(encode(question))
            process.stdin.flush()
            return self._heard(process, ANSWER_SECONDS)

    def begin(self) -> subprocess.Popen[bytes]:
        """The process, which is started if there is none; nobody waits for it. Raises OSError, and RuntimeError once it
        is closed."""
        with self._turn:
            return self._begun()

    def _begun(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise RuntimeError("it is closed")
        if self._process is None or self._process.poll() is not None:
            self._reader, self._ready = FrameReader(_LIMIT), False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.workers.intake.judge.reference_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own_environment(),
            )  # fmt: skip
        return self._process

    def _started(self) -> subprocess.Popen[bytes]:
        process = self._begun()
        if not self._ready:
            ready = self._heard(process, START_SECONDS)
            if ready.kind != "ready":
                raise RuntimeError(str(ready.data.get("why", "no device")))
            self._identity, self._ready = ready.data.get("identity"), True
        return process

    def _heard(self, process: subprocess.Popen[bytes], seconds: float) -> Frame:
        """The next frame. Raises RuntimeError for a process that ends or takes too long, which is ended."""
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
        raise RuntimeError(f"no answer from the device within {seconds:g} s")


def _sample(answer: Frame) -> Sample:
    where = {
        name: [answer.arrays[f"where/{name}/{n}"] for n in range(count)]
        for name, count in answer.data["axes"].items()
    }
    references: dict[str, dict[str, Any]] = {}
    for key, array in answer.arrays.items():
        kind, by, name = key.split("/")
        if kind == "due":
            references.setdefault(by, {})[name] = array
    return Sample(where, references)
