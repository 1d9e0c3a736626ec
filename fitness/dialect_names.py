"""Names that a kernel may use: modules it may import, what it may take from them, attributes of values, builtins.

Allowlists, so that a name nobody thought of is refused: triton.language has a parser of types that evaluates Python.
"""

import builtins
from collections.abc import Mapping


def names(text: str) -> frozenset[str]:
    """A table of names, as they stand in a text."""
    return frozenset(text.split())


_DTYPES = names(
    "bool_ int4 uint4 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bfloat16 float16 float32 float64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e8m0fnu float4_e2m1fn"
)

_JNP = _DTYPES | names(
    "abs absolute acos acosh add all any append arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax "
    "argmin argsort argwhere array asarray asin asinh astype atan atan2 atanh atleast_1d atleast_2d average bincount "
    "bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_arrays broadcast_to cbrt ceil choose clip column_stack "
    "compress concatenate copysign cos cosh count_nonzero cumprod cumsum degrees diag diagonal diff digitize divide "
    "dot dstack dtype e einsum empty equal exp exp2 expand_dims expm1 eye fabs finfo flip fliplr flipud "
    "float_power floating floor floor_divide fmax fmin fmod full full_like greater greater_equal heaviside histogram "
    "hstack hypot identity iinfo inexact inf inner integer interp invert isclose isfinite isinf isnan issubdtype "
    "kron ldexp left_shift less less_equal linspace log log10 log1p log2 logaddexp logaddexp2 logical_and "
    "logical_not logical_or logical_xor matmul matrix_transpose matvec max maximum mean meshgrid min minimum mod "
    "moveaxis multiply nan nan_to_num nanmax nanmin nansum ndarray ndim negative newaxis nextafter nonzero not_equal "
    "number ones ones_like outer pad permute_dims pi positive power prod promote_types ptp radians ravel reciprocal "
    "remainder repeat reshape result_type right_shift rint roll rot90 round searchsorted select shape sign signbit "
    "signedinteger sin sinc sinh size sort split sqrt square squeeze stack std subtract sum swapaxes take "
    "take_along_axis tan tanh tensordot tile trace transpose tri tril tril_indices triu triu_indices true_divide "
    "trunc unpackbits unsignedinteger var vdot vecdot vectorize vstack where zeros zeros_like"
)

_LAX = names(
    "abs acos acosh add argmax argmin asin asinh associative_scan atan atan2 atanh batch_matmul bitcast_convert_type "
    "bitwise_and bitwise_not bitwise_or bitwise_xor broadcast broadcast_in_dim broadcasted_iota cbrt ceil clamp clz "
    "collapse concatenate cond convert_element_type cos cosh cumlogsumexp cummax cumprod cumsum digamma div dot "
    "dot_general DotAlgorithm DotAlgorithmPreset DotDimensionNumbers dynamic_index_in_dim dynamic_slice "
    "dynamic_slice_in_dim dynamic_update_index_in_dim dynamic_update_slice dynamic_update_slice_in_dim eq erf "
    "erf_inv erfc exp exp2 expand_dims expm1 floor fori_loop full full_like ge gt index_in_dim integer_pow iota "
    "is_finite le lgamma log log1p logistic lt map max min mul ne neg nextafter optimization_barrier pad "
    "population_count pow Precision reciprocal reduce reduce_and reduce_max reduce_min reduce_or reduce_precision "
    "reduce_prod reduce_sum reduce_xor rem reshape rev round rsqrt scan select select_n shift_left "
    "shift_right_arithmetic shift_right_logical sign sin sinh slice slice_in_dim sort split sqrt square squeeze "
    "stop_gradient sub switch tan tanh top_k transpose while_loop"
)

_PALLAS = names(
    "align_to ANY BlockDim Blocked BlockSpec BoundedSlice broadcast_to Buffered cdiv CostEstimate dot ds dslice "
    "Element empty empty_like get_global GridSpec loop MemorySpace multiple_of next_power_of_2 num_programs "
    "pallas_call program_id reciprocal run_scoped Slice Squeezed squeezed strides_from_shape when with_scoped"
)

