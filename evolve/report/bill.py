"""The bill of a campaign: what it took of devices, processors and language models, and where its time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.evolve.proposers.llm.client import Exchange
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.profile import Profile, profile_of
from tilewright.evolve.report.units import duration_text, gain_text, money_text, percent_text
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.targets import target_text
from tilewright.seeds.operator import Scope

SPENT = "spent"
"""The event with which a run says what it took itself: its process's CPU time, the last comparison's device time."""

_SAID_TWICE = ("winner", Scope.FINAL.value)

_HOUR = 3600.0


@dataclass(frozen=True)
class Bill:
    """What a campaign took: seconds of devices held, of processors, of wall clock; tokens; money if there are prices.

    Seconds and tokens are counted, whatever the target. ``profile`` says where the workers' time went. ``gain`` is the
    best fitness over the first seed's, ``None`` before there are both; ``target`` and ``kind`` are what it holds for.
    ``first_verdict`` in seconds from the start.
    """

    device_seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: int = 0
    wall_seconds: float = 0.0
    evaluations: int = 0
    gain: float | None = None
    target: str = ""
    kind: str = ""
    first_verdict: float | None = None
    profile: Profile = field(default_factory=Profile)
    prices: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, float]:
        """Money by what it went to, for all that has a price."""
        used = {
            "device_hour": ("device", self.device_seconds / _HOUR),
            "cpu_hour": ("processors", self.cpu_seconds / _HOUR),
            "million_tokens": ("tokens", self.tokens / 1e6),
        }
        priced = {name: float(self.prices.get(name) or 0.0) for name in used}
        return {used[name][0]: used[name][1] * price for name, price in priced.items() if price}

    @property
    def money(self) -> float | None:
        """In ``currency``; None where nothing has a price."""
        return math.fsum(self.parts.values()) if self.parts else None

    @property
    def currency(self) -> str:
        return str(self.prices.get("currency", "USD"))

    @property
    def percents(self) -> float | None:
        """Per cent gained over the first seed; None where nothing was."""
        return None if not self.gain or self.gain <= 1.0 else 100.0 * (self.gain - 1.0)

    def rows(self) -> dict[str, str]:
        """Names and texts for a table, every figure with its unit."""
        found = {
            "wall clock": f"{duration_text(self.wall_seconds)}, {self.evaluations} evaluations",
            "processors": f"{duration_text(self.cpu_seconds)} of CPU time",
            "device": duration_text(self.device_seconds) if self.device_seconds else "none held",
            "tokens": f"{self.tokens:,}".replace(",", " ") if self.tokens else "none",
        }
        if self.device_seconds and self.wall_seconds:
            found["device busy"] = (
                percent_text(self.device_seconds / self.wall_seconds) + " of the wall clock"
            )
        if self.first_verdict is not None:
            found["first verdict"] = f"after {duration_text(self.first_verdict)}"
        found |= self.profile.rows()
        if (money := self.money) is not None:
            each = [f"{name} {money_text(part)}" for name, part in self.parts.items()]
            found["money"] = f"{money_text(money)} {self.currency}: {', '.join(each)}"
        if self.gain is not None:
            of = f" ({self.target}, {self.kind})" if self.kind else ""
            found["gained"] = f"{gain_text(self.gain)} over the first seed{of}"
        if (percents := self.percents) is not None:
            each = [f"{self.cpu_seconds / percents:.1f} s of CPU time"]
            each += [f"{self.device_seconds / percents:.1f} s of device"] if self.device_seconds else []
            each += [f"{self.tokens / percents:.0f} tokens"] if self.tokens else []
            each += [f"{money_text(money / percents)} {self.currency}"] if money else []
            found["per % gained"] = ", ".join(each)
        return found

    def lines(self) -> list[str]:
        """The same for a terminal."""
        rows = self.rows()
        wide = max(map(len, rows))
        return ["bill (seconds are measured)", *(f"  {name:<{wide}}  {text}" for name, text in rows.items())]

    def metrics(self) -> dict[str, float]:
        """Figures by name, units within the names."""
        found = {
            "bill/device_seconds": self.device_seconds,
            "bill/cpu_seconds": self.cpu_seconds,
            "bill/tokens": float(self.tokens),
            "bill/wall_seconds": self.wall_seconds,
        }
        found |= self.profile.metrics()
        if self.first_verdict is not None:
            found["bill/first_verdict_seconds"] = self.first_verdict
        if (money := self.money) is not None:
            found[f"bill/money_{self.currency}"] = money
        if self.gain is not None:
            found[f"bill/gained_percent_{self.kind}"] = 100.0 * (self.gain - 1.0)
        if (percents := self.percents) is not None:
            each = {"device_seconds": self.device_seconds, "cpu_seconds": self.cpu_seconds}
            each |= {"tokens": float(self.tokens), f"money_{self.currency}": money or 0.0}
            found |= {f"bill/{name}_per_percent": spent / percents for name, spent in each.items() if spent}
        return found


def bill_of(journal: Journal, clock: Callable[[float], float]) -> Bill:
    """What a campaign has taken so far. ``clock`` maps Unix seconds to seconds of campaign time."""
    events = tuple(event for event in journal.events() if event.kind != "promoted")
    rows = list(journal.evaluations())
    # a winner's final figures are those of a finalist
    others = [(e, at) for name, scope, e, at in journal.referred() if (name, scope) != _SAID_TWICE]
    ended = [*((e, at) for _, _, e, at in rows), *others]
    spent: dict[str, float] = defaultdict(float)
    for evaluation, _ in ended:
        for name in ("device", "cpu"):
            spent[name] += evaluation.spent.get(name, 0.0)
    for event in events:
        if event.kind == SPENT:
            spent["cpu"] += float(event.detail.get("cpu_seconds", 0.0))
            spent["device"] += float(event.detail.get("device_seconds", 0.0))
    tokens = sum(Exchange.from_json(text).tokens for _, text in journal.exchanges())
    last = max([event.at for event in events] + [at for _, at in ended], default=0.0)
    config, facts = journal.meta("config") or {}, journal.meta("campaign") or {}
    kind = str(facts.get("target_kind", ""))
    return Bill(
        device_seconds=spent["device"],
        cpu_seconds=spent["cpu"],
        tokens=tokens,
        wall_seconds=clock(last),
        evaluations=len(rows),
        gain=None if kind == FigureKind.COMPILED.value else _gain(journal),
        target=target_text(facts.get("target", "")),
        kind=kind,
        first_verdict=clock(rows[0][3]) if rows else None,
        profile=profile_of(ended, clock),
        prices={k: v for k, v in (config.get("prices") or {}).items() if v is not None},
    )


def _gain(journal: Journal) -> float | None:
    """The best fitness over that of the first seed that passed."""
    seeds = {c.index for c in journal.candidates() if c.mutation.kind is MutationKind.SEED}
    passed = [(index, e.fitness) for _, index, e, _ in journal.evaluations() if e.fitness]
    first = next((fitness for index, fitness in sorted(passed) if index in seeds), None)
    return max(fitness for _, fitness in passed) / first if first else None
