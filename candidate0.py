"""Taken from odd.py:conv."""

import torch
import triton
import triton.language as tl

SPACE = {}


@triton.jit
def conv_k(
    x,
    w,
    y,
    N,
    C,
    H,
    W,
    OC,
    OH,
    OW,
    KH: tl.constexpr,
    KW: tl.constexpr,
    BO: tl.constexpr,
    BW: tl.constexpr,
    BC: tl.constexpr,
):
    pid = tl.program_id(0)
    n, oh = (pid // OH, pid % OH)
    ro, rw = (tl.program_id(1) * BO + tl.arange(0, BO), tl.program_id(2) * BW + tl.arange(0, BW))
    acc = tl.zeros((BO, BW), tl.float32)
    for c0 in range(0, C, BC):
        rc = c0 + tl.arange(0, BC)
        for kh in tl.static_range(KH):
            for kw in tl.static_range(KW):
                xx = tl.load(
                    x + ((n * C + rc[:, None]) * H + oh + kh) * W + rw[None, :] + kw,
                    mask=(rc[:, None] < C) & (rw[None, :] < OW),
                    other=0.0,
                )
                ww = tl.load(
                    w + ((ro[:, None] * C + rc[None, :]) * KH + kh) * KW + kw,
                    mask=(ro[:, None] < OC) & (rc[None, :] < C),
                    other=0.0,
                )
                acc += tl.dot(ww, xx, allow_tf32=False)
    tl.store(
        y + ((n * OC + ro[:, None]) * OH + oh) * OW + rw[None, :],
        acc,
        mask=(ro[:, None] < OC) & (rw[None, :] < OW),
    )


def launch(inputs, params):
    x = inputs["x"]
    w = inputs["w"]
    t1 = torch.empty(
        (x.shape[0], w.shape[0], x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1),
        dtype=torch.float32,
    )
    conv_k[
        x.shape[0] * (x.shape[2] - w.shape[2] + 1),
        triton.cdiv(w.shape[0], params["again_16_3"]),
        triton.cdiv(x.shape[3] - w.shape[3] + 1, params["again_16_4"]),
    ](
        x,
        w,
        t1,
        x.shape[0],
        x.shape[1],
        x.shape[2],
        x.shape[3],
        w.shape[0],
        x.shape[2] - w.shape[2] + 1,
        x.shape[3] - w.shape[3] + 1,
        w.shape[2],
        w.shape[3],
        params["BO"],
        params["BW"],
        params["BC"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (t1,)
