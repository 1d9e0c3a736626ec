"""Names of targets that stand for the device of this machine."""

from __future__ import annotations

from tilewright.evolve.errors import UserError
from tilewright.fitness.gpus import GPUS, LOCAL
from tilewright.fitness.targets import MEASURED_TPUS, TPU
from tilewright.workers.toolchains import tpu as tpu_toolchain
from tilewright.workers.toolchains import triton as triton_toolchain

HIP = "hip"


def named_target(target: str) -> str:
    """``tpu`` and ``cuda`` as the device that this machine has, so that a campaign's record says which."""
    if target == LOCAL:
        if (absent := triton_toolchain.missing_parts(GPUS["h200"])) is not None:
            raise UserError(f"target: {LOCAL} cannot be used here: {absent.replace('h200', LOCAL)}.")
        found = triton_toolchain.local_target()
        if found is None:
            raise UserError(f"target: {LOCAL} cannot be used here: the driver names no device.")
        return found
    if target == HIP:
        raise UserError(
            f"target: {HIP} cannot be measured yet; compile-only targets such as gfx950 check candidates for AMD GPUs."
        )
    if target != TPU:
        return target
    if (absent := tpu_toolchain.missing_parts(None)) is not None:
        raise UserError(f"target: {TPU} cannot be used here: {absent}.")
    chip = tpu_toolchain.chip_here()
    return next(name for name, part in MEASURED_TPUS.items() if part == chip)
