"""Niches: a new structure is opened at once, tuned by itself, and its rule gets the credit; others are left alone."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from testkit.evaluations import figures, passed
from testkit.spaces.campaigns import Nowhere
from testkit.spaces.tables import AtOnce
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start
from tilewright.evolve.campaign.searcher import violations
from tilewright.evolve.proposers.niches import NAME, RUNGS, NicheSearch, transferred_point
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.rewrite.proposer import RewriteProposal, RewriteProposer, Rewrites
from tilewright.evolve.proposers.rewrite.registry import openings
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, ParameterProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space, read_declarations
from tilewright.seeds.catalogue import load_operator

POINTER = load_operator("gemm_fp8_blockwise/gemm_nt").kernels["pointer"].source
CONSTANTS = [{"M": 4096, "N": 4096, "K": 4096, "smem_bytes": 232448}]
RULE = "triton_lower_to_gluon"


class _Spaces(dict[str, Space]):
    """Each read once for all campaigns."""

    def __missing__(self, text):
        self[text] = Space.from_source(text, CONSTANTS)
        return self[text]


SPACES = _Spaces()


def worth(genome):
    """TFLOP/s of a made-up device: the new structure is worse until several of its parameters are right."""
    if "stages" not in genome.params:
        stages, group = genome.params.get("num_stages", 3), genome.params.get("group_m", 1)
        return 700.0 + 10.0 * stages + 8.0 * np.log2(group)
    good = {"pieces": 2, "stages": 4, "consumers": 2, "skew": False, "producer_registers": 40}
    right = sum(genome.params.get(name) == value for name, value in good.items())
    return 300.0 + 170.0 * right + 5.0 * np.log2(genome.params["walk_rows"])


class Device(AtOnce):
    """Answers one job after the other."""

    def wait(self, timeout_seconds):
        done, self._finished = self._finished[:1], self._finished[1:]
        return done

    def evaluate(self, job):
        rate = worth(job.genome)
        return passed(job.genome, figures(seconds=1 / rate), fitness=rate, artefact=job.genome.id)


class Remembering(RewriteProposer):
    """One rule at one site of a source: what it comes to is worked out once."""

    known: ClassVar[dict[str, RewriteProposal | None]] = {}

    def propose(self, parent_source, parent_params, rng, exclude=frozenset(), shares=None):
        if exclude:
            return None
        if parent_source not in self.known:
            self.known[parent_source] = super().propose(parent_source, parent_params, rng, exclude, shares)
        found = self.known[parent_source]
        return found and replace(found, params={**found.params, **parent_params})


def run(seed, *, niches, evaluations=44, lag=8, source=POINTER):
    spaces = KnownSpaces(SPACES.__getitem__)
    archive = Archive(1, 50)
    rewrites = Rewrites(archive, spaces.space_of, violations, Remembering(only=[RULE]))
    proposers = [ParameterProposer(archive, spaces), rewrites]
    searcher = Portfolio(proposers)
    chosen = NicheSearch(searcher, spaces, violations, openings()) if niches else searcher
    start = Start("pointer", Genome(source, read_declarations(source).defaults))
    plan = Plan((start,), Budget(evaluations), seed, lag)
    campaign = Campaign(plan, chosen, archive, Device(), Nowhere())
    campaign.run()
    return campaign


@pytest.fixture(scope="module")
def campaign():
    return run(0, niches=True)


def test_a_niche_gets_its_rungs_and_no_more(campaign):
    opened = [c for c in campaign.history.candidates if c.mutation.proposer == NAME and RULE in c.mutation.detail]
    sources = {c.genome.source_id for c in opened}
    for source in sources:
        assert sum(c.genome.source_id == source for c in opened) <= sum(RUNGS)
    (first,) = {c.genome.source_id for c in opened if c.mutation.kind is MutationKind.REWRITE}
    assert sum(c.genome.source_id == first for c in campaign.history.candidates) >= sum(RUNGS)
    points = [c for c in opened if c.mutation.kind is MutationKind.PARAMETER]
    assert len({c.genome.id for c in opened}) == len(opened) and points


def test_tuning_by_itself_finds_what_competition_at_once_does_not(campaign):
    with_niches = [campaign.history.best, *(run(seed, niches=True).history.best for seed in (1, 2))]
    without = [run(seed, niches=False).history.best for seed in range(3)]
    better, before = (np.mean([b[1].fitness or 0.0 for b in found if b]) for found in (with_niches, without))
    assert better > 1.1 * before, (better, before)


def test_parameters_are_transferred_by_name_and_by_meaning():
    space = Space.from_source(
        "SPACE = {'stages': (2, 3, 4), 'walk_rows': (1, 4, 8), 'pieces': (1, 2)}\n"
        "DEFAULTS = {'stages': 2, 'walk_rows': 1, 'pieces': 2}\nCONSTRAINTS = {}\n"
    )
    found = transferred_point(space, {"num_stages": 4, "GROUP_M": 8, "pieces": 1, "num_warps": 8})
    assert found == {"stages": 4, "walk_rows": 8, "pieces": 1}
