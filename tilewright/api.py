"""The Python functions: run, resume and read campaigns, tune a function, load a promoted library.

Every function that takes ``home`` uses the folder of ``tilewright --home``: by default ``$TILEWRIGHT_HOME``, or
``.tilewright`` if the variable is not set. Bad input raises ``UserError``, whose text is one sentence that names the
cause and what is allowed. ``docs/api.md`` is made of the docstrings here.
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

    from tilewright.evolve.intake.child import Intake
    from tilewright.evolve.intake.winner import Tuned
    from tilewright.evolve.program.run import Program
    from tilewright.evolve.record.journal import Journal
    from tilewright.evolve.report.data import CampaignData

LIBRARY = "tilewright_library"


def run(
    campaign: str | Path | Mapping[str, Any],
    *,
    home: str | Path | None = None,
    **overrides: Any,
) -> RecordedCampaign:
    """Run a campaign to its end.

    Parameters:
        campaign: a YAML file, the name of a packaged campaign, or the content of such a file as a mapping.
        home: the folder that keeps campaigns.
        overrides: keys of the file, with ``__`` for a dot, such as ``budget__evaluations=8``.

    Returns:
        The finished campaign.

    Raises:
        UserError: a key is unknown or its value is not allowed, the target cannot be used here, or a seed fails.

    Example:
        campaign = tw.run("quickstart", budget__evaluations=8)
        print(campaign.winner["params"])
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
    """Continue a campaign that was stopped or killed, as if it had never stopped.

    Parameters:
        campaign: its id or folder; the newest campaign by default.
        home: the folder that keeps campaigns.
        address: the Ray cluster to use, if not the one that the campaign's file names.

    Returns:
        The finished campaign.

    Raises:
        UserError: the campaign is unknown, has finished, or started from other kernels or another time model.

    Example:
        campaign = tw.resume("quickstart-001")
    """
    from tilewright.evolve.record.home import find_campaign, home_folder
    from tilewright.evolve.run import resume as resume_campaign
    from tilewright.evolve.show.display import make_display

    folder = home_folder(None if home is None else str(home))
    outcome = resume_campaign(find_campaign(folder, campaign), folder, make_display(), address)
    return open_campaign(outcome.campaign, home=home)


def open_campaign(campaign: str | None = None, *, home: str | Path | None = None) -> RecordedCampaign:
    """Open a recorded campaign, finished or running, for reading.

    Parameters:
        campaign: its id or folder; the newest campaign by default.
        home: the folder that keeps campaigns.

    Returns:
        The campaign's record.

    Raises:
        UserError: the campaign is unknown.

    Example:
        for row in tw.open_campaign("quickstart-001").history:
            print(row["evaluation"], row["verdict"], row["fitness"])
    """
    from tilewright.evolve.record.home import find_campaign, home_folder

    folder = find_campaign(home_folder(None if home is None else str(home)), campaign)
    return RecordedCampaign(folder)


