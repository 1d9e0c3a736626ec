"""Ragged paged decode: right whatever lengths and tables, wrong twins fail, timed as its lengths say."""

import pytest

from testkit.seeds.pallas_interpreter import edited, readings
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import KnownOperands, SeedKernel, Suite, Workload
from tilewright.seeds.paged_attention.operator import operators
from tilewright.workers.cascade.modelled import ModelledCascade

(OPERATOR,) = operators().values()
SHAPE = Workload("w", {"B": 2, "H": 4, "KV": 2, "D": 128, "R": 16, "L": 4})
SOURCE = OPERATOR.kernels["plain"].source


def passed(params, kind, source=SOURCE, inputs=None):
    found = readings(OPERATOR, SHAPE, source, params, kind, inputs=inputs, how=True).values()
    return all(reading.passed for reading in found)


@pytest.mark.parametrize(("number", "kind"), [(0, "short"), (3, "randn")])
def test_every_kind_of_lengths(number, kind):
    params = {"pages": (1, 2)[number % 2], "heads": ("each", "all")[number // 2], "exponent": "exp2"}
    assert passed(params, kind)


@pytest.mark.parametrize(
    ("before", "after"), [("token < left,", "token < left + 1,"), ("tables[b, jnp.minimum", "tables[0, jnp.minimum")]
)
def test_wrong_twins_fail(before, after):
    assert not passed({}, "randn", edited(SOURCE, before, after))


def test_a_kernel_reads_the_pages_of_its_workload():
    assert isinstance(OPERATOR, KnownOperands)
    cascade = ModelledCascade(OPERATOR, load_target("v6e"), Suite("small", (SHAPE,), (SHAPE,)))
    params = Space.from_source(SOURCE, [dict(SHAPE.dims)]).defaults
    found = cascade.evaluate("g", SOURCE, params, seed=1, baseline=SeedKernel("timed", SOURCE, baseline=True))
    assert found.verdict is Verdict.OK, found.reason
    pages = int((-(-OPERATOR.known(SHAPE)["lengths"] // 16)).sum())
    assert pages < 8
    page, rows, tables = 2 * 16 * 128 * 2, 2 * 4 * 128 * 2, 512
    moved = found.workloads[0].diagnosis["dma_bytes"]
    assert 0 <= moved - 2 * pages * page - 2 * rows <= 4 * tables + 2 * rows
