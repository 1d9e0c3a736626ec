"""Grouped blockwise FP8 products on one H200: this project's, DeepGEMM's, torch's in bf16 and with a scale a row.

    python -m experiments.studies.h200.fp8_grouped --out results --what gates grouped masked kgrouped step

``kgrouped`` is the weight gradient of every expert, ``step`` all three products with every quantisation against torch's
three in bf16. Groups' rows are drawn once a layer: about the expected ones (times 0.7 .. 1.3), or skewed. In all but
``masked`` they are multiples of 128, as DeepGEMM's contiguous layout wants them. Timing is ``fp8_sizes``'s: the best of
some points, then all in turns, L2 flushed, outputs held to the exact gate first. All printed is measured.
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

from experiments.studies.h200 import fp8_contenders as contenders
from experiments.studies.h200.fp8_grouped_points import (
    GROUPED,
    LAYERS,
    MASKED,
    STEPS,
    ahead,
    counts,
    deep_points,
    gate_points,
    points,
    room,
)
from experiments.studies.h200.fp8_sizes import gates_told, graphed, to_device
from experiments.studies.h200.fp8_step import MIN_SNR_DB, Bench
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from testkit.compile_ahead import Point
from tilewright.seeds.gemm_fp8_blockwise.operator import operators

Layer = tuple[int, int, int, int, bool]
"""Groups, room, N, K, masked."""


def operands(layer: Layer, count: torch.Tensor) -> contenders.Operands:
    """Fresh operands on the device, quantised as the contract says, and in bf16."""
    g, m, n, k, masked = layer
    rows = g * m if masked else m
    a, b = torch.randn(rows, k, dtype=torch.bfloat16), torch.randn(g * n, k, dtype=torch.bfloat16)
    a_q, a_s = contenders.kernel("quant_rows")({"x": a})
    padded = a_s.view(k // 128, g, m).permute(1, 0, 2).contiguous() if masked else a_s
    b_q, b_s = contenders.kernel("quant_blocks")({"x": b})
    return {
        "a_q": a_q.view(g, m, k) if masked else a_q,
        "a_s": padded,
        "b_q": b_q.view(g, n, k),
        "b_s": b_s.view(g, -(-n // 128), k // 128),
        "count": count.cuda(),
        "a": a.view(g, m, k) if masked else a,
        "b": b.view(g, n, k),
    }


def snr(x: contenders.Operands, call: Callable[[], torch.Tensor], count: torch.Tensor, bf16: bool) -> float:
    """dB of one call on poisoned memory over rows that count, at 64 rows of every eighth group; -inf if it raises."""
    masked = x["a_q"].dim() == 3
    n = x["b_q"].shape[1]
    poison = torch.full((*x["a_q"].shape[:-1], n), float("nan"), dtype=torch.bfloat16)
    del poison
    try:
        out = call()
    except Exception as error:  # noqa: BLE001 - a peer or a point that fails is reported, and left out
        say(f"  failed: {str(error).splitlines()[0][:160]}")
        return -math.inf
    signal = noise = torch.zeros((), dtype=torch.float64)
    begin = 0
    for g, rows in enumerate(count.tolist()):
        if rows and (g % 8 == 0 or len(count) < 9):
            pick = torch.unique(
                torch.cat([torch.arange(min(rows, 32)), torch.arange(max(rows - 32, 0), rows)])
            )
            at = pick + (0 if masked else begin)
            if bf16:
                a, b = (x["a"][g] if masked else x["a"])[at].double(), x["b"][g].double()
            else:
                a_q, a_s = (x["a_q"][g], x["a_s"][g]) if masked else (x["a_q"], x["a_s"])
                a = a_q.view(torch.float8_e4m3fn)[at].double()
                a *= a_s[:, at].T.double().repeat_interleave(128, 1)
                scale = x["b_s"][g].double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
                b = x["b_q"][g].double() * scale
            exact = a @ b.T
            got = (out[g] if out.dim() == 3 else out)[at].double()
            signal, noise = signal + exact.square().sum(), noise + (exact - got).square().sum()
        begin += rows
    return float(10 * torch.log10(signal / noise))


def peers(
    x: contenders.Operands, count: torch.Tensor, expected: int
) -> dict[str, Callable[[], torch.Tensor]]:
    """What else multiplies in groups: torch in bf16 over packed rows, and with rooms over all of them; DeepGEMM."""
    masked = x["a_q"].dim() == 3
    n = x["b_q"].shape[1]
    found: dict[str, Callable[[], torch.Tensor]] = {}
    weights = x["b"].transpose(1, 2)
    if masked:
        kept = torch.cat([x["a"][g, :rows] for g, rows in enumerate(count.tolist())])
        found["torch bf16, packed"] = packed(kept, weights, count)
        found["torch bf16, rooms"] = lambda: torch.bmm(x["a"], weights)
    else:
        found["torch bf16"] = packed(x["a"], weights, count)
    try:
        import deep_gemm
    except ImportError:
        return found
    scales = x["a_s"].transpose(-2, -1)
    given = (x["a_q"], scales), (x["b_q"], x["b_s"])
    if masked:

        def deepgemm() -> torch.Tensor:
            out = torch.empty((*x["a_q"].shape[:2], n), dtype=torch.bfloat16)
            deep_gemm.m_grouped_fp8_gemm_nt_masked(*given, out, x["count"], int(expected * 1.2))
            return out
    else:
        owner = torch.repeat_interleave(torch.arange(len(count)), count.cuda().long()).to(torch.int32)

        def deepgemm() -> torch.Tensor:
            out = torch.empty((x["a_q"].shape[0], n), dtype=torch.bfloat16)
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(*given, out, owner)
            return out

    found["DeepGEMM"] = deepgemm
    return found


def packed(a: torch.Tensor, b: torch.Tensor, count: torch.Tensor) -> Callable[[], torch.Tensor]:
    """torch's grouped product of rows that follow one another."""
    ends = count.cumsum(0).to(torch.int32).cuda()
    return lambda: torch._grouped_mm(a, b, offs=ends, out_dtype=torch.bfloat16)


