"""The command ``tilewright export``. Heavy imports stay inside it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.record.home import JOURNAL, find_campaign, home_folder

FORMATS = ("tokamax", "tpu-inference")


def add_command(commands: Any, say: Callable[[str], None]) -> None:
    """Add the command to the parser."""
    export = commands.add_parser(
        "export", help="write a winner's tiles into tables that other libraries read"
    )
    export.add_argument("format", choices=FORMATS, help="whose tables")
    export.add_argument("campaign", nargs="?", help="its id or folder (default: the newest)")
    export.add_argument("--out", type=Path, default=Path("exported"), help="folder (default: ./exported)")
    export.set_defaults(run=_export, say=say)


def _export(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.export import tokamax, tpu_inference
    from tilewright.evolve.export.choice import choices

    campaign = find_campaign(home_folder(arguments.home), arguments.campaign)
    files = {"tokamax": tokamax.files, "tpu-inference": tpu_inference.files}[arguments.format]
    for path, text in files(choices(campaign / JOURNAL)).items():
        place = arguments.out / path
        _write(place, text)
        arguments.say(f"{arguments.format}: {place}")
    return 0


def _write(place: Path, text: str) -> None:
    """All of it or nothing. Raises UserError."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f"{place.suffix}.part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, place)
    except OSError as error:
        raise UserError(f"--out: cannot write {place}: {error.strerror}.") from error
