"""Which rows the linear layer multiplies in FP8: what kernels take, and where FP8 was measured to be faster.

``kernels/gemm_fp8_blockwise/layer_times.json`` holds microseconds of a call in FP8 and in bf16, measured in a CUDA
graph, by mode, layer and rows, and the host's time of an eager call. Modes: ``kept`` (inference, weight quantised
before), ``infer`` (weight quantised in the call), ``train`` (forward and both gradients). An ``eager`` inference takes
the longer of both times. A gain is bf16's time over FP8's. Another layer than those measured is judged by the nearest,
in the sum of |log2 n| and |log2 k| (in ``train`` n and k may change places), less a share of the gain for each doubling
between (``DOUBT``); rows in between by a straight line over log2 of the rows. Standard library only.
"""

import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

from . import store
from .loaded import Dispatcher

BLOCK = 128
FAMILY = "gemm_fp8_blockwise"
FEW_ROWS = 256
"""Up to so many rows any number is multiplied without a gradient; more are filled up to a multiple of 4."""

FILLED_ROWS = 1024
"""From so many rows on any number is multiplied for a gradient, filled up with rows of zeros to whole blocks."""

DOUBT = 0.15
"""Of a gain, for each doubling between a layer and the one measured. Of the layers measured, each left out in turn, FP8
lost more than 3 % in 11 of 744 cases with kept weights, without it in 29; in training in 0 and 16 of 456."""

FARTHEST = 8
"""A kernel for few rows is legal for many, and slow: beyond so many times those of its shape it counts as none."""

Ranges = tuple[tuple[int, int], ...]
"""Rows from the first of a pair up to, and without, the second."""

ENDLESS = 1 << 62


def takes_rows(m: int, trains: bool) -> bool:
    """Whether a layer of so many rows is multiplied in FP8."""
    return bool(m) and (not trains or m % BLOCK == 0 or m >= FILLED_ROWS)


def whole_rows(m: int, trains: bool = True) -> int:
    """The rows that kernels work on: m, filled up to whole blocks for a gradient, or as the product takes them."""
    if trains:
        return -(-m // BLOCK) * BLOCK
    return m if m <= FEW_ROWS else -(-m // 4) * 4


@functools.lru_cache(maxsize=1)
def measured_times(folder: Path = store.KERNELS) -> dict[str, Any]:
    """The table of times; empty where there is none, or where a kernel serves that is neither the measured one nor
    was promoted over it since: a promotion that is not forced gains, and loses at most 5 % on any of its shapes."""
    try:
        table: dict[str, Any] = json.loads((folder / FAMILY / "layer_times.json").read_text(encoding="utf-8"))
        same = all(_descends_from(folder / FAMILY / op, version) for op, version in table["versions"].items())
    except (OSError, ValueError, KeyError, store.NotServed):
        return {}
    return table if same else {}


def _descends_from(place: Path, measured_version: str) -> bool:
    index = store.read_index(place)
    before = {entry["version"]: entry["previous"] for entry in index["history"] if not entry.get("forced")}
    version = index["current"]
    while version is not None and version != measured_version:
        version = before.pop(version, None)
    return bool(version == measured_version)


def gains(mode: str, way: str, n: int, k: int, device: str) -> dict[int, float]:
    """Gains by rows of the measured layer that is nearest to w [N, K]; empty where nothing is known of the device."""
    table = measured_times()
    layers = table.get("us", {}).get(mode, {}) if table.get("device") == device else {}
    if not layers:
        return {}

    def far(name: str) -> float:
        a, b = map(int, name.split("x"))
        # the three products of a training step are those of the transposed layer
        turned = ((a, b), (b, a)) if mode == "train" else ((a, b),)
        return min(abs(math.log2(n / of_n)) + abs(math.log2(k / of_k)) for of_n, of_k in turned)

    # a training step queues many layers ahead of the device
    host = table["host_us"][mode] if way == "eager" and mode != "train" else (0.0, 0.0)
    near = min(layers, key=lambda name: (far(name), name != f"{n}x{k}"))
    doubt = 1.0 + DOUBT * far(near)
    return {int(m): max(bf16, host[1]) / max(fp8, host[0]) / doubt for m, (fp8, bf16) in layers[near].items()}


_TABLES = Dispatcher()


@functools.lru_cache(maxsize=4096)
def served_rows(trains: bool, n: int, k: int, device: str) -> Ranges:
    """The rows at which kernels take the products of w [N, K], asked at powers of two: the reference is no fast way."""

    def takes(name: str, *dims: int) -> bool:
        try:
            known = _TABLES.table(f"{FAMILY}/{name}", device).choose(dims).dims
        except store.NotServed:
            return False
        rows = -1 if name == "gemm_nt_rows" else 0
        return dims[rows] <= FARTHEST * known[rows]

    found: list[tuple[int, int]] = []
    for m in (1 << power for power in range(7 if trains else 0, 24)):
        y = takes("gemm_nt", m, n, k)
        if trains:
            served = y and takes("gemm_nt", m, k, n) and takes("gemm_nt_rows", n, k, m)
        else:
            served = y or takes("linear", m, n, k)
        if served and found and found[-1][1] == m // 2 + 1:
            found[-1] = found[-1][0], m + 1
        elif served:
            found.append((m if found else 0, m + 1))
    return tuple(found)


def faster_rows(mode: str, way: str, n: int, k: int, device: str) -> Ranges:
    """The rows at which FP8 is at least as fast as bf16: all that kernels take where nothing was measured."""
    return _faster_rows(mode, way, n, k, device)


# torch.compile takes the ranges of a layer as constants, and traces the comparison of the rows with them; it would
# trace what stands behind a cache, file and all
faster_rows._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _faster_rows(mode: str, way: str, n: int, k: int, device: str) -> Ranges:
    points = sorted(gains(mode, way, n, k, device).items())
    served = served_rows(mode == "train", n, k, device)
    if not points:
        return served
    edges = [0] if points[0][1] >= 1.0 else []
    for (low, before), (high, after) in itertools.pairwise(points):
        if (before >= 1.0) != (after >= 1.0):
            share = (1.0 - before) / (after - before)
            edges.append(math.ceil(low * (high / low) ** share))
    edges += [ENDLESS] * (len(edges) % 2)
    faster = zip(edges[::2], edges[1::2], strict=True)
    both = ((max(a, c), min(b, d)) for (a, b), (c, d) in itertools.product(faster, served))
    return tuple((low, high) for low, high in both if low < high)


def is_faster(mode: str, way: str, m: int, n: int, k: int, device: str) -> bool:
    """Whether FP8 was measured to be at least as fast as bf16 at m rows of a layer w [N, K]."""
    return any(low <= m < high for low, high in faster_rows(mode, way, n, k, device))
