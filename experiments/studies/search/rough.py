"""Made-up kernels whose landscape is as rough as recorded ones are.

On the families of ``families`` a search stands at 0.9 after 25 evaluations, where on most recorded spaces it stands at
0.7 to 0.9. Here every value of a parameter, and every pair of values of half of the pairs of parameters, multiplies the
time by an effect of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.studies.search.families import named
from testkit.spaces.tables import Table

SINGLE = 0.08
PAIR = 0.06
"""Standard deviations in log time."""

PAIRS = 0.5
"""Share of the pairs of parameters that have effects."""

PREFIX = "rough_"


def roughened(make: Callable[[], Table], seed: int) -> Table:
    """The table with effects drawn from ``seed``."""
    table = make()
    rng, space = np.random.default_rng([seed, 77]), table.space
    assert space.points is not None
    rows = space.points[np.argsort(space.codes(space.points))]
    sizes = [len(values) for values in space.parameters.values()]
    effects = np.zeros(len(rows))
    for column, size in enumerate(sizes):
        effects += rng.normal(0, SINGLE, size)[rows[:, column]]
    for one, size in enumerate(sizes):
        for other in range(one):
            if rng.random() < PAIRS:
                effects += rng.normal(0, PAIR, (size, sizes[other]))[rows[:, one], rows[:, other]]
    return replace(table, name=PREFIX + table.name, times=table.times * np.exp(effects))


def _named(*names: str) -> Mapping[str, Callable[[], Table]]:
    return {
        PREFIX + name: partial(roughened, make, int(name.rpartition("-")[2]))
        for name, make in named(*names).items()
    }


DEVELOPMENT = _named(
    *(
        f"{kind}-{seed}"
        for kind in ("stencil", "product", "filter", "blocked", "corner", "rows")
        for seed in (3, 4)
    )
)
HELD_OUT = _named(
    "channels-13", "channels-14", "attention-13", "attention-14", "transpose-13", "transpose-14", "stencil-13",
    "product-13", "filter-13", "blocked-13", "corner-13", "rows-13",
)  # fmt: skip
