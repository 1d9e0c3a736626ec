"""The Python functions: run, resume and read campaigns, tune a function, load a promoted library.

Every function that takes ``home`` uses the folder of ``tilewright --home``: by default ``$TILEWRIGHT_HOME``, or
``.tilewright`` if the variable is not set. Bad input raises ``UserError``, whose text is one sentence that names the
cause and what is allowed. ``docs/api.md`` is made of the docstrings here.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.captured import Captured, KeptCall

if TYPE_CHECKING:
    import pandas

    from tilewright.evolve.campaign.config import CampaignConfig
    from tilewright.evolve.intake.child import Intake
    from tilewright.evolve.intake.tune import Request
    from tilewright.evolve.intake.winner import Tuned
    from tilewright.evolve.program.run import Program
    from tilewright.evolve.record.journal import Journal
    from tilewright.evolve.report.data import CampaignData
    from tilewright.evolve.run import CampaignOutcome
    from tilewright.evolve.show.display import Snapshot

LIBRARY = "tilewright_library"

HEARTBEAT_SECONDS = 10.0
"""Most that passes between two events of a watched campaign."""


def run(
    campaign: str | Path | Mapping[str, Any], *, home: str | Path | None = None, **overrides: Any
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
    from tilewright.evolve.record.home import home_folder
    from tilewright.evolve.run import run as run_campaign
    from tilewright.evolve.show.display import make_display

    config = _config(campaign, overrides)
    folder = home_folder(None if home is None else str(home))
    return open_campaign(run_campaign(config, folder, make_display()).campaign, home=home)


def start(
    campaign: str | Path | Mapping[str, Any], *, home: str | Path | None = None, resume: bool = False, **overrides: Any
) -> RunningCampaign:
    """Start or continue a campaign in a thread of this process and watch it.

    Parameters:
        campaign: as for ``run``; with ``resume`` the id of a stopped campaign.
        home: the folder that keeps campaigns.
        resume: continue it, instead of starting a new one.
        overrides: keys of the file, as for ``run``.

    Returns:
        The running campaign. Iterate over it for its progress; ``result()`` waits for its end; ``stop()`` ends it as
        Ctrl-C does, so that ``resume`` continues it.

    Raises:
        UserError: a key is unknown or its value is not allowed, or the campaign is unknown.

    Example:
        running = tw.start("quickstart", budget__evaluations=8)
        for event in running:
            print(event["evaluations"], event["best"], event["note"])
        campaign = running.result()
    """
    from tilewright.evolve import run as campaigns
    from tilewright.evolve.record.home import find_campaign, home_folder

    folder = home_folder(None if home is None else str(home))
    if not resume:
        return RunningCampaign(partial(campaigns.run, _config(campaign, overrides), folder), home)
    if overrides:
        raise UserError(f"start: a campaign continues with its own keys; leave out {', '.join(overrides)}.")
    return RunningCampaign(partial(campaigns.resume, find_campaign(folder, str(campaign)), folder), home)


def _config(campaign: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]) -> CampaignConfig:
    from tilewright.evolve.campaign.config import campaign_file, load_config, overridden, parse_config

    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    if isinstance(campaign, Mapping):
        return parse_config(overridden(copy.deepcopy(dict(campaign)), changes))
    return load_config(campaign_file(str(campaign)), changes)


class RunningCampaign:
    """A campaign in a thread of this process.

    Iterating yields a dictionary for each change of the progress, at least every ten seconds, until the campaign ends:
    ``evaluations``, ``budget`` (of evaluations, or None), ``seconds``, ``verdicts`` by name, ``best`` (the best rate so
    far, or None), ``unit``, ``target``, ``kind``, ``note`` (the current step) and ``running`` (what each worker does).

    Example:
        for event in tw.start("quickstart"):
            print(event["evaluations"], event["verdicts"])
    """

    def __init__(self, work: Callable[..., CampaignOutcome], home: str | Path | None) -> None:
        self._work, self._home = work, home
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._note = ""
        self._campaign: str | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="campaign")
        self._thread.start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)  # for the next loop

    def __repr__(self) -> str:
        state = "running" if self._thread.is_alive() else "failed" if self._error else "ended"
        return f"<campaign {self._campaign or 'being prepared'}, {state}>"

    def stop(self) -> None:
        """End the campaign soon; ``resume`` continues it."""
        self._stop.set()

    def result(self, timeout: float | None = None) -> RecordedCampaign:
        """Wait for the end.

        Parameters:
            timeout: seconds to wait; None waits until the end.

        Returns:
            The campaign's record.

        Raises:
            UserError: what ``run`` would raise.
            TimeoutError: it still runs.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"campaign {self._campaign or '(being prepared)'} still runs.")
        if self._error is not None:
            raise self._error
        return open_campaign(self._campaign, home=self._home)

    def _run(self) -> None:
        try:
            self._campaign = self._work(_Watcher(self), stop=self._stop).campaign
        except BaseException as error:  # noqa: BLE001 - ``result`` raises it in the caller's thread
            self._error = error
        finally:
            self._events.put(None)


