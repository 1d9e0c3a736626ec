"""The fused FP8 product for JAX, served by promoted Pallas kernels, and any promoted operator on JAX arrays.

Scale groups of g elements along K. Activations [M, K]: s = max(absmax over 1 x g, 1e-12) / 448, q = e4m3(a / s).
Weights [K, N]: the same over blocks of g x 128, scales [K/g, 1, N] float32, equal within 128 columns.

Which kernel runs is decided while tracing, from shapes and the default device, so a compiled program pays nothing.
"""

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from . import store
from .loaded import Dispatcher, operands_of
from .operands import NoFit
from .oracle import numpy_reference

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
        raise ValueError(f"weights [K, N] need K in multiples of {group} and N of {COLUMNS}, not {list(w.shape)}")
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
    left, right = (wide.reshape(rows, depth).astype(jnp.bfloat16), dequantise_weights(w, sw).astype(jnp.bfloat16))
    return jnp.dot(left, right, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


# -- the product -------------------------------------------------------------------------------------

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
        raise TypeError(f"gemm_fp8_fused takes bfloat16, float8_e4m3fn and float32 operands, not {', '.join(kinds)}")
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
def serve(operator: str, dims: tuple[int, ...], interpret: bool, reference: Callable[..., Any]) -> Callable[..., Any]:
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


# -- any operator ------------------------------------------------------------------------------------


class Caller:
    """One operator, called with a sequence of arrays in its order."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.operands = operands_of(operator)
        self._references: dict[tuple[int, ...], Callable[..., Any]] = {}

    def __call__(self, inputs: Sequence[jax.Array]) -> Any:
        """The result, a tuple of several; under ``jit``, ``shard_map`` and eagerly. Raises TypeError, ValueError."""
        for operand, array in zip(self.operands.inputs, inputs, strict=False):
            if str(array.dtype) != operand.dtype:
                raise TypeError(f"{self.operator} takes {operand.name} in {operand.dtype}, not {array.dtype}")
        try:
            dims = self.operands.dims([tuple(array.shape) for array in inputs])
        except NoFit as error:
            raise ValueError(f"{self.operator} takes {error}") from error
        if dims not in self._references:
            self._references[dims] = self._reference(dims)
        found = serve(self.operator, dims, False, self._references[dims])(*inputs)
        results = tuple(found) if isinstance(found, tuple | list) else (found,)
        return results[0] if len(results) == 1 else results

    def device_key(self, array: jax.Array) -> str:
        """How tables name the default device, on which programs are traced."""
        return device_key()

    def _reference(self, dims: tuple[int, ...]) -> Callable[..., Any]:
        if self.operator.startswith(f"{FAMILY}/"):
            return product
        operands = self.operands
        named = operands.named(dims)
        shapes = tuple(jax.ShapeDtypeStruct(o.sizes(named), jnp.dtype(o.dtype)) for o in operands.outputs)
        names = [operand.name for operand in operands.inputs]

        def on_host(*arrays: Any) -> tuple[Any, ...]:
            oracle = numpy_reference(store.current_version(self.operator), self.operator, operands, dims)
            return oracle({name: np.asarray(array) for name, array in zip(names, arrays, strict=True)})

        def called(*arrays: Any) -> tuple[Any, ...]:
            if any(isinstance(array, jax.core.Tracer) for array in arrays):
                return tuple(jax.pure_callback(on_host, shapes, *arrays))
            # a reference in JAX, asked from within a callback, may wait for the threads that wait for it
            return tuple(map(jnp.asarray, on_host(*arrays)))

        return called
