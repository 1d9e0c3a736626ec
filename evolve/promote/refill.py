"""A recheck of a whole library: each operator verified, written, and refilled by a short campaign where it lost.

The campaign runs on the suites whose shapes are slower than promised, or lost their kernel, and its winner goes through
the same judgement as any promotion: it must beat what the recheck left, shape by shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.promote import recheck_files
from tilewright.evolve.promote.command import MakeEvaluator, Options, PromotionOutcome, promote
from tilewright.evolve.promote.library_commands import Finding
from tilewright.evolve.promote.library_writer import LibraryError, LibraryWriter
from tilewright.evolve.promote.recheck import Found, Say, recheck_operator
from tilewright.evolve.promote.verify import Refusal

RunCampaign = Callable[[dict[str, Any]], Path]
"""Runs the campaign of this configuration to its end; its folder. Raises UserError."""

EVALUATIONS = 64
"""Of a campaign that refills a table, unless told otherwise."""


@dataclass(frozen=True)
class Means:
    """What a recheck works with. ``evaluations``: of a campaign that refills a table, 0 for none."""

    make: MakeEvaluator
    run_campaign: RunCampaign
    say: Say
    evaluations: int = EVALUATIONS
    seed: int = 0


def recheck_library(
    writer: LibraryWriter, operator: str | None, target: str, means: Means
) -> Iterator[Finding]:
    """Findings on every operator that serves ``target``, the library changed as they say. Raises UserError."""
    names = [operator] if operator is not None else writer.operators()
    if not names:
        raise LibraryError(f"--library: nothing is promoted in {writer.root}.")
    any_there = False
    for name in names:
        if operator is None and writer.index(name)["current"] is None:
            continue
        found = recheck_operator(writer, name, target, means.make, means.say)
        if found is None:
            if operator is not None:
                raise UserError(f"--target: {name} is not promoted for {target}.")
            continue
        any_there = True
        yield from _write_findings(writer, found, means)
    if not any_there:
        raise UserError(f"--target: nothing in {writer.root} is promoted for {target}.")


def _write_findings(writer: LibraryWriter, found: Found, means: Means) -> Iterator[Finding]:
    version = recheck_files.write(writer, found)
    filled: set[str] = set()
    refills = []
    for suite in found.suites if means.evaluations else ():
        sentence, outcome = _refill(writer, found, suite, means)
        refills.append(Finding(True, sentence))
        filled |= {s.figures.workload for s in outcome.judgement.shapes} if outcome else set()
    yield from findings(found, version, filled)
    yield from refills


def findings(found: Found, version: str | None, filled: Collection[str] = ()) -> Iterator[Finding]:
    """What a recheck found, a sentence each; not good is only what no kernel serves any more.

    ``filled``: ids of workloads that a campaign has found kernels for since.
    """
    where = f"{found.entry_name}, {found.kind}"
    operator = found.operator
    for genome, reason in found.failed.items():
        shapes = [s.region.workload for s in found.replaced if s.region.genome == genome]
        lost = [r.workload for r in found.dropped if r.genome == genome and r.workload not in filled]
        yield Finding(
            not lost,
            f"{operator}: kernel {genome} is no longer served: {reason}"
            + (f"; an earlier kernel serves {', '.join(shapes)} again" if shapes else "")
            + (f"; no kernel serves {', '.join(lost)}" if lost else "")
            + ".",
        )
    for region in found.dropped:
        if region.genome not in found.failed:
            yield Finding(
                True,
                f"{operator}: {region.workload} is in no suite any more, so that nothing can verify it: it is no entry "
                "now, and is served as any other shape between entries.",
            )
    for served in found.slower:
        assert served.change is not None and served.region.promised is not None
        promised = served.region.promised["seconds"]
        yield Finding(
            True,
            f"{operator}: {served.region.workload} takes {served.figures.seconds * 1e6:.2f} us here, "
            f"{100 * served.change:.1f} % more than the {promised * 1e6:.2f} us of its receipt ({where}).",
        )
    yield Finding(True, f"{operator}: {_summary(found, version)} ({where}).")


def _summary(found: Found, version: str | None) -> str:
    if version is None:
        return "no kernel passes; the reference answers"
    said = f"{len(found.served)} shapes of {len(found.verified)} kernels verified and timed on {found.where}"
    changes = [s.change for s in found.served if s.change is not None]
    if changes:
        mean = 100 * (math.exp(sum(math.log1p(c) for c in changes) / len(changes)) - 1)
        most = 100 * max(changes)
        said += f", {mean:+.1f} % against their receipts in the geometric mean, {most:+.1f} % at most"
    untold = len(found.served) - len(changes) - len(found.replaced)
    if untold > 0:
        said += f", {untold} without a figure to compare with"
    return f"{said}; version {version}"


def _refill(
    writer: LibraryWriter, found: Found, suite: str, means: Means
) -> tuple[str, PromotionOutcome | None]:
    """A campaign on one suite and the promotion of what it found: what came of it, in a sentence."""
    recipe = found.operator.rpartition("/")[2]
    config = {
        "name": f"recheck-{recipe}".lower()[:64],
        "operator": found.campaign_operator,
        "target": found.target.name,
        "suite": suite,
        "seed": means.seed,
        "budget": {"evaluations": means.evaluations},
    }
    means.say(f"{found.operator}: a campaign of {means.evaluations} evaluations refills suite {suite}")
    folder = means.run_campaign(config)
    try:
        outcome = promote(folder, writer, Options(name=found.operator), means.say, means.make)
    except Refusal as error:
        reason = str(error).removeprefix("promotion refused: ").rstrip(".")
        return f"{found.operator}: {folder.name} found nothing better for suite {suite}: {reason}.", None
    return would_have_lost(found, folder.name, outcome), outcome


def would_have_lost(found: Found, campaign: str, outcome: PromotionOutcome) -> str:
    """What the table would have lost, left as it was."""
    judgement = outcome.judgement
    worst = max(judgement.shapes, key=lambda shape: shape.gain)
    return (
        f"{found.operator}: {campaign} refilled the table (version {outcome.version}); as it was, it would have lost "
        f"{100 * (1 - 1 / judgement.gain):.1f} % in the geometric mean of {len(judgement.shapes)} shapes, "
        f"{100 * (1 - 1 / worst.gain):.1f} % at most, on {worst.figures.workload} "
        f"({found.entry_name}, {judgement.kind.value})."
    )