def side_by_side(what: str, sizes: tuple[int, int, str], name: str, bench: Bench) -> dict[str, Any]:
    """One layer: the best point against the peers, microseconds each."""
    groups, expected, how = sizes
    masked = what == "masked"
    n, k = LAYERS[name]
    count = counts(groups, expected, how, 1 if masked else 128, 7)
    layer = (groups, room(count, masked), n, k, masked)
    x = operands(layer, count)
    flops = 2 * int(count.sum()) * n * k
    mine = {}
    for point in points(masked, expected):
        run = contenders.kernel("grouped", point)
        mine[f"grouped {json.dumps(point)}"] = lambda run=run: run(x)[0]
    read = {label: snr(x, call, count, False) for label, call in mine.items()}
    good = {label: call for label, call in mine.items() if read[label] >= MIN_SNR_DB}
    tried = Bench(2, 3, bench.flush).compare(good)
    best = sorted(good, key=lambda label: tried[label]["seconds"])[:2]
    calls = {label: good[label] for label in best}
    for label, call in peers(x, count, expected).items():
        # packed rows of a mask are no [G, M, N]: torch's own product is taken at its word
        read[label] = math.nan if "packed" in label else snr(x, call, count, "bf16" in label)
        if not read[label] < MIN_SNR_DB:
            calls[label] = call
    found = bench.compare(calls)
    us = {label: entry["seconds"] * 1e6 for label, entry in found.items()}
    top = min(best, key=lambda label: us[label])
    ratios = {label: us[label] / us[top] for label in us if label not in best}
    shown = ", ".join(f"{label} {ratio:.3f}" for label, ratio in ratios.items())
    say(
        f"{what} {groups}x{expected} {how} {name} {n}x{k}: {us[top]:.1f} us = {flops / us[top] * 1e-6:.0f} TFLOP/s "
        f"{top}; x faster than {shown}"
    )
    return {
        "layer": name, "groups": groups, "expected": expected, "how": how, "n": n, "k": k, "count": count.tolist(),
        "us": us, "host_us": {label: e["host_seconds"] * 1e6 for label, e in found.items()}, "snr_db": read,
        "screened_us": {label: e["seconds"] * 1e6 for label, e in tried.items()}, "best": top,
        "tflops": {label: flops / took * 1e-6 for label, took in us.items()},
        "bytes": groups * n * k + int(count.sum()) * (k + 2 * n),
    }  # fmt: skip


def best_of(bench: Bench, kernel: str, chosen: Sequence[Point], x: contenders.Operands) -> Point:
    """The fastest of some points in a short comparison of its own."""
    runs = {json.dumps(point): contenders.kernel(kernel, point) for point in chosen}
    found = Bench(2, 3, bench.flush).compare({name: (lambda run=run: run(x)) for name, run in runs.items()})
    return json.loads(min(found, key=lambda name: found[name]["seconds"]))


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """A graph of the call; the call itself, told, where it cannot be captured."""
    try:
        return graphed(call)
    except RuntimeError as error:
        say(f"  not a graph: {str(error).splitlines()[0][:160]}")
        return call


