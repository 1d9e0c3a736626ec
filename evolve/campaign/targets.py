"""A campaign's target on this machine: what ``cuda`` and ``tpu`` stand for, what is missing, its device started early.

The command imports this module before anything else of a campaign, so that the device starts meanwhile: it must stay
cheap to import.
"""

import contextlib
from collections.abc import Iterator

from tilewright.evolve.campaign.config import CampaignConfig
from tilewright.evolve.errors import UserError
from tilewright.fitness.chips import Chip
from tilewright.fitness.gpus import GPUS, LOCAL
from tilewright.fitness.targets import MEASURED_TPUS, TPU, Target, UnknownTarget, load_target
from tilewright.workers.device.warm_device import WarmDevice, device_for
from tilewright.workers.toolchains import libtpu_simulator
from tilewright.workers.toolchains import tpu as tpu_toolchain
from tilewright.workers.toolchains import triton as triton_toolchain

HIP = "hip"


def named_target(name: str) -> str:
    """The target that ``name`` stands for; the record says which device ``cuda`` or ``tpu`` was. Raises UserError."""
    if name == HIP:
        raise UserError(
            f"target: {HIP} cannot be measured yet; compile-only targets such as gfx950 check candidates for AMD GPUs."
        )
    if name == LOCAL:
        if (missing := triton_toolchain.missing_parts(GPUS["h200"])) is not None:
            raise UserError(f"target: {LOCAL} cannot be used here: {missing.replace('h200', LOCAL)}.")
        found = triton_toolchain.local_target()
        if found is None:
            raise UserError(f"target: {LOCAL} cannot be used here: the driver names no device.")
        return found
    if name == TPU:
        if (missing := tpu_toolchain.missing_parts(None)) is not None:
            raise UserError(f"target: {TPU} cannot be used here: {missing}.")
        chip = tpu_toolchain.chip_here()
        return next(name for name, part in MEASURED_TPUS.items() if part == chip)
    return name


def missing_parts(target: Target, remote: bool) -> str | None:
    """What this machine, or with ``remote`` its Ray cluster, lacks for a target, in words."""
    if target.measured and isinstance(target.part, Chip):
        return tpu_toolchain.missing_parts(target.part, remote=remote)
    if target.measured:
        return triton_toolchain.missing_parts(target.gpu, remote=remote)
    if target.compile_only:
        return triton_toolchain.missing_parts(target.architecture, remote=remote)
    return libtpu_simulator.missing_parts()


def require_usable(target: Target, remote: bool) -> None:
    """Raises UserError when something is missing."""
    if missing := missing_parts(target, remote):
        raise UserError(f"target: {target.name} cannot be used here: {missing}.")


@contextlib.contextmanager
def starting_device(config: CampaignConfig) -> Iterator[WarmDevice | None]:
    """The device that a campaign on this machine measures on, starting in the background; None without one.

    Raises UserError where this machine lacks what the target needs; resolving the campaign reports an unknown one.
    """
    with contextlib.ExitStack() as stack:
        device = None
        if config.workers.address is None:
            with contextlib.suppress(UnknownTarget):
                target = load_target(named_target(config.target))
                require_usable(target, remote=False)
                device = stack.enter_context(device_for(target))
        yield device
