"""A Gaussian process over encoded points, with one length scale per parameter.

Matérn 3/2 with automatic relevance determination (Rasmussen and Williams 2006, chapters 4 and 5). Mean and
amplitude are profiled out. Hyperparameters live on a grid of powers of two and climb it along the coordinates
whose gradient promises most: unlike a continuous optimiser that ends on the same values on every machine,
rounding differences notwithstanding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

_SCALE_RANGE = (-4.0, 4.0)
"""log2 of the inverse length scale of a parameter whose values span [0, 1]."""

_SCALE_START = -1.0
_DERIVED_START = -2.0
"""The same where a group follows from others, so that it counts for little until it explains something."""

_SCALE_WIDTH = 1.5
"""Width of the log-normal prior (in log2) that pulls inverse length scales to 1."""

_NOISE_RANGE = (-12.0, 0.0)
_NOISE_START = -5.0
_NOISE_WIDTH = 2.5
"""log2 of the noise variance over the amplitude, and its prior around the start."""

_TIE = 1e-6
"""Improvements of the log posterior below this are rounding."""

_TRIALS = 6
"""Coordinates tried for each gradient."""

_LEAST_VARIANCE = 1e-9


class GaussianProcess:
    """``groups`` [columns] names the parameter each feature column belongs to, counted from 0; ``derived``
    are the groups that follow from others."""

    def __init__(self, groups: np.ndarray, derived: Sequence[int] = ()) -> None:
        self._groups = groups
        self._count = int(groups.max()) + 1 if len(groups) else 0
        self._place = np.full(self._count + 1, _SCALE_START)
        self._place[list(derived)] = _DERIVED_START
        self._place[-1] = _NOISE_START

    @property
    def log_scale(self) -> np.ndarray:
        """log2 of each group's inverse length scale."""
        return self._place[:-1]

    def tune(self, features: np.ndarray, targets: np.ndarray, rounds: int) -> None:
        """Climb the posterior from where the last call ended: ``rounds`` gradients, a few steps for each."""
        objective = _Objective(features, targets, self._groups, self._count)
        place = self._place
        total = objective.total(place)
        best = objective.loss(total, place)
        for _ in range(rounds):
            slope = np.round(objective.slope(total, place), 5)
            moved = False
            for coordinate in np.argsort(-np.abs(slope), kind="stable")[:_TRIALS]:
                trial = place.copy()
                trial[coordinate] = _clipped(
                    place[coordinate] - np.sign(slope[coordinate]), coordinate, place
                )
                if trial[coordinate] == place[coordinate]:
                    continue
                changed = objective.moved(total, place, trial, int(coordinate))
                loss = objective.loss(changed, trial)
                if loss < best - _TIE:
                    best, place, total, moved = loss, trial, changed, True
            if not moved:
                break
        self._place = place

    def posterior(self, features: np.ndarray, targets: np.ndarray, spare: int = 0) -> Posterior:
        """The belief after these observations; it can take in ``spare`` more."""
        return Posterior(features * self._scales, targets, 2.0 ** self._place[-1], self._scales, spare)

    @property
    def _scales(self) -> np.ndarray:
        return (2.0**self.log_scale)[self._groups]


def _clipped(value: float, coordinate: int, place: np.ndarray) -> float:
    low, high = _NOISE_RANGE if coordinate == len(place) - 1 else _SCALE_RANGE
    return float(min(max(value, low), high))


