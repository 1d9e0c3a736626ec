"""What a kernel may name: modules it may import, what it may take from them, attributes of values, builtins.

Allowlists, so that a name nobody thought of is refused: triton.language has a parser of types that evaluates Python.
"""

from __future__ import annotations

from collections.abc import Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DTYPES = _names(
    "bool_ int4 uint4 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bfloat16 float16 float32 float64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e8m0fnu float4_e2m1fn"
)

_JNP = _DTYPES | _names(
    "abs absolute add all any arange argmax argmin array asarray astype atleast_1d atleast_2d bitwise_and "
    "bitwise_not bitwise_or bitwise_xor broadcast_to cbrt ceil clip concatenate cos cosh cumsum divide dot dtype "
    "einsum empty equal exp exp2 expand_dims expm1 eye finfo float_power floor floor_divide fmax fmin full full_like "
    "greater greater_equal iinfo inf invert isfinite isinf isnan issubdtype kron left_shift less less_equal "
    "linspace log log1p log2 logical_and logical_not logical_or logical_xor matmul max maximum mean min minimum mod "
    "moveaxis multiply nan ndarray ndim negative newaxis not_equal ones ones_like outer pad pi positive power prod "
    "promote_types ravel reciprocal remainder repeat reshape result_type right_shift rint round shape sign signbit "
    "sin sinh size split sqrt square squeeze stack subtract sum swapaxes tan tanh tensordot tile transpose tri tril "
    "triu true_divide trunc vdot vstack hstack where zeros zeros_like"
)

_LAX = _names(
    "Precision DotAlgorithm DotAlgorithmPreset abs acos add argmax argmin batch_matmul bitcast_convert_type "
    "bitwise_and bitwise_not bitwise_or bitwise_xor broadcast broadcast_in_dim broadcasted_iota cbrt ceil clamp "
    "collapse concatenate cond convert_element_type cos cummax cumsum div dot dot_general dynamic_index_in_dim "
    "dynamic_slice dynamic_slice_in_dim dynamic_update_slice dynamic_update_slice_in_dim eq erf exp exp2 "
    "expand_dims expm1 floor fori_loop full full_like ge gt integer_pow iota is_finite le log log1p logistic lt max "
    "min mul ne neg nextafter pad pow population_count reciprocal reduce reduce_max reduce_min reduce_precision "
    "reduce_sum rem reshape rev round rsqrt scan select select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin slice slice_in_dim split sqrt square squeeze stop_gradient sub switch tanh "
    "transpose while_loop"
)

_PALLAS = _names(
    "ANY BlockDim BlockSpec Blocked BoundedSlice Buffered Element GridSpec MemorySpace Squeezed align_to "
    "broadcast_to cdiv ds dslice empty empty_like get_global loop multiple_of next_power_of_2 num_programs "
    "pallas_call program_id reciprocal run_scoped squeezed when with_scoped strides_from_shape"
)

_PALLAS_TPU = _names(
    "ARBITRARY PARALLEL CompilerParams GridDimensionSemantics HBM MemorySpace PrefetchScalarGridSpec SMEM "
    "SemaphoreType VMEM async_copy bitcast dma_semaphore einshape emit_pipeline load make_async_copy "
    "matmul_acc_lhs matmul_pop matmul_push_rhs pack_elementwise repeat roll store sync_copy touch unpack_elementwise"
)

_TORCH = _DTYPES | _names("empty empty_like zeros zeros_like Tensor float8_e8m0fnu bool int long half float")

_MATH = _names("ceil floor log log2 sqrt exp pi inf gcd lcm prod isqrt pow")

_TRITON = _names(
    "PropagateNan TRITON_MAX_TENSOR_NUMEL abs add arange associative_scan assume atomic_add atomic_and atomic_cas "
    "atomic_max atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast cast cdiv ceil clamp constexpr cos "
    "div_rn dtype erf exp exp2 expand_dims fdiv float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 "
    "float8e5b16 floor fma full full_like gather histogram int1 int16 int32 int64 int8 join load log log2 max "
    "max_constancy max_contiguous maximum min minimum mul multiple_of num_programs permute program_id ravel reduce "
    "reduce_or reshape rsqrt sin split sqrt sqrt_rn static_assert static_range store sub sum tensor to_tensor tuple "
    "uint16 uint32 uint64 uint8 umulhi void where xor_sum zeros zeros_like"
)

_TL = _TRITON | _names(
    "advance argmax argmin broadcast_to cat const cumprod cumsum dot dot_scaled flip interleave "
    "load_tensor_descriptor make_block_ptr make_tensor_descriptor math pi32_t pointer_type range sigmoid softmax "
    "sort squeeze store_tensor_descriptor swizzle2d tensor_descriptor topk trans unsqueeze view"
)

