"""docs/tutorial.md as printed: its ``sh`` and ``python`` blocks run in order and show what its ``text`` blocks say.

Then what its campaign left, on disk, in MLflow and from Python; last, its deletion as docs/campaign.md says.
"""

import os
import re
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

import tilewright as tw
from testkit import ROOT
from testkit.children import clean_environment
from testkit.journals import journal_content
from tilewright.evolve.cli import main
from tilewright.evolve.record.journal import Journal

pytest.importorskip("libtpu")
pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(1800)  # of a busy machine

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
DELETION = re.findall(r"`(tilewright rm .*?)`", (ROOT / "docs" / "campaign.md").read_text())
LEFT = (
    "import mlflow\nmlflow.set_tracking_uri('sqlite:///.tilewright/mlflow.db')\n"
    "print('left:', len(mlflow.search_runs(search_all_experiments=True, output_format='list')))\n"
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NOT_RUN = {
    "python3 -m venv .venv && source .venv/bin/activate": "the test's environment is one",
    "pip install '.[tpu,ui]'": "the test's environment has it",
    "tilewright ui": "serves until it is stopped; tests/evolve/mlflow_mirror/test_ui.py",
    'tilewright tune examples/softmax.py:softmax --reference torch.softmax --args "f32[4096, 12672], dim=1"': (
        "needs a GPU; tests/test_documents.py checks its arguments"
    ),
    "tilewright program examples/program.py:step --setup setup": "needs a GPU; tests/workers/program/test_program.py",
}
"""What the ``console`` blocks hold, and why it is not run here."""


SESSION = """
import sys, traceback
while text := sys.stdin.readline():
    try:
        exec(compile(eval(text), "page", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    print("end of block", flush=True)
"""
"""Runs the page's blocks of Python one after the other: JAX and MLflow are imported once."""


def masked(text):
    """Text with numbers and runs of spaces replaced, since figures follow the versions of JAX and libtpu."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", text))


class Session:
    """A user who follows the page in a folder: what was printed, and what was not run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / ".tilewright"
        self.printed, self.console = "", []
        shutil.copytree(ROOT / "examples", folder / "examples")
        command = folder / "bin" / "tilewright"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tilewright "$@"\n')
        command.chmod(0o755)
        paths = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": f"{command.parent}:{os.environ['PATH']}"}
        self.environment = clean_environment(**paths)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._python = subprocess.Popen([sys.executable, "-c", SESSION], cwd=folder, env=self.environment, **pipes)

    def follow(self, language: str, text: str) -> None:
        if language == "console":
            self.console += text.splitlines()
        elif language == "text":
            missing = [line for line in text.splitlines() if masked(line) not in masked(self.printed)]
            assert not missing, self.printed
        elif language == "python":
            self._python.stdin.write(f"{text!r}\n")
            self._python.stdin.flush()
            output = "".join(takewhile(lambda line: line != "end of block\n", self._python.stdout))
            assert self._python.poll() is None and "Traceback" not in output, output
            self.printed += output
        elif language == "sh":
            run = {"cwd": self.folder, "env": self.environment, "capture_output": True, "text": True}
            done = subprocess.run(["bash", "-ec", text], timeout=800, **run)
            assert done.returncode == 0, done.stdout + done.stderr
            self.printed += done.stdout

    def end(self) -> None:
        self._python.communicate()


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    made = Session(tmp_path_factory.mktemp("tutorial"))
    for language, text in BLOCK.findall(PAGE):
        made.follow(language, text)
    yield made
    made.end()


@pytest.fixture(scope="module")
def journal(session):
    with Journal(session.home / "campaigns" / "softmax-001" / "journal.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def campaign(session):
    return tw.open_campaign(home=session.home)


def test_the_tutorial_runs_as_printed(session):
    assert session.console == list(NOT_RUN)
    _, shown = re.findall(r"^```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    printed = session.printed
    assert not [line for line in shown.splitlines() if masked(line) not in masked(printed)], "the README's"
    gain, *_ = re.findall(r"gain +×([\d.]+) over the best seed", printed)
    (error,) = re.findall(r"largest error (\S+)", printed)
    assert float(gain) > 2 and float(error) < 1e-3
    assert "winner: {'block_rows':" in printed and "softmax-001 None" in printed, printed
    assert re.search(r"^0001 .* ok \d+\.\d", printed, re.M), "a candidate's rate in MLflow"


def test_its_campaign_ends_in_a_verified_winner(session, journal):
    assert "tpu7x, modelled" in session.printed and "4/4 evaluations" in session.printed
    record, finals, events = journal_content(journal), journal.references("final"), journal.events()
    assert len(record["candidates"]) == len(record["evaluations"]) == 4
    seed, winner = next(iter(record["evaluations"].values())), finals["winner"]
    assert winner.verdict == "ok" and winner.fitness >= seed["fitness"] > 0
    assert events[-1].kind == "finished" and events[-1].detail["winner"] == finals["winner"].genome
    report = (session.home / "campaigns" / "softmax-001" / "report.html").read_text()
    assert "softmax-001" in report and "http://" not in report.replace("http://www.w3.org", "")


def test_its_lineage_is_in_mlflow(session, journal):
    import mlflow

    assert "MLflow has not caught up" not in session.printed
    client = mlflow.MlflowClient(f"sqlite:///{session.home}/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name.startswith("tilewright/")]
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId")]
    assert len([r for r in runs if r not in children]) == 1
    judged = [r for r in children if "verdict" in r.data.tags]
    assert len(judged) >= len(journal_content(journal)["evaluations"])


def test_status_and_report_read_what_is_there(session, tmp_path, capsys):
    for arguments, code, words in (
        (["status"], 0, ["softmax-001", "finished"]),
        (["status", "softmax-001"], 0, ["4 evaluations", "winner, candidate"]),
        (["report", "--output", str(tmp_path / "r.html")], 0, ["r.html"]),
        (["resume", "softmax-001"], 2, ["has finished"]),
    ):
        assert main(["--home", str(session.home), *arguments]) == code
        printed = "".join(capsys.readouterr())
        assert all(word in printed for word in words), printed
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_from_python_a_campaign_is_rows_and_a_frame(campaign):
    assert campaign.id == "softmax-001" and campaign.state == "finished"
    assert [row["evaluation"] for row in campaign.history] == [1, 2, 3, 4]
    first = campaign.history[0]
    assert first["verdict"] == "ok" and first["kind"] == "modelled" and first["unit"] == "GB/s"
    assert first["fitness_low"] < first["fitness"] < first["fitness_high"]
    assert list(campaign.frame()["genome"]) == [row["genome"] for row in campaign.history]
    assert campaign.winner is not None and "def build" in campaign.winner["source"]


def test_the_python_page_names_every_key_of_a_row_and_its_code_runs(session, campaign, monkeypatch, capsys):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = page[page.index("| in a row |") : page.index("A campaign is read when")]
    named = {name.replace(".<name>", "").replace(".<workload>", "") for name in re.findall(r"`([^`]+)` *[,|;]", table)}
    assert {key.split(".")[0] for key in campaign.history[0]} <= named
    _, plot, _ = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(session.home))
    exec(compile(plot, "page", "exec"), {"tw": tw})
    assert "GB/s modelled" in capsys.readouterr().out


def test_from_python_it_writes_its_report_and_refuses_in_one_sentence(session, campaign, tmp_path):
    assert "softmax-001" in campaign.report(tmp_path / "report.html").read_text()
    for asked, message in (
        (lambda: tw.resume(home=session.home), "has finished"),
        (lambda: tw.open_campaign("other", home=session.home), "is unknown"),
        (lambda: tw.run("quickstart", home=session.home, budgit__evaluations=2), "did you mean 'budget'"),
        (lambda: tw.load_library(tmp_path), "promote a winner first"),
    ):
        with pytest.raises(tw.UserError, match=message):
            asked()


def test_it_is_deleted_as_its_page_says(session):
    """The last of this file: nothing of the campaign is left."""
    (deletion,) = DELETION
    session.follow("sh", deletion)
    session.follow("python", LEFT)
    assert session.printed.endswith("left: 0\n")
