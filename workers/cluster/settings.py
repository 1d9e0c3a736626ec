"""Settings of a pool: what every worker evaluates, and within which limits."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tilewright.seeds.operator import Scope
from tilewright.workers.child.launch import WAITING_FACTOR
from tilewright.workers.device.station import DeviceRatio, Entry
from tilewright.workers.request import Limits

DEADLINE_SLACK_SECONDS = 30.0
"""Over the sum of the stages' own limits, after which the worker itself counts as hung."""


class PoolUnavailable(ConnectionError):
    """A pool cannot be started or has lost its station; the message is one clause that names the address or cause."""


@dataclass(frozen=True)
class PoolSettings:
    """What every worker evaluates, and the limits (seconds, GiB) of one child process."""

    operator: str
    target: str
    suite: str
    descriptors: tuple[str, ...]
    check_seconds: float
    measure_seconds: float
    memory_gib: float
    count: int
    """Workers."""
    address: str | None = None
    """Of a Ray cluster; None for this machine."""
    gpus: int = 0
    """GPUs of this machine to measure on."""
    reference: Entry | None = None
    """The kernel that several devices of a measured target are calibrated with."""

    def deadline_seconds(self, scope: Scope) -> float:
        """Wall clock of one job, after which its worker counts as hung: three children that run and wait their most."""
        factor = (1 + WAITING_FACTOR) * (Limits().final_factor if scope is Scope.FINAL else 1.0)
        return factor * (2 * self.check_seconds + self.measure_seconds) + DEADLINE_SLACK_SECONDS


def evaluator_settings(
    settings: PoolSettings, scales: Mapping[str, DeviceRatio], scratch: str | None
) -> bytes:
    """The JSON that an ``Evaluator`` is made of.

    ``scales``: of the devices of several stations, by device. ``scratch``: a folder for children's files.
    """
    ratios = {device: asdict(scale) for device, scale in scales.items()}
    own = {"reference": None, "scales": ratios, "scratch": scratch}
    return json.dumps({**asdict(settings), **own}).encode()
