"""What two points of a space are presumed to have in common: the kernel of the surrogate's process.

Matérn 3/2 of the distance over all columns plus a linear trend. While there are few observations, of which most tell
something of one or two parameters but hardly of all together, the same over each parameter and each pair of parameters
alone is added and outweighs it (additive processes: Duvenaud, Nickisch and Rasmussen 2011).
"""

from __future__ import annotations

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
