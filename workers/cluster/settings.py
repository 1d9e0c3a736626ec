"""What every worker of a pool evaluates, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.seeds.operator import Scope
from tilewright.workers.device.station import Entry
from tilewright.workers.request import Limits

DEADLINE_SLACK_SECONDS = 30.0
"""Over the sum of the stages' own limits, after which the actor itself is taken for hung."""


@dataclass(frozen=True)
class PoolSettings:
    """Settings of a pool: what every worker evaluates, and within which limits (seconds, GiB) of one child process."""

    operator: str
    target: str
    suite: str
    descriptors: tuple[str, ...]
    check_seconds: float
    measure_seconds: float
    memory_gib: float
    count: int
    address: str | None = None
    gpus: int = 0
    reference: Entry | None = None
    """What several devices of a measured target are calibrated with."""

    def deadline_seconds(self, scope: Scope) -> float:
        """Wall clock of one job, after which its worker is taken for hung: three children at their limits."""
        factor = Limits().final_factor if scope is Scope.FINAL else 1.0
        return factor * (2 * self.check_seconds + self.measure_seconds) + DEADLINE_SLACK_SECONDS
