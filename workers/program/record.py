"""The record of a program's step: where its device time goes, and every launch."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.library.launch_replacement import innermost
from tilewright.workers.program.compile_ahead import Tuners
from tilewright.workers.program.launches import Launch, LaunchRecorder
from tilewright.workers.program.linear_times import linear_seconds
from tilewright.workers.program.step import BadStep, Program, synchronise

WARM_STEPS, TIMED_BURSTS = 3, 3
BURST_SECONDS, LEAST_BURST, MOST_BURST = 0.4, 3, 60

KINDS: Mapping[str, tuple[str, ...]] = {
    "product": ("nvjet", "gemm", "cutlass", "sm90_xmma", "cublas", "splitk"),
    "attention": ("flash", "fmha", "cudnn", "attention"),
    "copy": ("memcpy", "memset"),
    "torch": ("at::native", "at_cuda", "elementwise", "reduce_kernel", "catarray", "multi_tensor"),
}
"""Parts of names of kernels that are not Triton's."""

RANDOM, STREAMS, ALLOCATES = "draws random numbers", "uses several streams", "allocates differently each time"
DIFFERS = "launches other kernels, or on other shapes, each time"

COPY_BYTES, PRODUCT_SIDE = 1 << 30, 8192


@dataclass
class Recorded:
    """The record as data, and what only this process can hold: the launches with values, and a started step."""

    data: dict[str, Any]
    launches: list[Launch]
    step: Callable[[], Any]
    codes: Mapping[Any, str]
    """Code of the functions that stood above launches of their own package."""


def device_facts() -> dict[str, Any]:
    """Product, capability, versions, and the rates that a copy (bytes/s) and a bf16 product (FLOP/s) reach here."""
    import triton

    facts: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
    if not torch.cuda.is_available():
        return {**facts, "product": "", "capability": 0, "copy": 0.0, "bf16": 0.0}
    major, minor = torch.cuda.get_device_capability()
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = _device_seconds(lambda: target.copy_(source))
    a, b = (torch.randn(PRODUCT_SIDE, PRODUCT_SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = _device_seconds(lambda: torch.mm(a, b))
    return {
        **facts, "product": torch.cuda.get_device_name(), "capability": 10 * major + minor,
        "copy": 2 * COPY_BYTES / copy, "bf16": 2.0 * PRODUCT_SIDE**3 / product,
    }  # fmt: skip


def _device_seconds(call: Callable[[], object], count: int = 7) -> float:
    found = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(found)


def burst_steps(seconds: float) -> int:
    """Steps of a burst, by the seconds of one."""
    if not torch.cuda.is_available():
        return 2
    return min(MOST_BURST, max(LEAST_BURST, round(BURST_SECONDS / max(seconds, 1e-6))))


def burst_seconds(step: Callable[[], Any], count: int) -> float:
    """Seconds of a step among ``count`` that follow each other as they do in a program, without a wait in between.

    Products in bf16 draw more power than a GPU may: a step after a pause says 0.96 of what it takes in a row (H100).
    """
    synchronise()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    synchronise()
    return (time.perf_counter() - begun) / count


def record(program: Program, keep_values: bool = False) -> Recorded:
    """Run the step a few times. Raises BadStep for one that fails or launches nothing."""
    tuners = Tuners()
    with tuners.first() if torch.cuda.is_available() else contextlib.nullcontext():
        setting_up, step, seconds = _set_up(program, keep_values, 1)
    tuning: dict[str, Any] = {}
    if tuners.tuned:  # again, with what the package's own tuners choose
        begun = time.perf_counter()
        tuners.compile()
        tuning = {**tuners.facts(), "seconds": time.perf_counter() - begun}
        del setting_up, step
        with tuners.limited():
            setting_up, step, seconds = _set_up(program, keep_values, WARM_STEPS)
    else:
        with setting_up:
            for _ in range(WARM_STEPS - 1):
                step()
    setup_seconds, first = seconds
    faults = _faults(step)
    count = burst_steps(burst_seconds(step, 2))
    walls = [burst_seconds(step, count) for _ in range(TIMED_BURSTS if torch.cuda.is_available() else 1)]
    with LaunchRecorder() as recorder:
        kernels, operators = _profiled(step)
    graph = not recorder.events and any(event.captured for event in setting_up.events)
    source = setting_up if graph else recorder
    launches = _with_values(setting_up, source)
    events = [e for e in source.events if e.captured == graph]
    if not kernels and not events:
        raise BadStep(f"{program.name} launches nothing on a device")
    generated = {**setting_up.generated, **recorder.generated}
    data = {
        "name": program.name, "device": device_facts(), "setup_seconds": setup_seconds, "first_step_seconds": first,
        "tuning": tuning,
        "wall_seconds": statistics.median(walls), "graph": graph, "faults": faults,
        "busy_seconds": sum(k.seconds for k in kernels), "rows": _rows(kernels, events, launches, generated),
        "operators": operators,
        "linears": [[*shape, count] for shape, count in source.linears.items()],
        "linear_seconds": [[*shape, bf16, fp8] for shape, bf16, fp8 in linear_seconds(source.linears)],
        "launches": [_said(launch) for launch in launches],
    }  # fmt: skip
    if len({k.stream for k in kernels}) > 1 and not graph:
        faults.append(STREAMS)
    if graph and ALLOCATES in faults:  # what the replay reads and writes stays where it is
        faults.remove(ALLOCATES)
    return Recorded(data, launches, step, setting_up.codes)


def _set_up(
    program: Program, keep_values: bool, steps: int
) -> tuple[LaunchRecorder, Callable[[], Any], tuple[float, float]]:
    """The recorder of a fresh start and ``steps`` steps, the step, and the seconds of setup and first step."""
    with LaunchRecorder(keep_values) as recorder:
        begun = time.perf_counter()
        step = program.started()
        synchronise()
        between = time.perf_counter()
        step()
        synchronise()
        first = time.perf_counter() - between
        for _ in range(steps - 1):
            step()
    return recorder, step, (between - begun, first)


@dataclass(frozen=True)
class Kernel:
    """A kernel of the profile; ``stream`` is the device's number of it."""

    name: str
    seconds: float
    stream: int


def _profiled(step: Callable[[], Any]) -> tuple[list[Kernel], list[dict[str, Any]]]:
    """Kernels of one step in order, and torch's operators with shapes and device time."""
    if not torch.cuda.is_available():
        step()
        return [], []
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], record_shapes=True) as trace:
        step()
        torch.cuda.synchronize()
    raw = trace.profiler.kineto_results.events()
    on_device = [e for e in raw if str(e.device_type()).endswith("CUDA") and e.duration_ns() > 0]
    on_device = [e for e in on_device if not e.name().startswith(("gpu_user", "ProfilerStep", "## Call"))]
    kernels = [
        Kernel(e.name(), e.duration_ns() * 1e-9, e.device_resource_id())
        for e in sorted(on_device, key=lambda e: e.start_ns())
    ]
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in trace.events():
        if event.kernels and event.name.startswith("aten::"):
            found[(event.name, str(event.input_shapes))].append(sum(k.duration for k in event.kernels) * 1e-6)
    operators = [
        {"name": name, "shapes": shapes, "calls": len(times), "seconds": sum(times)}
        for (name, shapes), times in found.items()
    ]
    return kernels, sorted(operators, key=lambda row: float(row["seconds"]), reverse=True)[:60]


