"""The posterior of a Gaussian process over a pool of points, kept up to date while observations arrive."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dtrtrs

from tilewright.evolve.proposers.surrogate.kernel import Kernel

_LEAST_VARIANCE = 1e-9


class Posterior:
    """The process given observations, over a pool of points asked about again and again.

    Its kernel sees points scaled by ``scales`` [columns] and centred on the first observations. Points of the pool are
    named by place, in order of addition. Observing some of them adds rows to the Cholesky factor and to its product
    with the pool, so that it costs O(observations x pool) rather than a new factorisation.
    """

    def __init__(
        self,
        features: np.ndarray,
        targets: np.ndarray,
        scales: np.ndarray,
        kernel: Kernel,
        *,
        noise: float,
        spare: int = 0,
    ) -> None:
        """``features`` [observations, columns], ``targets`` [observations]; ``spare`` more may follow."""
        self._scales, self._kernel, self._noise = scales, kernel, noise
        self._middle = (features * scales).mean(axis=0)
        self._have = points = features * scales - self._middle
        gram = self._kernel(points, points)
        gram[np.diag_indices(len(gram))] += noise
        self._root = np.linalg.cholesky(gram)
        self._mean, self._rest = profile(self._root, targets)
        self._amplitude = float(self._rest @ self._rest / len(self._rest))
        self._most = len(targets) + spare
        self._pool = np.zeros((0, points.shape[1]))
        self._products = np.zeros((0, self._most))
        self._expected, self._variance = np.zeros(0), np.zeros(0)

    @property
    def room(self) -> int:
        """Observations it can still take in."""
        return self._most - len(self._rest)

    def add_pool(self, features: np.ndarray) -> None:
        """More points [points, columns] to be asked about."""
        pool, n, first = features * self._scales - self._middle, len(self._rest), len(self._pool)
        explained = solved(self._root, self._kernel(self._have, pool)).T
        expected = self._mean + explained @ self._rest
        variance = self._kernel.variance(pool) - np.einsum("ij,ij->i", explained, explained)
        self._pool = np.concatenate([self._pool, pool])
        if len(self._pool) > len(self._products):
            grown = np.zeros((len(self._pool) + len(self._pool) // 4, self._most))
            grown[:first] = self._products[:first]
            self._products = grown
        self._products[first : len(self._pool), :n] = explained
        self._expected = np.concatenate([self._expected, expected])
        self._variance = np.concatenate([self._variance, variance])

    def observe(self, places: np.ndarray, targets: np.ndarray) -> None:
        """Observations of some points of the pool, at most ``room``."""
        n, more = len(self._rest), len(places)
        rows, corner, latest = self._conditioned(places)
        rest = solved(corner, targets - self._mean - rows @ self._rest)
        root = np.zeros((n + more, n + more))
        root[:n, :n], root[n:, :n], root[n:, n:] = self._root, rows, corner
        self._root = root
        self._have = np.concatenate([self._have, self._pool[places]])
        self._rest = np.concatenate([self._rest, rest])
        self._products[: len(self._pool), n : n + more] = latest
        self._expected = self._expected + latest @ rest
        self._variance = self._variance - np.einsum("ij,ij->i", latest, latest)

    def predict(self, pending: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [pool] of the noise-free target.

        ``pending`` places of the pool are believed to turn out as expected, which leaves the mean as it is.
        """
        variance = self._variance
        if pending is not None and len(pending):
            latest = self._conditioned(pending)[2]
            variance = variance - np.einsum("ij,ij->i", latest, latest)
        return self._expected, np.sqrt(np.maximum(variance, _LEAST_VARIANCE) * self._amplitude)

    def _conditioned(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What observing these places adds to the root: rows [places, observations] and a corner [places, places];
        and to its product with the pool [pool, places]."""
        explained, points = self._products[: len(self._pool), : len(self._rest)], self._pool[places]
        rows = explained[places]
        gram = self._kernel(points, points) - rows @ rows.T
        gram[np.diag_indices(len(gram))] += self._noise + _LEAST_VARIANCE
        corner = np.linalg.cholesky(gram)
        return rows, corner, solved(corner, self._kernel(points, self._pool) - rows @ explained.T).T


def profile(root: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Generalised least-squares mean, and what is left of the targets in the coordinates of the root."""
    both = solved(root, np.stack([targets, np.ones(len(targets))], axis=1))
    mean = float((both[:, 0] @ both[:, 1]) / (both[:, 1] @ both[:, 1]))
    return mean, both[:, 0] - mean * both[:, 1]


def solved(root: np.ndarray, right: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """x of ``root x = right`` for a lower triangular root, or of its transpose."""
    # The transpose of a C array is the Fortran array that LAPACK wants, without a copy.
    answer, fault = dtrtrs(root.T, right, lower=0, trans=int(not transposed))
    if fault:
        raise np.linalg.LinAlgError(f"the triangular factor is singular at row {fault}")
    return answer
