"""Launch lists that are put together in steps are followed; where a branch decides what they hold they are not."""

from __future__ import annotations

import pytest

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import pallas_calls

SOURCE = """
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"rows": (8, 16)}
DEFAULTS = {"rows": 8}
CONSTRAINTS = {}


def body(x_ref, y_ref, o_ref, total_ref):
    o_ref[...] = x_ref[...] + y_ref[...]
    total_ref[...] = x_ref[...]


def build(params):
    def add(x, y):
        rows = params["rows"]
        out_specs = [pl.BlockSpec((rows, 128), lambda i: (i, 0))]
        shape = [jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2
        out_specs = [*out_specs, pl.BlockSpec((rows, 128), lambda i: (i, 0))]
        operand = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            grid=(x.shape[0] // rows,),
            in_specs=[operand, operand],
            out_specs=out_specs,
            out_shape=shape,
        )(x, y)

    return add
"""


def test_a_list_made_of_an_earlier_one_of_its_name_is_followed():
    (view,) = pallas_calls(KernelSource(SOURCE))
    assert [r.name for r in view.outputs] == ["o_ref", "total_ref"]
    assert all(r.spec is not None and len(r.spec.shape) == 2 for r in view.outputs)


@pytest.mark.parametrize(
    "between",
    [
        "if x.shape[0] > 8:\n            out_specs = out_specs[:1]",
        "out_specs += []",
        "out_specs, spare = out_specs[:1], 0",
        "out_specs.pop()",
    ],
)
def test_a_list_that_may_hold_something_else_is_not(between):
    source = SOURCE.replace("        operand = pl", f"        {between}\n        operand = pl")
    assert source != SOURCE
    with pytest.raises(Unsupported, match="out_specs that is no literal list"):
        pallas_calls(KernelSource(source))
