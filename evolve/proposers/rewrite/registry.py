"""Every rule there is, by language."""

from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.gluon import lower
from tilewright.evolve.proposers.rewrite.gluon.chain import write as chain
from tilewright.evolve.proposers.rewrite.pallas import dots, exponents, grid, normalise, tiles, unroll_grid
from tilewright.evolve.proposers.rewrite.triton import descriptors, single_edits
from tilewright.fitness.targets import Target


def pallas_rules() -> tuple[Rule, ...]:
    return (
        grid.CacheAcrossAxis(),
        dots.ChunkRows(),
        dots.ChunkColumns(),
        dots.ScaleBeforeDot(),
        dots.ReassociateScale(),
        tiles.SkipMaskedTiles(),
        normalise.NormaliseOnce(),
        exponents.BaseTwoSoftmax(),
        grid.WholeReductionBlock(),
        unroll_grid.UnrollGridAxis(),
    )


def gluon_rules() -> tuple[Rule, ...]:
    """Triton rules that hold for explicit layouts as well."""
    return (single_edits.CacheHint(), single_edits.DivideToReciprocal(), single_edits.LaunchOption())


def triton_rules() -> tuple[Rule, ...]:
    return (
        *gluon_rules(),
        single_edits.TransposedStore(),
        descriptors.DescriptorLoad(),
        lower.LowerProduct(),
        chain.LowerChain(),
    )


def rules(language: Language) -> tuple[Rule, ...]:
    """Rules for kernels of ``language``."""
    table = {Language.PALLAS: pallas_rules, Language.TRITON: triton_rules, Language.GLUON: gluon_rules}
    return table[language]()


def rule_names() -> frozenset[str]:
    """Those of the rules of all languages."""
    return frozenset(rule.name for language in Language for rule in rules(language))


def absent_rules(target: Target) -> frozenset[str]:
    """Names of the rules whose kernels a target cannot compile: Hopper's schedules multiply by ``wgmma``."""
    return frozenset() if target.hopper else frozenset({lower.LowerProduct.name, chain.LowerChain.name})


def openings() -> frozenset[str]:
    """Names of the rules that write a kernel in another structure, which wants tuning before it competes."""
    return frozenset({lower.LowerProduct.name, chain.LowerChain.name, unroll_grid.UnrollGridAxis.name})
