"""A product with block pointers, its right operand stored by columns, a bias on its rows."""

import torch
import triton
import triton.language as tl

SPACE = {"bm": (32, 64), "bn": (32, 64), "bk": (32, 64)}
DEFAULTS = {"bm": 64, "bn": 32, "bk": 32}
CONSTRAINTS = {}


@triton.jit
def product(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, x_row, w_row, y_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    row_tile = tl.program_id(0)
    column_tile = tl.program_id(1)
    x_at = tl.make_block_ptr(x_ptr, (M, K), (x_row, 1), (row_tile * BM, 0), (BM, BK), (1, 0))
    w_at = tl.make_block_ptr(
        base=w_ptr,
        shape=(K, N),
        strides=(1, w_row),
        offsets=(0, column_tile * BN),
        block_shape=(BK, BN),
        order=(0, 1),
    )
    y_at = tl.make_block_ptr(y_ptr, (M, N), (y_row, 1), (row_tile * BM, column_tile * BN), (BM, BN), (1, 0))
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):  # noqa: B007
        x = tl.load(x_at, boundary_check=(0, 1), padding_option="zero")
        w = tl.load(w_at, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(x, w)
        x_at = tl.advance(x_at, (0, BK))
        w_at = tl.advance(w_at, (BK, 0))
    rows = row_tile * BM + tl.arange(0, BM)
    bias = tl.load(bias_ptr + rows, mask=rows < M, other=0.0)
    tl.store(y_at, (total + bias[:, None]).to(tl.float16), boundary_check=(0, 1))


def launch(inputs, params):
    x, w, bias = inputs["x"], inputs["w"], inputs["bias"]
    m, k = x.shape
    n = w.shape[0]
    y = torch.empty((m, n), dtype=torch.float16)
    product[(triton.cdiv(m, params["bm"]), triton.cdiv(n, params["bn"]))](
        x, w, bias, y, m, n, k, x.stride(0), w.stride(0), y.stride(0),
        BM=params["bm"], BN=params["bn"], BK=params["bk"],
    )
    return (y,)
