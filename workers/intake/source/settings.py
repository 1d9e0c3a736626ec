"""What a function reads beside its arguments: values of its package's modules, switches of torch, the environment.

A winner was recorded with these values. Where one has changed, the original serves.
"""

import os
import re
import sys
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from tilewright.workers.intake.source.traced_numbers import plain

SWITCHES = {
    "allow_tf32": ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"),
    "get_float32_matmul_precision": ("torch.get_float32_matmul_precision()",),
    "are_deterministic_algorithms_enabled": ("torch.are_deterministic_algorithms_enabled()",),
    "deterministic": ("torch.backends.cudnn.deterministic",),
    "is_grad_enabled": ("torch.is_grad_enabled()",),
}
"""By a name in a function's code, what it may ask."""


class SettingsRead:
    """While entered, notes which functions of files below a folder run."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._ran: dict[CodeType, dict[str, Any]] = {}

    def __enter__(self) -> "SettingsRead":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._home):
            self._ran.setdefault(frame.f_code, frame.f_globals)

    def found(self) -> dict[str, Any]:
        """``globals``: rows of a module's name and file, and its plain values by name; ``switches``: expressions with
        their values."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        switches: dict[str, Any] = {}
        for code, scope in self._ran.items():
            parts = [scope.get(name) for name in code.co_names]
            own = [vars(p) for p in parts if isinstance(p, ModuleType) and self._is_own(vars(p))]
            for space in (scope, *own) if self._is_own(scope) else own:
                values = {n: plain(space[n]) for n in code.co_names if _is_plain(space.get(n, ...))}
                if values:
                    rows.setdefault((str(space["__name__"]), str(space["__file__"])), {}).update(values)
            asked = [text for name in code.co_names for text in SWITCHES.get(name, ())]
            if {"environ", "getenv"} & {*code.co_names}:
                keys = [c for c in code.co_consts if isinstance(c, str) and re.fullmatch(r"[A-Z][A-Z0-9_]+", c)]
                asked += [f"os.environ.get({key!r})" for key in keys]
            switches.update({text: eval(text, {"torch": torch, "os": os}) for text in asked})
        return {"globals": [[*place, values] for place, values in rows.items()], "switches": switches}

    def _is_own(self, scope: dict[str, Any]) -> bool:
        return str(scope.get("__file__", "")).startswith(self._home)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
