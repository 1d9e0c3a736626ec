"""Texts of the intake (``texts.yaml``): remedies, torch's functions as Triton, code that written files hold."""

import functools
from pathlib import Path
from typing import Any

import yaml


def stored_text(name: str) -> Any:
    """What stands there under that name."""
    return _texts()[name]


@functools.cache
def _texts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return found
