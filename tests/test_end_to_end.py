"""A campaign in a thread, from its start to its deletion. At a terminal: tests/journeys.txt."""

import pytest
import yaml

import tilewright as tw
from testkit import FIXTURES
from testkit.spaces.tables import PoolAtOnce
from tilewright.evolve.cli import main
from tilewright.evolve.record.journal import Journal, is_running

FAMILY = FIXTURES / "small_gemm"


def campaign_file(folder, **changes):
    data = {
        "name": "tiny",
        "operator": f"{FAMILY}/good",
        "target": "tpu7x",
        "suite": "tiny",
        "seed": 3,
        "budget": {"evaluations": 3},
        "workers": {"count": 2},
        "search": {"lag": 2, "proposers": ["parameters", "surrogate", "crossover"], "finalists": 1},
        **changes,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_campaign_started_in_a_thread_is_watched_listed_and_deleted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tilewright.evolve.run.make_pool", PoolAtOnce)
    running = tw.start(campaign_file(tmp_path), home=tmp_path / "home", budget__evaluations=1, mlflow__enabled=False)
    notes = [event["note"] for event in running]
    campaign = running.result(60)
    assert "starting workers" in notes and repr(running) == "<campaign tiny-001, ended>"
    assert repr(campaign) == "<campaign tiny-001, finished, 1 evaluation>"
    home, journal = ["--home", str(tmp_path / "home")], campaign.folder / "journal.sqlite"
    with Journal(journal, write=True):
        assert is_running(journal) and main([*home, "rm", "tiny-001"]) == 2
    assert not is_running(journal)
    assert main([*home, "du"]) == 0 and main([*home, "rm", "tiny-001"]) == 0
    printed = "".join(capsys.readouterr())
    assert "is running; stop it first" in printed and "iB  tiny-001" in printed
    assert "MLflow keeps its own copy" in printed and not campaign.folder.exists()
    stopped = tw.start(campaign_file(tmp_path), home=tmp_path / "home", mlflow__enabled=False)
    stopped.stop()
    assert stopped.result(60).state == "interrupted"
    with pytest.raises(tw.UserError, match="continues with its own keys; leave out seed"):
        tw.start("tiny-001", home=tmp_path / "home", resume=True, seed=3)
    again = tw.start("tiny-001", home=tmp_path / "home", resume=True)
    assert [event["evaluations"] for event in again] and again.result(60).state == "finished"
