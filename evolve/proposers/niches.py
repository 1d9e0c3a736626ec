"""Niches: a changed structure gets a short budget of its own before it competes.

A rule that writes a kernel in another structure (``registry.openings``) opens a niche with its child. A new structure
is seldom better before it is tuned, so every second proposal belongs to the open niches: first points spread over the
child's space and around what its rule declares, then steps from the best of them, the field halved each time. After
that its elites compete like any others. The first niches are opened at once, so that with many workers in flight not
all proposals are points of the one known kernel.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.proposers.rewrite.base import Rule, Site
from tilewright.evolve.proposers.rewrite.proposer import inherit, offers, rewrite
from tilewright.evolve.proposers.rule_credit import describe, rules_of
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, first_new
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal, Searcher
from tilewright.evolve.space.genome import Genome, Value
from tilewright.evolve.space.space import Rows, Space, SpaceError

NAME = "niches"

RUNGS = (8, 4, 3)
"""Points of a niche: spread over its space, then steps from the best two, then from the best."""

SURVIVORS = (2, 1)
"""The best so many of a niche that the second and third rung step from."""

MOST_OPEN = 2
"""Niches that are tuned at a time."""

MOST = 6
"""Niches a campaign opens."""

SPREAD = 64
"""Random points of which the one farthest from all others of a niche is taken."""

CHANGED = 3
"""Every second of the first points changes at most so many values of what the rule declares: that is often near."""

FIRST = 12
"""Candidates of a campaign of which all may be niches': most of what a plain kernel gains is another structure."""

MEANINGS: tuple[frozenset[str], ...] = (
    frozenset({"stages", "num_stages"}),
    frozenset({"walk_rows", "group_m", "group", "group_size", "group_size_m", "group_rows"}),
    frozenset({"programs", "num_programs", "num_sms"}),
)
"""Names that say the same of different structures, in lower case."""


@dataclass
class Niche:
    """An opened structure: the candidate that opened it and the points proposed in it since, itself included."""

    opener: Candidate
    rule: str
    points: list[Candidate] = field(default_factory=list)


def transferred_point(space: Space, params: Mapping[str, Value]) -> dict[str, Value]:
    """A point of ``space`` that says as far as possible what ``params`` say of another structure: equal names, then
    names of equal meaning."""
    point = inherit(space, params)
    for name in set(space.parameters) - set(params):
        meaning = next((m for m in MEANINGS if name.lower() in m), None)
        values = [v for k, v in sorted(params.items()) if meaning and k.lower() in meaning]
        if values and values[0] in space.parameters[name] and space.legal({**point, name: values[0]}):
            point[name] = values[0]
    return point


