"""``tilewright promote``: re-verify, compare with what serves now, and only then write."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.promote import sanitizer, version_files
from tilewright.evolve.promote.judge import Judgement, judge
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.nominate import nominate
from tilewright.evolve.promote.serving import incumbents, nominees
from tilewright.evolve.promote.verify import Contender, Refusal, Verification, verify
from tilewright.evolve.promote.version_files import Promotion, names_of
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.targets import Target
from tilewright.library import store
from tilewright.workers.cluster.pool import Pool

EVENT = "promoted"

Say = Callable[[str], None]
MakeEvaluator = Callable[[Resolved], Pool]
Current = tuple[str, dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """Options of the command line; see ``tilewright promote --help``. ``rounds`` None: as many as are due."""

    suite: str | None = None
    name: str | None = None
    candidate: str | None = None
    table: Path | None = None
    against: str | None = None
    dry_run: bool = False
    force_reason: str | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class PromotionOutcome:
    """``version`` is None for a dry run."""

    operator: str
    version: str | None
    judgement: Judgement
    promotion: Promotion


def promote(
    folder: Path, writer: LibraryWriter, options: Options, say: Say, evaluator: MakeEvaluator
) -> PromotionOutcome:
    """Promote from the campaign in ``folder``. Raises UserError (a Refusal where the kernel is to blame)."""
    if options.force_reason is not None and not options.force_reason.strip():
        raise UserError("--force-reason: say why, in words.")
    table = options.table
    own = folder / dispatch_table.FILE  # with which a campaign on a measured target ended
    if table is None and options.candidate is None and options.suite is None and own.exists():
        table = own
    nomination = nominate(folder, suite=options.suite, candidate=options.candidate, table=table)
    operator = options.name or nomination.resolved.operator.name
    current = _current(writer, operator)
    table_now = None
    if options.against is None:
        table_now = _table(writer, operator, current, nomination.resolved.target)
    refused: dict[str, str] = {}
    while True:
        names = names_of(nomination.candidates)
        contenders = nominees(nomination, names)
        serving, opponents = incumbents(nomination, table_now, options.against, names)
        if table_now is not None and all(serving[w] == names[nomination.genome_for(w)] for w in serving):
            raise Refusal(f"promotion refused: {' and '.join(names.values())} already serves {operator}.")
        try:
            verification = _verification(nomination.resolved, contenders, opponents, evaluator, say, options.rounds)
            break
        except Refusal as refusal:
            reason = str(refusal).removeprefix("promotion refused: ")
            failed = next((o.name for o in opponents if o.genome.id == refusal.genome), None)
            if table_now is not None and failed is not None:
                # a kernel that is served fails on inputs that its own promotion did not meet: it sets no bar
                say(f"{reason} The library's kernels are compared no more; verifying against the baseline")
                refused[failed] = reason
                table_now = None
                continue
            left = nomination.without(refusal.genome) if refusal.genome is not None else None
            if left is None:
                raise
            refused[names[str(refusal.genome)]] = reason
            say(f"{reason} Its shapes go to the next best; verifying again")
            nomination = left
    entry = (current[2] if current else {"targets": {}})["targets"].get(nomination.resolved.target.name)
    held = entry["kernels"] if entry and table_now is not None else ()
    judgement = judge(nomination, verification, names, serving, held)
    for line in figure_lines(judgement, nomination.resolved.target):
        say(line)
    overruled = judgement.require(options.force_reason)
    promotion = Promotion(
        nomination,
        operator,
        judgement,
        verification.found,
        names,
        options.force_reason if overruled else None,
        overruled,
        refused,
    )
    version = None if options.dry_run else _write(promotion, writer, current, say)
    return PromotionOutcome(operator, version, judgement, promotion)


def figure_lines(judgement: Judgement, target: Target) -> list[str]:
    """The comparison as text: microseconds a call and the gain, per shape and in the geometric mean."""
    where = f"{target.name}, {target.kind.value}"
    lines = [
        f"{shape.figures.workload}: {shape.seconds * 1e6:.2f} us against {shape.incumbent_seconds * 1e6:.2f} us of "
        f"{shape.incumbent}, {shape.gain:.3f} x{' by library ' + shape.genome if shape.kept else ''} ({where})"
        for shape in judgement.shapes
    ]
    low, high = judgement.interval
    interval = "" if low == high else f", {judgement.share} interval {low:.3f} to {high:.3f}"
    lines.append(f"geometric mean: {judgement.gain:.3f} x{interval} ({where})")
    return lines


def record(promotion: Promotion, version: str) -> str | None:
    """Note the promotion in the campaign's journal; why that could not be done, or None."""
    try:
        with Journal(promotion.nomination.folder / JOURNAL, write=True) as journal:
            journal.add_event(
                EVENT,
                operator=promotion.operator,
                version=version,
                candidates=[c.index for c in promotion.nomination.candidates],
                gain=promotion.judgement.gain,
                figures=promotion.judgement.kind.value,
                forced=promotion.forced,
                overruled=promotion.overruled,
            )
    except JournalError as error:
        return str(error)
    return None


def _verification(
    resolved: Resolved,
    contenders: list[Contender],
    opponents: list[Contender],
    make: MakeEvaluator,
    say: Say,
    rounds: int | None,
) -> Verification:
    evaluator = make(resolved)
    try:
        return verify(resolved, contenders, opponents, evaluator, say, rounds)
    finally:
        evaluator.close()


# -- what serves now ---------------------------------------------------------------------------------


def _current(writer: LibraryWriter, operator: str) -> Current | None:
    """The current version with every file it needs, or None. Raises LibraryError for a damaged one."""
    if writer.index(operator)["current"] is None:
        return None
    return writer.version(operator)


def _table(writer: LibraryWriter, operator: str, current: Current | None, target: Target) -> store.Table | None:
    """What the current version offers on a target, perhaps for another device of its kind; None for nothing."""
    version, _, held = current or ("", {}, {"targets": {}})
    name = version_files.entry_name(held["targets"], target)
    place = writer.place(operator) / "versions" / version
    return None if name is None else store.table(operator, name, held, place)


# -- writing -----------------------------------------------------------------------------------------


def _write(promotion: Promotion, writer: LibraryWriter, current: Current | None, say: Say) -> str:
    operator = promotion.operator
    before = None
    if current is not None:
        version, receipt, held = current
        kernels = [k for e in held["targets"].values() for k in e["kernels"].values()]
        files = {n: data for k in kernels for n, data in writer.kernel_files(operator, version, k).items()}
        before = (receipt, held, files)
    files, receipt = version_files.build(promotion, before)
    counted = sanitizer.examine(promotion, files, receipt)
    for tool, count in counted.items():
        say(f"{sanitizer.TOOL} {tool}: {count}")
    if counted:
        receipt["targets"][promotion.nomination.resolved.target.name][sanitizer.TOOL] = counted
    note: dict[str, Any] = {
        "action": "promote",
        "campaign": promotion.nomination.campaign,
        "target": promotion.nomination.resolved.target.name,
        "gain": promotion.judgement.gain,
        "kind": promotion.judgement.kind.value,
        "forced": promotion.forced,
    }
    with writer.writing():
        if writer.index(operator)["current"] != (current[0] if current else None):
            raise Refusal(
                f"promotion refused: {operator} was changed by another promotion meanwhile; run it again to be "
                "compared with what serves now."
            )
        return writer.add(operator, files, receipt, note)
