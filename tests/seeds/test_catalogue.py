"""Finding operators: the shipped ones, a user's folder, and a folder written for an earlier version."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from testkit import FIXTURES
from tilewright.seeds import operator
from tilewright.seeds.catalogue import UnknownOperator, families, load_operator


def test_a_folder_with_the_former_imports_gets_the_same_modules(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "small_gemm", tmp_path / "old")
    text = (tmp_path / "old" / "operator.py").read_text()
    (tmp_path / "old" / "operator.py").write_text(text.replace("from tilewright.seeds", "from seeds"))
    made = load_operator(f"{tmp_path}/old/good")
    assert all(type(shape) is operator.Workload for suite in made.suites.values() for shape in suite.check)
    assert operator.__spec__ is not None and operator.__spec__.name == "tilewright.seeds.operator"
    assert not [name for name in sys.modules if name.partition(".")[0] in ("seeds", "fitness")]


def test_an_unknown_family_is_told_what_there_is() -> None:
    with pytest.raises(UnknownOperator, match=f"known family .*{families()[0]}"):
        load_operator("nothing/row")
