"""The Python surface: run, resume and read campaigns, and load a promoted library.

``home`` is the folder that ``tilewright --home`` names; None: ``$TILEWRIGHT_HOME``, else ``.tilewright``.
Errors of the user's are ``UserError``, whose text is one sentence.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.captured import Captured

if TYPE_CHECKING:
    import pandas

    from tilewright.evolve.intake.child import Taker
    from tilewright.evolve.intake.winner import Tuned
    from tilewright.evolve.record.journal import Journal
    from tilewright.evolve.report.data import CampaignData

LIBRARY = "tilewright_library"


def run(
    campaign: str | Path | Mapping[str, Any],
    *,
    home: str | Path | None = None,
    **overrides: Any,
) -> RecordedCampaign:
    """Run a campaign to its end: a YAML file, the name of a packaged one, or the content of such a file.

    ``overrides`` are keys of the file, with ``__`` for a dot: ``budget__evaluations=8``. Raises UserError.
    """
    from tilewright.evolve.campaign.config import campaign_file, load_config, overridden, parse_config
    from tilewright.evolve.record.home import home_folder
    from tilewright.evolve.run import run as run_campaign
    from tilewright.evolve.show.display import make_display

    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    if isinstance(campaign, Mapping):
        config = parse_config(overridden(copy.deepcopy(dict(campaign)), changes))
    else:
        config = load_config(campaign_file(str(campaign)), changes)
    folder = home_folder(None if home is None else str(home))
    return open_campaign(run_campaign(config, folder, make_display()).campaign, home=home)


def resume(
    campaign: str | None = None, *, home: str | Path | None = None, address: str | None = None
) -> RecordedCampaign:
    """Go on with a campaign (by id or folder; the newest without one) that was stopped. Raises UserError."""
    from tilewright.evolve.record.home import find_campaign, home_folder
    from tilewright.evolve.run import resume as resume_campaign
    from tilewright.evolve.show.display import make_display

    folder = home_folder(None if home is None else str(home))
    outcome = resume_campaign(find_campaign(folder, campaign), folder, make_display(), address)
    return open_campaign(outcome.campaign, home=home)


def open_campaign(campaign: str | None = None, *, home: str | Path | None = None) -> RecordedCampaign:
    """A recorded campaign (by id or folder; the newest without one), finished or not. Raises UserError."""
    from tilewright.evolve.record.home import find_campaign, home_folder

    folder = find_campaign(home_folder(None if home is None else str(home)), campaign)
    return RecordedCampaign(folder)


@dataclass(frozen=True)
class RecordedCampaign:
    """A campaign's record in ``folder``, read when first asked for; open it again to see what has come since."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def state(self) -> str:
        """``running``, ``interrupted``, ``finished`` …"""
        return self._data.state

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A row for each evaluation, in the order they ended.

        Keys: ``evaluation`` (counted from 1), ``genome``, ``parents``, ``mutation`` (its kind), ``proposer``,
        ``detail``, ``island``, ``generation``, ``verdict``, ``reason``, ``stage``, ``fitness`` and its 95 % interval
        ``fitness_low`` and ``fitness_high`` (None where it did not pass), ``unit``, ``target``, ``kind`` (``measured``
        or ``modelled``), ``seconds`` since the campaign began, ``param.<name>`` of the genome and ``rate.<workload>``
        in ``unit``.
        """
        return [_row(self._data, number) for number in range(len(self._data.points))]

    @property
    def winner(self) -> dict[str, Any] | None:
        """The winner's row with its ``source`` and ``params``; of an unfinished campaign the fittest so far."""
        winner = self._data.winner
        if winner is None:
            return None
        row = next(row for row in self.history if row["genome"] == winner.genome.id)
        return {**row, "source": winner.genome.source, "params": dict(winner.genome.params)}

    def frame(self) -> pandas.DataFrame:
        """The history as a DataFrame. Raises UserError where pandas is not installed (the extra ``pandas``)."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UserError("frame: pandas is not installed; pip install 'tilewright[pandas]'.") from error
        return pandas.DataFrame(self.history)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the campaign's report as one HTML file, beside its journal by default; where it stands."""
        from tilewright.evolve.record.home import REPORT
        from tilewright.evolve.report.html import write_report

        output = self.folder / REPORT if path is None else Path(path)
        with self._journal() as journal:
            write_report(journal, output)
        return output

    @cached_property
    def _data(self) -> CampaignData:
        from tilewright.evolve.report.data import load

        with self._journal() as journal:
            return load(journal)

    def _journal(self) -> Journal:
        from tilewright.evolve.record.home import JOURNAL
        from tilewright.evolve.record.journal import Journal

        return Journal(self.folder / JOURNAL)


@dataclass(frozen=True)
class Budget:
    """Limits of ``tune``; the first one reached ends it."""

    evaluations: int | None = 64
    seconds: float | None = None


