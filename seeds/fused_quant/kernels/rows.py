"""1 x 128 quantisation of a bf16 matrix, the second kernel of what is not fused (see ``seeds.inlined``)."""

import triton
import triton.language as tl


@triton.jit
def rows_kernel(y_ptr, q_ptr, s_ptr, M, K, BM: tl.constexpr):
    row = tl.program_id(0) % tl.cdiv(M, BM) * BM + tl.arange(0, BM)
    step = tl.program_id(0) // tl.cdiv(M, BM)
    mask = row < M
    at = row.to(tl.int64)[:, None] * K + (step * 128 + tl.arange(0, 128))[None, :]
    y = tl.load(y_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    scale = tl.div_rn(448.0, tl.maximum(tl.max(tl.abs(y), axis=1), 1e-4))
    tl.store(q_ptr + at, (y * scale[:, None]).to(tl.float8e4nv), mask=mask[:, None])
    tl.store(s_ptr + step.to(tl.int64) * M + row, tl.div_rn(1.0, scale), mask=mask)
