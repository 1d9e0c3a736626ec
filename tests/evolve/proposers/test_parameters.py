"""Proposers without a model: legal, new, and they say what they change."""

from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import SPACES, read_table
from tilewright.evolve.record.history import MutationKind


def test_proposals_are_legal_new_and_say_what_they_change():
    table = read_table(SPACES / "conv_rtx3090_fail.json")
    run = table_campaign(table, 5, Setting(budget=300, lag=4, proposers=("parameters", "crossover")))
    run.run()
    genomes = [candidate.genome for candidate in run.history.candidates]
    assert len({genome.id for genome in genomes}) == len(genomes) == 300
    assert all(table.space.legal(genome.params) for genome in genomes)
    kinds = {candidate.mutation.kind for candidate in run.history.candidates[1:]}
    assert kinds == {MutationKind.PARAMETER, MutationKind.CROSSOVER}
    for candidate in run.history.candidates[1:]:
        parent = run.history.candidate(candidate.parents[0]).genome
        for name, value in candidate.genome.params.items():
            assert (parent.params[name] != value) == (f"{name} " in candidate.mutation.detail)
