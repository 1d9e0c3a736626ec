"""A local search that trusts its steps and no model: climbs along single parameters, hops when it stands on a peak.

It is a fold over the history: whatever was evaluated is known to it, whoever proposed it, so that a climb asks only for
points that nobody has tried. What improves is followed in the same direction, twice as far each time, to the end of the
parameter's values. A step that breaks a constraint is taken together with one back along a parameter that the same
constraint names, so that a climb follows the rim of what is legal. Hops change a few parameters of the best peak
at once, often to an end of their values (basin hopping: Wales and Doye 1997).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, SpaceOf, changes
from tilewright.evolve.proposers.surrogate.records import Records, SourceRecords
from tilewright.evolve.record.history import History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Rows, Space

HOP_CHANGES = 3
"""Parameters that a hop changes, at most."""

END_SHARE = 0.5
"""Share of a hop's changes that go to an end of the parameter's values."""

HOP_TRIES = 60
"""Draws after which a hop is given up: nothing legal and new is near."""

MIDDLE_DRAWS = 2000
"""Random points among which the middle of a space is looked for that has too many to list."""

MOST_TRADES = 24
"""Steps along two parameters of one constraint that are tried from a peak, before it is left."""

LEAST_GAIN = 1e-3
"""Gain in log fitness that is a step up."""

_Polls = Generator[list[Rows], None, Rows]
"""Points waited for, in order of preference; in the end, where that led."""


class LocalSearch:
    """Climbs from the best point of the leading source, then from hops."""

    name = "local_search"
    kind = MutationKind.PARAMETER

    def __init__(self, spaces: SpaceOf | KnownSpaces) -> None:
        self._spaces = KnownSpaces.of(spaces)
        self._records = Records(self._spaces)
        self._climbs: dict[str, _Climb] = {}

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        while self._records.next_new(history) is not None:
            self._take_in()
        leading = max(self._records.sources, key=lambda records: records.best, default=None)
        if leading is None or not leading.successes:
            return None
        climb = self._climbs[leading.source]
        for row in climb.wanted:
            genome = Genome(leading.source, leading.space.decode(row))
            if genome.id not in history:
                parent = leading.candidates[climb.base].genome
                self._spaces.remember(genome, row.copy())
                mutation = Mutation(self.kind, self.name, changes(parent.params, genome.params))
                return Proposal(genome, (parent.id,), mutation)
        return None

    def _take_in(self) -> None:
        """Tell the climb of the latest record's source; the first success of a source begins one."""
        if not self._records.order:
            return
        records, _ = self._records.order[-1]
        if records.source not in self._climbs:
            if not records.successes:
                return
            self._climbs[records.source] = _Climb(records)
        self._climbs[records.source].go_on()


