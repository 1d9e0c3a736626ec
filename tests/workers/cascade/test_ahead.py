"""What a thread computes while its evaluation waits for other processes."""

from __future__ import annotations

import threading

import pytest

from tilewright.workers.cascade.ahead import Ahead


def test_tasks_are_done_in_turn_and_tell_their_errors_where_they_are_waited_for() -> None:
    go, seen = threading.Event(), []

    def first() -> None:
        go.wait()
        seen.append("first")
        raise OSError("no room")

    ahead = Ahead([first, lambda: seen.append("second")])
    assert seen == []
    go.set()
    ahead.wait(1)
    assert seen == ["first", "second"]
    ahead.rest()
    with pytest.raises(OSError, match="no room"):
        ahead.wait(0)


def test_it_does_not_keep_a_process_from_ending() -> None:
    waiting = Ahead([threading.Event().wait])  # type: ignore[list-item]
    (thread,) = (t for t in threading.enumerate() if getattr(t, "_target", None) == waiting._run)
    assert thread.daemon
