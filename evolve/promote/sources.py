"""How a promoted kernel is written down: formatted, under a header that says where it comes from."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

from tilewright.evolve.space.genome import Genome, normalise

LANGUAGES = (
    ("gluon", "triton.experimental.gluon"),
    ("triton", "triton"),
    ("pallas", "jax.experimental.pallas"),
)
LINE = 110


def language(source: str) -> str:
    """``gluon``, ``triton`` or ``pallas``, by what the module imports. Raises ValueError for none of them."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    for name, prefix in LANGUAGES:
        if any(module == prefix or module.startswith(f"{prefix}.") for module in modules):
            return name
    raise ValueError("the kernel imports none of pallas, triton and gluon")


def header(lines: Sequence[str]) -> str:
    """Comment lines; what they say is cut to a line each and holds nothing unprintable."""
    cleaned = ["".join(c if c.isprintable() else " " for c in line)[: LINE - 2].rstrip() for line in lines]
    return "".join(f"# {line}\n" if line else "#\n" for line in cleaned)


def written(genome: Genome, lines: Sequence[str]) -> bytes:
    """The file of a promoted kernel; it has the genome's normal form."""
    text = header(lines) + _formatted(genome.source)
    if normalise(text) != normalise(genome.source):
        raise AssertionError("formatting changed a kernel")
    return text.encode("utf-8")


@lru_cache(maxsize=64)
def _formatted(source: str) -> str:
    """By ruff where it is installed (the ``dev`` extra), else as it is."""
    if importlib.util.find_spec("ruff") is None:
        return source
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(LINE), "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 and normalise(done.stdout) == normalise(source) else source
