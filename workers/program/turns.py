"""Times of a program's step under several installations, which take turns in bursts of steps without a wait: after a
pause a step takes 0.96 of what it takes in a row (H100)."""

import functools
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.fitness.intervals import NORMAL_95, Ratio
from tilewright.library.launch_replacement import Installation
from tilewright.workers.program.step import Program, synchronise

BURST_SECONDS, LEAST_BURST, MOST_BURST = 0.4, 2, 60
LEAST_ROUNDS, MOST_ROUNDS, TRIAL_ROUNDS = 6, 100, 3
NORMAL_75 = 1.15
"""Half width of a 75 % interval, of which three rounds have one: from their least to their largest. 95 % takes six."""

WAITS = 0.85
"""Share of a step that the device is busy, below which its bursts are short."""

MOST_EVENTS = 20
"""Steps of a burst that are timed one by one: among more, which are shorter, the events would count."""

Rounds = dict[str, list[list[float]]]
"""Seconds of a step by arm and round: of each step of the burst, or their mean."""

Arm = Callable[[], list[float]]
Decided = Callable[[Rounds], bool]


def burst_steps(seconds: float) -> int:
    """Steps of a burst, by the seconds of one."""
    if not torch.cuda.is_available():
        return 2
    return min(MOST_BURST, max(LEAST_BURST, round(BURST_SECONDS / max(seconds, 1e-6))))


def burst_seconds(step: Callable[[], Any], count: int) -> float:
    """Seconds of a step among ``count`` that follow each other as they do in a program; of an interpreter those of the
    processor, which other programs do not change."""
    now = time.perf_counter if torch.cuda.is_available() else time.process_time
    synchronise()
    begun = now()
    for _ in range(count):
        step()
    synchronise()
    return (now() - begun) / count


def steps_seconds(step: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each of ``count`` steps in a row, by the device. One before them is not counted: it follows a wait."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    synchronise()
    for event in events:
        step()
        event.record()
    synchronise()
    return [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def take_turns(
    arms: Mapping[str, Arm], seconds: float = 0.0, least: int = LEAST_ROUNDS, decided: Decided | None = None
) -> Rounds:
    """Times of every arm once a round, in an order that reverses each round and starts at another arm after two, so
    that drift cancels. At most ``MOST_ROUNDS`` within ``seconds`` of wall time or until they are ``decided``, and
    ``least`` whatever they take."""
    found: Rounds = {name: [] for name in arms}
    deadline, count = time.monotonic() + seconds, 0
    while count < least or (count < MOST_ROUNDS and time.monotonic() < deadline and not (decided and decided(found))):
        first = count // 2 % len(arms)
        names = [*list(arms)[first:], *list(arms)[:first]]
        for name in reversed(names) if count % 2 else names:
            found[name].append(arms[name]())
        count += 1
    return found


class Turns:
    """The started step of a program, or where the launches lie in a CUDA graph (``graph``), one of each burst.
    ``seconds``: of a step, ``busy``: those of them in which the device runs; bursts are a quarter as long where
    it often waits for the host, whose speed drifts from one second to the next."""

    def __init__(
        self, program: Program, step: Callable[[], Any], graph: bool, seconds: float, busy: float = math.inf
    ) -> None:
        self._program, self._own, self.graph, self._seconds = program, step, graph, seconds
        self._count = burst_steps(seconds if graph or busy > WAITS * seconds else 4 * seconds)
        # its events do not see steps on a stream of their own
        self._each = torch.cuda.is_available() and self._count <= MOST_EVENTS
        self._each = self._each and sum(steps_seconds(step, LEAST_BURST)) > 0.7 * LEAST_BURST * seconds

    def rounds(
        self, arms: Mapping[str, Any], seconds: float = 0.0, least: int = LEAST_ROUNDS, decided: Decided | None = None
    ) -> Rounds:
        """Seconds of a step under each installation (``take_turns``).

        Bursts are shorter where ``least`` rounds would take longer than ``seconds``. The first round, after a wait, is
        not counted. What this process holds beside the program is no garbage to look through: that takes as long as a
        burst, in some of them.
        """
        count = self._count
        if seconds:
            fits = int(seconds / ((least + 1) * len(arms) * max(self._seconds, 1e-6))) - 1
            count = max(min(LEAST_BURST, count), min(count, fits))
        timed = {name: functools.partial(self._timed, arms[name], count) for name in arms}
        deadline = time.monotonic() + seconds
        gc.collect()
        gc.freeze()
        try:
            for arm in timed.values() if least > 1 and not self.graph else ():
                arm()
            return take_turns(timed, deadline - time.monotonic(), least, decided)
        finally:
            gc.unfreeze()

    def gain(self, installation: Installation, least: int, seconds: float = 0.0, bar: float = 1.0) -> Ratio:
        """How many times faster the step is with an installation; 0 where it fails, or takes too much memory. Where
        rounds are far apart, more than the ``least`` follow, within ``seconds``, until the interval does not hold
        ``bar``: that of 95 %, and of a trial of fewer than ``LEAST_ROUNDS`` of 75 %."""
        errors = NORMAL_75 if least < LEAST_ROUNDS else NORMAL_95

        def decided(rounds: Rounds) -> bool:
            found = ratio(rounds, "", "*", errors)
            return not found.low <= bar <= found.high

        try:
            return ratio(self.rounds({"": None, "*": installation}, seconds, least, decided), "", "*")
        except Exception:  # noqa: BLE001 - a package's own checks, or no memory
            synchronise()  # raises for a device that no longer answers
            torch.cuda.empty_cache()
            return Ratio(0.0, 0.0, 0.0)

    def _timed(self, installation: Installation | None, count: int) -> list[float]:
        """A program that is captured is captured anew: where its memory lies changes its time by 0.2 %."""
        with (installation or Installation([])).installed():
            step = self._program.started() if self.graph else self._own
            if self._each:
                return steps_seconds(step, count)
            step()
            return [burst_seconds(step, count)]


def ratio(rounds: Rounds, slower: str, faster: str, errors: float = NORMAL_95) -> Ratio:
    """Seconds of one arm over those of another, with the interval (``middle``)."""
    pairs = zip(rounds[slower], rounds[faster], strict=True)
    return middle([math.log(statistics.median(a) / statistics.median(b)) for a, b in pairs], errors)


def middle(logs: Sequence[float], errors: float = NORMAL_95) -> Ratio:
    """The ratio whose logarithms these are, by round: the middle of all means of two rounds, which one that was
    interrupted hardly moves, and its interval of so many standard errors by Wilcoxon's signed ranks."""
    means = sorted(map(statistics.fmean, itertools.combinations_with_replacement(logs, 2)))
    count = len(logs)
    ranks = len(means) / 2 - 0.5 - errors * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    out = math.floor(ranks)
    low, high = (means[out], means[-1 - out]) if out >= 0 else (-math.inf, math.inf)
    return Ratio(*map(math.exp, (statistics.median(means), low, high)))