def tune(
    function: Callable[..., Any] | str | Captured,
    *,
    reference: Callable[..., Any] | str | None = None,
    calls: Sequence[Any] = (),
    budget: Budget | None = None,
    target: str | None = None,
    out: str | Path | None = None,
    home: str | Path | None = None,
    **overrides: Any,
) -> Tuned:
    """Tune a function that launches a kernel: a callable of the same signature with the winner in it.

    ``function``: a function of a file, ``FILE.py:name``, or what ``capture`` caught. ``reference`` computes the same,
    plainly; without one the function as it stands is what a winner must agree with. ``calls``: tuples of arguments
    (tensors say their shapes), or texts such as ``"f32[4096, 1024], dim=1"``; a dictionary at a tuple's end holds
    keywords. ``out``: the operator's folder; ``overrides`` as of ``run``. Raises UserError.
    """
    from tilewright.evolve.intake import child

    with child.beginning(target) as taker:
        return _tuned(function, reference, calls, budget or Budget(), target, out, home, overrides, taker)


def _tuned(
    function: Callable[..., Any] | str | Captured, reference: Callable[..., Any] | str | None, calls: Sequence[Any],
    budget: Budget, target: str | None, out: str | Path | None, home: str | Path | None,
    overrides: Mapping[str, Any], taker: Taker,
) -> Tuned:  # fmt: skip
    from tilewright.evolve.intake import tune as intake
    from tilewright.evolve.intake import winner
    from tilewright.evolve.record.home import home_folder
    from tilewright.workers.device.warm import started
    from tilewright.workers.intake.judge.self_reference import SELF

    if isinstance(function, Captured):
        captured = function.first()
        calls, function = calls or captured.calls, captured.function
        for note in captured.notes:
            _noted(note)
    original = None if isinstance(function, str) else function
    path, name = intake.parse_place(function) if isinstance(function, str) else winner.place_of(function)
    if name is None:
        raise UserError(f"{function!r} names no function; write FILE.py:function.")
    if not calls:
        raise UserError("tune: calls is empty; give at least one, such as [(x,)].")
    judge = SELF if reference is None else intake.resolve_reference(winner.reference_text(reference))
    texts = tuple(_call_text(c) for c in calls)
    request = intake.Request(path, name, judge, tuple(dict.fromkeys(texts)))
    where = Path(out) if out is not None else Path(f"{request.name}_tuned")
    chosen = intake.target_named(target)
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    changes.update({"budget.evaluations": budget.evaluations, "budget.wall_seconds": budget.seconds})
    intake.config_of(request, chosen, where, changes)
    folder = home_folder(None if home is None else str(home))
    with started(chosen) as device:
        answer = intake.prepare(request, chosen, where, _noted, taker)
        from tilewright.evolve.run import run as run_campaign
        from tilewright.evolve.show.display import make_display

        outcome = run_campaign(
            intake.config_of(request, chosen, where, changes), folder, make_display(), device
        )
    campaign = open_campaign(outcome.campaign, home=home)
    module = intake.export(campaign, request, answer, where)
    orders = answer.get("orders") or [()] * len(answer["operands"])
    operands = [
        (row[0], row[1], len(row[2]), order) for row, order in zip(answer["operands"], orders, strict=True)
    ]
    return winner.Tuned(campaign, original, module, request.name, operands, request.calls)


def _noted(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _call_text(call: Any) -> str:
    from tilewright.workers.intake.calls.call_values import text_of

    return text_of(call)


def capture(module: str | ModuleType) -> Captured:
    """A context that notes real calls of the functions in ``module`` that launch Triton kernels; ``tune`` takes it."""
    return Captured(importlib.import_module(module) if isinstance(module, str) else module)


def load_library(folder: str | Path = "library") -> ModuleType:
    """The promoted library in ``folder``, imported as ``tilewright_library``. Raises UserError."""
    where = Path(folder).resolve()
    if not (where / LIBRARY / "__init__.py").is_file():
        raise UserError(
            f"library: {folder} holds no {LIBRARY}; promote a winner first ('tilewright promote')."
        )
    loaded = sys.modules.get(LIBRARY)
    if loaded is not None and Path(str(loaded.__file__)).parent.parent != where:
        raise UserError(f"library: another one is loaded already, from {loaded.__file__}; use a new process.")
    sys.path.insert(0, str(where))
    try:
        return importlib.import_module(LIBRARY)
    finally:
        sys.path.remove(str(where))


def _row(data: CampaignData, number: int) -> dict[str, Any]:
    point = data.points[number]
    candidate, evaluation = point.candidate, point.evaluation
    low, high = evaluation.interval or (None, None)
    return {
        "evaluation": number + 1,
        "genome": candidate.genome.id,
        "parents": list(candidate.parents),
        "mutation": candidate.mutation.kind.value,
        "proposer": candidate.mutation.proposer,
        "detail": candidate.mutation.detail,
        "island": candidate.island,
        "generation": candidate.generation,
        "verdict": evaluation.verdict.value,
        "reason": evaluation.reason,
        "stage": evaluation.stage.value,
        "fitness": evaluation.fitness,
        "fitness_low": low,
        "fitness_high": high,
        "unit": data.unit,
        "target": data.target,
        "kind": data.kind,
        "seconds": point.elapsed,
        **{f"param.{name}": value for name, value in candidate.genome.params.items()},
        **{f"rate.{figures.workload}": figures.rate for figures in evaluation.workloads},
    }
