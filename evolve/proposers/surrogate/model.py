"""The belief of a campaign about points it has not tried: two Gaussian processes, one with longer length scales.

Few points fit many length scales, and a search that trusts one fit stays in the valley where it was made. So each
process counts for half of what is expected of a point. Failures have no fitness: a point fails as its neighbours do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.evolve.proposers.surrogate.features import Encoder, neighbour_means
from tilewright.evolve.proposers.surrogate.gp import GaussianProcess
from tilewright.evolve.proposers.surrogate.records import SourceRecords
from tilewright.evolve.space.space import Rows

FIRST_ROUNDS = 6
LATER_ROUNDS = 2

STRETCHES = (1.0, 2.0)
"""Length scales of each process, as multiples of those that were fitted."""

FAILURE_PRIOR = 6.0
"""Weight of what the neighbours say of feasibility against one vote of the overall success rate."""

LEAST_FEASIBLE = 0.02

MOST_POINTS = 240
"""Points the process learns from: beyond it, the best third of these and the latest others."""

MOST_TUNED = 120
"""The same for its hyperparameters."""

MOST_SPARE = 240
"""Points the process takes in between two refits, at most."""

MOST_VOTES = 200
"""Points that say where failures lie, at most, chosen alike."""

KNEE = 2.0
"""Loss beyond which a point counts as merely bad, as a multiple of the median loss."""

LEAST_KNEE = 0.02

_FAR = 20.0
"""Deviations from the best beyond which expected improvement is its asymptote."""

Group = tuple[int, Rows]
"""Points of one source: its number in the model, and their index rows."""


@dataclass(frozen=True)
class Warp:
    """From log fitness to what is modelled. Losses far beyond the knee differ less than losses near the best: a
    model should tell good points apart rather than bad ones."""

    best: float
    knee: float
    width: float = 1.0

    def __call__(self, targets: np.ndarray) -> np.ndarray:
        loss = (self.best - targets) / self.knee
        return -np.where(loss > 0, np.log1p(np.maximum(loss, 0.0)), loss) / self.width


def fitted_warp(targets: np.ndarray, best: float) -> Warp:
    """The warp whose knee is the typical loss."""
    loss = best - targets[~np.isnan(targets)]
    warp = Warp(best, max(KNEE * float(np.median(loss)), LEAST_KNEE))
    return Warp(best, warp.knee, float(np.nanstd(warp(targets))) + 1e-9)


class Model:
    """Knows the records of some sources. ``learn`` refits it; ``add`` names the points it is asked about, and
    ``observe`` takes in what became of a point until the next refit."""

    def __init__(self, sources: Sequence[SourceRecords], earlier: Sequence[SourceRecords] = ()) -> None:
        """``earlier`` are records of other campaigns: they teach, but are neither asked about nor beaten."""
        self.sources = tuple(sources)
        self._all = (*sources, *earlier)
        self._encoder = Encoder([records.space for records in self._all])
        self._process = GaussianProcess(self._encoder.groups, self._encoder.derived)
        self._tuned = False

    def learn(self, spare: int) -> None:
        """Refit to the records as they are now; ``spare`` observations may follow before the next refit."""
        targets = self._targets()
        ok = ~np.isnan(targets)
        self._warp = fitted_warp(targets, max(records.best for records in self.sources))
        warped = self._warp(targets)
        age = np.concatenate([[c.index for c in r.candidates] or [-1] * len(r.rows) for r in self._all])
        self._learn_process(warped, age, spare)
        kept = _chosen(np.where(ok, warped, -np.inf), age, MOST_VOTES)
        self._votes = None if ok.all() else (self._encoded(kept), ok[kept].astype(float))
        self._success_rate = float(ok.mean())
        self._best = 0.0
        self._feasible = np.zeros(0)

    def _learn_process(self, warped: np.ndarray, age: np.ndarray, spare: int) -> None:
        chosen = _chosen(warped, age, MOST_POINTS)
        smooth, targets = self._encoded(chosen), warped[chosen]
        tuned = _chosen(targets, age[chosen], MOST_TUNED)
        rounds = LATER_ROUNDS if self._tuned else FIRST_ROUNDS
        self._process.tune(smooth[tuned], targets[tuned], rounds)
        self._tuned = True
        spare = min(spare, MOST_SPARE)
        self._posteriors = [self._process.posterior(smooth, targets, stretch, spare) for stretch in STRETCHES]

    @property
    def room(self) -> int:
        """Successes it can still observe before the next refit."""
        return self._posteriors[0].room

    def add(self, groups: Sequence[Group]) -> None:
        """More points to be asked about."""
        for source, rows in groups:
            if not len(rows):
                continue
            smooth = self._encoder.smooth(source, rows)
            for posterior in self._posteriors:
                posterior.add_pool(smooth)
            self._feasible = np.concatenate([self._feasible, self._probability_of_success(smooth)])

    def observe(self, places: Sequence[int], targets: Sequence[float]) -> None:
        """What became of some points of the pool, as log fitness; failures wait for the next refit."""
        pairs = [(p, t) for p, t in zip(places, targets, strict=True) if not math.isnan(t)][: self.room]
        if pairs:
            warped = self._warp(np.array([target for _, target in pairs]))
            for posterior in self._posteriors:
                posterior.observe(np.array([place for place, _ in pairs]), warped)
            self._best = max(self._best, float(warped.max()))

    def promise(self, pending: Sequence[int] = (), doubt: float = 1.0) -> np.ndarray:
        """Log of the expected gain over the best times the probability of success, for each point of the pool.

        ``pending`` are places of points in flight. ``doubt`` scales the standard deviation: less of it asks for
        what is known to be good.
        """
        beliefs = [posterior.predict(np.array(pending, dtype=int)) for posterior in self._posteriors]
        gains = [log_improvement(mean, doubt * spread, self._best) for mean, spread in beliefs]
        return np.logaddexp.reduce(gains) - math.log(len(gains)) + np.log(self._feasible)

    def _probability_of_success(self, points: np.ndarray) -> np.ndarray:
        if self._votes is None:
            return np.ones(len(points))
        votes = neighbour_means(*self._votes, points)
        blended = (FAILURE_PRIOR * votes + self._success_rate) / (FAILURE_PRIOR + 1.0)
        return np.clip(blended, LEAST_FEASIBLE, 1.0)

    def _targets(self) -> np.ndarray:
        """Log fitness; of earlier campaigns, as if their best and this one's were equal."""
        best = max(records.best for records in self.sources)
        parts = [np.array(r.targets, dtype=float) + (best if r.earlier else 0.0) for r in self._all]
        return np.concatenate(parts)

    def _encoded(self, places: np.ndarray) -> np.ndarray:
        """Columns of the records at these ascending places among those of all sources."""
        parts, start = [], 0
        for k, records in enumerate(self._all):
            mine = places[(places >= start) & (places < start + len(records.rows))] - start
            start += len(records.rows)
            if len(mine):
                parts.append(self._encoder.smooth(k, np.array([records.rows[i] for i in mine])))
        return np.concatenate(parts)


