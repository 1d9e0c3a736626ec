"""What a large blockwise FP8 product's time is made of on one H200: cycles, clock, bytes, and schedules changing each.

    python -m experiments.studies.h200.fp8_loop --out OUT --what time clocks --data normal zeros

Beside ``gluon_ws``: ``cluster`` (two programs share B by multicast), ``turns`` (warpgroups multiply in turn) and
``teams`` (three warpgroups), kept in ``loop_kernels`` and no seeds, as none is clearly faster; the vendor, DeepGEMM if
it can be imported, the per-tensor product. ``time``: rounds of reversed order, L2 flushed, a pause after each burst.
``clocks``: SM cycles and nanoseconds between two one-warp kernels around a call, on each multiprocessor. Clusters want
Triton 3.8 or later; 3.9 renames two functions, which is done to the sources here. Everything printed is measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

from experiments.studies.h200 import fp8_contenders as contenders
from experiments.studies.h200.fp8_sizes import operands, peers, snr
from experiments.studies.h200.fp8_step import MIN_SNR_DB, Bench
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from tilewright.seeds.gemm_fp8_blockwise.shapes import core

KERNELS = Path(__file__).with_name("loop_kernels")

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

RENAMED = {
    "tma.async_copy_global_to_shared": "tma.async_load",
    "tma.async_copy_shared_to_global": "tma.async_store",
}
"""Functions that Triton 3.9 has under other names."""

POINTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "two warpgroups": ("gluon_ws", {"group_m": 12}),
    "two, pairs share B": ("cluster", {"group_m": 8}),
    "two, pairs share B, group 16": ("cluster", {"group_m": 16}),
    "two, in turn": ("turns", {"group_m": 12, "turns": "taken"}),
    "three warpgroups": ("teams", {"group_m": 4}),
    "three, group 8": ("teams", {"group_m": 8}),
    "three, pairs share B": ("teams", {"group_m": 4, "cluster": 2}),
}

Call = Callable[[], torch.Tensor]


@triton.jit
def _clock(out):  # type: ignore[no-untyped-def]
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(out + sm * 2, cycles)
    tl.store(out + sm * 2 + 1, now)


def source(kernel: str) -> str:
    """A kernel's text as the running Triton wants it."""
    place = KERNELS / f"{kernel}.py"
    text = (place if place.exists() else contenders.KERNELS / f"{kernel}.py").read_text(encoding="utf-8")
    if VERSION >= (3, 9):
        for old, new in RENAMED.items():
            text = text.replace(old, new)
    return text


def launched(module: ModuleType, x: contenders.Operands, point: Mapping[str, Any]) -> torch.Tensor:
    """A kernel's product."""
    (product,) = module.launch(x, point)
    return product


def ours(x: contenders.Operands) -> dict[str, Call]:
    """Our schedules on these operands; what the running Triton lacks is left out."""
    found: dict[str, Call] = {}
    for name, (kernel, change) in POINTS.items():
        if VERSION < (3, 8) and (kernel == "cluster" or change.get("cluster", 1) > 1):
            continue
        module = contenders.loaded(source(kernel))
        point = {**module.DEFAULTS, **change}
        found[name] = functools.partial(launched, module, x, point)
    return found


def calls(x: contenders.Operands, checked: bool) -> dict[str, Call]:
    """All that takes turns; with ``checked`` outputs are held to 45 dB on poisoned memory."""
    found = {**ours(x), **peers(x)}
    if checked:
        found = {name: call for name, call in found.items() if snr(x, call) >= MIN_SNR_DB}
    found["per-tensor fp8"] = lambda: contenders.per_tensor_product(x)
    return found


def filled(shape: tuple[int, int, int], data: str) -> contenders.Operands:
    """Operands of normal data, or of zeros, which toggle nothing."""
    x = operands(*shape)
    if data == "zeros":
        x["a_q"].view(torch.uint8).zero_()
        x["b_q"].view(torch.uint8).zero_()
    return x


