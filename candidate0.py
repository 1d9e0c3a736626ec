"""From wy_fast.py:prepare_wy_repr_bwd."""

import torch
import triton
import triton.language as tl

SPACE = {}



@triton.jit
def exp(x):
    return tl.exp(x.to(tl.float32))

@triton.jit
def prepare_wy_repr_bwd_kernel(k, v, beta, gv, A, dA, dw, du, dk, dv, db, dgv, cu_seqlens, chunk_indices, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, IS_VARLEN: tl.constexpr):
    i_t, i_bh = (tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64))
    i_b, i_h = (i_bh // H, i_bh % H)
    bos, eos = (i_b * T, i_b * T + T)
    o_t = i_t * BT + tl.arange(0, BT)
    m_t = o_t < T
    o_A = tl.arange(0, BT)
    m_AT = (o_A[:, None] < BT) & m_t[None, :]
    p_b = beta + (bos * H + i_h) + o_t * H
    p_db = db + (bos * H + i_h) + o_t * H
    p_A = A + (bos * H + i_h) * BT + o_A[:, None] + o_t[None, :] * (H * BT)
    b_b = tl.load(p_b, mask=m_t, other=0.0)
    b_db = tl.zeros([BT], dtype=tl.float32)
    b_A = tl.load(p_A, mask=m_AT, other=0.0)
    b_dA = tl.zeros([BT, BT], dtype=tl.float32)
    for i_v in range(tl.cdiv(V, BV)):
        o_v = i_v * BV + tl.arange(0, BV)
        m_tv = m_t[:, None] & (o_v[None, :] < V)
        p_v = v + (bos * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
        p_dv = dv + (bos * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
        p_dw = dw + (bos * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
        b_v = tl.load(p_v, mask=m_tv, other=0.0)
        p_gv = gv + (bos * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
        b_gv_exp = exp(tl.load(p_gv, mask=m_tv, other=0.0))
        b_vbg = b_v * b_b[:, None] * b_gv_exp
        b_dw = tl.load(p_dw, mask=m_tv, other=0.0)
        b_dA = tl.dot(b_dw, tl.trans(b_vbg).to(b_dw.dtype), b_dA)
        b_dvbg = tl.dot(b_A, b_dw)
        b_dv = b_dvbg * b_gv_exp * b_b[:, None]
        b_db += tl.sum(b_dvbg * b_v * b_gv_exp, 1)
        b_dgv = b_dvbg * b_vbg
        p_dgv = dgv + (bos * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
        tl.store(p_dgv, b_dgv.to(p_dgv.dtype.element_ty), mask=m_tv)
        tl.store(p_dv, b_dv.to(p_dv.dtype.element_ty), mask=m_tv)
    for i_k in range(tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        m_tk = m_t[:, None] & (o_k[None, :] < K)
        p_k = k + (bos * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
        p_dk = dk + (bos * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
        p_du = du + (bos * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
        b_k = tl.load(p_k, mask=m_tk, other=0.0)
        b_kb = (b_k * b_b[:, None]).to(b_k.dtype)
        b_du = tl.load(p_du, mask=m_tk, other=0.0)
        b_dA = tl.dot(b_du, tl.trans(b_kb), b_dA)
        b_dkb = tl.dot(b_A, b_du)
        b_dk = b_dkb * b_b[:, None]
        b_db += tl.sum(b_dkb * b_k, 1)
        tl.store(p_dk, b_dk.to(p_dk.dtype.element_ty), mask=m_tk)
    m_A = (o_t[:, None] > o_t[None, :]) & (m_t[:, None] & m_t)
    b_dA = tl.where(m_A, b_dA, 0)
    b_dA = tl.dot(b_dA.to(b_A.dtype), b_A)
    b_dA = tl.dot(b_A, b_dA.to(b_A.dtype))
    b_dA = tl.where(m_A, -b_dA, 0)
    m_AT2 = m_t[:, None] & (o_A[None, :] < BT)
    p_dA = dA + (bos * H + i_h) * BT + o_t[:, None] * (H * BT) + o_A[None, :]
    tl.store(p_dA, b_dA.to(p_dA.dtype.element_ty), mask=m_AT2)
    tl.store(p_db, b_db.to(p_db.dtype.element_ty), mask=m_t)


def launch(inputs, params):
    k = inputs['k']
    v = inputs['v']
    beta = inputs['beta']
    A = inputs['A']
    dw = inputs['dw']
    du = inputs['du']
    gv = inputs['gv']
    t1 = torch.empty((k.shape[0], k.shape[1], k.shape[2], k.shape[3]), dtype=torch.float32)
    t2 = torch.empty((v.shape[0], v.shape[1], v.shape[2], v.shape[3]), dtype=torch.float32)
    t3 = torch.empty((gv.shape[0], gv.shape[1], gv.shape[2], gv.shape[3]), dtype=torch.float32)
    t4 = torch.empty((A.shape[0], A.shape[1], A.shape[2], A.shape[3]), dtype=torch.float32)
    t5 = torch.empty((beta.shape[0], beta.shape[1], beta.shape[2]), dtype=torch.float32)
    prepare_wy_repr_bwd_kernel[triton.cdiv(k.shape[1], A.shape[3]), k.shape[0] * k.shape[2]](k, v, beta, gv, A, t4, dw, du, t1, t2, t5, t3, None, None, k.shape[1], k.shape[2], k.shape[3], v.shape[3], A.shape[3], min(max(triton.next_power_of_2(k.shape[3]), params['BK_16']), params['BK_64']), min(max(triton.next_power_of_2(v.shape[3]), params['BV_16']), params['BV_64']), False, num_warps=params['num_warps'], num_stages=params['num_stages'])
    return (t1, t2, t5, t3, t4,)
