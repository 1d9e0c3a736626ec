"""Settings of a pool: what every worker evaluates, and within which limits."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tilewright.seeds.operator import Scope
from tilewright.workers.child.launch import WAITING_FACTOR
from tilewright.workers.device.station import DeviceRatio, Entry
from tilewright.workers.request import Limits

DEADLINE_SLACK_SECONDS = 30.0
"""Seconds beyond the sum of the stages' limits after which a worker counts as hung."""


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
    """Number of workers."""
    address: str | None = None
    """Address of a Ray cluster; None: this machine alone."""
    gpus: int = 0
    """Number of this machine's GPUs to measure on."""
    reference: Entry | None = None
    """The kernel that several devices are calibrated with."""

    def deadline_seconds(self, scope: Scope) -> float:
        """Seconds after which a job's worker counts as hung: the limits of its three children, and their longest
        waits."""
        factor = (1 + WAITING_FACTOR) * (Limits().final_factor if scope is Scope.FINAL else 1.0)
        return factor * (2 * self.check_seconds + self.measure_seconds) + DEADLINE_SLACK_SECONDS


def evaluator_settings(settings: PoolSettings, scales: Mapping[str, DeviceRatio], scratch: str | None) -> bytes:
    """The JSON argument of ``Evaluator``. ``scales``: ratios by device identity; ``scratch``: folder for children's
    files."""
    ratios = {device: asdict(scale) for device, scale in scales.items()}
    own = {"reference": None, "scales": ratios, "scratch": scratch}
    return json.dumps({**asdict(settings), **own}).encode()
