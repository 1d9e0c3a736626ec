"""The ``tilewright`` command. Imports stay inside the commands so that help and status start at once."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tilewright.evolve.errors import UserError
from tilewright.evolve.export.command import add_command as add_export_command
from tilewright.evolve.intake.cli import add_commands as add_intake_commands
from tilewright.evolve.promote.cli import add_commands
from tilewright.evolve.record.home import JOURNAL, REPORT, campaigns, find_campaign, home_folder

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    interrupted: list[int] = []
    try:
        with _noted(interrupted):
            return arguments.run(arguments)
    except UserError as error:
        print(f"tilewright: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:  # a reader such as head has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        if interrupted:  # a library that is interrupted while it is imported says something else
            return _stopped()
        raise


def command() -> NoReturn:
    """``main`` for a process that has nothing else to do; an interrupted one ends at once, and what it started with it.

    Ray's clean-up at exit would take seconds: its processes die with this one, and their files are removed by another.
    """
    code = main()
    if code == INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _stopped() -> int:
    print("tilewright: stopped", file=sys.stderr)  # noqa: T201
    return INTERRUPTED


@contextlib.contextmanager
def _noted(interrupted: list[int]) -> Iterator[None]:
    """Note an interrupt, which raises KeyboardInterrupt as ever. Only the main thread may."""

    def note(number: int, frame: object) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilewright", description="Evolves GPU and TPU kernels: correctness-gated, recorded, resumable."
    )
    parser.add_argument(
        "--home", help="where campaigns are kept (default: $TILEWRIGHT_HOME or ./.tilewright)"
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print tilewright's version and commit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="start a campaign from a YAML file or a packaged name")
    run.add_argument("campaign", help="a YAML file, or the name of a packaged campaign such as quickstart")
    run.add_argument("--address", help="Ray cluster to use instead of this machine, for example auto")
    run.add_argument("--target", help="target to use instead of the file's")
    run.add_argument("--seed", type=int, help="seed of every random choice")
    run.add_argument("--evaluations", type=int, help="budget of evaluations")
    run.add_argument("--llm-model", help="let this language model propose as well")
    run.add_argument(
        "--llm-base-url", help="its OpenAI-compatible endpoint; the key comes from the environment"
    )
    run.add_argument(
        "--llm-replay",
        metavar="CAMPAIGN",
        help="answer from a recorded campaign (its id or its journal), without an endpoint",
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the file, for example search.lag=8",
    )
    run.set_defaults(run=_run)

    resume = commands.add_parser("resume", help="go on with a campaign that was stopped or killed")
    resume.add_argument("campaign", nargs="?", help="its id or folder (default: the newest)")
    resume.add_argument("--address", help="Ray cluster to use instead of this machine")
    resume.set_defaults(run=_resume)

    status = commands.add_parser("status", help="what campaigns there are, or how one stands")
    status.add_argument("campaign", nargs="?", help="its id or folder (default: one line for each)")
    status.set_defaults(run=_status)

    watch = commands.add_parser("watch", help="look on while a campaign runs elsewhere")
    watch.add_argument("campaign", nargs="?", help="its id or folder (default: the newest)")
    watch.set_defaults(run=_watch)

    report = commands.add_parser("report", help="write a campaign's report as one HTML file")
    report.add_argument("campaign", nargs="?", help="its id or folder (default: the newest)")
    report.add_argument(
        "--against", metavar="CAMPAIGN", help="compare it with this campaign instead (id or folder)"
    )
    report.add_argument("--output", type=Path, help="file to write (default: beside the journal)")
    report.set_defaults(run=_report)

    doctor = commands.add_parser("doctor", help="check what this machine can do")
    doctor.add_argument("--target", help="check this target alone; exit code 2 when it cannot be used")
    doctor.set_defaults(run=_doctor)

    ui = commands.add_parser("ui", help="open the MLflow UI on the campaigns")
    ui.add_argument("campaign", nargs="?", help="which the link opens (default: the newest)")
    ui.add_argument("--port", type=int, default=5000, help="or the next free one (default: 5000)")
    ui.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: 127.0.0.1, this machine)"
    )
    ui.set_defaults(run=_ui)
    add_commands(commands, _register, _run_campaign)
    add_intake_commands(commands, _tell)
    add_export_command(commands, _say)
    for command in commands.choices.values():  # --home may follow the command, too
        command.add_argument("--home", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


class _Version(argparse.Action):
    """Asks for the version only where it is wanted."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from tilewright.evolve.record.system import commit, version

        _say(f"tilewright {version()} ({commit()})")
        parser.exit()


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    from tilewright.evolve.campaign.config import read_yaml

    overrides: dict[str, Any] = {}
    for item in arguments.set:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise UserError(f"--set: {item!r} must be KEY=VALUE.")
        overrides[key] = read_yaml(text, f"--set {key}: {text!r}")
    for key, value in (
        ("target", arguments.target),
        ("seed", arguments.seed),
        ("budget.evaluations", arguments.evaluations),
        ("workers.address", arguments.address),
        ("llm.model", arguments.llm_model),
        ("llm.base_url", arguments.llm_base_url),
        ("llm.replay", _recording(arguments.llm_replay)),
    ):
        if value is not None:
            overrides[key] = value
    return overrides


