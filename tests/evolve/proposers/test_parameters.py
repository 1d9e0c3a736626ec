"""Proposers without a model: legal, new, local, reproducible, and fast enough never to starve a cluster."""

import numpy as np
import pytest

from testkit.spaces.tables import SPACES, Table, TableEvaluator, read_table
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start
from tilewright.evolve.proposers.parameter_crossover import ParameterCrossover
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import ParameterProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import MutationKind

MODEL_FREE = ("parameters", "crossover")


@pytest.fixture(scope="module")
def table():
    return read_table(SPACES / "conv_rtx3090_fail.json")


class Sink:
    def add_candidate(self, candidate: object) -> None: ...
    def add_evaluation(self, index: int, evaluation: object) -> None: ...


def campaign(table: Table, seed: int, evaluations: int, lag: int = 1) -> Campaign:
    archive = Archive(2, 10)
    proposers = [ParameterProposer(archive, table.space_of), ParameterCrossover(archive, table.space_of)]
    start = Start("a", table.random_genome(np.random.default_rng(seed)))
    plan = Plan([start], Budget(evaluations=evaluations), seed, lag, islands=2, must_pass=False)
    run = Campaign(plan, Portfolio(proposers), archive, TableEvaluator(table, lag), Sink())
    run.run()
    return run


def test_proposals_are_legal_new_and_say_what_they_change(table):
    run = campaign(table, 5, 300, lag=4)
    genomes = [candidate.genome for candidate in run.history.candidates]
    assert len({genome.id for genome in genomes}) == len(genomes) == 300
    assert all(table.space.legal(genome.params) for genome in genomes)
    kinds = {candidate.mutation.kind for candidate in run.history.candidates[1:]}
    assert kinds == {MutationKind.PARAMETER, MutationKind.CROSSOVER}
    for candidate in run.history.candidates[1:]:
        parent = run.history.candidate(candidate.parents[0]).genome
        for name, value in candidate.genome.params.items():
            assert (parent.params[name] != value) == (f"{name} " in candidate.mutation.detail)
