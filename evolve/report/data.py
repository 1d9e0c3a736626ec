"""The journal of a campaign as a report needs it: plain data, read once, without markup."""

import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.evolve.record.history import Candidate, MutationKind
from tilewright.evolve.record.journal import WORKERS, Event, Journal
from tilewright.evolve.report.bill import Bill, bill_of, ranked, timed
from tilewright.evolve.report.text import speed_text
from tilewright.fitness.evaluation import Evaluation, FigureKind, Reached, Verdict
from tilewright.fitness.score import Headroom, headroom
from tilewright.fitness.targets import target_text
from tilewright.seeds.operator import Scope

WINNER = "winner"
SEED_PREFIX = "seed:"
FINALIST_PREFIX = "finalist:"

REASONS = {
    "evaluations": "the budget of evaluations is spent",
    "wall_time": "the time budget is spent",
    "target_reached": "the target fitness is reached",
    "converged": "the search has converged",
    "space_exhausted": "the search space is exhausted",
    "duplicates": "what is proposed compiles to what was measured before",
    "seed_failed": "the seed failed",
    "infrastructure": "the workers failed",
}
"""Why a campaign ended, by the reason in its journal."""

JUDGED = {
    Reached.DEVICE: "that the device gave",
    Reached.TRACE: "that JAX's interpreter gave for the traced kernels",
    Reached.INTERPRETER: "that Triton's interpreter alone gave, and nothing judged by it alone is promoted",
}
"""Where answers came from, as the end of a sentence."""


@dataclass(frozen=True)
class Point:
    """One finished evaluation. ``elapsed`` in seconds of campaign time, pauses between runs left out."""

    arrival: int
    candidate: Candidate
    evaluation: Evaluation
    elapsed: float


@dataclass(frozen=True)
class Named:
    """A kernel under the name it has in tables; ``role`` is ``winner``, ``seed`` or ``baseline``."""

    name: str
    role: str
    evaluation: Evaluation


