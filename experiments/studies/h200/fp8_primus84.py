"""All 84 training shapes on one H200 in one run, served by one dispatch table, beside the vendor and DeepGEMM.

    python -m experiments.studies.h200.fp8_primus84 --out results --dispatch dispatch.json

The table is a campaign's (``evolve.campaign.dispatch_table``); a shape that it has not measured is served as the
library would serve it. 69 of the 84 shapes are distinct, each is timed once: rounds of reversed order, L2 flushed, a
pause after each burst, outputs held to the exact gate on poisoned memory first. Everything printed is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.studies.h200 import fp8_contenders as contenders
from experiments.studies.h200.fp8_step import MIN_SNR_DB, Bench, Call, checked
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from testkit.compile_ahead import compiled_ahead, described
from tilewright.evolve.campaign.dispatch_table import lookup
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.gemm_fp8_blockwise.shapes import primus84
from tilewright.seeds.operator import Workload

PEERS = ("vendor blockwise", "DeepGEMM")


def ahead(table: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """Compile the table's genomes; one shape stands for all, whose dimensions are multiples of 16."""
    operator = load_operator(table["operator"])
    workload = Workload("w", {"M": 4096, "N": 4096, "K": 4096})
    shape = {
        "id": "w",
        "inputs": described(operator.inputs(workload)),
        "outputs": described(operator.outputs(workload)),
    }
    cache = os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
    tasks = [(genome["source"], genome["params"], [shape]) for genome in table["genomes"].values()]
    return compiled_ahead(tasks, cache, processes, 120.0)


def measured(
    table: Mapping[str, Any], workloads: Sequence[Workload], bench: Bench, seed: int
) -> dict[str, Any]:
    """One shape that some workloads have: microseconds, ratios and SNR of each contender."""
    dims = dict(workloads[0].dims)
    m, n, k = (dims[name] for name in "MNK")
    x = contenders.quantised_operands(m, n, k)
    ours = contenders.dispatched(table, dims)
    calls: dict[str, Call] = {
        "ours": lambda: ours(x)[0],
        "vendor blockwise": lambda: contenders.scaled_product(x),
    }
    if (peer := contenders.deepgemm_product()) is not None:
        calls["DeepGEMM"] = lambda: peer(x)
    snr = {name: checked(x, call, seed) for name, call in calls.items()}
    good = {name: call for name, call in calls.items() if snr[name] >= MIN_SNR_DB}
    us = {name: entry["seconds"] * 1e6 for name, entry in bench.compare(good).items()}
    ratios = {name: us[name] / us["ours"] for name in PEERS if name in us and "ours" in us}
    rate = 2e-6 * m * n * k / us.get("ours", math.inf)
    shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    say(f"{m}x{n}x{k}: {us.get('ours', math.nan):.1f} us = {rate:.0f} TFLOP/s; x faster than {shown}")
    return {
        "workloads": [w.id for w in workloads],
        "dims": dims,
        "genome": lookup(table, dims),
        "us": us,
        "x_faster_than": ratios,
        "snr_db": snr,
    }


def told(entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Geometric mean and worst over a peer, by model and for all 84 (a shape counts once for each workload it is)."""
    by_model: dict[str, dict[str, list[float]]] = {}
    for entry in entries:
        for name in entry["workloads"]:
            for peer, ratio in entry["x_faster_than"].items():
                for group in (name.partition("/")[0], "all"):
                    by_model.setdefault(group, {}).setdefault(peer, []).append(ratio)
    return {
        group: {
            peer: {"geomean": math.exp(sum(map(math.log, r)) / len(r)), "worst": min(r), "workloads": len(r)}
            for peer, r in peers.items()
        }
        for group, peers in by_model.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dispatch", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--ahead", action="store_true", help="compile, and end: no GPU is used")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    table = json.loads(args.dispatch.read_text())
    compiled = ahead(table, args.processes) if args.processes else {}
    say(f"compiled ahead: {compiled}")
    if args.ahead:
        return
    torch.set_default_device("cuda")
    bench = Bench(args.rounds, args.calls, torch.empty(64 << 20, dtype=torch.int32))
    shapes: dict[tuple[int, ...], list[Workload]] = {}
    for workload in primus84():
        shapes.setdefault(tuple(workload.dims[name] for name in "MNK"), []).append(workload)
    seed, begun = time.time_ns() % 2**31, time.monotonic()
    head = stamp(" ".join(["python -m experiments.studies.h200.fp8_primus84", *sys.argv[1:]]))
    entries = []
    # the longest shapes last: what a run that is cut lacks are few
    for shape in sorted(shapes, key=math.prod):
        entries.append(measured(table, shapes[shape], bench, seed))
        torch.cuda.empty_cache()
        result = {**head, "rounds": args.rounds, "calls": args.calls, "table": args.dispatch.name}
        result |= {"summary": told(entries), "entries": entries}
        (args.out / "fp8_primus84.json").write_text(json.dumps(result, indent=1))
    for group, peers in told(entries).items():
        shown = ", ".join(
            f"{peer} {r['geomean']:.3f} (worst {r['worst']:.3f}, {r['workloads']})"
            for peer, r in peers.items()
        )
        say(f"{group}: x faster than {shown}")
    say(f"done after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
