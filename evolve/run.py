"""Running a campaign from configuration to winner: journal, workers, search, finals, report."""

import gc
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign.conclusion import Finals, References, conclude_measured
from tilewright.evolve.campaign.config import CampaignConfig, parse_config
from tilewright.evolve.campaign.interrupt import CtrlC
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, StopReason, failure_text
from tilewright.evolve.campaign.preparation import pool_settings, require_same_kernels, require_same_model, write_meta
from tilewright.evolve.campaign.racing import Racing
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.campaign.searcher import build_searcher, with_earlier
from tilewright.evolve.campaign.targets import require_usable
from tilewright.evolve.errors import SeedFailed, UserError
from tilewright.evolve.mlflow_mirror.process import MirrorProcess, correct_ended, start_mirror
from tilewright.evolve.proposers.llm.client import Exchange
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.home import JOURNAL, REPORT, discard, logbook, new_campaign
from tilewright.evolve.record.journal import TUNED, WORKERS, Journal
from tilewright.evolve.report.bill import SPENT
from tilewright.evolve.report.data import CampaignClock
from tilewright.evolve.show.display import Display, Snapshot
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.pool import Pool, make_pool
from tilewright.workers.cluster.settings import PoolUnavailable
from tilewright.workers.device.warm_device import WarmDevice

MIRROR_LOOK_SECONDS = 0.25
"""Interval at which the wait for MLflow checks for an interrupt."""

COLLECT = (10_000, 10, 10)
"""Thresholds of Python's garbage collector: kept syntax trees make a full collection stop all threads for 0.1 s."""

MIRROR_PATIENCE_SECONDS, TUNED_PATIENCE_SECONDS = 60.0, 5.0
"""How long a finished campaign waits for MLflow to catch up, and that of a tuned function, whose winner somebody waits
for; 'tilewright ui' completes the mirror later."""


@dataclass
class CampaignOutcome:
    """How a run ended. ``winner`` is a genome id; ``finals`` are figures on the final workloads by name."""

    campaign: str
    reason: StopReason
    winner: str | None = None
    finals: dict[str, Evaluation] = field(default_factory=dict)
    mirrored: bool = True


def run(
    config: CampaignConfig,
    home: Path,
    display: Display,
    device: WarmDevice | None = None,
    *,
    stop: threading.Event | None = None,
    tuned: Mapping[str, Any] | None = None,
) -> CampaignOutcome:
    """Run a campaign from its start. Raises UserError before anything is written when it cannot work.

    ``device``: the target's, already starting; the caller closes it. ``stop``: once set, the campaign ends as after
    Ctrl-C. ``tuned``: what the journal keeps for a tuned function's module.
    """
    resolved = with_earlier(resolve(config), home)
    require_usable(resolved.target, remote=config.workers.address is not None)
    folder = new_campaign(home, config.name)
    try:
        with Journal(folder / JOURNAL, write=True, create=True) as journal:
            write_meta(journal, folder.name, resolved)
            if tuned is not None:
                journal.set_meta(TUNED, tuned)
            journal.add_event("started")
            with logbook(folder):
                return _Run(resolved, journal, folder, home, display, device, stop).go()
    except InfrastructureFault:
        raise
    except UserError as error:
        if isinstance(error, SeedFailed) or not _has_results(folder):
            discard(folder)
        raise


def _has_results(folder: Path) -> bool:
    """Whether a campaign has an evaluation: a result that was paid for is kept, whatever fails later."""
    try:
        with Journal(folder / JOURNAL) as journal:
            return next(iter(journal.evaluations()), None) is not None or bool(journal.references("suite"))
    except UserError:
        return False