class _Watcher:
    """A display that hands its snapshots to whoever iterates."""

    def __init__(self, running: RunningCampaign) -> None:
        self._running = running
        self._at = 0.0
        self._last: dict[str, Any] = {}

    def start(self, facts: Mapping[str, Any]) -> None:
        self._running._campaign = str(facts["id"])
        self._last = {
            "evaluations": facts.get("evaluations", 0),
            "budget": (facts.get("budget") or {}).get("evaluations"),
            "seconds": 0.0,
            "verdicts": {},
            "best": None,
            "unit": facts.get("unit"),
            "target": facts.get("target"),
            "kind": facts.get("target_kind"),
            "note": "",
            "running": [],
        }

    def update(self, snapshot: Snapshot) -> None:
        self._tell(
            evaluations=snapshot.evaluations,
            budget=snapshot.evaluations_budget,
            seconds=snapshot.elapsed_seconds,
            verdicts=dict(snapshot.verdicts),
            best=snapshot.best.fitness if snapshot.best else None,
            running=list(snapshot.activity),
        )

    def note(self, text: str) -> None:
        self._tell(note=text)

    def stop(self) -> None:
        pass

    def _tell(self, **changes: Any) -> None:
        before, self._last = self._last, {**self._last, **changes}
        same = {"seconds": 0.0, "running": []}
        now = time.monotonic()
        if {**before, **same} != {**self._last, **same} or now - self._at >= HEARTBEAT_SECONDS:
            self._at = now
            self._running._events.put(dict(self._last))