class _Objective:
    """Negative log posterior of the hyperparameters, up to a constant, and its gradient.

    A place [groups + 1] holds log2 inverse length scales, then log2 noise. Pairs of points are kept once.
    """

    def __init__(self, features: np.ndarray, targets: np.ndarray, groups: np.ndarray, count: int) -> None:
        self._targets = targets
        self._pairs = np.tril_indices(len(targets), -1)
        one, other = self._pairs
        self._apart = np.zeros((count, len(one)))
        for column, group in enumerate(groups):
            values = features[:, column]
            self._apart[group] += (values[one] - values[other]) ** 2

    def total(self, place: np.ndarray) -> np.ndarray:
        """Scaled squared distance [pairs]."""
        return 4.0 ** place[:-1] @ self._apart

    def moved(self, total: np.ndarray, place: np.ndarray, trial: np.ndarray, coordinate: int) -> np.ndarray:
        if coordinate == len(place) - 1:
            return total
        return total + (4.0 ** trial[coordinate] - 4.0 ** place[coordinate]) * self._apart[coordinate]

    def loss(self, total: np.ndarray, place: np.ndarray) -> float:
        root = self._root(total, place)
        if root is None:
            return math.inf
        rest = _profile(root, self._targets)[1]
        count = len(self._targets)
        fit = 0.5 * count * math.log((rest @ rest + 0.5) / (count + 1)) + np.log(np.diag(root)).sum()
        prior = ((place[:-1] / _SCALE_WIDTH) ** 2).sum() + ((place[-1] - _NOISE_START) / _NOISE_WIDTH) ** 2
        return float(fit + 0.5 * prior)

    def slope(self, total: np.ndarray, place: np.ndarray) -> np.ndarray:
        """[groups + 1] per unit of log2."""
        root = self._root(total, place)
        if root is None:
            return np.zeros(len(place))
        rest = _profile(root, self._targets)[1]
        weights = solve_triangular(root, rest, lower=True, trans="T", check_finite=False)
        inverse = cho_solve((root, True), np.eye(len(root)), check_finite=False)
        scale = len(rest) / (rest @ rest + 0.5)
        one, other = self._pairs
        outer = inverse[one, other] - scale * weights[one] * weights[other]
        slope = np.zeros(len(place))
        falls = -1.5 * np.exp(-np.sqrt(3.0 * total))
        slope[:-1] = math.log(4.0) * 4.0 ** place[:-1] * (self._apart @ (outer * falls))
        slope[:-1] += place[:-1] / _SCALE_WIDTH**2
        on_diagonal = 0.5 * (np.trace(inverse) - scale * (weights @ weights))
        slope[-1] = math.log(2.0) * 2.0 ** place[-1] * on_diagonal
        slope[-1] += (place[-1] - _NOISE_START) / _NOISE_WIDTH**2
        return slope

    def _root(self, total: np.ndarray, place: np.ndarray) -> np.ndarray | None:
        gram = np.zeros((len(self._targets),) * 2)
        gram[self._pairs] = _correlation(total)
        gram[np.diag_indices(len(gram))] = 1.0 + 2.0 ** place[-1]
        try:
            return np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            return None


@dataclass(frozen=True)
class _Arrays:
    """What a posterior holds, in rows that fill up as it observes."""

    points: np.ndarray
    root: np.ndarray
    rest: np.ndarray


