"""The archive keeps the fittest of every cell, moves bests between islands, and is a pure fold."""

import numpy as np

from testkit.evaluations import candidate, failed, figures, passed
from tilewright.evolve.record.archive import Archive


def entry(index, fitness, cell="c", island=0, seconds=1.0):
    found = candidate(index, island=island)
    if fitness is None:
        return found, failed(found.genome, descriptors={"kind": cell})
    timed = figures(f"w{index % 2}", seconds)
    return found, passed(found.genome, timed, fitness=fitness, descriptors={"kind": cell})


def test_a_cell_keeps_its_fittest_and_the_holder_on_a_tie():
    archive = Archive(1, 10)
    for added, kept in (
        (entry(0, 2.0), [0]),
        (entry(1, 2.0), [0]),
        (entry(2, 3.0), [2]),
        (entry(3, 1.0, cell="d"), [2, 3]),
        (entry(4, None, cell="e"), [2, 3]),
    ):
        archive.add(*added)
        assert [e.candidate.index for e in archive.elites(0)] == kept


def test_bests_migrate_around_the_ring():
    archive = Archive(3, 2)
    archive.add(*entry(0, 5.0, island=0))
    assert not archive.elites(1)
    archive.add(*entry(1, 1.0, island=2))
    assert [e.fitness for e in archive.elites(1)] == [5.0]
    assert [e.fitness for e in archive.elites(0)] == [5.0]
    assert [e.fitness for e in archive.elites(2)] == [1.0]


def test_selection_prefers_the_fit_and_reaches_all():
    archive = Archive(1, 10)
    rng = np.random.default_rng(0)
    assert archive.select(0, rng) is None
    for index in range(4):
        archive.add(*entry(index, 1.0 + index, cell=str(index)))
    picks = [archive.select(0, rng) for _ in range(400)]
    counts = np.bincount([pick.candidate.index for pick in picks if pick], minlength=4)
    assert counts[3] > counts[2] > counts[1] > 0
    assert counts.min() > 0
