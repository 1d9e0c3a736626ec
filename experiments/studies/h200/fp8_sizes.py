"""Blockwise FP8 products of every size on one H200, side by side: few rows, ragged columns, training shapes.

    python -m experiments.studies.h200.fp8_sizes --out results --what gates rows large

Ours is the best of a list of points per shape, found in a short comparison of its own; then it takes turns with the
vendor, DeepGEMM (if importable), the promoted genome and the per-tensor product as ``fp8_step`` has it: L2 flushed,
host work hidden, rounds of reversed order, a pause after each burst. Outputs are held to the exact gate on poisoned
memory first. Times with "graph" are replays of a CUDA graph that holds the one call. Everything printed is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from experiments.studies.h200 import fp8_contenders as contenders
from experiments.studies.h200.fp8_sizes_points import (
    GATED,
    OPERATOR,
    PROMOTED,
    RAGGED,
    Chosen,
    ahead,
    candidates,
    kernels_for,
    points_default,
    points_of,
    varied,
)
from experiments.studies.h200.fp8_step import MIN_SNR_DB, Bench
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.gemm_fp8_blockwise.shapes import SERVING_WEIGHTS, core, primus84, serving
from tilewright.seeds.operator import Workload


def operands(m: int, n: int, k: int) -> contenders.Operands:
    """Fresh operands of any M and N, quantised as the contract says."""
    a, b = torch.randn(m, k), torch.randn(-(-n // 128) * 128, k)
    b[n:] = 0
    a_blocks = a.view(m, k // 128, 128)
    b_blocks = b.view(-1, 128, k // 128, 128)
    a_scale = 448.0 / a_blocks.abs().amax(2, keepdim=True).clamp_min(1e-4)
    b_scale = 448.0 / b_blocks.abs().amax((1, 3), keepdim=True).clamp_min(1e-4)
    kind = torch.float8_e4m3fn
    return {
        "a_q": (a_blocks * a_scale).clamp(-448, 448).to(kind).view(m, k),
        "a_s": (1 / a_scale).view(m, k // 128).T.contiguous(),
        "b_q": (b_blocks * b_scale).clamp(-448, 448).to(kind).view(-1, k)[:n].contiguous(),
        "b_s": (1 / b_scale).view(-1, k // 128).contiguous(),
    }


def peers(x: contenders.Operands) -> dict[str, Callable[[], torch.Tensor]]:
    """What else computes this product. Vendor libraries want rows of scales that begin at 16 bytes: M is padded."""
    m = x["a_q"].shape[0]
    short = -m % 4
    padded = {**x, "a_q": F.pad(x["a_q"].view(torch.uint8), (0, 0, 0, short)).view(torch.float8_e4m3fn)}
    padded["a_s"] = F.pad(x["a_s"], (0, short)).contiguous()
    found: dict[str, Callable[[], torch.Tensor]] = {
        "vendor blockwise": lambda: contenders.scaled_product(padded)[:m]
    }
    try:
        import deep_gemm
    except ImportError:
        return found
    scales = deep_gemm.get_mn_major_tma_aligned_tensor(x["a_s"].T.contiguous())

    def deepgemm() -> torch.Tensor:
        out = torch.empty((m, x["b_q"].shape[0]), dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt((x["a_q"], scales), (x["b_q"], x["b_s"]), out)
        return out

    found["DeepGEMM"] = deepgemm
    return found


def snr(x: contenders.Operands, call: Callable[[], torch.Tensor]) -> float:
    """dB of one call on poisoned memory; -inf when it raises."""
    poison = torch.full((x["a_q"].shape[0], x["b_q"].shape[0]), float("nan"), dtype=torch.bfloat16)
    del poison
    try:
        return contenders.sampled_snr(x, call(), 1)
    except Exception as error:  # noqa: BLE001 - a peer or a point that fails is reported, and left out
        say(f"  failed: {str(error).splitlines()[0][:160]}")
        return -math.inf


def graphed(call: Callable[[], Any]) -> Callable[[], None]:
    """A replay of the call as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def side_by_side(
    shape: tuple[int, int, int], chosen: Sequence[Chosen], bench: Bench, graphs: bool
) -> dict[str, Any]:
    """One shape: the best three of ``chosen`` against the peers, microseconds each."""
    m, n, k = shape
    x = operands(m, n, k)
    mine: dict[str, Callable[[], torch.Tensor]] = {}
    for kernel, point in chosen:
        run = contenders.kernel(kernel, point)
        mine[f"{kernel} {json.dumps(point)}"] = lambda run=run: run(x)[0]
    read = {name: snr(x, call) for name, call in mine.items()}
    good = {name: call for name, call in mine.items() if read[name] >= MIN_SNR_DB}
    if not good:
        raise RuntimeError(f"{shape}: none of {len(mine)} points passes the exact gate")
    tried = (
        Bench(2, 3, bench.flush, bench.clean).compare(good)
        if len(good) > 1
        else {name: {"fastest": 0.0} for name in good}
    )
    best = sorted(good, key=lambda name: tried[name].get("seconds", 0.0))[:3]
    calls: dict[str, Callable[[], Any]] = {name: good[name] for name in best}
    others = peers(x)
    if n % 128 == 0 and m % 4 == 0:
        promoted = contenders.kernel("gluon_ws", PROMOTED)
        others["promoted"] = lambda: promoted(x)[0]
    read |= {name: snr(x, call) for name, call in others.items()}
    calls |= {name: call for name, call in others.items() if read[name] >= MIN_SNR_DB}
    calls["per-tensor fp8"] = lambda: contenders.per_tensor_product(x)
    if read[best[0]] and graphs:
        for name in (best[0], *others):
            if name in calls:
                calls[f"graph: {name}"] = graphed(calls[name])
    nothing = torch.empty(1)
    calls["nothing"] = lambda: nothing.zero_()
    found = bench.compare(calls)
    us = {name: entry["seconds"] * 1e6 for name, entry in found.items()}
    top = min(best, key=lambda name: us[name])
    entry = {
        "m": m,
        "n": n,
        "k": k,
        "us": us,
        "fastest_us": {name: e["fastest"] * 1e6 for name, e in found.items()},
        "host_us": {name: e["host_seconds"] * 1e6 for name, e in found.items()},
        "snr_db": {name: read[name] for name in us if name in read},
        "screened_us": {name: e["seconds"] * 1e6 for name, e in tried.items() if "seconds" in e},
        "best": top,
        "bytes": n * k + m * k + 2 * m * n,
    }
    ratios = {name: us[name] / us[top] for name in ("vendor blockwise", "DeepGEMM", "promoted") if name in us}
    shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    say(
        f"{m}x{n}x{k}: {us[top]:.1f} us = {2e-6 * m * n * k / us[top]:.0f} TFLOP/s {top}; x faster than {shown}"
    )
    return entry


