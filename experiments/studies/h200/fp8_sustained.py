"""Blockwise FP8 products at the board's power limit: a second each without pauses, with the clock and the power.

    python -m experiments.studies.h200.fp8_sustained --out results --tests 4 26 64

Contenders take turns, each calling without a pause for its second and once more in reversed order; the rate is the
median of batches in the second half of those seconds, clock and power are what ``nvidia-smi`` read in the same halves.
Everything printed is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.studies.h200 import fp8_contenders as contenders
from experiments.studies.h200.fp8_step import FORWARD, MIN_SNR_DB, Bench, checked, pick
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from tilewright.seeds.gemm_fp8_blockwise.shapes import primus84
from tilewright.seeds.operator import Workload

QUERY = ("clocks.sm", "power.draw", "temperature.gpu")
BATCH_SECONDS = 0.02


class Board:
    """Readings of one GPU's board, every 50 ms, with the host's time of each."""

    def __init__(self, uuid: str) -> None:
        self.readings: list[tuple[float, tuple[float, ...]]] = []
        asked = [
            "nvidia-smi",
            f"--query-gpu={','.join(QUERY)}",
            "--format=csv,noheader,nounits",
            "-lms",
            "50",
        ]
        self._process = subprocess.Popen([*asked, "-i", uuid], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.readings.append((time.monotonic(), tuple(float(part) for part in line.split(","))))

    def between(self, begun: float, ended: float) -> list[tuple[float, ...]]:
        """What was read in this time."""
        return [values for at, values in list(self.readings) if begun <= at <= ended]

    def close(self) -> None:
        """End the reading process."""
        self._process.kill()
        self._process.wait()


def without_pauses(call: Callable[[], Any], seconds: float) -> tuple[list[float], float, float]:
    """Seconds of a call in each batch of the second half of ``seconds``, and when that half began and ended."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(1, round(BATCH_SECONDS / (time.perf_counter() - start)))
    begun, batches = time.monotonic(), []
    while time.monotonic() - begun < seconds:
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        for _ in range(calls):
            call()
        pair[1].record()
        batches.append((time.monotonic(), *pair))
        if len(batches) > 2:
            batches[-3][2].synchronize()
    torch.cuda.synchronize()
    half, ended = begun + seconds / 2, time.monotonic()
    late = [a.elapsed_time(b) * 1e-3 / calls for issued, a, b in batches if issued >= half]
    return late, half, ended


def sustained(workload: Workload, board: Board, seconds: float, seed: int) -> dict[str, Any]:
    """One shape: every contender's rate in TFLOP/s, clock in MHz, power in W and temperature in degrees Celsius."""
    m, n, k = (workload.dims[name] for name in "MNK")
    x = contenders.quantised_operands(m, n, k)
    bench = Bench(4, 2, torch.empty(64 << 20, dtype=torch.int32))
    genome = pick(bench, x, FORWARD, seed)
    ours = contenders.kernel(*genome)
    calls: dict[str, Callable[[], Any]] = {
        "vendor blockwise": lambda: contenders.scaled_product(x),
        "ours": lambda: ours(x)[0],
    }
    if (peer := contenders.deepgemm_product()) is not None:
        calls["DeepGEMM"] = lambda: peer(x)
    snr = {name: checked(x, call, seed) for name, call in calls.items()}
    calls = {name: call for name, call in calls.items() if snr[name] >= MIN_SNR_DB}
    times: dict[str, list[float]] = {name: [] for name in calls}
    read: dict[str, list[tuple[float, ...]]] = {name: [] for name in calls}
    for name in (*calls, *list(calls)[::-1]):
        late, begun, ended = without_pauses(calls[name], seconds)
        times[name] += late
        read[name] += board.between(begun, ended)
    found = {}
    for name, late in times.items():
        middle = sorted(late)[len(late) // 2]
        means = [sum(column) / len(read[name]) for column in zip(*read[name], strict=True)]
        found[name] = {
            "seconds": middle,
            "tflops": 2 * m * n * k / middle * 1e-12,
            "snr_db": snr[name],
            "readings": len(read[name]),
            **dict(zip(("mhz", "watts", "celsius"), means, strict=False)),
        }
    shown = ", ".join(
        f"{name} {e['tflops']:.0f} TFLOP/s at {e.get('mhz', 0):.0f} MHz, {e.get('watts', 0):.0f} W"
        for name, e in found.items()
    )
    say(f"{workload.id} {m}x{n}x{k}: {shown}")
    return {
        "workload": workload.id,
        "dims": dict(workload.dims),
        "genome": genome,
        "contenders": found,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tests", type=int, nargs="+", default=[4, 26, 64], help="TestIDs of the 84")
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_device("cuda")
    told = stamp(" ".join(["python -m experiments.studies.h200.fp8_sustained", *sys.argv[1:]]))
    board = Board(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    entries = []
    try:
        for test in args.tests:
            entries.append(sustained(primus84()[test - 1], board, args.seconds, time.time_ns() % 2**31))
            torch.cuda.empty_cache()
            (args.out / "fp8_sustained.json").write_text(json.dumps({**told, "entries": entries}, indent=1))
    finally:
        board.close()


if __name__ == "__main__":
    main()
