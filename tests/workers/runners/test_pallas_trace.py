"""Tracing a candidate: what a kernel may be wrapped in."""

import pytest

from tilewright.workers.runners.pallas.trace import load_build, mesh_of, trace

TENSOR = {"shape": [8, 128], "dtype": "float32"}
WORKLOAD = {"id": "w", "inputs": [{"name": "x", **TENSOR}], "outputs": [{"name": "y", **TENSOR}]}
SOURCE = """
import jax
from jax.experimental import pallas as pl

def double(x, y):
    y[...] = x[...] + x[...]

def plain(x):
    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype), name="double")(x)

ruled = jax.custom_vjp(plain)
ruled.defvjp(lambda x: (plain(x), None), lambda _, g: (2 * g,))

def build(params):
    return {"vjp": ruled, "remat": jax.checkpoint(plain), "jit": jax.jit(lambda x: jax.jit(ruled)(x))}[params["how"]]
"""


def traced(how):
    with mesh_of({"kind": "TPU v5 lite", "cores": 1}):
        return trace(load_build(SOURCE), {"how": how}, WORKLOAD)


@pytest.mark.parametrize("how", ["vjp", "remat", "jit"])
def test_a_kernel_in_a_rule_of_differentiation_is_traced_without_it(how):
    names = [equation.primitive.name for equation in traced(how).jaxpr.eqns]
    assert names == ["pallas_call"]
