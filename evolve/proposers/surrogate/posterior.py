"""The posterior of a Gaussian process over a pool of points, kept up to date while observations arrive, and its kernel.

The kernel says what two points of a space are presumed to have in common: Matérn 3/2 of the distance over all columns
plus a linear trend. While there are few observations, of which most say something of one or two parameters but hardly
of all together, the same over each parameter and each pair of parameters alone is added and outweighs it (additive
processes: Duvenaud, Nickisch and Rasmussen 2011).
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg.lapack import dtrtrs

SINGLES = 2.0
PAIRS = 5.0
"""Weight of the mean over parameters, and over their pairs, for one of the whole."""


class Kernel:
    """Over points that are scaled, so that one is the length scale, and centred. ``trend`` weighs the inner product.

    ``groups`` are the columns of each parameter where single ones and pairs count, else empty.
    """

    def __init__(self, trend: float, groups: Sequence[np.ndarray] = ()) -> None:
        self._trend, self._groups = trend, groups

    def variance(self, points: np.ndarray) -> np.ndarray:
        """The kernel of each point [points] with itself."""
        constant = 1.0 + SINGLES * (len(self._groups) > 0) + PAIRS * (len(self._groups) > 1)
        return constant + self._trend * np.einsum("ij,ij->i", points, points)

    def __call__(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """[points of one, points of the other]"""
        products = one @ other.T
        kernel = correlation(_squared(one, other, products))
        if self._groups:
            self._add_parts(kernel, one, other)
        products *= self._trend
        kernel += products
        return kernel

    def _add_parts(self, kernel: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
        """The mean of k_g over single parameters and that of k_g k_h over pairs, from their sum and sum of squares."""
        count, total, squares = len(self._groups), np.zeros_like(kernel), np.zeros_like(kernel)
        for columns in self._groups:
            mine, its = one[:, columns], other[:, columns]
            single = correlation(_squared(mine, its, mine @ its.T))
            total += single
            single *= single
            squares += single
        kernel += SINGLES / count * total
        if count > 1:
            total *= total
            total -= squares
            total *= PAIRS / (count * (count - 1))
            kernel += total


def _squared(one: np.ndarray, other: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Squared distances from inner products."""
    squared = -2.0 * products
    squared += np.einsum("ij,ij->i", one, one)[:, None]
    squared += np.einsum("ij,ij->i", other, other)
    return np.maximum(squared, 0.0, out=squared)


def correlation(squared: np.ndarray) -> np.ndarray:
    """Matérn 3/2 of a squared distance."""
    distance = 3.0 * squared  # in place from here on: fresh pages cost more than the arithmetic
    np.sqrt(distance, out=distance)
    falls = np.exp(-distance)
    distance += 1.0
    distance *= falls
    return distance


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
