"""Extremely randomised trees (Geurts, Ernst and Wehenkel 2006) on encoded points.

All trees grow together, one level at a time, in a few array operations: on a hundred points, what a library does
around each tree takes ten times as long as the tree. It also makes the trees the same under every version of a
library.
"""

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
        columns = np.ascontiguousarray(features.T, dtype=float)
        self._grow(tree, columns[:, point], targets[point], weights[tree, point], rng)

    def _grow(
        self, node: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray, rng: np.random.Generator
    ) -> None:
        """``node`` [entries] is sorted: the node of this level that each entry has reached. ``x`` [columns, entries]:
        sums over the entries of a node run along memory."""
        values = np.zeros(self._trees)
        while len(values):
            level = _Level(values)
            self._levels.append(level)
            if not len(node):
                return
            starts = np.diff(node, prepend=-1) > 0
            first = np.flatnonzero(starts)
            left = _split(level, node[first], first, np.cumsum(starts) - 1, x, y, weight, rng)
            child = level.child[node]
            on = np.flatnonzero(child >= 0)
            side = (child + ~left)[on]
            values = np.zeros(2 * int((level.child >= 0).sum()))
            values[side] = y[on]
            # What a single entry has reached is a leaf, and its value all there is to know of it.
            several = np.bincount(side, minlength=len(values))[side] > 1
            on, side = on[several], side[several]
            order = np.argsort(side, kind="stable")
            node, on = side[order], on[order]
            x, y, weight = x.take(on, axis=1), y[on], weight[on]

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Mean [points] over the trees."""
        answers = np.zeros((self._trees, len(features)))
        flat, width = np.ascontiguousarray(features).ravel(), features.shape[1]
        where = np.arange(answers.size)
        node, row = np.divmod(where, max(1, len(features)))
        row *= width
        for level in self._levels:
            child = level.child.take(node)
            ends, on = np.flatnonzero(child < 0), np.flatnonzero(child >= 0)
            answers.flat[where.take(ends)] = level.value.take(node.take(ends))
            where, node, row, child = where.take(on), node.take(on), row.take(on), child.take(on)
            node = child + (flat.take(row + level.column.take(node)) > level.threshold.take(node))
        return answers.mean(axis=0)


class _Level:
    """Nodes of one depth: leaves of these values [nodes] unless ``split`` says more. ``child`` is the left child's
    number on the next level, -1 at a leaf; the right child is the next one."""

    def __init__(self, values: np.ndarray) -> None:
        self.value = values
        self.column, self.child = np.zeros(len(values), dtype=int), np.full(len(values), -1)
        self.threshold = np.zeros(len(values))


def _split(
    level: _Level,
    numbers: np.ndarray,
    first: np.ndarray,
    node: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Split those nodes of the level, ``numbers``, whose entries start at ``first``. Which entries [entries] go left.

    ``node`` [entries] counts these nodes from 0. Of a random share of the columns that vary, each with a random
    threshold, the one that leaves least variance.
    """
    heavy = weight * y
    total, mass = np.add.reduceat(weight, first), np.add.reduceat(heavy, first)
    low, high = np.minimum.reduceat(x, first, axis=1), np.maximum.reduceat(x, first, axis=1)
    varies = high > low
    keys = np.where(varies, rng.random(varies.shape[::-1]).T, 2.0)
    share = max(1, round(_COLUMNS_TRIED * len(x)))
    tried = varies & (keys <= np.partition(keys, share - 1, axis=0)[share - 1])
    threshold = low + rng.random(varies.shape[::-1]).T * (high - low)
    left = x <= np.take(threshold, node, axis=1)
    left_total = np.add.reduceat(left * weight, first, axis=1)
    left_mass = np.add.reduceat(left * heavy, first, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = left_mass**2 / left_total + (mass - left_mass) ** 2 / (total - left_total)
    gain = np.where(tried, gain, -1.0)
    scale = gain.max(axis=0)
    column = np.argmax(np.round(gain / np.where(scale > 0.0, scale, 1.0), _DIGITS), axis=0)
    pure = np.maximum.reduceat(y, first) <= np.minimum.reduceat(y, first)
    inner = numbers[tried.any(axis=0) & ~pure]
    level.value[numbers], level.column[numbers] = mass / total, column
    level.threshold[numbers] = threshold[column, np.arange(len(numbers))]
    level.child[inner] = 2 * np.arange(len(inner))
    return left[column[node], np.arange(len(node))]
