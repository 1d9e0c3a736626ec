"""Stations of one target on one scale: each times the campaign's first kernel, and every figure is related to that.

Two GPUs of one product differ by per cents in clock and power. Where a campaign measures on several, all of them time
the same reference kernel on the same shapes before anything else; a device's figures are divided by its ratio to the
first device's times. A device that is too far off is left out, and one that was never calibrated gives no figures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TypeVar

from tilewright.fitness.intervals import NORMAL_95, Ratio, paired_ratio
from tilewright.seeds.operator import Operator, Suite, Workload
from tilewright.workers.device.comparison import Comparison
from tilewright.workers.device.station import DeviceRatio

log = logging.getLogger(__name__)

FARTHEST = 1.1
"""A device whose times differ from the first's by this factor is broken, throttled or of another kind."""

SHAPES = 4
"""Shapes the reference kernel is timed on."""

CARRIED = 0.009
"""Relative standard error of a device's ratio for another kernel than the reference: measured on four H200
(``experiments/records/cluster/gpu_scaling.json``), where two kernels were 0.5 to 1.3 % off after calibration
by a third."""

DEVICE = "identity"
"""What tells one device from another in a station's hello."""

Handle = TypeVar("Handle")


def reference_shapes(operator: Operator, suite: Suite) -> list[Workload]:
    """At most ``SHAPES`` of a suite's shapes, from the least work to the most."""
    ranked = sorted(suite.workloads, key=operator.flops)
    count = min(SHAPES, len(ranked))
    return [ranked[round(n * (len(ranked) - 1) / max(1, count - 1))] for n in range(count)]


def scale_of(device: str, ratio: Ratio) -> DeviceRatio:
    """The scale of a device from the reference's ratio; the first's is 1 without error."""
    if ratio.low == ratio.high:
        return DeviceRatio(device, ratio.value)
    return DeviceRatio(
        device, ratio.value, math.hypot(math.log(ratio.high / ratio.low) / (2 * NORMAL_95), CARRIED)
    )


def in_service(
    answers: Sequence[tuple[Handle, str, Comparison]], reference: str, farthest: float = FARTHEST
) -> tuple[list[Handle], dict[str, DeviceRatio]]:
    """Of (station, device, what it timed) the stations to measure on, and the scale of each one's device.

    The first that timed the reference sets the scale. Where none did, the reference is at fault, not the devices:
    one station goes on alone, without a scale, and the campaign will find out.
    """
    timed = [one for one in answers if reference in one[2].genomes]
    if not timed:
        return [handle for handle, *_ in answers[:1]], {}
    kept: list[Handle] = []
    scales: dict[str, DeviceRatio] = {}
    for handle, device, found in timed:
        here, first = ({w: of[reference] for w, of in one.rounds.items()} for one in (found, timed[0][2]))
        ratio = paired_ratio(here, first)
        if max(ratio.value, 1 / ratio.value) > farthest or device in scales:
            log.warning("device %s is left out: %.3f times the first device's times", device, ratio.value)
            continue
        kept.append(handle)
        scales[device] = scale_of(device, ratio)
    return kept, scales if len(kept) > 1 else {}
