"""Compiled artefacts that were there when a job was made: the beginning of one list that only grows.

A worker is told only what it has not heard yet, so that requests do not grow with the campaign. What a job knows is
a length of the list, whatever the worker has heard since: else a verdict would depend on when a worker was free.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WHOLE = "whole"
"""The key of a list that is told whole, for one job."""


class Artefacts:
    """Hashes in order of their arrival, each once. ``key`` tells this list from any other."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key or uuid.uuid4().hex
        self._order: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, artefact: str) -> None:
        """At the end, unless it is there."""
        if artefact not in self._numbers:
            self._numbers[artefact] = len(self._order)
            self._order.append(artefact)

    def known(self) -> Known:
        """What is there now."""
        return Known(self, len(self._order))

    def number(self, artefact: object) -> int | None:
        """Its place in the list."""
        return self._numbers.get(str(artefact))

    def between(self, start: int, end: int) -> list[str]:
        """Those at places ``start`` to ``end``, the latter excluded."""
        return self._order[start:end]

    def __len__(self) -> int:
        return len(self._order)


class Known(Collection[str]):
    """The first ``count`` of a list, whatever is added later."""

    def __init__(self, artefacts: Artefacts, count: int) -> None:
        self._artefacts = artefacts
        self._count = count

    def __contains__(self, artefact: object) -> bool:
        number = self._artefacts.number(artefact)
        return number is not None and number < self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._artefacts.between(0, self._count))

    def __len__(self) -> int:
        return self._count

    def news(self, told: Told) -> dict[str, Any]:
        """For a worker that was told so much before; ``told`` is brought up to date."""
        if told.key != self._artefacts.key:
            told.key, told.count = self._artefacts.key, 0
        start = min(told.count, self._count)
        told.count = max(told.count, self._count)
        new = self._artefacts.between(start, self._count)
        return {"list": told.key, "from": start, "new": new, "count": self._count}


@dataclass
class Told:
    """News that a worker has been told: the beginning of the list ``key``."""

    key: str = ""
    count: int = 0


@dataclass
class Heard:
    """A worker's copy of the latest list it was told of."""

    _artefacts: Artefacts | None = None

    def hear(self, news: Mapping[str, Any]) -> Known | None:
        """What a job knows; None when something before ``news`` was never heard, as after a restart."""
        held = self._artefacts
        if held is None or held.key != news["list"]:
            held = Artefacts(news["list"])
            if news["list"] != WHOLE:
                self._artefacts = held
        if len(held) < news["from"]:
            return None
        for artefact in itertools.islice(news["new"], len(held) - news["from"], None):
            held.add(artefact)
        return Known(held, news["count"])


def news_of(known: Collection[str], told: Told) -> dict[str, Any]:
    """As ``Known.news``; any other collection is told whole."""
    if isinstance(known, Known):
        return known.news(told)
    listed = Artefacts(WHOLE)
    for artefact in sorted(known):
        listed.add(artefact)
    return listed.known().news(Told())
