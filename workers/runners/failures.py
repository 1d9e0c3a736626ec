"""Exceptions as data: one line of type and message for a verdict's reason, the rest for the log."""

from __future__ import annotations

import traceback
from typing import Any

from workers.frames import Frame

MAX_MESSAGE = 4000


def describe(error: BaseException) -> dict[str, str]:
    """``type``, ``message`` (its text, cut) and ``trace`` (the last frames, cut)."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception class may be the candidate's
        message = "(no message)"
    trace = "".join(traceback.format_exception(error)[-6:])
    return {"type": type(error).__name__, "message": message[:MAX_MESSAGE], "trace": trace[-MAX_MESSAGE:]}


def error_frame(phase: str, error: BaseException, *, spoiled: bool = False, **more: Any) -> Frame:
    """An exception as an answer. ``spoiled``: this child must not be used again."""
    return Frame("error", {"phase": phase, "spoiled": spoiled, **describe(error), **more})
