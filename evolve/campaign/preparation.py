"""What a campaign prepares before it starts or resumes: settings of its workers, and its description in the journal."""

import os
import platform
from importlib import metadata

from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.record.system import system
from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.score import rate_unit
from tilewright.fitness.tpu import time_model
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.device.station import Entry
from tilewright.workers.toolchains import triton as triton_toolchain

WORKERS_PER_GPU = 24
"""Most workers that one GPU of this machine gets by default: more start later and do not keep it busier."""

_TOOLS = ("tilewright", "ray", "mlflow-skinny", "numpy", "jax", "jaxlib", "libtpu", "torch", "triton", "scipy")


def pool_settings(resolved: Resolved) -> PoolSettings:
    """The settings that the workers receive. By default one worker runs on each processor of this process."""
    config, gpus = resolved.config, _local_gpus(resolved)
    processors = len(os.sched_getaffinity(0))
    return PoolSettings(
        operator=config.operator,
        target=config.target,
        suite=config.suite,
        descriptors=config.search.descriptors,
        check_seconds=config.workers.check_seconds,
        measure_seconds=config.workers.measure_seconds,
        memory_gib=config.workers.memory_gib,
        count=config.workers.count or (min(processors, WORKERS_PER_GPU * gpus) if gpus else processors),
        address=config.workers.address,
        gpus=gpus,
        reference=_calibration_kernel(resolved),
    )


def _calibration_kernel(resolved: Resolved) -> Entry | None:
    """The kernel that relates the devices of a measured target to each other: the first seed."""
    if not resolved.target.measured:
        return None
    genome = resolved.starts[0].genome
    return Entry(genome.id, genome.source, dict(genome.params))


def _local_gpus(resolved: Resolved) -> int:
    """GPUs of this machine to measure on; 0 with a cluster, which alone knows its own."""
    target = resolved.target
    if not target.measured or target.interpreted or isinstance(target.part, Chip):
        return 0
    return 0 if resolved.config.workers.address is not None else triton_toolchain.gpu_count()


def require_same_kernels(journal: Journal, resolved: Resolved) -> None:
    """Raises UserError when a resumed campaign's seeds are not those that it started from."""
    recorded = {c.index: c.genome.id for c in journal.candidates()}
    for index, start in enumerate(resolved.starts):
        if recorded.get(index, start.genome.id) != start.genome.id:
            raise UserError(f"seeds: {start.name} has changed since the campaign started; start a new one.")


def require_same_model(journal: Journal, resolved: Resolved) -> None:
    """Raises UserError when another version of the time model made the figures of a resumed campaign."""
    recorded = int(journal.meta("toolchain", {}).get("time_model", 1))
    if resolved.target.kind is FigureKind.MODELLED and recorded != time_model.VERSION:
        raise UserError(
            f"target: the campaign's figures are of time model {recorded}, this tilewright's is {time_model.VERSION}, "
            "and figures of different ones do not compare; start a new campaign."
        )


def write_meta(journal: Journal, campaign: str, resolved: Resolved) -> None:
    """Write what a report, the MLflow mirror and a resume need beside the evaluations."""
    config, target = resolved.config, resolved.target
    journal.set_meta(
        "campaign",
        {
            "id": campaign,
            "name": config.name,
            "operator": resolved.operator.name,
            "target": config.target,
            "target_kind": target.kind.value,
            "unit": "passes" if target.compile_only else rate_unit(resolved.operator),
            "suite": config.suite,
            "seed": config.seed,
            "budget": config.budget.model_dump(),
            "seeds": [start.name for start in resolved.starts],
            "floors": resolved.floors(),
        },
    )
    journal.set_meta("toolchain", _toolchain())
    journal.set_meta("system", system())
    journal.set_meta("config", config.model_dump(mode="json"))


def _toolchain() -> dict[str, str]:
    versions = {"python": platform.python_version(), "time_model": str(time_model.VERSION)}
    for name in _TOOLS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
