"""Rules on attention together: chains of them, what a mask says of a tile, and what they refuse."""

import operator

import numpy as np
import pytest

from testkit.rewriting import Trial, inherited, load_cases, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.analysis.masks import masks
from tilewright.evolve.proposers.rewrite.proposer import rewrite
from tilewright.evolve.proposers.rewrite.registry import pallas_rules
from tilewright.fitness.dialect import check

CASES = {case.name.split("/")[1]: case for case in load_cases(["pallas/attention"])}
AVERAGE = CASES["attention_average.py"]

IN_BLOCKS = ("normalise_once", "skip_masked_tiles", "base_two_softmax")
STRAIGHT_LINE = ("unroll_grid_axis", "skip_masked_tiles", "normalise_once", "base_two_softmax")


RULES = {rule.name.removeprefix("pallas_"): rule for rule in pallas_rules()}


def sites(rule, source):
    """Where one rule applies."""
    return RULES[rule].sites(KernelSource(source))


def chained(case, names):
    """The case's kernel after rules, one after the other, each at its first site."""
    source, params = case.source, dict(case.params)
    for name in names:
        rule, site = RULES[name], sites(name, source)[0]
        child = rewrite(source, params, rule, site, np.random.default_rng(0))
        assert child is not None, name
        source, params = child.source, inherited(case, child.params)
        assert check(source, entry="build") == [], name
    return Trial(case.name, " > ".join(names), "", source, params)


@pytest.fixture(scope="module")
def chains():
    found = {names: chained(AVERAGE, names) for names in (STRAIGHT_LINE, IN_BLOCKS)}
    run_checks([AVERAGE], list(found.values()))
    return found


@pytest.mark.parametrize("names", [STRAIGHT_LINE, IN_BLOCKS], ids=["straight-line", "blocks"])
def test_a_chain_keeps_the_meaning(names, chains):
    assert chains[names].ok, chains[names].reason


def test_a_chain_reaches_straight_line_code(chains):
    """Tiles below the diagonal are left out while tracing; one division, base two."""
    text = chains[STRAIGHT_LINE].source
    assert "continue" in text and "exp2" in text
    assert text.count(" / total") == 1
    assert "continue" not in chains[IN_BLOCKS].source


MASKED = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

SPACE = {{}}
DEFAULTS = {{}}
CONSTRAINTS = {{}}


def build(params):
    def run(x):
        def kernel(x_ref, o_ref):
            i = pl.program_id(0)
            row = jax.lax.broadcasted_iota(jnp.int32, (R, C), 0)
            row += A
            column = jax.lax.broadcasted_iota(jnp.int32, (R, C), 1)
            shown = {left} {sign} {right}
            o_ref[...] = jnp.where(shown, x_ref[...], -1e30)

        spec = pl.BlockSpec((R, C), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(2,), in_specs=[spec], out_specs=spec,
            out_shape=jax.ShapeDtypeStruct((2 * R, C), jnp.float32),
        )(x)

    return run
"""
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("sides", [("column + B", "row"), ("row - column", "B"), ("B - column", "0 - row")])
def test_what_a_mask_says_of_a_tile_is_so(sign, sides):
    """``full`` and ``empty`` hold exactly where all and none of the tile's elements pass."""
    kernel = KernelSource(MASKED.format(left=sides[0], sign=sign, right=sides[1]))
    (view,) = pallas_calls(kernel)
    (mask,) = masks(kernel, view.function, view.function)
    rng = np.random.default_rng()
    for _ in range(200):
        rows, columns = (int(n) for n in rng.integers(1, 6, 2))
        a, b = (int(n) for n in rng.integers(-8, 9, 2))
        row = np.arange(rows)[:, None] + a
        column = np.arange(columns)[None, :]
        sums = {"column + B": column + b, "row": row, "row - column": row - column, "B": b}
        sums |= {"B - column": b - column, "0 - row": -row}
        shown = np.broadcast_to(SIGNS[sign](sums[sides[0]], sums[sides[1]]), (rows, columns))
        names = {"A": a, "B": b, "R": rows, "C": columns}
        assert eval(mask.full, dict(names)) == shown.all(), (mask.full, names)
        assert eval(mask.empty, dict(names)) == (not shown.any()), (mask.empty, names)


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        # a turn that is counted must not be left out
        ("skip_masked_tiles", "            high[...] = high_now", "            high[0:1, :] += 1"),
        # scores that are used as they are
        ("base_two_softmax", "            fade = ", "            out_ref[...] = scores\n            fade = "),
        # a maximum that leaves the kernel is in the unit of the scores
        ("base_two_softmax", "out_ref[...] = mean[...]", "out_ref[...] = high[...] + mean[...]"),
        # a sum that is not that of this step
        ("normalise_once", "+ added) / total_now", "+ added) / total_before"),
        # an average that is looked at on its way
        ("normalise_once", "            weights = ", "            high[...] = mean[...] * 1.0\n            weights = "),
        # a mask that is no comparison of positions
        ("skip_masked_tiles", "q_at >= k_at", "q_at * k_at >= 0"),
    ],
)
def test_refusals(rule, old, new):
    assert sites(rule, AVERAGE.source)
    assert old in AVERAGE.source
    assert not sites(rule, AVERAGE.source.replace(old, new))
