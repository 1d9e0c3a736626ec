"""Made-up kernels, as tables: families of spaces on which choices of the search are made, and others that judge them.

A family is a rough model of one kind of GPU kernel: occupancy, waves, coalescing, traffic, pipelining, bank conflicts.
Its seed draws a device (shared memory, registers, multiprocessors, latency) and the weight of each effect, and so
moves the optimum. ``DEVELOPMENT`` chooses; ``HELD_OUT`` (other devices of these families, and families of their own)
only judges.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from testkit.spaces.tables import Table
from tilewright.evolve.space.genome import Value
from tilewright.evolve.space.space import Space

Params = Mapping[str, Any]


def made_up(
    name: str, values: Mapping[str, Sequence[Value]], limits: Sequence[str], time: Callable[[Params], float]
) -> Table:
    """A table of ``time`` in ms, NaN where a point fails."""
    space = Space(values, dict.fromkeys(limits, "made up"))
    assert space.points is not None
    codes = space.codes(space.points)
    order = np.argsort(codes)
    times = np.array([time(space.decode(row)) for row in space.points[order]]) / 1e3
    return Table(name, "", space, codes[order], times, f'"""{name}"""\n')


def occupancy(threads: int, registers: float, shared: float, memory: int = 102_400) -> float:
    """Share of 2048 threads of a multiprocessor that are resident; 0 where a block does not fit."""
    warps = -(-threads // 32)
    if registers > 255:
        return 0.0
    blocks = min(32, 64 // warps, int(65_536 // (max(registers, 16.0) * warps * 32)))
    if shared:
        blocks = min(blocks, int(memory // shared))
    return blocks * warps * 32 / 2048


def waves(blocks: float, threads: int, busy: float, processors: int) -> float:
    """Rounds of resident blocks over the work they would take if it divided evenly, at least 1."""
    at_once = processors * max(1, int(busy * 2048 // threads))
    return math.ceil(blocks / at_once) * at_once / blocks


def _noise(*key: object) -> float:
    """In [0, 1), the same on every machine."""
    return zlib.crc32(repr(key).encode()) / 2**32


_STENCIL: Mapping[str, Sequence[Value]] = {
    "block_size_x": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "block_size_y": (1, 2, 4, 8, 16, 32),
    "tile_size_x": (1, 2, 3, 4, 5, 6, 8),
    "tile_size_y": (1, 2, 3, 4, 5, 6, 8),
    "temporal_tiling_factor": (1, 2, 3, 4, 5, 6),
    "loop_unroll_factor_t": (1, 2, 3, 4, 5, 6),
    "sh_power": (0, 1),
}
_STENCIL_LIMITS = (
    "32 <= block_size_x * block_size_y <= 1024",
    "temporal_tiling_factor % loop_unroll_factor_t == 0",
    "(block_size_x * tile_size_x + temporal_tiling_factor * 2)"
    " * (block_size_y * tile_size_y + temporal_tiling_factor * 2) * (2 + sh_power) * 4 <= 49152",
)


def stencil(seed: int) -> Table:
    """A stencil tiled in time: registers, shared memory, halos, coalescing and waves."""
    rng = np.random.default_rng(seed)
    slope, base, latency, band = rng.uniform([2, 14, 0.2, 0.7], [6, 30, 0.5, 1.4])
    memory = int(rng.choice([64, 100, 164])) * 1024

    def time(point: Params) -> float:
        bx, by, tx, ty, steps, unroll, power = point.values()
        registers = base + slope * tx * ty * (1 + 0.15 * unroll) + (0 if power else 2 * tx * ty)
        if registers > 400:
            return math.nan
        if registers > 255:
            return 5 * (1 + registers / 255)
        halo = (bx * tx + 2 * steps) * (by * ty + 2 * steps)
        busy = occupancy(bx * by, registers, halo * (2 + power) * 4, memory)
        if busy <= 0:
            return math.nan
        area = bx * tx * by * ty
        share = halo / area
        coalescing = 1.0 if bx % 32 == 0 else 1.15 if bx >= 16 else 1 + 2.4 / bx
        compute = share * steps * (1.1 + 0.25 / unroll) * (1.2 if power and bx in (8, 16) else 1.0)
        traffic = band * share * coalescing * (2.0 if power else 2.2) * 2.5
        at_once = area * 108 * max(1, busy * 2048 // (bx * by))
        rounds = math.ceil(4096 * 4096 / at_once) * at_once / (4096 * 4096)
        hidden = 1 + latency * (0.35 / busy) / (tx * ty) ** 0.4
        return max(compute, traffic) / steps * hidden * rounds * (0.97 + 0.06 * _noise(seed, *point.values()))

    return made_up(f"stencil-{seed}", _STENCIL, _STENCIL_LIMITS, time)


_PRODUCT: Mapping[str, Sequence[Value]] = {
    "bm": (16, 32, 64, 128, 256),
    "bn": (16, 32, 64, 128, 256),
    "bk": (8, 16, 32, 64),
    "warps": (1, 2, 4, 8, 16),
    "stages": (1, 2, 3, 4),
    "vec": (1, 2, 4, 8),
    "swizzle": (1, 4),
    "layout": ("row", "col", "mix"),
    "split": (1, 2, 4),
}
_PRODUCT_LIMITS = (
    "bm * bn // (warps * 32) <= 256",
    "bm * bn >= warps * 32 * 4",
    "(bm + bn) * bk * 2 * stages <= 98304",
    "bk % vec == 0",
)


def product(seed: int) -> Table:
    """A matrix product: registers, pipelining, memory traffic, bank conflicts and waves."""
    weights = np.random.default_rng(seed).uniform(0.7, 1.4, 8)

    def time(point: Params) -> float:
        bm, bn, bk, warps, stages, vec, swizzle, layout, split = point.values()
        registers = 30 + bm * bn / (warps * 32) * weights[0] + 6 * vec
        if registers > 255:
            return math.nan if registers > 300 else 4 * registers / 255
        busy = occupancy(warps * 32, registers, (bm + bn) * bk * 2 * stages)
        if busy <= 0:
            return math.nan
        compute = 1 + 0.8 * weights[1] * 16 / bk / (1 + 0.3 * stages)
        compute *= 1 + 0.25 * abs(math.log2(bm * bn / (warps * 32) / 64)) * weights[2]
        traffic = 70 * weights[3] / (bm * bn / (bm + bn)) * {1: 1.6, 2: 1.25}.get(vec, 1.0)
        traffic *= {"row": 1.0, "col": 1.12 * weights[4], "mix": 0.97}[layout]
        traffic *= 1 - 0.06 * weights[6] * math.log2(swizzle) * (1.0 if bm >= bn else 0.3)
        latency = 0.35 * weights[5] / (busy * min(stages, 4) ** 0.7) / 2
        tiles, slots = (4096 // bm) * (2048 // bn) * split, 108 * max(1, int(busy * 2048 // (warps * 32)))
        rounds = (math.ceil(tiles / slots) * slots / tiles) ** 0.8
        banks = 1.3 if layout == "col" and bk == 32 and vec < 8 else 1.0
        noise = 0.98 + 0.04 * _noise(seed, *point.values())
        return (
            (max(compute, traffic) * banks + latency) * rounds * (1 + 0.04 * (split - 1) * weights[7]) * noise
        )

    return made_up(f"product-{seed}", _PRODUCT, _PRODUCT_LIMITS, time)


_FILTER: Mapping[str, Sequence[Value]] = {
    "bx": (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256),
    "by": (1, 2, 4, 8, 16, 32),
    "tx": (1, 2, 3, 4, 6, 8),
    "ty": (1, 2, 3, 4, 6, 8),
    "cached": (0, 1),
    "padded": (0, 1),
    "texture": (0, 1),
}
_FILTER_LIMITS = (
    "64 <= bx * by <= 1024",
    "padded == 0 or (cached != 0 and bx % 32 != 0)",
    "cached == 0 or (bx * tx + 10) * (by * ty + 10) * 4 <= 49152",
    "tx * ty <= 36",
)


def image_filter(seed: int) -> Table:
    """A two-dimensional filter: registers hold a tile's sums, shared memory its halo; rows of threads conflict."""
    rng = np.random.default_rng([seed, 3])
    reuse, spill, latency, banks, cache = rng.uniform([0.5, 0.6, 0.3, 1.1, 1.2], [1.6, 1.4, 1.2, 1.9, 2.6])
    width, memory = int(rng.choice([5, 11])), int(rng.choice([64, 100, 164])) * 1024
    processors, sweet = int(rng.choice([68, 82, 108, 132])), float(rng.choice([4, 6, 9]))

    def time(point: Params) -> float:
        bx, by, tx, ty, cached, padded, texture = point.values()
        registers = 18 + spill * 5.2 * tx * ty + (4 if cached else 9)
        if registers > 300:
            return math.nan
        halo = (bx * tx + width - 1) * (by * ty + width - 1)
        busy = occupancy(bx * by, min(registers, 255.0), halo * 4.0 if cached else 0.0, memory)
        if busy <= 0:
            return math.nan
        loads = width * width / (1 + reuse * math.log2(tx * ty * 1.0)) / 20
        loads *= 1.0 if cached else cache * (0.8 if texture else 1.0)
        loads *= banks if cached and not padded and bx % 32 and bx % 16 else 1.0
        fetch = halo / (bx * tx * by * ty) * (1.0 if bx % 32 == 0 else 1.25 if bx >= 16 else 1.7)
        work = width * width / 40 * (1 + 0.12 * abs(math.log2(tx * ty / sweet)))
        slow = 1 + latency * 0.25 / (busy * (tx * ty) ** 0.5)
        overflow = 1.0 if registers <= 255 else 2.5
        rounds = waves(4096 * 4096 / (bx * tx * by * ty), bx * by, busy, processors) ** 0.9
        return (
            (max(work, loads) + 0.6 * fetch)
            * slow
            * overflow
            * rounds
            * (0.98 + 0.04 * _noise(seed, *point.values()))
        )

    return made_up(f"filter-{seed}", _FILTER, _FILTER_LIMITS, time)