def resume(
    campaign: str | None = None, *, home: str | Path | None = None, address: str | None = None
) -> RecordedCampaign:
    """Continue a campaign that was stopped or killed, as if it had never stopped; one of ``tune`` writes its module.

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
    from tilewright.evolve.intake.tune import export_resumed
    from tilewright.evolve.record.home import find_campaign, home_folder
    from tilewright.evolve.run import resume as resume_campaign
    from tilewright.evolve.show.display import make_display

    folder = home_folder(None if home is None else str(home))
    outcome = resume_campaign(find_campaign(folder, campaign), folder, make_display(), address)
    found = open_campaign(outcome.campaign, home=home)
    export_resumed(found, again=True)
    return found


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
        """``running``, ``interrupted``, ``killed`` or ``finished``."""
        return self._data.short_state

    def __repr__(self) -> str:
        return f"<campaign {self.id}, {self.state}, {self._data.bill.count}>"

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A row for each evaluation, in the order in which the evaluations ended.

        A row has the keys ``evaluation`` (counted from 1), ``candidate`` (its number in report and MLflow, from 0),
        ``genome``, ``parents``, ``mutation``, ``proposer``, ``detail``, ``island``, ``generation``, ``verdict``,
        ``reason``, ``stage``, ``fitness`` with its interval ``fitness_low`` and ``fitness_high`` (None if the candidate
        did not pass, and of an interpreter), ``unit``, ``target``, ``kind`` (``measured``, ``modelled`` or
        ``compiled``), ``seconds`` since the campaign began, ``param.<name>`` and, in ``unit``, ``rate.<workload>``.
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
    overwrite: bool = False,
    home: str | Path | None = None,
    **overrides: Any,
) -> Tuned | TunedFunctions:
    """Tune a function that launches a Triton or Pallas kernel, or every function that was captured.

    Parameters:
        function: a function of a file, the text ``"FILE.py:name"``, or the result of ``capture``, whose functions are
            tuned one after the other, those first that took the most time.
        reference: a function, or its text, that computes the same result plainly. Without a reference, a winner must
            agree with the function itself; a Pallas function needs a reference.
        calls: how the function is called: tuples of arguments, of which tensors give dtype and shape, or texts such as
            ``"f32[4096, 1024], dim=1"``. A dictionary at the end of a tuple holds keyword arguments.
        budget: the limits; 64 evaluations by default.
        target: where candidates run; by default ``tpu7x`` for a file of Pallas, ``cuda`` if there is a GPU, or
            ``interpreter``.
        out: the folder of the operator; by default ``<function>_tuned``, with a number if that is taken.
        overwrite: replace what an earlier call wrote there.
        home: the folder that keeps campaigns.
        overrides: keys of the campaign's file, as for ``run``.

    Returns:
        A callable with the function's signature. It runs the winner for calls of the dtypes, ranks and options that
        were tuned, up to the tuned sizes, and the original function for every other call, also for those that need a
        gradient. Its attributes are
        ``source``, ``params``, ``history``, ``gain``, ``campaign`` and ``report()``. Of the result of ``capture``, a
        mapping from the functions' names to such callables; ``refused`` has the reasons of those that were not tuned.

    Raises:
        UserError: the function cannot be tuned; the sentence names the reason.

    Example:
        best = tw.tune(softmax, reference=torch_softmax, calls=[(x,)], budget=tw.Budget(evaluations=64))
        y = best(x)
    """
    from tilewright.evolve.intake import child
    from tilewright.evolve.intake.child import default_target

    if target is None and not isinstance(function, Captured):
        code = None if isinstance(function, str) else getattr(inspect.unwrap(function), "__code__", None)
        target = default_target(function if isinstance(function, str) else getattr(code, "co_filename", ""))
    options = _Tuning(reference, calls, budget or Budget(), target, out, overwrite, home, overrides)
    if isinstance(function, Captured):
        return options.tune_captured(function)
    with child.started_intake(target) as intake:
        return options.tune_function(function, intake)


class TunedFunctions(Mapping[str, "Tuned"]):
    """The functions of a ``capture`` that were tuned, by name, in the order of the time that they took.

    Parameters:
        tuned: the tuned functions.
        refused: by name, why a function was not tuned.

    Example:
        best = tw.tune(calls)
        print({name: one.gain for name, one in best.items()}, best.refused)
    """

    def __init__(self, tuned: Mapping[str, Tuned], refused: Mapping[str, str]) -> None:
        self._tuned, self.refused = dict(tuned), dict(refused)

    def __getitem__(self, name: str) -> Tuned:
        return self._tuned[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tuned)

    def __len__(self) -> int:
        return len(self._tuned)


@dataclass(frozen=True)
class _Tuning:
    """The options of ``tune``, which has the same names for them."""

    reference: Callable[..., Any] | str | None
    calls: Sequence[Any]
    budget: Budget
    target: str | None
    out: str | Path | None
    overwrite: bool
    home: str | Path | None
    overrides: Mapping[str, Any]

    def tune_captured(self, captured: Captured) -> TunedFunctions:
        """Tune the captured functions one after the other. Raises UserError if none can be tuned."""
        from tilewright.evolve.intake import child
        from tilewright.workers.intake.calls.dimensions import differ_only_in_tensors

        names = {id(found): name for name, found in captured.functions.items()}
        every = captured.sorted()
        if self.reference is not None and len(every) > 1:
            raise UserError(f"tune: one reference is for one function, and {len(every)} were captured; leave it out.")
        tuned: dict[str, Tuned] = {}
        refused: dict[str, str] = {}
        for found in every:
            name = names[id(found)]
            kept = differ_only_in_tensors([call.text for call in found.kept])
            alike = [call for call, known in zip(found.kept, kept, strict=True) if known]
            if len(alike) < len(found.kept):
                found.notes.append(f"{name}: calls with other plain values than the first's go to the original")
            for note in found.notes:
                _print_note(note)
            out = self.out
            if out is not None and len(every) > 1:
                out = Path(out) / name.replace(".", "_")
            with child.started_intake(self.target) as intake:
                try:
                    options = replace(self, calls=self.calls or alike, out=out)
                    tuned[name] = options.tune_function(found.function, intake)
                except UserError as error:
                    if len(every) == 1:
                        raise
                    refused[name] = str(error)
                    _print_note(str(error))
        if not tuned:
            raise UserError(
                f"tune: none of {len(every)} captured functions can be tuned: {next(iter(refused.values()))}"
            )
        return TunedFunctions(tuned, refused)

    def tune_function(self, function: Callable[..., Any] | str, process: Intake) -> Tuned:
        """Tune one function, which ``process`` reads in. Raises UserError."""
        from tilewright.evolve.intake import tune as intake
        from tilewright.evolve.intake import winner
        from tilewright.workers.intake.judge.self_reference import SELF

        path, name = intake.parse_place(function) if isinstance(function, str) else winner.place_of(function)
        if name is None:
            raise UserError(f"{function!r} names no function; write FILE.py:function.")
        if not self.calls:
            raise UserError("tune: calls is empty; give at least one, such as [(x,)].")
        judge = SELF
        if self.reference is not None:
            judge = intake.resolve_reference(winner.reference_text(self.reference))
        with tempfile.TemporaryDirectory(prefix="tilewright-calls-") as kept:
            texts, values = _texts_and_values(self.calls, Path(kept))
            request = intake.Request(path, name, judge, texts, values)
            campaign, module = self._run(request, process)
        return winner.Tuned(campaign, None if isinstance(function, str) else function, module, request.name)

    @property
    def changes(self) -> dict[str, Any]:
        """Keys of the campaign's file with dots; ``overrides`` count more than the budget."""
        limits = {"budget.evaluations": self.budget.evaluations, "budget.wall_seconds": self.budget.seconds}
        return {**limits, **{key.replace("__", "."): value for key, value in self.overrides.items()}}

    def _run(self, request: Request, process: Intake) -> tuple[RecordedCampaign, Path]:
        """Run the campaign of a function that is read in; the campaign, and the file of its winner."""
        from tilewright.evolve.intake import child
        from tilewright.evolve.intake import tune as intake
        from tilewright.evolve.intake.seed_verdict import run_judged
        from tilewright.evolve.record.home import home_folder
        from tilewright.workers.device.warm_device import device_for

        out = None if self.out is None else Path(self.out)
        where = intake.output_folder(request.name, request.name, out, self.overwrite)
        target = intake.target_named(self.target)
        intake.config_of(request, target, where, self.changes)
        folder = home_folder(None if self.home is None else str(self.home))
        with child.started_trial(target) as trial:
            with device_for(target) as device:
                answer = intake.prepare(request, target, where, _print_note, process, self.changes)
                config = intake.config_of(request, target, where, self.changes)
                outcome = run_judged(config, folder, request, answer, target, where, device, _print_note)
            campaign = open_campaign(outcome.campaign, home=self.home)
            return campaign, intake.export(campaign, request, answer, where, target, trial)


