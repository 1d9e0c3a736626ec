"""Two campaigns on one page: both are shown, and campaigns whose figures do not compare are refused."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.promote_campaign import one_sentence
from testkit.sample_campaign import write_sample
from tilewright.evolve import cli
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.charts import comparison_svg
from tilewright.evolve.report.compare import pair_of, render_comparison
from tilewright.evolve.report.data import CampaignData, load
from tilewright.seeds.operator import Scope


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two campaigns of one operator, and one on another target."""
    root = tmp_path_factory.mktemp("home")
    for name, count in (("first-001", 48), ("second-001", 24)):
        write_sample(root / "campaigns" / name / "journal.sqlite", count, campaign=name)
    path = root / "campaigns" / "other-001" / "journal.sqlite"
    path.parent.mkdir()
    with Journal(path, write=True, create=True) as journal:
        operator = "gemm_fp8_fused/g512"
        facts = {"id": "other-001", "operator": operator, "target": "h200", "target_kind": "measured"}
        journal.set_meta("campaign", facts)
    return root


def loaded(home: Path, name: str) -> CampaignData:
    with Journal(home / "campaigns" / name / "journal.sqlite") as journal:
        return load(journal)


def test_a_comparison_shows_both(home: Path) -> None:
    data, other = loaded(home, "first-001"), loaded(home, "second-001")
    assert cli.main(["--home", str(home), "report", "first-001", "--against", "second-001"]) == 0
    page = (home / "campaigns/first-001/report-against-second-001.html").read_text(encoding="utf-8")
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    for scope in (Scope.FINAL, Scope.SUITE):
        mine, theirs = (
            next(r.evaluation for r in d.ranking(scope) if r.role == "winner") for d in (data, other)
        )
        assert f"{theirs.workloads[0].seconds * 1e6:.1f}"[:4] in text
        assert f"{(mine.fitness or 0) / (theirs.fitness or 1) * 100 - 100:+.1f} %" in text
    assert "tpu7x, modelled" in text and "from the winner of second-001 to the winner of first-001" in text
    assert "Candidates by proposer" in text and "Configuration and toolchain are the same." in text
    drawn = ET.fromstring(comparison_svg((data, other), ("first-001", "second-001")))
    assert {"first-001", "second-001"} <= {text.strip() for text in drawn.itertext()}
    page = render_comparison(pair_of(data, replace(data, facts={**data.facts, "suite": "llm"})))
    assert "no common axis" in page and "4096x4096x4096" in page


@pytest.mark.parametrize(
    ("other", "output", "words"),
    [
        (
            "other-001",
            "x.html",
            "other-001 has target h200 and first-001 has tpu7x; only campaigns of one operator",
        ),
        ("first-001", "x.html", "--against: first-001 is the campaign itself"),
        ("nobody", "x.html", "campaign 'nobody' is unknown"),
        ("second-001", "no/x.html", "--output: cannot write"),
    ],
)
def test_a_comparison_that_says_nothing_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str, output: str, words: str
) -> None:
    arguments = ["report", "first-001", "--against", other, "--output", str(tmp_path / output)]
    assert cli.main(["--home", str(home), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error and one_sentence(error) and not (tmp_path / output).exists()
