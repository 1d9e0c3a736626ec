"""Tasks of a thread while its evaluation waits for other processes."""

from __future__ import annotations

import threading

import pytest

from tilewright.workers.cascade.measured import BackgroundTasks


def test_tasks_are_done_in_turn_and_tell_their_errors_where_they_are_waited_for() -> None:
    go, seen = threading.Event(), []

    def first() -> None:
        go.wait()
        seen.append("first")
        raise OSError("no room")

    tasks = BackgroundTasks([first, lambda: seen.append("second")])
    assert seen == []
    go.set()
    tasks.wait(1)
    assert seen == ["first", "second"]
    tasks.wait_all()
    with pytest.raises(OSError, match="no room"):
        tasks.wait(0)


def test_it_does_not_keep_a_process_from_ending() -> None:
    waiting = BackgroundTasks([threading.Event().wait])  # type: ignore[list-item]
    (thread,) = (t for t in threading.enumerate() if getattr(t, "_target", None) == waiting._run)
    assert thread.daemon
