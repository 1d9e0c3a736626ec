"""The interface of a pool of evaluators, and the choice between its two implementations.

A pool is made of threads of this process (``local_pool``) or of Ray actors (``ray_pool``), from the first evaluation of
a campaign to the last. In both, candidates run in confined children only.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.targets import load_target
from tilewright.workers.cluster.jobs import Job, PoolGenome
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.device.comparison import Comparison
from tilewright.workers.device.warm_device import WarmDevice

MEASURING_THREADS = 16
"""Most workers of a local pool on a measured target: they mostly wait for the device and for compilers."""

MODELLING_THREADS = 4
"""Most workers of a local pool on other targets: a quarter of their time is spent in this process, under one GIL."""


class Evaluator(Protocol):
    """Evaluates jobs, several at a time, finishing in any order: what a search sees of a pool."""

    @property
    def slots(self) -> int:
        """Number of jobs that are evaluated at once."""
        ...

    def submit(self, job: Job) -> None:
        """Evaluate ``job`` as soon as a worker is free."""
        ...

    def drop(self, indices: Collection[int]) -> None:
        """Never start these jobs if they wait; discard their results if they are under way."""
        ...

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """(job index, evaluation) of finished jobs, after at most so long. Infrastructure faults are retried first."""
        ...

    def activity(self) -> list[str]:
        """A line per worker: what it does now."""
        ...

    def close(self) -> None:
        """End the workers and their children, and remove their files."""
        ...


class Pool(Evaluator, Protocol):
    """An evaluator with its workers. ``start`` before use, ``close`` after; not safe for several threads."""

    @property
    def thread_cpu_seconds(self) -> float:
        """CPU seconds of this process that evaluations have counted as theirs."""
        ...

    def start(self) -> None:
        """Make the workers. Raises PoolUnavailable."""
        ...

    def compare(
        self, genomes: Sequence[PoolGenome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        """Genomes side by side on the first device. Raises PoolUnavailable when its station is gone.

        ``only``: by genome id, the workloads it runs on; genomes it does not name run on all.
        """
        ...


def make_pool(
    settings: PoolSettings, device: WarmDevice | None = None, on_note: Callable[[str], None] | None = None
) -> Pool:
    """A pool for these settings, not started; Ray is imported only where the pool needs it.

    ``device``: the station and compiler of a measured target, where they were started before; closed with the pool.
    ``on_note`` is called with what a cluster lacks, in one sentence.
    """
    if runs_here(settings):
        from tilewright.workers.cluster.local_pool import LocalPool

        return LocalPool(settings, device)
    from tilewright.workers.cluster.ray_pool import RayPool

    if device is not None:
        device.close()
    return RayPool(settings, on_note)


def runs_here(settings: PoolSettings) -> bool:
    """Whether threads of this process are enough: no cluster, no more than one GPU, and few enough workers."""
    target = load_target(settings.target)
    if settings.address or settings.gpus > 1 or (target.measured and isinstance(target.part, Chip)):
        return False
    return settings.count <= (MEASURING_THREADS if target.measured else MODELLING_THREADS)
