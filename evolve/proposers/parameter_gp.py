"""A Gaussian process over encoded points, with one length scale per parameter.

Matérn 5/2 with automatic relevance determination (Rasmussen and Williams 2006, chapters 4 and 5). Mean and
amplitude are profiled out. Hyperparameters live on a grid of powers of two and climb it coordinate by
coordinate: that needs no gradients, and unlike a continuous optimiser it ends on the same values on every
machine, rounding differences notwithstanding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve_triangular

_SCALE_RANGE = (-4.0, 4.0)
"""log2 of the inverse length scale of a parameter whose values span [0, 1]."""

_SCALE_START = 1.0
_DERIVED_START = -1.0
"""The same where a group follows from others, so that it counts for little until it explains something."""

_SCALE_WIDTH = 1.5
"""Width of the log-normal prior (in log2) that pulls inverse length scales to 1."""

_NOISE_RANGE = (-12.0, 0.0)
_NOISE_START = -7.0
_NOISE_WIDTH = 2.5
"""log2 of the noise variance over the amplitude, and its prior around the start."""

_TIE = 1e-6
"""Improvements of the log posterior below this are rounding."""


class GaussianProcess:
    """``groups`` [columns] names the parameter each feature column belongs to, counted from 0; ``derived``
    are the groups that follow from others."""

    def __init__(self, groups: np.ndarray, derived: Sequence[int] = ()) -> None:
        self._groups = groups
        self._count = int(groups.max()) + 1 if len(groups) else 0
        self._log_scale = np.full(self._count, _SCALE_START)
        self._log_scale[list(derived)] = _DERIVED_START
        self._log_noise = _NOISE_START
        self._features = np.zeros((0, len(groups)))

    def tune(self, features: np.ndarray, targets: np.ndarray, sweeps: int) -> None:
        """Climb the posterior from where the last call ended, at most ``sweeps`` times over all coordinates."""
        apart = self._apart(features)
        self._log_noise, log_scale = self._log_noise, self._log_scale
        total = np.tensordot(4.0**log_scale, apart, axes=1)
        best = self._loss(total, targets, log_scale, self._log_noise)
        for _ in range(sweeps):
            moved = False
            for group in range(self._count):
                for step in (1.0, -1.0):
                    trial = log_scale.copy()
                    trial[group] = np.clip(trial[group] + step, *_SCALE_RANGE)
                    if trial[group] == log_scale[group]:
                        continue
                    changed = total + (4.0 ** trial[group] - 4.0 ** log_scale[group]) * apart[group]
                    loss = self._loss(changed, targets, trial, self._log_noise)
                    if loss < best - _TIE:
                        best, log_scale, total, moved = loss, trial, changed, True
                        break
            for step in (1.0, -1.0):
                noise = float(np.clip(self._log_noise + step, *_NOISE_RANGE))
                loss = self._loss(total, targets, log_scale, noise)
                if loss < best - _TIE:
                    best, self._log_noise, moved = loss, noise, True
                    break
            if not moved:
                break
        self._log_scale = log_scale

    def condition(self, features: np.ndarray, targets: np.ndarray) -> None:
        """Take observations at the present hyperparameters."""
        self._features = features * self._scales
        self._norms = (self._features**2).sum(axis=1)
        gram = _correlation(_squared(self._features, self._norms, self._features, self._norms))
        gram[np.diag_indices(len(targets))] = 1.0 + 2.0**self._log_noise
        self._root = np.linalg.cholesky(gram)
        self._mean, self._weights, self._amplitude = _profile(self._root, targets)

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean and standard deviation [points] of the noise-free target."""
        scaled = features * self._scales
        cross = _correlation(_squared(self._features, self._norms, scaled, (scaled**2).sum(axis=1)))
        mean = self._mean + cross.T @ self._weights
        explained = solve_triangular(self._root, cross, lower=True, check_finite=False)
        variance = np.maximum(1.0 - (explained**2).sum(axis=0), 1e-10) * self._amplitude
        return mean, np.sqrt(variance)

    @property
    def _scales(self) -> np.ndarray:
        return (2.0**self._log_scale)[self._groups]

    def _apart(self, features: np.ndarray) -> np.ndarray:
        """Squared distances [groups, points, points] before scaling."""
        apart = np.zeros((self._count, len(features), len(features)))
        for column, group in enumerate(self._groups):
            values = features[:, column]
            apart[group] += (values[:, None] - values[None]) ** 2
        return apart

    def _loss(
        self, squared: np.ndarray, targets: np.ndarray, log_scale: np.ndarray, log_noise: float
    ) -> float:
        """Negative log posterior of the hyperparameters, up to a constant."""
        gram = _correlation(squared)
        count = len(targets)
        gram[np.diag_indices(count)] = 1.0 + 2.0**log_noise
        try:
            root = np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            return math.inf
        both = solve_triangular(
            root, np.stack([targets, np.ones(count)], axis=1), lower=True, check_finite=False
        )
        mean = (both[:, 0] @ both[:, 1]) / (both[:, 1] @ both[:, 1])
        rest = both[:, 0] - mean * both[:, 1]
        fit = 0.5 * count * math.log((rest @ rest + 0.5) / (count + 1)) + np.log(np.diag(root)).sum()
        prior = 0.5 * ((log_scale / _SCALE_WIDTH) ** 2).sum()
        prior += 0.5 * ((log_noise - _NOISE_START) / _NOISE_WIDTH) ** 2
        return float(fit + prior)


def _squared(one: np.ndarray, norms: np.ndarray, other: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.maximum(norms[:, None] + others[None] - 2.0 * one @ other.T, 0.0)


def _correlation(squared: np.ndarray) -> np.ndarray:
    distance = np.sqrt(5.0 * squared)
    return (1.0 + distance + distance * distance / 3.0) * np.exp(-distance)


def _profile(root: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray, float]:
    """Generalised least-squares mean, dual weights and maximum-likelihood amplitude."""
    both = solve_triangular(
        root, np.stack([targets, np.ones(len(targets))], axis=1), lower=True, check_finite=False
    )
    mean = float((both[:, 0] @ both[:, 1]) / (both[:, 1] @ both[:, 1]))
    rest = both[:, 0] - mean * both[:, 1]
    weights = solve_triangular(root, rest, lower=True, trans="T", check_finite=False)
    return mean, weights, float(rest @ rest / len(targets))
