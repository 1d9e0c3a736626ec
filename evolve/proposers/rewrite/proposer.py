"""Proposes rewritten kernels: draws a rule and a site, applies it, and says what it did and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Rule, Site, Unsupported, Value
from tilewright.evolve.proposers.rewrite.registry import rules
from tilewright.evolve.space.space import Space, SpaceError, nearest

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
    return RewriteProposal(
        result.source, {**kept, **result.added}, rule.name, site.key, site.description, rule.why
    )


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
    near = dict(space.defaults) if space.legal(space.defaults) else nearest(space, inherited)
    if near is None:
        raise SpaceError(f"no legal point near {inherited}.")
    return near