def _recording(source: str | None) -> str | None:
    """A journal's path is kept whole, so that the campaign can be resumed from anywhere."""
    return str(Path(source).resolve()) if source is not None and Path(source).is_file() else source


def _run(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.campaign.config import campaign_file, load_config
    from tilewright.evolve.campaign.targets import starting_device

    config = load_config(campaign_file(arguments.campaign), _overrides(arguments))
    with starting_device(config) as device:  # it starts while the rest is imported
        from tilewright.evolve.run import run
        from tilewright.evolve.show.display import make_display

        outcome = run(config, home_folder(arguments.home), make_display(), device, process_ends=True)
    return _tell(outcome, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.run import resume
    from tilewright.evolve.show.display import make_display

    home = home_folder(arguments.home)
    folder = find_campaign(home, arguments.campaign)
    outcome = resume(folder, home, make_display(), arguments.address, process_ends=True)
    return _tell(outcome, arguments)


def _tell(outcome: Any, arguments: argparse.Namespace) -> int:
    from tilewright.evolve.campaign.loop import StopReason
    from tilewright.evolve.mlflow_mirror.ui import closing_link
    from tilewright.evolve.show.summary import closing_lines

    home = home_folder(arguments.home)
    if outcome.reason is StopReason.INTERRUPTED:
        _say(f"stopped; go on with: tilewright resume {outcome.campaign}")
        return INTERRUPTED
    folder = find_campaign(home, outcome.campaign)
    for line in closing_lines(folder / JOURNAL):
        _say(line)
    if not outcome.mirrored:
        _say("MLflow has not caught up yet; nothing is lost, 'tilewright ui' brings it up to date")
    _say(f"report: {folder / REPORT}")
    opened = closing_link(folder, home)
    if opened is not None:
        _say(opened)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.errors import JournalError
    from tilewright.evolve.show.summary import campaign_line, status_lines

    home = home_folder(arguments.home)
    if arguments.campaign is None:
        known = campaigns(home)
        if not known:
            _say(f"no campaign in {home}; start one with: tilewright run quickstart")
        damaged = 0
        for folder in known:
            try:
                _say(campaign_line(folder / JOURNAL))
            except JournalError as error:
                damaged += 1
                _say(f"{folder.name}  cannot be read: {error}")
        return 2 if damaged else 0
    for line in status_lines(find_campaign(home, arguments.campaign) / JOURNAL):
        _say(line)
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.show.display import make_display
    from tilewright.evolve.show.summary import closing_lines
    from tilewright.evolve.show.watch import watch

    folder = find_campaign(home_folder(arguments.home), arguments.campaign)
    ended = watch(folder, make_display())
    if ended == "finished":
        for line in closing_lines(folder / JOURNAL):
            _say(line)
    elif ended is not None:
        _say(f"stopped; go on with: tilewright resume {folder.name}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.record.journal import Journal
    from tilewright.evolve.report.html import write_report
    from tilewright.evolve.report.lineage_page import PAGE

    folder = find_campaign(home_folder(arguments.home), arguments.campaign)
    if arguments.against is not None:
        return _compare(folder, arguments)
    output = arguments.output or folder / REPORT
    with Journal(folder / JOURNAL) as journal:
        try:
            write_report(journal, output)
        except OSError as error:
            raise UserError(f"--output: cannot write {output}: {error.strerror}.") from error
    _say(f"report: {output}")
    _say(f"lineage: {output.with_name(f'{output.stem}-{PAGE}')}")
    return 0


def _compare(folder: Path, arguments: argparse.Namespace) -> int:
    from tilewright.evolve.record.journal import Journal
    from tilewright.evolve.report.compare import pair_of, write_comparison
    from tilewright.evolve.report.data import load

    other = find_campaign(home_folder(arguments.home), arguments.against)
    if other.resolve() == folder.resolve():
        raise UserError(f"--against: {arguments.against} is the campaign itself; name another one.")
    output = arguments.output or folder / f"report-against-{other.name}.html"
    with Journal(folder / JOURNAL) as this, Journal(other / JOURNAL) as that:
        pair = pair_of(load(this), load(that))
    try:
        write_comparison(pair, output)
    except OSError as error:
        raise UserError(f"--output: cannot write {output}: {error.strerror}.") from error
    _say(f"comparison: {output}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.doctor import examine, examine_target

    healthy = True
    findings = (
        examine(home_folder(arguments.home))
        if arguments.target is None
        else [examine_target(arguments.target)]
    )
    for finding in findings:
        healthy = healthy and (finding.good or not finding.needed)
        _say(f"{'ok  ' if finding.good else 'no  '} {finding.part}: {finding.sentence}")
    return 0 if healthy else 2


def _ui(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.mlflow_mirror.ui import serve_ui

    home = home_folder(arguments.home)
    campaign = find_campaign(home, arguments.campaign) if arguments.campaign is not None else None
    return serve_ui(home, _say, arguments.host, arguments.port, campaign=campaign)


def _run_campaign(config: dict[str, Any], home: Path) -> Path:
    from tilewright.evolve.campaign.config import parse_config
    from tilewright.evolve.run import run
    from tilewright.evolve.show.display import make_display

    return find_campaign(home, run(parse_config(config), home, make_display()).campaign)


def _register(outcome: Any, library: Any, home: Path) -> str:
    from tilewright.evolve.mlflow_mirror.registry import register

    return register(outcome, library, home)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    command()
