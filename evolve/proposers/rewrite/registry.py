"""Every rule there is, by language."""

from __future__ import annotations

from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.gluon import lower, operand_once
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
    operands,
    row_sums,
    state,
    tiles,
    transfer,
    unroll_grid,
)
from tilewright.evolve.proposers.rewrite.triton import arithmetic as device_arithmetic
from tilewright.evolve.proposers.rewrite.triton import descriptors, fusion, loads, programs, rows, stores
from tilewright.evolve.proposers.rewrite.triton import dots as device_dots


def pallas_rules() -> tuple[Rule, ...]:
    return (
        caching.CacheAcrossAxis(),
        caching.PinCachedInput(),
        caching.SkewGridStep(),
        loops.SkewLoop(),
        loops.FuseComprehension(),
        loops.UnrollToFori(),
        loops.ForiToUnroll(),
        dots.ChunkRows(),
        dots.ChunkColumns(),
        dots.DequantiseFirst(),
        dots.MergeGroupDots(),
        dots.ReassociateScale(),
        accumulators.AccumulateInValue(),
        accumulators.AccumulateInRef(),
        accumulators.DropAccumulatorScratch(),
        accumulators.AccumulateInOutput(),
        state.StateInValues(),
        state.StateInScratch(),
        tiles.MaskCrossingTiles(),
        tiles.SkipMaskedTiles(),
        normalise.NormaliseOnce(),
        exponents.BaseTwoSoftmax(),
        exponents.NarrowExponent(),
        row_sums.RowSumsInDot(),
        operands.ScaleOperand(),
        operands.TransposeInDot(),
        operands.NarrowOperands(),
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
        memory.ManualCopy(),
        memory.LanePaddedScale(),
        transfer.DoubleBufferedCopy(),
        transfer.EmitPipeline(),
        transfer.DeepPipeline(),
        transfer.ScalarInputInSmem(),
    )


def gluon_rules() -> tuple[Rule, ...]:
    """Triton rules that hold for explicit layouts as well."""
    return (
        loads.HoistInvariantLoad(),
        loads.StrengthReducePointer(),
        loads.IndexPointer(),
        loads.CacheHint(),
        loads.NarrowIndex(),
        device_arithmetic.DivideToReciprocal(),
        device_arithmetic.ReciprocalToDivide(),
        device_arithmetic.ExponentByBits(),
        programs.ProgramOrder(),
        programs.SwapProgramAxes(),
        programs.PersistentGrid(),
        programs.LaunchOption(),
    )


def triton_rules() -> tuple[Rule, ...]:
    return (
        *gluon_rules(),
        loads.EvenGuard(),
        loads.DropEvenGuard(),
        loads.WidenIndex(),
        device_dots.SkewPromotion(),
        device_dots.DotHalvesColumns(),
        device_dots.DotHalvesRows(),
        device_dots.SwapOperands(),
        device_dots.AccumulateInDot(),
        device_dots.AccumulateAfterDot(),
        programs.SplitK(),
        programs.RangeOption(),
        rows.RowsPerProgram(),
        stores.TransposedStore(),
        stores.SubtiledStore(),
        descriptors.DescriptorLoad(),
        descriptors.DescriptorStore(),
        fusion.FuseLaunches(),
        operand_once.ComputeOperandOnce(),
        lower.LowerProduct(),
    )


def rules(language: Language) -> tuple[Rule, ...]:
    """Rules for kernels of ``language``."""
    table = {Language.PALLAS: pallas_rules, Language.TRITON: triton_rules, Language.GLUON: gluon_rules}
    return table[language]()


def rule_names() -> frozenset[str]:
    """Of all languages."""
    return frozenset(rule.name for language in Language for rule in rules(language))


def openings() -> frozenset[str]:
    """Names of the rules that write a kernel in another structure, which wants tuning before it competes."""
    return frozenset(
        {lower.LowerProduct.name, operand_once.ComputeOperandOnce.name, unroll_grid.UnrollGridAxis.name}
    )
