"""The steady-state campaign: propose, submit, record, integrate, without generations.

Two orders of integration. In ``index`` order, evaluation ``k`` is integrated only after all before it,
and proposal ``k + lag`` is made right then: what a campaign proposes depends on its seed and on the
evaluations alone, never on which worker was faster. In ``arrival`` order evaluations are integrated as
they come, so that one slow evaluation holds nobody up; the journal keeps the order, and a resumed
campaign replays it. In both, at most ``lag`` proposals are in flight.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from tilewright.evolve.campaign.config import Order
from tilewright.evolve.campaign.racing import Racing
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Searcher, in_memory
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.fitness.targets import target_text
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.pool import Evaluator


class StopReason(StrEnum):
    EVALUATIONS = "evaluations"
    WALL_TIME = "wall_time"
    TARGET = "target_reached"
    EXHAUSTED = "space_exhausted"
    DUPLICATES = "duplicates"
    INTERRUPTED = "interrupted"
    SEED_FAILED = "seed_failed"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class Budget:
    """A campaign stops at the first limit reached. ``None`` sets no limit.

    ``evaluations`` counts proposals, failures included; as many duplicates again are free, since they cost no
    figure. ``fitness`` is in the operator's unit (``fitness.score.rate_unit``).
    """

    evaluations: int | None = None
    wall_seconds: float | None = None
    fitness: float | None = None


@dataclass(frozen=True)
class Start:
    """A seed genome under the name it has in reports."""

    name: str
    genome: Genome


@dataclass(frozen=True)
class Plan:
    """The loop's orders. ``lag`` >= 1; ``islands`` >= 1."""

    starts: Sequence[Start]
    budget: Budget
    seed: int
    lag: int
    islands: int = 1
    order: Order = Order.INDEX
    must_pass: bool = True
    """A start that fails ends the campaign (off for tables, where any point may fail)."""


class Record(Protocol):
    """The part of the journal the loop writes."""

    def add_candidate(self, candidate: Candidate) -> None: ...

    def add_evaluation(self, index: int, evaluation: Evaluation) -> None: ...


GATE_EPOCH = 8
"""Candidates in a row whose gates see the same fresh inputs, so that a worker computes their oracle once."""

INFRASTRUCTURE_LIMIT = 5
"""Infrastructure faults in a row that end a campaign: going on would only burn budget."""

DUPLICATES_LIMIT = 24
"""Duplicates in a row that end a campaign, since each is compiled before it is known. Where every second proposal is a
duplicate, as with few parameters, a run of 24 comes by chance once in 16 million times."""

PATIENCE_SECONDS = 1.0
"""How long evaluations in flight may still finish after a budget of seconds is spent."""

WAIT_SECONDS = 0.25
"""How long the loop blocks before it looks at the clock and the display again."""


def gate_seed(seed: int, epoch: int) -> int:
    """The seed of the gates' inputs in an epoch of a campaign."""
    return int(np.random.default_rng([seed, epoch, 1]).integers(2**31))


def failure_text(evaluation: Evaluation) -> str:
    """Why a seed does not start a campaign."""
    gated = evaluation.stage is Stage.CHECK
    how = "fails its own gate" if gated else f"cannot start a campaign on {target_text(evaluation.target)}"
    reason = evaluation.reason.removesuffix(".")
    if evaluation.verdict is Verdict.TIMEOUT:
        limit = "workers.check_seconds" if gated else "workers.measure_seconds"
        how, reason = "takes too long", f"{reason}; raise {limit}, or start from fewer steps of the grid"
    return f"{how}: {evaluation.verdict.value} at {evaluation.stage.value}, {reason}"