_PALLAS_TPU = names(
    "ARBITRARY async_copy bitcast CompilerParams dma_semaphore einshape emit_pipeline GridDimensionSemantics HBM "
    "load make_async_copy matmul_acc_lhs matmul_pop matmul_push_rhs MemorySpace pack_elementwise PARALLEL "
    "PrefetchScalarGridSpec prng_random_bits prng_seed repeat roll SemaphoreType SMEM stochastic_round store "
    "sync_copy touch unpack_elementwise VMEM"
)

_TORCH = _DTYPES | names("empty empty_like zeros zeros_like Tensor float8_e8m0fnu bool int long half float")

_MATH = names("ceil floor log log2 sqrt exp pi inf gcd lcm prod isqrt pow")

_TRITON = names(
    "PropagateNan TRITON_MAX_TENSOR_NUMEL abs add arange associative_scan assume atomic_add atomic_and atomic_cas "
    "atomic_max atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast cast cdiv ceil clamp constexpr cos "
    "div_rn dtype erf exp exp2 expand_dims fdiv float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 "
    "float8e5b16 floor fma full full_like gather histogram int1 int16 int32 int64 int8 join load log log2 max "
    "max_constancy max_contiguous maximum min minimum mul multiple_of num_programs permute program_id ravel reduce "
    "reduce_or reshape rsqrt sin split sqrt sqrt_rn static_assert static_range store sub sum tensor to_tensor tuple "
    "uint16 uint32 uint64 uint8 umulhi void where xor_sum zeros zeros_like"
)

_TL = _TRITON | names(
    "advance argmax argmin broadcast_to cat const cumprod cumsum dot dot_scaled flip interleave "
    "load_tensor_descriptor make_block_ptr make_tensor_descriptor math pi32_t pointer_type range sigmoid softmax "
    "sort squeeze store_tensor_descriptor swizzle2d tensor_descriptor topk trans unsqueeze view debug_barrier rand "
    "rand4x randint randint4x randn randn4x philox uint_to_uniform_float"
)

_GL = _TRITON | names(
    "AutoLayout BlockedLayout CoalescedLayout DistributedLinearLayout DotOperandLayout NVMMADistributedLayout "
    "NVMMASharedLayout PaddedSharedLayout SharedLinearLayout SliceLayout SwizzledSharedLayout "
    "allocate_shared_memory bank_conflicts barrier convert_layout dot_fma fp4_to_fp num_ctas num_warps nvidia "
    "set_auto_layout shared_memory_descriptor thread_barrier to_linear_layout warp_specialize"
)

MODULES: Mapping[str, frozenset[str]] = {
    "__future__": names("annotations"),
    "functools": names("partial reduce"),
    "math": _MATH,
    "jax": names("Array ShapeDtypeStruct jit lax nn numpy tree tree_util vmap"),
    "jax.tree": names("flatten leaves map structure unflatten"),
    "jax.tree_util": names("tree_flatten tree_leaves tree_map tree_structure tree_unflatten"),
    "jax.nn": names(
        "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax "
        "logsumexp mish one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus squareplus swish "
        "tanh"
    ),
    "jax.numpy": _JNP,
    "jax.lax": _LAX,
    "jax.experimental": names("pallas"),
    "jax.experimental.pallas": _PALLAS | {"tpu"},
    "jax.experimental.pallas.tpu": _PALLAS_TPU,
    "torch": _TORCH,
    "triton": names("jit cdiv next_power_of_2 reinterpret language experimental tools"),
    "triton.tools": names("tensor_descriptor"),
    "triton.tools.tensor_descriptor": names("TensorDescriptor"),
    "triton.language": _TL,
    "triton.language.math": names(
        "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi"
    ),
    "triton.experimental": names("gluon"),
    "triton.experimental.gluon": names("jit language nvidia"),
    "triton.experimental.gluon.nvidia": names("hopper blackwell"),
    "triton.experimental.gluon.nvidia.hopper": names("TensorDescriptor"),
    "triton.experimental.gluon.language": _GL,
    "triton.experimental.gluon.language.nvidia": names("hopper"),
    "triton.experimental.gluon.language.nvidia.hopper": names(
        "fence_async_shared mbarrier tma warpgroup_mma warpgroup_mma_wait"
    ),
    "triton.experimental.gluon.language.nvidia.hopper.mbarrier": names("init wait expect arrive MBarrierLayout"),
    "triton.experimental.gluon.language.nvidia.hopper.tma": names(
        "async_copy_global_to_shared async_copy_shared_to_global store_wait"
    ),
}
"""Module to what may be named in it."""