def _with_values(first: LaunchRecorder, second: LaunchRecorder) -> list[Launch]:
    """The launches of ``second``, with the values that ``first`` kept of the same."""
    if first is second:
        return first.launches
    kept = {(id(launch.outer), launch.key): launch.values for launch in first.launches}
    for launch in second.launches:
        launch.values = kept.get((id(launch.outer), launch.key))
    return second.launches


def _rows(
    kernels: list[Kernel], events: list[Any], launches: list[Launch], generated: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A row for each kernel and distinct launch: calls, seconds, kind. Launches join kernels by name and order."""
    if not kernels:  # no device: launches alone, without times
        return [
            {"kind": "triton", "name": launch.kernel, "launch": n, "calls": launch.calls, "seconds": 0.0,
             "bytes": launch.bytes}
            for n, launch in enumerate(launches)
        ]  # fmt: skip
    by_name: dict[str, list[int | None]] = defaultdict(list)
    for event in events:
        by_name[event.kernel].append(event.number)
    counts = Counter(kernel.name for kernel in kernels)
    seen: Counter[str] = Counter()
    rows: dict[tuple[str, str, int | None], dict[str, Any]] = {}
    for kernel in kernels:
        numbers = by_name.get(kernel.name, [])
        number, size, kind = None, 0, _kind(kernel.name)
        if kernel.name in generated:
            kind, size = "inductor", generated[kernel.name].bytes
        elif numbers:
            kind = "triton"
            if counts[kernel.name] % len(numbers) == 0:  # otherwise the order does not say which is which
                number = numbers[seen[kernel.name] % len(numbers)]
            elif len(set(numbers)) == 1:
                number = numbers[0]
            size = launches[number].bytes if number is not None else 0
        seen[kernel.name] += 1
        short = re.sub(r"<.*", "", kernel.name)[:80] if kind not in ("triton", "inductor") else kernel.name
        row = rows.setdefault(
            (kind, short, number),
            {"kind": kind, "name": short, "launch": number, "calls": 0, "seconds": 0.0, "bytes": size},
        )
        row["calls"] += 1
        row["seconds"] += kernel.seconds
    for row in rows.values():
        if row["kind"] == "inductor":
            found = generated[row["name"]]
            row |= {"place": found.file, "arguments": found.arguments, "configuration": found.configuration}
    return sorted(rows.values(), key=lambda row: -float(row["seconds"]))


def _kind(name: str) -> str:
    lower = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(p in lower for p in parts)), "other")


def _said(launch: Launch) -> dict[str, Any]:
    return {
        "kernel": launch.kernel, "module": launch.module, "name": launch.name, "place": launch.place,
        "arguments": launch.text, "grid": list(launch.sizes), "chosen": launch.chosen, "bytes": launch.bytes,
        "autotuned": hasattr(launch.outer, "configs"), "values": launch.values is not None,
        "products": "tl.dot" in launch.source or "dot(" in launch.source,
        "hooked": launch.hooked, "parameters": list(innermost(launch.outer).arg_names),
    }  # fmt: skip


def _faults(step: Callable[[], Any]) -> list[str]:
    """What makes two steps differ, or waits: a proof needs a step without it."""
    return list(_found_faults(step))


def _found_faults(step: Callable[[], Any]) -> Iterator[str]:
    cuda = torch.cuda.is_available()
    states, allocated, launched = [], [], []
    for _ in range(3):
        states.append(torch.cuda.get_rng_state() if cuda else torch.get_rng_state())
        before = torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0) if cuda else 0
        with LaunchRecorder() as recorder:
            step()
        launched.append(
            [recorder.launches[e.number].key if e.number is not None else e.kernel for e in recorder.events]
        )
        after = torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0) if cuda else 0
        allocated.append(after - before)
    if not torch.equal(states[0], states[-1]):
        yield RANDOM
    if launched[1] != launched[2]:
        yield DIFFERS
    elif len(set(allocated[1:])) > 1:
        yield ALLOCATES
    if not cuda:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in caught if "synchroniz" in str(w.message)]
    if waits:
        yield f"waits for the device ({len(waits)} times a step)"
