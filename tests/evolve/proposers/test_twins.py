"""Points that would compile to what is known are seen before they are sent, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.evolve.proposers.twins import ATTEMPTS, Distinct, Twins
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict

PLAIN, HINTED = "def launch(): plain", "def launch(): hinted"
SEEN = Mutation(MutationKind.PARAMETER, "surrogate", "")


def history_of(*points: tuple[str, dict[str, int], str | None]) -> History:
    """``points``: source, parameters, what it compiled to."""
    history = History()
    for index, (source, params, artefact) in enumerate(points):
        candidate = Candidate(index, Genome(source, params), (), SEEN, 0, 0, index)
        history.propose(candidate)
        verdict = Verdict.DUPLICATE if artefact else Verdict.COMPILE_ERROR
        found = Evaluation(
            genome=candidate.genome.id, target="h200", suite="s", stage=Stage.COMPILE,
            verdict=verdict, artefact=artefact, reason="of no matter here",
        )  # fmt: skip
        history.integrate(candidate, found)
    return history


def twins_of(history: History) -> Twins:
    twins = Twins()
    twins.fold(history)
    return twins


def points(
    count: int, source: str, prefix: str = "code", **more: int
) -> list[tuple[str, dict[str, int], str | None]]:
    return [(source, {"warps": n, **more}, f"{prefix}{n}") for n in range(count)]


def test_a_source_that_compiled_twice_as_another_has_twins_where_that_one_is_known() -> None:
    known = points(4, PLAIN)
    once, twice = (history_of(*known, *points(n, HINTED, flatten=1)) for n in (1, 2))
    there, unknown = Genome(HINTED, {"warps": 1, "flatten": 0}), Genome(HINTED, {"warps": 3, "flatten": 0})
    assert not twins_of(once).expected(there), "one may be chance"
    assert twins_of(twice).expected(there)
    assert not twins_of(twice).expected(unknown), "with three warps it has never been seen"
    other = history_of(*known, *points(2, HINTED, flatten=1), (HINTED, {"warps": 2, "flatten": 1}, "other"))
    assert not twins_of(other).expected(there), "it has made a difference once"


def test_a_parameter_that_changed_nothing_twice_has_twins() -> None:
    same = [(PLAIN, {"warps": w, "stages": s}, f"code{w}") for w in (1, 2) for s in (1, 2)]
    alone = [(PLAIN, {"warps": 4, "stages": 1}, "code4")]
    twins = twins_of(history_of(*same, *alone))
    assert twins.expected(Genome(PLAIN, {"warps": 2, "stages": 3}))
    assert not twins.expected(Genome(PLAIN, {"warps": 4, "stages": 3})), (
        "with four warps it may make a difference"
    )
    failed = [(PLAIN, {"warps": 4, "stages": 5}, None), (PLAIN, {"warps": 2, "stages": 4}, "another")]
    assert not twins_of(history_of(*same, *alone, *failed)).expected(Genome(PLAIN, {"warps": 2, "stages": 3}))


class Scripted:
    """Proposes what it is told to, in turn."""

    def __init__(self, genomes: list[Genome]) -> None:
        self._left: Iterator[Genome] = iter(genomes)

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        genome = next(self._left, None)
        return None if genome is None else Proposal(genome, (), SEEN)


def test_another_is_asked_for_and_a_twin_taken_for_want_of_one() -> None:
    history = history_of(*points(2, PLAIN), *points(2, HINTED, flatten=1))
    twin = [Genome(HINTED, {"warps": n % 2, "flatten": 2 + n}) for n in range(9)]
    new = Genome(PLAIN, {"warps": 77})
    distinct = Distinct(Scripted([twin[0], new, *twin]))
    rng = np.random.default_rng(0)
    taken = [distinct.propose(history, 0, rng) for _ in range(2)]
    assert taken[0] is not None and taken[0].genome == new
    assert taken[1] is not None and taken[1].genome == twin[ATTEMPTS - 1]
    assert distinct.avoided["surrogate"] == ATTEMPTS
