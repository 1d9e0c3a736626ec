"""Kernels as a user writes them first, in plain Triton, and what they must compute: what ``structures`` starts from."""

import torch
import triton
import triton.language as tl


@triton.jit
def banded_tile(M, N, TILE_M: tl.constexpr, TILE_N: tl.constexpr, BAND: tl.constexpr):
    """The tile of this program: down the columns of one band of tile rows after the other."""
    program = tl.program_id(0)
    columns = tl.cdiv(N, TILE_N)
    top = program // (BAND * columns) * BAND
    height = tl.minimum(tl.cdiv(M, TILE_M) - top, BAND)
    within = program % (BAND * columns)
    return top + within % height, within // height


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_col, b_row, b_col, c_row,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tile_row, tile_col = banded_tile(M, N, TILE_M, TILE_N, BAND)
    rows = tile_row * TILE_M + tl.arange(0, TILE_M)
    cols = tile_col * TILE_N + tl.arange(0, TILE_N)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, K, TILE_K):
        ks = start + tl.arange(0, TILE_K)
        a = tl.load(
            a_ptr + rows[:, None] * a_row + ks[None, :] * a_col,
            mask=(rows[:, None] < M) & (ks[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + ks[:, None] * b_row + cols[None, :] * b_col,
            mask=(ks[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        total = tl.dot(a, b, total)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + rows[:, None] * c_row + cols[None, :], total.to(tl.bfloat16), mask=inside)


def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=torch.bfloat16)
    tile_m, tile_n = 64, 128
    tiles = triton.cdiv(M, tile_m) * triton.cdiv(N, tile_n)
    matmul_kernel[(tiles,)](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0),
        TILE_M=tile_m, TILE_N=tile_n, TILE_K=64, BAND=8, num_warps=4, num_stages=3,
    )  # fmt: skip
    return c


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def linear_gelu_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, x_row, w_row, y_row,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tile_row, tile_col = banded_tile(M, N, TILE_M, TILE_N, BAND)
    rows = tile_row * TILE_M + tl.arange(0, TILE_M)
    cols = tile_col * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    x_at = x_ptr + rows[:, None] * x_row + depth[None, :]
    w_at = w_ptr + depth[:, None] * w_row + cols[None, :]
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, TILE_K)):
        left = K - step * TILE_K
        x = tl.load(x_at, mask=(rows[:, None] < M) & (depth[None, :] < left), other=0.0)
        w = tl.load(w_at, mask=(depth[:, None] < left) & (cols[None, :] < N), other=0.0)
        total = tl.dot(x, w, total)
        x_at += TILE_K
        w_at += TILE_K * w_row
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    y = gelu(total + bias[None, :])
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(y_ptr + rows[:, None] * y_row + cols[None, :], y.to(tl.bfloat16), mask=inside)


def linear_gelu(x, w, bias):
    M, K = x.shape
    N = w.shape[1]
    y = torch.empty((M, N), device=x.device, dtype=torch.bfloat16)
    tile_m, tile_n = 64, 128
    tiles = triton.cdiv(M, tile_m) * triton.cdiv(N, tile_n)
    linear_gelu_kernel[(tiles,)](
        x, w, bias, y, M, N, K, x.stride(0), w.stride(0), y.stride(0),
        TILE_M=tile_m, TILE_N=tile_n, TILE_K=64, BAND=8, num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def linear_gelu_reference(x, w, bias):
    return torch.nn.functional.gelu(x @ w + bias)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + col, mask=col < N, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * N + col, (e / tl.sum(e, axis=0)).to(tl.bfloat16), mask=col < N)


def softmax(x):
    M, N = x.shape
    y = torch.empty((M, N), device=x.device, dtype=torch.bfloat16)
    softmax_kernel[(M,)](x, y, N, BLOCK=triton.next_power_of_2(N), num_warps=4)
    return y


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + col, mask=col < N, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + col, mask=col < N, other=0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x, axis=0) / N + 1e-6) * w
    tl.store(y_ptr + row * N + col, y.to(tl.bfloat16), mask=col < N)


def rms_norm(x, w):
    M, N = x.shape
    y = torch.empty((M, N), device=x.device, dtype=torch.bfloat16)
    rms_norm_kernel[(M,)](x, w, y, N, BLOCK=triton.next_power_of_2(N), num_warps=4)
    return y


def rms_norm_reference(x, w):
    return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-6) * w


@triton.jit
def rms_norm_quantise_kernel(x_ptr, w_ptr, q_ptr, s_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + col, mask=col < N, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + col, mask=col < N, other=0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x, axis=0) / N + 1e-6) * w
    s = tl.maximum(tl.max(tl.abs(y), axis=0), 1e-4) / 448.0
    tl.store(q_ptr + row * N + col, (y / s).to(tl.float8e4nv), mask=col < N)
    tl.store(s_ptr + row, s)


def rms_norm_quantise(x, w):
    M, N = x.shape
    q = torch.empty((M, N), device=x.device, dtype=torch.float8_e4m3fn)
    s = torch.empty((M,), device=x.device, dtype=torch.float32)
    rms_norm_quantise_kernel[(M,)](x, w, q, s, N, BLOCK=triton.next_power_of_2(N), num_warps=4)
    return q, s


