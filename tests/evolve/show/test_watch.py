"""``tilewright watch`` shows a campaign of another process, and only reads."""

import functools
import io
import itertools
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from testkit.sample_campaign import SampleCampaign, write_sample
from tilewright.evolve import cli
from tilewright.evolve.mlflow_mirror.process import Follower, Progress
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.evolve.show import watch
from tilewright.evolve.show.display import PlainDisplay, Snapshot
from tilewright.evolve.show.summary import status_lines
from tilewright.fitness.evaluation import Verdict


class Recorder(PlainDisplay):
    """Plain lines, and every snapshot."""

    def __init__(self):
        self.text = io.StringIO()
        self.shown: list[Snapshot] = []
        super().__init__(self.text)

    def update(self, snapshot):
        self.shown.append(snapshot)
        super().update(snapshot)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "campaigns" / "quickstart-001"
    path.mkdir(parents=True)
    return path


def test_a_campaign_is_followed_to_its_end_while_it_is_written(folder):
    sample = SampleCampaign(folder / JOURNAL)
    display, polls = Recorder(), itertools.count(1)

    def grow(seconds):
        sample.grow(5)
        if next(polls) == 4:
            sample.finish()

    assert watch.watch(folder, display, grow) == "finished"
    sample.close()
    last = display.shown[-1]
    with Journal(folder / JOURNAL) as journal:
        rows = [evaluation for *_, evaluation, _ in journal.evaluations()]
    charged = [sum(e.verdict is not Verdict.DUPLICATE for e in rows[:n]) for n in (0, 5, 10, 15, 20)]
    assert [s.evaluations for s in display.shown] == charged and charged[-1] < 20, "as the budget counts"
    assert sum(last.verdicts.values()) == len(rows) == 20 and last.evaluations_budget == 60
    assert last.best is not None and last.best.fitness == max(e.fitness or 0 for e in rows)
    assert last.seed == rows[0] and set(last.references) == {"bf16"} and last.mirror_lag is None
    text = display.text.getvalue()
    assert "quickstart-001: gemm_fp8_fused/g512 on tpu7x (modelled)" in text and "new best" in text
    free = f"{charged[-1]}/60 evaluations, {20 - charged[-1]} free duplicate"
    assert free in text and free.replace("/60", "") in status_lines(folder / JOURNAL)[0], "one way to count"


def test_a_snapshot_counts_pending_candidates_and_what_mlflow_lacks(folder, monkeypatch):
    sample = SampleCampaign(folder / JOURNAL)
    sample.grow(3)
    sample.journal.add_candidate(sample._child())
    with Journal(folder / JOURNAL) as journal, monkeypatch.context() as later:
        later.setattr("time.time", lambda now=time.time: now() + 500)
        assert 500 <= load(journal).elapsed < 560, "while it runs its clock does"
    sample.close()
    Follower(folder / JOURNAL, "sqlite:///x", folder, None)._report(Progress("sqlite:///x", "", 1))
    with Journal(folder / JOURNAL) as journal:
        shown = watch.snapshot(load(journal), journal.path)
    assert shown.mirror_lag == 2 and shown.elapsed_seconds < 60
    assert len(shown.activity) == 1 and shown.activity[0].startswith("candidate 3: ")
    assert sum(shown.verdicts.values()) == 3


def test_the_command_prints_how_it_ended(folder, capsys):
    write_sample(folder / JOURNAL, 6)
    before = (folder / JOURNAL).read_bytes()
    home = str(folder.parent.parent)
    assert cli.main(["--home", home, "watch"]) == 0
    out = capsys.readouterr().out
    assert "campaign quickstart-001 finished: the budget of evaluations is spent" in out and "(tpu7x, modelled)" in out
    assert (folder / JOURNAL).read_bytes() == before, "it only reads"
    assert cli.main(["--home", home, "watch", "nobody"]) == 2


def test_a_killed_campaign_is_no_running_one(folder, capsys, monkeypatch):
    monkeypatch.setattr(watch, "RESUME_SECONDS", 1.0)
    write_sample(folder / JOURNAL, 6, finish=False)
    assert cli.main(["--home", str(folder.parent.parent), "watch"]) == 0
    assert "killed; resume with: tilewright resume quickstart-001" in capsys.readouterr().out


def test_ctrl_c_on_a_terminal_ends_it_whole(folder):
    sample = SampleCampaign(folder / JOURNAL)
    sample.grow(8)
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tilewright", "--home", str(folder.parent.parent), "watch"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "110", "LINES": "40"}
    # a shell starts what it puts into the background deaf to Ctrl-C, and children inherit that
    hear = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env=env, preexec_fn=hear)
    os.close(follower)
    seen = b""
    while b" of 60" not in seen:
        seen += os.read(leader, 4096)
    process.send_signal(signal.SIGINT)
    rest = b""
    while process.poll() is None:
        try:
            rest += os.read(leader, 4096)
        except OSError:
            break
    assert process.wait(30) == 0
    assert process.stderr is not None and process.stderr.read() == b""
    assert b"\x1b[?25h" in rest, "the cursor is back"
    process.stderr.close()
    os.close(leader)
    sample.grow(1)
    sample.close()
