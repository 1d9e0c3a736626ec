"""What libtpu's simulator says of a TPU kernel that no TPU ran: cycles, exact DMA bytes, events, and a diagnosis.

``fitness.tpu.time_model`` turns it into a time; ``docs/time_model.md`` says how that was checked and where it is off.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.fitness.chips import Chip
from tilewright.fitness.tpu.events import Events, read_events
from tilewright.fitness.tpu.llo import (
    ExecutedWork,
    OperationCycles,
    ParseError,
    opcodes_of,
    read_profile,
    scan_bundles,
    vmem_bytes,
)
from tilewright.fitness.tpu.time_model import CALIBRATIONS, ModelledTime, time_of
from tilewright.fitness.tpu.timeline import read_critical_path, read_diagnosis

LATENCY_LIMIT = 0.5
"""Part of the time that the core may wait, and the latencies of copies come to, before a time is flagged."""

SMALL_BLOCKS = "small blocks: the core waits most of the time, and a copy's latency decides for how long"


@dataclass(frozen=True)
class StaticRun:
    """Everything read from one workload's dumps."""

    operations: tuple[OperationCycles, ...]
    executed: ExecutedWork
    vmem: int
    schedule: dict[str, Any] | None
    """What ``fitness.tpu.timeline`` makes of the longest operation; None where its dumps do not say."""

    events: tuple[tuple[Events, int], ...] = ()
    """Copies and work of every operation, and how often it runs."""

    @property
    def cycles(self) -> int:
        """Cycles of all HLO operations of the module, one after the other."""
        return sum(op.cycles * op.count for op in self.operations)


def read_dumps(folder: Path, chip: Chip) -> StaticRun:
    """Read ``prof`` and ``llo`` under ``folder``. Raises ParseError when a part is missing or unreadable."""
    profiles = sorted((folder / "prof").glob("*_static_llo_profile.textproto"))
    bundles = sorted((folder / "prof").glob("*_bundles.txt"))
    if not profiles or not bundles:
        raise ParseError("the simulator wrote no profile")
    operations = tuple(read_profile(_text(path)) for path in profiles)
    by_name = {op.name: op for op in operations}
    executed, schedule, events = ExecutedWork(), None, []
    longest = max(operations, key=lambda op: op.cycles)
    for path in bundles:
        name = path.name.removesuffix("_bundles.txt")
        operation, critical = by_name.get(name), path.with_name(f"{name}_critical_path.txt")
        if operation is None or not operation.cycles or not critical.is_file():
            raise ParseError(f"no critical path of {name}")
        text = path.read_bytes()
        opcodes, waited = opcodes_of(text), read_critical_path(critical.read_bytes(), operation.cycles)
        try:
            run = scan_bundles(text, opcodes)
        except ParseError as error:
            raise ParseError(f"{error}, in {name}") from error
        for _ in range(operation.count):
            executed = executed + run
        events.append((read_events(text, waited, operation.cycles), operation.count))
        if name == longest.name:
            # a diagnosis that does not read is no reason to refuse a kernel
            with contextlib.suppress(ParseError):
                schedule = read_diagnosis(text, waited, longest.cycles, chip, opcodes=opcodes)
    vmem = vmem_bytes(_text(path) for path in (folder / "llo").glob("*original.txt"))
    return StaticRun(operations, executed, vmem, schedule, tuple(events))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def mxu_flops(executed: ExecutedWork, chip: Chip) -> int:
    """FLOP the matrix units were passed: rows x size^2 multiply-adds a vmatmul, full or not."""
    square = chip.mxu_size**2
    return sum(2 * chip.mxu_rows[kind] * square * number for kind, number in executed.matmuls().items())


def modelled_time(run: StaticRun, chip: Chip) -> ModelledTime:
    """The time of one call on one TensorCore."""
    lower = lower_bounds(run.executed, chip)
    return time_of(run.events, chip.name, max(lower, key=lambda unit: lower[unit]))


