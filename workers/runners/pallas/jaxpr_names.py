"""What a traced kernel may hold: primitives, data classes, enumerations, effects and nodes of trees, by name.

Primitives are those of ``jax.lax`` that compute, of references, of control flow, and of Pallas on a TPU; none that
calls back into Python, talks to another device or calls foreign code.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from jax._src import ad_util, api, core, pjit
from jax._src.lax import control_flow, lax, slicing, special
from jax._src.pallas import core as pallas_core
from jax._src.pallas import pallas_call
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic import primitives as tpu_primitives
from jax._src.random import threefry2x32
from jax._src.state import indexing
from jax._src.state import primitives as state_primitives
from jax._src.state import types as state

_LAX = (
    "abs acos acosh add and argmax argmin asin asinh atan atan2 atanh bitcast_convert_type broadcast_in_dim cbrt "
    "ceil clamp clz concatenate convert_element_type copy cos cosh div dot_general empty empty2 eq eq_to exp exp2 "
    "expm1 floor ge gt imag integer_pow iota is_finite le le_to log log1p logistic lt lt_to max min mul mulhi ne "
    "neg nextafter not optimization_barrier or pad population_count pow real reduce reduce_and reduce_max "
    "reduce_min reduce_or reduce_precision reduce_prod reduce_sum reduce_xor rem reshape rev round rsqrt select_n "
    "shift_left shift_right_arithmetic shift_right_logical sign sin sinh sort split sqrt square squeeze stack sub "
    "tan tanh tile top_k transpose unstack xor"
)
_SPECIAL = "erf erf_inv erfc lgamma digamma"
_SLICING = (
    "dynamic_slice dynamic_update_slice gather slice scatter scatter_add scatter_max scatter_min scatter_mul "
    "scatter_sub"
)
_CONTROL = "cond scan while cumsum cummax cummin cumprod cumlogsumexp"
_STATE = "get swap addupdate broadcast_to"
_PALLAS = (
    "program_id num_programs multiple_of reciprocal run_scoped semaphore_read semaphore_signal semaphore_wait "
    "jaxpr_call"
)
_TPU = (
    "bitcast roll dma_start dma_wait pack_elementwise unpack_elementwise touch matmul_push_rhs matmul_acc_lhs "
    "matmul_pop stochastic_round"
)


def _collected() -> dict[str, core.Primitive]:
    """Primitive by its name."""
    found: list[Any] = [pjit.jit_p, pallas_call.pallas_call_p]
    for module, wanted in (
        (lax, _LAX),
        (special, _SPECIAL),
        (slicing, _SLICING),
        (control_flow, _CONTROL),
        (state_primitives, _STATE),
        (pallas_primitives, _PALLAS),
        (tpu_primitives, _TPU),
    ):
        found += [getattr(module, f"{name}_p", None) for name in wanted.split()]
    # the loads and stores of Pallas have the names of those of references in their module
    found += [pallas_primitives.load_p, pallas_primitives.swap_p, lax.and_p, lax.or_p, lax.not_p]
    found += [ad_util.stop_gradient_p, ad_util.add_jaxvals_p, threefry2x32.threefry2x32_p]
    return {primitive.name: primitive for primitive in found if primitive is not None}


PRIMITIVES: Mapping[str, core.Primitive] = _collected()

INLINED: Mapping[str, str] = {"custom_jvp_call": "call_jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Calls whose other parameters are functions, with the parameter that holds what they compute."""

ONLY: Mapping[str, Mapping[str, Any]] = {
    "pallas_call": {"debug": False, "interpret": False, "mesh": None, "cost_estimate": None, "metadata": None},
    "jit": {"compiler_options_kvs": (), "keep_unused": False},
}
"""Parameters with the one value that they may have."""

_COMPILER = ("dimension_semantics", "allow_input_fusion", "vmem_limit_bytes", "fuse_transposed_lhs_in_matmul")

CLASSES: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        pallas_core.BlockMapping,
        pallas_core.Blocked,
        pallas_core.BoundedSlice,
        pallas_core.Buffered,
        pallas_core.Element,
        pallas_core.GridMapping,
        pallas_core.Squeezed,
        state.BitcastTransform,
        state.ReshapeTransform,
        state.TransposeTransform,
        tpu_core.CompilerParams,
    )
}

_DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(tpu_core.CompilerParams) if field.name not in _COMPILER
}

WITHHELD: Mapping[str, Mapping[str, Any]] = {
    "CompilerParams": _DEFAULTS,
    "GridMapping": {"get_grid_indices": None, "local_grid_env": None, "debug": False},
    "BlockMapping": {"debug": False},
}
"""Fields that keep their default."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    name: tuple(f.name for f in dataclasses.fields(kind) if f.name not in WITHHELD.get(name, {}))
    for name, kind in CLASSES.items()
}

ENUMS: Mapping[str, Any] = {
    **{
        kind.__name__: kind
        for kind in (
            lax.AccuracyMode,
            lax.DotAlgorithmPreset,
            lax.Precision,
            lax.RoundingMethod,
            lax.RandomAlgorithm,
            slicing.GatherScatterMode,
            pallas_primitives.DeviceIdType,
            tpu_core.GridDimensionSemantics,
            tpu_core.MemorySpace,
            tpu_core.SemaphoreType,
        )
    },
    "PallasSpace": pallas_core.MemorySpace,
    "CoreSpace": core.MemorySpace,
    **{kind.__name__: kind for kind in (getattr(api, "Inline", None),) if kind},
}
"""By a name of its own where three are called the same."""
ENUM_NAMES: Mapping[type, str] = {kind: name for name, kind in ENUMS.items()}

RECORDS: Mapping[type, str] = {
    lax.DotAlgorithm: "DotAlgorithm",
    slicing.GatherDimensionNumbers: "GatherDimensionNumbers",
    slicing.ScatterDimensionNumbers: "ScatterDimensionNumbers",
}
"""Named tuples."""
RECORD_TYPES: Mapping[str, Any] = {name: kind for kind, name in RECORDS.items()}

DTYPES: Mapping[type, str] = {
    tpu_core.DMASemaphore: "dma_sem",
    pallas_core.Semaphore: "semaphore",
    pallas_core.BarrierSemaphore: "barrier_semaphore",
}
EXTENDED: Mapping[str, type] = {name: kind for kind, name in DTYPES.items()}

NODES: Mapping[type, str] = {
    tuple: "tuple",
    list: "list",
    dict: "dict",
    type(None): "nothing",
    indexing.NDIndexer: "NDIndexer",
    indexing.Slice: "Slice",
    state.TransformedRef: "TransformedRef",
    state.BitcastTransform: "BitcastTransform",
    state.ReshapeTransform: "ReshapeTransform",
    state.TransposeTransform: "TransposeTransform",
}
NODE_TYPES: Mapping[str, type] = {name: kind for kind, name in NODES.items()}

EFFECTS: Mapping[type, str] = {state.ReadEffect: "read", state.WriteEffect: "write", state.AccumEffect: "accumulate"}
EFFECT_TYPES: Mapping[str, Any] = {name: kind for kind, name in EFFECTS.items()}

INLINE: Any = ENUMS["Inline"].JAX_LATE if "Inline" in ENUMS else True
"""How JAX, before 0.11 or since, is told to inline a function."""

_TREES: Any = importlib.import_module("jax._src.flattree") if importlib.util.find_spec("jax._src.flattree") else None
GROUPS: tuple[type, ...] = (_TREES.FTTuple,) if _TREES else ()
"""What JAX 0.11 says of a loop's operands, in groups of which the sizes alone count."""


def groups_of(sizes: Sequence[int]) -> Any:
    """One of ``GROUPS``."""
    return _TREES.pack(tuple(_TREES.nones(int(size)) for size in sizes))


def primitive(name: Any) -> Any:
    """The primitive called so; None for one that is not on the list."""
    return PRIMITIVES.get(name) if isinstance(name, str) else None


def fields_of(value: Any) -> tuple[str, ...] | None:
    """Fields of an instance of an allowed class whose other fields are at their defaults; None for any other."""
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        return None
    for field, default in WITHHELD.get(name, {}).items():
        if getattr(value, field) != default:
            return None
    return FIELDS[name]