def rms_norm_quantise_reference(x, w):
    y = x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-6) * w
    s = y.abs().amax(dim=1).clamp(min=1e-4) / 448.0
    return (y / s[:, None]).to(torch.float8_e4m3fn), s


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * N * D
    rows = tile * TILE_Q + tl.arange(0, TILE_Q)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + d[None, :], mask=rows[:, None] < N, other=0.0)
    top = tl.full((TILE_Q,), -float("inf"), tl.float32)
    total = tl.zeros((TILE_Q,), tl.float32)
    out = tl.zeros((TILE_Q, D), tl.float32)
    for start in range(0, (tile + 1) * TILE_Q, TILE_K):
        cols = start + tl.arange(0, TILE_K)
        k = tl.load(k_ptr + head + cols[None, :] * D + d[:, None], mask=cols[None, :] < N, other=0.0)
        s = tl.dot(q, k) * scale
        s = tl.where(rows[:, None] >= cols[None, :], s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptr + head + cols[:, None] * D + d[None, :], mask=cols[:, None] < N, other=0.0)
        out = tl.dot(p.to(tl.bfloat16), v, out * shrink[:, None])
        top = higher
    y = out / total[:, None]
    tl.store(o_ptr + head + rows[:, None] * D + d[None, :], y.to(tl.bfloat16), mask=rows[:, None] < N)


def attention(q, k, v):
    H, N, D = q.shape
    o = torch.empty((H, N, D), device=q.device, dtype=torch.bfloat16)
    tile_q = 128
    attention_kernel[(triton.cdiv(N, tile_q), H)](
        q, k, v, o, N, D**-0.5, D=D, TILE_Q=tile_q, TILE_K=64, num_warps=4, num_stages=3
    )
    return o


def attention_reference(q, k, v):
    s = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    n = q.shape[1]
    hidden = torch.ones((n, n), dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(s.masked_fill(hidden, -float("inf")), dim=-1) @ v


@triton.jit
def int4_matmul_kernel(
    x_ptr, w_ptr, s_ptr, y_ptr, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, K, TILE_K):
        ks = start + depth
        x = tl.load(
            x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0
        )
        pair = tl.load(
            w_ptr + ks[:, None] * (N // 2) + (cols // 2)[None, :],
            mask=(ks[:, None] < K) & (cols[None, :] < N),
            other=0,
        )
        w = (pair.to(tl.int32) >> ((cols % 2) * 4)[None, :] & 15) - 8
        total = tl.dot(x, w.to(tl.bfloat16), total)
    scale = tl.load(s_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    y = (total * scale[None, :]).to(tl.bfloat16)
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y, mask=inside)


def int4_matmul(x, w, s):
    M, K = x.shape
    N = 2 * w.shape[1]
    y = torch.empty((M, N), device=x.device, dtype=torch.bfloat16)
    tile_m, tile_n = 64, 64
    int4_matmul_kernel[(triton.cdiv(M, tile_m), triton.cdiv(N, tile_n))](
        x, w, s, y, M, N, K, TILE_M=tile_m, TILE_N=tile_n, TILE_K=64, num_warps=4, num_stages=3
    )
    return y


def int4_matmul_reference(x, w, s):
    pair = w.to(torch.int32)
    codes = torch.stack([pair & 15, pair >> 4 & 15], dim=2).reshape(w.shape[0], -1) - 8
    return (x @ codes.to(x.dtype)) * s.reshape(-1)


@triton.jit
def grouped_matmul_kernel(
    x_ptr, w_ptr, sizes_ptr, y_ptr, T, N, K, G,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    group = G - 1
    begin = T
    end = T
    row = 0
    before = 0
    for g in range(G):
        size = tl.load(sizes_ptr + g)
        tiles = tl.cdiv(size, TILE_M)
        mine = (tile >= before) & (tile < before + tiles)
        group = tl.where(mine, g, group)
        begin = tl.where(mine, row + (tile - before) * TILE_M, begin)
        end = tl.where(mine, row + size, end)
        row += size
        before += tiles
    rows = begin + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    weights = w_ptr + group.to(tl.int64) * K * N
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, K, TILE_K):
        ks = start + depth
        x = tl.load(
            x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < end) & (ks[None, :] < K), other=0.0
        )
        w = tl.load(
            weights + ks[:, None] * N + cols[None, :], mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0
        )
        total = tl.dot(x, w, total)
    inside = (rows[:, None] < end) & (cols[None, :] < N)
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], total.to(tl.bfloat16), mask=inside)


def grouped_matmul(x, w, sizes):
    T, K = x.shape
    G, _, N = w.shape
    y = torch.empty((T, N), device=x.device, dtype=torch.bfloat16)
    tile_m, tile_n = 64, 64
    grouped_matmul_kernel[(triton.cdiv(T, tile_m) + G, triton.cdiv(N, tile_n))](
        x, w, sizes, y, T, N, K, G, TILE_M=tile_m, TILE_N=tile_n, TILE_K=64, num_warps=4, num_stages=3
    )
    return y


def grouped_matmul_reference(x, w, sizes):
    parts = x.split(sizes.tolist())
    return torch.cat([part @ w[g] for g, part in enumerate(parts)])
