"""What another thread of this process computes in the meantime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class Ahead:
    """Tasks that one thread does in turn. It ends with the process, whatever it is at."""

    def __init__(self, tasks: Sequence[Callable[[], None]]) -> None:
        self._tasks = list(tasks)
        self._done = [threading.Event() for _ in tasks]
        self._errors: list[Exception | None] = [None] * len(self._tasks)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for number, task in enumerate(self._tasks):
            try:
                task()
            except Exception as error:  # noqa: BLE001 - raised again where it is waited for
                self._errors[number] = error
            finally:
                self._done[number].set()

    def wait(self, number: int) -> None:
        """Until that task is done. Raises what it raised."""
        self._done[number].wait()
        error = self._errors[number]
        if error is not None:
            raise error

    def rest(self) -> None:
        """Until all are done, however."""
        for done in self._done:
            done.wait()
