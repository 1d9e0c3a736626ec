"""Every rule there is, by language."""

from __future__ import annotations

from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.gluon import lower, operand_once
from tilewright.evolve.proposers.rewrite.gluon.chain import rule as chain
from tilewright.evolve.proposers.rewrite.pallas import (
    accumulators,
    arithmetic,
    caching,
    dots,
    exponents,
    grid,
    launch,
    loops,
    memory,
    normalise,
    row_sums,
    tiles,
    unroll_grid,
)
from tilewright.evolve.proposers.rewrite.triton import arithmetic as device_arithmetic
from tilewright.evolve.proposers.rewrite.triton import descriptors, loads, programs, rows, stores
from tilewright.evolve.proposers.rewrite.triton import dots as device_dots


def pallas_rules() -> tuple[Rule, ...]:
    return (
        caching.CacheAcrossAxis(),
        caching.PinCachedInput(),
        caching.SkewGridStep(),
        loops.SkewLoop(),
        loops.UnrollToFori(),
        loops.ForiToUnroll(),
        dots.ChunkRows(),
        dots.ChunkColumns(),
        dots.DequantiseFirst(),
        dots.ReassociateScale(),
        accumulators.AccumulateInValue(),
        accumulators.AccumulateInRef(),
        accumulators.DropAccumulatorScratch(),
        tiles.SkipMaskedTiles(),
        normalise.NormaliseOnce(),
        exponents.BaseTwoSoftmax(),
        exponents.NarrowExponent(),
        row_sums.RowSumsInDot(),
        grid.WholeReductionBlock(),
        grid.SwapGridAxes(),
        grid.SpecialiseSteps(),
        unroll_grid.UnrollGridAxis(),
        launch.DimensionSemantics(),
        launch.BufferCount(),
        launch.VmemLimit(),
        launch.WidenSpace(),
        arithmetic.AbsmaxDtype(),
        arithmetic.DivideToReciprocal(),
        arithmetic.ReciprocalToDivide(),
        memory.LanePaddedScale(),
        memory.EmitPipeline(),
        memory.DeepPipeline(),
    )


def gluon_rules() -> tuple[Rule, ...]:
    """Triton rules that hold for explicit layouts as well."""
    return (
        loads.StrengthReducePointer(),
        loads.CacheHint(),
        device_arithmetic.DivideToReciprocal(),
        programs.SwapProgramAxes(),
        programs.PersistentGrid(),
        programs.LaunchOption(),
    )


def triton_rules() -> tuple[Rule, ...]:
    return (
        *gluon_rules(),
        loads.EvenGuard(),
        device_dots.SwapOperands(),
        device_dots.AccumulateInDot(),
        programs.SplitK(),
        programs.RangeOption(),
        rows.RowsPerProgram(),
        stores.TransposedStore(),
        descriptors.DescriptorLoad(),
        descriptors.DescriptorStore(),
        operand_once.ComputeOperandOnce(),
        lower.LowerProduct(),
        chain.LowerChain(),
    )


def rules(language: Language) -> tuple[Rule, ...]:
    """Rules for kernels of ``language``."""
    table = {Language.PALLAS: pallas_rules, Language.TRITON: triton_rules, Language.GLUON: gluon_rules}
    return table[language]()


RETIRED = frozenset(
    {
        "pallas_accumulate_in_output",
        "pallas_double_buffered_copy",
        "pallas_fuse_comprehension",
        "pallas_manual_copy",
        "pallas_mask_crossing_tiles",
        "pallas_merge_group_dots",
        "pallas_narrow_operands",
        "pallas_scalar_input_in_smem",
        "pallas_scale_operand",
        "pallas_state_in_scratch",
        "pallas_state_in_values",
        "pallas_transpose_in_dot",
        "triton_accumulate_after_dot",
        "triton_dot_halves_columns",
        "triton_dot_halves_rows",
        "triton_drop_even_guard",
        "triton_exponent_by_bits",
        "triton_fuse_launches",
        "triton_hoist_invariant_load",
        "triton_index_pointer",
        "triton_narrow_index",
        "triton_program_order",
        "triton_reciprocal_to_divide",
        "triton_skew_promotion",
        "triton_subtiled_store",
        "triton_widen_index",
    }
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
