"""The files that are written about a program, and the list of programs in a home."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RECORD, PAGE, FASTER, RECEIPT = "record.json", "program.html", "faster.py", "receipt.json"
FOUND, KEPT = "found.json", "search.json"
"""The searched launches of the last command, and the outcomes by kernel that a stopped search goes on from."""

PROGRAMS = "programs"


def read_json(path: Path) -> dict[str, Any]:
    """A file's object; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def note_program(home: Path, folder: Path, name: str, state: str) -> None:
    """Note where a program's files are, for ``tilewright status``. Raises OSError."""
    key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    (home / PROGRAMS).mkdir(parents=True, exist_ok=True)
    noted = {"name": name, "folder": str(folder.resolve()), "state": state}
    part = home / PROGRAMS / f"{key}.part"
    part.write_text(json.dumps(noted), encoding="utf-8")
    part.replace(home / PROGRAMS / f"{key}.json")


def program_lines(home: Path) -> Iterator[str]:
    """A line for each program whose folder is still there, the one last touched last."""
    paths = sorted((home / PROGRAMS).glob("*.json"), key=lambda path: path.stat().st_mtime)
    for noted in map(read_json, paths):
        folder = Path(str(noted.get("folder", "")))
        if folder.is_dir():
            yield f"program {noted['name']}  {noted['state']}  {_figures(folder)}{folder}"


def _figures(folder: Path) -> str:
    receipt: Mapping[str, Any] = read_json(folder / RECEIPT)
    if receipt.get("gain"):
        low, high = receipt["interval"]
        return f"{receipt['gain']:.3f} x ({low:.3f} to {high:.3f}; {receipt['kind']})  "
    searched = len(read_json(folder / KEPT).get("launches", ()))
    return f"{searched} launch(es) searched  " if searched else ""
