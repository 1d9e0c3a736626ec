"""Every rule there is, by language."""

from __future__ import annotations

from evolve.proposers.rewrite.base import Language, Rule
from evolve.proposers.rewrite.pallas import (
    accumulators,
    arithmetic,
    caching,
    dots,
    grid,
    launch,
    loops,
    memory,
)


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
        grid.WholeReductionBlock(),
        grid.SwapGridAxes(),
        grid.SpecialiseSteps(),
        launch.DimensionSemantics(),
        launch.BufferCount(),
        launch.VmemLimit(),
        launch.WidenSpace(),
        arithmetic.AbsmaxDtype(),
        arithmetic.DivideToReciprocal(),
        arithmetic.ReciprocalToDivide(),
        memory.ManualCopy(),
    )


def rules(language: Language) -> tuple[Rule, ...]:
    """Rules for kernels of ``language``."""
    return pallas_rules() if language is Language.PALLAS else ()
