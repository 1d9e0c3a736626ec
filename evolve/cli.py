"""The ``tilewright`` command. Imports stay inside the commands, so that help and status start at once."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.cli import add_commands as add_intake_commands
from tilewright.evolve.program.cli import add_command as add_program_command
from tilewright.evolve.promote.cli import add_commands
from tilewright.evolve.record.home import JOURNAL, REPORT, bytes_of, campaigns, discard, find_campaign, home_folder
from tilewright.evolve.report.text import bytes_text, printable, shorten

if TYPE_CHECKING:
    from tilewright.evolve.run import CampaignOutcome

INTERRUPTED = 130
"""Exit code of a command that the user interrupted: 128 + SIGINT."""

AT_WORK = ("in the background", "operator's dry run")  # threads that end with the process

EXAMPLES = {
    "run": "run quickstart --evaluations 8 --set search.lag=8",
    "resume": "resume quickstart-001",
    "status": "status quickstart-001",
    "rm": "rm quickstart-001",
    "du": "du",
    "watch": "watch quickstart-001",
    "report": "report quickstart-001",
    "doctor": "doctor --target h200",
    "ui": "ui --port 5001",
    "promote": "promote quickstart-001 --library library",
    "library": "library list --library library",
    "tune": 'tune kernels.py:softmax --reference torch.softmax --args "f32[4096, 1024], dim=1"',
    "check": "check kernels.py",
    "program": "program train.py:step --setup setup",
}
"""What ``--help`` of each command shows."""

_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.EROFS)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""Errors that the user can mend, of writing anywhere and of a file that has a name."""

Run = Callable[[argparse.Namespace], int]
"""Runs a command; returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 for success, 2 for bad input, 130 when interrupted."""
    interrupted: list[int] = []
    try:
        arguments = _parser().parse_args(argv)
        with _recorded_signals(interrupted):
            return arguments.run(arguments)
    except UserError as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        return _print_stopped()
    except BrokenPipeError:  # a reader such as head closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (_NO_PLACE if error.filename is None else _NO_PLACE + _FORBIDDEN):
            raise
        # What was not written must not be tried again at the end.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        place = shorten(str(error.filename or "standard output"), 200)
        return _print_error(f"cannot write or open {place}: {error.strerror}.")
    except Exception:
        if interrupted:  # a library interrupted during its import raises something else
            return _print_stopped()
        raise


def _print_error(text: str) -> int:
    """What a user can act on, without a terminal's control sequences; a refusal of ``tune`` has several lines."""
    for line in f"tilewright: {text}".split("\n"):
        print(printable(line), file=sys.stderr)  # noqa: T201
    return 2