_GL = _TRITON | _names(
    "AutoLayout BlockedLayout CoalescedLayout DistributedLinearLayout DotOperandLayout NVMMADistributedLayout "
    "NVMMASharedLayout PaddedSharedLayout SharedLinearLayout SliceLayout SwizzledSharedLayout "
    "allocate_shared_memory bank_conflicts barrier convert_layout dot_fma fp4_to_fp num_ctas num_warps nvidia "
    "set_auto_layout shared_memory_descriptor thread_barrier to_linear_layout warp_specialize"
)

MODULES: Mapping[str, frozenset[str]] = {
    "__future__": _names("annotations"),
    "functools": _names("partial reduce"),
    "math": _MATH,
    "jax": _names("Array ShapeDtypeStruct jit lax nn numpy"),
    "jax.nn": _names("gelu relu sigmoid silu softmax tanh"),
    "jax.numpy": _JNP,
    "jax.lax": _LAX,
    "jax.experimental": _names("pallas"),
    "jax.experimental.pallas": _PALLAS | {"tpu"},
    "jax.experimental.pallas.tpu": _PALLAS_TPU,
    "torch": _TORCH,
    "triton": _names("jit cdiv next_power_of_2 language experimental tools"),
    "triton.tools": _names("tensor_descriptor"),
    "triton.tools.tensor_descriptor": _names("TensorDescriptor"),
    "triton.language": _TL,
    "triton.language.math": _names(
        "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi"
    ),
    "triton.experimental": _names("gluon"),
    "triton.experimental.gluon": _names("jit language nvidia"),
    "triton.experimental.gluon.nvidia": _names("hopper blackwell"),
    "triton.experimental.gluon.nvidia.hopper": _names("TensorDescriptor"),
    "triton.experimental.gluon.language": _GL,
    "triton.experimental.gluon.language.nvidia": _names("hopper"),
    "triton.experimental.gluon.language.nvidia.hopper": _names(
        "fence_async_shared mbarrier tma warpgroup_mma warpgroup_mma_wait"
    ),
    "triton.experimental.gluon.language.nvidia.hopper.mbarrier": _names(
        "init wait expect arrive MBarrierLayout"
    ),
    "triton.experimental.gluon.language.nvidia.hopper.tma": _names(
        "async_copy_global_to_shared async_copy_shared_to_global store_wait"
    ),
}
"""Module to what may be named in it."""

REFUSED = _names(
    "inline_asm_elementwise device_print device_assert static_print debug_barrier extra core semantic builtin "
    "standard random map_elementwise call callback globaltimer smid target_info amd"
)
"""Never, whatever the module: escapes to assembly, output, or the compiler's own machinery."""

VALUE_ATTRIBUTES = _names(
    "T add append apply arrive astype at bitcast copy count cumsum div dot dtype element_size exp expect extend flat "
    "gather get handle hi index insert item items itemsize keys load lo logical_not make_ring max mbarrier mean min "
    "multiply ndim numel pop permute power prod ravel reshape reduce reverse set shape size slice sort split "
    "squeeze start store stride sum swapaxes tma to trans transpose values view wait warpgroup_mma "
    "warpgroup_mma_wait wait_recv wait_send join mask_shape"
) - _names("handle item mask_shape apply reduce")
"""Attributes of values (arrays, references, tuples, descriptors) a kernel may use."""

BUILTINS = _names(
    "range len min max abs sum int float bool str tuple list dict zip enumerate reversed sorted divmod round pow "
    "True False None ValueError AssertionError NotImplementedError slice map filter any all"
)

DECORATORS = _names("triton.jit triton.experimental.gluon.jit jax.jit")
"""Plain decorators of module-level and nested functions."""

CALLED_DECORATORS = _names(
    "jax.experimental.pallas.when jax.experimental.pallas.loop jax.experimental.pallas.with_scoped "
    "functools.partial triton.jit jax.jit"
)
"""Decorators that are calls. ``functools.partial`` only of a function that may itself be named."""

REFUSED_KEYWORDS = _names(
    "interpret debug metadata backend device donate_argnums donate_argnames input_output_aliases flags cost_estimate "
    "disable_bounds_checks disable_semaphore_checks skip_device_barrier internal_scratch_in_bytes "
    "serialization_format warmup instrumentation_mode sanitize_overflow pre_hook ir_override ptx_options ptx_version "
    "extern_libs arch backend_name warp_size schedule_hint stream supported_fp8_dtypes "
    "deprecated_fp8_dot_operand_dtypes default_dot_input_precision allowed_dot_input_precisions "
    "max_num_imprecise_acc_default"
)
"""Keyword arguments that switch a kernel to another way of running or compiling, or name devices."""

MAY_UNPACK = _names("jax.experimental.pallas.BlockSpec")
"""Where ``**`` of a mapping may stand in a call: nothing here takes a refused keyword."""

KEYWORDS_ONLY = _names("jax.experimental.pallas.tpu.CompilerParams")
"""What may only be called, and with keywords, so that none of its options goes unseen."""

DECLARATIONS = ("SPACE", "DEFAULTS", "CONSTRAINTS")