_BLOCKED: Mapping[str, Sequence[Value]] = {
    "wgm": (16, 32, 64, 128),
    "wgn": (16, 32, 64, 128),
    "threads_m": (8, 16, 32),
    "threads_n": (8, 16, 32),
    "load_m": (8, 16, 32),
    "load_n": (8, 16, 32),
    "vec_m": (1, 2, 4, 8),
    "vec_n": (1, 2, 4, 8),
    "share_a": (0, 1),
    "share_b": (0, 1),
}
_BLOCKED_LIMITS = (
    "wgm % (threads_m * vec_m) == 0",
    "wgn % (threads_n * vec_n) == 0",
    "wgm % (load_m * vec_m) == 0",
    "wgn % (load_n * vec_n) == 0",
    "32 % (threads_m * threads_n / load_m) == 0",
    "32 % (threads_m * threads_n / load_n) == 0",
)


def blocked(seed: int) -> Table:
    """A product written for many devices: each thread's share, vectors, what is staged in shared memory."""
    weights = np.random.default_rng([seed, 4]).uniform(0.6, 1.5, 9)
    memory = int(np.random.default_rng([seed, 5]).choice([48, 100, 164])) * 1024
    likes = 2 ** int(np.random.default_rng([seed, 6]).integers(1, 3))

    def time(point: Params) -> float:
        wm, wn, tm, tn, lm, ln, vm, vn, sa, sb = point.values()
        each = (wm // tm) * (wn // tn)
        registers = 24 + 1.3 * weights[0] * each + 3 * (vm + vn)
        if registers > 330:
            return math.nan
        busy = occupancy(tm * tn, min(registers, 255.0), (sa * wm + sb * wn) * 32 * 4.0, memory)
        if busy <= 0:
            return math.nan
        compute = 1 + weights[1] * 6 / each**0.8
        traffic = weights[2] * 30 * ((1.0 if sa else 1.5) / wn + (1.0 if sb else 1.4) / wm)
        vectors = (
            1 + 0.1 * weights[3] * abs(math.log2(vm / likes)) + 0.1 * weights[4] * abs(math.log2(vn / likes))
        )
        loads = 1 + 0.06 * weights[5] * abs(math.log2(lm / tm)) + 0.06 * weights[6] * abs(math.log2(ln / tn))
        banks = 1 + 0.3 * weights[7] * (sa and vm * tm < 32) + 0.2 * (sb and vn > 4)
        latency = 0.12 * weights[8] / busy
        rounds = waves(2048 * 2048 / (wm * wn), tm * tn, busy, 82) ** 0.7
        spilled = 1.0 if registers <= 255 else 3.0
        noise = 0.98 + 0.04 * _noise(seed, *point.values())
        return (max(compute, traffic) * vectors * loads * banks + latency) * rounds * spilled * noise

    return made_up(f"blocked-{seed}", _BLOCKED, _BLOCKED_LIMITS, time)


_CORNER: Mapping[str, Sequence[Value]] = {
    "tile": (16, 32, 48, 64, 96, 128, 192, 256),
    "depth": (1, 2, 3, 4, 5, 6, 7, 8),
    "lanes": (1, 2, 4, 8, 16, 32),
    "unroll": (1, 2, 3, 4, 6, 8),
    "groups": (1, 2, 4, 8),
    "early": (0, 1),
}
_CORNER_LIMITS = ("tile * lanes <= 4096", "depth * unroll <= 48", "lanes * groups >= 2")


def corner(seed: int) -> Table:
    """Two mountains: a broad one that reaches 0.83, and one whose top, a few points, has three parameters at an end."""
    rng = np.random.default_rng([seed, 7])
    ends = {name: int(rng.integers(2)) for name in ("depth", "unroll", "groups")}
    low, high = sorted(rng.choice([32, 64, 128], 2, replace=False).tolist(), key=lambda _: rng.random())
    few, many = sorted(rng.choice([2, 4, 8, 16], 2, replace=False).tolist(), key=lambda _: rng.random())
    broad, steep = rng.uniform(0.10, 0.25, 5), rng.uniform(0.10, 0.35, 5)

    def off(name: str, value: Value) -> float:
        values = _CORNER[name]
        place = values.index(value) / (len(values) - 1)
        return 1.0 - place if ends[name] else place

    def time(point: Params) -> float:
        tile, depth, lanes, unroll, groups, early = point.values()
        if depth * lanes * tile > 16_384 * (1 + ends["depth"]):
            return math.nan
        apart = np.array([off("depth", depth), off("unroll", unroll), off("groups", groups)])
        one = [abs(math.log2(tile / low)), abs(math.log2(lanes / few)), *np.abs(apart - 0.5)]
        other = [abs(math.log2(tile / high)), abs(math.log2(lanes / many)), *apart]
        mountain = 1.2 * math.exp(float(broad @ one))
        peak = math.exp(float(steep @ other)) * (1.0 if sum(other) < 0.3 else 1.17)
        return (min(mountain, peak) + 0.02 * early) * (0.98 + 0.04 * _noise(seed, *point.values()))

    return made_up(f"corner-{seed}", _CORNER, _CORNER_LIMITS, time)


_CHANNELS: Mapping[str, Sequence[Value]] = {
    "block_x": (1, 2, 4, 8, 16, 32, 64),
    "block_y": tuple(range(16, 257, 16)),
    "per_x": (1, 2, 3, 4, 5),
    "per_y": (1, 2, 3, 4, 5, 6, 7, 8),
    "stride_x": (0, 1),
    "stride_y": (0, 1),
    "unroll": (1, 2, 4, 8),
}
_CHANNELS_LIMITS = (
    "32 <= block_x * block_y <= 1024",
    "per_x > 1 or stride_x == 0",
    "per_y > 1 or stride_y == 0",
)


def channels(seed: int) -> Table:
    """Sums over shifted channels: bound by caches, good when neighbours share lines and threads have several sums."""
    rng = np.random.default_rng([seed, 8])
    share, registers_each, latency, unrolled, strided = rng.uniform(
        [1, 2, 0.3, 0.02, 0.7], [4, 5, 1.1, 0.12, 1.3]
    )
    processors = int(rng.choice([56, 82, 108]))

    def time(point: Params) -> float:
        bx, by, px, py, sx, sy, unroll = point.values()
        registers = 20 + registers_each * px * py * (1 + 0.05 * unroll)
        busy = occupancy(bx * by, min(registers, 255.0), 0)
        if busy <= 0 or registers > 420:
            return math.nan
        lines = 1 + share / (px * bx) ** 0.5 * (strided if sx else 1.0) + 0.4 / (py * (1.0 if sy else 1.15))
        slow = 1 + latency * 0.2 / (busy * (px * py) ** 0.6)
        rounds = waves(9000 * 2048 / (bx * by * px * py), bx * by, busy, processors)
        spill = 1.0 if registers <= 255 else 1.9
        aligned = 1.0 if bx * by % 32 == 0 else 1 + 0.5 * (32 - bx * by % 32) / (bx * by)
        noise = 0.985 + 0.03 * _noise(seed, *point.values())
        return lines * slow * rounds * spill * aligned * (1 - unrolled * math.log2(unroll)) * noise

    return made_up(f"channels-{seed}", _CHANNELS, _CHANNELS_LIMITS, time)


_ROWS: Mapping[str, Sequence[Value]] = {
    "block": (128, 256, 512, 1024, 2048, 4096, 8192),
    "rows": (1, 2, 4, 8, 16),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5),
    "vector": (1, 2, 4, 8),
    "programs": (1, 2, 4, 8, 16),
    "policy": ("plain", "first", "last"),
    "two_pass": (False, True),
}
_ROWS_LIMITS = ("block * rows // (num_warps * 32) <= 512", "block * rows >= num_warps * 32")