def gates(shapes: Sequence[tuple[int, int, int]], every: int, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """SNR in dB over a whole product, and whether 20 more calls have the same bits, for every ``every``-th point."""
    operator = load_operator(OPERATOR)
    found = []
    for shape in shapes:
        workload = Workload("gate", dict(zip("MNK", shape, strict=True)))
        chosen = candidates(shape, kernels)
        for kind in operator.input_kinds:
            arrays = operator.make_inputs(workload, 3, kind)
            reference = operator.oracle(workload, arrays)["exact"]
            exact = torch.from_numpy(reference["c"]).cuda()
            x = {name: to_device(array) for name, array in arrays.items()}
            for kernel, point in chosen[::every]:
                run = contenders.kernel(kernel, point)
                poison = torch.full(tuple(exact.shape), float("nan"), dtype=torch.bfloat16)
                del poison
                try:
                    out = run(x)[0]
                    same = all(
                        torch.equal(run(x)[0].view(torch.int16), out.view(torch.int16)) for _ in range(20)
                    )
                    noise = (out.double() - exact).square().sum()
                    db = float(
                        10 * torch.log10(exact.square().sum().clamp_min(1e-300) / noise.clamp_min(1e-306))
                    )
                except Exception as error:  # noqa: BLE001 - reported as the point's reading
                    same, db = False, -math.inf
                    say(f"  {shape} {kernel} {point}: {str(error).splitlines()[0][:160]}")
                found.append(
                    {"shape": shape, "kind": kind, "kernel": kernel, "point": point, "db": db, "same": same}
                )
    gates_told(found)
    return found


def gates_told(readings: Sequence[Mapping[str, Any]]) -> None:
    """How many, how many are bad, which."""
    bad = [e for e in readings if not e["db"] >= MIN_SNR_DB or not e["same"]]
    lowest = min((e["db"] for e in readings), default=math.nan)
    say(f"gates: {len(readings)} readings, {len(bad)} bad, lowest {lowest:.1f} dB")
    for entry in bad[:12]:
        say(f"  bad: {entry}")


def to_device(array: np.ndarray) -> torch.Tensor:
    """An operand on the GPU."""
    if array.dtype == np.float32:
        return torch.from_numpy(array).cuda()
    return (
        torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).copy()).cuda().view(torch.float8_e4m3fn)
    )


