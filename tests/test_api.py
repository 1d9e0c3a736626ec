"""The Python surface: a campaign run, read, resumed and refused without the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw
from testkit import FIXTURES, ROOT


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def campaign(home: Path) -> tw.RecordedCampaign:
    content = {
        "name": "tiny",
        "operator": f"{FIXTURES / 'small_gemm'}/good",
        "target": "tpu7x",
        "suite": "tiny",
        "budget": {"evaluations": 100},
        "workers": {"count": 1},
        "mlflow": {"enabled": False},
    }
    return tw.run(content, home=home, budget__evaluations=2)


def test_a_campaign_is_rows_and_a_frame(campaign: tw.RecordedCampaign) -> None:
    assert campaign.state == "finished"
    assert [row["evaluation"] for row in campaign.history] == [1, 2]
    first = campaign.history[0]
    assert first["verdict"] == "ok" and first["kind"] == "modelled" and first["unit"] == "TFLOP/s"
    assert first["fitness_low"] < first["fitness"] < first["fitness_high"]
    assert list(campaign.frame()["genome"]) == [row["genome"] for row in campaign.history]
    assert campaign.winner is not None and "def build" in campaign.winner["source"]


def test_the_page_names_every_key_of_a_row_and_its_code_runs(
    home: Path,
    campaign: tw.RecordedCampaign,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = page[page.index("| in a row |") : page.index("A campaign is read when")]
    named = {
        name.replace(".<name>", "").replace(".<workload>", "")
        for name in re.findall(r"`([^`]+)` *[,|;]", table)
    }
    assert {key.split(".")[0] for key in campaign.history[0]} <= named
    _, plot = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
    exec(compile(plot, "page", "exec"), {"tw": tw})
    assert "TFLOP/s modelled" in capsys.readouterr().out


def test_it_opens_again_and_writes_its_report(
    home: Path, campaign: tw.RecordedCampaign, tmp_path: Path
) -> None:
    again = tw.open_campaign(home=home)
    assert again.id == campaign.id and again.history == campaign.history
    assert "tiny-001" in again.report(tmp_path / "report.html").read_text()


def test_what_cannot_be_is_one_sentence(home: Path, campaign: tw.RecordedCampaign, tmp_path: Path) -> None:
    for asked, said in (
        (lambda: tw.resume(home=home), "has finished"),
        (lambda: tw.open_campaign("other", home=home), "is unknown"),
        (lambda: tw.run("quickstart", home=home, budgit__evaluations=2), "did you mean 'budget'"),
        (lambda: tw.load_library(tmp_path), "promote a winner first"),
    ):
        with pytest.raises(tw.UserError, match=said):
            asked()


def test_the_library_here_loads() -> None:
    code = "import tilewright as tw; print(tw.load_library('library').operators()[0])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("gemm_fp8_blockwise/")


def test_importing_costs_nothing() -> None:
    code = "import sys, tilewright; print(tilewright.__version__, [m for m in sys.modules if 'evolve' in m])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ray" not in done.stdout and "journal" not in done.stdout
