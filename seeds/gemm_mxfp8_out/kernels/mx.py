"""MXFP8 of float32 tiles, and the second kernels of baselines and of sums in parts (see ``seeds.inlined``)."""

import triton
import triton.language as tl


@triton.jit
def mx(acc, BM: tl.constexpr, BN: tl.constexpr):
    """1 x 32 of float32: payloads [BM, BN] and exponents [BM, BN / 32], by bits."""
    blocks = tl.reshape(acc, (BM, BN // 32, 32))
    top = tl.max(blocks.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2)
    bits = (top.to(tl.float32, bitcast=True) * 0.002232142857142857).to(tl.int32, bitcast=True)
    part = bits & 0x7FFFFF
    e = tl.where(bits >> 23 == 0, (part > 0x400000).to(tl.int32), (bits >> 23) + (part != 0).to(tl.int32))
    factor = ((254 - tl.minimum(e, 254)) << 23).to(tl.float32, bitcast=True)
    scaled = tl.reshape(blocks * tl.reshape(factor, (BM, BN // 32, 1)), (BM, BN))
    return tl.clamp(scaled, -448.0, 448.0).to(tl.float8e4nv), e.to(tl.uint8)


@triton.jit
def store_tile(
    acc, d_ptr, ds_ptr, c_ptr, line, row, left, limit, N, BM: tl.constexpr, BN: tl.constexpr, FUSED: tl.constexpr
):
    """A tile whose rows lie at ``line`` of the outputs, up to row ``limit``; its columns begin at ``left``."""
    col = left + tl.arange(0, BN)
    stored = (row < limit)[:, None] & (col < N)[None, :]
    if FUSED:
        q, e = mx(acc, BM, BN)
        tl.store(d_ptr + line[:, None] * N + col[None, :], q, mask=stored)
        block = left // 32 + tl.arange(0, BN // 32)
        held = (row < limit)[:, None] & (block < N // 32)[None, :]
        tl.store(ds_ptr + line[:, None] * (N // 32) + block[None, :], e, mask=held)
    else:
        tl.store(c_ptr + line[:, None] * N + col[None, :], acc.to(tl.bfloat16), mask=stored)


@triton.jit
def added(c_ptr, at, inside, M, N, PARTS: tl.constexpr):
    """The float32 sum of PARTS products [M, N] at these places."""
    total = tl.load(c_ptr + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(c_ptr + (at + tl.cast(M, tl.int64) * N * part), mask=inside, other=0.0)
    return total


@triton.jit
def add_kernel(c_ptr, out_ptr, M, N, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.cast(M, tl.int64) * N
    tl.store(out_ptr + at, added(c_ptr, at, inside, M, N, PARTS).to(tl.bfloat16), mask=inside)


@triton.jit
def quantise_kernel(c_ptr, d_ptr, ds_ptr, M, N, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    num_n = tl.cdiv(N, BN)
    row = (tl.program_id(0) // num_n) * BM + tl.arange(0, BM)
    left = (tl.program_id(0) % num_n) * BN
    col = left + tl.arange(0, BN)
    inside = (row < M)[:, None] & (col < N)[None, :]
    line = row.to(tl.int64)
    c = added(c_ptr, line[:, None] * N + col[None, :], inside, M, N, PARTS)
    store_tile(c, d_ptr, ds_ptr, c_ptr, line, row, left, M, N, BM, BN, 1)


def quantised(c, d, ds, rows, parts):
    """Payloads ``d`` and exponents ``ds`` of the sum of ``parts`` products [rows, N]."""
    n = d.shape[-1]
    tall, wide = (8, 128) if parts > 1 else (32, 256)
    tiles = triton.cdiv(rows, tall) * triton.cdiv(n, wide)
    quantise_kernel[(tiles,)](c, d, ds, rows, n, parts, tall, wide, num_warps=4)
