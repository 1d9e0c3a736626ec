"""A device and its compiler, started before the first job, which would otherwise wait for them."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.launch import Template
from tilewright.workers.device.plan_compiler import KEPT, Outcomes
from tilewright.workers.device.station import LocalStation, compile_children
from tilewright.workers.intake.judge.ahead import PROCESSORS
from tilewright.workers.toolchains import triton as triton_toolchain


@dataclass(frozen=True)
class WarmDevice:
    """A station, and the process that all compilers of this machine are forked from; an interpreter needs none."""

    station: LocalStation
    template: Template | None
    kept: bool = False
    """Whether it runs on when a pool closes it."""

    outcomes: Outcomes = field(default_factory=lambda: Outcomes(KEPT))
    """What compilers made lately, whoever asked them."""

    def lent(self) -> "WarmDevice":
        """The same for one pool after another, which leave it as it is and know nothing of each other's candidates."""
        return replace(self, station=self.station.renewed(), kept=True)

    def compiler(self, target: Target, scratch: Path | None = None) -> ForkedChildren | None:
        """Children for one thread that compiles."""
        return compile_children(target.gpu, scratch, self.template) if self.template is not None else None

    def expect_reference(self) -> None:
        """Begin what will run a reference on the device, too, where processors are idle: it imports torch."""
        if len(os.sched_getaffinity(0)) >= PROCESSORS:
            self.station.warm_oracle()

    def close(self) -> None:
        """Kill the children."""
        if self.kept:
            return
        self.station.close()
        if self.template is not None:
            self.template.close()


def warm_device(target: Target, scratch: Path | None = None) -> WarmDevice:
    """Begin to start both, and wait for neither. Raises OSError where no process can be made."""
    compiles = not (isinstance(target.part, Chip) or target.interpreted)
    found = WarmDevice(
        LocalStation(target.hardware, scratch, spare=False),
        compile_children(target.gpu, scratch).template if compiles else None,
    )
    try:
        found.station.warm()
        if found.template is not None:
            found.template.warm()
    except OSError:
        found.close()
        raise
    return found


@contextlib.contextmanager
def device_for(target: Target) -> Iterator[WarmDevice | None]:
    """The target's device and compiler, which start in the background; None for a target without one device here.

    Several devices are compared before any of them is used, and the pool starts them.
    """
    device = None
    one_device = target.interpreted or (
        target.measured and not isinstance(target.part, Chip) and triton_toolchain.gpu_count() == 1
    )
    if one_device:
        with contextlib.suppress(OSError):  # the campaign will say why
            device = warm_device(target)
    try:
        yield device
    finally:
        if device is not None:
            device.close()
