"""Shared definitions of kernels: put into a module's source with what they use, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.seeds.inlined import inlined

DEEP = '''"""Doc."""

import math
from typing import Any, cast


def inner(x):
    return math.floor(x)


def unused(x):
    return cast(Any, x)
'''
SHARED = '''"""Doc."""

from tilewright.seeds.other.kernels.deep import inner

STEPS = (1, 2)
SPACE = {"steps": STEPS}


@decorated
def wanted(x):
    return inner(x)


def other(x):
    return x
'''
KERNEL = '''"""A kernel."""

import torch

from tilewright.seeds.family.kernels.shared import (
    SPACE,
    wanted,
)

DEFAULTS = {}


def launch(inputs, params):
    return wanted(inputs)
'''
INLINED = '''"""A kernel."""

import torch
import math


def inner(x):
    return math.floor(x)


STEPS = (1, 2)


SPACE = {"steps": STEPS}


@decorated
def wanted(x):
    return inner(x)


DEFAULTS = {}


def launch(inputs, params):
    return wanted(inputs)
'''


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    for name, text in (("other/kernels/deep", DEEP), ("family/kernels/shared", SHARED)):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "family" / "kernels" / "kernel.py"


def test_a_source_has_what_it_imports_and_what_that_uses(kernel: Path, tmp_path: Path) -> None:
    kernel.write_text(KERNEL)
    assert inlined(kernel, tmp_path) == INLINED
    kernel.write_text(KERNEL.replace("wanted,", "absent,"))
    with pytest.raises(ImportError, match="defines no absent"):
        inlined(kernel, tmp_path)


def test_a_module_that_imports_nothing_of_the_seeds_stays_as_it_is(kernel: Path, tmp_path: Path) -> None:
    kernel.write_text(INLINED)
    assert inlined(kernel, tmp_path) == INLINED
