"""The record of a program's step: where its device time goes, and every launch."""

import random
import re
import statistics
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.library.launch_replacement import Installation
from tilewright.workers.program.launches import Launch, LaunchRecorder
from tilewright.workers.program.scout import limited
from tilewright.workers.program.step import BadStep, Program, results, synchronise
from tilewright.workers.program.turns import Turns, burst_seconds, burst_steps

WARM_STEPS, TIMED_BURSTS = 3, 3

KINDS: Mapping[str, tuple[str, ...]] = {
    "product": ("nvjet", "gemm", "cutlass", "sm90_xmma", "cublas", "splitk"),
    "attention": ("flash", "fmha", "cudnn", "attention"),
    "copy": ("memcpy", "memset"),
    "torch": ("at::native", "at_cuda", "elementwise", "reduce_kernel", "catarray", "multi_tensor"),
}
"""Parts of names of kernels that are not Triton's."""

RANDOM, STREAMS, ALLOCATES = "draws random numbers", "uses several streams", "allocates differently each time"
DIFFERS = "launches other kernels, or on other shapes or integers, each time"
SILENT = "returns nothing that can be compared: no number, no tensor, no list of them"
UNLIKE = (RANDOM, ALLOCATES, DIFFERS, STREAMS, SILENT)
"""Faults of a step that nothing can be proved of."""

LEAST_SECONDS = 1.5e-6
"""Least that a kernel takes on a current GPU."""

ANNOTATIONS = ("gpu_user", "ProfilerStep", "## Call", "Optimizer.")
"""Beginnings of names of ranges that the profiler draws on the device's time."""

COPY_BYTES, COPIES, FP8_ROUNDS = 1 << 30, 7, 3


def host_bound(data: Mapping[str, Any]) -> bool:
    """Whether the host takes about as long to issue the recorded step as the device to run it."""
    return not data["graph"] and bool(data["host_seconds"] > 0.9 * data["busy_seconds"] > 0)


@dataclass
class Recorded:
    """The record as data, and what only this process can hold: the launches with values, and a started step."""

    data: dict[str, Any]
    launches: list[Launch]
    step: Callable[[], Any]
    codes: Mapping[Any, str]
    """Code of the functions that stood above launches of their own package."""
    turns: Turns


