"""The fused FP8 recipe in plain JAX: what a promoted kernel must equal, and what stands in for one.

Scale groups of g elements along K. Activations [M, K]: s = max(absmax over 1 x g, 1e-12) / 448, q = e4m3(a / s).
Weights [K, N]: the same over blocks of g x 128, scales [K/g, 1, N] float32, equal within 128 columns.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

FAMILY = "gemm_fp8_fused"
GROUPS = (128, 256, 512)
COLUMNS = 128
FP8_MAX = 448.0
ABSMAX_FLOOR = 1e-12


def quantise_activations(a: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """``a`` [M, K] -> (q [M, K] e4m3, s [M, K/g] float32)."""
    rows, depth = a.shape
    x = a.astype(jnp.float32).reshape(rows, depth // group, group)
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=2), ABSMAX_FLOOR) / FP8_MAX
    return (x / scale[:, :, None]).astype(jnp.float8_e4m3fn).reshape(rows, depth), scale


def quantise_weights(w: jax.Array, group: int = 512) -> tuple[jax.Array, jax.Array]:
    """``w`` [K, N] -> (w_q [K, N] e4m3, sw [K/g, 1, N] float32). Raises ValueError for shapes without whole blocks."""
    depth, cols = w.shape
    if depth % group or cols % COLUMNS:
        raise ValueError(
            f"weights [K, N] need K in multiples of {group} and N of {COLUMNS}, not {list(w.shape)}"
        )
    x = w.astype(jnp.float32).reshape(depth // group, group, cols // COLUMNS, COLUMNS)
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=(1, 3)), ABSMAX_FLOOR) / FP8_MAX
    q = (x / scale[:, None, :, None]).astype(jnp.float8_e4m3fn).reshape(depth, cols)
    return q, jnp.repeat(scale, COLUMNS, axis=1)[:, None, :]


def dequantise_weights(w: jax.Array, sw: jax.Array) -> jax.Array:
    """(w [K, N] e4m3, sw [K/g, 1, N]) -> float32 [K, N]."""
    depth, cols = w.shape
    return (w.astype(jnp.float32).reshape(sw.shape[0], -1, cols) * sw).reshape(depth, cols)


def product(a: jax.Array, w: jax.Array, sw: jax.Array) -> jax.Array:
    """c [M, N] in bf16 from the dequantised operands, each rounded to bf16 (51 dB against float64)."""
    rows, depth = a.shape
    q, scale = quantise_activations(a, depth // sw.shape[0])
    wide = q.astype(jnp.float32).reshape(rows, scale.shape[1], -1) * scale[:, :, None]
    left, right = (
        wide.reshape(rows, depth).astype(jnp.bfloat16),
        dequantise_weights(w, sw).astype(jnp.bfloat16),
    )
    return jnp.dot(left, right, preferred_element_type=jnp.float32).astype(jnp.bfloat16)
