"""A child that serves many candidates: what one of them leaves behind is not held against the next."""

import sys
import textwrap
import threading
import time

import pytest

from tilewright.workers.child import session
from tilewright.workers.child.drain import ByteLimits
from tilewright.workers.child.ending import Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Spawn
from tilewright.workers.child.session import JobLimits, SessionConfig, SessionDied, SessionPool

LIMITS = JobLimits(20.0, 20.0)

CHILD = """
    import os, sys, time
    sys.path.insert(0, sys.argv[1])
    from tilewright.workers.child.frames import Frame, FrameReader, sender
    answer, reader = sender(int(sys.argv[3])), FrameReader(1 << 20)
    answer(Frame("ready"))
    while piece := os.read(0, 1 << 20):
        for job in reader.feed(piece):
            number = job.data["job"]
            if job.kind == "ping" and os.path.exists("mute"):
                time.sleep(60)
            if job.kind == "closes and stays":
                os.close(int(sys.argv[3]))
                time.sleep(60)
            if job.kind == "floods":
                while True:
                    os.write(1, b"x" * 65536)
            if job.kind == "honest":
                if os.path.exists("trap"):
                    os._exit(0)
                answer(Frame("answer", {"right": True}))
            answer(Frame("done", {"job": number}))
            if job.kind == "forges":
                for ahead in range(1, 4):
                    answer(Frame("done", {"job": number}))
                    time.sleep(0.05 * ahead)
            if job.kind == "forges and ends":
                answer(Frame("done", {"job": number}))
                os._exit(0)
            if job.kind == "breaks off":
                os.write(int(sys.argv[3]), b"TW")
            for name in ("mute", "trap"):
                if job.kind == name:
                    open(name, "w").close()
            if job.kind == "ends":
                os._exit(0)
"""
"""A session's child whose candidates have got past every other wall."""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    program = (sys.executable, "-I", "-c", textwrap.dedent(CHILD))
    monkeypatch.setattr(session, "LAUNCHER", Spawn(program))
    monkeypatch.setattr(session, "PING_SECONDS", 0.5)
    kept = SessionPool(SessionConfig("none", {}, {}))
    yield kept
    kept.close()


@pytest.mark.parametrize("kind", ["forges", "forges and ends", "breaks off", "mute", "trap", "ends"])
def test_the_next_candidate_is_judged_as_if_it_were_the_first(pool, kind):
    assert pool.run(Frame(kind), LIMITS).ending is Ending.DONE
    outcome = pool.run(Frame("honest"), LIMITS)
    assert (outcome.ending, [frame.data for frame in outcome.frames]) == (Ending.DONE, [{"right": True}])
    # answers forged in time for the forger's own job are read with it, and harm nobody
    assert pool.replaced == 1 or (kind == "forges" and pool.replaced == 0)
    replaced = pool.replaced
    assert pool.run(Frame("honest"), LIMITS).ending is Ending.DONE and pool.replaced == replaced


@pytest.mark.parametrize(
    ("kind", "ending", "detail"),
    [
        ("closes and stays", Ending.TIMEOUT, "closed its result pipe and stayed"),
        ("floods", Ending.FLOOD, "more than 1048576 bytes of output"),
    ],
)
def test_who_stays_or_floods_is_ended(pool, monkeypatch, kind, ending, detail):
    monkeypatch.setattr(session, "_LEAVE_SECONDS", 0.2)
    monkeypatch.setattr(session, "_BYTES", ByteLimits(1 << 20, 1 << 20))
    outcome = pool.run(Frame(kind), LIMITS)
    assert (outcome.ending, outcome.detail) == (ending, detail) and outcome.seconds < 60
    assert pool.run(Frame("honest"), LIMITS).ending is Ending.DONE


def test_what_dies_by_itself_is_its_own_fault(pool):
    assert pool.run(Frame("honest"), LIMITS).ending is Ending.DONE
    (folder,) = [pool._current._folder]
    (folder / "trap").touch()
    assert pool.run(Frame("honest"), LIMITS).ending is Ending.DONE, "run once more in a fresh child"
    (pool._current._folder / "trap").touch()
    pool._current.jobs = 0
    assert pool.run(Frame("honest"), LIMITS).ending is Ending.CRASHED


def test_a_job_under_way_when_its_children_are_ended_starts_no_other(pool):
    assert pool.run(Frame("honest"), LIMITS).ending is Ending.DONE
    failures = []

    def work():
        try:
            pool.run(Frame("mute"), LIMITS)
            pool.run(Frame("honest"), LIMITS)  # asks the mute one for life
        except (SessionDied, OSError, ValueError) as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not (pool._current._folder / "mute").exists():
        time.sleep(0.01)
    pool.close()
    thread.join(60)
    assert failures and not thread.is_alive()
    assert pool._current is None and pool._spare is None
