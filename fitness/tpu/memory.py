"""Time of simulated operations under one memory that all copies share: the clock of the time model.

Every copy between HBM and the core takes its turn at one memory, in the order in which copies were started: it
begins when it was started and the memory is free, takes its bytes over a rate (one for reads, one for writes), and is
ready a latency later. The core works as many cycles as it did in the simulation, and waits where it
waits for a copy that is not ready. Overlap, bursts, pipelines that run dry and copies written by hand follow from that.
"""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.fitness.tpu.events import Events, Kind


@dataclass(frozen=True)
class Rules:
    """``clock`` in Hz, ``read`` and ``write`` in bytes/s, ``latency`` (from a copy's last byte to the core's knowing)
    in seconds."""

    clock: float
    read: float
    write: float
    latency: float


@dataclass(frozen=True)
class OperationTime:
    """One operation's time and what it went to, in seconds. ``memory``: the copies alone, one after the other.

    ``waits``: how often the core waits for a copy, whether or not it is ready.
    """

    seconds: float
    core: float
    read: float
    write: float
    waited: float
    waits: int

    @property
    def step(self) -> float:
        """Seconds from wait to wait."""
        return self.seconds / self.waits if self.waits else math.inf

    @property
    def memory(self) -> float:
        """Time of all copies, were there nothing else."""
        return self.read + self.write


def replay(events: Events, rules: Rules) -> OperationTime:
    """Run an operation's events under these rules."""
    rates = {Kind.READ: rules.read, Kind.WRITE: rules.write}
    took = np.zeros(len(events.kinds))
    for kind, rate in rates.items():
        chosen = events.kinds == kind
        took[chosen] = events.sizes[chosen] / rate
    work = events.work[:-1] / rules.clock
    now = free = waited = 0.0
    ready = [0.0] * len(took)
    steps = zip(work.tolist(), events.kinds.tolist(), took.tolist(), events.ready.tolist(), strict=True)
    for place, (worked, kind, time, awaited) in enumerate(steps):
        now += worked
        if kind == Kind.WAIT:
            if awaited >= 0 and ready[awaited] > now:
                waited += ready[awaited] - now
                now = ready[awaited]
        elif kind == Kind.LOCAL:
            ready[place] = now
        else:
            free = max(free, now) + time
            ready[place] = free + rules.latency
    now += float(events.work[-1]) / rules.clock
    total = max(now, free)
    return OperationTime(
        total,
        float(work.sum()) + float(events.work[-1]) / rules.clock,
        float(took[events.kinds == Kind.READ].sum()),
        float(took[events.kinds == Kind.WRITE].sum()),
        waited + (total - now),
        int((events.kinds == Kind.WAIT).sum()),
    )
