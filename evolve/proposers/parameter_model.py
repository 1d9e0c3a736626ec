"""What a campaign believes about points it has not tried: a Gaussian process and trees, averaged.

The process learns from a handful of points which parameters matter; the trees find the cliffs and
interactions of a hardware's limits once there are points on both sides. Their average is better than either
through most of a campaign. Failures have no fitness: a second forest learns where they lie, and for the
first they count as the worst fitness seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from evolve.proposers.parameter_features import Encoder
from evolve.proposers.parameter_gp import GaussianProcess
from evolve.proposers.parameter_records import SourceRecords
from evolve.proposers.parameter_trees import Forest
from evolve.space import Rows

FIRST_SWEEPS = 3
LATER_SWEEPS = 1

TREES = 40
FAILURE_TREES = 30

FAILURE_PRIOR = 6.0
"""Weight of the trees' feasibility against one vote of the overall success rate."""

LEAST_FEASIBLE = 0.02

MOST_POINTS = 300
"""Points the process learns from: beyond it, the best third of these and the latest others."""

TREES_SHARE = 0.5
"""Weight of the trees in the average."""

Group = tuple[int, Rows]
"""Points of one source: its number in the model, and their index rows."""


class Model:
    """Knows the records of some sources. ``learn`` refits; ``condition`` only takes in new points."""

    def __init__(self, sources: Sequence[SourceRecords]) -> None:
        self.sources = tuple(sources)
        self._encoder = Encoder([records.space for records in sources])
        self._process = GaussianProcess(self._encoder.groups, self._encoder.derived)
        self._tuned = False

    def learn(self, seed: int) -> None:
        """Refit everything to the records as they are now."""
        targets = self._targets()
        ok = ~np.isnan(targets)
        smooth, split = self._smooth(), self._split()
        chosen = self._chosen(targets)
        standard, _, _ = _standardised(targets[chosen])
        self._process.tune(smooth[chosen], standard, LATER_SWEEPS if self._tuned else FIRST_SWEEPS)
        self._tuned = True
        imputed = np.where(ok, targets, targets[ok].min())
        self._forest = Forest(split, imputed, TREES, seed, bootstrap=True)
        self._failures = None
        if not ok.all():
            self._failures = Forest(split, ok.astype(float), FAILURE_TREES, seed + 1, bootstrap=False)
        self._success_rate = float(ok.mean())

    def condition(self, pending: Sequence[Group]) -> None:
        """Take in the latest records, and believe of pending points what is expected of them."""
        targets = self._targets()
        chosen = self._chosen(targets)
        features = self._smooth()[chosen]
        standard, self._centre, self._width = _standardised(targets[chosen])
        self._best = float(targets[chosen].max())
        self._process.condition(features, standard)
        waiting = [self._encoder.smooth(source, rows) for source, rows in pending if len(rows)]
        if waiting:
            more = np.concatenate(waiting)
            believed, _ = self._process.predict(more)
            self._process.condition(np.vstack([features, more]), np.concatenate([standard, believed]))

    def expected_improvement(self, groups: Sequence[Group]) -> np.ndarray:
        """Expected gain in log fitness over the best, times the probability of success, for all points."""
        groups = [(source, rows) for source, rows in groups if len(rows)]
        smooth = np.concatenate([self._encoder.smooth(source, rows) for source, rows in groups])
        split = np.concatenate([self._encoder.split(source, rows) for source, rows in groups])
        mean, spread = self._process.predict(smooth)
        mean, spread = mean * self._width + self._centre, spread * self._width
        other_mean, other_spread = self._forest.predict(split)
        mean = (1 - TREES_SHARE) * mean + TREES_SHARE * other_mean
        spread = np.sqrt((1 - TREES_SHARE) * spread**2 + TREES_SHARE * other_spread**2)
        return improvement(mean, spread, self._best) * self._feasible(split)

    def _feasible(self, split: np.ndarray) -> np.ndarray | float:
        if self._failures is None:
            return 1.0
        votes, _ = self._failures.predict(split)
        blended = (FAILURE_PRIOR * votes + self._success_rate) / (FAILURE_PRIOR + 1.0)
        return np.clip(blended, LEAST_FEASIBLE, 1.0)

    def _targets(self) -> np.ndarray:
        return np.concatenate([np.array(records.targets, dtype=float) for records in self.sources])

    def _smooth(self) -> np.ndarray:
        return np.concatenate(
            [self._encoder.smooth(k, np.array(r.rows)) for k, r in enumerate(self.sources) if r.rows]
        )

    def _split(self) -> np.ndarray:
        return np.concatenate(
            [self._encoder.split(k, np.array(r.rows)) for k, r in enumerate(self.sources) if r.rows]
        )

    def _chosen(self, targets: np.ndarray) -> np.ndarray:
        """Positions of the successes the process learns from."""
        good = np.flatnonzero(~np.isnan(targets))
        if len(good) <= MOST_POINTS:
            return good
        best = good[np.argsort(-targets[good], kind="stable")[: MOST_POINTS // 3]]
        age = np.concatenate([[c.index for c in records.candidates] for records in self.sources])
        rest = np.setdiff1d(good, best)
        latest = rest[np.argsort(-age[rest], kind="stable")[: MOST_POINTS - len(best)]]
        return np.sort(np.concatenate([best, latest]))


def improvement(mean: np.ndarray, spread: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement of a normal belief over ``best`` (Jones, Schonlau and Welch 1998)."""
    spread = np.maximum(spread, 1e-6)
    score = (mean - best) / spread
    density = np.exp(-0.5 * score * score) / math.sqrt(2.0 * math.pi)
    return spread * (score * ndtr(score) + density)


def _standardised(targets: np.ndarray) -> tuple[np.ndarray, float, float]:
    centre, width = float(targets.mean()), float(targets.std()) + 1e-9
    return (targets - centre) / width, centre, width
