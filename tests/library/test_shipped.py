"""The library of this repository: every file is what was promoted, and the generated tests pass interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolve.promote.keep import _run_test, check
from evolve.promote.shelf import Shelf

SHELF = Shelf(Path(__file__).parents[2] / "library")


def test_every_file_is_what_was_promoted() -> None:
    findings = list(check(SHELF, None, files_only=True, make=None, say=print))  # type: ignore[arg-type]
    bad = [f.sentence for f in findings if not f.good and "were verified with" not in f.sentence]
    assert not bad
    assert {"gemm_fp8_fused/g512"} <= set(SHELF.operators())


@pytest.mark.parametrize(
    "operator", [name for name in SHELF.operators() if name.startswith("gemm_fp8_fused/")]
)
def test_generated_tests_pass_interpreted(operator: str) -> None:
    version, _, _ = SHELF.version(operator)
    finding = _run_test(operator, SHELF.place(operator) / "versions" / version)
    assert finding.good, finding.sentence
