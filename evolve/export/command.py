"""The command ``tilewright export``. Heavy imports stay inside it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.record.home import JOURNAL, find_campaign, home_folder

OF_CAMPAIGNS = ("tokamax", "tpu-inference")
OF_LIBRARIES = ("standalone",)
OF_EITHER = ("flashinfer-bench", "vllm", "sglang")


def add_command(commands: Any, say: Callable[[str], None]) -> None:
    """Add the command to the parser."""
    export = commands.add_parser(
        "export", help="write a winner's tiles, or a promoted operator, for other programs"
    )
    export.add_argument("format", choices=(*OF_CAMPAIGNS, *OF_LIBRARIES, *OF_EITHER), help="for whom")
    export.add_argument(
        "what",
        nargs="?",
        metavar="CAMPAIGN|OPERATOR",
        help=f"{', '.join(OF_CAMPAIGNS)}: a campaign's id or folder (default: the newest); "
        f"{', '.join(OF_LIBRARIES)}: a promoted operator, family/recipe; {', '.join(OF_EITHER)}: either",
    )
    export.add_argument("--out", type=Path, default=Path("exported"), help="folder (default: ./exported)")
    export.add_argument("--target", help="of a promoted operator (default: its only one)")
    export.add_argument("--library", type=Path, default=Path("library"), help="folder (default: ./library)")
    export.add_argument("--package", default="tilewright_library", help="name of the package in it")
    export.set_defaults(run=_export, say=say)


def _export(arguments: argparse.Namespace) -> int:
    promoted = arguments.format in OF_LIBRARIES or (
        arguments.format in OF_EITHER and arguments.what is not None and _is_operator(arguments.what)
    )
    files = _of_library(arguments) if promoted else _of_campaign(arguments)
    for path, text in files.items():
        place = arguments.out / path
        _write(place, text)
        arguments.say(f"{arguments.format}: {place}")
    return 0


def _is_operator(what: str) -> bool:
    return "/" in what and not Path(what).exists()


def _of_campaign(arguments: argparse.Namespace) -> dict[str, str]:
    from tilewright.evolve.export import block_fp8, tokamax, tpu_inference, tuned
    from tilewright.evolve.export.choice import agreed

    campaign = find_campaign(home_folder(arguments.home), arguments.what)
    if arguments.format == "flashinfer-bench":
        return tuned.files(campaign)
    if arguments.format in OF_EITHER:
        return block_fp8.of_campaign(campaign / JOURNAL, arguments.format)
    write = {"tokamax": tokamax.files, "tpu-inference": tpu_inference.files}[arguments.format]
    files, remarks = agreed(campaign / JOURNAL, write)
    for remark in remarks:
        arguments.say(remark)
    return files


def _of_library(arguments: argparse.Namespace) -> dict[str, str]:
    from tilewright.evolve.export import block_fp8, flashinfer_bench, standalone
    from tilewright.evolve.export.promoted import promoted
    from tilewright.evolve.promote.library_writer import LibraryWriter

    writer = LibraryWriter(arguments.library, arguments.package)
    if arguments.what is None:
        known = ", ".join(writer.operators()) or "none"
        raise UserError(f"export {arguments.format}: name a promoted operator (promoted: {known}).")
    table = promoted(writer, arguments.what, arguments.target)
    if arguments.format in OF_EITHER and arguments.format != "flashinfer-bench":
        return block_fp8.of_table(table, arguments.format)
    write = {"standalone": standalone.files, "flashinfer-bench": flashinfer_bench.files}[arguments.format]
    return write(table)


def _write(place: Path, text: str) -> None:
    """All of it or nothing. Raises UserError."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f"{place.suffix}.part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, place)
    except OSError as error:
        raise UserError(f"--out: cannot write {place}: {error.strerror}.") from error
