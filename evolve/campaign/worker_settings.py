"""Settings that the workers of a campaign get of it."""

from __future__ import annotations

import os

from tilewright.evolve.campaign.resolve import Resolved
from tilewright.fitness.chips import Chip
from tilewright.fitness.score import rate_unit
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.device.station import Entry
from tilewright.workers.toolchains import triton as triton_toolchain

MOST_A_DEVICE = 24
"""Workers that one device of this machine gets unless told otherwise: more take longer to start, and it is as busy."""


def pool_settings(resolved: Resolved) -> PoolSettings:
    """What the workers need to know of a campaign."""
    config = resolved.config
    count = config.workers.count or _usual_count(_gpus(resolved))
    return PoolSettings(
        operator=config.operator,
        target=config.target,
        suite=config.suite,
        descriptors=config.search.descriptors,
        check_seconds=config.workers.check_seconds,
        measure_seconds=config.workers.measure_seconds,
        memory_gib=config.workers.memory_gib,
        count=count,
        address=config.workers.address,
        gpus=_gpus(resolved),
        reference=_reference(resolved),
    )


def _usual_count(gpus: int) -> int:
    """One for each processor that this process may use."""
    processors = len(os.sched_getaffinity(0))
    return min(processors, MOST_A_DEVICE * gpus) if gpus else processors


def unit_of(resolved: Resolved) -> str:
    """Of a campaign's fitness."""
    if resolved.target.compile_only:
        return "passes"
    return rate_unit(resolved.operator)


def _reference(resolved: Resolved) -> Entry | None:
    """What devices are calibrated with: the first seed."""
    if not resolved.target.measured:
        return None
    genome = resolved.starts[0].genome
    return Entry(genome.id, genome.source, dict(genome.params))


def _gpus(resolved: Resolved) -> int:
    """GPUs to measure on: those of this machine; 0 for a cluster's, which it alone knows."""
    target = resolved.target
    if not target.measured or target.interpreted or isinstance(target.part, Chip):
        return 0
    return 0 if resolved.config.workers.address is not None else triton_toolchain.gpu_count()
