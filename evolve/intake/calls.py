"""The calls in a user's file, asked of a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tilewright.evolve.errors import UserError

PROGRAM = "tilewright.workers.intake.calls.file_calls"
SECONDS = 120
"""Most that a file may take to make its calls."""


def calls_of(place: str) -> list[str]:
    """The calls that ``FILE`` or ``FILE:NAME`` holds, as texts. Raises UserError."""
    file, name = (place, "") if Path(place).is_file() else place.rpartition(":")[::2]
    if not file or not Path(file).is_file():
        raise UserError(f"--call: {place!r} names no file; write FILE.py, or FILE.py:NAME.")
    command = [sys.executable, "-m", PROGRAM, file, *([name] if name else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"--call: {file} took more than {SECONDS} s to make its calls.") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"--call: {file} cannot be run: {last}") from error
    if "why" in answer:
        raise UserError(f"--call: {file}: {answer['why']}.")
    return [str(text) for text in answer["calls"]]
