"""Which rule comes next is learned within the campaign: credit, fading, exploration, and the same after a resume."""

import numpy as np
import pytest

from testkit.evaluations import candidate, failed, passed
from tests.evolve.proposers.rewrite.test_sources import PLAIN
from tilewright.evolve.proposers.rewrite.proposer import RewriteProposer, Rewrites
from tilewright.evolve.proposers.rule_credit import EXPLORE, RuleCredit, describe
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, MutationKind
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Verdict

RULES = ["pallas_a", "pallas_b", "pallas_c", "pallas_vmem_limit"]
CONSTANTS = [{"M": 512, "N": 512, "K": 512}]


def grow(history, rule, gain, steps=1):
    """One more child of the first candidate by ``rule``: its fitness is ``gain`` over the parent's, None fails."""
    if not history.candidates:
        first = candidate(0, Genome("x = 0", {}), kind=MutationKind.SEED)
        history.propose(first)
        history.integrate(first, passed(first.genome, fitness=100.0))
    index = len(history.candidates)
    detail = describe([(rule, f"site {index}")] * steps)
    parents = (history.candidates[0].genome.id,)
    child = candidate(index, Genome(f"x = {index}", {}), parents=parents, kind=MutationKind.REWRITE, detail=detail)
    history.propose(child)
    failure = failed(child.genome, Verdict.COMPILE_ERROR)
    history.integrate(child, failure if gain is None else passed(child.genome, fitness=100.0 * (1 + gain)))


def learned(history):
    credit = RuleCredit()
    credit.learn(history)
    return credit


def test_a_rule_that_gained_is_drawn_more_and_one_that_failed_less():
    history = History()
    for _ in range(4):
        grow(history, "pallas_a", 0.2)
        grow(history, "pallas_b", None)
    shares = learned(history).shares(RULES)
    assert shares["pallas_a"] > 2 * shares["pallas_c"] > 2 * shares["pallas_b"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= EXPLORE / len(RULES)


def test_credit_fades_so_that_the_next_phase_has_its_own_winner():
    history = History()
    for _ in range(8):
        grow(history, "pallas_a", 0.3)
    for _ in range(40):
        grow(history, "pallas_a", -0.1)
        grow(history, "pallas_b", 0.05)
    shares = learned(history).shares(RULES)
    assert shares["pallas_b"] > 2 * shares["pallas_a"]


def seeded(rules):
    archive, history = Archive(1, 10), History()
    genome = Genome(PLAIN, {"block_m": 128, "block_n": 128, "block_k": 128})
    first = candidate(0, genome, kind=MutationKind.SEED)
    history.propose(first)
    history.integrate(first, passed(genome, fitness=100.0))
    archive.add(first, passed(genome, fitness=100.0))
    space = lambda source: Space.from_source(source, CONSTANTS)  # noqa: E731
    return Rewrites(archive, space, lambda source: [], rules), history


def test_no_genome_is_proposed_twice_however_it_is_laid_out():
    """Near-duplicates: comments, layout, docstrings and declarations are no part of a genome."""
    rewrites, history = seeded(RewriteProposer())
    ids = {history.candidates[0].genome.id}
    for number in range(1, 7):
        proposal = rewrites.propose(history, 0, np.random.default_rng(number % 3))
        if proposal is None:
            continue
        laid_out = "# as someone else might write it\n" + proposal.genome.source.replace("\n\n\n", "\n\n\n\n")
        genome = Genome(laid_out, proposal.genome.params)
        assert genome.id == proposal.genome.id
        assert genome.id not in ids
        ids.add(genome.id)
        history.propose(Candidate(len(ids), genome, proposal.parents, proposal.mutation, 1, 0))
    assert len(ids) > 3
