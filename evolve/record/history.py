"""The history of a campaign so far, as proposers see it."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Verdict

POINTS = "points"
"""Name of the proposer of the parameter points that come with a seed kernel."""


class MutationKind(StrEnum):
    SEED = "seed"
    PARAMETER = "parameter"
    REWRITE = "rewrite"
    CROSSOVER = "crossover"
    LLM = "llm"


@dataclass(frozen=True)
class Mutation:
    """How a child was made from its parents. ``detail``: one line for the lineage in reports."""

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


LOG_CHARACTERS = 2000
"""Characters at the end of each log that stay in memory, for a question to a language model; the journal has all."""


def in_memory(evaluation: Evaluation) -> Evaluation:
    """The evaluation with its log cut to the last ``LOG_CHARACTERS``."""
    if len(evaluation.log) <= LOG_CHARACTERS:
        return evaluation
    return evaluation.model_copy(update={"log": evaluation.log[-LOG_CHARACTERS:]})


class History:
    """Every candidate in proposal order, and evaluations in the order they were integrated.

    Proposers read it and never change it; only the campaign calls ``propose`` and ``integrate``.
    """

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.evaluated: list[tuple[Candidate, Evaluation]] = []
        self.verdicts: Counter[Verdict] = Counter()
        self._by_genome: dict[str, Candidate] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._successes: list[tuple[Candidate, Evaluation]] = []
        self._pending: dict[str, Candidate] = {}
        self._best: tuple[Candidate, Evaluation] | None = None
        self._rewritten: dict[str, set[str]] = {}

    def propose(self, candidate: Candidate) -> None:
        genome = candidate.genome
        self.candidates.append(candidate)
        self._by_genome[genome.id] = self._pending[genome.id] = candidate
        if candidate.mutation.kind is MutationKind.REWRITE:
            for parent in candidate.parents:
                source = self.candidate(parent).genome.source_id
                self._rewritten.setdefault(source, set()).add(candidate.mutation.detail)

    def integrate(self, candidate: Candidate, evaluation: Evaluation) -> None:
        del self._pending[candidate.genome.id]
        self.evaluated.append((candidate, evaluation))
        self._evaluations[candidate.genome.id] = evaluation
        self.verdicts[evaluation.verdict] += 1
        if evaluation.fitness is None:
            return
        self._successes.append((candidate, evaluation))
        if self._best is None or evaluation.fitness > (self._best[1].fitness or 0.0):
            self._best = (candidate, evaluation)

    def __contains__(self, genome_id: str) -> bool:
        return genome_id in self._by_genome

    def candidate(self, genome_id: str) -> Candidate:
        return self._by_genome[genome_id]

    def evaluation(self, genome_id: str) -> Evaluation | None:
        return self._evaluations.get(genome_id)

    def pending(self) -> Iterator[Candidate]:
        """Candidates that are proposed and not yet integrated."""
        return iter(self._pending.values())

    def successes(self) -> Sequence[tuple[Candidate, Evaluation]]:
        return self._successes

    def fittest(self, most: int) -> Sequence[tuple[Candidate, Evaluation]]:
        """The fittest, at most so many, the earlier integrated first on a tie."""
        return heapq.nlargest(most, self._successes, key=lambda ce: ce[1].fitness or 0.0)

    def rewritten(self, source_id: str) -> Collection[str]:
        """Details of the rewrites that were applied to a source, at any parameters."""
        return self._rewritten.get(source_id, ())

    @property
    def best(self) -> tuple[Candidate, Evaluation] | None:
        """The fittest, earliest integrated on a tie."""
        return self._best


class Searcher(Protocol):
    """Chooses the next proposal; a portfolio of proposers."""

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None: ...


class Proposer(Protocol):
    """Turns history into the next genome to try.

    A proposer must be a pure function of (history, rng) plus state it derives from them alone, so
    that a resumed campaign proposes what the unbroken one would have. It never returns a genome
    that is already in the history; ``None`` means it has nothing to offer now.
    """

    name: str
    kind: MutationKind

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None: ...
