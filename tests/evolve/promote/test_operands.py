"""Operands of a promoted version tell its dimensions."""

import pytest

from tilewright.library import operands


def test_operands_are_functions_of_the_dimensions():
    from tilewright.evolve.promote.version_files import fitted_operands
    from tilewright.seeds.catalogue import load_operator

    for name in ("gemm_fp8_blockwise/gemm_nt", "gridquant/gemm_256", "gemm_mxfp8_out/masked6x20", "mx_cast/gemm_mxfp4"):
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


def test_a_promoted_kernel_says_the_time_that_its_module_expects():
    """Of the serving layer: few rows go to the kernels for few, many to those for many."""
    from tilewright.evolve.promote.version_files import _expected_time
    from tilewright.evolve.space.space import read_declarations
    from tilewright.library.dispatch_rule import Legality
    from tilewright.seeds.catalogue import load_operator

    operator = load_operator("gemm_fp8_blockwise/linear")
    assert _expected_time("X = 1\n") is None
    legalities = []
    for seed in operator.kernels.values():
        defaults = read_declarations(seed.source).defaults
        legalities += [
            (seed.name, Legality((), {**operator.constants, **defaults, **point}, _expected_time(seed.source)))
            for point in seed.points
        ]

    def fastest(dims):
        return min((kernel.expected_time(dims), name) for name, kernel in legalities)

    for workload in operator.suites["serving"].workloads:
        seconds, name = fastest(workload.dims)
        assert 1 < seconds < 1e5, workload.id
        assert workload.dims["M"] > 64 or name == "fp8_rows"
        assert workload.dims["M"] < 2048 or name == "fp8_small"
    waves = [fastest({"M": m, "N": 8192, "K": 28672})[0] for m in (128, 300, 512)]
    assert waves == sorted(waves)


@pytest.mark.parametrize("text", ["M +", "M * nothing", "M - 8", "'M'", "1 / (M - 8)", "(lambda: M)"])
def test_an_expected_time_that_is_none_is_refused_in_a_sentence(text):
    from tilewright.evolve.promote.verify import Refusal
    from tilewright.evolve.promote.version_files import _require_times

    _require_times("M * T", {"T": 2}, [{"M": 8}])
    with pytest.raises(Refusal, match=r"^promotion refused: EXPECTED of a kernel(:| is no time at M 8 )"):
        _require_times(text, {"T": 2}, [{"M": 8}])
