"""Shared functions of a family's kernels: put into a module's source with what they call, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tilewright.seeds.inlined import inlined

SHARED = '''"""Doc."""

import math


def inner(x):
    return math.floor(x)


@decorated
def wanted(x):
    return inner(x)


def other(x):
    return x
'''
KERNEL = '''"""A kernel."""

import torch

from tilewright.seeds.family.kernels.shared import wanted

SPACE = {}


def launch(inputs, params):
    return wanted(inputs)
'''


def test_a_source_has_what_it_imports_and_what_that_calls(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    (tmp_path / "kernel.py").write_text(KERNEL)
    source = inlined(tmp_path / "kernel.py")
    assert "tilewright." not in source and "def other" not in source
    assert source.index("import math") < source.index("def inner") < source.index("@decorated\ndef wanted")
    assert source.index("def wanted") < source.index("SPACE = ") < source.index("def launch")
    assert source.startswith('"""A kernel."""')


def test_a_module_that_imports_nothing_of_its_neighbours_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        KERNEL.replace("from tilewright.seeds.family.kernels.shared import wanted\n", "")
    )
    assert inlined(tmp_path / "kernel.py") == (tmp_path / "kernel.py").read_text()
