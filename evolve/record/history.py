"""The history of a campaign so far, as proposers see it."""

from __future__ import annotations

import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Generic, Protocol, TypeVar, overload

import numpy as np

from tilewright.evolve.record.duplicates import DuplicateModel, is_verified
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Verdict

T = TypeVar("T")


POINTS = "points"
"""Proposer of the points that are given with a seed."""


class MutationKind(StrEnum):
    SEED = "seed"
    PARAMETER = "parameter"
    REWRITE = "rewrite"
    CROSSOVER = "crossover"
    LLM = "llm"


@dataclass(frozen=True)
class Mutation:
    """One step from parents to a child. ``detail`` is one line a person reads in the lineage."""

    kind: MutationKind
    proposer: str
    detail: str


@dataclass(frozen=True)
class Candidate:
    """A genome with its ancestry. ``index`` counts proposals from 0; ``parents`` are genome ids.

    ``seen`` is how many evaluations had been integrated when it was proposed.
    """

    index: int
    genome: Genome
    parents: tuple[str, ...]
    mutation: Mutation
    generation: int
    island: int
    seen: int = 0


@dataclass(frozen=True)
class Proposal:
    """A genome that a proposer wants tried next."""

    genome: Genome
    parents: tuple[str, ...]
    mutation: Mutation


class Recall(Protocol):
    """Reads what a history no longer holds: the journal. Both methods raise JournalError for a damaged file."""

    def candidate(self, index: int) -> Candidate: ...

    def evaluation(self, index: int) -> Evaluation:
        """Of the candidate ``index``."""
        ...


LOG_CHARACTERS = 2000
"""Characters at the end of each log that stay in memory, for a question to a language model; the journal has all."""

HELD = 4096
"""Candidates, and evaluations, that stay in memory; search looks at older ones rarely."""

RECALLED = 512
"""Older ones that stay in memory after they were read again."""


def in_memory(evaluation: Evaluation) -> Evaluation:
    """An evaluation with the end of its log."""
    if len(evaluation.log) <= LOG_CHARACTERS:
        return evaluation
    return evaluation.model_copy(update={"log": evaluation.log[-LOG_CHARACTERS:]})


class LatestHeld(Generic[T]):
    """Items by index. The latest are held; with ``recall``, older ones are read again when asked for."""

    def __init__(self, recall: Callable[[int], T] | None, held: int = HELD) -> None:
        self._recall = lru_cache(RECALLED)(recall) if recall is not None else None
        self._limit = held
        self._held: OrderedDict[int, T] = OrderedDict()

    def put(self, index: int, item: T) -> None:
        self._held[index] = item
        if self._recall is not None and len(self._held) > self._limit:
            # a plain dict's first key is found by walking over all that were deleted before it
            self._held.popitem(last=False)

    def get(self, index: int) -> T:
        """The item of an index. Raises KeyError where neither ``put`` nor ``recall`` knows it."""
        if index in self._held or self._recall is None:
            return self._held[index]
        return self._recall(index)


class Rows(Sequence[T]):
    """A read-only sequence whose items are computed when asked for."""

    def __init__(self, count: Callable[[], int], item: Callable[[int], T]) -> None:
        self._count = count
        self._item = item

    def __len__(self) -> int:
        return self._count()

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self._item(n) for n in range(*place.indices(len(self)))]
        return self._item(range(len(self))[place])