@dataclass
class Campaign:
    """One search over one evaluator. ``run`` returns when the budget is spent or ``stop`` was called."""

    plan: Plan
    searcher: Searcher
    archive: Archive
    evaluator: Evaluator
    record: Record
    on_progress: "Callable[[Campaign], None]" = lambda campaign: None
    racer: Racing | None = None
    """Stops candidates that fall behind; without a racer every candidate is measured on the whole suite."""

    history: History = field(default_factory=History)
    ready: Callable[[], Sequence[tuple[int, Evaluation]]] = lambda: ()
    """Evaluations that have finished, asked for between proposals, so that workers continue while the model thinks."""

    elapsed_before: float = 0.0
    """Wall seconds spent in earlier runs of a resumed campaign."""

    _known: dict[int, Candidate] = field(default_factory=dict)
    _arrived: dict[int, Evaluation] = field(default_factory=dict)
    _queue: deque[int] = field(default_factory=deque)
    _artefacts: set[str] = field(default_factory=set)
    _integrated: int = 0
    _duplicates: int = 0
    _alike: int = 0  # duplicates since the last evaluation that was none
    _began: float = field(default_factory=time.monotonic)
    _closing: StopReason | None = None
    _interrupted: bool = False
    _faults: int = 0
    _dry_at: int = -1
    _gate_seed: tuple[int, int] = (-1, 0)
    """The latest epoch and the seed of its inputs."""

    def restore(self, candidates: Sequence[Candidate], evaluations: Sequence[tuple[int, Evaluation]]) -> None:
        """Load what a journal holds: candidates by index, evaluations in order of arrival."""
        self._known = {c.index: c for c in candidates}
        for index, evaluation in evaluations:
            self._arrive(index, evaluation)

    def stop(self) -> None:
        """Ask the loop to end soon; a resume evaluates what is in flight."""
        self._interrupted = True

    @property
    def elapsed_seconds(self) -> float:
        return self.elapsed_before + time.monotonic() - self._began

    def begin(self) -> None:
        """Replay what is recorded and submit the first proposals, before ``run`` waits for any of them."""
        self._advance()

    @property
    def charged(self) -> int:
        """Finished evaluations that count against the budget."""
        return self._integrated - self._free_duplicates

    @property
    def _free_duplicates(self) -> int:
        budget = self.plan.budget.evaluations
        return self._duplicates if budget is None else min(self._duplicates, budget)

    def run(self) -> StopReason:
        self._began = time.monotonic()
        while True:
            self._advance()
            self.on_progress(self)
            if self._interrupted:
                return StopReason.INTERRUPTED
            if self._closing in (StopReason.SEED_FAILED, StopReason.INFRASTRUCTURE):
                return self._closing
            if self._integrated == len(self.history.candidates):
                return self._closing or StopReason.EXHAUSTED
            if self._seconds_are_over():
                return self._abandon()
            self._record_finished(self.evaluator.wait(WAIT_SECONDS))

    def _seconds_are_over(self) -> bool:
        """Whether to stop waiting. Before any candidate has passed the loop waits on: it would end without a result."""
        limit = self.plan.budget.wall_seconds
        spent = limit is not None and self.elapsed_seconds >= limit + PATIENCE_SECONDS
        return spent and self.history.best is not None

    def _abandon(self) -> StopReason:
        """Integrate what has arrived and drop what is in flight: its rows stay without an evaluation."""
        for index in sorted(self._arrived):
            if index < len(self.history.candidates):
                self._integrate(index)
        self.evaluator.drop([candidate.index for candidate in self.history.pending()])
        return self._closing or StopReason.WALL_TIME

    def _record_finished(self, finished: Sequence[tuple[int, Evaluation]]) -> None:
        """Write finished evaluations to the journal."""
        for index, evaluation in finished:
            self.record.add_evaluation(index, evaluation)
            self._arrive(index, evaluation)

    def _arrive(self, index: int, evaluation: Evaluation) -> None:
        self._arrived[index] = in_memory(evaluation)
        if self.plan.order is Order.ARRIVAL:
            self._queue.append(index)

    # -- the deterministic core: proposals are made as early as allowed, before anything is integrated ----

    def _advance(self) -> None:
        while not self._interrupted:
            if self._may_propose():
                self._propose()
                self._record_finished(self.ready())
            elif (index := self._next_arrived()) is not None:
                self._integrate(index)
            else:
                return

    def _may_propose(self) -> bool:
        if self._closing in (None, StopReason.EVALUATIONS):  # what is in flight may turn out to be free
            self._closing = self._budget_spent()
        in_flight = len(self.history.candidates) - self._integrated
        dry = self._dry_at == self._integrated
        return self._closing is None and in_flight < self.plan.lag and not dry

    def _budget_spent(self) -> StopReason | None:
        budget, best = self.plan.budget, self.history.best
        if budget.fitness is not None and best and (best[1].fitness or 0.0) >= budget.fitness:
            return StopReason.TARGET
        proposed = len(self.history.candidates)
        if proposed in self._known:  # what is recorded was within the budget
            return None
        if budget.evaluations is not None and proposed - self._free_duplicates >= budget.evaluations:
            return StopReason.EVALUATIONS
        if budget.wall_seconds is not None and self.elapsed_seconds >= budget.wall_seconds:
            return StopReason.WALL_TIME
        return StopReason.DUPLICATES if self._alike >= DUPLICATES_LIMIT else None

    def _propose(self) -> None:
        index = len(self.history.candidates)
        candidate = self._known.get(index)
        if candidate is None:
            candidate = self._new_candidate(index)
            if candidate is not None:
                self.record.add_candidate(candidate)
        # A recorded candidate waits for the moment it was proposed at, so that a replay is exact.
        if candidate is None or candidate.seen > self._integrated:
            self._dry_at = self._integrated
            return
        self._known.pop(index, None)
        self.history.propose(candidate)
        if index not in self._arrived:
            self.evaluator.submit(self._job(candidate))

    def _new_candidate(self, index: int) -> Candidate | None:
        island = index % self.plan.islands
        if index < len(self.plan.starts):
            start = self.plan.starts[index]
            mutation = Mutation(MutationKind.SEED, "seed", f"seed kernel {start.name}")
            return Candidate(index, start.genome, (), mutation, 0, island, self._integrated)
        rng = np.random.default_rng([self.plan.seed, index])
        proposal = self.searcher.propose(self.history, island, rng)
        if proposal is None:
            return None
        generation = 1 + max((self.history.candidate(p).generation for p in proposal.parents), default=-1)
        return Candidate(
            index, proposal.genome, proposal.parents, proposal.mutation, generation, island, self._integrated
        )

    def _job(self, candidate: Candidate) -> Job:
        epoch = candidate.index // GATE_EPOCH
        if epoch != self._gate_seed[0]:
            self._gate_seed = epoch, gate_seed(self.plan.seed, epoch)
        _, seed = self._gate_seed
        known, best = frozenset(self._artefacts), self._bar(candidate)
        race = None
        if self.racer is not None and candidate.mutation.kind is not MutationKind.SEED:
            race = self.racer.race(self.history, candidate)
        return Job(candidate.index, candidate.genome, seed, known, best, race=race)

    def _bar(self, candidate: Candidate) -> float:
        """The fitness above which a candidate is checked harder: none for the user's own seed sources."""
        if any(candidate.genome.source_id == start.genome.source_id for start in self.plan.starts):
            return math.inf
        best = self.history.best
        return (best and best[1].fitness) or 0.0

    def _next_arrived(self) -> int | None:
        if self.plan.order is Order.INDEX:
            return self._integrated if self._integrated in self._arrived else None
        return self._queue[0] if self._queue else None

    def _integrate(self, index: int) -> None:
        if index in self._queue:
            self._queue.remove(index)
        candidate, evaluation = self.history.candidates[index], self._arrived.pop(index)
        self.history.integrate(candidate, evaluation)
        self._integrated += 1
        self._duplicates += evaluation.verdict is Verdict.DUPLICATE
        self._alike = self._alike + 1 if evaluation.verdict is Verdict.DUPLICATE else 0
        if evaluation.artefact and evaluation.verdict in (Verdict.OK, Verdict.OUTPACED):
            self._artefacts.add(evaluation.artefact)
        if evaluation.verdict is Verdict.INFRA_ERROR:
            self._faults += 1
            if self._faults >= INFRASTRUCTURE_LIMIT:
                self._closing = StopReason.INFRASTRUCTURE
            return
        self._faults = 0
        if candidate.mutation.kind is MutationKind.SEED and evaluation.verdict is not Verdict.OK:
            if self.plan.must_pass:
                self._closing = StopReason.SEED_FAILED
            return
        self.archive.add(candidate, evaluation)
