"""Ctrl-C during a campaign: the campaign ends cleanly and soon, whatever the main thread waits for."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

GRACE_SECONDS = 0.5
"""How long the main thread may take to notice the request before its current step is cut off."""


class CtrlC:
    """While entered, the first SIGINT or SIGTERM ends the campaign cleanly, a second one at once.

    The first calls ``stop`` and sets ``requested``, which the campaign reads between two steps. A step that takes
    longer than ``GRACE_SECONDS`` (the final comparison, a language model's answer) is cut off by
    KeyboardInterrupt; a resume repeats it. Outside the main thread no signal arrives:
    only ``request`` ends the campaign.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.requested = False
        self.repeated = False
        """Whether a second signal asked for an end at once."""
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._timer: tuple[float, float] | None = None
        """The setting of the process's own timer, while this object uses it."""
        self._settled = False

    def request(self) -> None:
        """End the campaign cleanly, as the first signal does."""
        self.requested = True
        self._stop()

    def settle(self) -> None:
        """From here on no step is cut off: the campaign completes what is left."""
        self._settled = True
        if self._timer is not None:
            signal.setitimer(signal.ITIMER_REAL, *self._timer)
            self._timer = None

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if main else ():
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self.repeated = True
            raise KeyboardInterrupt
        self.request()
        if not self._settled:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._cut_off)
            # repeatedly: a library's callback may swallow the first exception
            self._timer = signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, GRACE_SECONDS)

    def _cut_off(self, number: int, frame: FrameType | None) -> None:
        if not self._settled:
            raise KeyboardInterrupt
