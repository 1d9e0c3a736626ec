"""What a person sees while a campaign runs."""

import io
import os
import pty
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from testkit.sample_campaign import write_sample
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.show.display import LiveDisplay, PlainDisplay, Snapshot, make_display
from tilewright.fitness.evaluation import Evaluation, Verdict


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return Journal(write_sample(tmp_path_factory.mktemp("c") / "journal.sqlite", 20))


def snapshot(journal, count, elapsed, lag=3):
    evaluations = [e for _, _, e, _ in journal.evaluations()][:count]
    passed: list[Evaluation] = [e for e in evaluations if e.verdict is Verdict.OK]
    return Snapshot(
        evaluations=count,
        evaluations_budget=60,
        elapsed_seconds=elapsed,
        wall_budget_seconds=300.0,
        verdicts=Counter(evaluation.verdict.value for evaluation in evaluations),
        best=max(passed, key=lambda e: e.fitness or 0.0, default=None),
        seed=passed[0] if passed else None,
        references=journal.references("suite"),
        activity=[f"worker {n}: candidate {count + n}, measure [1024x2048x2048]" for n in range(12)],
        mirror_lag=lag,
    )


def live(**options):
    stream = io.StringIO()
    return stream, LiveDisplay(Console(file=stream, force_terminal=True, color_system=None, **options))


def test_a_terminal_gets_the_panel_and_a_pipe_gets_lines():
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal:
        assert isinstance(make_display(terminal), LiveDisplay)
    os.close(leader)
    assert isinstance(make_display(io.StringIO()), PlainDisplay)


def test_panel_shows_figures_with_unit_target_and_kind(journal):
    stream, display = live(width=120, height=50)
    display.start(journal.meta("campaign"))
    display.note("warning: it stays")
    display.note("starting workers")
    display.update(snapshot(journal, 0, 0.0))
    display.update(shown := snapshot(journal, 20, 40.0))
    display._live.refresh()  # as its thread does four times a second
    display.stop()
    assert shown.best is not None and shown.best.fitness is not None
    for expected in (
        "quickstart-001: gemm_fp8_fused/g512 on tpu7x (modelled), suite quickstart, seed 7",
        "20 of 60",
        "40.0 s of 5 min 0 s",
        "3 evaluations behind",
        "on tpu7x, modelled",
        f"{shown.best.fitness:.1f}",
        "1024x2048x2048",
        "bf16",
        "worker 0: candidate 20, measure [1024x2048x2048]",
        "and 4 more workers",
        "starting workers",
        "warning: it stays",
    ):
        assert expected in stream.getvalue()


def test_lines_are_few_and_tell_improvements(journal, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tilewright.evolve.show.display.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.start(journal.meta("campaign"))
    for tick in range(400):
        now[0] = tick * 0.25
        display.update(snapshot(journal, min(20, tick // 4), now[0], None if tick < 200 else 2))
    display.note("final check")
    display.stop()
    lines = stream.getvalue().splitlines()
    improved = [line for line in lines if "new best" in line]
    assert improved and all("TFLOP/s (tpu7x, modelled)" in line for line in improved)
    assert "than seed" not in improved[0], "which is the seed"
    assert "faster than seed" in improved[-1] and "faster than bf16" in improved[-1]
    assert any(line.endswith("MLflow 2 behind") for line in lines)
    assert any(line.endswith("; worker 0: candidate 20, measure [1024x2048x2048]") for line in lines)
    assert "final check" in lines
    assert 5 <= len(lines) <= len(improved) + 8


def test_hostile_text_is_neither_markup_nor_a_terminal_sequence(journal):
    stream, display = live(width=100)
    plain = io.StringIO()
    shown = snapshot(journal, 5, 1.0)
    for each in (display, PlainDisplay(plain)):
        each.start({"id": "[red]x[/red]\x1b[2J"})
        each.note("[/] [bold] \x1b]0;owned\x07")
        each.update(replace(shown, activity=["[/nonsense] \x1b[31m"], references={"[b]": shown.seed}))
        if each is display:
            display._live.refresh()
        each.stop()
    text = stream.getvalue()
    assert "[/nonsense]" in text and "[red]x[/red]" in text
    for output in (text, plain.getvalue()):
        assert not any(sequence in output for sequence in ("\x1b[2J", "\x1b]0;", "\x1b[31m"))
    assert "\\x1b]0;owned\\x07" in plain.getvalue()


def test_importing_it_is_cheap():
    """Help, status and reports must not wait for MLflow or Ray, and the package not for a campaign's parts."""
    code = (
        "import sys, tilewright; assert not any('journal' in name for name in sys.modules); "
        "import tilewright.evolve.show.display, tilewright.evolve.report.html, "
        "tilewright.evolve.mlflow_mirror.process, tilewright.evolve.mlflow_mirror.ui; "
        "sys.exit(bool({'mlflow', 'ray', 'jax', 'torch', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
