"""Every rule there is, by language."""

from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.gluon import lower, operand_once
from tilewright.evolve.proposers.rewrite.gluon.chain import write as chain
from tilewright.evolve.proposers.rewrite.pallas import (
    caching,
    dots,
    exponents,
    grid,
    launch,
    normalise,
    row_sums,
    tiles,
    unroll_grid,
)
from tilewright.evolve.proposers.rewrite.triton import arithmetic, descriptors, loads, programs
from tilewright.fitness.dialect_names import names


def pallas_rules() -> tuple[Rule, ...]:
    return (
        caching.CacheAcrossAxis(),
        caching.PinCachedInput(),
        dots.ChunkRows(),
        dots.ChunkColumns(),
        dots.ReassociateScale(),
        tiles.SkipMaskedTiles(),
        normalise.NormaliseOnce(),
        exponents.BaseTwoSoftmax(),
        row_sums.RowSumsInDot(),
        grid.WholeReductionBlock(),
        unroll_grid.UnrollGridAxis(),
        launch.WidenSpace(),
        launch.DeepPipeline(),
    )


def gluon_rules() -> tuple[Rule, ...]:
    """Triton rules that hold for explicit layouts as well."""
    return (
        loads.StrengthReducePointer(),
        loads.CacheHint(),
        arithmetic.DivideToReciprocal(),
        programs.PersistentGrid(),
        programs.LaunchOption(),
    )


def triton_rules() -> tuple[Rule, ...]:
    return (
        *gluon_rules(),
        loads.EvenGuard(),
        loads.TransposedStore(),
        descriptors.DescriptorLoad(),
        operand_once.ComputeOperandOnce(),
        lower.LowerProduct(),
        chain.LowerChain(),
    )


def rules(language: Language) -> tuple[Rule, ...]:
    """Rules for kernels of ``language``."""
    table = {Language.PALLAS: pallas_rules, Language.TRITON: triton_rules, Language.GLUON: gluon_rules}
    return table[language]()


RETIRED = names(
    "pallas_absmax_dtype pallas_accumulate_in_output pallas_accumulate_in_ref pallas_accumulate_in_value "
    "pallas_buffer_count pallas_dequantise_first pallas_dimension_semantics pallas_divide_to_reciprocal "
    "pallas_double_buffered_copy pallas_drop_accumulator_scratch pallas_emit_pipeline pallas_fori_to_unroll "
    "pallas_fuse_comprehension pallas_lane_padded_scale pallas_manual_copy pallas_mask_crossing_tiles "
    "pallas_merge_group_dots pallas_narrow_exponent pallas_narrow_operands pallas_reciprocal_to_divide "
    "pallas_scalar_input_in_smem pallas_scale_operand pallas_skew_grid_step pallas_skew_loop "
    "pallas_specialise_steps pallas_state_in_scratch "
    "pallas_state_in_values pallas_swap_grid_axes pallas_transpose_in_dot pallas_unroll_to_fori pallas_vmem_limit "
    "triton_accumulate_after_dot triton_accumulate_in_dot triton_descriptor_store triton_dot_halves_columns "
    "triton_dot_halves_rows triton_drop_even_guard triton_exponent_by_bits triton_fuse_launches "
    "triton_hoist_invariant_load triton_index_pointer triton_narrow_index triton_program_order triton_range_option "
    "triton_reciprocal_to_divide triton_rows_per_program triton_skew_promotion triton_split_k "
    "triton_subtiled_store triton_swap_operands triton_swap_program_axes triton_widen_index"
)
"""Rules of earlier versions, which the configuration in an old journal may name in ``without_rules``."""


def rule_names() -> frozenset[str]:
    """Names that ``without_rules`` may hold: the rules of all languages, and retired ones."""
    return RETIRED | frozenset(rule.name for language in Language for rule in rules(language))


def openings() -> frozenset[str]:
    """Names of the rules that write a kernel in another structure, which wants tuning before it competes."""
    return frozenset(
        {
            lower.LowerProduct.name,
            chain.LowerChain.name,
            operand_once.ComputeOperandOnce.name,
            unroll_grid.UnrollGridAxis.name,
        }
    )
