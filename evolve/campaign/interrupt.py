"""Ctrl-C during a campaign: it ends cleanly, and soon, whatever the main thread waits for."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

GRACE_SECONDS = 0.5
"""How long the main thread may take to see that it is to stop, before what it is at is cut off."""


class CtrlC:
    """While entered, the first SIGINT or SIGTERM ends the campaign cleanly, a second one at once.

    The first calls ``stop`` and sets ``asked``, which the campaign looks at between two steps. A step that takes
    longer than ``GRACE_SECONDS`` (the final comparison, a language model's answer) is cut off by KeyboardInterrupt:
    what it would have given, a resume does again. Main thread only.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.asked = False
        self.again = False
        """Whether the user did not want to wait for a clean end."""
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._timer: tuple[float, float] | None = None
        """What the process's own timer was set to, while it is ours."""
        self._settled = False

    def settle(self) -> None:
        """From here on nothing is cut off: what is left to do is to be done."""
        self._settled = True
        if self._timer is not None:
            signal.setitimer(signal.ITIMER_REAL, *self._timer)
            self._timer = None

    def __enter__(self) -> CtrlC:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.again = True
            raise KeyboardInterrupt
        self.asked = True
        self._stop()
        if not self._settled:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._cut_off)
            # again and again: an exception that meets a callback of some library's goes no further
            self._timer = signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, GRACE_SECONDS)

    def _cut_off(self, number: int, frame: FrameType | None) -> None:
        if not self._settled:
            raise KeyboardInterrupt
