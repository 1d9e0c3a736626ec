"""Template processes that the tests of one process share: torch is imported in four seconds, JAX in two."""

import weakref
from collections import defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from tilewright.workers.child.launch import Process, Streams, Template, _stop

_idle: defaultdict[Hashable, list[tuple[Any, Process]]] = defaultdict(list)


class SharedTemplate(Template):
    """A template that takes over the idle process of one that was closed, with the same modules and environment.

    When it is closed, its process becomes idle, or ends where a child was not reaped or an order failed.
    """

    _orders = 0
    """Children started and not reaped, and orders that failed."""

    @property
    def _key(self) -> Hashable:
        return self._modules, frozenset(self._environment.items())

    def _ensure_started(self) -> Any:
        if self._channel is None and _idle[self._key]:
            channel, process = _idle[self._key].pop()
            self._channel, self._pid = channel, process.pid
            self._finalizer = weakref.finalize(self, _stop, channel, process)
        return super()._ensure_started()

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        self._orders += 1
        return super().start(config, folder, environment, streams)

    def _reap_child(self, channel: Any, pid: int) -> int:
        code = super()._reap_child(channel, pid)
        self._orders -= 1
        return code

    def close(self) -> None:
        if self._orders or self._finalizer is None or (kept := self._finalizer.detach()) is None:
            super().close()
            self._orders = 0
        else:
            self._channel = None
            _idle[self._key].append(kept[2])