@dataclass(frozen=True)
class RecordedCampaign:
    """The record of a campaign.

    The journal is read once, when a property is first used. Open the campaign again to see later evaluations.

    Parameters:
        folder: the campaign's folder, which holds ``journal.sqlite``.

    Example:
        campaign = tw.open_campaign()
        print(campaign.id, campaign.state, len(campaign.history))
    """

    folder: Path

    @property
    def id(self) -> str:
        """The campaign's name, such as ``quickstart-001``."""
        return self.folder.name

    @property
    def state(self) -> str:
        """``running``, ``interrupted`` or ``finished``."""
        return self._data.state

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A row for each evaluation, in the order in which the evaluations ended.

        A row has the keys ``evaluation`` (counted from 1), ``genome``, ``parents``, ``mutation``, ``proposer``,
        ``detail``, ``island``, ``generation``, ``verdict``, ``reason``, ``stage``, ``fitness`` with its interval
        ``fitness_low`` and ``fitness_high`` (None if the candidate did not pass), ``unit``, ``target``, ``kind``
        (``measured``, ``modelled`` or ``compiled``), ``seconds`` since the campaign began, ``param.<name>`` for each
        parameter and ``rate.<workload>`` for each shape, in ``unit``.
        """
        return [_row(self._data, number) for number in range(len(self._data.points))]

    @property
    def winner(self) -> dict[str, Any] | None:
        """The winner's row with the added keys ``source`` and ``params``; None if nothing passed.

        In an unfinished campaign this is the fittest candidate so far.
        """
        winner = self._data.winner
        if winner is None:
            return None
        row = next(row for row in self.history if row["genome"] == winner.genome.id)
        return {**row, "source": winner.genome.source, "params": dict(winner.genome.params)}

    def frame(self) -> pandas.DataFrame:
        """The history as a pandas DataFrame.

        Raises:
            UserError: pandas is not installed (install the extra ``pandas``).
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UserError("frame: pandas is not installed; pip install 'tilewright[pandas]'.") from error
        return pandas.DataFrame(self.history)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the campaign's report as one HTML file.

        Parameters:
            path: the file to write; ``report.html`` beside the journal by default.

        Returns:
            The path of the file.
        """
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
    """The limits of ``tune``. The first limit reached ends the campaign.

    Parameters:
        evaluations: candidates to evaluate; None for no limit.
        seconds: wall-clock seconds; None for no limit.

    Example:
        tw.Budget(evaluations=64, seconds=120)
    """

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
    """Tune a function that launches a Triton or Pallas kernel.

    Parameters:
        function: a function of a file, the text ``"FILE.py:name"``, or the result of ``capture``.
        reference: a function, or its text, that computes the same result plainly. Without a reference, a winner must
            agree with the function itself; a Pallas function needs a reference.
        calls: how the function is called: tuples of arguments, of which tensors give dtype and shape, or texts such as
            ``"f32[4096, 1024], dim=1"``. A dictionary at the end of a tuple holds keyword arguments.
        budget: the limits; 64 evaluations by default.
        target: where candidates run; by default ``cuda`` if there is a GPU, otherwise ``interpreter``.
        out: the folder of the operator; ``<function>_tuned`` by default.
        home: the folder that keeps campaigns.
        overrides: keys of the campaign's file, as for ``run``.

    Returns:
        A callable with the function's signature. It runs the winner for calls of the dtypes, ranks and options that
        were tuned, up to the tuned sizes, and the original function for every other call. Its attributes are
        ``source``, ``params``, ``history``, ``gain``, ``campaign`` and ``report()``.

    Raises:
        UserError: the function cannot be tuned; the sentence names the reason.

    Example:
        best = tw.tune(softmax, reference=torch_softmax, calls=[(x,)], budget=tw.Budget(evaluations=64))
        y = best(x)
    """
    from tilewright.evolve.intake import child

    with child.started_intake(target) as intake:
        return _tuned(function, reference, calls, budget or Budget(), target, out, home, overrides, intake)


def _tuned(
    function: Callable[..., Any] | str | Captured, reference: Callable[..., Any] | str | None, calls: Sequence[Any],
    budget: Budget, target: str | None, out: str | Path | None, home: str | Path | None,
    overrides: Mapping[str, Any], process: Intake,
) -> Tuned:  # fmt: skip
    from tilewright.evolve.intake import tune as intake
    from tilewright.evolve.intake import winner
    from tilewright.evolve.record.home import home_folder
    from tilewright.workers.device.warm_device import device_for
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
    with device_for(chosen) as device:
        answer = intake.prepare(request, chosen, where, _noted, process)
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
    """Record the calls of a module's functions that launch Triton kernels.

    Parameters:
        module: the module, or its name.

    Returns:
        A context manager. While it is entered, it records each distinct call; ``functions`` maps the names of the
        functions to their calls. Pass it to ``tune``, which tunes the function that was called in most ways.

    Example:
        with tw.capture("my_kernels") as calls:
            train_step()
        best = tw.tune(calls)
    """
    return Captured(importlib.import_module(module) if isinstance(module, str) else module)


def program(step: Callable[..., Any] | str, *, setup: str = "", out: str | Path | None = None) -> Program:
    """Find what can be gained in a step of a program, and prove it.

    Parameters:
        step: a function of a file, or the text ``"FILE.py:function"``. It runs in a process of its own.
        setup: the function of the same file whose result the step takes.
        out: the folder for record, report and ``faster.py``; ``<step>_faster`` by default.

    Returns:
        The program, with ``record()``, ``ceiling()``, ``tune()`` and ``prove()``.

    Raises:
        UserError: the step is not a function of a file.

    Example:
        program = tw.program("train.py:step", setup="setup")
        print(program.ceiling().sources)
        program.prove()
    """
    from tilewright.evolve.program.run import program as program_of

    return program_of(step, setup, out)


def load_library(folder: str | Path = "library") -> ModuleType:
    """Import a promoted library from a folder that is not on Python's path.

    Parameters:
        folder: the folder that holds the package ``tilewright_library``.

    Returns:
        The package as a module.

    Raises:
        UserError: the folder holds no library, or another library is loaded already.

    Example:
        library = tw.load_library("library")
        c = library.load("gemm_fp8_blockwise/gemm_nt")(a_q, a_s, b_q, b_s)
    """
    where = Path(folder).resolve()
    if not (where / LIBRARY / "__init__.py").is_file():
        raise UserError(
            f"library: {folder} contains no {LIBRARY}; promote a winner first with 'tilewright promote'."
        )
    loaded = sys.modules.get(LIBRARY)
    if loaded is not None and Path(str(loaded.__file__)).parent.parent != where:
        raise UserError(f"library: another library is loaded from {loaded.__file__}; use a new process.")
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
