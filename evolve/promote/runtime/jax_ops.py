"""The fused FP8 product for JAX: quantises its activations itself, differentiable, served by promoted Pallas kernels.

Which kernel runs is decided while tracing, from shapes and the default device, so a compiled program pays nothing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from . import store
from .jax_contract import COLUMNS, FAMILY, GROUPS, dequantise_weights, product, quantise_weights
from .serving import Dispatcher

__all__ = ["gemm_fp8_fused", "linear_fp8_fused", "quantise_weights"]

_DISPATCHER = Dispatcher()


def gemm_fp8_fused(a: jax.Array, w: jax.Array, sw: jax.Array, *, interpret: bool = False) -> jax.Array:
    """``a`` [M, K] bf16, ``w`` [K, N] e4m3, ``sw`` [K/g, 1, N] float32 (see ``quantise_weights``) -> [M, N] bf16.

    Differentiable in ``a``; quantised weights get a zero gradient (``linear_fp8_fused`` trains weights).
    ``interpret`` runs the kernel in Pallas' interpreter, for tests without a TPU.
    Raises TypeError and ValueError for operands of another form.
    """
    _require_operands(a, w, sw)
    return _fused(a, w, sw, interpret)


def linear_fp8_fused(a: jax.Array, w: jax.Array, group: int = 512, *, interpret: bool = False) -> jax.Array:
    """``a`` [M, K] and ``w`` [K, N] in bf16 -> [M, N] bf16: FP8 forward, bf16 gradients of both.

    The gradient passes straight through the quantisation: da = dy . w^T, dw = a^T . dy.
    """
    return _linear(a, w, group, interpret)


def _require_operands(a: jax.Array, w: jax.Array, sw: jax.Array) -> None:
    kinds = tuple(str(x.dtype) for x in (a, w, sw))
    if kinds != ("bfloat16", "float8_e4m3fn", "float32"):
        raise TypeError(
            f"gemm_fp8_fused takes bfloat16, float8_e4m3fn and float32 operands, not {', '.join(kinds)}"
        )
    fits = a.ndim == 2 and w.ndim == 2 and sw.ndim == 3 and a.shape[1] == w.shape[0]
    if not fits or sw.shape[1:] != (1, w.shape[1]) or w.shape[0] % sw.shape[0] or w.shape[1] % COLUMNS:
        raise ValueError(
            f"gemm_fp8_fused takes a [M, K], w [K, N] and sw [K/g, 1, N] with N a multiple of {COLUMNS}, "
            f"not {list(a.shape)}, {list(w.shape)} and {list(sw.shape)}"
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _fused(a: jax.Array, w: jax.Array, sw: jax.Array, interpret: bool) -> jax.Array:
    return _chosen(a, w, sw, interpret)(a, w, sw)


def _fused_forward(a: jax.Array, w: jax.Array, sw: jax.Array, interpret: bool) -> tuple[jax.Array, Any]:
    return _fused(a, w, sw, interpret), (w, sw)


def _fused_backward(interpret: bool, kept: Any, dy: jax.Array) -> tuple[jax.Array, ...]:
    w, sw = kept
    wide = dequantise_weights(w, sw).astype(jnp.bfloat16)
    da = jnp.dot(dy, wide.T, preferred_element_type=jnp.float32).astype(jnp.bfloat16)
    return da, jnp.zeros_like(w), jnp.zeros_like(sw)


_fused.defvjp(_fused_forward, _fused_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _linear(a: jax.Array, w: jax.Array, group: int, interpret: bool) -> jax.Array:
    w_q, sw = quantise_weights(w, group)
    return gemm_fp8_fused(a, w_q, sw, interpret=interpret)


def _linear_forward(a: jax.Array, w: jax.Array, group: int, interpret: bool) -> tuple[jax.Array, Any]:
    return _linear(a, w, group, interpret), (a, w)


def _linear_backward(group: int, interpret: bool, kept: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, w = kept
    da = jnp.dot(dy, w.T, preferred_element_type=jnp.float32).astype(a.dtype)
    return da, jnp.dot(a.T, dy, preferred_element_type=jnp.float32).astype(w.dtype)


_linear.defvjp(_linear_forward, _linear_backward)


# -- dispatch ----------------------------------------------------------------------------------------


def device_key(interpret: bool = False) -> str:
    """``tpu:TPU7x`` for the default device, ``cpu`` or ``gpu`` elsewhere; ``interpret`` on demand."""
    if interpret:
        return store.INTERPRET
    device = jax.devices()[0]
    return f"tpu:{device.device_kind}" if device.platform == "tpu" else str(device.platform)


def _chosen(a: jax.Array, w: jax.Array, sw: jax.Array, interpret: bool) -> Callable[..., jax.Array]:
    group = w.shape[0] // sw.shape[0]
    if group not in GROUPS:
        _DISPATCHER.warn("group", f"{FAMILY} has recipes for groups of {GROUPS}, not {group}")
        return product
    dims = (a.shape[0], w.shape[1], a.shape[1])
    return serve(f"{FAMILY}/g{group}", dims, interpret, product)


@functools.lru_cache(maxsize=4096)
def serve(
    operator: str, dims: tuple[int, ...], interpret: bool, reference: Callable[..., Any]
) -> Callable[..., Any]:
    """The kernel that serves a shape as a function of its operands; ``reference``, with one warning, without one."""
    try:
        table = _DISPATCHER.table(operator, device_key(interpret))
        return load(table.choose(dims).kernel, interpret)
    except store.NotServed as error:
        _DISPATCHER.warn(operator, str(error))
        return reference


def load(kernel: store.Kernel, interpret: bool) -> Callable[..., Any]:
    """A promoted Pallas kernel as a function of its operands. Raises NotServed."""
    module = types.ModuleType(f"{__package__}.loaded_{kernel.sha256[:16]}")
    module.__file__ = str(kernel.path)
    try:
        exec(compile(kernel.source(), str(kernel.path), "exec"), module.__dict__)
    except ImportError as error:
        raise store.NotServed(f"{kernel.name} cannot be imported: {error}") from error
    call = module.__dict__["build"](dict(kernel.params))
    if not interpret:
        return call

    def interpreted(*operands: jax.Array) -> Any:
        with pltpu.force_tpu_interpret_mode():
            return call(*operands)

    return interpreted
