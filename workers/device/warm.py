"""A device and its compiler, started before there is anything to judge: what a first job would otherwise wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target
from tilewright.workers.child.fresh import FreshChildren
from tilewright.workers.child.template import SharedTemplate
from tilewright.workers.device.station import LocalStation, compile_children
from tilewright.workers.toolchains import triton as triton_toolchain


@dataclass(frozen=True)
class WarmDevice:
    """A station, and the process that all compilers of this machine are forked from; an interpreter needs none."""

    station: LocalStation
    shared: SharedTemplate | None

    @property
    def address(self) -> str | None:
        """For ``compile_children``."""
        return self.shared.address if self.shared is not None else None

    def compiler(self, target: Target, scratch: Path | None = None) -> FreshChildren | None:
        """Children for one thread that compiles."""
        return compile_children(target.gpu, scratch, self.address) if self.shared is not None else None

    def close(self) -> None:
        """Kill the children."""
        self.station.close()
        if self.shared is not None:
            self.shared.close()


def warm_device(target: Target, scratch: Path | None = None) -> WarmDevice:
    """Begin to start both, and wait for neither. Raises OSError where no process can be made."""
    compiles = not (isinstance(target.part, Chip) or target.interpreted)
    found = WarmDevice(
        LocalStation(target.hardware, scratch, spare=False),
        compile_children(target.gpu, scratch).share() if compiles else None,
    )
    try:
        found.station.warm()
    except OSError:
        found.close()
        raise
    return found


@contextlib.contextmanager
def started(target: Target) -> Iterator[WarmDevice | None]:
    """The target's device and compiler, which start beside what else there is to do; None where there is nothing to.

    Only where the first job can be judged in this process: several devices are compared before any of them is used.
    """
    device = None
    if judged_here(target) and target.measured and (target.interpreted or triton_toolchain.gpu_count()):
        with contextlib.suppress(OSError):  # the campaign will say why
            device = warm_device(target)
    try:
        yield device
    finally:
        if device is not None:
            device.close()


def judged_here(target: Target, gpus: int | None = None) -> bool:
    """Whether jobs can be judged before there are workers: several devices are compared first.

    ``gpus``: to measure on; None: those of this machine.
    """
    if not target.measured:
        return not target.compile_only
    if gpus is None:
        gpus = 0 if target.interpreted else triton_toolchain.gpu_count()
    return not isinstance(target.part, Chip) and gpus <= 1
