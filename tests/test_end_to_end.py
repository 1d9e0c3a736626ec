"""The command as a user runs it, when it is stopped or killed. One that ends: tests/test_tutorial.py."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

import tilewright as tw
from testkit import FIXTURES
from testkit.children import clean_environment, wait_until
from testkit.journals import journal_content
from testkit.spaces.tables import PoolAtOnce
from tilewright.evolve.cli import main
from tilewright.evolve.record.journal import Journal, is_running

pytestmark = pytest.mark.timeout(900)  # of a busy machine; one minute on an idle one
FAMILY = FIXTURES / "small_gemm"
TILEWRIGHT = [sys.executable, "-m", "tilewright"]


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


def content(folder, campaign):
    with Journal(folder / "home" / "campaigns" / campaign / "journal.sqlite") as journal:
        return journal_content(journal)


def wait_for_an_evaluation(folder):
    """Returns when a running campaign's journal holds one."""
    journal = folder / "home" / "campaigns" / "tiny-001" / "journal.sqlite"
    wait_until(lambda: journal.exists() and bool(content(folder, "tiny-001")["evaluations"]))


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


def test_ctrl_c_stops_cleanly_soon_and_says_how_to_resume(tmp_path):
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as scratch:
        file = campaign_file(tmp_path, budget={"evaluations": 500}, mlflow={"enabled": False})
        process = start(tmp_path, "run", file, TMPDIR=scratch)
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
