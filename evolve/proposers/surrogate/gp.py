"""A Gaussian process over encoded points, with one length scale per parameter.

Matérn 3/2 with automatic relevance determination plus a linear trend in the same scaled columns (Rasmussen and
Williams 2006, chapters 2, 4 and 5): times are largely products of what single parameters contribute, so their
logarithms are largely sums, which a trend learns from few points. Mean and amplitude are profiled out.
Hyperparameters live on a grid of powers of two and climb it along the coordinates whose gradient promises most:
unlike a continuous optimiser that ends on the same values on every machine, rounding differences notwithstanding.

The kernel says what two points of a space are presumed to have in common. While there are few observations, of which
most say something of one or two parameters but hardly of all together, the same over each parameter and each pair of
parameters alone is added and outweighs it (additive processes: Duvenaud, Nickisch and Rasmussen 2011). The posterior
over a pool of points is kept up to date while observations arrive.
"""

import math
from collections.abc import Sequence

import numpy as np

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
        kernel = correlation(_squared_distances(one, other, products))
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
            single = correlation(_squared_distances(mine, its, mine @ its.T))
            total += single
            single *= single
            squares += single
        kernel += SINGLES / count * total
        if count > 1:
            total *= total
            total -= squares
            total *= PAIRS / (count * (count - 1))
            kernel += total


def _squared_distances(one: np.ndarray, other: np.ndarray, products: np.ndarray) -> np.ndarray:
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
        explained = solve_triangular(self._root, self._kernel(self._have, pool)).T
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
        rest = solve_triangular(corner, targets - self._mean - rows @ self._rest)
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
        unexplained = self._kernel(points, self._pool) - rows @ explained.T
        return rows, corner, solve_triangular(corner, unexplained).T


def profile(root: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Generalised least-squares mean, and what is left of the targets in the coordinates of the root."""
    both = solve_triangular(root, np.stack([targets, np.ones(len(targets))], axis=1))
    mean = float((both[:, 0] @ both[:, 1]) / (both[:, 1] @ both[:, 1]))
    return mean, both[:, 0] - mean * both[:, 1]


def solve_triangular(root: np.ndarray, right: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """x of ``root x = right`` for a lower triangular root, or of its transpose."""
    from scipy.linalg.lapack import dtrtrs  # half a second that a check need not wait for

    # The transpose of a C array is the Fortran array that LAPACK wants, without a copy.
    answer, fault = dtrtrs(root.T, right, lower=0, trans=int(not transposed))
    if fault:
        raise np.linalg.LinAlgError(f"the triangular factor is singular at row {fault}")
    return answer


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

    def posterior(self, features: np.ndarray, targets: np.ndarray, stretch: float = 1.0, spare: int = 0) -> Posterior:
        """The belief after these observations, length scales times ``stretch``; it can take in ``spare`` more."""
        noise, trend = 2.0 ** self._place[-1], 2.0 ** self._place[-2]
        few = len(features) <= FEW
        groups = [np.flatnonzero(self._groups == g) for g in range(self._count)] if few else []
        scales = self._scales / stretch
        return Posterior(features, targets, scales, Kernel(trend, groups), noise=noise, spare=spare)

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
        weights = solve_triangular(root, rest, transposed=True)
        half = solve_triangular(root, np.eye(len(root)))
        inverse = half.T @ half
        scale = len(rest) / (rest @ rest + 0.5)
        residual = inverse - scale * np.outer(weights, weights)
        trend = 2.0 ** place[-2]
        pull = -0.5 * trend * _centred_matrix(residual)
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
        gram = correlation(gram) - 0.5 * 2.0 ** place[-2] * _centred_matrix(gram)
        gram[np.diag_indices(len(gram))] += 2.0 ** place[-1]
        try:
            return np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            return None


def _centred_matrix(matrix: np.ndarray) -> np.ndarray:
    """The matrix with the means of its rows and columns taken out."""
    rows = matrix.mean(axis=0)
    return matrix - rows[None] - matrix.mean(axis=1)[:, None] + rows.mean()