def timed(shape: tuple[int, int, int], data: str, bench: Bench) -> dict[str, Any]:
    """Microseconds of every contender on a shape."""
    found = calls(filled(shape, data), data == "normal")
    us = {name: entry["seconds"] * 1e6 for name, entry in bench.compare(found).items()}
    fast = us.get("DeepGEMM", us["vendor blockwise"])
    say(f"{shape} {data}: " + ", ".join(f"{name} {t:.1f} us ({fast / t:.3f})" for name, t in us.items()))
    return {"shape": shape, "data": data, "us": us}


def clocked(
    shape: tuple[int, int, int], data: str, flush: torch.Tensor, repeats: int
) -> list[dict[str, Any]]:
    """SM cycles, microseconds and MHz of one call of every contender: medians over multiprocessors, then over calls."""
    found = []
    for name, call in calls(filled(shape, data), False).items():
        call()
        taken = []
        for _ in range(repeats):
            before, after = (torch.zeros((132, 2), dtype=torch.int64) for _ in range(2))
            flush.zero_()
            torch.cuda._sleep(1_000_000)
            _clock[(132,)](before, num_warps=1)
            call()
            _clock[(132,)](after, num_warps=1)
            taken.append((before, after))
        torch.cuda.synchronize()
        time.sleep(0.01)
        read = []
        for before, after in taken[1:]:
            known = (before[:, 0] > 0) & (after[:, 0] > 0)
            spent = (after - before)[known].double()
            read.append((float(spent[:, 0].median()), float(spent[:, 1].median()) * 1e-3))
        cycles, us = sorted(read)[len(read) // 2]
        found.append(
            {"shape": shape, "data": data, "name": name, "cycles": cycles, "us": us, "mhz": cycles / us}
        )
        say(f"{shape} {data} {name}: {cycles:.0f} cycles, {us:.1f} us, {cycles / us:.0f} MHz")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", choices=["time", "clocks"], required=True)
    parser.add_argument("--data", nargs="+", choices=["normal", "zeros"], default=["normal"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument(
        "--shapes", type=int, nargs="*", help="which of the twelve, by their places; else all"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_device("cuda")
    flush = torch.empty(64 << 20, dtype=torch.int32)
    bench = Bench(args.rounds, args.calls, flush)
    shapes = [(w.dims["M"], w.dims["N"], w.dims["K"]) for w in core()]
    shapes = [shapes[i] for i in args.shapes] if args.shapes else shapes
    told = stamp(" ".join(["python -m experiments.studies.h200.fp8_loop", *sys.argv[1:]]))
    for what in args.what:
        entries: list[dict[str, Any]] = []
        for shape in shapes:
            for data in args.data:
                if what == "time":
                    entries.append(timed(shape, data, bench))
                else:
                    entries += clocked(shape, data, flush, 6)
                torch.cuda.empty_cache()
                whole = {"what": what, **told, "rounds": args.rounds, "calls": args.calls, "entries": entries}
                name = f"fp8_loop_{what}_{'.'.join(map(str, VERSION))}.json"
                (args.out / name).write_text(json.dumps(whole, indent=1))
        if what == "time":
            summary(entries)


def summary(entries: list[dict[str, Any]]) -> None:
    """Geometric means over shapes of normal data, against DeepGEMM (the vendor without it)."""
    normal = [e["us"] for e in entries if e["data"] == "normal"]
    against = "DeepGEMM" if all("DeepGEMM" in us for us in normal) else "vendor blockwise"
    names = [name for name in normal[0] if all(name in us for us in normal)]
    for name in names:
        ratios = [us[against] / us[name] for us in normal]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        say(f"{name}: {mean:.3f} x {against}, worst {min(ratios):.3f}, best {max(ratios):.3f}")
    best = [us[against] / min(us[n] for n in names if n in POINTS) for us in normal]
    mean = math.exp(sum(map(math.log, best)) / len(best))
    say(f"best of ours by shape: {mean:.3f} x {against}, worst {min(best):.3f}")


if __name__ == "__main__":
    main()
