"""Where the seconds of a campaign went: starting, evaluating by stage, waiting for the device, nothing to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.evolve.report.units import duration_text, percent_text
from tilewright.fitness.evaluation import Evaluation, Stage

DEVICE = "device"
_ON_DEVICE = (Stage.CHECK.value, Stage.MEASURE.value)
_DOING = {"dialect": "reading", "compile": "compiling", "check": "checking", "measure": "measuring"}


@dataclass(frozen=True)
class Profile:
    """Seconds of workers from the first evaluation's begin to the last one's end.

    ``starting``: from the campaign's start to that begin. ``workers``: most evaluations that were under way at once.
    ``stages`` are without ``waiting``, which is for a device that others held. ``silent``: wall clock during which
    nothing was evaluated, ``span`` all of it. ``wanted``: wall clock during which somebody used the device or waited
    for it; ``held`` of it by evaluations.
    """

    starting: float = 0.0
    span: float = 0.0
    silent: float = 0.0
    workers: int = 0
    waiting: float = 0.0
    wanted: float = 0.0
    held: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def idle(self) -> float:
        """Seconds of workers without an evaluation."""
        return max(0.0, self.workers * self.span - sum(self.stages.values()) - self.waiting)

    def rows(self) -> dict[str, str]:
        """Names and texts for a table."""
        if not self.workers or self.span <= 0.0:
            return {}
        whole = self.workers * self.span
        parts = {_DOING.get(name, name): seconds for name, seconds in self.stages.items()}
        parts |= {"waiting for the device": self.waiting} if self.waiting else {}
        parts["idle"] = self.idle
        texts = (f"{name} {percent_text(seconds / whole)}" for name, seconds in parts.items())
        most = f"{self.workers} worker" + ("s" if self.workers > 1 else "")
        return {
            "starting": f"{duration_text(self.starting)} until the first evaluation began",
            f"time of {most}": ", ".join(texts) + f" of {duration_text(whole)}",
            "nothing evaluated": f"{duration_text(self.silent)} of the {duration_text(self.span)} after that",
            **self._device(),
        }

    def _device(self) -> dict[str, str]:
        if not self.wanted:
            return {}
        wanted = f"the {duration_text(self.wanted)} in which a candidate wanted it"
        return {"device held": f"{percent_text(min(1.0, self.held / self.wanted))} of {wanted}"}

    def metrics(self) -> dict[str, float]:
        """Figures by name, units within the names."""
        if not self.workers:
            return {}
        found = {f"profile/{name}_seconds": seconds for name, seconds in self.stages.items()}
        return {
            **found,
            "profile/starting_seconds": self.starting,
            "profile/waiting_for_device_seconds": self.waiting,
            "profile/idle_seconds": self.idle,
            "profile/nothing_evaluated_seconds": self.silent,
            "profile/device_wanted_seconds": self.wanted,
        }


def profile_of(ended: Sequence[tuple[Evaluation, float]], clock: Callable[[float], float]) -> Profile:
    """``ended``: evaluations with the Unix seconds they ended at. ``clock`` maps these to campaign time."""
    spans = sorted((max(0.0, clock(at) - e.wall_seconds), clock(at)) for e, at in ended)
    if not spans:
        return Profile()
    stages: dict[str, float] = defaultdict(float)
    waiting = held = 0.0
    asking: list[tuple[float, float]] = []
    for evaluation, at in ended:
        mine = {name: seconds for name, seconds in evaluation.spent.items() if name in _DOING}
        if DEVICE in evaluation.spent:
            asked = sum(mine.get(name, 0.0) for name in _ON_DEVICE)
            wait = max(0.0, asked - evaluation.spent[DEVICE])
            waiting += wait
            held += evaluation.spent[DEVICE]
            asking.append((clock(at) - asked, clock(at)))
            for name in set(mine) & set(_ON_DEVICE):
                mine[name] *= 1.0 - wait / asked if asked else 1.0
        for name, seconds in mine.items():
            stages[name] += seconds
    begin, end = spans[0][0], max(last for _, last in spans)
    most, silent = _overlap(spans)
    wanted = 0.0
    if asking:
        wanted = max(e for _, e in asking) - min(b for b, _ in asking) - _overlap(asking)[1]
    return Profile(begin, end - begin, silent, most, waiting, wanted, held, dict(stages))


def _overlap(spans: Sequence[tuple[float, float]]) -> tuple[int, float]:
    """Most spans that cover a moment, and the time between the first and the last that none covers."""
    marks = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = held = 0
    silent, before = 0.0, marks[0][0]
    for at, change in marks:
        silent += at - before if held == 0 else 0.0
        held, before = held + change, at
        most = max(most, held)
    return most, silent
