"""A device and its compiler, started before there is anything to judge: what a first job would otherwise wait for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target
from tilewright.workers.child.fresh import FreshChildren
from tilewright.workers.device.station import LocalStation, compile_children


@dataclass(frozen=True)
class WarmDevice:
    """A station, and children that compile for it; an interpreter needs none."""

    station: LocalStation
    compiler: FreshChildren | None

    def close(self) -> None:
        """Kill the children."""
        self.station.close()
        if self.compiler is not None:
            self.compiler.close()


def warm_device(target: Target, scratch: Path | None = None) -> WarmDevice:
    """Begin to start both, and wait for neither. Raises OSError where no process can be made."""
    station = LocalStation(target.hardware, scratch, spare=False)
    compiles = not (isinstance(target.part, Chip) or target.interpreted)
    found = WarmDevice(station, compile_children(target.gpu, scratch) if compiles else None)
    try:
        station.warm()
        if found.compiler is not None:
            found.compiler.warm()
    except OSError:
        found.close()
        raise
    return found
