"""How long a candidate may take to compile, by what others took."""

from __future__ import annotations

from tilewright.workers.device.plan_compiler import LEAST_PACED, LEAST_SECONDS, TIMES_USUAL, CompilePace


def test_a_candidate_may_take_several_times_what_is_usual() -> None:
    pace = CompilePace()
    for number in range(LEAST_PACED):
        assert pace.limit(60.0) == 60.0, number
        pace.add(3.0)
    pace.add(50.0)
    assert pace.limit(60.0) == TIMES_USUAL * 3.0
    assert pace.limit(7.0) == 7.0


def test_quick_ones_leave_the_others_some_seconds() -> None:
    pace = CompilePace()
    for _ in range(LEAST_PACED):
        pace.add(0.2)
    assert pace.limit(60.0) == LEAST_SECONDS
