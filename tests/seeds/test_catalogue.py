"""Finding operators: the shipped ones, a user's folder, and a folder written for an earlier version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.seeds import operator
from tilewright.seeds.catalogue import UnknownOperator, families, load_operator

OLD = """from tilewright.seeds.operator import Workload
import tilewright.seeds.sampled
import tilewright.fitness.gates

def operators():
    return {"row": Workload}
"""


def test_a_folder_with_the_former_imports_gets_the_same_modules(tmp_path: Path) -> None:
    (tmp_path / "operator.py").write_text(OLD)
    assert load_operator(f"{tmp_path}/row") is operator.Workload  # type: ignore[comparison-overlap]
    assert operator.__spec__ is not None and operator.__spec__.name == "tilewright.seeds.operator"
    assert not [name for name in sys.modules if name.partition(".")[0] in ("seeds", "fitness")]


def test_an_unknown_family_is_told_what_there_is() -> None:
    with pytest.raises(UnknownOperator, match=f"known family .*{families()[0]}"):
        load_operator("nothing/row")