class History:
    """Every candidate in proposal order, and evaluations in the order they were integrated.

    Proposers read it and never change it; only the campaign calls ``propose`` and ``integrate``. With ``recall`` the
    latest ``held`` of either stay in memory; an older one takes some two hundred bytes, and the rest of it is read
    again when asked for. Without ``recall`` everything stays in memory.
    """

    def __init__(self, recall: Recall | None = None, held: int = HELD) -> None:
        self._candidates: LatestHeld[Candidate] = LatestHeld(recall.candidate if recall else None, held)
        self._evaluations: LatestHeld[Evaluation] = LatestHeld(
            (lambda index: in_memory(recall.evaluation(index))) if recall else None, held
        )
        self._places: dict[str, int] = {}
        self._order = array("q")
        self._fitness = array("d")
        self._pending: dict[int, None] = {}
        self._best: tuple[Candidate, Evaluation] | None = None
        self._rewritten: dict[str, set[str]] = {}
        self._duplicates = DuplicateModel()
        self.verdicts: Counter[Verdict] = Counter()
        self.candidates: Sequence[Candidate] = Rows(lambda: len(self._places), self._candidates.get)
        self.evaluated: Sequence[tuple[Candidate, Evaluation]] = Rows(lambda: len(self._order), self._pair)

    def propose(self, candidate: Candidate) -> None:
        place = len(self._places)
        self._candidates.put(place, candidate)
        self._places[candidate.genome.id] = place
        self._pending[place] = None
        self._duplicates.note_tried(candidate.genome)
        if candidate.mutation.kind is MutationKind.REWRITE:
            for parent in candidate.parents:
                source = self.candidate(parent).genome.source_id
                self._rewritten.setdefault(source, set()).add(candidate.mutation.detail)

    def integrate(self, candidate: Candidate, evaluation: Evaluation) -> None:
        place = self._places[candidate.genome.id]
        del self._pending[place]
        self._order.append(place)
        self._evaluations.put(place, evaluation)
        self._fitness.append(math.nan if evaluation.fitness is None else evaluation.fitness)
        self.verdicts[evaluation.verdict] += 1
        if evaluation.artefact is not None:
            self._note_compiled(candidate, evaluation.artefact)
        if evaluation.fitness is None:
            return
        if self._best is None or evaluation.fitness > (self._best[1].fitness or 0.0):
            self._best = (candidate, evaluation)

    def __contains__(self, genome_id: str) -> bool:
        return genome_id in self._places

    def tried(self, genome: Genome, rewritten: tuple[Genome, str] | None = None) -> bool:
        """Whether it was proposed before, or is presumed to compile to what something proposed before did.

        ``rewritten``: the parent it was rewritten from, and the line that names the edits.
        """
        if genome.id in self._places:
            return True
        if is_verified(genome):
            return False
        idle = rewritten is not None and self._duplicates.presumed_idle(rewritten[0], genome, rewritten[1])
        return idle or self._duplicates.presumed(genome)

    def candidate(self, genome_id: str) -> Candidate:
        return self._candidates.get(self._places[genome_id])

    def evaluation(self, genome_id: str) -> Evaluation | None:
        place = self._places.get(genome_id)
        return None if place is None or place in self._pending else self._evaluations.get(place)

    def pending(self) -> Iterator[Candidate]:
        """Proposed, not yet integrated."""
        return (self._candidates.get(place) for place in self._pending)

    def successes(self) -> Sequence[tuple[Candidate, Evaluation]]:
        return [self._pair(n) for n, fitness in enumerate(self._fitness) if not math.isnan(fitness)]

    def fittest(self, most: int) -> Sequence[tuple[Candidate, Evaluation]]:
        """The fittest, at most so many, the earlier integrated first on a tie."""
        ranked = np.argsort(-np.array(self._fitness), kind="stable")  # NaN, which is none, comes last
        return [self._pair(int(n)) for n in ranked[:most] if not math.isnan(self._fitness[n])]

    def rewritten(self, source_id: str) -> Collection[str]:
        """Details of the rewrites that were applied to a source, at any parameters."""
        return self._rewritten.get(source_id, ())

    @property
    def best(self) -> tuple[Candidate, Evaluation] | None:
        """The fittest, earliest integrated on a tie."""
        return self._best

    def _note_compiled(self, candidate: Candidate, artefact: str) -> None:
        self._duplicates.note_compiled(candidate.genome, artefact)
        if candidate.mutation.kind is MutationKind.REWRITE and len(candidate.parents) == 1:
            parent = self.candidate(candidate.parents[0]).genome
            self._duplicates.note_rewritten(parent, candidate.genome, candidate.mutation.detail)

    def _pair(self, number: int) -> tuple[Candidate, Evaluation]:
        place = self._order[number]
        return self._candidates.get(place), self._evaluations.get(place)


class Proposer(Protocol):
    """Turns history into the next genome to try.

    A proposer must be a pure function of (history, rng) plus state it derives from them alone, so
    that a resumed campaign proposes what the unbroken one would have. It never returns a genome
    that is already in the history; ``None`` means it has nothing to offer now.
    """

    name: str
    kind: MutationKind

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None: ...