def rows(seed: int) -> Table:
    """A reduction over rows: bytes in flight, registers of a row, a tail of programs."""
    rng = np.random.default_rng([seed, 9])
    flight, tail, twice, policy, ideal = rng.uniform([20, 0.2, 1.2, 0.0, 6], [60, 1.0, 1.6, 0.12, 9])
    width = int(rng.choice([2048, 4096, 8192, 16384]))

    def time(point: Params) -> float:
        block, many, warps, stages, vector, programs, kind, second = point.values()
        each = block * many / (warps * 32)
        registers = 16 + each * (0.7 if second else 1.1) + 2 * stages
        if registers > 400:
            return math.nan
        busy = occupancy(warps * 32, min(registers, 255.0), block * many * 2.0 * (stages - 1), 228 * 1024)
        if busy <= 0:
            return math.nan
        in_flight = busy * 64 * min(each, 8.0 * vector) ** 0.6 * (1 + 0.35 * (stages - 1)) ** 0.7
        moving = 1 + (flight / in_flight) ** 1.4
        passes = 1.0 if block >= width else (twice if not second else twice * 0.93) + 0.02 * width / block
        ends = 1 + tail * 0.3 * abs(math.log2(programs * busy * 64 / warps) - ideal / 2) / 4
        vectors = {1: 1.3, 2: 1.1, 4: 1.0, 8: 0.98 if each >= 8 else 1.2}[vector]
        hint = {"plain": 1.0, "first": 1 - policy, "last": 1 + policy}[kind]
        spilled = 1.0 if registers <= 255 else 2.2
        return (
            moving * passes * ends * vectors * hint * spilled * (0.98 + 0.04 * _noise(seed, *point.values()))
        )

    return made_up(f"rows-{seed}", _ROWS, _ROWS_LIMITS, time)


