"""A learned choice among rewrite rules: a non-stationary bandit over what each rule did for its parents.

A rule's reward is the child's gain over its own parent, not over the best: a rule that halves the time of a slow
relative has shown more than one that leaves the leader as it is. Credit fades with every rewrite, because a rule
that has done its work on a lineage seldom helps it twice, and a share of all draws stays uniform, so that a rule
can be found useful again after others have changed the kernel.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.evolve.record.history import Candidate, History, MutationKind
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict

EXPLORE = 0.2
"""Share of the draws that ignores credit."""

FADE = 0.95
"""What remains of credit after one rewrite was evaluated."""

PRIOR_TRIALS = 2.0
"""Evaluations' worth of belief a rule starts with and fades back to."""

FIRST_RATE = 0.15
"""Reward per evaluation presumed of a rule before there is any evidence of it."""

GAIN_SCALE = 0.1
"""Relative gain over the parent that earns full reward."""

SHARPNESS = 1.5
"""Exponent that turns reward into preference."""

EARLY_COST = 0.4
"""Cost of a child that failed before it was measured, in measured children."""

KNOBS = ("launch_option", "cache_hint")
"""Ends of the names of rules that turn a knob of the launch or of the compiler and leave the computation alone."""

KNOB_PRIOR = 0.4
"""Reward presumed of such a rule, in rewards of a rule that changes what is computed when."""

THEN = "; then "
"""Between the edits of one rewrite, in its mutation's line."""

_NICHE = re.compile(r"in the niche that ([a-z][a-z0-9_]*) opened: ")
"""How a point of a niche names the rule that opened it (``evolve.proposers.niches``)."""

_STEP = re.compile(rf"(?:^|{THEN})([a-z][a-z0-9_]*): ")


def describe(steps: Sequence[tuple[str, str]]) -> str:
    """One line about (rule, description) steps, from which ``rules_of`` reads the rules back."""
    return THEN.join(f"{rule}: {description}" for rule, description in steps)


def rules_of(detail: str) -> list[str]:
    """The rules that a rewrite's line names, in order."""
    return _STEP.findall(detail)


@dataclass
class _Account:
    reward: float = 0.0
    cost: float = 0.0


@dataclass
class RuleCredit:
    """A fold over the history, so that a resumed campaign draws the same rules."""

    _accounts: dict[str, _Account] = field(default_factory=dict, init=False)
    _folded: int = field(default=0, init=False)
    _opened: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """Source of a niche to the fitness it was opened from and the reward its rule has earned there."""

    def learn(self, history: History) -> None:
        """Take in the evaluations integrated since the last call."""
        for candidate, evaluation in history.evaluated[self._folded :]:
            if evaluation.verdict is Verdict.INFRA_ERROR:
                continue
            if candidate.mutation.kind is MutationKind.REWRITE:
                self._account(candidate, evaluation, history)
            elif found := _NICHE.match(candidate.mutation.detail):
                self._account_niche(found[1], candidate, evaluation)
        self._folded = len(history.evaluated)

    def shares(self, rules: Collection[str]) -> Mapping[str, float]:
        """The probability of each of ``rules`` to be drawn next, summing to 1. ``rules`` must not be empty."""
        names = sorted(rules)
        rates = {name: self._rate(name) ** SHARPNESS for name in names}
        total = sum(rates.values())
        return {name: EXPLORE / len(names) + (1.0 - EXPLORE) * rates[name] / total for name in names}

    def _rate(self, rule: str) -> float:
        prior = FIRST_RATE * (KNOB_PRIOR if rule.endswith(KNOBS) else 1.0)
        account = self._accounts.get(rule, _Account())
        return (account.reward + PRIOR_TRIALS * prior) / (account.cost + PRIOR_TRIALS)

    def _account(self, candidate: Candidate, evaluation: Evaluation, history: History) -> None:
        for account in self._accounts.values():
            account.reward *= FADE
            account.cost *= FADE
        rules = rules_of(candidate.mutation.detail)
        before, reward = _parents_fitness(candidate, history), 0.0
        if before is not None:
            reward = _reward(evaluation.fitness / before) if evaluation.fitness else 0.0
            self._opened.setdefault(candidate.genome.source_id, (before, reward))
        cost = 1.0 if evaluation.stage is Stage.MEASURE else EARLY_COST
        for rule in rules:
            account = self._accounts.setdefault(rule, _Account())
            account.reward += reward / len(rules)
            account.cost += cost / len(rules)

    def _account_niche(self, rule: str, candidate: Candidate, evaluation: Evaluation) -> None:
        """What a niche gains by tuning belongs to the rule that opened it, up to its best point's gain."""
        before, earned = self._opened.get(candidate.genome.source_id, (None, 0.0))
        if before is None or not evaluation.fitness:
            return
        reward = _reward(evaluation.fitness / before)
        if reward > earned:
            self._opened[candidate.genome.source_id] = (before, reward)
            self._accounts.setdefault(rule, _Account()).reward += reward - earned


def _parents_fitness(candidate: Candidate, history: History) -> float | None:
    """Of the fittest parent."""
    known = [history.evaluation(parent) for parent in candidate.parents]
    return max((e.fitness for e in known if e is not None and e.fitness), default=None)


def _reward(ratio: float) -> float:
    return min(1.0, max(0.0, math.log(ratio) / GAIN_SCALE))