REFUSED = names(
    "inline_asm_elementwise device_print device_assert static_print extra core semantic builtin "
    "standard random map_elementwise call callback globaltimer smid target_info amd"
)
"""Never, whatever the module: escapes to assembly, output, or the compiler's own machinery."""

VALUE_ATTRIBUTES = names(
    "T add append apply arrive astype at bitcast copy count cumsum div dot dtype element_size element_ty exp "
    "expect extend flat gather get handle hi index insert item items itemsize keys load lo logical_not "
    "make_ring max mbarrier mean min multiply ndim numel pop permute power prod ravel reshape reduce reverse "
    "set shape size slice sort split squeeze start store stride sum swapaxes tma to trans transpose values "
    "view wait warpgroup_mma warpgroup_mma_wait wait_recv wait_send join mask_shape expand fill_ zero_ "
    "is_floating is_int_signed is_int_unsigned int_bitwidth primitive_bitwidth fp_mantissa_width is_int is_fp8 is_fp16 "
    "is_bf16 is_fp32 is_fp64 is_int1 is_int8 is_int16 is_int32 is_int64 is_uint8 is_uint16 is_uint32 is_uint64"
) - names("handle item mask_shape apply reduce")
"""Attributes of values (arrays, references, tuples, descriptors) a kernel may use."""

BUILTINS = names(
    "range len min max abs sum int float bool str tuple list dict zip enumerate reversed sorted divmod round pow "
    "True False None ValueError AssertionError NotImplementedError slice map filter any all isinstance"
)

ALL_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_")) | names(
    "aiter anext exit quit copyright credits license help"
)
"""What nothing in a module may be called, so that a name always is what it looks like."""

DECORATORS = names("triton.jit triton.experimental.gluon.jit jax.jit")
"""Plain decorators of module-level and nested functions."""

PARTIAL_DECORATORS = DECORATORS | {"jax.experimental.pallas.pallas_call"}
"""What ``functools.partial`` may be of, in a decorator."""

CALLED_DECORATORS = names(
    "jax.experimental.pallas.when jax.experimental.pallas.loop jax.experimental.pallas.with_scoped "
    "functools.partial triton.jit triton.experimental.gluon.jit jax.jit"
)
"""Decorators that are calls."""

KEYWORDS = names(
    "a acc acc_addr accumulation_type accuracy add alignment alloc_shape allow_imprecise_accumulation "
    "allow_input_fusion allow_negative_indices allow_tf32 approx approximate array arrays ary assert_trivial axes "
    "axis axis1 axis2 axis_size b base bins bitcast block_bases block_shape block_size body body_fun boundary_check "
    "branches broadcast_dimensions buffer_count bytes_per_cta c0 c1 c2 c3 cache_modifier can_reorder cga_layout "
    "cluster cmp combine_fn compiler_params computation cond cond_fun condition const coord copy correction count "
    "ddof decimals default deps desc descending destination dim dimension dimension_numbers dimension_semantics "
    "dimensions dims disable_licm disallow_acc_multi_buffer div do_not_specialize do_not_specialize_on_alignment "
    "dst_ref dtype elem_type element_bitwidth element_ty end endpoint equation eviction_policy exponent_bits "
    "false_fun fast_math fill_value flatten fp4_padded fp_downcast_rounding full_range fuse_transposed_lhs_in_matmul "
    "grid grid_spec has_side_effects i ieee_rounding in_axes in_specs index index_dtype index_map indexing indices "
    "indices_are_sorted indices_or_sections init init_carry init_val init_values initial input input_precision "
    "instr_shape interval_padding_pairs is_async is_leaf is_stable j k k_width keep_dims keepdims kernel key "
    "lane_bases layout length lhs lhs_component_count lhs_format lhs_k_pack lhs_precision_type lhs_scale limit_index "
    "limit_indices load_staged_rhs loop_unroll_factor lower mantissa_bits mask max max_num_imprecise_acc max_phase "
    "mbarrier memory_space min mode msg multicast mxu_index n_rounds name nan neginf new_dtype new_sizes noinline "
    "num num_bins num_keys num_outstanding num_primitive_operations num_scalar_prefetch num_stages object offset "
    "offset_bases offsets on_false on_true operand operand_index operands order other out_axes out_dtype out_shape "
    "out_specs packed_dtype pad_width padding padding_config padding_option padding_value parent pendings per_phase "
    "permutation phase pipeline_mode pointer posinf precision pred preferred_element_type prepend priority "
    "promote_integers propagate_nan range rank recv_sem reg_bases repeats reps result return_indices "
    "return_indices_tie_break_left reverse revisit rhs rhs_component_count rhs_format rhs_k_pack rhs_precision_type "
    "rhs_scale round_f32_to_tf32 rounding_method scope scratch_shapes seed sem send_sem shape shift side size size_g "
    "size_i size_j size_per_thread sizes slice_size slice_sizes source src src_ref stable staging_register start "
    "start_dimension start_index start_indices static_argnames static_argnums step stop stop_dimension strict stride "
    "stride_axis strides swizzle_byte_width tensor_desc threads_per_warp tie_break_left tiling total_repeat_length "
    "transpose transposed true_fun tup ty unique_indices unpacked_dtype unroll update upper use_acc use_lookahead "
    "val value values vec version vmem_limit_bytes volatile warp_bases warp_specialize warps_per_cta where which "
    "worker_num_regs worker_num_warps x x1 x2 xs y z"
)
"""Keyword arguments of what a kernel may call, whatever it is; besides, names of the module's own parameters."""

