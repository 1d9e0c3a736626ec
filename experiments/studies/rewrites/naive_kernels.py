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