_ATTENTION: Mapping[str, Sequence[Value]] = {
    "block_q": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128, 256),
    "warps": (2, 4, 8, 16),
    "stages": (1, 2, 3, 4),
    "split_k": (1, 2, 4, 8),
    "swap": (False, True),
    "exp": ("fast", "exact", "split"),
    "order": (0, 1, 2, 3),
    "prefetch": (0, 1),
}
_ATTENTION_LIMITS = (
    "(block_q * 2 + block_k * 2 * stages) * 128 * 2 <= 232448",
    "block_q * block_k // (warps * 32) <= 256",
)


def attention(seed: int) -> Table:
    """Two products around an exponential: what is held in registers against what streams past."""
    weights = np.random.default_rng([seed, 10]).uniform(0.6, 1.5, 10)

    def time(point: Params) -> float:
        bq, bk, warps, stages, split, swap, exp, order, prefetch = point.values()
        registers = 40 + (bq * bk + bq * 128) / (warps * 32) * 0.8 * weights[0] + (20 if swap else 0)
        if registers > 380:
            return math.nan
        busy = occupancy(warps * 32, min(registers, 255.0), (bq * 2 + bk * 2 * stages) * 256.0, 228 * 1024)
        if busy <= 0:
            return math.nan
        width = 1 + weights[1] * 10 / bk + weights[2] * 14 / bq + 0.3 * (bq // (warps * 16) == 0)
        exponent = {"fast": 0.25, "exact": 0.45, "split": 0.32}[exp] * weights[3] * (0.8 if swap else 1.0)
        stream = weights[4] * 40 / bq * (1 - 0.1 * prefetch * (stages > 1))
        latency = 0.4 * weights[5] / (busy * 16 * stages**0.8)
        tiles = 64 * (4096 // bq) * split
        slots = 132 * max(1, int(busy * 2048 // (warps * 32)))
        rounds = (math.ceil(tiles / slots) * slots / tiles) ** 0.9
        merged = 1 + 0.05 * weights[6] * math.log2(split)
        caches = 1 + 0.03 * weights[7] * abs(order - int(weights[8] * 2))
        spilled = 1.0 if registers <= 255 else 2.0
        noise = 0.98 + 0.04 * _noise(seed, *point.values())
        return (max(width + exponent, stream) + latency) * rounds * merged * caches * spilled * noise

    return made_up(f"attention-{seed}", _ATTENTION, _ATTENTION_LIMITS, time)


_TRANSPOSE: Mapping[str, Sequence[Value]] = {
    "dim_x": (4, 8, 16, 32, 64, 128),
    "dim_y": (1, 2, 4, 8, 16, 32),
    "per_thread": (1, 2, 4, 8, 16),
    "pad": (0, 1, 2, 4),
    "vec_in": (1, 2, 4),
    "vec_out": (1, 2, 4),
    "diagonal": (0, 1),
    "streams": (1, 2, 3, 4),
}
_TRANSPOSE_LIMITS = (
    "32 <= dim_x * dim_y <= 1024",
    "(dim_x * vec_in + pad) * dim_y * per_thread * 4 <= 65536",
    "per_thread % vec_out == 0",
)


def transpose(seed: int) -> Table:
    """A copy that turns its tile: coalescing on both sides, bank conflicts between them."""
    weights = np.random.default_rng([seed, 11]).uniform(0.5, 1.6, 8)

    def time(point: Params) -> float:
        dx, dy, each, pad, vin, vout, diagonal, streams = point.values()
        tile = (dx * vin + pad) * dy * each * 4.0
        busy = occupancy(dx * dy, 16 + 3 * each + 2 * vin * vout * streams, tile * streams, 164 * 1024)
        if busy <= 0:
            return math.nan
        read = 1 + weights[0] * (32 / (dx * vin) if dx * vin < 32 else 0.05 * math.log2(dx * vin / 32))
        write = 1 + weights[1] * (32 / (dy * each * vout) if dy * each * vout < 32 else 0.0)
        banks = math.gcd(int(dx * vin + pad), 32)
        conflict = 1 + 0.12 * weights[2] * math.log2(banks)
        flight = busy * 2048 * min(each, 8) * streams**0.5
        moving = 1 + (weights[3] * 2600 / flight) ** 1.3
        camping = 1 + 0.08 * weights[4] * (1 - diagonal) + 0.05 * weights[5] * diagonal
        noise = 0.98 + 0.04 * _noise(seed, *point.values())
        return (read + write) * conflict * moving * camping * noise

    return made_up(f"transpose-{seed}", _TRANSPOSE, _TRANSPOSE_LIMITS, time)


_KINDS: Mapping[str, Callable[[int], Table]] = {
    "stencil": stencil,
    "product": product,
    "filter": image_filter,
    "blocked": blocked,
    "corner": corner,
    "channels": channels,
    "rows": rows,
    "attention": attention,
    "transpose": transpose,
}


def named(*names: str) -> Mapping[str, Callable[[], Table]]:
    parts = {name: name.rpartition("-") for name in names}
    return {name: partial(_KINDS[kind], int(seed)) for name, (kind, _, seed) in parts.items()}


DEVELOPMENT = named(
    "stencil-1", "stencil-2", "product-1", "filter-1", "filter-2", "blocked-1", "blocked-2", "corner-1", "corner-2",
    "rows-1",
)  # fmt: skip
HELD_OUT = named(
    "stencil-11", "product-11", "filter-11", "blocked-11", "corner-11", "corner-12", "channels-11", "channels-12",
    "attention-11", "attention-12", "transpose-11",
)  # fmt: skip