def resume(
    folder: Path, home: Path, display: Display, address: str | None = None, *, stop: threading.Event | None = None
) -> CampaignOutcome:
    """Resume a campaign as if it had never stopped; ``stop`` as for ``run``. Raises UserError."""
    with Journal(folder / JOURNAL, write=True) as journal:
        data = journal.meta("config")
        if data is None:
            raise UserError(f"campaign {folder.name} stopped before it began; start it again with 'tilewright run'.")
        config = parse_config(data, str(folder), recorded=True)
        if address is not None:
            config = config.model_copy(update={"workers": config.workers.model_copy(update={"address": address})})
        resolved = resolve(config)
        require_usable(resolved.target, remote=config.workers.address is not None)
        require_same_kernels(journal, resolved)
        require_same_model(journal, resolved)
        if any(event.kind == "finished" for event in journal.events()):
            raise UserError(f"campaign {folder.name} has finished; see it with 'tilewright report {folder.name}'.")
        journal.add_event("resumed")
        with logbook(folder):
            return _Run(resolved, journal, folder, home, display, stop=stop).go()


@dataclass
class _Run:
    """One process's part of a campaign."""

    resolved: Resolved
    journal: Journal
    folder: Path
    home: Path
    display: Display
    device: WarmDevice | None = None
    stop: threading.Event | None = None
    _mirror: MirrorProcess | None = None
    _ctrl_c: CtrlC | None = None
    _references: References | None = None
    _pool: Pool | None = None
    _last_shown: float = 0.0
    _compared_seconds: float = 0.0

    def go(self) -> CampaignOutcome:
        pool = self._pool = make_pool(pool_settings(self.resolved), self.device, self._pool_note)
        config = self.resolved.config
        recorded = sum(1 for _ in self.journal.evaluations())
        self.display.start({**self.journal.meta("campaign"), "evaluations": recorded})
        references = self._references = References(pool, self.journal, config.seed)
        campaign = self._campaign(references)
        gc.freeze()  # imported modules stay, so collections need not scan them
        gc.set_threshold(*COLLECT)
        try:
            with CtrlC(campaign.stop) as signals:
                self._ctrl_c = signals
                try:
                    return self._search(campaign, references, pool)
                except KeyboardInterrupt:
                    if signals.repeated or not signals.requested:
                        raise
                    return self._end_interrupted()
        finally:
            pool.close()
            if self._mirror is not None:
                self._mirror.stop()
            self.display.stop()

    def _search(self, campaign: Campaign, references: References, pool: Pool) -> CampaignOutcome:
        for line in self.resolved.moved_starts():
            self.display.note(line)
        if earlier := self.resolved.config.search.transfer:
            self.display.note(f"starts from: {', '.join(earlier)} (search.transfer)")
        self.display.note("starting workers")
        try:
            pool.start()
            campaign.begin()  # seeds first, baselines beside them
        except PoolUnavailable as error:
            raise UserError(f"workers: {error}.") from error
        self.display.note("")
        for kernel, genome in self.resolved.baselines:
            references.request(kernel.name, Scope.SUITE, genome, kernel.name)
        try:
            return self._conclude(campaign, references, campaign.run(), pool)
        except PoolUnavailable as error:
            self._note_spent()
            self.journal.add_event("interrupted", reason=str(error))
            name = self.folder.name
            raise InfrastructureFault(f"workers: {error}; resume with 'tilewright resume {name}'.") from error

    def _pool_note(self, text: str) -> None:
        """What a cluster has, lacks or lost."""
        self.journal.add_event(WORKERS, text=text)
        self.display.note(text)

    @property
    def _interrupted(self) -> bool:
        return self._ctrl_c is not None and self._ctrl_c.requested

    def _campaign(self, references: References) -> Campaign:
        config, search = self.resolved.config, self.resolved.config.search
        limits = config.budget
        budget = Budget(limits.evaluations, limits.wall_seconds, limits.fitness)
        plan = Plan(self.resolved.starts, budget, config.seed, search.lag, search.islands, search.order)
        archive = Archive(search.islands, search.migration_interval)
        searcher = build_searcher(self.resolved, archive, self.journal, self.home, self.display.note)
        campaign = Campaign(
            plan,
            searcher,
            archive,
            references,
            self.journal,
            self._show,
            self._racing(archive),
            ready=lambda: references.wait(0.0),
        )
        recorded = [(index, evaluation) for _, index, evaluation, _ in self.journal.evaluations()]
        campaign.restore(list(self.journal.candidates()), recorded)
        campaign.elapsed_before = _earlier_seconds(self.journal)
        return campaign

    def _racing(self, archive: Archive) -> Racing | None:
        """A race over the workloads, least work first: of equally informative ones the cheaper is measured."""
        if not self.resolved.config.search.racing:
            return None
        ordered = sorted(self.resolved.suite.workloads, key=self.resolved.operator.flops)
        return Racing([workload.id for workload in ordered], archive, self.resolved.floors())

    def _conclude(self, campaign: Campaign, references: References, reason: StopReason, pool: Pool) -> CampaignOutcome:
        # the display skips an evaluation that follows another within 0.2 s; the last one must be shown
        self._last_shown = 0.0
        self._show(campaign)
        name = self.folder.name
        if reason is StopReason.SEED_FAILED:
            raise SeedFailed(_seed_failure(campaign))
        if reason is StopReason.INFRASTRUCTURE:
            last = campaign.history.evaluated[-1][1]
            self.journal.add_event("interrupted", reason=last.reason)
            raise InfrastructureFault(f"workers keep failing: {last.reason}; resume with 'tilewright resume {name}'.")
        if reason is StopReason.INTERRUPTED:
            return self._end_interrupted()
        if (silence := self._model_silence(reason)) is not None:
            self._note_spent()
            self.journal.add_event("interrupted", reason=silence)
            raise InfrastructureFault(
                f"llm: the only proposer does not answer: {silence}; 'tilewright resume {name}' asks it again."
            )
        winner = self._winner(campaign, pool, references)
        if self._interrupted:
            return self._end_interrupted()
        self._settle()
        self._finish(reason, winner)
        if self._mirror is not None:
            self.display.note("MLflow is catching up")
        mirrored = self._mirror is None or self._await_mirror(self._mirror)
        finals = self.journal.references(Scope.FINAL.value)
        return CampaignOutcome(name, reason, winner.id if winner else None, finals, mirrored)

    def _model_silence(self, reason: StopReason) -> str | None:
        """The error of a language model that alone proposes and did not answer the last question."""
        if reason is not StopReason.EXHAUSTED or self.resolved.config.search.proposers:
            return None
        exchanges = [Exchange.from_json(text) for _, text in self.journal.exchanges()]
        return exchanges[-1].error or None if exchanges else None

    def _await_mirror(self, mirror: MirrorProcess) -> bool:
        """Wait until MLflow has every row; returns whether it has. An interrupt ends only this wait."""
        tuned = self.journal.meta(TUNED) is not None
        deadline = time.monotonic() + (TUNED_PATIENCE_SECONDS if tuned else MIRROR_PATIENCE_SECONDS)
        while not (done := mirror.wait(MIRROR_LOOK_SECONDS)):
            if self._interrupted or mirror.ended or time.monotonic() >= deadline:
                break
        return done

    def _settle(self) -> None:
        if self._ctrl_c is not None:
            self._ctrl_c.settle()

    def _end_interrupted(self) -> CampaignOutcome:
        self._settle()
        self._note_spent()
        self.journal.add_event("interrupted", reason="stopped by the user")
        return CampaignOutcome(self.folder.name, StopReason.INTERRUPTED)

    def _finish(self, reason: StopReason, winner: Genome | None) -> None:
        from tilewright.evolve.report.html import write_report

        self._note_spent()
        if not any(event.kind == "finished" for event in self.journal.events()):
            self.journal.add_event("finished", reason=reason.value, winner=winner.id if winner else None)
        try:
            write_report(self.journal, self.folder / REPORT)
        except OSError as error:
            raise InfrastructureFault(
                f"report: cannot write {self.folder / REPORT}: {error.strerror}; the campaign has finished, and "
                f"'tilewright report {self.folder.name}' writes it."
            ) from error

    def _note_spent(self) -> None:
        """Record for the bill the CPU time of this process and the device time of the last comparison."""
        judged = 0.0 if self._pool is None else self._pool.thread_cpu_seconds
        self.journal.add_event(SPENT, cpu_seconds=time.process_time() - judged, device_seconds=self._compared_seconds)

    def _winner(self, campaign: Campaign, pool: Pool, references: References) -> Genome | None:
        """The winner; None when nothing passed, and on compile-only targets, which rank nothing.

        On the interpreter, which ranks nothing either, the first seed.
        """
        if self.resolved.target.compile_only:
            return None
        if self.resolved.target.gpu_interpreter:  # its times rank nothing: the first seed stays
            return self.resolved.starts[0].genome
        if self.resolved.target.measured:
            return self._dispatch(campaign, pool)
        finals = Finals(self.resolved, self.journal, references, self.display.note, lambda: self._progress(campaign))
        return finals.winner(campaign.history)

    def _dispatch(self, campaign: Campaign, pool: Pool) -> Genome | None:
        """Measure the best genomes side by side and write the dispatch table; its default genome wins."""
        if campaign.history.best is None:
            return None
        self.display.note("final check: the best genomes side by side on the device")
        began = time.monotonic()
        try:
            return conclude_measured(self.resolved, campaign.history, pool, self.journal, self.folder)
        except UserError as error:
            self.journal.add_event("interrupted", reason=str(error))
            raise
        finally:
            self._compared_seconds = time.monotonic() - began

    def _progress(self, campaign: Campaign) -> bool:
        self._show(campaign)
        return self._interrupted

    def _show(self, campaign: Campaign) -> None:
        if self.stop is not None and self.stop.is_set() and self._ctrl_c is not None:
            self._ctrl_c.request()
        now = time.monotonic()
        if now - self._last_shown < 0.2:
            return
        self._last_shown = now
        self._mirror_once_seeds_pass(campaign)
        references = self.journal.references(Scope.SUITE.value)
        verdicts = {verdict.value: count for verdict, count in campaign.history.verdicts.items()}
        assert self._references is not None
        evaluated = [campaign.history.evaluation(start.genome.id) for start in self.resolved.starts]
        starts = sorted((e for e in evaluated if e and e.fitness), key=lambda e: -(e.fitness or 0.0))
        best = campaign.history.best
        self.display.update(
            Snapshot(
                evaluations=campaign.charged,
                evaluations_budget=campaign.plan.budget.evaluations,
                elapsed_seconds=campaign.elapsed_seconds,
                wall_budget_seconds=campaign.plan.budget.wall_seconds,
                verdicts=verdicts,
                best=best[1] if best else None,
                seed=starts[0] if starts else None,
                references=references,
                activity=self._references.activity(),
                mirror_lag=self._mirror.lag() if self._mirror else None,
            )
        )

    def _mirror_once_seeds_pass(self, campaign: Campaign) -> None:
        """Start MLflow's mirror late enough that a campaign refused for its seeds leaves no trace there."""
        seeds = [campaign.history.evaluation(start.genome.id) for start in self.resolved.starts]
        seeds_passed = all(e is not None and e.verdict is Verdict.OK for e in seeds)
        if self._mirror is None and seeds_passed and self.resolved.config.mlflow.enabled:
            self._mirror = start_mirror(self.folder / JOURNAL, self.home)
            correct_ended(self.home)


class InfrastructureFault(UserError):
    """Workers fail, not candidates."""


def _seed_failure(campaign: Campaign) -> str:
    for candidate, evaluation in campaign.history.evaluated:
        if candidate.index < len(campaign.plan.starts) and evaluation.verdict is not Verdict.OK:
            return f"seeds: {campaign.plan.starts[candidate.index].name} {failure_text(evaluation)}."
    return "seeds: a seed kernel fails its own gate."


def _earlier_seconds(journal: Journal) -> float:
    """Seconds of all earlier runs of this campaign, each up to its last row in the journal."""
    events = tuple(journal.events())
    *_, began = (event.at for event in events if event.kind in ("started", "resumed"))
    return CampaignClock(events, [at for *_, at in journal.evaluations()])(began)
