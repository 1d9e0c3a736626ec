"""Signs of life while something is at work that gives none."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def heartbeat(seconds: float, beat: Callable[[], object]) -> Iterator[None]:
    """Call ``beat`` from a thread every so many seconds."""
    done = threading.Event()

    def speak() -> None:
        while not done.wait(seconds):
            beat()

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        done.set()
        speaker.join()