def diagnosis(run: StaticRun, chip: Chip, time: ModelledTime) -> dict[str, Any]:
    """What explains the ``time``. Busy figures are fractions of the cycles at a unit's full issue rate.

    ``cycles``; ``mxu_busy``, ``valu_busy``, ``load_busy``, ``store_busy``, ``xlu_busy``; ``spill_stores`` and
    ``spill_loads`` (executed vector instructions); ``vmem_bytes``; ``dma_bytes``; ``core_seconds``
    (the core at work), ``hbm_seconds`` (the copies alone) and ``waited_seconds`` (the core waiting for copies);
    ``seconds_low``, ``seconds_high`` (the interval) and ``error_class`` (see ``tpu.time_model``); ``bound``: the
    unit with the largest lower bound, or ``hbm``; ``unexplained``: the part of the cycles that the busiest unit does
    not account for (waiting);
    ``dma_latency``: the latencies of all copies over the time, more than 1 where they run side by side;
    ``caution``: what makes the time itself doubtful, if anything does; and ``overlap`` and ``critical_path`` (see
    ``fitness.tpu.timeline``).
    """
    cycles = max(1, run.cycles)
    lower = lower_bounds(run.executed, chip)
    busiest = max(lower, key=lambda unit: lower[unit])
    result: dict[str, Any] = {
        "cycles": run.cycles,
        "mxu_busy": round(lower["mxu"] / cycles, 4),
        "valu_busy": round(lower["valu"] / cycles, 4),
        "load_busy": round(lower["vload"] / cycles, 4),
        "store_busy": round(lower["vstore"] / cycles, 4),
        "xlu_busy": round(lower["xlu"] / cycles, 4),
        "spill_stores": run.executed.spills,
        "spill_loads": run.executed.fills,
        "vmem_bytes": run.vmem,
        "dma_bytes": run.executed.hbm_bytes,
        "core_seconds": time.core,
        "hbm_seconds": time.memory,
        "waited_seconds": time.waited,
        "seconds_low": time.low,
        "seconds_high": time.high,
        "error_class": time.kind,
        "bound": "hbm" if time.kind == "memory" else busiest,
        "unexplained": round(1 - min(1.0, lower[busiest] / cycles), 4),
    }
    latency = CALIBRATIONS[chip.name].rules.latency * run.executed.hbm_dmas / time.seconds
    result["dma_latency"] = round(latency, 4)
    if min(latency, time.waited / time.seconds) > LATENCY_LIMIT:
        result["caution"] = SMALL_BLOCKS
    return result | (run.schedule or {})


def lower_bounds(executed: ExecutedWork, chip: Chip) -> dict[str, float]:
    """Cycles each unit needs for what it was issued, if nothing else held it up."""
    units = executed.units()
    mxu = sum(chip.mxu_cycles.get(kind, chip.mxu_cycles["bf16"]) * n for kind, n in executed.matmuls().items())
    bounds = {name: units[name] / slots for name, slots in chip.slots.items()}
    return {"mxu": mxu / chip.mxus, **bounds}


def implausible(
    run: StaticRun, chip: Chip, *, flops: int, products: int, compulsory_bytes: int, time: float
) -> str | None:
    """Why these figures cannot be those of the operator, in one line; None when they can.

    A kernel must pass the matrix units at least the FLOP of the operator's matrix ``products`` (a unit half
    filled counts as full here; ``fitness.tpu.structure`` counts exactly), move at least 95 % of the bytes that
    must be moved, and not take less time than the chip's peak and bandwidth allow.
    """
    done = mxu_flops(run.executed, chip)
    if done < products:
        return f"the matrix units do {done / products:.3f} of the operator's FLOP (modelled, {chip.name})"
    moved = run.executed.hbm_bytes
    if moved < 0.95 * compulsory_bytes:
        return f"{moved} bytes move where the operator needs {compulsory_bytes} (modelled, {chip.name})"
    bound = max(flops / max(chip.peaks.values()), compulsory_bytes / chip.hbm)
    if not time >= bound:
        return f"{time * 1e6:.2f} us is below the roofline's {bound * 1e6:.2f} us (modelled, {chip.name})"
    return None
