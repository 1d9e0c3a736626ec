"""Causal attention with shared heads of keys: strides as parameters, pointers that a loop advances."""

import torch
import triton
import triton.language as tl

SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8)}
DEFAULTS = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
CONSTRAINTS = {}


@triton.jit
def attention_kernel(
    Q, K, V, Out, sm_scale, stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om,
    shared, N_Q, N_K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr,
):
    start_m = tl.program_id(0)
    head = tl.program_id(1)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD)
    q_ptrs = Q + head * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :]
    k_ptrs = K + (head // shared) * stride_kh + offs_n[None, :] * stride_kn + offs_d[:, None]
    v_ptrs = V + (head // shared) * stride_vh + offs_n[:, None] * stride_vn + offs_d[None, :]
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    q = tl.load(q_ptrs, mask=offs_m[:, None] < N_Q, other=0.0)
    for start_n in range(0, tl.minimum((start_m + 1) * BLOCK_M, N_K), BLOCK_N):
        k = tl.load(k_ptrs, mask=(start_n + offs_n)[None, :] < N_K, other=0.0)
        qk = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        qk += tl.dot(q, k)
        qk *= sm_scale
        keep = (offs_m[:, None] >= start_n + offs_n[None, :]) & ((start_n + offs_n)[None, :] < N_K)
        qk = tl.where(keep, qk, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_ij[:, None])
        acc = acc * tl.exp(m_i - m_ij)[:, None]
        l_i = l_i * tl.exp(m_i - m_ij) + tl.sum(p, 1)
        v = tl.load(v_ptrs, mask=(start_n + offs_n)[:, None] < N_K, other=0.0)
        acc += tl.dot(p.to(v.dtype), v)
        m_i = m_ij
        k_ptrs += BLOCK_N * stride_kn
        v_ptrs += BLOCK_N * stride_vn
    acc = acc / l_i[:, None]
    o_ptrs = Out + head * stride_oh + offs_m[:, None] * stride_om + offs_d[None, :]
    tl.store(o_ptrs, acc.to(tl.float16), mask=offs_m[:, None] < N_Q)


def launch(inputs, params):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    _, key_heads, _ = k.shape
    keys, _, _ = v.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(q.shape[0], params["BLOCK_M"]), q.shape[1])
    attention_kernel[grid](
        q, k, v, out, q.shape[2] ** -0.5, q.stride(1), q.stride(0), k.stride(1), k.stride(0), v.stride(1), v.stride(0),
        out.stride(1), out.stride(0), q.shape[1] // key_heads, q.shape[0], keys,
        BLOCK_M=params["BLOCK_M"], BLOCK_N=params["BLOCK_N"], HEAD=q.shape[2], num_warps=params["num_warps"],
    )
    return (out,)
