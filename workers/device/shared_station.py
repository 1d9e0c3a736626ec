"""One station of this process, as each of several threads sees it: they take turns, and each counts its own seconds.

What is only asked or told does not wait for the device.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tilewright.seeds.sampled import Sample
from tilewright.workers.child.ending import ChildOutcome
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import JobLimits, SessionDied
from tilewright.workers.device.station import Champion, DeviceRatio, LocalStation, OperandSeeds


class SharedStation:
    """Implements ``workers.device.station.Station``. Every thread has its own: see ``for_thread``."""

    def __init__(self, station: LocalStation) -> None:
        self._station = station
        self._device_lock, self._state_lock = threading.Lock(), threading.Lock()
        self._seeds = OperandSeeds()
        self._hello: dict[str, Any] = {}
        """Said once: whoever asks later waits for no job."""
        self._over = threading.Event()
        self.busy_seconds = 0.0
        self.cpu_seconds = 0.0
        """Of the device's child, for jobs asked for here."""

    def for_thread(self) -> SharedStation:
        """The same station for another thread."""
        made = SharedStation(self._station)
        made._device_lock, made._state_lock, made._seeds = self._device_lock, self._state_lock, self._seeds
        made._hello, made._over = self._hello, self._over
        return made

    def hello(self) -> Mapping[str, Any]:
        if not self._hello:
            with self._device_lock:
                self._require()
                self._hello.update(self._station.hello())
        return self._hello

    def end(self) -> None:
        """Have all that wait for a turn or a claim, and all that ask later, fail."""
        self._over.set()

    def _require(self) -> None:
        if self._over.is_set():
            raise SessionDied("the station has ended")

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        with self._device_lock:
            self._require()
            outcome = self._station.run(job, limits)
        self.busy_seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds
        return outcome

    def plans(self, source: str, params: Mapping[str, Any]) -> Mapping[str, bytes]:
        """See ``workers.device.station.LocalStation``."""
        with self._device_lock:
            return self._station.plans(source, params)

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        return self._station.sample(asked, seed)

    def scale(self) -> DeviceRatio:
        return self._station.scale()

    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        with self._state_lock:
            return self._seeds.seed(proposed, ahead=ahead)

    def champion(self) -> Champion | None:
        with self._state_lock:
            return self._station.champion()

    def claim(self, contender: str) -> bool:
        self._require()
        with self._state_lock:
            return self._station.claim(contender)

    def release(self, contender: str, crowned: Champion | None) -> None:
        with self._state_lock:
            self._station.release(contender, crowned)

    def inherit(self, champion: Champion) -> None:
        """See ``workers.device.station.LocalStation``."""
        with self._state_lock:
            self._station.inherit(champion)
