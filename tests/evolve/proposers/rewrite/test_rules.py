"""Every rule on a kernel of the corpus: the child passes the dialect and computes what its parent does."""

import numpy as np
import pytest

from testkit.rewriting import Trial, inherited, load_cases, run_checks
from testkit.seeds import pallas_interpreter
from tests.evolve.proposers.rewrite.test_attention import IN_BLOCKS, STRAIGHT_LINE
from tilewright.evolve.proposers.rewrite.base import KernelSource, Language
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.evolve.proposers.rewrite.registry import rules
from tilewright.fitness.dialect import check
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.shaped import gemm

RULES = sorted(
    {rule.name for language in Language for rule in rules(language)}
    - {f"pallas_{name}" for name in (*STRAIGHT_LINE, *IN_BLOCKS)}
)
"""Those of the chains in ``test_attention`` are run there."""
CASES = {case.name: case for case in load_cases()}


def size(case):
    """Elements of the inputs: what an interpreter run costs."""
    return sum(int(np.prod(shape)) for _, shape, *_ in case.inputs)


CHEAPEST_FIRST = sorted(CASES.values(), key=lambda case: (size(case), case.name))


def trial_of(case, rule_name):
    for rule, site in offers(case.source):
        if rule.name == rule_name:
            child = rewrite(case.source, case.params, rule, site, np.random.default_rng(0))
            if child is not None:
                entry = "build" if case.language == "pallas" else "launch"
                problems = check(child.source, entry=entry)
                return Trial(
                    case.name,
                    rule.name,
                    site.key,
                    child.source,
                    inherited(case, child.params),
                    str((problems or [""])[0]),
                )
    return None


@pytest.fixture(scope="module")
def trials():
    """One proposal of every rule on the smallest kernel that offers it, run in two interpreter processes."""
    found: dict[str, Trial] = {}
    for name in RULES:
        for case in CHEAPEST_FIRST:
            if case.language != "gluon" and case.language == name.split("_")[0]:
                trial = trial_of(case, name)
                if trial is not None:
                    found[name] = trial
                    break
    run_checks(CASES.values(), list(found.values()))
    return found


@pytest.mark.parametrize("name", RULES)
def test_rule_keeps_the_meaning(name, trials):
    assert name in trials, "no kernel of the corpus offers a site"
    trial = trials[name]
    assert not trial.dialect
    assert trial.ok, f"{trial.kernel} at {trial.site}: {trial.reason}"


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("gluon")])
def test_gluon_children_pass_the_dialect(name):
    case = CASES[name]
    assert offers(case.source)
    for rule, site in offers(case.source):
        child = rewrite(case.source, case.params, rule, site, np.random.default_rng(0))
        assert child is not None
        assert check(child.source, entry="launch") == []


@pytest.mark.parametrize("language", ["triton", "gluon", "pallas"])
def test_a_tree_that_is_kept_gives_the_children_of_a_fresh_one(language):
    case = next(case for case in CHEAPEST_FIRST if case.language == language)
    for rule, site in offers(case.source)[:6]:
        fresh = KernelSource(case.source)
        place = next(found for found in rule.sites(fresh) if found.key == site.key)
        made = rule.apply(fresh, place, np.random.default_rng(0))
        for _ in range(2):  # names that one child was given are free for the next
            kept = rewrite(case.source, case.params, rule, site, np.random.default_rng(0))
            assert made is not None and kept is not None and kept.source == made.source


@pytest.mark.parametrize(
    "names",
    [
        ("pallas_cache_across_axis", "pallas_whole_reduction_block"),
        ("pallas_scale_before_dot", "keep right_part of w_ref, sw_ref over grid axis 0", "pallas_whole"),
        ("pallas_scale_before_dot", "pallas_whole", "keep left_part of a_ref over grid axis 1"),
    ],
)
def test_rules_after_one_another_keep_a_kernel_right(names):
    operator = load_operator("gemm_fp8_fused/g128")
    source = operator.kernels["naive"].source
    params = {"block_m": 256, "block_n": 256, "block_k": 512, "vmem_mib": 62}
    for name in names:
        rule, site = next(pair for pair in offers(source) if name in f"{pair[0].name} {pair[1].description}")
        made = rewrite(source, params, rule, site, np.random.default_rng(0))
        source, params = made.source, dict(made.params)
    found = pallas_interpreter.readings(operator, gemm(256, 512, 1024), source, params, "spread")
    assert all(reading.passed for reading in found.values()), "a helper that fills a cache walks all of the depth"