class Posterior:
    """The process given observations, over a pool of points asked about again and again.

    An observation adds one row to the Cholesky factor and to its product with the pool, so it costs
    O(observations x pool) rather than a new factorisation.
    """

    def __init__(
        self, points: np.ndarray, targets: np.ndarray, noise: float, scales: np.ndarray, spare: int
    ) -> None:
        """``points`` [observations, columns] are already scaled."""
        self._scales, self._noise, self._count = scales, noise, len(targets)
        gram = _correlation(_squared(points, points))
        gram[np.diag_indices(len(targets))] = 1.0 + noise
        root = np.linalg.cholesky(gram)
        room = len(targets) + spare
        self._have = _Arrays(np.zeros((room, points.shape[1])), np.zeros((room, room)), np.zeros(room))
        self._mean, rest = _profile(root, targets)
        self._amplitude = float(rest @ rest / len(rest))
        self._have.points[: len(points)], self._have.rest[: len(rest)] = points, rest
        self._have.root[: len(root), : len(root)] = root
        self._pool = np.zeros((0, points.shape[1]))
        self._explained = np.zeros((room, 0))
        self._expected, self._variance = np.zeros(0), np.zeros(0)

    @property
    def room(self) -> int:
        """Observations it can still take in."""
        return len(self._have.rest) - self._count

    def add_pool(self, features: np.ndarray) -> None:
        """More points [points, columns] to be asked about."""
        pool, n = features * self._scales, self._count
        explained = np.zeros((len(self._have.rest), len(pool)))
        cross = _correlation(_squared(self._have.points[:n], pool))
        explained[:n] = solve_triangular(self._have.root[:n, :n], cross, lower=True, check_finite=False)
        expected = self._mean + self._have.rest[:n] @ explained[:n]
        variance = 1.0 - np.einsum("ij,ij->j", explained[:n], explained[:n])
        self._pool = np.concatenate([self._pool, pool])
        self._explained = np.concatenate([self._explained, explained], axis=1)
        self._expected = np.concatenate([self._expected, expected])
        self._variance = np.concatenate([self._variance, variance])

    def observe(self, features: np.ndarray, target: float) -> None:
        """One more observation, ``features`` [columns]."""
        n, have = self._count, self._have
        point = (features * self._scales)[None]
        below = _correlation(_squared(have.points[:n], point))
        row = solve_triangular(have.root[:n, :n], below, lower=True, check_finite=False)[:, 0]
        corner = math.sqrt(max(1.0 + self._noise - float(row @ row), _LEAST_VARIANCE))
        have.points[n], have.root[n, :n], have.root[n, n] = point, row, corner
        have.rest[n] = (target - self._mean - row @ have.rest[:n]) / corner
        cross = _correlation(_squared(point, self._pool))[0]
        latest = (cross - row @ self._explained[:n]) / corner
        self._explained[n] = latest
        self._expected = self._expected + have.rest[n] * latest
        self._variance = self._variance - latest * latest
        self._count = n + 1

    def predict(self, pending: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [pool] of the noise-free target.

        ``pending`` [points, columns] are believed to turn out as expected, which leaves the mean as it is.
        """
        variance = self._variance
        if pending is not None and len(pending):
            variance = variance - self._explained_by(pending * self._scales)
        return self._expected, np.sqrt(np.maximum(variance, _LEAST_VARIANCE) * self._amplitude)

    def _explained_by(self, points: np.ndarray) -> np.ndarray:
        """Variance [pool] that observing these scaled points would take away."""
        n = self._count
        below = _correlation(_squared(self._have.points[:n], points))
        rows = solve_triangular(self._have.root[:n, :n], below, lower=True, check_finite=False)
        gram = _correlation(_squared(points, points)) - rows.T @ rows
        gram[np.diag_indices(len(gram))] += self._noise + _LEAST_VARIANCE
        cross = _correlation(_squared(points, self._pool)) - rows.T @ self._explained[:n]
        more = solve_triangular(np.linalg.cholesky(gram), cross, lower=True, check_finite=False)
        return np.einsum("ij,ij->j", more, more)


def _squared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    norms, others = np.einsum("ij,ij->i", one, one), np.einsum("ij,ij->i", other, other)
    return np.maximum(norms[:, None] + others[None] - 2.0 * one @ other.T, 0.0)


def _correlation(squared: np.ndarray) -> np.ndarray:
    distance = np.sqrt(3.0 * squared)
    return (1.0 + distance) * np.exp(-distance)


def _profile(root: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Generalised least-squares mean, and what is left of the targets in the coordinates of the root."""
    both = solve_triangular(
        root, np.stack([targets, np.ones(len(targets))], axis=1), lower=True, check_finite=False
    )
    mean = float((both[:, 0] @ both[:, 1]) / (both[:, 1] @ both[:, 1]))
    return mean, both[:, 0] - mean * both[:, 1]
