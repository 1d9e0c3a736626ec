"""Extremely randomised trees (Geurts, Ernst and Wehenkel 2006) on encoded points, with their spread.

All trees grow together, one level at a time, in a few array operations: on a hundred points, what a library does
around each tree takes ten times as long as the tree. It also makes the trees the same under every version of a
library.
"""

from __future__ import annotations

import numpy as np

_COLUMNS_TRIED = 0.6
"""Share of the columns that compete for each split."""

_DIGITS = 9
"""Splits are compared to so many digits, so that rounding differs nowhere between machines."""


class Forest:
    """Regression trees grown to pure leaves, fitted on creation."""

    def __init__(
        self, features: np.ndarray, targets: np.ndarray, trees: int, seed: int, *, bootstrap: bool
    ) -> None:
        """``features`` [points, columns], ``targets`` [points]."""
        rng = np.random.default_rng(seed)
        count = len(targets)
        weights = np.ones((trees, count))
        if bootstrap:
            drawn = rng.integers(count, size=(trees, count)) + count * np.arange(trees)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=trees * count).reshape(trees, count).astype(float)
        tree, point = np.nonzero(weights)
        self._trees = trees
        self._levels: list[_Level] = []
        self._grow(tree, features[point].astype(float), targets[point], weights[tree, point], rng)

    def _grow(
        self, node: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray, rng: np.random.Generator
    ) -> None:
        """``node`` [entries] is sorted: the node of this level that each entry has reached."""
        nodes = self._trees
        while nodes:
            first = np.flatnonzero(np.diff(node, prepend=-1))
            level, left = _split(first, node, x, y, weight, rng)
            self._levels.append(level)
            keep = level.child[node] >= 0
            side = level.child[node] + np.where(left, 0, 1)
            order = np.flatnonzero(keep)[np.argsort(side[keep], kind="stable")]
            node, x, y, weight = side[order], x[order], y[order], weight[order]
            nodes = 2 * int((level.child >= 0).sum())

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [points] over the trees."""
        answers = np.zeros((self._trees, len(features)))
        where = np.arange(answers.size)
        node, point = np.divmod(where, max(1, len(features)))
        for level in self._levels:
            child = level.child[node]
            ends = child < 0
            answers.flat[where[ends]] = level.value[node[ends]]
            on = ~ends
            where, node, point, child = where[on], node[on], point[on], child[on]
            node = child + (features[point, level.column[node]] > level.threshold[node])
        return answers.mean(axis=0), answers.std(axis=0)


class _Level:
    """Nodes of one depth. ``child`` is the left child's number on the next level, -1 at a leaf; the right child
    is the next one."""

    def __init__(
        self, value: np.ndarray, column: np.ndarray, threshold: np.ndarray, inner: np.ndarray
    ) -> None:
        self.value, self.column, self.threshold = value, column, threshold
        self.child = np.where(inner, 2 * (np.cumsum(inner) - 1), -1)


def _split(
    first: np.ndarray,
    node: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
) -> tuple[_Level, np.ndarray]:
    """The nodes that start at ``first``, and which entries [entries] go left.

    Of a random share of the columns that vary, each with a random threshold, the one that leaves least variance.
    """
    total, mass = np.add.reduceat(weight, first), np.add.reduceat(weight * y, first)
    low, high = np.minimum.reduceat(x, first), np.maximum.reduceat(x, first)
    varies = high > low
    keys = np.where(varies, rng.random(low.shape), 2.0)
    share = max(1, round(_COLUMNS_TRIED * x.shape[1]))
    tried = varies & (keys <= np.partition(keys, share - 1, axis=1)[:, share - 1 : share])
    threshold = low + rng.random(low.shape) * (high - low)
    left = x <= threshold[node]
    left_total = np.add.reduceat(left * weight[:, None], first)
    left_mass = np.add.reduceat(left * (weight * y)[:, None], first)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = left_mass**2 / left_total + (mass[:, None] - left_mass) ** 2 / (total[:, None] - left_total)
    gain = np.where(tried, gain, -1.0)
    scale = gain.max(axis=1, keepdims=True)
    column = np.argmax(np.round(gain / np.where(scale > 0.0, scale, 1.0), _DIGITS), axis=1)
    pure = np.maximum.reduceat(y, first) <= np.minimum.reduceat(y, first)
    inner = tried.any(axis=1) & ~pure
    numbers = np.arange(len(first))
    level = _Level(mass / total, column, threshold[numbers, column], inner)
    return level, left[np.arange(len(node)), column[node]]
