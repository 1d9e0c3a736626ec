"""A table of the best block sizes by shape: a campaign for each call of a function that was read in once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign.loop import StopReason
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.folder import CALLS
from tilewright.evolve.record.home import JOURNAL, find_campaign
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.evolve.run import CampaignOutcome, SeedFailed
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.targets import Target
from tilewright.workers.intake.calls.sizes import label_of

FIGURES = ("us", "low_us", "high_us", "gain", "target", "campaign")
"""What a row may say beside sizes and parameters: modelled time and its interval, time of the default over it."""


def require_table(path: Path, target: Target, overwrite: bool) -> None:
    """Raises UserError where this target has no table, or a file is there that may not be replaced."""
    if target.kind is not FigureKind.MODELLED:
        raise UserError(
            f"--table: {target.name} is not modelled (allowed: tpu7x, v6e, v5e); on a measured target a campaign over "
            "several shapes ends with dispatch.json."
        )
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"--table: {path} exists; name another file, or add --overwrite.")


def row_format(text: str | None, answer: Mapping[str, Any]) -> tuple[str, str]:
    """The table's first line and the format of its rows: comma-separated, or the user's ``text``. Raises UserError."""
    names = [*answer["dims"][0], *answer["space"], *FIGURES]
    if text is None:
        return ",".join(names) + "\n", ",".join(f"{{{name}}}" for name in names)
    try:
        text.format(**dict.fromkeys(names, 1))
    except KeyError as error:
        raise UserError(f"--row: {{{error.args[0]}}} is unknown (allowed: {', '.join(names)}).") from error
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise UserError(
            f"--row: {text!r} cannot be filled in: {error} (write {{{{ for a brace, and one of {', '.join(names)})."
        ) from error
    return "", text


def tune_shapes(
    path: Path, row: tuple[str, str], answer: Mapping[str, Any], home: Path,
    run: Callable[[str], CampaignOutcome], say: Callable[[str], None],
) -> StopReason | None:  # fmt: skip
    """A campaign for each shape, and its row in the file at ``path`` as soon as it ends. ``run``: on the suite of that
    name. Why not all shapes have a row; None where they do. Raises UserError where the file cannot be written."""
    text, form = row
    lost = None
    for dims in answer["dims"]:
        shape = label_of(dims)
        try:
            outcome = run(shape if len(answer["dims"]) > 1 else CALLS)
        except SeedFailed as error:
            say(f"{shape}: no row: {error}")
            lost = StopReason.SEED_FAILED
            continue
        if outcome.winner is None:
            return outcome.reason
        with Journal(find_campaign(home, outcome.campaign) / JOURNAL) as journal:
            data = load(journal)
        start = next(point.candidate.genome.id for point in data.points if point.candidate.index == 0)
        seed, best = (data.evaluations[genome].workloads[0] for genome in (start, outcome.winner))
        times = zip(("us", "low_us", "high_us"), (best.seconds, *best.seconds_interval), strict=True)
        figures = {
            **{name: f"{1e6 * seconds:.2f}" for name, seconds in times},
            "gain": f"{seed.seconds / best.seconds:.3f}", "target": data.target, "campaign": outcome.campaign,
        }  # fmt: skip
        line = form.format(**dims, **data.candidates[outcome.winner].genome.params, **figures)
        text += f"{line}\n"
        say(line)
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            raise UserError(f"--table: cannot write {path}: {error.strerror}.") from error
    return lost
