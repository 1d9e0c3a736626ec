"""Proposes rewritten kernels: draws a rule and a site of an elite's source, and says what was done and why.

A proposal is one or a few structural changes; the parameters are inherited.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Rule, Site, Unsupported, Value
from tilewright.evolve.proposers.rewrite.registry import rules
from tilewright.evolve.proposers.rule_credit import RuleCredit, describe
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space, SpaceError, nearest_point

log = logging.getLogger(__name__)

MISMATCH = (AttributeError, IndexError, KeyError, TypeError, ValueError, AssertionError, SyntaxError)
"""What a rule may run into on source nobody foresaw. A campaign goes on without it; ``ValueError`` includes
``Unsupported``, which says more."""

Tried = Collection[tuple[str, str]]
"""(rule name, site key) pairs."""

Shares = Callable[[Collection[str]], Mapping[str, float]]
"""From names of rules to probabilities that sum to 1."""


@dataclass(frozen=True)
class RewriteProposal:
    """A child: its source, its parameters (the parent's plus the rule's), and how it came about."""

    source: str
    params: Mapping[str, Value]
    rule: str
    site: str
    description: str
    why: str


PARSED = 64
"""Sources whose trees are kept: those of elites, each the parent of many children."""


class _Parsed:
    """A source with the places where rules apply to it, each rule's found once. Raises Unsupported."""

    def __init__(self, source: str) -> None:
        self.kernel = KernelSource(source)
        self._found: dict[str, tuple[Sequence[Site], frozenset[str]]] = {}

    def sites(self, rule: Rule) -> Sequence[Site]:
        """Raises what the rule raises. Names that it gives out at a place are as if no other rule had looked."""
        if rule.name not in self._found:
            self.kernel.given = frozenset()
            self._found[rule.name] = rule.sites(self.kernel), self.kernel.given
        sites, self.kernel.given = self._found[rule.name]
        return sites


@lru_cache(maxsize=PARSED)
def _parsed(source: str) -> _Parsed:
    return _Parsed(source)


@lru_cache(maxsize=PARSED)
def offers(source: str) -> tuple[tuple[Rule, Site], ...]:
    """Every (rule, site) pair of a source. A source or construct no rule can follow gives one log line."""
    try:
        parsed = _parsed(source)
        applicable = rules(parsed.kernel.language)
    except Unsupported as error:
        log.info("no rewrites: %s", error)
        return ()
    found: list[tuple[Rule, Site]] = []
    problems: dict[str, str] = {}
    for rule in applicable:
        try:
            found += [(rule, site) for site in parsed.sites(rule)]
        except MISMATCH as error:
            problems.setdefault(_reason(error), rule.name)
    for problem, name in problems.items():
        log.info("no rewrites by %s and others: %s", name, problem)
    return tuple(found)


class RewriteProposer:
    """Draws a rule, uniformly or by the shares it is given, then uniformly one of the rule's sites."""

    def __init__(self, only: Sequence[str] | None = None, without: Sequence[str] = ()) -> None:
        self.only = None if only is None else frozenset(only)
        self.without = frozenset(without)

    def available(self, source: str) -> tuple[tuple[Rule, Site], ...]:
        """The pairs this proposer may draw from."""
        return tuple(
            (rule, site)
            for rule, site in offers(source)
            if (self.only is None or rule.name in self.only) and rule.name not in self.without
        )

    def propose(
        self,
        parent_source: str,
        parent_params: Mapping[str, Value],
        rng: np.random.Generator,
        exclude: Tried = frozenset(),
        shares: Shares | None = None,
    ) -> RewriteProposal | None:
        """A rewritten child, None when every pair is excluded or none applies after all.

        ``shares`` maps the names of rules that apply to the probability of each.
        """
        pairs = [(r, s) for r, s in self.available(parent_source) if (r.name, s.key) not in exclude]
        while pairs:
            names = sorted({rule.name for rule, _ in pairs})
            name = names[_draw(names, rng, shares)]
            mine = [p for p in pairs if p[0].name == name]
            rule, site = mine[int(rng.integers(len(mine)))]
            proposal = rewrite(parent_source, parent_params, rule, site, rng)
            if proposal is not None:
                return proposal
            pairs.remove((rule, site))
        return None


def _draw(names: Sequence[str], rng: np.random.Generator, shares: Shares | None) -> int:
    if shares is None:
        return int(rng.integers(len(names)))
    given = shares(names)
    return int(rng.choice(len(names), p=[given[name] for name in names]))


def rewrite(
    source: str, params: Mapping[str, Value], rule: Rule, site: Site, rng: np.random.Generator
) -> RewriteProposal | None:
    """Apply one rule at one of its sites; None (and a log line) when it turns out not to apply."""
    try:
        parsed = _parsed(source)
        current = next((s for s in parsed.sites(rule) if s.key == site.key), None)
        result = rule.apply(parsed.kernel, current, rng) if current is not None else None
    except MISMATCH as error:
        log.info("rule %s does not apply at %s: %s", rule.name, site.key, _reason(error))
        return None
    if result is None:
        return None
    kept = {k: v for k, v in params.items() if k not in result.dropped}
    return RewriteProposal(result.source, {**kept, **result.added}, rule.name, site.key, site.description, rule.why)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Unsupported) else f"unforeseen structure ({error!r:.100})"


def inherit(space: Space, params: Mapping[str, Value]) -> dict[str, Value]:
    """The parent's values where the child's space still has them; where that is not legal the space's defaults, and
    where those are not either, the nearest legal point. Raises SpaceError where nothing near is legal.
    """
    inherited = dict(space.defaults)
    for name, value in params.items():
        if value in space.parameters.get(name, ()):
            inherited[name] = value
    if space.legal(inherited):
        return inherited
    near = dict(space.defaults) if space.legal(space.defaults) else nearest_point(space, inherited)
    if near is None:
        raise SpaceError(f"no legal point near {inherited}.")
    return near


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
            if genome is not None and genome.id not in history:
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
