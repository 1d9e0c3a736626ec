"""Compiled artefacts that a job knows: the first so many of one list that only grows.

A worker is sent only what it does not have yet, so that requests do not grow with the campaign. What a job knows is a
length of the list, whatever the worker has received since: else a verdict would depend on when a worker was free.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WHOLE = "whole"
"""The key of a list that is sent whole, for one job."""


class Artefacts:
    """Hashes in order of their arrival, each once. ``key`` distinguishes this list from any other."""

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

    def message(self, sent: SentArtefacts) -> dict[str, Any]:
        """The JSON for a worker that has been sent so much before; ``sent`` is brought up to date."""
        if sent.key != self._artefacts.key:
            sent.key, sent.count = self._artefacts.key, 0
        start = min(sent.count, self._count)
        sent.count = max(sent.count, self._count)
        new = self._artefacts.between(start, self._count)
        return {"list": sent.key, "from": start, "new": new, "count": self._count}


@dataclass
class SentArtefacts:
    """What a worker has been sent: the first ``count`` of the list ``key``."""

    key: str = ""
    count: int = 0


@dataclass
class ReceivedArtefacts:
    """A worker's copy of the latest list it was sent."""

    _artefacts: Artefacts | None = None

    def receive(self, message: Mapping[str, Any]) -> Known | None:
        """What a job knows; None when something before ``message`` never arrived, as after a restart."""
        held = self._artefacts
        if held is None or held.key != message["list"]:
            held = Artefacts(message["list"])
            if message["list"] != WHOLE:
                self._artefacts = held
        if len(held) < message["from"]:
            return None
        for artefact in itertools.islice(message["new"], len(held) - message["from"], None):
            held.add(artefact)
        return Known(held, message["count"])


def message_of(known: Collection[str], sent: SentArtefacts) -> dict[str, Any]:
    """As ``Known.message``; any other collection is sent whole."""
    if isinstance(known, Known):
        return known.message(sent)
    listed = Artefacts(WHOLE)
    for artefact in sorted(known):
        listed.add(artefact)
    return listed.known().message(SentArtefacts())
