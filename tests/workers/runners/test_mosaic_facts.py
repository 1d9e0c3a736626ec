"""What is read from the IR that will be compiled. The runners' code runs in one helper process, without libtpu."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from testkit import ir, twins


@pytest.fixture(scope="module")
def away():
    """Call a function of ``testkit.ir`` where jax may live: its threads and this process's forks do not mix."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *arguments, **options: pool.submit(function, *arguments, **options).result()


@pytest.fixture
def traced(away):
    return lambda source, **options: away(ir.traced, source, **options)


@pytest.fixture
def facts(away):
    return lambda source, **options: away(ir.facts, source, **options)


@pytest.fixture
def kernel(facts):
    def only(source, **options):
        (found,) = facts(source, **options)["kernels"]
        return found

    return only


def test_an_honest_kernel_has_nothing_to_object_to(facts):
    found = facts(twins.HONEST)
    assert found["operations"] == {"stablehlo.custom_call": 1, "func.return": 1}
    assert found["unused_operands"] == found["outputs_not_from_kernels"] == found["foreign_calls"] == []
    (inside,) = found["kernels"]
    assert inside["grid"] == [2, 2, 4]
    assert inside["data_branches"] == inside["data_loops"] == inside["while_loops"] == 0
    assert inside["matmul_flops"] == 2 * 256 * 256 * 512
    assert {"tpu.matmul:f32", "vector.load:bf16"} <= set(inside["signature"])


@pytest.mark.parametrize("sizes", [(128, 128, 256), (512, 256, 1024)])
@pytest.mark.parametrize("source", [twins.HONEST, twins.BATCHED_TWIN, twins.FORI_TWIN, twins.SCALED_TWIN])
def test_matrix_work_is_counted_exactly(kernel, source, sizes):
    m, n, k = sizes
    assert kernel(source, m=m, n=n, k=k)["matmul_flops"] == 2 * m * n * k


def test_data_dependent_control_flow_is_found(kernel):
    assert kernel(twins.BRANCH_ON_DATA)["data_branches"] == 1
    found = kernel(twins.LOOP_ON_DATA)
    assert found["data_loops"] + found["while_loops"] > 0 and found["matmul_flops"] is None


def test_work_outside_the_kernel_and_dead_operands_are_found(facts, traced):
    assert "stablehlo.dot_general" in facts(twins.VENDOR_DOT)["operations"]
    assert facts(twins.NO_KERNEL)["kernels"] == []
    assert traced(twins.HLO_LOOP).data["type"] == "NestedKernel"
    unused = "import jax\nimport jax.numpy as jnp\n\ndef build(params):\n    return lambda a, b: a[:, :256]\n"
    assert facts(unused)["unused_operands"] == [0, 1]  # there is no kernel that could read them


def test_damaged_modules_are_refused(away, traced):
    module = traced(twins.HONEST).blobs["module"]
    for damaged in (b"", b"ML\xefR", module[: len(module) // 2]):
        assert "module" in away(ir.refusal, damaged)


def _looped(bound):
    """The honest kernel with its product in a loop of so many turns."""
    return twins.edited(
        (
            twins.DOT,
            "def multiply(i, carry):\n"
            f"                {twins.DOT}\n"
            "                return carry\n\n"
            f"            jax.lax.fori_loop(0, {bound}, multiply, 0)",
        )
    )


@pytest.mark.parametrize("bound", ["step * 256 // 128", "(step * 100 + 50) // 96 + step * 7 % 3"])
def test_scalars_are_simulated_without_divisions(away, bound):
    """The simulator cannot follow them: what is simulated has none, and does the same products."""
    turns = {"step * 256 // 128": [0, 2, 4, 6], "(step * 100 + 50) // 96 + step * 7 % 3": [0, 2, 4, 3]}[bound]
    sent, simulated = away(ir.scalars_followed, _looped(bound))
    assert sent[1] > 0 and simulated[1] == 0
    assert simulated[0] == 4 * sum(turns) * 2 * 128**3
    assert sent[0] in (None, simulated[0])


def test_a_loop_goes_on_while_known_tables_say_so(away):
    found = away(ir.walked, [0, 128, 512, 256])
    assert found["data_branches"] == found["data_loops"] == found["while_loops"] == 0
    turns = [0, 1, 3, 2]  # begun at 1, 0, 1, 0
    assert found["matmul_flops"] == sum(turns) * 2 * 128**3
    found = away(ir.walked, [0, 128, 512, 256], by_data=True)
    assert found["data_loops"] == 1 and found["matmul_flops"] is None


def test_copies_are_of_the_sizes_that_known_tables_say(away):
    found, copies, unknown = away(ir.copied, [8, 40, 0, 24, 16, 40, 8])  # of which every other one is copied
    assert found["data_branches"] == 0 and (copies, unknown) == (2, False)
    found, copies, unknown = away(ir.copied, [8, 40, 0, 24], begun=False)  # whatever scratch holds would decide
    assert found["data_branches"] == 1 and (copies, unknown) == (1, True)


def test_blocks_that_stride_twice_lie_side_by_side_where_a_kernel_is_alone(away):
    assert away(ir.side_by_side, (4, 64, 128), (2, 32, 128)) == ([(8, 32, 128)], 2)
    assert away(ir.side_by_side, (2, 4, 16, 128), (2, 2, 16, 128)) == ([(4, 2, 16, 128)], 2)
    assert away(ir.side_by_side, (4, 64, 128), (1, 32, 128)) == ([(4, 64, 128)], 0)
    assert away(ir.side_by_side, (4, 64, 256), (2, 64, 128)) == ([(4, 64, 256)], 0)
