"""The emulator of Gluon: what it computes, and the races and deadlocks it finds whatever order programs run in."""

import re

import pytest

from testkit.rewriting import Trial, load_cases, rewritten, run_checks
from testkit.seeds.triton_station import interpreter, objection
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.gluon.lower import LowerProduct
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload

(CASE,) = load_cases(["triton/fp8_blockwise_pointer.py"])
RIGHT = rewritten(LowerProduct, CASE.source)
POINT = {**KernelSource(RIGHT).defaults, **CASE.params, "stages": 1}


def without(line, source=RIGHT):
    """The kernel without what this pattern finds."""
    return re.sub(line, "pass", source)


def swapped(old, new, source=RIGHT):
    assert old in source, old
    return source.replace(old, new, 1)


CONSUMER = RIGHT[RIGHT.index("def gemm_kernel_lowered_consumer") : RIGHT.index("def gemm_kernel_lowered(")]
ONE = RIGHT.replace('min(rows_of_tiles * columns_of_tiles, params["programs"])', "1")
"""All tiles in one program."""
BYTES = "CONSUMERS * A_BYTES + B_BYTES)"
WAITED_LATE = (
    r"( +)(\w+ = warpgroup_mma_wait\(num_outstanding=0, deps=\(piece_product_0,\)\))\n"
    r"( +if PIECES == 1:\n +mbarrier\.arrive.*)\n"
)
READ = "over shared memory that a product may still read"
PLANTED = {
    "a stage is read before its copy has landed": (
        RIGHT.replace(CONSUMER, without(r"mbarrier\.wait\(ready\.index\(stage\), phase\)", CONSUMER)),
        "a product by .* that (a copy .* may still write|nothing has written)",
    ),
    "a stage is overwritten while products read it": (
        without(r"mbarrier\.wait\(empty\w*\.index\(stage\), phase\)"),
        f"{READ}|arrivals",
    ),
    "a stage is given back before its product is waited for": (re.sub(WAITED_LATE, r"\3\n\1\2\n", RIGHT), READ),
    "a product's result is used before it is waited for": (
        re.sub(r"\n.*deps=\(piece_product_0,\).*", "", RIGHT, count=1),
        "used before it is waited for",
    ),
    "a stage is never given back": (
        without(r"mbarrier\.arrive\(empty\w*\.index\(stage\), count=1\)"),
        "deadlock: .* for barrier",
    ),
    "more bytes are expected than come": (swapped(BYTES, "CONSUMERS * A_BYTES + B_BYTES + 16)"), "deadlock"),
    "fewer bytes are expected than come": (swapped(BYTES, "CONSUMERS * A_BYTES)"), "may still write|bytes"),
    "the first phase of the producer is the other one": (swapped("phase = 1", "phase = 0"), "deadlock"),
    "a copy reads what no fence has published": (
        re.sub(r"( +slot\.store\(.*\n) +fence_async_shared\(\)\n", r"\1", RIGHT),
        "without fence_async_s",
    ),
    "a slot is written while a copy reads it": (
        without(r"tma\.store_wait\(SLOTS - 1\)", ONE),
        "a store by .* over shared memory that a copy to global memory may still read",
    ),
    "a program ends before its stores have read": (
        re.sub(r"\n    tma\.store_wait\(0\)\n", "\n", RIGHT),
        "a program ends while a copy",
    ),
    "copies are asked for before barriers are published": (
        re.sub(r"\n    fence_async_shared\(\)\n", "\n", RIGHT),
        "not fenced off for copies",
    ),
    "scales are read past their end": (
        swapped("safe = gl.minimum(row, M - 1)", "safe = row + 1"),
        "a load outside of its tensor",
    ),
    "an operand lies the other way": (swapped(".permute((1, 0)), nothing", ", nothing"), "a product of"),
}


@pytest.fixture(scope="module")
def trials():
    found = {"right": Trial(CASE.name, "right", "", RIGHT, POINT)}
    for name, (source, _) in PLANTED.items():
        found[name] = Trial(CASE.name, name, "", source, POINT)
    run_checks([CASE], list(found.values()))
    return found


def test_the_unchanged_kernel_is_right(trials):
    assert trials["right"].ok, trials["right"].reason


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name, trials):
    source, reason = PLANTED[name]
    assert source != RIGHT
    assert not trials[name].ok
    assert re.search(reason, trials[name].reason), trials[name].reason


@pytest.fixture(scope="module")
def station():
    made = interpreter()
    yield made
    made.close()


def test_gluon_seeds_pass_their_gates_in_the_emulator(station):
    cases = [
        ("gemm_fp8_blockwise/quant_dual", "quant_dual_tma", {}),
        ("gemm_fp8_blockwise/quant_128x128_dual", "quant_blocks_dual", {}),
        ("gemm_mxfp8_out/normal", "fused_ws", {"split": 2, "block_n": 128}),
        ("mx_cast/mxfp8_both", "cast8_tma", {"leave": "tma", "slots": 2, "group_m": 4}),
    ]
    for name, kernel, params in cases:
        operator = load_operator(name)
        ragged = kernel == "fused_ws"  # there it loads its scales by a loop's number
        workload = next(iter(operator.suites.values())).check[-1 if ragged else 0]
        kind = operator.input_kinds[0]
        found = objection(station, operator, workload, kind, kernel=kernel, params=params)
        assert found is None, kernel


def test_a_race_is_a_verdict_of_the_child(station):
    operator = load_operator("gemm_fp8_blockwise/gemm_nt")
    source, _ = PLANTED["a slot is written while a copy reads it"]
    workload = Workload("check/tall", {"M": 512, "N": 256, "K": 128})
    found = objection(station, operator, workload, "randn", source=source, params=POINT, kernel="pointer")
    assert found is not None and found.startswith("Race: a store by partition"), found
