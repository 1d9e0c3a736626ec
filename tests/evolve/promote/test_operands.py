"""Operands of a promoted version tell its dimensions."""

import pytest

from tilewright.library import operands


def test_operands_are_functions_of_the_dimensions():
    from tilewright.evolve.promote.version_files import fitted_operands
    from tilewright.seeds.catalogue import load_operator

    for name in (
        "gemm_fp8_blockwise/gemm_nt",
        "gridquant/gemm_256",
        "gemm_mxfp8_out/masked6x20",
        "mx_cast/gemm_mxfp4",
    ):
        operator = load_operator(name)
        suite = next(iter(operator.suites.values()))
        workload = suite.workloads[0]
        found = fitted_operands(operator, list(workload.dims))
        assert found is not None, name
        specs = operator.inputs(workload)
        assert found.dims([spec.shape for spec in specs]) == tuple(workload.dims.values())
        named = dict(workload.dims)
        assert [o.sizes(named) for o in found.outputs] == [s.shape for s in operator.outputs(workload)]
        again = operands.read(found.data(), list(workload.dims))
        assert again == found
        shapes_off = [list(spec.shape) for spec in specs]
        shapes_off[-1][-1] += 1
        with pytest.raises(operands.NoFit):
            found.dims(shapes_off)
