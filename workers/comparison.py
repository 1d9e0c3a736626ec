"""Several genomes side by side on one device: the figures a campaign's last word is based on.

Every genome runs on every shape in rounds of reversed order; the first genome runs under a second name as control.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fitness.paired import Ratio, Rounds, median_seconds, paired_ratio
from fitness.targets import Target
from seeds.operator import Operator, Workload
from workers.attempt import Failure, Found, Request
from workers.limits import Limits
from workers.processes import Spawn
from workers.sandbox import ChildLimits
from workers.station import Entry, Station
from workers.timing import Samples, Timing, measure
from workers.truth import Truth

CONTROL = "control"
"""Name of the first genome's second entry."""

EFFORT = (6, 3)
"""Rounds, and timed calls a round."""

WALL_SECONDS = 240.0


@dataclass(frozen=True)
class Comparison:
    """``rounds``: seconds by workload id, genome id (and ``control``), round and call. ``failed``: genome to reason.

    ``host``: host seconds of one launch by workload and genome. ``device``: what the station says about itself.
    """

    target: str
    device: Mapping[str, str]
    rounds: Mapping[str, Mapping[str, Rounds]]
    host: Mapping[str, Mapping[str, float]]
    failed: Mapping[str, str]

    @property
    def genomes(self) -> tuple[str, ...]:
        """Those that passed, in the order given."""
        return tuple(name for name in next(iter(self.rounds.values()), {}) if name != CONTROL)

    def seconds(self, workload: str, genome: str) -> float:
        """The median over all calls."""
        return median_seconds(self.rounds[workload][genome])

    def ratio(self, over: str, under: str, workloads: Sequence[str] | None = None) -> Ratio:
        """Times of ``over`` divided by those of ``under``, paired by round."""
        chosen = workloads or list(self.rounds)
        return paired_ratio(
            {w: self.rounds[w][over] for w in chosen}, {w: self.rounds[w][under] for w in chosen}
        )

    def control(self) -> dict[str, float]:
        """By workload: the first genome's second entry over its first."""
        first = self.genomes[0]
        return {w: self.ratio(CONTROL, first, [w]).value for w in self.rounds}

    def to_json(self) -> str:
        """Everything, for a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """What ``to_json`` wrote."""
        return cls(**json.loads(text))


def compare(
    station: Station,
    operator: Operator,
    target: Target,
    workloads: Sequence[Workload],
    entries: Sequence[Entry],
    seed: int,
    effort: tuple[int, int] = EFFORT,
) -> Comparison:
    """Time ``entries`` side by side; one that fails is left out and told. Raises SessionDied, OSError."""
    failed: dict[str, str] = {}
    request = Request(
        operator=operator,
        truth=Truth(operator),
        target=target,
        limits=Limits(trace=ChildLimits(WALL_SECONDS)),
        source="",
        params={},
        seed=seed,
        timeline=False,
        measured=tuple(workloads),
        checked=(),
        baseline=None,
        final=False,
        folder=Path("."),
        launcher=Spawn(),
        is_known=lambda artefact: None,
    )
    left = list(entries)
    while left:
        control = Entry(CONTROL, left[0].source, left[0].params)
        timings = measure(station, request, Found(), Samples(operator), [*left, control], effort, {})
        if not isinstance(timings, Failure):
            return _comparison(target, station, left, timings, failed)
        bad = timings.entry if timings.entry in {e.id for e in left} else left[0].id
        failed[bad] = f"{timings.verdict.value}: {timings.reason}"
        left = [entry for entry in left if entry.id != bad]
    return Comparison(target.name, _device(station), {}, {}, failed)


def _comparison(
    target: Target,
    station: Station,
    entries: Sequence[Entry],
    timings: Sequence[Timing],
    failed: dict[str, str],
) -> Comparison:
    names = [*(entry.id for entry in entries), CONTROL]
    rounds = {t.workload.id: dict(zip(names, t.rounds, strict=True)) for t in timings}
    host = {t.workload.id: dict(zip(names, t.host_seconds, strict=True)) for t in timings}
    return Comparison(target.name, _device(station), rounds, host, failed)


def _device(station: Station) -> dict[str, str]:
    return {k: str(v) for k, v in station.hello().items() if k != "isolation"}