LAUNCH_OPTIONS = names(
    "num_warps num_stages num_ctas maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl waves_per_eu "
    "matrix_instr_nonkdim kpack"
)
"""Options of a launch, beside the kernel's own parameters."""

DECORATOR_KEYWORDS: Mapping[str, frozenset[str]] = {
    "triton.jit": names("do_not_specialize do_not_specialize_on_alignment noinline"),
    "triton.experimental.gluon.jit": names("do_not_specialize do_not_specialize_on_alignment noinline"),
    "jax.jit": names("static_argnums static_argnames inline"),
}
"""Keywords of a decorator that compiles a function, the only ones that may be lists of constants."""

RESERVED_KEYWORDS = names(
    "allow_collective_id_without_custom_barrier allowed_dot_input_precisions arch backend backend_name boundary "
    "cluster_dims collective_axes collective_id compiler_options core_axis core_axis_name cost_estimate "
    "ctas_per_cga debug default_dot_input_precision deprecated_fp8_dot_operand_dtypes device "
    "disable_bounds_checks disable_semaphore_checks donate_argnames donate_argnums enable_iisan extern_libs flags "
    "fn generator global_scratch grf_mode handle in_shardings input_output_aliases instrumentation_mode "
    "internal_scratch_in_bytes interpret ir_override is_ref keep_unused launch_metadata manual_axis_type "
    "max_num_imprecise_acc_default metadata module names needs_layout_passes num_buffers_warp_spec opt_level "
    "optimize out out_sharding out_shardings pin_memory pre_hook profile_scratch ptx_options ptx_version qualname "
    "repr requires_grad sanitize sanitize_overflow schedule_hint serialization_format shape_invariant_numerics "
    "sharding skip_device_barrier stream supported_fp8_dtypes trace_scopes type use_tc_tiling_on_sc warmup "
    "warp_size weak_type"
)
"""Options that switch a kernel to another way of running or compiling: no keyword, not even of its own functions."""

MAY_UNPACK = names("jax.experimental.pallas.BlockSpec")
"""Where ``**`` of a mapping may stand in a call: nothing here takes a refused keyword."""

KEYWORDS_ONLY = names("jax.experimental.pallas.tpu.CompilerParams")
"""What may only be called, and with keywords, so that none of its options goes unseen."""

DEVICE_CODE = "CUDA"
"""The constant that holds the text of a module in CUDA C++."""

BESIDE_DEVICE_CODE = names("__future__ math functools")
"""What the Python beside it may import."""

DECLARATIONS = ("SPACE", "DEFAULTS", "CONSTRAINTS")
