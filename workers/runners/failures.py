"""Exceptions as data: one line of type and message for a verdict's reason, the rest for the log."""

import re
import traceback
from typing import Any

from tilewright.workers.child.frames import Frame

MAX_MESSAGE = 4000

_PLACE = re.compile(r"at \d+:\d+:")
"""How the text of Triton's errors begins."""

_RAISED = re.compile(r"^\s*([A-Z]\w*): (.+)", re.M)
LONGEST_LINE = 100
_DEEPEST = 20
"""Causes of causes that are followed."""


def describe(error: BaseException) -> dict[str, str]:
    """``type``, ``message`` (its text, cut) and ``trace`` (the last frames, cut)."""
    try:
        message = _message(error)
    except Exception:  # noqa: BLE001 - an exception class may be the candidate's
        message = "(no message)"
    trace, kind = "".join(traceback.format_exception(error)[-6:]), type(error).__name__
    if "CpuCallback" in message:  # JAX's interpreter: what was raised in Python stands at the end
        kind, message = [(kind, message), *_RAISED.findall(message)][-1]
    return {"type": kind, "message": message[:MAX_MESSAGE], "trace": trace[-MAX_MESSAGE:]}


def _message(error: BaseException) -> str:
    """Its text; of Triton's errors, which show a dozen lines of source first, the cause and the line it is about."""
    chain = [error]
    while chain[-1].__cause__ is not None and len(chain) < _DEEPEST:
        chain.append(chain[-1].__cause__)
    placed = [text for text in map(str, chain) if _PLACE.match(text)]
    if not placed or not _PLACE.match(str(error)):
        return str(error)
    # the line that is wrong, of a helper of the kernel's own or of Triton's library, then the kernel's own
    lines = dict.fromkeys(_line(text) for text in (placed[-1], placed[0]))
    cause = placed[-1].rpartition("^")[2].strip()
    if not _PLACE.match(str(chain[-1])):  # the cause itself is none of Triton's errors
        cause = f"{type(chain[-1]).__name__}: {chain[-1]}".removesuffix(": ")
    where = "; ".join(lines)
    return f"{cause} ({where})" if cause else where


def _line(text: str) -> str:
    """Of an error with an excerpt of its source: the place, and the last line of the excerpt."""
    place, _, rest = text.partition("\n")
    excerpt, caret, _ = rest.rpartition("^")
    shown = (excerpt if caret else rest).strip().splitlines()
    return f"{place} {shown[-1].strip()[:LONGEST_LINE]}" if shown else place


def error_frame(phase: str, error: BaseException, *, spoiled: bool = False, **more: Any) -> Frame:
    """An exception as an answer. ``spoiled``: this child must not be used again."""
    return Frame("error", {"phase": phase, "spoiled": spoiled, **describe(error), **more})