@dataclass(frozen=True)
class CampaignData:
    """A campaign's journal as a report needs it."""

    facts: Mapping[str, Any]
    toolchain: Mapping[str, str]
    system: Mapping[str, str]
    config: Mapping[str, Any]
    events: tuple[Event, ...]
    points: tuple[Point, ...]
    candidates: Mapping[str, Candidate]
    evaluations: Mapping[str, Evaluation]
    winner: Candidate | None
    references: Mapping[str, Mapping[str, Evaluation]]
    bill: Bill = field(default_factory=Bill)
    alive: bool = False
    """Whether a process runs it: it holds the journal's lock."""

    @property
    def kind(self) -> str:
        """``measured`` or ``modelled``."""
        return str(self.facts.get("target_kind", "unknown"))

    @property
    def target(self) -> str:
        return str(self.facts.get("target", "unknown"))

    @property
    def target_text(self) -> str:
        """The target's name in sentences and tables."""
        return target_text(self.target)

    @property
    def unit(self) -> str:
        """Of a fitness: ``TFLOP/s``, or what the campaign ranks by."""
        return str(self.facts.get("unit", "TFLOP/s"))

    @property
    def state(self) -> str:
        """``finished``, ``interrupted`` or ``unfinished`` (running, or killed)."""
        kinds = [e.kind for e in self.events if e.kind in ("started", "resumed", "interrupted", "finished")]
        if "finished" in kinds:
            return "finished"
        return "interrupted" if kinds and kinds[-1] == "interrupted" else "unfinished"

    @property
    def reason(self) -> str:
        """Why the campaign ended, when it did."""
        for event in reversed(self.events):
            if event.kind in ("finished", "interrupted"):
                return str(event.detail.get("reason", ""))
        return ""

    @property
    def short_state(self) -> str:
        """The state in a list of campaigns: ``finished``, ``interrupted``, ``running`` or ``killed``."""
        if self.state != "finished" and self.alive:
            return "running"
        return "killed" if self.state == "unfinished" else self.state

    @property
    def state_text(self) -> str:
        """The state with its reason: ``finished: the time budget is spent``."""
        alone = self.reason == "space_exhausted" and (self.config.get("search") or {}).get("proposers") == []
        reason = "no further answer of the language model can be used" if alone else self.reason
        return (
            f"{self.short_state}: {REASONS.get(reason, reason)}"
            if self.reason and not (self.alive and self.state != "finished")
            else self.short_state
        )

    def origins(self) -> list[str]:
        """The cluster that it ran on, what that lacks since, and the campaigns that it started from, a line each."""
        workers = [str(event.detail["text"]) for event in self.events if event.kind == WORKERS]
        earlier = (self.config.get("search") or {}).get("transfer") or ()
        named = [f"starts from: {', '.join(earlier)}"] if not isinstance(earlier, str) and earlier else []
        first = max((n for n, text in enumerate(workers) if text.startswith("workers: ")), default=0)
        return [*workers[first:], *named]

    @property
    def elapsed(self) -> float:
        """Seconds of campaign time until now, or, where it does not run, until the last thing recorded."""
        clock = CampaignClock(self.events, [])
        last = max((event.at for event in self.events), default=0.0)
        if self.alive and self.state == "unfinished":
            last = time.time()
        return max([clock(last), *(point.elapsed for point in self.points)])

    @property
    def timed(self) -> bool:
        """Whether its figures rank candidates: not those of a compiler or an interpreter."""
        return self.kind != FigureKind.COMPILED.value and timed(self.target)

    @property
    def best(self) -> Evaluation | None:
        """On the suite, the winner's evaluation; of a campaign that goes on, the fittest so far."""
        return self.evaluations.get(self.winner.genome.id) if self.winner else None

    def passed(self) -> list[Point]:
        """Evaluations of candidates that passed every gate, in the order they came in."""
        return [point for point in self.points if point.evaluation.verdict is Verdict.OK]

    def seeds(self) -> list[tuple[str, Candidate]]:
        """Seed candidates with the names reports use."""
        names = list(self.facts.get("seeds") or ())
        found = [c for c in self.candidates.values() if c.mutation.kind is MutationKind.SEED]
        found.sort(key=lambda c: c.index)
        return [(names[n] if n < len(names) else f"seed {n}", c) for n, c in enumerate(found)]

    @property
    def best_seed(self) -> Evaluation | None:
        """The fittest seed's on the suite, the first on a tie."""
        found = [self.evaluations.get(candidate.genome.id) for _, candidate in self.seeds()]
        return max((e for e in found if e and e.fitness), key=lambda e: e.fitness or 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """The best's fitness over the best seed's; None before there are both and where times mean nothing."""
        best, seed = self.best, self.best_seed
        if best is None or seed is None or not (best.fitness and seed.fitness):
            return None
        return best.fitness / seed.fitness

    def ranking(self, scope: Scope) -> list[Named]:
        """Winner, seeds and baselines in one scope, fittest first, failures last."""
        references = self.references.get(scope.value, {})
        rows: dict[str, Named] = {}
        if scope is Scope.SUITE:
            if self.winner and self.winner.genome.id in self.evaluations:
                rows[WINNER] = Named(WINNER, "winner", self.evaluations[self.winner.genome.id])
            for name, candidate in self.seeds():
                if candidate.genome.id in self.evaluations:
                    rows[name] = Named(name, "seed", self.evaluations[candidate.genome.id])
        for name, evaluation in references.items():
            if name.startswith(FINALIST_PREFIX):
                continue
            role = "winner" if name == WINNER else "seed" if name.startswith(SEED_PREFIX) else "baseline"
            label = name.removeprefix(SEED_PREFIX)
            rows.setdefault(label, Named(label, role, evaluation))
        return sorted(rows.values(), key=lambda row: -(row.evaluation.fitness or 0.0))

    def headroom(self) -> list[Headroom]:
        """Of the winner against the best seed, on the suite; empty where times mean nothing."""
        first, best = self.best_seed, self.best
        if first is None or best is None or not self.timed:
            return []
        floors = {figures.workload: self.floors(figures.workload) for figures in best.workloads}
        return headroom(first.workloads, best.workloads, floors)

    def floors(self, workload: str) -> dict[str, float]:
        """Lower bounds of one workload in seconds by unit, from the campaign or from a diagnosis."""
        known = self.facts.get("floors") or {}
        if isinstance(known, Mapping) and isinstance(known.get(workload), Mapping):
            return _seconds(known[workload])
        for references in self.references.values():
            for evaluation in references.values():
                for figures in evaluation.workloads:
                    found = figures.diagnosis.get("floors")
                    if figures.workload == workload and isinstance(found, Mapping):
                        return _seconds(found)
        return {}


def kernel_text(name: str) -> str:
    """A kernel's name in a sentence: ``seed:naive`` -> ``seed naive``; a tuned function's is ``the seed``."""
    return "the seed" if name == f"{SEED_PREFIX}seed" else name.replace(":", " ")


def rival_speeds(finals: Mapping[str, Evaluation]) -> str:
    """The winner against each rival: ``1.48 × faster than bf16, tied with seed naive (within its 90 % interval)``.

    Empty without a winner or another rival. They tie if the 90 % interval of the winner's modelled rate covers the
    rival's.
    """
    winner = finals.get(WINNER)
    if winner is None or not winner.fitness:
        return ""
    return ", ".join(
        f"tied with {kernel_text(name)} (within its 90 % interval)"
        if winner.even_with(rival)
        else speed_text(winner.fitness / rival.fitness, kernel_text(name))
        for name, rival in finals.items()
        if rival.fitness and rival.genome != winner.genome and not name.startswith(FINALIST_PREFIX)
    )


def judge_lines(evaluations: Iterable[Evaluation]) -> list[str]:
    """How the gates got the answers they judged, in one line; empty where no evaluation records it."""
    ways = {evaluation.reached for evaluation in evaluations if evaluation.reached is not None}
    return [f"The gates judged answers {', and '.join(JUDGED[way] for way in sorted(ways))}"] if ways else []


def load(journal: Journal) -> CampaignData:
    """Read everything; the journal may belong to a campaign that still runs."""
    # a promotion comes after the campaign and is no part of its time
    events = tuple(event for event in journal.events() if event.kind != "promoted")
    by_index = {c.index: c for c in journal.candidates()}
    rows = list(journal.evaluations())
    clock = CampaignClock(events, [at for *_, at in rows])
    points = tuple(Point(arrival, by_index[index], ranked(e), clock(at)) for arrival, index, e, at in rows)
    candidates = {c.genome.id: c for c in by_index.values()}
    data = CampaignData(
        facts=journal.meta("campaign", {}),
        toolchain=journal.meta("toolchain", {}),
        system=journal.meta("system", {}),
        config=journal.meta("config", {}),
        events=events,
        points=points,
        candidates=candidates,
        evaluations={point.candidate.genome.id: point.evaluation for point in points},
        winner=_winner(events, points, candidates),
        references={s.value: {n: ranked(e) for n, e in journal.references(s.value).items()} for s in Scope},
        alive=journal.running,
    )
    return replace(data, bill=bill_of(journal, clock, data.gain))


def _winner(
    events: tuple[Event, ...], points: tuple[Point, ...], candidates: Mapping[str, Candidate]
) -> Candidate | None:
    """The winner that a finished campaign named, if any passed its final check; of others the fittest so far.

    The earliest on a tie; None on a target that only compiles: what has no figures is not ranked.
    """
    for event in reversed(events):
        if event.kind == "finished":
            return candidates.get(event.detail.get("winner") or "")
    passed = [p for p in points if p.evaluation.verdict is Verdict.OK and p.evaluation.workloads]
    return max(passed, key=lambda p: p.evaluation.fitness or 0.0).candidate if passed else None


class CampaignClock:
    """Maps Unix seconds to seconds of campaign time: pauses between a stop and a resume do not count."""

    def __init__(self, events: tuple[Event, ...], marks: list[float]) -> None:
        starts = [event.at for event in events if event.kind in ("started", "resumed")]
        every = sorted([event.at for event in events] + marks)
        self._runs: list[tuple[float, float]] = []
        before = 0.0
        for begin, end in itertools.pairwise([*starts, float("inf")]):
            self._runs.append((begin, before))
            inside = [at for at in every if begin <= at < end]
            before += (inside[-1] - begin) if inside else 0.0

    def __call__(self, at: float) -> float:
        for begin, before in reversed(self._runs):
            if at >= begin:
                return before + at - begin
        return 0.0


def ancestry(data: CampaignData, winner: Candidate) -> list[Candidate]:
    """The winner and all its ancestors, oldest proposal first."""
    seen: dict[str, Candidate] = {}
    queue = [winner]
    while queue:
        candidate = queue.pop()
        if candidate.genome.id in seen:
            continue
        seen[candidate.genome.id] = candidate
        queue.extend(data.candidates[p] for p in candidate.parents if p in data.candidates)
    return sorted(seen.values(), key=lambda c: c.index)


def _seconds(floors: Mapping[str, Any]) -> dict[str, float]:
    """``{"mxu_seconds": 6e-5}`` -> ``{"mxu": 6e-5}``; what is not a positive number is left out."""
    return {
        str(key).removesuffix("_seconds"): float(value)
        for key, value in floors.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }
