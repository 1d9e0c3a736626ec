"""Remedies of refusals, and code that stands in files that ``tune`` writes: ``texts.yaml``."""

import functools
from pathlib import Path
from typing import Any

import yaml


@functools.cache
def stored(name: str) -> Any:
    """What stands there under that name."""
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))[name]
