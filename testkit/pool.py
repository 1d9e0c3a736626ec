"""Settings of a pool for the small GEMM, and genomes for it."""

import time

from testkit import FIXTURES
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import Evaluation
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.cluster.pool import Pool
from tilewright.workers.cluster.settings import PoolSettings

FAMILY = str(FIXTURES / "small_gemm")


def pool_settings(**changes: object) -> PoolSettings:
    known = {
        "operator": f"{FAMILY}/good",
        "target": "tpu7x",
        "suite": "tiny",
        "descriptors": ("block_m",),
        "check_seconds": 60.0,
        "measure_seconds": 60.0,
        "memory_gib": 8.0,
        "count": 2,
    }
    return PoolSettings(**{**known, **changes})  # type: ignore[arg-type]


def genome(kernel: str = "tiled", **params: int) -> Genome:
    source = load_operator(f"{FAMILY}/{'bad' if kernel == 'wrong' else 'good'}").kernels[kernel].source
    return Genome(source, {**read_declarations(source).defaults, **params})


def drain(pool: Pool, count: int, seconds: float = 280.0) -> dict[int, Evaluation]:
    done: dict[int, Evaluation] = {}
    deadline = time.monotonic() + seconds
    while len(done) < count and time.monotonic() < deadline:
        done.update(pool.wait(0.5))
    return done
