"""Ctrl-C: what the main thread is at ends by itself or is cut off, and a clean end is not."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.evolve.campaign import interrupt
from tilewright.evolve.campaign.interrupt import CtrlC
from tilewright.evolve.campaign.loop import StopReason
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.run import _Run


@pytest.fixture(autouse=True)
def little_grace(monkeypatch):
    monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.05)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_long_step_is_cut_off_and_all_is_as_before():
    stopped: list[bool] = []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    timer = signal.getitimer(signal.ITIMER_REAL)
    with CtrlC(lambda: stopped.append(True)) as signals:
        press()
        assert stopped == [True] and signals.requested, "the first one raises nothing by itself"
        with pytest.raises(KeyboardInterrupt):
            time.sleep(20)
    assert not signals.repeated
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    after = signal.getitimer(signal.ITIMER_REAL)
    assert after[1] == timer[1] and (after[0] > 0) == (timer[0] > 0)


def test_what_swallows_an_exception_is_cut_off_again():
    with CtrlC(lambda: None):
        press()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                time.sleep(20)


def test_a_clean_end_is_not_cut_off_but_by_a_second_one():
    with CtrlC(lambda: None) as signals:
        press()
        signals.settle()
        time.sleep(0.2)
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signals.repeated
    with CtrlC(lambda: None) as late:
        late.settle()
        press()
        time.sleep(0.2)
    assert late.requested


class Pool:
    """Of a campaign that is being concluded; it notes that it was closed."""

    thread_cpu_seconds = 0.0

    def __init__(self):
        self.ends: list[str] = []

    def close(self):
        self.ends.append("closed")


def test_a_comparison_that_takes_long_is_given_up_and_the_journal_says_so(tmp_path, monkeypatch):
    pool = Pool()

    def compare(*_):
        press()
        time.sleep(20)

    campaign = SimpleNamespace(stop=lambda: None)
    resolved = SimpleNamespace(config=SimpleNamespace(seed=3))
    display = SimpleNamespace(start=lambda name: None, stop=lambda: None, note=lambda message: None)
    monkeypatch.setattr("tilewright.evolve.run.pool_settings", lambda resolved: None)
    monkeypatch.setattr("tilewright.evolve.run.make_pool", lambda *arguments: pool)
    monkeypatch.setattr(_Run, "_campaign", lambda run, references: campaign)
    monkeypatch.setattr(_Run, "_search", compare)
    with Journal(tmp_path / "journal.sqlite", create=True, write=True) as journal:
        journal.set_meta("campaign", {"campaign": "c"})
        run = _Run(resolved, journal, tmp_path, tmp_path, display)
        outcome = run.go()
        assert outcome.reason is StopReason.INTERRUPTED and pool.ends == ["closed"]
        assert [event.kind for event in journal.events()][-1] == "interrupted"


def test_an_interrupt_ends_the_wait_for_mlflow():
    waits: list[float] = []

    def wait(seconds):
        waits.append(seconds)
        press()
        return False

    run = _Run(None, SimpleNamespace(meta=lambda key: None), Path(), Path(), None)
    with CtrlC(lambda: None) as run._ctrl_c:
        run._settle()
        assert not run._await_mirror(SimpleNamespace(wait=wait, ended=False))
    assert len(waits) == 1 and waits[0] <= 1.0