def device_facts() -> dict[str, Any]:
    """Product, versions, and the rate that a copy reaches here (bytes/s)."""
    import triton

    facts = {"torch": torch.__version__, "triton": triton.__version__, "product": "", "copy": 0.0}
    if not torch.cuda.is_available():
        return facts
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found = []
    for _ in range(COPIES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    copy = 2 * COPY_BYTES / statistics.median(found)
    return {**facts, "product": torch.cuda.get_device_name(), "copy": copy}


def record(program: Program, ahead: Mapping[str, Any], keep_values: bool = False) -> Recorded:
    """Run the step a few times. Raises BadStep for one that fails or launches nothing.

    ``ahead``: what was ``scouted``.
    """
    tuners = {name: value for name, value in ahead.items() if name not in ("linears", "failed")}
    with limited(ahead.get("failed", [])), LaunchRecorder(keep_values) as recorder:
        step = program.started()
        first = burst_seconds(step, 1)
        for _ in range(WARM_STEPS - 1):
            step()
    setting_up, recorder.events = recorder.events, []
    faults = list(_faults(step))
    count = burst_steps(burst_seconds(step, 2))
    walls = [burst_seconds(step, count) for _ in range(TIMED_BURSTS if torch.cuda.is_available() else 1)]
    kernels, several = _profiled(step, recorder, count)
    launches, events = recorder.launches, recorder.events
    graph = not events and any(event.captured for event in setting_up)
    if graph:
        events = [event for event in setting_up if event.captured]
    if not kernels and not events:
        raise BadStep(f"{program.name} launches nothing on a device")
    wall = statistics.median(walls)
    turns = Turns(program, step, graph, wall)
    device = device_facts()
    rows = _rows(kernels, events, launches, recorder.generated, device["copy"])
    for row in rows:
        if keep_values and row["launch"] is not None and launches[row["launch"]].values is None:
            row["left"] = row["left"] or "no values of it were kept: they are too many, or hold addresses"
    data = {
        "name": program.name, "device": device, "first_step_seconds": first, "tuning": tuners, "wall_seconds": wall,
        "host_seconds": _host_seconds(step),
        "graph": graph, "faults": faults, "busy_seconds": sum(k.seconds for k in kernels), "rows": rows,
        "fp8": fp8_layers(ahead.get("linears", []), graph, turns),
        "launches": [{
            "kernel": launch.kernel, "module": launch.module, "name": launch.name, "place": launch.place,
            "arguments": launch.text, "grid": list(launch.sizes), "chosen": launch.chosen, "bytes": launch.bytes,
        } for launch in launches],
    }  # fmt: skip
    if several and not graph:
        faults.append(STREAMS)
    if graph and ALLOCATES in faults:  # what the replay reads and writes stays where it is
        faults.remove(ALLOCATES)
    return Recorded(data, launches, step, recorder.codes, turns)


def fp8_layers(linears: Sequence[Sequence[Any]], graph: bool, turns: Turns) -> dict[str, Any]:
    """Linear layers that the library serves faster in FP8, as ``shapes``, and the ``gain`` of the step with them."""
    if not linears or not torch.cuda.is_available():
        return {"shapes": [], "gain": 1.0}
    from tilewright.library.layer_rows import BLOCK, is_faster, takes_rows
    from tilewright.library.torch_launch import device_key
    from tilewright.library.torch_linear_replacement import LinearLayers

    device, way = device_key(torch.device("cuda")), "graph" if graph else "eager"
    shapes = [
        (m, n, k) for m, n, k, trains in linears if takes_rows(m, trains) and not n % BLOCK and not k % BLOCK
        and is_faster("train" if trains else "infer", way, m, n, k, device)
    ]  # fmt: skip
    gain = turns.gain(Installation([], layers=LinearLayers(shapes)), FP8_ROUNDS).value if shapes else 1.0
    # where the host bounds the step, they may pay beside what launches less: the proof decides
    return {"shapes": shapes if gain else [], "gain": max(gain, 1.0)}


@dataclass(frozen=True)
class Kernel:
    """A kernel of the profile: when it began (ns), how long it took, and the device's number of its stream."""

    name: str
    begun: int
    seconds: float
    stream: int


def _profiled(step: Callable[[], Any], recorder: LaunchRecorder, count: int) -> tuple[list[Kernel], bool]:
    """Kernels of the last of ``count`` steps without a wait, in order: the clocks are those of steps in a row. Only
    its launches are recorded. And whether the steps use several streams."""
    if not torch.cuda.is_available():
        with recorder:
            step()
        return [], False
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        for _ in range(count - 1):
            step()
        with recorder:
            step()
        torch.cuda.synchronize()
    raw = trace.profiler.kineto_results.events()
    on_device = [e for e in raw if str(e.device_type()).endswith("CUDA") and e.duration_ns() > 0]
    kernels = [
        Kernel(e.name(), e.start_ns(), e.duration_ns() * 1e-9, e.device_resource_id())
        for e in on_device if not (e.is_user_annotation() or e.name().startswith(ANNOTATIONS))
    ]  # fmt: skip
    if len(kernels) % count:  # the steps differ, and nothing says where the last one begins
        recorder.events = []
        return _profiled(step, recorder, 1)
    return of_last_step(kernels, count)


def of_last_step(kernels: Sequence[Kernel], count: int) -> tuple[list[Kernel], bool]:
    """The kernels that began last, one of ``count`` parts, and whether any run on another stream: one that nothing
    waits for runs ahead, and is not among the last."""
    last = sorted(kernels, key=lambda kernel: kernel.begun)[-(len(kernels) // count) :]
    return last if kernels else [], len({kernel.stream for kernel in kernels}) > 1


def _host_seconds(step: Callable[[], Any]) -> float:
    """Seconds that the host takes to issue a step to an idle device."""
    found = []
    for _ in range(TIMED_BURSTS):
        synchronise()
        begun = time.perf_counter()
        step()
        found.append(time.perf_counter() - begun)
    synchronise()
    return statistics.median(found)


def _rows(
    kernels: list[Kernel], events: list[Any], launches: list[Launch], generated: Mapping[str, Any], copy: float
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each kernel and distinct launch. Launches join kernels by name and order. ``copy``: bytes/s.

    ``floor``: seconds that a copy of the bytes of the calls' tensors takes; their own where these are not known.
    """
    if not kernels:  # no device: launches alone, without times
        calls = Counter(event.number for event in events)
        return [
            _row("triton", of.kernel, of, None, calls[of.number], 0.0, 0.0) for of in launches if calls[of.number]
        ]  # fmt: skip
    by_name: dict[str, list[int | None]] = defaultdict(list)
    for event in events:
        by_name[event.kernel].append(event.number)
    counts = Counter(kernel.name for kernel in kernels)
    seen: Counter[str] = Counter()
    seconds: dict[tuple[str, str, int | None], list[float]] = defaultdict(list)
    for name, took in ((kernel.name, kernel.seconds) for kernel in kernels):
        numbers, number = by_name.get(name, []), None
        if name in generated:
            kind = "inductor"
        elif numbers:
            kind = "triton"
            if counts[name] % len(numbers) == 0:  # otherwise the order does not say which is which
                number = numbers[seen[name] % len(numbers)]
            elif len(set(numbers)) == 1:
                number = numbers[0]
        else:
            kinds = (kind for kind, parts in KINDS.items() if any(p in name.lower() for p in parts))
            kind, name = next(kinds, "other"), re.sub(r"<.*", "", name)[:80]
        seen[name] += 1
        seconds[(kind, name, number)].append(took)
    rows = [
        _row(kind, name, None if n is None else launches[n], generated.get(name), len(all_of), sum(all_of), copy)
        for (kind, name, n), all_of in seconds.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _row(
    kind: str, name: str, launch: Launch | None, code: Any, calls: int, seconds: float, copy: float
) -> dict[str, Any]:
    found, size = launch or code, 0 if launch is None and code is None else (launch or code).bytes
    floor = min(seconds, calls * max(LEAST_SECONDS, size / copy)) if size and copy else seconds
    left = ""
    if code is not None:
        left = "generated by Inductor: there is no name to replace it at"
    elif launch is None:
        left = (
            "its order does not say which launch is which, or an argument is of a kind that is not compared"
        )
    else:
        left = launch.left
    return {
        "kind": kind, "name": name, "calls": calls, "seconds": seconds, "bytes": size, "floor": floor, "left": left,
        "launch": None if launch is None else launch.number, "place": getattr(found, "place", ""),
        "arguments": getattr(found, "text", ""), "products": "dot(" in getattr(found, "source", ""),
        "configuration": str(getattr(found, "chosen", "")),
    }  # fmt: skip


def _random_states() -> list[Any]:
    """The states of what a step may draw from unseen."""
    tensors = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]
    numpy = repr(sys.modules["numpy"].random.get_state()) if "numpy" in sys.modules else ""
    return [random.getstate(), numpy, *(t.tolist() for t in tensors)]


def _faults(step: Callable[[], Any]) -> Iterator[str]:
    """What makes two steps differ, or waits: a proof needs a step without it."""
    cuda = torch.cuda.is_available()
    states, allocated, launched = [], [], []
    for _ in range(3):
        states.append(_random_states())
        before = torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0) if cuda else 0
        with LaunchRecorder() as recorder:
            result = step()
        launched.append(
            [recorder.launches[e.number].key if e.number is not None else e.kernel for e in recorder.events]
        )
        after = torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0) if cuda else 0
        allocated.append(after - before)
    if states[0] != states[-1]:
        yield RANDOM
    if not any(t.numel() for t in results(result)):
        yield SILENT
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
    waits = [w for w in caught if "called a synchroniz" in str(w.message)]  # the mode itself warns once, too
    if waits:
        yield f"waits for the device ({len(waits)} times a step)"
