"""Proposals from rewrite rules: a structural change to an elite's source, its parameters inherited."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evolve.archive import Archive
from evolve.genome import Genome
from evolve.history import History, Mutation, MutationKind, Proposal
from evolve.proposers.inheritance import inherit
from evolve.proposers.rewrite.proposer import RewriteProposal, RewriteProposer
from evolve.space import Space, SpaceError

log = logging.getLogger(__name__)

TRIES = 12
"""Rule applications looked at for one proposal, before another proposer is given the turn."""


@dataclass
class Rewrites:
    """Implements ``Proposer``. ``violations`` is the dialect check: reasons why a source is not allowed."""

    archive: Archive
    space_of: Callable[[str], Space]
    violations: Callable[[str], Sequence[str]]
    rules: RewriteProposer = field(default_factory=RewriteProposer)
    name: str = "rewrite"
    kind: MutationKind = MutationKind.REWRITE

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """A rewritten child of an elite that was not tried before, or None."""
        elite = self.archive.select(island, rng)
        if elite is None:
            return None
        parent = elite.candidate.genome
        done = _rewritten(history, parent.source_id)
        tried: set[tuple[str, str]] = set()
        for _ in range(TRIES):
            rewritten = self.rules.propose(parent.source, parent.params, rng, frozenset(tried))
            if rewritten is None:
                return None
            tried.add((rewritten.rule, rewritten.site))
            detail = f"{rewritten.rule}: {rewritten.description}"
            genome = self._genome(rewritten) if detail not in done else None
            if genome is not None and genome.id not in history:
                return Proposal(genome, (parent.id,), Mutation(self.kind, self.name, detail))
        return None

    def _genome(self, rewritten: RewriteProposal) -> Genome | None:
        if reasons := self.violations(rewritten.source):
            log.info("rule %s left the dialect: %s", rewritten.rule, reasons[0])
            return None
        try:
            return Genome(rewritten.source, inherit(self.space_of(rewritten.source), rewritten.params))
        except SpaceError as error:
            log.info("rule %s left no legal point: %s", rewritten.rule, error)
            return None


def _rewritten(history: History, source: str) -> set[str]:
    """What rules already did to this source, with whatever parameters: once is enough to learn from."""
    return {
        candidate.mutation.detail
        for candidate in history.candidates
        if candidate.mutation.kind is MutationKind.REWRITE
        and any(history.candidate(p).genome.source_id == source for p in candidate.parents)
    }
