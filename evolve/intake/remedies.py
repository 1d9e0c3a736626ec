"""What to do about a refusal, by what it says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.workers.intake.texts import stored_text


@dataclass(frozen=True)
class Obstacle:
    """One reason with its place (``line`` 0: the whole) and what to do."""

    file: str
    line: int
    what: str
    remedy: str
    code: str = ""

    def text(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{place}{self.what}. Remedy: {self.remedy}."


def remedy(what: str) -> str:
    """What to do about a refusal of the intake or of the dialect."""
    for pattern, advice in stored_text("remedies"):
        found = re.search(pattern, what)
        if found:
            groups = found.groups()
            return advice.replace("{1}", groups[0].rstrip(":,;") if groups and groups[0] else "it")
    return "see docs/security.md for what a kernel module may hold"


def obstacles_of(found: Sequence[Mapping[str, Any]], file: str) -> list[Obstacle]:
    """Refusals as the child tells them, in the order of lines."""
    rows = [(str(f.get("file") or file), int(f["line"]), str(f["what"]), str(f.get("code", ""))) for f in found]
    made = [Obstacle(place, line, what.rstrip("."), remedy(what), code) for place, line, what, code in rows]
    return sorted(made, key=lambda r: (r.file, r.line))
