"""A model of duplicates: which genomes are presumed to compile to code that an earlier genome compiled to.

Three kinds of evidence. Two sources that compiled to one artefact at a point, as where one has a hint in a branch that
the point's parameters leave out; two values of a parameter that gave one artefact, all else equal, as of stages of a
loop that nothing pipelines; and an edit that changed nothing. What held there is presumed to hold elsewhere. As it may
hang on the other parameters, the nearest point decides, and only among values that were seen, unless it always held.

It is a presumption: a share of what it would pass over is compiled all the same (``is_verified``), and one that differs
says so from then on.
"""

import math
import re
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from tilewright.evolve.space.genome import Genome, Value

Point = tuple[tuple[str, Value], ...]
"""Parameters as (name, value), sorted by name."""

Seen = tuple[frozenset[tuple[str, Value]], bool]
"""Where something was seen, and whether the code differed."""

THEN = "; then "
"""Between the edits of one rewrite, in its mutation's line."""

VERIFIED = 8
"""Of so many genomes one is never passed over."""

HELD = 4096
"""Points in memory, the latest: of a long campaign's older ones nothing is presumed."""

LOOKED_AT = 128
"""Latest points of a source, and latest observations of a parameter or an edit, that are looked at."""

OFTEN = 3
"""So many times, and never otherwise, is a rule: of less, only points among those seen are foretold."""

REACHED = 16
"""Sources that one presumption goes over: what equals an equal is equal."""

_SOURCE = ""
"""The name under which a point says its source, beside its parameters."""

_CHOICE = re.compile(r"[^:]* on ")
"""What is put on a place, in the line of an edit: the place matters, for code that is not there."""


class DuplicateModel:
    """A fold over proposals and artefacts, for ``History``: what it says depends on nothing else."""

    def __init__(self) -> None:
        self._at: OrderedDict[Point, dict[str, str | None]] = OrderedDict()
        """By point the sources tried there and what they compiled to, None where it is not known."""

        self._points: dict[str, dict[Point, None]] = {}
        """By source the points at which it was tried."""

        self._parameters: dict[tuple[str, Value], deque[Seen]] = {}
        """By value of a parameter, at which source and others' values another was seen to differ or not to."""

        self._edits: dict[str, deque[Seen]] = {}
        self._artefacts: dict[str, None] = {}
        self._repeats = 0
        """Evaluations whose artefact was there before: without any, nothing can be presumed."""

    def note_tried(self, genome: Genome) -> None:
        """Of a genome that is proposed."""
        point = point_of(genome)
        self._at.setdefault(point, {}).setdefault(genome.source_id, None)
        self._at.move_to_end(point)
        self._points.setdefault(genome.source_id, {})[point] = None
        if len(self._at) > HELD:
            old, sources = self._at.popitem(last=False)
            for source in sources:
                self._points[source].pop(old, None)

    def note_compiled(self, genome: Genome, artefact: str) -> None:
        """Of a genome that was proposed."""
        point, source = point_of(genome), genome.source_id
        if (here := self._at.get(point)) is None:
            return
        here[source] = artefact
        self._repeats += artefact in self._artefacts
        self._artefacts[artefact] = None
        if len(self._artefacts) > HELD:
            del self._artefacts[next(iter(self._artefacts))]
        for other in self._latest(source):
            known = self._at[other][source]
            names = _differing(point, other)
            if known is None or not names or (known != artefact and len(names) > 1):
                continue  # nothing is known, or it may be any of them
            values = dict(point), dict(other)
            for name in names:
                for held in values:
                    if name in held:
                        seen = self._parameters.setdefault((name, held[name]), deque(maxlen=LOOKED_AT))
                        seen.append((_without(name, source, point), known != artefact))

    def note_rewritten(self, parent: Genome, child: Genome, detail: str) -> None:
        """Of a rewrite whose artefact is known; ``detail`` names its edits."""
        point, edits = point_of(child), edits_of(detail)
        before, after = self._artefact(parent), self._artefact(child)
        if point != point_of(parent) or before is None or after is None:
            return
        if before != after and len(edits) > 1:
            return  # it may be any of them
        for edit in edits:
            seen = self._edits.setdefault(edit, deque(maxlen=LOOKED_AT))
            seen.append((frozenset(point), before != after))

    def presumed(self, genome: Genome) -> bool:
        """Whether it is presumed to compile alike with one that was tried."""
        if not self._repeats:
            return False
        point, idle = point_of(genome), _Idle(self._parameters, genome)
        reached, ahead = {genome.source_id}, deque([genome.source_id])
        if any(idle.alike(other) for other in self._latest(genome.source_id)):
            return True
        while ahead and len(reached) <= REACHED:
            for alike in self._alike(ahead.popleft(), point):
                if alike not in reached:
                    if any(idle.alike(other) for other in self._latest(alike)):
                        return True
                    reached.add(alike)
                    ahead.append(alike)
        return False

    def presumed_idle(self, parent: Genome, child: Genome, detail: str) -> bool:
        """Whether no edit of a rewrite is presumed to change the parent's code."""
        point = point_of(child)
        if point != point_of(parent):
            return False
        return all(_same_at(self._edits.get(edit, ()), frozenset(point)) for edit in edits_of(detail))

    def _alike(self, source: str, point: Point) -> list[str]:
        """Sources whose nearest common point with this one, seen from ``point``, has one artefact."""
        found: dict[str, list[Seen]] = {}
        for place in self._latest(source):
            here = self._at[place]
            if len(here) < 2 or (mine := here[source]) is None:
                continue
            for other, artefact in here.items():
                if other != source and artefact is not None:
                    found.setdefault(other, []).append((frozenset(place), artefact != mine))
        return [other for other, seen in found.items() if _same_at(seen, frozenset(point))]

    def _latest(self, source: str) -> Iterator[Point]:
        return islice(reversed(self._points.get(source, {})), LOOKED_AT)

    def _artefact(self, genome: Genome) -> str | None:
        return self._at.get(point_of(genome), {}).get(genome.source_id)


