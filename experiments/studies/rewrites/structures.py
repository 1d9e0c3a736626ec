"""From the kernel a user would write first to the schedule an expert writes: campaigns from naive seeds, on an H200.

    python -m experiments.studies.rewrites.structures --out experiments/records/rewrites/structures_h200.json
    python -m experiments.studies.rewrites.structures --only pointer --seeds 0 1 2 3 4 --arms all --out FILE

One campaign for each case, arm and seed, each from the naive seed alone, one after the other in this order. A row has
the command, the seed kernel's and the best figure (TFLOP/s or GB/s, with the target's kind), evaluations and seconds,
when the best was found, and the steps that led there. The file is written again after every campaign, and rows it has
are not run again, so that the study goes on where it was stopped. Arms: ``parameters``, ``rewrites`` (none that opens
a structure), ``lowering`` (without niches), ``niches`` (everything).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.proposers.rewrite.registry import openings
from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Evaluation

KERNELS = Path(__file__).with_name("naive_kernels.py")

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 1024, 4096), (1024, 16384, 4096),
          (8192, 4096, 2048), (2048, 2048, 16384), (512, 7168, 16384), (32768, 4096, 4096))  # fmt: skip
"""M, N, K of the bf16 product: square, tall, wide, K-heavy."""

FAMILY = {"pointer": "experiments/campaigns/h200_gemm_nt_plain.yaml"}
"""Cases that are campaigns of a family's seed."""

CALLS: dict[str, tuple[str, str, list[str]]] = {
    "matmul": ("matmul", "torch.matmul", [f"bf16[{m}, {k}], bf16[{k}, {n}]" for m, n, k in SHAPES]),
    "linear_gelu": (
        "linear_gelu",
        f"{KERNELS}:linear_gelu_reference",
        ["bf16[8192, 4096], bf16[4096, 14336], bf16[14336]"],
    ),
    "softmax": ("softmax", "torch.softmax", ["bf16[16384, 4096], dim=1"]),
    "rms_norm": ("rms_norm", f"{KERNELS}:rms_norm_reference", ["bf16[16384, 4096], bf16[4096]"]),
    "rms_norm_quantise": (
        "rms_norm_quantise", f"{KERNELS}:rms_norm_quantise_reference", ["bf16[16384, 4096], bf16[4096]"],
    ),
    "attention": ("attention", f"{KERNELS}:attention_reference", [", ".join(["bf16[64, 4096, 128]"] * 3)]),
    "int4_matmul": (
        "int4_matmul", f"{KERNELS}:int4_matmul_reference",
        ["bf16[4096, 4096], u8[4096, 2048] < 256, bf16[2048, 2]"],
    ),
    "grouped_matmul": (
        "grouped_matmul", f"{KERNELS}:grouped_matmul_reference",
        ["bf16[16384, 2048], bf16[8, 2048, 4096], i32[8].sums(16384)"],
    ),
}  # fmt: skip
"""Case to the function of ``naive_kernels``, its reference and how it is called."""

ARMS: dict[str, list[str]] = {
    "parameters": ["search.proposers=[surrogate, parameters, local_search, crossover]"],
    "rewrites": ["search.niches=false", f"search.without_rules=[{', '.join(sorted(openings()))}]"],
    "lowering": ["search.niches=false"],
    "niches": [],
}
"""Settings of a campaign's YAML. Functions of a user's file run with ``niches`` alone."""


def command(case: str, arm: str, seed: int, seconds: float, target: str, home: Path) -> list[str]:
    """What a person would type."""
    start = [sys.executable, "-m", "tilewright.evolve.cli"]
    if case in FAMILY:
        settings = [
            f"seed={seed}",
            f"target={target}",
            f"budget.wall_seconds={seconds:g}",
            "budget.evaluations=100000",
        ]
        found = [*start, "run", FAMILY[case], "--home", str(home), "--set", "mlflow.enabled=false"]
        return found + [part for text in [*settings, *ARMS[arm]] for part in ("--set", text)]
    function, reference, calls = CALLS[case]
    asked = [part for call in calls for part in ("--args", call)]
    return [
        *start, "tune", f"{KERNELS}:{function}", "--reference", reference, *asked, "--target", target,
        "--seed", str(seed), "--seconds", f"{seconds:g}", "--evaluations", "100000", "--no-mlflow", "--home", str(home),
        "--out", str(home / "operator"),
    ]  # fmt: skip


def row(home: Path) -> dict[str, Any]:
    """What the one campaign of a home came to."""
    (folder,) = campaigns(home)
    with Journal(folder / JOURNAL) as journal:
        candidates = list(journal.candidates())
        done = [(index, evaluation) for _, index, evaluation, _ in journal.evaluations()]
    worked: list[tuple[int, Evaluation]] = [(i, e) for i, e in done if e.fitness]
    if not worked:
        return {"evaluations": len(done), "best": None}
    first = next((e.fitness for i, e in worked if i == 0), None)
    best_at, best = max(worked, key=lambda pair: pair[1].fitness or 0.0)
    by_id = {c.genome.id: c for c in candidates}
    steps, current = [], candidates[best_at]
    while True:
        steps.append(f"{current.mutation.proposer}: {current.mutation.detail}")
        if not current.parents:
            break
        current = by_id[current.parents[0]]
    return {
        "evaluations": len(done),
        "seed_fitness": first,
        "best": best.fitness,
        "gain": (best.fitness or 0.0) / first if first else None,
        "found_after": sum(i <= best_at for i, _ in done),
        "steps": steps[::-1],
        "params": dict(candidates[best_at].genome.params),
        "kind": best.workloads[0].kind.value if best.workloads else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names begin so")
    parser.add_argument("--arms", nargs="*", default=["niches"], choices=[*ARMS, "all"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=1200.0, help="wall clock of one campaign")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--homes", type=Path, default=Path("structures"), help="folder of the campaigns")
    options = parser.parse_args(arguments)
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    known = {(r["case"], r["arm"], r["seed"], r["target"]) for r in rows}
    arms = list(ARMS) if "all" in options.arms else options.arms
    for case in [*FAMILY, *CALLS]:
        if options.only and not any(case.startswith(part) for part in options.only):
            continue
        for arm in arms if case in FAMILY else ["niches"]:
            for seed in options.seeds:
                key = (case, arm, seed, options.target)
                if key in known:
                    continue
                home = (options.homes / f"{case}-{arm}-{seed}".replace(" ", "-")).absolute()
                asked = command(case, arm, seed, options.seconds, options.target, home)
                began = time.monotonic()
                done = subprocess.run(asked, check=False)
                made = {
                    "case": case,
                    "arm": arm,
                    "seed": seed,
                    "target": options.target,
                    "command": asked[2:],
                }
                made |= {"exit": done.returncode, "seconds": round(time.monotonic() - began, 1)}
                rows.append({**made, **(row(home) if campaigns(home) else {})})
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