def step(what: str, sizes: tuple[int, int, str], name: str, bench: Bench) -> dict[str, Any]:
    """One layer's three products with all quantisation against torch in bf16; ``kgrouped``: the last one alone."""
    groups, expected, how = sizes
    n, k = LAYERS[name]
    count = counts(groups, expected, how, 128, 7)
    rows = int(count.sum())
    held, ends = count.cuda(), count.cumsum(0).to(torch.int32).cuda()
    x, w, dy = (torch.randn(s, dtype=torch.bfloat16) for s in ((rows, k), (groups, n, k), (rows, n)))
    by_rows, by_blocks = contenders.kernel("quant_dual_tma"), contenders.kernel("quant_blocks_dual")
    by_both = contenders.kernel("quant_mixed_dual")

    def weights() -> tuple[contenders.Operands, contenders.Operands]:
        w_q, w_s, wt_q, wt_s = by_blocks({"x": w.view(groups * n, k)})
        below = {"b_q": w_q.view(groups, n, k), "b_s": w_s.view(groups, n // 128, k // 128)}
        return below, {"b_q": wt_q, "b_s": wt_s}

    x_q, x_s, xt_q, xt_s = by_rows({"x": x})
    dy_q, dy_s, dyt_q, dyt_s = by_rows({"x": dy})
    below, beside = weights()
    tried = points(False, expected)[:3]
    picked = {
        "forward": best_of(bench, "grouped", tried, {"a_q": x_q, "a_s": x_s, **below, "count": held}),
        "dgrad": best_of(bench, "grouped", tried, {"a_q": dy_q, "a_s": dy_s, **beside, "count": held}),
    }
    gradient = {"a_q": dyt_q, "a_s": dyt_s, "b_q": xt_q, "b_s": xt_s, "count": held // 128}
    picked["wgrad"] = best_of(bench, "k_grouped", deep_points(), gradient)
    _, _, xb_q, xb_s = by_both({"x": x})
    in_blocks = {**gradient, "b_q": xb_q, "b_s": xb_s}
    picked["wgrad, x^T in blocks"] = best_of(bench, "k_grouped", deep_points()[:3], in_blocks)
    forward, dgrad = (contenders.kernel("grouped", picked[which]) for which in ("forward", "dgrad"))
    wgrad = contenders.kernel("k_grouped", picked["wgrad"])
    mixed_wgrad = contenders.kernel("k_grouped", picked["wgrad, x^T in blocks"])
    steps = held // 128

    def ours(mixed: bool = False) -> tuple[torch.Tensor, ...]:
        x_q, x_s, xt_q, xt_s = (by_both if mixed else by_rows)({"x": x})
        below, beside = weights()
        y = forward({"a_q": x_q, "a_s": x_s, **below, "count": held})[0]
        dy_q, dy_s, dyt_q, dyt_s = by_rows({"x": dy})
        dx = dgrad({"a_q": dy_q, "a_s": dy_s, **beside, "count": held})[0]
        taken = mixed_wgrad if mixed else wgrad
        dw = taken({"a_q": dyt_q, "a_s": dyt_s, "b_q": xt_q, "b_s": xt_s, "count": steps})[0]
        return y, dx, dw

    def bf16() -> tuple[torch.Tensor, ...]:
        y = torch._grouped_mm(x, w.transpose(1, 2), offs=ends, out_dtype=torch.bfloat16)
        dx = torch._grouped_mm(dy, w, offs=ends, out_dtype=torch.bfloat16)
        return y, dx, torch._grouped_mm(dy.T, x, offs=ends, out_dtype=torch.bfloat16)

    wanted = bf16()
    read = {}
    for mixed in (False, True):
        for part, a, b in zip(("y", "dx", "dw"), ours(mixed), wanted, strict=True):
            off = (b.float() - a.float()).square().sum()
            read[part + ", x^T in blocks" * mixed] = float(10 * torch.log10(b.float().square().sum() / off))
    del wanted, a, b
    calls: dict[str, Callable[[], Any]] = {
        "weight gradient": lambda: wgrad(gradient)[0],
        "weight gradient, x^T in blocks": lambda: mixed_wgrad(in_blocks)[0],
        "weight gradient, torch bf16": lambda: torch._grouped_mm(
            dy.T, x, offs=ends, out_dtype=torch.bfloat16
        ),
    }
    if what == "step":
        # from graphs: the allocator's memory is a graph's own, and nobody waits for it
        calls |= {
            "ours": captured(ours),
            "ours, x^T in blocks": captured(lambda: ours(True)),
            "torch bf16": captured(bf16),
        }
    found = bench.compare(calls, spin=6_000_000)
    us = {label: entry["seconds"] * 1e6 for label, entry in found.items()}
    work = {label: (2 if "weight gradient" in label else 6) * rows * n * k for label in us}
    shown = ", ".join(f"{part} {db:.1f} dB" for part, db in read.items())
    best = "ours" if what == "step" else "weight gradient"
    ratios = [us["weight gradient, torch bf16"] / us["weight gradient"]]
    if what == "step":
        ratios = [us["torch bf16"] / us["ours"], us["torch bf16"] / us["ours, x^T in blocks"], *ratios]
    say(
        f"{what} {groups}x{expected} {how} {name} {n}x{k}: {us[best]:.1f} us = "
        f"{work[best] / us[best] * 1e-6:.0f} TFLOP/s; x faster than torch bf16 (step, x^T in blocks, weight gradient) "
        f"{', '.join(f'{ratio:.3f}' for ratio in ratios)}; against bf16 {shown}"
    )
    return {
        "layer": name, "groups": groups, "expected": expected, "how": how, "n": n, "k": k, "count": count.tolist(),
        "us": us, "best": best, "points": picked, "snr_db_to_bf16": read,
        "tflops": {label: work[label] / took * 1e-6 for label, took in us.items()},
    }  # fmt: skip


def gates(named: str) -> list[dict[str, Any]]:
    """SNR over whole products of recipes' checks and input kinds, and 20 more calls bit for bit."""
    found = []
    for operator in operators().values():
        if "experts" not in operator.suites or named not in operator.name:
            continue
        for workload in operator.suites["experts"].check:
            for kind in operator.input_kinds:
                arrays = operator.make_inputs(workload, 3, kind)
                references = operator.oracle(workload, arrays)
                exact = torch.from_numpy(references["exact"]["c"]).cuda()
                counted = references.get("counted", {}).get("c", np.ones(exact.shape[:1], dtype=bool))
                looked = torch.from_numpy(counted).cuda()
                kernel = "grouped" if "grouped" in operator.kernels else "k_grouped"
                x = {
                    name: to_device(a) if a.dtype != "int32" else torch.from_numpy(a).cuda()
                    for name, a in arrays.items()
                }
                for point in gate_points() if kernel == "grouped" else deep_points()[::3]:
                    run = contenders.kernel(kernel, point)
                    poison = torch.full(tuple(exact.shape), float("nan"), dtype=torch.bfloat16)
                    del poison
                    try:
                        out = run(x)[0]
                        bits = out.view(torch.int16)[looked]
                        same = all(torch.equal(run(x)[0].view(torch.int16)[looked], bits) for _ in range(20))
                        noise = (out.double() - exact)[looked].square().sum()
                        db = float(10 * torch.log10(exact[looked].square().sum() / noise.clamp_min(1e-300)))
                    except Exception as error:  # noqa: BLE001 - reported as the point's reading
                        db, same = -math.inf, False
                        say(f"  {operator.name} {workload.id} {point}: {str(error).splitlines()[0][:160]}")
                    found.append(
                        {"operator": operator.name, "workload": workload.id, "kind": kind, "point": point,
                         "db": db, "same": same}
                    )  # fmt: skip
    gates_told(found)
    return found


def write(out: Path, what: str, entries: Sequence[Mapping[str, Any]], compiled: Any) -> None:
    """``fp8_grouped_<what>.json``."""
    told = {
        "what": what,
        **stamp(" ".join(["python -m experiments.studies.h200.fp8_grouped", *sys.argv[1:]])),
        "compiled": compiled,
    }
    (out / f"fp8_grouped_{what}.json").write_text(json.dumps({**told, "entries": entries}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--what", nargs="+", choices=["gates", "grouped", "masked", "kgrouped", "step"], required=True
    )
    parser.add_argument("--named", default="", help="gates of recipes with this in their names")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument(
        "--ahead", action="store_true", help="compile what the run needs, and end: no GPU is used"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    compiled = ahead(args.what, args.processes) if args.processes else {}
    say(f"compiled ahead: {compiled}")
    if args.ahead:
        return
    torch.set_default_device("cuda")
    bench = Bench(6, 3, torch.empty(64 << 20, dtype=torch.int32))
    for what in args.what:
        if what == "gates":
            write(args.out, what, gates(args.named), compiled)
            continue
        entries: list[dict[str, Any]] = []
        measure = side_by_side if what in ("grouped", "masked") else step
        for sizes in {"grouped": GROUPED, "masked": MASKED}.get(what, STEPS):
            for name in LAYERS:
                entries.append(measure(what, sizes, name, bench))
                torch.cuda.empty_cache()
                write(args.out, what, entries, compiled)
        for peer in (
            "DeepGEMM",
            "torch bf16",
            "torch bf16, packed",
            "torch bf16, rooms",
            "weight gradient, torch bf16",
        ):
            mine = "weight gradient" if peer.startswith("weight") else "best"
            found = [e["us"][peer] / e["us"][e.get(mine, mine)] for e in entries if peer in e["us"]]
            if found:
                mean = math.exp(sum(map(math.log, found)) / len(found))
                say(f"{what}: x faster than {peer}: {mean:.3f} (worst {min(found):.3f}, {len(found)} layers)")
        say(f"{what} done after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
