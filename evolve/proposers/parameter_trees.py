"""Extremely randomised trees (Geurts, Ernst and Wehenkel 2006) on encoded points, with their spread."""

from __future__ import annotations

import numpy as np
from sklearn import config_context
from sklearn.tree import ExtraTreeRegressor

_COLUMNS_TRIED = 0.7
"""Share of the columns that compete for each split."""


class Forest:
    """Fitted on creation. Trees are grown one by one here because, on a hundred points, what a forest class
    of a library does around each tree takes longer than the tree."""

    def __init__(
        self, features: np.ndarray, targets: np.ndarray, trees: int, seed: int, *, bootstrap: bool
    ) -> None:
        """``features`` float32 [points, columns], ``targets`` [points]."""
        rng = np.random.default_rng(seed)
        count = len(targets)
        self._trees = []
        with config_context(assume_finite=True, skip_parameter_validation=True):
            for _ in range(trees):
                state = int(rng.integers(2**31 - 1))
                weights = np.bincount(rng.integers(count, size=count), minlength=count) if bootstrap else None
                tree = ExtraTreeRegressor(max_features=_COLUMNS_TRIED, random_state=state)
                tree.fit(features, targets, sample_weight=weights, check_input=False)
                self._trees.append(tree.tree_)

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [points] over the trees; ``features`` float32, C order."""
        answers = np.stack([tree.predict(features)[:, 0] for tree in self._trees])
        return answers.mean(axis=0), answers.std(axis=0)