def command() -> NoReturn:
    """The console script: ``main`` in a process of its own. An interrupted process ends at once, with its children.

    So does one with a thread at work, perhaps in torch: where the interpreter ends under it, C++ aborts. ``os._exit``
    skips Ray's clean-up at exit, which takes seconds: the pool has ended its own.
    """
    # this process asks JAX for references alone; libtpu, which would answer signals itself, is for its children
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            stream.reconfigure(errors="replace")  # an encoding may lack a sign such as ×
    code = main()
    if code == INTERRUPTED or any(thread.name in AT_WORK for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _print_stopped() -> int:
    print("tilewright: stopped", file=sys.stderr)  # noqa: T201
    return INTERRUPTED


@contextlib.contextmanager
def _recorded_signals(interrupted: list[int]) -> Iterator[None]:
    """Append each SIGINT or SIGTERM to the list and raise KeyboardInterrupt. Only the main thread handles signals."""

    def note(number: int, frame: object) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, note) for number in heard if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="tilewright",
        description="Evolve GPU and TPU kernels: every candidate passes correctness gates before it is timed, every "
        "evaluation is recorded, and a stopped campaign resumes.",
        epilog="example: tilewright run quickstart",
    )
    home = "folder of the campaigns (default: $TILEWRIGHT_HOME, else ./.tilewright)"
    parser.add_argument("--home", help=home)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and commit, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Run, sentence: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=sentence)
        command.set_defaults(run=run)
        return command

    run = add("run", _run, "start a campaign from a YAML file or by the name of a packaged one")
    run.add_argument("campaign", help="a YAML file, or the name of a packaged campaign such as quickstart")
    run.add_argument("--address", help="Ray cluster to run on instead of this machine, for example auto")
    run.add_argument("--target", help="target to use instead of the one in the file")
    run.add_argument("--seed", type=int, help="seed of every random choice")
    run.add_argument("--evaluations", type=int, help="budget of evaluations")
    run.add_argument("--llm-model", help="language model that proposes candidates beside the other proposers")
    run.add_argument("--llm-base-url", help="the model's OpenAI-compatible endpoint; its key: from the environment")
    run.add_argument(
        "--llm-replay",
        metavar="CAMPAIGN",
        help="recorded campaign (id, or path of its journal) that answers instead of an endpoint",
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the file, for example search.lag=8; repeat for further keys",
    )
    resume = add("resume", _resume, "resume a campaign that was stopped or killed")
    resume.add_argument("--address", help="Ray cluster to run on instead of this machine")
    status = add("status", _status, "list all campaigns, or show the state of one")
    watch = add("watch", _watch, "follow a campaign that runs in another process")
    remove = add("rm", _remove, "delete a campaign: journal, report and logs")
    remove.add_argument("campaigns", nargs="+", metavar="CAMPAIGN", help="id or folder of the campaign")
    remove.add_argument("--mlflow", action="store_true", help="delete its runs and files in MLflow, too")
    add("du", _sizes, "list the disk space that campaigns and MLflow take")
    for command in (run, resume, status):
        command.add_argument("--verbose", action="store_true", help="show the whole bill")
    report = add("report", _report, "write the report of a campaign as one HTML file")
    report.add_argument("--output", type=Path, help="file to write (default: beside the journal)")
    doctor = add("doctor", _doctor, "check which targets this machine can use, and what the others lack")
    doctor.add_argument("--target", help="check only this target; exit with 2 if it cannot be used")
    ui = add("ui", _ui, "serve the MLflow UI on the campaigns")
    ui.add_argument("--port", type=int, default=5000, help="first port to try (default: 5000)")
    ui.add_argument("--host", default="127.0.0.1", help="address to serve on (default: 127.0.0.1)")
    for command, default in (
        (resume, "the newest"),
        (status, "one line for each campaign"),
        (watch, "the newest"),
        (report, "the newest"),
        (ui, "the link opens the newest"),
    ):
        command.add_argument("campaign", nargs="?", help=f"id or folder of the campaign (default: {default})")
    add_commands(commands)
    add_intake_commands(commands, _tell)
    add_program_command(commands)
    for listed in commands._choices_actions:
        commands.choices[listed.dest].description = f"{str(listed.help)[0].upper()}{str(listed.help)[1:]}."
    for name, command in commands.choices.items():
        command.epilog = f"example: tilewright {EXAMPLES[name]}"
        # --home may also follow the command
        command.add_argument("--home", default=argparse.SUPPRESS, help=home)
    return parser


