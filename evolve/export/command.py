"""The command ``tilewright export``. Heavy imports stay inside it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.evolve.errors import UserError
from tilewright.evolve.record.home import JOURNAL, find_campaign, home_folder

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

FORMATS = ("standalone", "flashinfer-bench")


def add_command(commands: Commands, say: Callable[[str], None]) -> None:
    """Add the command to the parser."""
    export = commands.add_parser(
        "export",
        help="write a promoted operator, or the winner of a tuned function, for another program",
    )
    export.add_argument("format", choices=FORMATS, help="a package of its own, or a trace set to write for")
    export.add_argument(
        "what",
        nargs="?",
        metavar="OPERATOR|CAMPAIGN",
        help="for standalone: a promoted operator, family/recipe; for flashinfer-bench: the id or folder of a campaign "
        "that tuned a function (default: the newest)",
    )
    export.add_argument(
        "--out", type=Path, default=Path("exported"), help="output folder (default: ./exported)"
    )
    export.add_argument("--target", help="target of the promoted operator (default: its only one)")
    export.add_argument(
        "--library", type=Path, default=Path("library"), help="library folder (default: ./library)"
    )
    export.add_argument("--package", default="tilewright_library", help="name of the package in the library")
    export.set_defaults(run=_export, say=say)


def _export(arguments: argparse.Namespace) -> int:
    files = _of_operator(arguments) if arguments.format == "standalone" else _of_campaign(arguments)
    for path, text in files.items():
        place = arguments.out / path
        _write(place, text)
        arguments.say(f"{arguments.format}: {place}")
    return 0


def _of_campaign(arguments: argparse.Namespace) -> dict[str, str]:
    from tilewright.evolve.export import flashinfer_bench

    return flashinfer_bench.of_campaign(find_campaign(home_folder(arguments.home), arguments.what) / JOURNAL)


def _of_operator(arguments: argparse.Namespace) -> dict[str, str]:
    from tilewright.evolve.export import standalone
    from tilewright.evolve.export.promoted import promoted
    from tilewright.evolve.promote.library_writer import LibraryWriter

    writer = LibraryWriter(arguments.library, arguments.package)
    if arguments.what is None:
        known = ", ".join(writer.operators()) or "none"
        raise UserError(f"export {arguments.format}: name a promoted operator (promoted: {known}).")
    return standalone.of_operator(promoted(writer, arguments.what, arguments.target))


def _write(place: Path, text: str) -> None:
    """Write the whole file or nothing. Raises UserError."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f"{place.suffix}.part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, place)
    except OSError as error:
        raise UserError(f"--out: cannot write {place}: {error.strerror}.") from error
