"""The command ``program``."""

import argparse
from pathlib import Path
from typing import Any

from tilewright.evolve.report.text import printable

PARTS = ("record", "ceiling", "tune", "prove")


def add_command(commands: Any) -> None:
    """Add it to the parser's."""
    command = commands.add_parser(
        "program", help="find what can be gained in a program's step, tune it, prove it and write faster.py"
    )
    command.add_argument("place", metavar="FILE:STEP", help="the function that is one step of the program")
    command.add_argument(
        "part",
        nargs="?",
        choices=PARTS,
        default="prove",
        help="how far to go: record, ceiling, tune, or prove, which does all (default)",
    )
    command.add_argument("--setup", default="", help="the function of the file whose result the step takes")
    command.add_argument("--out", type=Path, help="folder to write to (default: ./STEP_faster)")
    command.add_argument("--seconds", type=float, default=60.0, help="budget of the search (default: 60)")
    command.add_argument("--prove-seconds", type=float, default=90.0, help="budget of the proof (default: 90)")
    command.add_argument("--fp8", action="store_true", help="replace linear layers by blockwise FP8 too")
    command.add_argument(
        "--fp8-kept",
        dest="fp8",
        action="store_const",
        const="kept",
        help="the same for inference whose weights do not change: each is quantised once",
    )
    command.add_argument(
        "--faster", type=Path, metavar="FILE", help="prove the replacements of this file instead of searching"
    )
    command.add_argument(
        "--winner",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="prove the winner of tilewright tune in this file, too, in place of its function (repeatable)",
    )
    command.add_argument("--no-mlflow", action="store_true", help="do not write to MLflow")
    command.set_defaults(run=_run)


def _say(text: str) -> None:
    print("\n".join(map(printable, text.split("\n"))), flush=True)  # noqa: T201


def _run(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.errors import UserError
    from tilewright.evolve.program.folder import FASTER, PAGE
    from tilewright.evolve.program.run import program
    from tilewright.evolve.program.screen import ceiling_lines, proof_lines, record_lines

    if not (arguments.seconds > 0 and arguments.prove_seconds > 0):
        raise UserError("--seconds and --prove-seconds must be above 0.")
    for option, path in (("--faster", arguments.faster), *(("--winner", path) for path in arguments.winner)):
        if path is not None and not path.is_file():
            raise UserError(f"{option}: {path} does not exist.")
    found = program(arguments.place, arguments.setup, arguments.out, arguments.home)
    proof = None
    if arguments.part == "tune":
        found.tune(arguments.seconds)
    elif arguments.part == "prove":
        proof = found.prove(
            arguments.seconds, arguments.prove_seconds, arguments.fp8, arguments.faster, arguments.winner
        )
    lines = list(record_lines(found.record(), found.ceiling()))
    if arguments.part != "record":
        lines += ceiling_lines(found.ceiling())
    if proof is not None:
        lines += proof_lines(proof)
    lines += [f"  - {row['label']}: {row['why']}" for row in found.answer.get("left_out", ())]
    _say("\n".join(lines))
    if (found.folder / FASTER).is_file() and arguments.part in ("tune", "prove"):
        _say(f"installed by: {found.folder / FASTER}")
    _say(f"report: {found.folder / PAGE}")
    if arguments.part in ("tune", "prove") and not arguments.no_mlflow:
        why = found.mirror()
        _say(f"MLflow: {why}" if why else "MLflow: experiment programs; tilewright ui shows it")
    return 0
