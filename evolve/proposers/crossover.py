"""Crossovers: of parameter values, and of sources.

A child of the first has one parent's source and each value from either parent. A child of the second is one parent with
rewrites that only the other's line went through: text that works in one kernel often does not fit another, even a
relative. A rewrite rule adapts what it does to the kernel it finds, so two discoveries made on different islands
combine in one step.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.evolve.proposers.rewrite.proposer import RewriteProposal, inherit, offers, rewrite
from tilewright.evolve.proposers.rule_credit import THEN, describe
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, changes
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome, Value
from tilewright.evolve.space.space import Space, SpaceError

_TRIES = 12

_MATES = 10
"""Fittest candidates of all islands that stand in where an island has no second elite."""

OTHER_ISLAND_SHARE = 0.2
"""Share of crossovers whose second parent lives on another island."""


class ParameterCrossover:
    """Uniform crossover between two elites, of one source or of several that share parameter names."""

    name = "crossover"
    kind = MutationKind.CROSSOVER

    def __init__(self, archive: Archive, spaces: KnownSpaces) -> None:
        self._archive = archive
        self._spaces = spaces
        self._fittest: list[tuple[float, int, Candidate]] = []
        self._folded = 0

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        self._fold(history)
        for _ in range(_TRIES):
            other_island = rng.random() < OTHER_ISLAND_SHARE
            mate_island = int(rng.integers(self._archive.islands)) if other_island else island
            one, other = self._archive.select(island, rng), self._archive.select(mate_island, rng)
            if one is None or other is None:
                return None
            parent, mate = one.candidate, other.candidate
            if parent.genome.id == mate.genome.id:
                # one of the fittest of all: an island may hold one elite only
                others = [c for _, _, c in self._fittest if c.genome.id != parent.genome.id]
                if not others:
                    return None
                mate = others[int(rng.integers(len(others)))]
            space = self._spaces[parent.genome.source]
            if space is None:
                continue
            proposal = self._cross(history, parent, mate, space, rng)
            if proposal is not None:
                return proposal
        return None

    def _fold(self, history: History) -> None:
        for candidate, evaluation in history.evaluated[self._folded :]:
            if evaluation.fitness is not None:
                self._fittest.append((-evaluation.fitness, candidate.index, candidate))
        if self._folded < len(history.evaluated):
            self._fittest = sorted(self._fittest, key=lambda entry: entry[:2])[:_MATES]
        self._folded = len(history.evaluated)

    def _cross(
        self, history: History, parent: Candidate, mate: Candidate, space: Space, rng: np.random.Generator
    ) -> Proposal | None:
        params = dict(parent.genome.params)
        for name in params:
            if name in mate.genome.params and rng.random() < 0.5:
                params[name] = mate.genome.params[name]
        if params == parent.genome.params or not space.legal(params):
            return None
        child = Genome(parent.genome.source, params)
        if child.id in history:
            return None
        detail = f"with {mate.genome.id[:8]}: {changes(parent.genome.params, child.params)}"
        parents = (parent.genome.id, mate.genome.id)
        return Proposal(child, parents, Mutation(self.kind, self.name, detail))


log = logging.getLogger(__name__)

TRIES = 8
"""Pairs of elites looked at for one proposal."""

ANOTHER = 0.5
"""Probability of each further rewrite of the other line, once one is in: most discoveries work alone."""

_ORIGIN = " as in "


@dataclass(frozen=True)
class Step:
    """One rewrite of a lineage: the rule's name, and what it said of its site."""

    rule: str
    description: str


def steps_of(history: History, genome: Genome) -> list[Step]:
    """The rewrites between the seed of ``genome``'s line (first parents) and its source, oldest first."""
    found: list[Step] = []
    candidate = history.candidate(genome.id)
    while True:
        if candidate.mutation.kind in (MutationKind.REWRITE, MutationKind.CROSSOVER):
            found[:0] = _read(candidate.mutation.detail)
        if not candidate.parents:
            return found
        candidate = history.candidate(candidate.parents[0])


def _read(detail: str) -> list[Step]:
    """The steps a mutation's line tells of; none for a crossover of text or parameters."""
    body = detail.rpartition(_ORIGIN)[0] or detail
    parts = [part.partition(": ") for part in body.split(THEN)]
    return [Step(rule, text) for rule, colon, text in parts if colon and rule.isidentifier()]


def transplant(
    history: History, parent: Genome, mate: Genome, rng: np.random.Generator
) -> tuple[str, Mapping[str, Value], str] | None:
    """(source, parameters, description) of ``parent`` with rewrites of ``mate``'s line that its own lacks.

    Parameters that come with a rewrite get the mate's values. None when the mate's line has nothing to offer that
    applies.
    """
    mine = set(steps_of(history, parent))
    missing = [step for step in dict.fromkeys(steps_of(history, mate)) if step not in mine]
    source, params, done = parent.source, dict(parent.params), []
    for step in _choose_steps(missing, rng):
        made = _repeat(source, params, step, rng)
        if made is None:
            continue
        theirs = {n: mate.params.get(n, v) for n, v in made.params.items() if n not in parent.params}
        source, params = made.source, {**made.params, **theirs}
        done.append((made.rule, made.description))
    return (source, params, describe(done) + _ORIGIN + mate.id) if done else None


def _choose_steps(missing: list[Step], rng: np.random.Generator) -> list[Step]:
    """One step at random and some of the others, in the order their line took them."""
    if not missing:
        return []
    sure = int(rng.integers(len(missing)))
    return [step for n, step in enumerate(missing) if n == sure or rng.random() < ANOTHER]


def _repeat(source: str, params: Mapping[str, Value], step: Step, rng: np.random.Generator) -> RewriteProposal | None:
    """The step's rule at the site it names, or at another where there is no such site."""
    pairs = [(rule, site) for rule, site in offers(source) if rule.name == step.rule]
    named = [pair for pair in pairs if pair[1].description == step.description]
    for rule, site in named or pairs:
        made = rewrite(source, params, rule, site, rng)
        if made is not None:
            return made
    return None


@dataclass
class SourceCrossover:
    """Implements ``Proposer``: repeats rewrites of one elite's line on another elite."""

    archive: Archive
    space_of: Callable[[str], Space]
    violations: Callable[[str], Sequence[str]]
    name: str = "source_crossover"
    kind: MutationKind = MutationKind.CROSSOVER

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """A child of two elites with different sources that was not tried before, or None."""
        for _ in range(TRIES):
            one = self.archive.select(island, rng)
            other = self.archive.select(int(rng.integers(self.archive.islands)), rng)
            if one is None or other is None:
                return None
            parent, mate = one.candidate.genome, other.candidate.genome
            if parent.source_id == mate.source_id:
                continue
            made = transplant(history, parent, mate, rng)
            genome = self._genome(made[0], made[1]) if made is not None else None
            if made is not None and genome is not None and genome.id not in history:
                return Proposal(genome, (parent.id, mate.id), Mutation(self.kind, self.name, made[2]))
        return None

    def _genome(self, source: str, params: Mapping[str, Value]) -> Genome | None:
        if reasons := self.violations(source):
            log.info("a crossover left the dialect: %s", reasons[0])
            return None
        try:
            return Genome(source, inherit(self.space_of(source), params))
        except SpaceError as error:
            log.info("a crossover left no legal point: %s", error)
            return None
