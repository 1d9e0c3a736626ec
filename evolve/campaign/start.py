"""What a campaign needs before it starts or goes on, and what its journal says of it."""

from __future__ import annotations

import platform
from importlib import metadata

from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.campaign.worker_settings import unit_of
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.record.system import system
from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.targets import Target
from tilewright.fitness.tpu import time_model
from tilewright.workers.toolchains import tpu as tpu_toolchain
from tilewright.workers.toolchains import triton as triton_toolchain
from tilewright.workers.toolchains.libtpu_simulator import missing_parts

_TOOLS = (
    "tilewright",
    "ray",
    "mlflow",
    "numpy",
    "jax",
    "jaxlib",
    "libtpu",
    "torch",
    "triton",
    "scipy",
)


def require_toolchain(resolved: Resolved) -> None:
    """Raises UserError where the target cannot be used on this machine, or from it."""
    require_usable(resolved.target, resolved.config.workers.address is not None)


def require_usable(target: Target, remote: bool) -> None:
    """Raises UserError where it cannot be used on this machine; ``remote``: from it, on a cluster."""
    if target.measured:
        absent = (
            tpu_toolchain.missing_parts(target.part, remote=remote)
            if isinstance(target.part, Chip)
            else triton_toolchain.missing_parts(target.gpu, remote=remote)
        )
    elif target.compile_only:
        absent = triton_toolchain.missing_parts(target.architecture, remote=remote)
    else:
        absent = missing_parts()
    if absent:
        raise UserError(f"target: {target.name} cannot be used here: {absent}.")


def require_same_kernels(journal: Journal, resolved: Resolved) -> None:
    """A resumed campaign must start from the seeds it started from. Raises UserError."""
    recorded = {c.index: c.genome.id for c in journal.candidates()}
    for index, start in enumerate(resolved.starts):
        if recorded.get(index, start.genome.id) != start.genome.id:
            raise UserError(f"seeds: {start.name} has changed since the campaign started; start a new one.")


def require_same_model(journal: Journal, resolved: Resolved) -> None:
    """Modelled figures of two versions of the time model must not meet in one campaign. Raises UserError."""
    recorded = int(journal.meta("toolchain", {}).get("time_model", 1))
    if resolved.target.kind is FigureKind.MODELLED and recorded != time_model.VERSION:
        raise UserError(
            f"target: the campaign's figures are of time model {recorded}, this tilewright's is {time_model.VERSION}, "
            "and figures of different ones do not compare; start a new campaign."
        )


def write_meta(journal: Journal, campaign: str, resolved: Resolved) -> None:
    """What a report, a mirror and a resume need to know of a campaign besides its evaluations."""
    config = resolved.config
    journal.set_meta(
        "campaign",
        {
            "id": campaign,
            "name": config.name,
            "operator": resolved.operator.name,
            "target": config.target,
            "target_kind": resolved.target.kind.value,
            "unit": unit_of(resolved),
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
    versions = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**versions, "time_model": str(time_model.VERSION)}
