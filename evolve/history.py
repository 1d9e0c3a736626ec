"""What a campaign has tried so far, as proposers see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from evolve.genome import Genome
from fitness.evaluation import Evaluation, Verdict


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
    """What a proposer wants tried next."""

    genome: Genome
    parents: tuple[str, ...]
    mutation: Mutation


@dataclass
class History:
    """Every candidate in proposal order, and evaluations in the order they were integrated.

    Proposers read it and never change it; only the campaign calls ``propose`` and ``integrate``.
    """

    candidates: list[Candidate] = field(default_factory=list)
    evaluated: list[tuple[Candidate, Evaluation]] = field(default_factory=list)
    _by_genome: dict[str, Candidate] = field(default_factory=dict)
    _evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _best: tuple[Candidate, Evaluation] | None = None

    def propose(self, candidate: Candidate) -> None:
        self.candidates.append(candidate)
        self._by_genome[candidate.genome.id] = candidate

    def integrate(self, candidate: Candidate, evaluation: Evaluation) -> None:
        self.evaluated.append((candidate, evaluation))
        self._evaluations[candidate.genome.id] = evaluation
        if evaluation.fitness is None:
            return
        if self._best is None or evaluation.fitness > (self._best[1].fitness or 0.0):
            self._best = (candidate, evaluation)

    def __contains__(self, genome_id: str) -> bool:
        return genome_id in self._by_genome

    def candidate(self, genome_id: str) -> Candidate:
        return self._by_genome[genome_id]

    def evaluation(self, genome_id: str) -> Evaluation | None:
        return self._evaluations.get(genome_id)

    def pending(self) -> Iterator[Candidate]:
        """Proposed, not yet integrated."""
        return (c for c in self.candidates if c.genome.id not in self._evaluations)

    def successes(self) -> Sequence[tuple[Candidate, Evaluation]]:
        return [(c, e) for c, e in self.evaluated if e.verdict is Verdict.OK]

    @property
    def best(self) -> tuple[Candidate, Evaluation] | None:
        """The fittest, earliest integrated on a tie."""
        return self._best


class Proposer(Protocol):
    """Turns history into the next genome to try.

    A proposer must be a pure function of (history, rng) plus state it derives from them alone, so
    that a resumed campaign proposes what the unbroken one would have. It never returns a genome
    that is already in the history; ``None`` means it has nothing to offer now.
    """

    name: str
    kind: MutationKind

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None: ...