@dataclass
class NicheSearch:
    """A searcher that shares the proposals out between open niches and ``then``. Holds a fold over the history."""

    then: Searcher
    spaces: KnownSpaces
    violations: Callable[[str], Sequence[str]]
    openings: Collection[str]
    """Names of the rules that open niches."""

    _niches: dict[str, Niche] = field(default_factory=dict, init=False)
    """By source id."""

    _offers: dict[str, list[tuple[Rule, Site]]] = field(default_factory=dict, init=False)
    """Openings not tried yet, by source id."""

    _folded: int = field(default=0, init=False)

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        self._fold(history)
        count = len(history.candidates)
        proposal = self._own(history, rng) if count % 2 or count < FIRST else None
        return proposal or self.then.propose(history, island, rng)

    def _fold(self, history: History) -> None:
        for candidate in history.candidates[self._folded :]:
            opened = [rule for rule in rules_of(candidate.mutation.detail) if rule in self.openings]
            source = candidate.genome.source_id
            if source in self._niches:
                self._niches[source].points.append(candidate)
            elif opened and candidate.mutation.kind is MutationKind.REWRITE and len(self._niches) < MOST:
                self._niches[source] = Niche(candidate, opened[0], [candidate])
        self._folded = len(history.candidates)

    def _own(self, history: History, rng: np.random.Generator) -> Proposal | None:
        unfinished = [n for n in self._niches.values() if len(n.points) < sum(RUNGS) and not _has_failed(n, history)]
        for niche in unfinished[:MOST_OPEN]:
            if (proposal := self._point(niche, history, rng)) is not None:
                return proposal
        if len(unfinished) < MOST_OPEN and len(self._niches) < MOST:
            return self._opening(history, rng)
        return None

    # -- opening ------------------------------------------------------------------------------------------

    def _opening(self, history: History, rng: np.random.Generator) -> Proposal | None:
        for parent in self._parents(history):
            if parent.source_id not in self._offers:
                own = self._niches.get(parent.source_id)
                wanted = self.openings if own is None else set(self.openings) - {own.rule}
                found = [(rule, site) for rule, site in offers(parent.source) if rule.name in wanted]
                self._offers[parent.source_id] = found
            while self._offers[parent.source_id]:
                rule, site = self._offers[parent.source_id].pop(0)  # whatever comes of it, once is enough
                child = rewrite(parent.source, parent.params, rule, site, rng)
                if child is None or self.violations(child.source):
                    continue
                genome = self._genome(child.source, {**parent.params, **child.params})
                if genome is not None and genome.id not in history and genome.source_id not in self._niches:
                    detail = describe([(rule.name, site.description)])
                    return Proposal(genome, (parent.id,), Mutation(MutationKind.REWRITE, NAME, detail))
        return None

    def _parents(self, history: History) -> Iterable[Genome]:
        """The seeds, the best of each niche, whose structure another rule may change in turn, then the fittest."""
        seen: set[str] = set()
        seeds = [c for c in history.candidates[:16] if c.mutation.kind is MutationKind.SEED]
        best = [found for niche in self._niches.values() if (found := _fittest_point(niche, history)) is not None]
        for candidate in (*seeds, *best, *(c for c, _ in history.fittest(4))):
            if candidate.genome.source_id not in seen:
                seen.add(candidate.genome.source_id)
                yield candidate.genome

    def _genome(self, source: str, params: Mapping[str, Value]) -> Genome | None:
        try:
            space = self.spaces[source]
        except SpaceError:
            return None
        return None if space is None else Genome(source, transferred_point(space, params))

    # -- points -------------------------------------------------------------------------------------------

    def _point(self, niche: Niche, history: History, rng: np.random.Generator) -> Proposal | None:
        genome = niche.opener.genome
        space = self.spaces[genome.source]
        if space is None:
            return None
        note = f"in the niche that {niche.rule} opened: "
        known = np.array([row for c in niche.points if (row := self.spaces.row(c.genome)) is not None])
        if len(niche.points) < RUNGS[0]:
            rows = space.sample_rows(rng, SPREAD)
            if len(niche.points) % 2 and (near := _near_rows(space, known[0], rows, rng)).size:
                rows = near
            distance = (rows[:, None, :] != known[None, :, :]).sum(axis=2).min(axis=1)
            rows = rows[np.argsort(-distance, kind="stable")]
            return first_new(history, niche.opener, space, rows, NAME, note)
        rung = 0 if len(niche.points) < RUNGS[0] + RUNGS[1] else 1
        done = [(c, e.fitness) for c in niche.points if (e := history.evaluation(c.genome.id)) and e.fitness]
        if len(done) + sum(history.evaluation(c.genome.id) is not None for c in niche.points) < RUNGS[0]:
            return None  # too little is known of the rung before
        best = sorted(done, key=lambda pair: -pair[1])[: SURVIVORS[rung]]
        for candidate, _ in sorted(
            best, key=lambda pair: sum(p.parents[:1] == (pair[0].genome.id,) for p in niche.points)
        ):
            row = self.spaces.row(candidate.genome)
            if row is None:
                continue
            near = space.neighbour_rows(row)
            rows = near[rng.permutation(len(near))]
            if (proposal := first_new(history, candidate, space, rows, NAME, note)) is not None:
                return proposal
        return None


def _near_rows(space: Space, point: Rows, rows: Rows, rng: np.random.Generator) -> Rows:
    """Legal points that differ from ``point`` in one to ``CHANGED`` values, taken from ``rows``."""
    order = rng.permuted(np.tile(np.arange(len(point)), (len(rows), 1)), axis=1)
    changed = order < rng.integers(1, CHANGED + 1, size=(len(rows), 1))
    mixed = np.where(changed, rows, point[None, :])
    return mixed[space.legal_rows(mixed)]


def _fittest_point(niche: Niche, history: History) -> Candidate | None:
    """The fittest point of a niche; None while nothing of it worked."""
    done = [(e.fitness, -c.index, c) for c in niche.points if (e := history.evaluation(c.genome.id)) and e.fitness]
    return max(done)[2] if done else None


def _has_failed(niche: Niche, history: History) -> bool:
    """Whether the whole first rung was evaluated and nothing of it worked."""
    known = [history.evaluation(c.genome.id) for c in niche.points]
    finished = [e for e in known if e is not None]
    return len(finished) >= RUNGS[0] and not any(e.fitness for e in finished)