def summary(entries: Sequence[Mapping[str, Any]], against: str) -> str:
    """Geometric mean and worst of ours over a peer, by M."""
    lines = []
    for rows in sorted({e["m"] for e in entries}):
        ratios = [
            e["us"][against] / e["us"][e["best"]] for e in entries if e["m"] == rows and against in e["us"]
        ]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"M={rows}: {mean:.3f} (worst {min(ratios):.3f}, {len(ratios)} shapes)")
    return f"x faster than {against}: " + "; ".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--what", nargs="+", choices=["gates", "rows", "large", "tall", "all84"], required=True
    )
    parser.add_argument(
        "--points",
        type=Path,
        nargs="+",
        default=[],
        help="JSON of earlier runs: only their best points are tried again",
    )
    parser.add_argument("--more", action="store_true", help="the usual points beside the best of that run")
    parser.add_argument("--compile", nargs="*", default=[], help="compiled ahead, not run")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--every", type=int, default=3, help="which of the points the gates look at")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--kernels", nargs="*", choices=GATED, help="only these seed kernels")
    parser.add_argument("--columns", type=int, nargs="*", help="only shapes of these N")
    parser.add_argument(
        "--clean", action="store_true", help="before a call the L2 holds lines that were only read"
    )
    parser.add_argument(
        "--ahead", action="store_true", help="compile what the run needs, and end: no GPU is used"
    )
    parser.add_argument("--graphs", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    def dims(workloads: Sequence[Workload]) -> list[tuple[int, int, int]]:
        return list(dict.fromkeys((w.dims["M"], w.dims["N"], w.dims["K"]) for w in workloads))

    lists = {
        "gates": list(RAGGED),
        "rows": sorted(dims(serving())),
        "large": dims(core()),
        "tall": [(4096, n, k) for n, k in SERVING_WEIGHTS],
        "all84": dims(primus84()),
    }
    if args.columns:
        lists = {what: [s for s in shapes if s[1] in args.columns] for what, shapes in lists.items()}
    known = {shape: chosen for path in args.points for shape, chosen in points_of(path).items()}

    def tried(shape: tuple[int, int, int]) -> list[Chosen]:
        found = varied(known.get(shape, ()))
        if not found or args.more:
            found += candidates(shape, args.kernels or kernels_for(shape[0]))
        return [chosen for at, chosen in enumerate(found) if chosen not in found[:at]]

    begun = time.monotonic()
    todo: list[tuple[tuple[int, int, int], Sequence[Chosen]]] = []
    for what in (*args.what, *args.compile):
        for shape in lists[what]:
            if what == "gates":
                chosen = candidates(shape, args.kernels or GATED)[:: args.every]
            else:
                chosen = [*tried(shape), ("gluon_ws", {**points_default("gluon_ws"), **PROMOTED})]
            todo.append((shape, chosen))
    compiled = ahead(todo, args.processes) if args.processes else {}
    say(f"compiled ahead: {compiled}")
    if args.ahead:
        return
    torch.set_default_device("cuda")
    bench = Bench(args.rounds, args.calls, torch.empty(64 << 20, dtype=torch.int32), args.clean)
    for what in args.what:
        if what == "gates":
            entries: list[dict[str, Any]] = gates(lists[what], args.every, args.kernels or GATED)
        else:
            entries = []
            for shape in lists[what]:
                try:
                    entries.append(side_by_side(shape, tried(shape), bench, args.graphs and shape[0] <= 256))
                except RuntimeError as error:
                    say(f"  left out: {error}")
                torch.cuda.empty_cache()
                write(args, what, entries, compiled)
            for peer in ("vendor blockwise", "DeepGEMM", "promoted"):
                say(f"{what}: " + summary(entries, peer))
        write(args, what, entries, compiled)
        say(f"{what} done after {time.monotonic() - begun:.0f} s")


def write(args: argparse.Namespace, what: str, entries: Sequence[Mapping[str, Any]], compiled: Any) -> None:
    """``fp8_sizes_<what>.json``."""
    told = {
        "what": what,
        **stamp(" ".join(["python -m experiments.studies.h200.fp8_sizes", *sys.argv[1:]])),
        "l2": "read" if args.clean else "written",
        "rounds": args.rounds,
        "calls": args.calls,
        "compiled": compiled,
    }
    (args.out / f"fp8_sizes_{what}.json").write_text(json.dumps({**told, "entries": entries}, indent=1))


if __name__ == "__main__":
    main()
