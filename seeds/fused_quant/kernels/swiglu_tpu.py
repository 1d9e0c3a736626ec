"""SwiGLU with 1 x 128 quantisation (Pallas, TPU): blocks of block_m rows and block_k columns of both halves.

build(params)(x [M,2K] bf16) -> q [M,K] e4m3, s [K/128,M] f32
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {
    "block_m": (128, 256, 512, 1024),
    "block_k": (512, 1024, 2048, 32768),
    "sub_m": (8, 16, 32, 64, 128),
    "vmem_mib": (16, 32, 48),
}
DEFAULTS = {"block_m": 128, "block_k": 1024, "sub_m": 32, "vmem_mib": 32}
CONSTRAINTS = {
    "M % block_m == 0": "block_m must divide M",
    "K % block_k == 0 or K < block_k": "block_k must divide K",
    "block_k % 1024 == 0 or K <= block_k": "scales come in whole rows of eight",
    "block_m % sub_m == 0": "sub_m must divide block_m",
    "K % 128 == 0": "a group is 128 columns",
    "min(block_k, K) * (block_m * 10 + 64 * sub_m) <= vmem_mib * 1048576": (
        "two buffers of both halves and of q must fit vmem_mib"
    ),
}


def build(params):
    """The jit-able cast for ``params``."""

    def cast(x):
        m, k = x.shape[0], x.shape[1] // 2
        bm, bk, sub = params["block_m"], min(params["block_k"], k), params["sub_m"]
        across = k // bk

        def step(gate_ref, up_ref, q_ref, s_ref, inverse):
            def rows(t, carry):
                at = pl.ds(pl.multiple_of(t * sub, sub), sub)
                gate = gate_ref[at, :].astype(jnp.float32)
                up = up_ref[at, :].astype(jnp.float32)
                y = (gate / (1.0 + jnp.exp(-gate)) * up).astype(jnp.bfloat16).astype(jnp.float32)
                for j in range(bk // 128):
                    part = y[:, j * 128 : (j + 1) * 128]
                    amax = jnp.max(jnp.abs(part), axis=1, keepdims=True)
                    scale = 448.0 / jnp.maximum(amax, 1e-4)
                    code = jnp.clip(part * scale, -448.0, 448.0).astype(jnp.float8_e4m3fn)
                    q_ref[at, j * 128 : (j + 1) * 128] = code
                    inverse[at, j : j + 1] = 1.0 / scale
                return carry

            jax.lax.fori_loop(0, bm // sub, rows, 0)
            s_ref[...] = inverse[...].T

        return pl.pallas_call(
            step,
            grid=(m // bm, across),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j: (i, j)),
                pl.BlockSpec((bm, bk), lambda i, j: (i, j + across)),
            ],
            out_specs=[
                pl.BlockSpec((bm, bk), lambda i, j: (i, j)),
                pl.BlockSpec((bk // 128, bm), lambda i, j: (j, i)),
            ],
            out_shape=[
                jax.ShapeDtypeStruct((m, k), jnp.float8_e4m3fn),
                jax.ShapeDtypeStruct((k // 128, m), jnp.float32),
            ],
            scratch_shapes=[pltpu.VMEM((bm, bk // 128), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
        )(x, x)

    return cast
