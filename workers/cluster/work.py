"""What a pool is given to evaluate, and the request that it becomes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from tilewright.fitness.race import Race
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.artefacts import Told, news_of
from tilewright.workers.device.station import Entry


class WorkGenome(Protocol):
    """The part of a genome that a pool reads."""

    @property
    def id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


class WorkItem(Protocol):
    """The part of a job that the pool reads (see ``evolve.campaign.evaluator.Job``)."""

    @property
    def index(self) -> int: ...
    @property
    def genome(self) -> WorkGenome: ...
    @property
    def seed(self) -> int: ...
    @property
    def known_artefacts(self) -> Collection[str]: ...
    @property
    def best(self) -> float: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def baseline(self) -> str | None: ...
    @property
    def race(self) -> Race | None: ...
    @property
    def only(self) -> Collection[str] | None: ...


def entries_of(genomes: Sequence[WorkGenome], only: Mapping[str, Collection[str]]) -> list[Entry]:
    """For a comparison: see ``RayPool.compare``."""
    kept = {name: frozenset(shapes) for name, shapes in only.items()}
    return [Entry(g.id, g.source, dict(g.params), kept.get(g.id)) for g in genomes]


def request_for(item: WorkItem, told: Told) -> bytes:
    """A job for a worker that was told so much; ``told`` is brought up to date."""
    return json.dumps(
        {
            "genome": item.genome.id,
            "source": item.genome.source,
            "params": dict(item.genome.params),
            "seed": item.seed,
            "scope": item.scope.value,
            "baseline": item.baseline,
            "known_artefacts": news_of(item.known_artefacts, told),
            "best": item.best,
            "race": item.race and item.race.data(),
            "only": None if item.only is None else sorted(item.only),
        }
    ).encode()
