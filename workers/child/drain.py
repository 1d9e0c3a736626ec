"""The loop that feeds a child one message and takes what its three streams say, within limits of bytes."""

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from tilewright.workers.child.ending import Ending
from tilewright.workers.child.frames import Frame, FrameError, FrameReader

_LOG_CHUNK = 1 << 16
_FRAME_CHUNK = 1 << 22
_MESSAGE_CHUNK = 1 << 20


class Stop(NamedTuple):
    """Why a conversation is broken off, with one line."""

    ending: Ending
    detail: str


@dataclass(frozen=True)
class ByteLimits:
    """How much a child may say while it is listened to, and the end of its log that is kept, in bytes."""

    result: int
    log: int
    kept_log: int = 16 << 10


class Drain:
    """One message on its way to a child, and all that the child says meanwhile.

    ``on_frame`` sees each frame as it arrives and breaks off by returning False. A caller asks ``step`` again until
    it has what it waits for or its clock has run out; clocks and deaths are the caller's.
    """

    def __init__(
        self,
        stdin: int,
        logs: Sequence[int],
        result: int,
        message: bytes,
        reader: FrameReader,
        limits: ByteLimits,
        on_frame: Callable[[Frame], object] | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self.frames: list[Frame] = []
        self.heard = time.monotonic()
        """When the result pipe last said something, by ``time.monotonic``."""
        self._stdin, self._logs, self._result = stdin, tuple(logs), result
        self._message = memoryview(message)
        self._reader, self._limits = reader, limits
        self._on_frame, self._on_sent = on_frame, on_sent
        self._log = b""
        self._received = self._logged = 0
        self._selector = selectors.DefaultSelector()
        for stream in (result, *self._logs):
            os.set_blocking(stream, False)
            self._selector.register(stream, selectors.EVENT_READ)
        if message:
            os.set_blocking(stdin, False)
            self._selector.register(stdin, selectors.EVENT_WRITE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    @property
    def log(self) -> bytes:
        """The end of what the child has printed."""
        return self._log

    @property
    def open(self) -> bool:
        """Whether the child's result pipe is."""
        return self._result in self._selector.get_map()

    def step(self, seconds: float) -> bool | Stop:
        """Wait at most ``seconds`` for a stream and serve it: whether there was one, or why to break off."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            try:
                stop = self._serve(key.fd)
            except FrameError as error:
                return Stop(Ending.GARBAGE, str(error))
            if stop is not None:
                return stop
        return bool(ready)

    def rest_of_log(self) -> None:
        """What the log's pipes hold now, up to the limit."""
        for stream in self._logs:
            with contextlib.suppress(OSError):
                while (piece := os.read(stream, _LOG_CHUNK)) and self._keep(piece) is None:
                    pass

    def _serve(self, stream: int) -> Stop | None:
        if stream == self._stdin:
            self._send()
            return None
        piece = os.read(stream, _FRAME_CHUNK if stream == self._result else _LOG_CHUNK)
        if not piece:
            self._selector.unregister(stream)
            return None
        return self._take(piece) if stream == self._result else self._keep(piece)

    def _take(self, piece: bytes) -> Stop | None:
        self.heard = time.monotonic()
        self._received += len(piece)
        if self._received > self._limits.result:
            return Stop(Ending.FLOOD, f"more than {self._limits.result} bytes of results")
        for frame in self._reader.feed(piece):
            self.frames.append(frame)
            if self._on_frame is not None and self._on_frame(frame) is False:
                return Stop(Ending.STOPPED, "stopped by the parent")
        return None

    def _keep(self, piece: bytes) -> Stop | None:
        self._logged += len(piece)
        self._log = (self._log + piece)[-self._limits.kept_log :]
        if self._logged > self._limits.log:
            return Stop(Ending.FLOOD, f"more than {self._limits.log} bytes of output")
        return None

    def _send(self) -> None:
        try:
            sent = os.write(self._stdin, self._message[:_MESSAGE_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # the child closed its input; its ending tells the rest
            sent = len(self._message)
        self._message = self._message[sent:]
        if not self._message:
            self._selector.unregister(self._stdin)
            self._on_sent()
