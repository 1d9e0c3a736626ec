"""Proposals from rewrite rules: one or a few structural changes to an elite's source, its parameters inherited."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.proposers.rewrite.proposer import RewriteProposal, RewriteProposer, Tried, inherit
from tilewright.evolve.proposers.rule_credit import RuleCredit, describe
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space, SpaceError

log = logging.getLogger(__name__)

TRIES = 12
"""Children looked at for one proposal, before another proposer is given the turn."""

CONTINUE = 0.25
"""Probability of one more rewrite on top of the last: some pay off only together."""

MOST_STEPS = 3


@dataclass
class Rewrites:
    """Implements ``Proposer``. ``violations`` is the dialect check: reasons why a source is not allowed."""

    archive: Archive
    space_of: Callable[[str], Space]
    violations: Callable[[str], Sequence[str]]
    rules: RewriteProposer = field(default_factory=RewriteProposer)
    credit: RuleCredit = field(default_factory=RuleCredit)
    name: str = "rewrite"
    kind: MutationKind = MutationKind.REWRITE

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """A rewritten child of an elite that was not tried before, or None."""
        elite = self.archive.select(island, rng)
        if elite is None:
            return None
        self.credit.learn(history)
        parent = elite.candidate.genome
        done = history.rewritten(parent.source_id)
        tried: set[tuple[str, str]] = set()
        for _ in range(TRIES):
            steps = self._rewrite(parent, rng, tried)
            if not steps:
                return None
            tried.add((steps[0].rule, steps[0].site))
            detail = describe([(step.rule, step.description) for step in steps])
            genome = self._genome(steps[-1]) if detail not in done else None
            if genome is not None and not history.tried(genome, (parent, detail)):
                return Proposal(genome, (parent.id,), Mutation(self.kind, self.name, detail))
        return None

    def _rewrite(self, parent: Genome, rng: np.random.Generator, tried: Tried) -> list[RewriteProposal]:
        """One rewrite of the parent, or a few on top of each other; the first is none of ``tried``."""
        source, params = parent.source, parent.params
        steps: list[RewriteProposal] = []
        while len(steps) < MOST_STEPS and (not steps or rng.random() < CONTINUE):
            exclude = frozenset() if steps else tried
            step = self.rules.propose(source, params, rng, exclude, self.credit.shares)
            if step is None:
                break
            source, params = step.source, step.params
            steps.append(step)
        return steps

    def _genome(self, rewritten: RewriteProposal) -> Genome | None:
        if reasons := self.violations(rewritten.source):
            log.info("rule %s left the dialect: %s", rewritten.rule, reasons[0])
            return None
        try:
            return Genome(rewritten.source, inherit(self.space_of(rewritten.source), rewritten.params))
        except SpaceError as error:
            log.info("rule %s left no legal point: %s", rewritten.rule, error)
            return None
