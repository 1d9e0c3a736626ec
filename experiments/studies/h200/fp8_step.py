"""Blockwise FP8 on one GPU, side by side: the forward product, the quantisers, and the whole training step.

    python -m experiments.studies.h200.fp8_step --out results --what forward quantise step

Per shape every contender runs in the same process on the same random data. Times are device events, the L2
flushed before each call, host work hidden behind a spinning kernel; contenders take turns in rounds of reversed
order, each burst after a pause long enough to stay under the board's power limit (``fp8_sustained`` has no pauses).
The outputs of timed calls are checked; a contender that fails is reported as failed, with no time. Everything
printed is measured on the device named in the result.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.studies.h200 import fp8_contenders as contenders
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from tilewright.seeds.gemm_fp8_blockwise.shapes import core as primus_core
from tilewright.seeds.gemm_fp8_blockwise.shapes import primus84
from tilewright.seeds.operator import Workload

MIN_SNR_DB = 45.0
"""The exact gate of the family."""

FORWARD = tuple(("gluon_ws", {"group_m": g}) for g in (4, 8, 16, 32))
WGRAD = (
    ("gluon_skew", {"group_m": 8}),
    ("gluon_skew", {"group_m": 16}),
    ("gluon_skew", {"group_m": 16, "stages": 4, "consumer_regs": 216}),
    ("gluon_skew", {"group_m": 4, "stages": 4, "consumer_regs": 216}),
    ("gluon_ws", {"slots": 1, "group_m": 16}),
)
"""Genomes the dispatch chooses from, per shape, in a run of its own before anything is reported."""

MATRICES = ((8192, 8192), (16384, 8192), (8192, 29568), (8192, 4096))
"""Shapes [M, K] of the quantisers' comparison."""

QUANTISERS = {
    "rows": {"kernel": "quant_dual_tma", "params": {}},
    "blocks": {"kernel": "quant_blocks_dual", "params": {}},
}
MIXED = {**QUANTISERS, "activations": {"kernel": "quant_mixed_dual", "params": {}}}
"""A coarser recipe, of operator ``step_mixed``: x^T in 128 x 128 blocks."""

TORCHAO = ("torchao, vendor products", "torchao, Triton")
"""The second tunes itself for minutes per shape."""

Call = Callable[[], Any]


def burst(flush: torch.Tensor, call: Call, calls: int, spin: int, clean: bool = False) -> list[float]:
    """Seconds of each of ``calls`` calls after one that is thrown away. ``spin``: cycles that hide host work.

    Writing ``flush`` leaves an L2 full of lines that must be written back before a call's operands have room, which
    halves what a product of few rows can read in a second. ``clean``: it is read afterwards, as other weights are.
    """
    pairs = []
    call()
    for _ in range(calls):
        flush.zero_()
        if clean:
            flush.amax()
        if spin:
            torch.cuda._sleep(spin)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


