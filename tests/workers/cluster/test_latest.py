"""Values that threads share: each is made once, and who wants another does not wait for it."""

import threading

import pytest

from tilewright.workers.request import Latest


def test_each_is_made_once_and_nobody_waits_for_another():
    held, began, go, made = Latest(2), threading.Event(), threading.Event(), []

    def slow():
        made.append("slow")
        began.set()
        assert go.wait(30)
        return 1

    found = []
    threads = [threading.Thread(target=lambda: found.append(held.of("a", slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert began.wait(30) and held.of("b", lambda: 2) == 2, "while another is being made"
    go.set()
    for thread in threads:
        thread.join(30)
    assert found == [1, 1] and made == ["slow"]


def test_the_latest_are_kept_and_a_failure_is_made_again():
    held = Latest(2)
    with pytest.raises(ZeroDivisionError):
        held.of("a", lambda: 1 / 0)
    assert [held.of(key, key.upper) for key in "abac"] == ["A", "B", "A", "C"]
    assert held.of("a", lambda: "new") == "A" and held.of("b", lambda: "new") == "new"