def _print_note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _texts_and_values(calls: Sequence[Any], folder: Path) -> tuple[tuple[str, ...], str]:
    """The texts of calls that differ, and the file of their values; empty where all calls are texts."""
    from tilewright.workers.intake.calls.call_values import arguments_of, call_text
    from tilewright.workers.intake.calls.kept_values import FILE, values_of, write

    rows: dict[str, list[Any]] = {}
    for call in calls:
        if isinstance(call, str):
            rows.setdefault(call, [])
        elif isinstance(call, KeptCall):
            rows.setdefault(call.text, call.values)
        else:
            given = arguments_of(call)
            rows.setdefault(call_text(*given), values_of(*given))
    if any(rows.values()):
        write(folder / FILE, list(rows.values()))
    return tuple(rows), str(folder / FILE) if any(rows.values()) else ""


def capture(*modules: str | ModuleType) -> Captured:
    """Record the calls of functions that launch Triton kernels: of modules, and of all that is loaded below them.

    Without a GPU, kernels run in an interpreter while calls are recorded.

    Parameters:
        modules: modules or their names; a package's name stands for its loaded modules.

    Returns:
        A context manager. While it is entered, it records each distinct call with its tensors' values (up to 64 MiB a
        call); ``functions`` maps the names of the functions to their calls. Pass it to ``tune``, which tunes each.

    Raises:
        UserError: no module is named, or one cannot be imported.

    Example:
        with tw.capture("liger_kernel") as calls:
            train_step()
        best = tw.tune(calls)
    """
    found = []
    for module in modules:
        try:
            found.append(importlib.import_module(module) if isinstance(module, str) else module)
        except ImportError as error:
            raise UserError(f"capture: {module} cannot be imported: {error}.") from error
    if not found:
        raise UserError("capture: no module is named; write tw.capture('package').")
    return Captured(found)


def program(
    step: Callable[..., Any] | str, *, setup: str = "", out: str | Path | None = None, home: str | Path | None = None
) -> Program:
    """Find what can be gained in a step of a program, and prove it.

    Parameters:
        step: a function of a file, or the text ``"FILE.py:function"``. It runs in a process of its own.
        setup: the function of the same file whose result the step takes.
        out: the folder for record, report and ``faster.py``; ``<step>_faster`` by default.
        home: the folder that keeps campaigns and the list of programs.

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

    return program_of(step, setup, out, home)


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
        raise UserError(f"library: {folder} contains no {LIBRARY}; promote a winner first with 'tilewright promote'.")
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
        "candidate": candidate.index,
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