class Bench:
    """Times callables in interleaved bursts. ``seconds`` of a contender is the median over all its calls."""

    def __init__(self, rounds: int, calls: int, flush: torch.Tensor, clean: bool = False) -> None:
        self.rounds, self.calls = rounds, calls
        self.flush, self.clean = flush, clean

    def compare(self, calls: Mapping[str, Call], spin: int = 1_000_000) -> dict[str, dict[str, float]]:
        """Median, fastest and host seconds per call and contender."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        for round_number in range(self.rounds):
            order = list(calls) if round_number % 2 == 0 else list(calls)[::-1]
            for name in order:
                found = burst(self.flush, calls[name], self.calls, spin, self.clean)
                times[name] += found
                time.sleep(0.004 + 2 * max(found))
        return {
            name: {
                "seconds": sorted(t)[len(t) // 2],
                "fastest": min(t),
                "host_seconds": host_seconds(calls[name]),
            }
            for name, t in times.items()
        }


def host_seconds(call: Call, calls: int = 10) -> float:
    """Host time to issue one call, behind a spinning kernel so that the queue never drains."""
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    taken = (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    return taken


def forward(bench: Bench, workload: Workload, seed: int, dispatch: dict | None = None) -> dict[str, Any]:
    """The product on pre-quantised operands: ours, the vendor's, DeepGEMM's if importable, the per-tensor ceiling.

    Ours is what a campaign's ``dispatch`` table says, or without one the best of a few genomes.
    """
    m, n, k = (workload.dims[name] for name in "MNK")
    x = contenders.quantised_operands(m, n, k)
    if dispatch is not None:
        ours = contenders.dispatched(dispatch, workload.dims)
        picked = ("dispatch", contenders.chosen(dispatch, workload.dims))
    else:
        picked = pick(bench, x, FORWARD, seed)
        ours = contenders.kernel(*picked)
    calls: dict[str, Call] = {
        "vendor blockwise": lambda: contenders.scaled_product(x),
        "ours": lambda: ours(x)[0],
        "ours, one genome": lambda: contenders.kernel("gluon_ws")(x)[0],
        "ours again (A/A)": lambda: ours(x)[0],
    }
    if (peer := contenders.deepgemm_product()) is not None:
        calls["DeepGEMM"] = lambda: peer(x)
    snr = {name: checked(x, call, seed) for name, call in calls.items()}
    calls["per-tensor fp8"] = lambda: contenders.per_tensor_product(x)
    good = {name: call for name, call in calls.items() if snr.get(name, math.inf) >= MIN_SNR_DB}
    found = bench.compare(good)
    return report(workload, 2 * m * n * k, found, snr, {"genome": picked})


def pick(
    bench: Bench, x: contenders.Operands, genomes: Sequence[tuple[str, dict]], seed: int
) -> tuple[str, dict]:
    """The fastest of ``genomes`` that pass the exact gate on these operands, from a short comparison of its own.

    Raises RuntimeError when none passes.
    """
    calls = {str(i): (lambda g=g: contenders.kernel(*g)(x)[0]) for i, g in enumerate(genomes)}
    good = {name: call for name, call in calls.items() if checked(x, call, seed) >= MIN_SNR_DB}
    if not good:
        raise RuntimeError(f"none of {len(genomes)} genomes passes the exact gate")
    found = Bench(4, 2, bench.flush).compare(good)
    return genomes[int(min(found, key=lambda name: found[name]["seconds"]))]


def checked(x: contenders.Operands, call: Call, seed: int) -> float:
    """SNR in dB of one call whose output buffer was poisoned with NaN; -inf when the call raises."""
    shape = (x["a_q"].shape[0], x["b_q"].shape[0])
    poison = torch.full(shape, float("nan"), dtype=torch.bfloat16)
    del poison
    try:
        return contenders.sampled_snr(x, call(), seed)
    except RuntimeError as error:
        say(f"  failed: {str(error).splitlines()[0][:120]}")
        return -math.inf


def step(
    bench: Bench,
    workload: Workload,
    seed: int,
    torchao_triton: bool = False,
    dispatch: dict | None = None,
) -> dict[str, Any]:
    """y, dx, dw from bf16 x, w, dy with all quantisation.

    "ours, evolved" is what the ``dispatch`` table of a campaign on the step says.
    """
    m, n, k = (workload.dims[name] for name in "MNK")
    fwd = contenders.quantised_operands(m, n, k)
    dgrad = contenders.quantised_operands(m, k, n)
    wgrad = contenders.quantised_operands(n, k, m, rows=True)
    picks = {"forward": pick(bench, fwd, FORWARD, seed), "dgrad": pick(bench, dgrad, FORWARD, seed)}
    picks["wgrad"] = pick(bench, wgrad, WGRAD, seed)
    del fwd, dgrad, wgrad
    mixed = contenders.quantised_operands(n, k, m)
    picks["wgrad, x^T in blocks"] = pick(bench, mixed, FORWARD, seed)
    del mixed
    x, w, dy = (torch.randn(s, dtype=torch.bfloat16) for s in ((m, k), (n, k), (m, n)))

    def product(o: contenders.Operands) -> torch.Tensor:
        return contenders.kernel(*picks["forward" if o["a_q"].shape[1] == k else "dgrad"])(o)[0]

    def wgrad_product(o: contenders.Operands) -> torch.Tensor:
        return contenders.kernel(*picks["wgrad"])(o)[0]

    calls: dict[str, Call] = {
        "bf16 autograd": lambda: contenders.bf16_step(x, w, dy),
        "ours": lambda: contenders.fp8_step(
            x, w, dy, product=product, wgrad=wgrad_product, quantise=QUANTISERS
        ),
        "ours, x^T in blocks": lambda: contenders.fp8_step(
            x,
            w,
            dy,
            product=product,
            wgrad=lambda o: contenders.kernel(*picks["wgrad, x^T in blocks"])(o)[0],
            quantise=MIXED,
        ),
        "our quantisers, vendor products": lambda: contenders.fp8_step(
            x,
            w,
            dy,
            product=contenders.scaled_product,
            wgrad=contenders.scaled_product,
            quantise=QUANTISERS,
        ),
    }
    if dispatch is not None:
        evolved = contenders.dispatched(dispatch, workload.dims)
        calls["ours, evolved"] = lambda: evolved({"x": x, "w": w, "dy": dy})
    for name in TORCHAO[: 2 if torchao_triton else 1]:
        peer = contenders.torchao_step(use_triton=name.endswith("Triton"))
        if peer is not None:
            calls[name] = lambda peer=peer: peer(x, w, dy)
    snr = {name: step_snr(call, (x, w, dy), seed) for name, call in calls.items()}
    good = {name: call for name, call in calls.items() if snr[name] >= 25.0}
    return report(workload, 6 * m * n * k, bench.compare(good, spin=6_000_000), snr, {"genomes": picks})


def step_snr(call: Call, operands: tuple[torch.Tensor, ...], seed: int, samples: int = 32) -> float:
    """The worst SNR in dB of y, dx, dw against float64 products of the *unquantised* operands, on random rows."""
    x, w, dy = operands
    rng = torch.Generator("cpu").manual_seed(seed)
    try:
        y, dx, dw = call()
    except RuntimeError as error:
        say(f"  failed: {str(error).splitlines()[0][:120]}")
        return -math.inf
    worst = math.inf
    for out, left, right in ((y, x, w.T), (dx, dy, w), (dw, dy.T, x)):
        rows = torch.randint(0, out.shape[0], (samples,), generator=rng, device="cpu").cuda()
        reference = torch.zeros((samples, out.shape[1]), dtype=torch.float64)
        for start in range(0, left.shape[1], 4096):
            part = slice(start, start + 4096)
            reference += left[rows][:, part].double() @ right[part].double()
        error = (reference - out[rows].double()).square().sum()
        worst = min(worst, float(10 * torch.log10(reference.square().sum() / error)))
    return worst


def quantise(bench: Bench, m: int, k: int) -> dict[str, Any]:
    """Bytes per second of the quantisers beside a device copy of the same matrix."""
    x = torch.randn(m, k, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    names = (
        "quant_rows",
        "quant_blocks",
        "quant_dual",
        "quant_dual_tma",
        "quant_blocks_dual",
        "quant_mixed_dual",
        "quant_dual_plain",
    )
    calls: dict[str, Call] = {"copy": lambda: y.copy_(x)}
    moved = {"copy": 4 * m * k}
    for name in names:
        moved[name] = 2 * m * k + sum(t.numel() * t.element_size() for t in contenders.kernel(name)({"x": x}))
        calls[name] = lambda name=name: contenders.kernel(name)({"x": x})
    found = bench.compare(calls)
    for name, entry in found.items():
        entry["tb_per_s"] = moved[name] / entry["seconds"] * 1e-12
        entry["of_copy"] = entry["tb_per_s"] / (moved["copy"] / found["copy"]["seconds"] * 1e-12)
    return {"workload": f"{m}x{k}", "contenders": found}


def report(
    workload: Workload, flops: int, found: dict[str, dict[str, float]], snr: dict[str, float], extra: dict
) -> dict[str, Any]:
    """One shape's entry: rates in TFLOP/s, SNR in dB, seconds.

    ``tflops_issued_eagerly`` is the rate when the host issues every launch anew and cannot keep ahead.
    """
    for name, entry in found.items():
        entry["tflops"] = flops / entry["seconds"] * 1e-12
        if "host_seconds" in entry:
            entry["tflops_issued_eagerly"] = flops / max(entry["seconds"], entry["host_seconds"]) * 1e-12
        entry["snr_db"] = snr.get(name, math.nan)
    return {"workload": workload.id, "dims": dict(workload.dims), "contenders": found, **extra}


def table(entries: Sequence[dict[str, Any]], base: str, key: str = "tflops") -> str:
    """A text table: the rate and its ratio to ``base`` per shape, and the geometric mean of the ratios."""
    names = list(dict.fromkeys(name for entry in entries for name in entry["contenders"]))
    lines = []
    for name in names:
        ratios, cells = [], []
        for entry in entries:
            ours, theirs = entry["contenders"].get(name), entry["contenders"].get(base)
            if ours is None or theirs is None:
                cells.append("-".rjust(13))
                continue
            ratios.append(ours[key] / theirs[key])
            cells.append(f"{ours[key]:7.{0 if key.startswith('tflops') else 2}f} {ratios[-1]:5.3f}")
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        lines.append(f"{name:32s} {' '.join(cells)}  geomean {mean:.3f} of {len(ratios)}")
    head = " ".join(str(entry["workload"])[-13:].rjust(13) for entry in entries)
    return "\n".join([f"{'measured, ratio to ' + base:32s} {head}", *lines])


def write(out: Path, what: str, entries: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """``fp8_<what>.json`` (everything) and ``.csv`` (one row per shape and contender)."""
    told = {
        "what": what,
        **stamp(" ".join(["python -m experiments.studies.h200.fp8_step", *sys.argv[1:]])),
        "cuda": torch.version.cuda,
        "rounds": args.rounds,
        "calls": args.calls,
    }
    (out / f"fp8_{what}.json").write_text(json.dumps({**told, "entries": entries}, indent=1))
    keys = sorted({key for e in entries for entry in e["contenders"].values() for key in entry})
    with (out / f"fp8_{what}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "contender", *keys])
        for e in entries:
            for name, entry in e["contenders"].items():
                writer.writerow([e["workload"], name, *(entry.get(key, "") for key in keys)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", choices=["forward", "quantise", "step"], default=["step"])
    parser.add_argument("--tests", type=int, nargs="*", help="TestIDs of the 84; default: the core suite")
    parser.add_argument(
        "--torchao-triton", action="store_true", help="also torchao with its own Triton products"
    )
    parser.add_argument(
        "--dispatch",
        type=Path,
        nargs="*",
        default=[],
        help="dispatch.json of campaigns on the forward product and on the step",
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_device("cuda")
    bench = Bench(args.rounds, args.calls, torch.empty(64 << 20, dtype=torch.int32))
    shapes = [primus84()[t - 1] for t in args.tests] if args.tests else list(primus_core())
    seed = time.time_ns() % 2**31
    tables = {made["operator"]: made for made in (json.loads(path.read_text()) for path in args.dispatch)}
    runs = {
        "forward": lambda w: forward(bench, w, seed, tables.get("gemm_fp8_blockwise/gemm_nt")),
        "step": lambda w: step(bench, w, seed, args.torchao_triton, tables.get("gemm_fp8_blockwise/step")),
    }
    for what in args.what:
        entries = []
        for workload in shapes if what != "quantise" else []:
            entries.append(runs[what](workload))
            torch.cuda.empty_cache()
            done = ", ".join(f"{n} {e['tflops']:.0f}" for n, e in entries[-1]["contenders"].items())
            write(args.out, what, entries, args)
            say(f"{what} {workload.id} measured TFLOP/s: {done}")
        if what == "quantise":
            entries = [quantise(bench, m, k) for m, k in MATRICES]
        base = {"step": "bf16 autograd", "quantise": "copy"}.get(what, "vendor blockwise")
        say(table(entries, base, "tb_per_s" if what == "quantise" else "tflops"))
        if what == "step":
            say(table(entries, base, "tflops_issued_eagerly"))
        write(args.out, what, entries, args)


if __name__ == "__main__":
    main()
