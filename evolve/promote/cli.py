"""The commands ``tilewright promote`` and ``tilewright library``. Heavy imports stay inside them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.record.home import find_campaign, home_folder

if TYPE_CHECKING:
    from tilewright.evolve.promote.library_writer import Finding

Commands = Any
"""What ``ArgumentParser.add_subparsers`` returns."""


def add_commands(commands: Commands) -> None:
    """Add both commands to the parser."""
    promote = commands.add_parser("promote", help="verify a campaign's winner again and put it into a library")
    promote.add_argument("campaign", nargs="?", help="id or folder of the campaign (default: the newest)")
    promote.add_argument("--suite", help="verify on this suite instead of the campaign's")
    promote.add_argument("--as", dest="name", metavar="NAME", help="its family/recipe in the library")
    promote.add_argument("--candidate", metavar="ID", help="its number or genome (default: the winner)")
    promote.add_argument("--table", type=Path, help="dispatch table (JSON): a candidate for each shape")
    promote.add_argument("--against", metavar="NAME", help="compare with this baseline or seed")
    promote.add_argument("--dry-run", action="store_true", help="verify and compare, write nothing")
    promote.add_argument("--force-reason", metavar="TEXT", help="promote in spite of a loss; TEXT is recorded")
    promote.add_argument("--address", help="Ray cluster to use instead of this machine")
    _library_options(promote)
    promote.set_defaults(run=_promote)

    library = commands.add_parser("library", help="list, verify and maintain the promoted kernels")
    actions = library.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the promoted operators")
    listing.set_defaults(run=_list)
    verify = actions.add_parser("verify", help="check files, toolchain, and the kernels against their recipe")
    verify.add_argument("operator", nargs="?", help="family/recipe (default: all)")
    verify.add_argument("--files", action="store_true", help="check files and toolchain only")
    verify.set_defaults(run=_verify)
    recheck = actions.add_parser(
        "recheck", help="verify and time again what is served, on the device and toolchain here"
    )
    recheck.add_argument("operator", nargs="?", help="family/recipe (default: all that serve the target)")
    recheck.add_argument("--target", required=True, help="h200, tpu7x …; cuda or tpu: the device here")
    recheck.add_argument("--address", help="Ray cluster to use instead of this machine")
    recheck.set_defaults(run=_recheck)
    rollback = actions.add_parser("rollback", help="make an earlier version current")
    rollback.add_argument("operator", help="family/recipe")
    rollback.add_argument("--to", metavar="VERSION", help="default: what the current version replaced")
    rollback.add_argument("--reason", help="recorded in the history")
    rollback.set_defaults(run=_rollback)
    collect = actions.add_parser("gc", help="remove versions that are no longer needed")
    collect.add_argument("--keep", type=int, default=5, help="promoted versions to keep per operator (default: 5)")
    collect.set_defaults(run=_gc)
    warm = actions.add_parser("warm", help="compile launch plans ahead; no GPU needed")
    warm.add_argument("--shapes", type=Path, help="file of shapes (default: the verified ones)")
    warm.add_argument("--device", default="cuda:9.0", help="what to compile for (default: cuda:9.0)")
    warm.set_defaults(run=_warm)
    for action in (listing, verify, recheck, rollback, collect, warm):
        _library_options(action)


def _library_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--library", type=Path, default=Path("library"), help="folder (default: ./library)")
    parser.add_argument("--package", default="tilewright_library", help="name of the package in it")


def _writer(arguments: argparse.Namespace) -> Any:
    from tilewright.evolve.promote.library_writer import LibraryWriter

    return LibraryWriter(arguments.library, arguments.package)


def _evaluator(address: str | None) -> Any:
    """Makes a pool for a resolved campaign, started. Raises UserError where its target cannot be used."""

    def make(resolved: Any) -> Any:
        from dataclasses import replace

        from tilewright.evolve.campaign.preparation import pool_settings
        from tilewright.evolve.campaign.targets import require_usable
        from tilewright.workers.cluster.pool import make_pool
        from tilewright.workers.cluster.settings import PoolUnavailable

        workers = resolved.config.workers.model_copy(update={"address": address})
        here = replace(resolved, config=resolved.config.model_copy(update={"workers": workers}))
        require_usable(here.target, remote=here.config.workers.address is not None)
        pool = make_pool(pool_settings(here))
        try:
            pool.start()
        except PoolUnavailable as error:
            raise UserError(f"workers: {error}.") from error
        return pool

    return make


def _promote(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.command import Options, promote, record

    home = home_folder(arguments.home)
    options = Options(
        suite=arguments.suite,
        name=arguments.name,
        candidate=arguments.candidate,
        table=arguments.table,
        against=arguments.against,
        dry_run=arguments.dry_run,
        force_reason=arguments.force_reason,
    )
    writer = _writer(arguments)
    folder = find_campaign(home, arguments.campaign)
    outcome = promote(folder, writer, options, _say, _evaluator(arguments.address))
    if outcome.version is None:
        _say(f"dry run: nothing was written; {outcome.operator} would be promoted")
        return 0
    _say(f"promoted {outcome.operator} version {outcome.version} to {writer.place(outcome.operator)}")
    name = outcome.operator.replace("/", "_")
    _say(f"call it: PYTHONPATH={writer.library}, then from {writer.package} import {name}")
    target = outcome.promotion.nomination.resolved.target.label
    _say(f"it runs on {target}; elsewhere the operator's reference answers, with a warning")
    fault = record(outcome.promotion, outcome.version)
    if fault is not None:
        _say(f"not noted in the campaign's journal: {fault}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.library_commands import list_lines

    writer = _writer(arguments)
    lines = list(list_lines(writer))
    for line in lines or [f"nothing is promoted in {writer.root}"]:
        _say(line)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.library_commands import check

    return _say_findings(check(_writer(arguments), arguments.operator, files_only=arguments.files))


def _recheck(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.recheck import recheck_library

    make = _evaluator(arguments.address)
    writer, operator = _writer(arguments), arguments.operator
    return _say_findings(recheck_library(writer, operator, arguments.target, make, _say))


def _say_findings(findings: Iterable[Finding]) -> int:
    good = True
    for finding in findings:
        good = good and finding.good
        _say(f"{'ok  ' if finding.good else 'no  '} {finding.sentence}")
    return 0 if good else 2


def _rollback(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.library_commands import rollback

    left, now = rollback(_writer(arguments), arguments.operator, arguments.to, arguments.reason)
    if left is None or left == now:
        sentence = f"{now} is current{'' if left else ' again'}"
    else:
        sentence = f"{left} is no longer current; " + (f"{now} is" if now else "the reference answers")
    _say(f"{arguments.operator}: {sentence}")
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.library_commands import collect

    if arguments.keep < 1:
        raise UserError(f"--keep: {arguments.keep} must be at least 1.")
    removed = collect(_writer(arguments), arguments.keep)
    for name in removed:
        _say(f"removed {name}")
    _say(f"{len(removed)} versions removed")
    return 0


def _warm(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.promote.library_commands import warm_library

    changed, whole = warm_library(_writer(arguments), arguments.shapes, arguments.device, _say)
    _say(f"{len(changed)} operators have plans for {arguments.device}")
    return 0 if whole else 2


def _say(line: str) -> None:
    print(line)  # noqa: T201
