"""The command as a user runs it: real Ray, real MLflow, real compiler, real kills."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

import tilewright as tw
from testkit import FIXTURES, ROOT
from testkit.children import clean_environment, wait_until
from testkit.spaces.tables import PoolAtOnce
from tilewright.evolve.cli import main
from tilewright.evolve.record.journal import Journal, is_running

pytestmark = pytest.mark.timeout(900)  # of a busy machine; one minute on an idle one
FAMILY = FIXTURES / "small_gemm"
TILEWRIGHT = [sys.executable, "-m", "tilewright.evolve.cli"]


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


def start(folder, *arguments, **environment):
    command = [*TILEWRIGHT, "--home", str(folder / "home"), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=clean_environment(**environment), **pipes)


def tilewright(folder, *arguments, **environment):
    process = start(folder, *arguments, **environment)
    out, err = process.communicate(timeout=800)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def content(folder, campaign):
    with Journal(folder / "home" / "campaigns" / campaign / "journal.sqlite") as journal:
        return journal.content()


def wait_for_an_evaluation(folder):
    """Returns when a running campaign's journal holds one."""
    journal = folder / "home" / "campaigns" / "tiny-001" / "journal.sqlite"
    wait_until(lambda: journal.exists() and bool(content(folder, "tiny-001")["evaluations"]))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return folder, tilewright(folder, "run", campaign_file(folder))


def test_a_campaign_runs_to_a_verified_winner(unbroken):
    folder, result = unbroken
    assert result.returncode == 0, result.stderr
    assert "tpu7x, modelled" in result.stdout and "3/3 evaluations" in result.stdout
    record = content(folder, "tiny-001")
    assert len(record["candidates"]) == len(record["evaluations"]) == 3
    with Journal(folder / "home" / "campaigns" / "tiny-001" / "journal.sqlite") as journal:
        finals = journal.references("final")
        events = journal.events()
    assert finals["winner"].fitness >= finals["seed:tiled"].fitness > 0
    assert finals["whole"].verdict == "ok"
    assert events[-1].kind == "finished" and events[-1].detail["winner"] == finals["winner"].genome
    report = (folder / "home" / "campaigns" / "tiny-001" / "report.html").read_text()
    assert "tiny-001" in report and "http://" not in report.replace("http://www.w3.org", "")


def test_its_lineage_is_in_mlflow(unbroken):
    import mlflow

    folder, result = unbroken
    assert "MLflow has not caught up" not in result.stdout
    client = mlflow.MlflowClient(f"sqlite:///{folder}/home/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name.startswith("tilewright/")]
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId")]
    parents = [r for r in runs if r not in children]
    assert len(parents) == 1
    record = content(folder, "tiny-001")
    assert len([r for r in children if "verdict" in r.data.tags]) >= len(record["evaluations"])


def test_status_and_report_read_what_is_there(unbroken, tmp_path, capsys):
    home = str(unbroken[0] / "home")
    for arguments, code, words in (
        (["status"], 0, ["tiny-001", "finished"]),
        (["status", "tiny-001"], 0, ["3 evaluations", "winner, genome"]),
        (["report", "--output", str(tmp_path / "r.html")], 0, ["r.html"]),
        (["resume", "tiny-001"], 2, ["has finished"]),
    ):
        assert main(["--home", home, *arguments]) == code
        printed = "".join(capsys.readouterr())
        assert all(word in printed for word in words), printed
    assert (tmp_path / "r.html").stat().st_size > 10_000


@pytest.fixture(scope="module")
def campaign(unbroken):
    return tw.open_campaign(home=unbroken[0] / "home")


def test_from_python_a_campaign_is_rows_and_a_frame(campaign):
    assert campaign.id == "tiny-001" and campaign.state == "finished"
    assert [row["evaluation"] for row in campaign.history] == [1, 2, 3]
    first = campaign.history[0]
    assert first["verdict"] == "ok" and first["kind"] == "modelled" and first["unit"] == "TFLOP/s"
    assert first["fitness_low"] < first["fitness"] < first["fitness_high"]
    assert list(campaign.frame()["genome"]) == [row["genome"] for row in campaign.history]
    assert campaign.winner is not None and "def build" in campaign.winner["source"]


def test_the_python_page_names_every_key_of_a_row_and_its_code_runs(unbroken, campaign, monkeypatch, capsys):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = page[page.index("| in a row |") : page.index("A campaign is read when")]
    named = {
        name.replace(".<name>", "").replace(".<workload>", "")
        for name in re.findall(r"`([^`]+)` *[,|;]", table)
    }
    assert {key.split(".")[0] for key in campaign.history[0]} <= named
    _, plot, _ = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(unbroken[0] / "home"))
    exec(compile(plot, "page", "exec"), {"tw": tw})
    assert "TFLOP/s modelled" in capsys.readouterr().out


def test_a_campaign_started_in_a_thread_is_watched_listed_and_deleted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tilewright.evolve.run.make_pool", PoolAtOnce)
    running = tw.start(
        campaign_file(tmp_path), home=tmp_path / "home", budget__evaluations=1, mlflow__enabled=False
    )
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


def test_from_python_it_writes_its_report_and_refuses_in_one_sentence(unbroken, campaign, tmp_path):
    home = unbroken[0] / "home"
    assert "tiny-001" in campaign.report(tmp_path / "report.html").read_text()
    for asked, said in (
        (lambda: tw.resume(home=home), "has finished"),
        (lambda: tw.open_campaign("other", home=home), "is unknown"),
        (lambda: tw.run("quickstart", home=home, budgit__evaluations=2), "did you mean 'budget'"),
        (lambda: tw.load_library(tmp_path), "promote a winner first"),
    ):
        with pytest.raises(tw.UserError, match=said):
            asked()


@pytest.mark.slow  # without workers: tests/faults
def test_a_killed_driver_resumes_to_the_same_journal(tmp_path, unbroken):
    process = start(tmp_path, "run", campaign_file(tmp_path, mlflow={"enabled": False}))
    wait_for_an_evaluation(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert tw.resume(home=tmp_path / "home").state == "finished"
    assert content(tmp_path, "tiny-001") == content(unbroken[0], "tiny-001")


def test_ctrl_c_stops_cleanly_soon_and_says_how_to_resume(tmp_path):
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as scratch:
        process = start(tmp_path, "run", campaign_file(tmp_path, budget={"evaluations": 500}), TMPDIR=scratch)
        wait_for_an_evaluation(tmp_path)  # Ray is starting
        pressed = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - pressed < 30, "3 s on a machine that does nothing else"
        wait_until(lambda: not (_knowing(scratch) or list(Path(scratch).glob("tw-ray-*"))), 30)
    assert process.returncode == 130
    assert "tilewright resume tiny-001" in out
    assert "Traceback" not in out + err


def _knowing(mark):
    """Command lines of processes that name it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (line := (process / "cmdline").read_text(errors="replace")):
                found.append(line)
    return found