class _Climb:
    """The search of one source, as a generator that waits for what it has to know.

    ``wanted`` are the points whose outcome decides how it goes on, the first of them first; ``base`` is the record that
    they are steps from.
    """

    def __init__(self, records: SourceRecords) -> None:
        self._records, self._space = records, records.space
        sizes = [len(values) for values in self._space.parameters.values()]
        self._last = [size - 1 for size in sizes]
        self._live = [column for column, size in enumerate(sizes) if size > 1]
        self._ordinal = [self._space.is_ordinal(name) for name in self._space.names]
        self._partners = _partners(self._space)
        self._rng = np.random.default_rng(len(self._live))
        self._places: dict[int, int] = {}
        self._seen = 0
        self.base = 0
        self.wanted: list[Rows] = []
        self._search = self._rounds()

    def go_on(self) -> None:
        """Take in what the source's records say by now, and find what is wanted next."""
        for place in range(self._seen, len(self._records.rows)):
            self._places.setdefault(self._code(self._records.rows[place]), place)
        self._seen = len(self._records.rows)
        if self._live:
            self.wanted = next(self._search)

    # -- what is known ---------------------------------------------------------------------------

    def _code(self, row: Rows) -> int:
        return int(self._space.codes(row[None])[0])

    def _height(self, row: Rows) -> float | None:
        """Log fitness, minus infinity for a failure; None for what nobody has tried."""
        place = self._places.get(self._code(row))
        if place is None:
            return None
        target = self._records.targets[place]
        return -math.inf if math.isnan(target) else target

    def _best(self) -> Rows:
        return self._records.rows[int(np.nanargmax(self._records.targets))]

    # -- the search ------------------------------------------------------------------------------

    def _rounds(self) -> Iterator[list[Rows]]:
        """Climb from the best record, from the middle, then from hops off the highest peak so far."""
        peak = yield from self._climb_from(self._best())
        start: Rows | None = self._middle()
        while True:
            if start is None:
                yield []
            else:
                yield from self._outcome(start)
                if self._height(start) != -math.inf:
                    found = yield from self._climb_from(start)
                    peak = found if self._above(found, peak) else peak
            while self._above(best := self._best(), peak):  # somebody else found a better place
                peak = yield from self._climb_from(best)
            start = self._hop(peak)

    def _climb_from(self, here: Rows) -> _Polls:
        """The peak above a known point."""
        moved: dict[int, int] = {}
        while True:
            self.base = self._places[self._code(here)]
            found = yield from self._better(self._steps(here, moved), here)
            if found is None:
                found = yield from self._better(self._trades(here), here)
                if found is None:
                    return here
                here = found
                continue
            here = yield from self._strides(here, found, moved)
            if len(moved) > 1:
                rim = here.copy()
                for column, sign in moved.items():
                    rim[column] = self._last[column] if sign > 0 else 0
                here = yield from self._best_of([rim], here)

    def _strides(self, before: Rows, here: Rows, moved: dict[int, int]) -> _Polls:
        """Twice as far in the direction of a step that improved, as long as that improves again."""
        column = next((c for c in self._live if here[c] != before[c]), self._live[0])
        if not self._ordinal[column]:
            return here
        sign, step = (1 if here[column] > before[column] else -1), 2
        moved.pop(column, None)
        moved[column] = sign
        while True:
            further = self._stepped(here, column, sign * step)
            if further is None:
                return here
            found = yield from self._better([further], here)
            if found is None:
                return here
            here, step = found, 2 * step

    def _best_of(self, rows: Sequence[Rows], here: Rows) -> _Polls:
        found = yield from self._better([row for row in rows if self._legal(row)], here)
        return here if found is None else found

    def _outcome(self, row: Rows) -> Generator[list[Rows], None, None]:
        while self._height(row) is None:
            yield [row]

    def _better(self, rows: Sequence[Rows], here: Rows) -> Generator[list[Rows], None, Rows | None]:
        """The highest known of ``rows`` that is above ``here`` as soon as there is one; None when none is."""
        while True:
            heights = [self._height(row) for row in rows]
            known = [(height, -k) for k, height in enumerate(heights) if height is not None]
            if known and self._above(rows[-max(known)[1]], here):
                return rows[-max(known)[1]]
            unknown = [row for row, height in zip(rows, heights, strict=True) if height is None]
            if not unknown:
                return None
            yield unknown

    def _above(self, one: Rows, other: Rows) -> bool:
        mine, its = self._height(one), self._height(other)
        return mine is not None and its is not None and mine > its + LEAST_GAIN

    # -- moves -----------------------------------------------------------------------------------

    def _steps(self, here: Rows, moved: dict[int, int]) -> list[Rows]:
        """One step along each parameter, those that improved lately first."""
        lately = [(c, s) for c, s in reversed(moved.items())]
        order = self._rng.permutation(len(self._live))
        rest = [(self._live[k], sign) for k in order for sign in self._signs(self._live[k])]
        found = []
        for column, sign in [*lately, *(d for d in rest if d not in lately)]:
            if self._ordinal[column]:
                row = self._stepped(here, column, sign)
                found += [] if row is None else [row]
            else:
                for place in range(self._last[column] + 1):
                    row = here.copy()
                    row[column] = place
                    found += [row] if place != here[column] and self._legal(row) else []
        return found

    def _signs(self, column: int) -> tuple[int, ...]:
        return ((1, -1) if self._rng.random() < 0.5 else (-1, 1)) if self._ordinal[column] else (1,)

    def _stepped(self, here: Rows, column: int, step: int) -> Rows | None:
        """A step of so many places, at most to the end of the values; along the rim of what is legal if need be."""
        place = min(max(int(here[column]) + step, 0), self._last[column])
        if place == here[column]:
            return None
        row = here.copy()
        row[column] = place
        if self._legal(row):
            return row
        for partner in self._partners[column]:
            for back in (1, -1, 2, -2):
                other = row.copy()
                other[partner] = place = int(row[partner]) + back
                if 0 <= place <= self._last[partner] and self._legal(other):
                    return other
        return None

    def _trades(self, here: Rows) -> list[Rows]:
        """Steps along two parameters of one constraint, and single ones to an end."""
        found = []
        for column in self._live:
            for partner in self._partners[column]:
                for step, back in ((1, -1), (1, 1), (-1, -1)) if column < partner else ((1, -1),):
                    row = here.copy()
                    row[column] += step
                    row[partner] += back
                    found.append(row)
        found = [found[k] for k in self._rng.permutation(len(found))[:MOST_TRADES]]
        for column in self._live:
            for place in (0, self._last[column]):
                row = here.copy()
                row[column] = place
                found.append(row)
        return [row for row in found if self._legal(row) and (row != here).any()]

    def _middle(self) -> Rows:
        """The legal point nearest to the middle of all values."""
        rows = (
            self._space.points
            if self._space.points is not None
            else self._space.sample_rows(self._rng, MIDDLE_DRAWS)
        )
        last = np.maximum(np.array(self._last), 1)
        apart = np.abs(rows / last - 0.5)[:, self._live].sum(axis=1)
        return rows[int(np.argmin(np.round(apart, 9)))]

    def _hop(self, peak: Rows) -> Rows | None:
        """A point nobody has tried, a few parameters away."""
        for _ in range(HOP_TRIES):
            row = peak.copy()
            count = min(len(self._live), 1 + int(self._rng.integers(HOP_CHANGES)))
            for column in self._rng.choice(self._live, size=count, replace=False):
                last = self._last[column]
                at_end = self._ordinal[column] and self._rng.random() < END_SHARE
                row[column] = last * int(self._rng.integers(2)) if at_end else self._rng.integers(last + 1)
            if self._legal(row) and self._height(row) is None:
                return row
        return None

    def _legal(self, row: Rows) -> bool:
        inside = all(0 <= place <= last for place, last in zip(row.tolist(), self._last, strict=True))
        return inside and self._space.is_legal_row(row)


def _partners(space: Space) -> list[list[int]]:
    """For each column, the other live ones that a constraint names beside it."""
    live = [name for name, values in space.parameters.items() if len(values) > 1]
    found: list[list[int]] = [[] for _ in space.names]
    for expression, _ in space.constraints:
        names = {
            leaf.id
            for leaf in ast.walk(ast.parse(expression.strip(), mode="eval"))
            if isinstance(leaf, ast.Name)
        }
        columns = [column for column, name in enumerate(space.names) if name in names and name in live]
        for column in columns:
            found[column] += [other for other in columns if other != column and other not in found[column]]
    return found
