"""A table of the best block sizes by shape: a campaign for each call of a function that was read in once."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign.loop import StopReason
from tilewright.evolve.errors import SeedFailed, UserError
from tilewright.evolve.intake.folder import CALLS, put
from tilewright.evolve.record.home import JOURNAL, find_campaign
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.evolve.run import CampaignOutcome
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.targets import Target
from tilewright.workers.intake.calls.sizes import label_of

FIGURES = {"us": 1.0, "low_us": 1.0, "high_us": 1.0, "gain": 1.0, "target": "", "campaign": ""}
"""Parts of a row beside sizes and parameters, by example: modelled time, its interval, the default's time over it."""


def require_table(path: Path, target: Target, overwrite: bool) -> None:
    """Raises UserError where this target has no table, or a file is there that may not be replaced."""
    if target.kind is not FigureKind.MODELLED:
        raise UserError(f"--table: {target.name} is not modelled; use tpu7x, v6e or v5e.")
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"--table: {path} exists; name another file, or add --overwrite.")


def row_format(text: str | None, answer: Mapping[str, Any]) -> tuple[str, str]:
    """The table's first line and the format of its rows: comma-separated, or the user's ``text``. Raises UserError."""
    values = {**answer["dims"][0], **_fixed_numbers(answer), **answer["defaults"], **FIGURES}
    names = ", ".join(values)
    if text is None:
        fields = (f"{{{name}:.2f}}" if isinstance(v, float) else f"{{{name}}}" for name, v in values.items())
        return names.replace(" ", "") + "\n", ",".join(fields)
    try:
        text.format(**values)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        why = "an unknown name" if isinstance(error, KeyError) else error
        raise UserError(f"--row: {text!r} has {why} (allowed: {names}; {{{{ for a brace).") from error
    return "", text


def _fixed_numbers(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of the call that no checked shape lets vary: a row may name them."""
    return {row["name"]: row["value"] for row in answer["fixed"]}


def tune_shapes(
    path: Path,
    row: tuple[str, str],
    answer: Mapping[str, Any],
    home: Path,
    run: Callable[[str], CampaignOutcome],
    say: Callable[[str], None],
) -> StopReason | None:
    """A campaign for each shape, and its row in the file at ``path`` as soon as it ends. ``run``: on the suite of that
    name. Why not all shapes have a row; None where they do. Raises UserError where the file cannot be written."""
    (text, form), lost = row, None
    for dims in answer["dims"]:
        try:
            outcome = run(label_of(dims) if len(answer["dims"]) > 1 else CALLS)
        except SeedFailed as error:
            say(f"{label_of(dims)}: no row: {error}")
            lost = StopReason.SEED_FAILED
            continue
        if outcome.winner is None:
            return outcome.reason
        with Journal(find_campaign(home, outcome.campaign) / JOURNAL) as journal:
            data = load(journal)
        start = min(data.points, key=lambda point: point.candidate.index).candidate.genome.id
        seed, best = (data.evaluations[genome].workloads[0] for genome in (start, outcome.winner))
        times = (round(1e6 * seconds, 2) for seconds in (best.seconds, *best.seconds_interval))
        gain = round(seed.seconds / best.seconds, 3)
        figures = dict(zip(FIGURES, (*times, gain, data.target, outcome.campaign), strict=True))
        params = data.candidates[outcome.winner].genome.params
        line = form.format(**{**dims, **_fixed_numbers(answer), **params, **figures})
        text += f"{line}\n"
        say(line)
        try:
            put(path, text)
        except OSError as error:
            raise UserError(f"--table: cannot write {path}: {error.strerror}.") from error
    return lost
