"""Starts a device's child and its compiler before the first job, which would otherwise wait for them."""

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
    """A station, and the process that this machine's compiler children are forked from (None for an interpreter)."""

    station: LocalStation
    template: Template | None
    kept: bool = False
    """Whether ``close`` leaves it running: its owner will close it."""

    outcomes: Outcomes = field(default_factory=lambda: Outcomes(KEPT))
    """The latest compilation results, shared by all pools."""

    def lend(self) -> "WarmDevice":
        """For one pool: ``close`` does nothing, and earlier pools' seeds, plans and champion are gone."""
        return replace(self, station=self.station.for_next_campaign(), kept=True)

    def compiler(self, target: Target, scratch: Path | None = None) -> ForkedChildren | None:
        """Compiler children for one thread; None where nothing is compiled ahead."""
        return compile_children(target.gpu, scratch, self.template) if self.template is not None else None

    def expect_reference(self) -> None:
        """On a machine with ``PROCESSORS`` or more, start the process that computes references: it imports torch."""
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
    """Start the station's child and the template, without waiting for them. Raises OSError."""
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
