"""A Gaussian process over encoded points, with one length scale per parameter.

Matérn 3/2 with automatic relevance determination plus a linear trend in the same scaled columns (Rasmussen and
Williams 2006, chapters 2, 4 and 5): times are largely products of what single parameters contribute, so their
logarithms are largely sums, which a trend learns from few points. Mean and amplitude are profiled out.
Hyperparameters live on a grid of powers of two and climb it along the coordinates whose gradient promises most:
unlike a continuous optimiser that ends on the same values on every machine, rounding differences notwithstanding.
"""

import math
from collections.abc import Sequence

import numpy as np

from tilewright.evolve.proposers.surrogate.posterior import Kernel, Posterior, correlation, profile, solved

_SCALE_RANGE = (-4.0, 4.0)
"""log2 of the inverse length scale of a parameter whose values span [0, 1]."""

_SCALE_START = 0.0
_DERIVED_START = -2.0
"""The same where a group follows from others, so that it counts for little until it explains something."""

_SCALE_WIDTH = 1.5
"""Width of the log-normal prior (in log2) that pulls inverse length scales to 1."""

_NOISE_RANGE = (-12.0, 0.0)
_NOISE_START = -5.0
_NOISE_WIDTH = 2.5
"""log2 of the noise variance over the amplitude, and its prior around the start."""

_TREND_RANGE = (-8.0, 4.0)
_TREND_START = 2.0
_TREND_WIDTH = 2.0
"""log2 of the weight of the linear trend, and its prior around the start."""

FEW = 24
"""Observations up to which single parameters and pairs of them count beside all together."""

_TIE = 1e-6
"""Improvements of the log posterior below this are rounding."""

_TRIALS = 6
"""Coordinates tried for each gradient."""


class GaussianProcess:
    """``groups`` [columns] names the parameter each feature column belongs to, counted from 0; ``derived``
    are the groups that follow from others."""

    def __init__(self, groups: np.ndarray, derived: Sequence[int] = ()) -> None:
        self._groups = groups
        self._count = int(groups.max()) + 1 if len(groups) else 0
        self._place = np.full(self._count + 2, _SCALE_START)
        self._place[list(derived)] = _DERIVED_START
        self._place[-2] = _TREND_START
        self._place[-1] = _NOISE_START

    @property
    def log_scale(self) -> np.ndarray:
        """log2 of each group's inverse length scale."""
        return self._place[:-2]

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
                moved_to = place[coordinate] - np.sign(slope[coordinate])
                trial[coordinate] = _clipped(moved_to, int(coordinate), place)
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
        noise, trend = 2.0 ** self._place[-1], 2.0 ** self._place[-2]
        few = len(features) <= FEW
        groups = [np.flatnonzero(self._groups == g) for g in range(self._count)] if few else []
        return Posterior(features, targets, self._scales, Kernel(trend, groups), noise=noise, spare=spare)

    @property
    def _scales(self) -> np.ndarray:
        return (2.0**self.log_scale)[self._groups]


def _clipped(value: float, coordinate: int, place: np.ndarray) -> float:
    special = {len(place) - 1: _NOISE_RANGE, len(place) - 2: _TREND_RANGE}
    low, high = special.get(coordinate, _SCALE_RANGE)
    return float(min(max(value, low), high))


class _Objective:
    """Negative log posterior of the hyperparameters, up to a constant, and its gradient.

    A place [groups + 2] holds log2 inverse length scales, log2 of the trend's weight and log2 noise. Pairs of
    points are kept once.
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
        return 4.0 ** place[:-2] @ self._apart

    def moved(self, total: np.ndarray, place: np.ndarray, trial: np.ndarray, coordinate: int) -> np.ndarray:
        if coordinate >= len(place) - 2:
            return total
        return total + (4.0 ** trial[coordinate] - 4.0 ** place[coordinate]) * self._apart[coordinate]

    def loss(self, total: np.ndarray, place: np.ndarray) -> float:
        root = self._root(total, place)
        if root is None:
            return math.inf
        rest = profile(root, self._targets)[1]
        count = len(self._targets)
        fit = 0.5 * count * math.log((rest @ rest + 0.5) / (count + 1)) + np.log(np.diag(root)).sum()
        prior = ((place[:-2] / _SCALE_WIDTH) ** 2).sum() + ((place[-1] - _NOISE_START) / _NOISE_WIDTH) ** 2
        prior += ((place[-2] - _TREND_START) / _TREND_WIDTH) ** 2
        return float(fit + 0.5 * prior)

    def slope(self, total: np.ndarray, place: np.ndarray) -> np.ndarray:
        """[groups + 2] per unit of log2."""
        root = self._root(total, place)
        if root is None:
            return np.zeros(len(place))
        rest = profile(root, self._targets)[1]
        weights = solved(root, rest, transposed=True)
        half = solved(root, np.eye(len(root)))
        inverse = half.T @ half
        scale = len(rest) / (rest @ rest + 0.5)
        residual = inverse - scale * np.outer(weights, weights)
        trend = 2.0 ** place[-2]
        pull = -0.5 * trend * _centred(residual)
        falls = -1.5 * np.exp(-np.sqrt(3.0 * total))
        slope = np.zeros(len(place))
        by_distance = residual[self._pairs] * falls + pull[self._pairs]
        slope[:-2] = math.log(4.0) * 4.0 ** place[:-2] * (self._apart @ by_distance)
        slope[:-2] += place[:-2] / _SCALE_WIDTH**2
        slope[-2] = math.log(2.0) * (pull[self._pairs] @ total)
        slope[-2] += (place[-2] - _TREND_START) / _TREND_WIDTH**2
        slope[-1] = 0.5 * math.log(2.0) * 2.0 ** place[-1] * np.trace(residual)
        slope[-1] += (place[-1] - _NOISE_START) / _NOISE_WIDTH**2
        return slope

    def _root(self, total: np.ndarray, place: np.ndarray) -> np.ndarray | None:
        gram = np.zeros((len(self._targets),) * 2)
        gram[self._pairs] = total
        gram += gram.T
        gram = correlation(gram) - 0.5 * 2.0 ** place[-2] * _centred(gram)
        gram[np.diag_indices(len(gram))] += 2.0 ** place[-1]
        try:
            return np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            return None


def _centred(matrix: np.ndarray) -> np.ndarray:
    """The matrix with the means of its rows and columns taken out."""
    rows = matrix.mean(axis=0)
    return matrix - rows[None] - matrix.mean(axis=1)[:, None] + rows.mean()