class _Idle:
    """Which values of parameters are presumed to be one at a genome, each looked up once."""

    def __init__(self, parameters: Mapping[tuple[str, Value], Collection[Seen]], genome: Genome) -> None:
        self._parameters, self._genome = parameters, genome
        self._known: dict[tuple[str, Value], bool] = {}

    def alike(self, other: Point) -> bool:
        """Whether the genome's point and this one are."""
        return all(map(self._is, set(point_of(self._genome)) ^ set(other)))

    def _is(self, value: tuple[str, Value]) -> bool:
        if value not in self._known:
            where = _without(value[0], self._genome.source_id, point_of(self._genome))
            self._known[value] = _same_at(self._parameters.get(value, ()), where)
        return self._known[value]


def point_of(genome: Genome) -> Point:
    """Where in its space a genome is."""
    return tuple(genome.params.items())


def edits_of(detail: str) -> list[str]:
    """The edits that a rewrite's line names, each by its rule and its place."""
    return [_CHOICE.sub(" on ", edit, count=1) for edit in detail.split(THEN)]


def is_verified(genome: Genome) -> bool:
    """Whether a genome is among those that are compiled whatever is presumed of them."""
    return int(genome.id, 16) % VERIFIED == 0


def _differing(one: Point, other: Point) -> set[str]:
    """Names of the parameters that two points do not have in common."""
    return set() if one == other else {name for name, _ in set(one).symmetric_difference(other)}


def _without(name: str, source: str, point: Point) -> frozenset[tuple[str, Value]]:
    """A genome but for the value of a parameter."""
    return frozenset(((_SOURCE, source), *(pair for pair in point if pair[0] != name)))


def _same_at(seen: Iterable[Seen], here: frozenset[tuple[str, Value]]) -> bool:
    """Whether the code is presumed not to differ here either.

    Where it differed somewhere, or was seen seldom: nearer to here it did not, and with every value that is here.
    """
    nearest, values, same = {False: math.inf, True: math.inf}, set[tuple[str, Value]](), 0
    for place, differed in seen:
        nearest[differed] = min(nearest[differed], len(here ^ place))
        if not differed:
            same += 1
            values |= here & place
    if nearest[True] == math.inf and same >= OFTEN:
        return True
    return nearest[False] < nearest[True] and all(pair in values or pair[0] == _SOURCE for pair in here)