def _chosen(targets: np.ndarray, age: np.ndarray, most: int) -> np.ndarray:
    """Places of at most so many points with a target: the best third of these, and the latest."""
    good = np.flatnonzero(~np.isnan(targets))
    if len(good) <= most:
        return good
    best = good[np.argsort(-targets[good], kind="stable")[: most // 3]]
    rest = np.setdiff1d(good, best)
    latest = rest[np.argsort(-age[rest], kind="stable")[: most - len(best)]]
    return np.sort(np.concatenate([best, latest]))


def log_improvement(mean: np.ndarray, spread: np.ndarray, best: float) -> np.ndarray:
    """Logarithm of the expected improvement of a normal belief over ``best`` (Jones, Schonlau and Welch 1998).

    Through Mills' ratio, so that points many deviations below the best still rank by promise: their improvement is
    far below what the difference of two rounded numbers can tell from zero.
    """
    from scipy.special import erfcx  # half a second that a check need not wait for

    spread = np.maximum(spread, 1e-6)
    score = (mean - best) / spread
    mills = math.sqrt(math.pi / 2.0) * erfcx(-np.clip(score, -_FAR, _FAR) / math.sqrt(2.0))
    tail = np.where(score > -_FAR, 1.0 + score * mills, 1.0 / (score * score + 3.0))
    near = -0.5 * score * score - 0.5 * math.log(2.0 * math.pi) + np.log(tail)
    return np.log(spread) + np.where(score < _FAR, near, np.log(np.maximum(score, 1.0)))
