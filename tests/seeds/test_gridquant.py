"""2D block quantisation: seeds bit for bit, the product under block scales, the published draft refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.evolve.space.space import Space
from tilewright.seeds.gridquant.operator import dequantise_grid, operators, quantise_grid
from tilewright.seeds.operator import Operator, Workload
from tilewright.seeds.sampled import Elements, Sampled

OPERATORS = operators()


def test_blocks_at_the_edges_have_scales_of_their_own() -> None:
    x = np.ones((300, 260), np.float32)
    x[290, 257] = 8
    q, s = quantise_grid(x, 256)
    assert s.tolist() == [[448, 448], [448, 56]]
    assert np.array_equal(dequantise_grid(q, s, 256), x)


@pytest.mark.parametrize("recipe", OPERATORS)
def test_operators_are_whole_and_their_seeds_legal(recipe: str) -> None:
    operator = OPERATORS[recipe]
    assert isinstance(operator, Operator) and isinstance(operator, Sampled)
    hardware = {"smem_bytes": 232448, "multiprocessors": 132}
    for seed in operator.kernels.values():
        dims = {"M": 64, "N": 8192, "K": 8192}
        space = Space.from_source(seed.source, [{**operator.constants, **hardware, **dims}])
        assert not space.violations({**space.defaults, **seed.overrides})
    names = ("M", "K") if recipe.startswith("quant") else ("M", "N", "K")
    workload = Workload("w", dict(zip(names, (600, 256, 640)[-len(names) :], strict=True)))
    shapes = {spec.name: spec.shape for spec in operator.inputs(workload)}
    elements = Elements(5, workload.id, shapes, operator.tables())
    whole = {name: elements.at(name, *map(np.arange, shape)) for name, shape in shapes.items()}
    sample = operator.sample(workload, elements, np.random.default_rng(2))
    for reference, right in operator.oracle(workload, whole).items():
        for name, wanted in sample.references[reference].items():
            found = right[name][np.ix_(*sample.where[name])].astype(np.float64)
            assert np.allclose(found, wanted.astype(np.float64), rtol=1e-12), name
