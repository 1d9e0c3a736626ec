"""Code that stands in files that ``tune`` writes: ``texts.yaml``."""

import functools
from pathlib import Path

import yaml


@functools.cache
def stored_text(name: str) -> str:
    """The text of that name."""
    return str(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))[name])
