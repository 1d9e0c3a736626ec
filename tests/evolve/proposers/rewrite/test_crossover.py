"""Source crossover: a child repeats rewrites of another line, stays in the dialect, and computes the same."""

import numpy as np

from testkit.evaluations import candidate
from testkit.rewriting import Trial, load_cases, run_checks
from tilewright.evolve.proposers.crossover import steps_of, transplant
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.evolve.proposers.rule_credit import describe
from tilewright.evolve.record.history import History, MutationKind
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.dialect import check

CASES = {case.name: case for case in load_cases()}
PARENT = CASES["pallas/fp8_per_use_closure.py"]


def lineage(*rules):
    """A history with the seed kernel and one child of it for each rule."""
    history = History()
    seed = Genome(PARENT.source, dict(PARENT.params))
    history.propose(candidate(0, seed, kind=MutationKind.SEED))
    genomes = [seed]
    for index, name in enumerate(rules, 1):
        rule, site = next(p for p in offers(PARENT.source) if p[0].name == name)
        made = rewrite(PARENT.source, PARENT.params, rule, site, np.random.default_rng(0))
        assert made is not None
        genome = Genome(made.source, dict(made.params))
        step = {"kind": MutationKind.REWRITE, "detail": describe([(rule.name, site.description)])}
        history.propose(candidate(index, genome, parents=(seed.id,), **step))
        genomes.append(genome)
    return history, genomes


def test_a_child_repeats_what_only_the_other_line_went_through():
    history, (seed, cached, chained) = lineage("pallas_cache_across_axis", "pallas_reassociate_scale")
    made = transplant(history, chained, cached, np.random.default_rng(0))
    assert made is not None
    source, params, detail = made
    assert "cache" in source and detail.startswith("pallas_cache_across_axis: ")
    assert detail.endswith(f" as in {cached.id}") and set(params) >= set(chained.params)
    trial = Trial(PARENT.name, "transplant", detail, source, dict(params))
    run_checks([PARENT], [trial])
    assert trial.ok and check(source) == []
    assert transplant(history, cached, seed, np.random.default_rng(0)) is None, "the seed went through nothing"

    child = Genome(source, params)
    step = {"kind": MutationKind.CROSSOVER, "detail": detail}
    history.propose(candidate(3, child, parents=(chained.id, cached.id), **step))
    steps = [step.rule for step in steps_of(history, child)]
    assert steps == ["pallas_reassociate_scale", "pallas_cache_across_axis"]
    assert transplant(history, child, cached, np.random.default_rng(0)) is None, "it has been through all of it"


def test_parameters_that_come_with_a_rewrite_get_the_other_parents_values():
    history, (_, cached, widened) = lineage("pallas_cache_across_axis", "pallas_chunk_columns")
    added = sorted(set(widened.params) - set(PARENT.params))
    values = KernelSource(widened.source).space[added[0]]
    tuned = Genome(widened.source, {**widened.params, added[0]: values[-1]})
    history.propose(candidate(3, tuned, parents=(widened.id,), detail="x: 1 -> 2"))
    made = transplant(history, cached, tuned, np.random.default_rng(0))
    assert made is not None and made[1][added[0]] == values[-1]