class _Parser(argparse.ArgumentParser):
    """One whose errors are one sentence, without control sequences of what the user typed or pasted."""

    def error(self, message: str) -> NoReturn:
        choice = re.match(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)$", message)
        if choice is not None:
            place, typed, known = choice[1], choice[2], choice[3].replace("'", "")
            close = difflib.get_close_matches(typed, known.split(", "), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            message = f"{place}: {typed!r} is unknown{hint} (allowed: {known})"
        raise UserError(f"{message}; see '{self.prog} --help'.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but what is left over is an error of the command that did not take it."""
        parsed, left = self.parse_known_args(args, namespace)
        if not left:
            return parsed
        choices = next(action.choices for action in self._actions if action.dest == "command")
        command = dict(choices or {})[parsed.command]
        close = difflib.get_close_matches(left[0], list(command._option_string_actions), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        command.error(f"unrecognized arguments: {' '.join(left)}{hint}")


class _Version(argparse.Action):
    """Prints the version; git is asked for the commit only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tilewright.evolve.record.system import commit, version

        known = commit()
        _say(f"tilewright {version()}" + (f" ({known})" if known != "unknown" else ""))
        parser.exit()


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    from tilewright.evolve.campaign.config import read_yaml

    overrides: dict[str, Any] = {}
    for item in arguments.set:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise UserError(f"--set: {item!r} must be KEY=VALUE.")
        overrides[key] = read_yaml(text, f"--set {key}: {text!r}")
    recording = arguments.llm_replay  # the path of a journal is made absolute, for a resume from any folder
    for key, value in (
        ("target", arguments.target),
        ("seed", arguments.seed),
        ("budget.evaluations", arguments.evaluations),
        ("workers.address", arguments.address),
        ("llm.model", arguments.llm_model),
        ("llm.base_url", arguments.llm_base_url),
        ("llm.replay", recording if not Path(recording or ".").is_file() else str(Path(recording).resolve())),
    ):
        if value is not None:
            overrides[key] = value
    return overrides


def _run(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.campaign.config import campaign_file, load_config
    from tilewright.evolve.campaign.targets import starting_device

    config = load_config(campaign_file(arguments.campaign), _overrides(arguments))
    with starting_device(config) as device:  # it starts while the rest is imported
        from tilewright.evolve.run import run
        from tilewright.evolve.show.display import make_display

        outcome = run(config, home_folder(arguments.home), make_display(), device)
    return _tell(outcome, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.run import resume
    from tilewright.evolve.show.display import make_display

    home = home_folder(arguments.home)
    folder = find_campaign(home, arguments.campaign)
    if _tell_module(folder, again=False):  # it ended before it wrote the module
        return 0
    outcome = resume(folder, home, make_display(), arguments.address)
    code = _tell(outcome, arguments)
    if code == 0:
        _tell_module(folder, again=True)
    return code


def _tell_module(folder: Path, *, again: bool) -> bool:
    """Write and name the module of a finished campaign of ``tune``, where it is not there, or ``again``."""
    import tilewright
    from tilewright.evolve.intake.cli import tell_module
    from tilewright.evolve.intake.tune import export_resumed

    found = export_resumed(tilewright.open_campaign(str(folder)), again=again)
    if found is not None:
        tell_module(*found)
    return found is not None


def _tell(outcome: CampaignOutcome, arguments: argparse.Namespace) -> int:
    from tilewright.evolve.campaign.loop import StopReason
    from tilewright.evolve.mlflow_mirror.ui import closing_link
    from tilewright.evolve.show.summary import closing_lines

    home = home_folder(arguments.home)
    if outcome.reason is StopReason.INTERRUPTED:
        _say(f"stopped; resume with: tilewright resume {outcome.campaign}")
        return INTERRUPTED
    folder = find_campaign(home, outcome.campaign)
    _say(*closing_lines(folder / JOURNAL, getattr(arguments, "verbose", False)))
    if not outcome.mirrored:
        _say("MLflow has not caught up yet; 'tilewright ui' brings it up to date, and no result is lost")
    _say(f"report: {folder / REPORT}")
    if (link := closing_link(folder, home)) is not None:
        _say(link)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.errors import JournalError
    from tilewright.evolve.mlflow_mirror.process import correct_ended
    from tilewright.evolve.program.folder import program_lines
    from tilewright.evolve.show.summary import campaign_line, status_lines

    home = home_folder(arguments.home)
    correct_ended(home)
    if arguments.campaign is None:
        known, programs = campaigns(home), list(program_lines(home))
        for line in programs:
            _say(line)
        if not (known or programs):
            _say(f"no campaigns in {home}; start one with: tilewright run quickstart")
        damaged = 0
        for folder in known:
            try:
                _say(campaign_line(folder / JOURNAL))
            except JournalError as error:
                damaged += 1
                _say(f"{folder.name}  cannot be read: {error}")
        return 2 if damaged else 0
    _say(*status_lines(find_campaign(home, arguments.campaign) / JOURNAL, arguments.verbose))
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.record.journal import is_running

    home = home_folder(arguments.home)
    folders = list(dict.fromkeys(find_campaign(home, name) for name in arguments.campaigns))
    for folder in folders:
        if is_running(folder / JOURNAL):
            raise UserError(f"campaign {folder.name} is running; stop it first.")
    for folder in folders:
        if arguments.mlflow:
            from tilewright.evolve.mlflow_mirror.ui import delete_runs

            _say(f"asking MLflow for the runs of {folder.name}")
            _say(delete_runs(folder, home))
        size = bytes_text(bytes_of(folder))
        discard(folder)
        if folder.exists():
            raise UserError(f"campaign {folder.name}: {folder} cannot be deleted; delete it by hand.")
        _say(f"deleted {folder.name} ({size})")
    if not arguments.mlflow:
        _say("MLflow keeps its own copy (rm --mlflow had deleted that): delete its runs in 'tilewright ui'")
    return 0


def _sizes(arguments: argparse.Namespace) -> int:
    home = home_folder(arguments.home)
    for folder in campaigns(home):
        _say(f"{bytes_text(bytes_of(folder)):>10}  {folder.name}")
    kept = [home / "mlflow.db", *(home / "mlartifacts").rglob("*")]
    size = sum(path.lstat().st_size for path in kept if path.is_file())
    _say(f"{bytes_text(size):>10}  MLflow of all campaigns (an empty database takes 1 MiB)")
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.show.display import make_display
    from tilewright.evolve.show.summary import closing_lines
    from tilewright.evolve.show.watch import watch

    folder = find_campaign(home_folder(arguments.home), arguments.campaign)
    ended = watch(folder, make_display())
    if ended == "finished":
        _say(*closing_lines(folder / JOURNAL))
    elif ended is not None:
        _say(f"{'killed' if ended == 'killed' else 'stopped'}; resume with: tilewright resume {folder.name}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.mlflow_mirror.process import correct_ended
    from tilewright.evolve.record.journal import Journal
    from tilewright.evolve.report.html import write_report
    from tilewright.evolve.report.lineage import PAGE

    home = home_folder(arguments.home)
    folder = find_campaign(home, arguments.campaign)
    correct_ended(home)
    output = arguments.output or folder / REPORT
    try:
        with Journal(folder / JOURNAL) as journal:
            write_report(journal, output)
    except OSError as error:
        raise UserError(f"--output: cannot write {output}: {error.strerror}.") from error
    _say(f"report: {output}", f"lineage: {output.with_name(f'{output.stem}-{PAGE}')}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.doctor import examine, examine_target

    target, healthy = arguments.target, True
    usable: list[str] = []
    if target is None:
        _say("ok: works; –: not here, only what it names needs it; no: not here, every campaign needs it")
    for finding in examine(home_folder(arguments.home)) if target is None else [examine_target(target)]:
        healthy = healthy and (finding.good or not finding.needed)
        if finding.good and finding.part.startswith("target "):
            usable.append(finding.part.removeprefix("target "))
        mark = "ok  " if finding.good else "no  " if finding.needed else "–   "
        _say(f"{mark} {finding.part}: {finding.sentence}")
    if target is None:
        _say(f"targets that work here: {', '.join(usable) or 'none yet; install an extra'}")
    return 0 if healthy and (target is not None or usable) else 2


def _ui(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.mlflow_mirror.ui import serve_ui

    home = home_folder(arguments.home)
    campaign = find_campaign(home, arguments.campaign) if arguments.campaign is not None else None
    return serve_ui(home, _say, arguments.host, arguments.port, campaign=campaign)


def _say(*lines: str) -> None:
    for line in lines:
        print(printable(line), flush=True)  # noqa: T201
