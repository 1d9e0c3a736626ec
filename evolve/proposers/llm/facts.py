"""Facts a language model is told beside the contract: the device's, the gates' bounds, what a module may import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.fitness.architectures import Architecture
from tilewright.fitness.chips import Chip
from tilewright.fitness.dialect_names import MODULES
from tilewright.fitness.gpus import UNKNOWN_RATE, Gpu
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import AgreementGate, BitExactGate, Gate

_CUDA = (
    "A module may be CUDA C++ instead: the constant CUDA holds the device code (a raw string, no headers, globals, "
    "__constant__ variables, no clocks), every parameter is a macro of its name, and launch(inputs, params) computes "
    'nothing but returns {"steps": ({"kernel": name, "grid": (x, y, z), "block": threads, "cluster": n, '
    '"shared": bytes, "arguments": ("tensor", {"i32": 4}, '
    '{"map": "tensor", "box": (rows, columns), "swizzle": 128})},), '
    '"scratch": {name: (dtype, shape)}, "defines": {name: number}}; outputs are named as the operator names them.'
)

_PALLAS = ("jax",)
_TRITON = ("torch", "triton")
_EITHER = ("__future__", "functools", "math")


def facts_of(target: Target, gates: Iterable[Gate]) -> tuple[str, ...]:
    """One line for each, units within. Peaks that nobody knows are left out."""
    gated = "Gates: " + "; ".join(map(_gate, gates)) + "."
    told = (_device(target), gated, _imports(target.entry))
    return (*told, _CUDA) if target.entry == "launch" and not target.interpreted else told


def _device(target: Target) -> str:
    part = target.part
    if isinstance(part, Architecture):
        return (
            f"Device {part.product} ({part.arch}): {part.smem_bytes >> 10} KiB of shared memory for one program, "
            f"{part.registers} registers a lane on each of {part.simds} SIMDs, "
            f"{part.warps} warps of {part.lanes} lanes."
        )
    rates = _rates(part)
    if isinstance(part, Gpu):
        held = f"{part.multiprocessors} multiprocessors, {part.smem_bytes >> 10} KiB of shared memory for one program"
        return f"Device {part.product}: {', '.join([held, *rates])}."
    square = f"{part.mxu_size} x {part.mxu_size}"
    held = f"one core, {part.vmem_bytes >> 20} MiB of VMEM, {part.mxus} matrix units of {square}"
    return f"Device {part.device_kind}: {', '.join([held, *rates])}."


def _rates(part: Chip | Gpu) -> Sequence[str]:
    peaks = {kind: rate for kind, rate in part.peaks.items() if rate < UNKNOWN_RATE}
    found = [f"{kind} peak {rate / 1e12:.0f} TFLOP/s" for kind, rate in peaks.items()]
    if part.hbm < UNKNOWN_RATE:
        found.append(f"memory {part.hbm / 1e12:.2f} TB/s, of which a copy reaches {part.copy / 1e12:.2f}")
    return found


def _gate(gate: Gate) -> str:
    if isinstance(gate, BitExactGate):
        return f"{', '.join(gate.outputs)} bit for bit as {gate.reference}"
    if isinstance(gate, AgreementGate):
        return f"at least {gate.least:.2%} of {', '.join(gate.outputs)} with the bits of {gate.reference}"
    return f"at least {gate.min_db:g} dB against {gate.reference}, and no element far off"


def _imports(entry: str) -> str:
    roots = (*_EITHER, *(_PALLAS if entry == "build" else _TRITON))
    allowed = (name for name in sorted(MODULES) if name.partition(".")[0] in roots)
    return "A module may import: " + ", ".join(allowed) + "."
