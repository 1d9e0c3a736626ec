"""Expected times of the library's products of 16 to 64 rows: measured on shapes by lot, fitted, judged on others.

    python -m experiments.studies.library.few_rows measure times.json --seed 33113 --count 56
    python -m experiments.studies.library.few_rows fit times.json --judge others.json

A time is c0 + waves (c1 steps + c2) + c3 N K + c4 M N + c5 steps of the busiest multiprocessor, each c >= 0, in us; the
least relative errors. ``fit`` prints the expression of each kernel, and how near its choice comes to the best kernel.
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.library import store, torch_launch

OPERATOR = "gemm_fp8_blockwise/gemm_nt"
ROUNDS, FLUSHED = 25, 64 << 20
TILES = {
    "block_m": ("cdiv(M, block_m) * cdiv(N, block_n)", "1", "1"),
    "WN": ("cdiv(M, 64 * WGS) * cdiv(N, WN)", "1", "1"),
    "MOST": (
        "cdiv(M, MOST) * cdiv(N, 64 * WGS)",
        "max(d * (d == 1 or d <= SPLIT and tiles * d * 100 <= (132 - 4 * (d > 2)) * CTAS * FILL and K >= 256 * KB * d)"
        " for d in (1, 2, 3, 4, 8))",
        "CTAS",
    ),
}
"""By a parameter that one family alone has: tiles, CTAs that share a tile's depth, CTAs of a multiprocessor."""

Shape = tuple[int, int, int]


def drawn(seed: int, count: int) -> list[Shape]:
    """Shapes (M, N, K) by lot, sizes evenly over their logarithms."""
    lot = random.Random(seed)
    size = lambda low, high, step: step * round(2 ** lot.uniform(math.log2(low), math.log2(high)) / step)  # noqa: E731
    return [(4 * lot.randint(4, 16), size(512, 32768, 64), size(512, 16384, 128)) for _ in range(count)]


def measure(shapes: list[Shape]) -> dict[str, dict[str, float]]:
    """Microseconds of a call behind a flush of the L2 by shape and kernel: medians of rounds in turns."""
    import torch

    device, found = torch.device("cuda:0"), dict[str, dict[str, float]]()
    table = store.load_table(OPERATOR, torch_launch.device_key(device))
    flush = torch.empty(FLUSHED, dtype=torch.int32, device=device)
    kernels = {r.kernel.name: r for r in table.regions if r.dims[0] <= 64}
    for m, n, k in shapes:
        dims = dict(zip(table.dimensions, (m, n, k), strict=True))
        legal = {name: r.kernel for name, r in kernels.items() if r.legality.holds(dims)}
        calls = {x: torch_launch.from_source(one, table.operands, (m, n, k), device) for x, one in legal.items()}
        given: dict[str, Any] = {
            "a_s": torch.rand(k // 128, m, device=device) + 0.5,
            "b_s": torch.rand(-(-n // 128), k // 128, device=device) + 0.5,
        }
        for name, rows in (("a_q", m), ("b_q", n)):
            bits = torch.randint(0, 256, (rows, k), device=device, dtype=torch.uint8) & 0xBF
            given[name] = bits.view(torch.float8_e4m3fn)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(ROUNDS + 1):
            events = {}
            for name in list(calls)[:: 1 if turn % 2 else -1]:
                torch.cuda._sleep(500_000)  # so that the host is ahead
                flush.sum()
                events[name] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[name][0].record()
                calls[name](given)
                events[name][1].record()
            torch.cuda.synchronize()
            for name, (first, last) in events.items():
                times[name] += [first.elapsed_time(last) * 1e3] * bool(turn)
        found[f"{m} {n} {k}"] = {name: statistics.median(v) for name, v in times.items()}
    return found


def expression(params: Mapping[str, Any], c: Any) -> str:
    """The expected time of a kernel, as the dispatch rule reads it; six numbers c give it its size."""
    tiles, shared, beside = next(parts for name, parts in TILES.items() if name in params)
    slots = f"(132 - 4 * (d > 2)) * {beside}"
    terms = f"{c[0]:.4g} + waves * ({c[1]:.4g} * steps + {c[2]:.4g}) + {c[3]:.4g} * N * K + {c[4]:.4g} * M * N"
    terms += f" + {c[5]:.4g} * cdiv(tiles * d, 132) * steps"
    return (
        f"-1 if M < 16 or M > 64 else (lambda tiles: (lambda d: (lambda waves, steps: {terms})"
        f"(cdiv(tiles * d, {slots}), K / 128 / d))({shared}))({tiles})"
    )


def fitted(times: Mapping[str, Mapping[str, float]], params: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The expression of each kernel that was measured on 20 shapes or more."""
    from scipy.optimize import nnls

    found, scale = {}, np.array([1, 1, 1, 1e-6, 1e-6, 1])
    for name, own in params.items():
        rows = [(tuple(map(int, s.split())), us[name]) for s, us in times.items() if name in us]
        if len(rows) >= 20:
            parts = [[time_of(expression(own, unit), own, s) for unit in np.eye(6) * scale] for s, _ in rows]
            weights = np.array([us for _, us in rows])[:, None]
            found[name] = expression(own, nnls(np.array(parts) / weights, np.ones(len(rows)))[0] * scale)
    return found


def time_of(text: str, params: Mapping[str, Any], shape: Any) -> float:
    """What an expression says of a shape, in us."""
    from tilewright.library.dispatch_rule import Legality

    time = Legality((), dict(params), text).expected_time(dict(zip("MNK", shape, strict=True)))
    return math.inf if time is None else time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("measure", "fit"))
    parser.add_argument("times", type=Path)
    parser.add_argument("--seed", type=int, default=33113)
    parser.add_argument("--count", type=int, default=56)
    parser.add_argument("--judge", type=Path)
    asked = parser.parse_args()
    if asked.action == "measure":
        asked.times.write_text(json.dumps(measure(drawn(asked.seed, asked.count)), indent=1))
        return
    dispatch = store.current_dispatch(OPERATOR)["targets"]["h200"]["kernels"]
    params = {name: kernel["params"] for name, kernel in dispatch.items()}
    texts = fitted(json.loads(asked.times.read_text()), params)
    sys.stdout.write("".join(f"{name} {text}\n" for name, text in texts.items()))
    for path in filter(None, (asked.times, asked.judge)):
        of_best = []
        for shape, us in json.loads(path.read_text()).items():
            place = tuple(map(int, shape.split()))
            name = min(us.keys() & texts.keys(), key=lambda n: time_of(texts[n], params[n], place))
            of_best.append(min(us.values()) / us[name])
        sys.stdout.write(
            f"{path}: {statistics.geometric_mean(of_best):.4f} of the best kernel, worst {min(of_best):.4f}\n"
        )


if __name__ == "__main__":
    main()
