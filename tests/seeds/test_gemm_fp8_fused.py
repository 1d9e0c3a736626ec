"""The fused FP8 GEMM family: honest kernels pass both gates, wrong twins fail, illegal points have reasons."""

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest

from testkit.seeds.pallas_interpreter import edited, interpreted
from tilewright.evolve.space.space import Space
from tilewright.fitness.gates import ill_formed, read_gates
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.gemm_fp8_fused.operator import operators
from tilewright.seeds.operator import Workload
from tilewright.seeds.shaped import ABSMAX_FLOOR, INPUT_KINDS, dequantise_weights, gemm, quantise

SMALL = Workload("512x512x1024", {"M": 512, "N": 512, "K": 1024})
TINY = Workload("256x256x1024", {"M": 256, "N": 256, "K": 1024})
BLOCKS = {"block_m": 256, "block_n": 256, "block_k": 512, "sub_m": 128, "sub_n": 256}
WINNER = {"placement": "cached", "scaling": "chained", "scales": "lanes"}
LARGE = {"M": 4096, "N": 4096, "K": 4096, "group": 512}


@functools.cache
def family():
    return operators()


@functools.cache
def case(recipe, kind, workload=SMALL):
    operator = family()[recipe]
    inputs = operator.make_inputs(workload, 7, kind)
    return inputs, operator.oracle(workload, inputs)


def readings(recipe, kind, source, params, workload=SMALL):
    operator = family()[recipe]
    inputs, references = case(recipe, kind, workload)
    operands = [inputs[spec.name] for spec in operator.inputs(workload)]
    outputs = {"c": interpreted(source, params, operands)}
    assert ill_formed(outputs, operator.outputs(workload)) is None
    return {r.gate: r for r in read_gates(operator.gates, outputs, references, kind)}


def kernel(name, **params):
    source = family()["g512"].kernels[name].source
    return source, {**Space.from_source(source, LARGE).defaults, **params}


SCHEDULES = {
    "winner": {**BLOCKS, **WINNER},
    "sums_in_vmem": {**BLOCKS, "accumulate": "ref", "order": "groups", "block_k": 1024},
    "bf16_operands_f32_scaled": {**BLOCKS, "dequant": "operands_f32", "placement": "cached"},
    "row_maxima_bf16_operands": {**BLOCKS, "dequant": "operands_bf16", "placement": "ahead", "row_scale": "absmax"},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_of_the_fused_kernel_passes_both_gates(schedule):
    recipe = "g128" if schedule.endswith("s") else "g512"
    found = readings(recipe, "spread", *kernel("fused", **SCHEDULES[schedule]))
    assert found["exact"].passed, found
    assert found["field"].passed, found


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_naive_kernel_passes_on_every_kind_of_inputs(kind):
    found = readings("g512", kind, *kernel("naive", block_m=256, block_n=256, block_k=512), TINY)
    assert all(reading.passed for reading in found.values()), found


@pytest.mark.parametrize(
    ("operator", "kernel", "plan"),
    [
        ("gemm_fp8_fused/g128", "naive", None),
        ("gemm_fp8_fused/g128", "fused", {"row_scale": "scale"}),
        ("gemm_fp8_fused/g128", "fused", {"row_scale": "absmax"}),
        ("gmm_fp8/fwd-g128", "naive", {"arithmetic": "f32"}),
        ("gmm_fp8/fwd-g128", "naive", {"arithmetic": "bf16"}),
    ],
)
def test_rows_below_the_least_scale_have_the_contracts_codes(operator, kernel, plan):
    rows = np.random.default_rng(7).standard_normal((256, 128), np.float32) * np.float32(2.0**-42)
    below = rows[np.abs(rows).max(axis=1) < ABSMAX_FLOOR].astype(ml_dtypes.bfloat16)
    module = {"__name__": "kernel"}
    exec(compile(load_operator(operator).kernels[kernel].source, "kernel.py", "exec"), module)
    found = module["quantise"](below, *([plan] if plan else []))[0]
    turned = np.mean(np.asarray(found) != quantise(below, 128)[0])
    assert len(below) > 128 and turned < 1e-3, "a floor in bfloat16 turns 2 % of the codes"


TWINS = {
    "scale_of_the_whole_tile": ("axis=1, keepdims=True", "axis=(0, 1), keepdims=True"),
    "weight_scales_ignored": ("* (scale * sw_ref[t])", "* scale"),
    "wrong_weight_scale": ("sw_ref[t]", "sw_ref[(t + 1) % (bk // group)]"),
    "activation_scales_ignored": ("* (scale * sw_ref[t])", "* sw_ref[t]"),
    "last_group_skipped": ("range(bk // group)", "range(bk // group - 1)"),
    "last_k_block_stored_early": ("k == steps - 1", "k == 0"),
    "rounded_to_bf16_first": (".astype(jnp.float8_e4m3fn)", ".astype(jnp.bfloat16).astype(jnp.float8_e4m3fn)"),
    "weights_of_another_group": ("rhs = w_ref[t * group : (t + 1) * group, :]", "rhs = w_ref[:group, :]"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_of_the_naive_kernel_fail_the_exact_gate(twin):
    depth = 512 if twin == "last_k_block_stored_early" else 1024
    source, params = kernel("naive", block_m=256, block_n=512, block_k=depth)
    wrong = edited(source, *TWINS[twin])
    found = (readings("g512", kind, wrong, params, TINY) for kind in ("randn", "spread"))
    assert not all(reading["exact"].passed for reading in found)


def test_a_sum_that_another_code_makes_zero_passes_and_larger_zeros_do_not():
    exact = np.random.default_rng(1).standard_normal((64, 256))
    gates = family()["g512"].gates[1:]

    def passes(zero):
        found = np.where(zero, 0.0, exact).astype(ml_dtypes.bfloat16)
        allowed = {"slack": {"c": np.full(exact.shape, 0.04)}, "turned": {"c": np.zeros(exact.shape)}}
        references = {"exact": {"c": exact}, **allowed}
        return all(r.passed for r in read_gates(gates, {"c": found}, references, "zero_blocks"))

    place = (slice(7, 8), slice(9, 10))
    one = np.zeros(exact.shape, bool)
    one[place] = True
    for value, allowed in ((0.006, True), (0.1, False)):
        exact[place] = value
        assert passes(one) is allowed
    exact[place] = 0.006
    assert not passes(np.abs(exact) < 0.04)


def test_baselines_compute_the_product():
    operator = family()["g512"]
    inputs, references = case("g512", "randn", TINY)
    q, scale = quantise(inputs["a"], operator.group)
    source, params = kernel("prequant", block_m=256, block_n=256, sub_m=128)
    outputs = {"c": interpreted(source, params, (q, scale, inputs["w"], inputs["sw"]))}
    assert all(r.passed for r in read_gates(operator.gates, outputs, references, "randn"))
    source, params = kernel("bf16", block_m=256, block_n=256, block_k=512)
    wide = inputs["w"].astype(inputs["a"].dtype)
    found = interpreted(source, params, (inputs["a"], wide)).astype(np.float64)
    weights = inputs["a"].astype(np.float64) @ wide.astype(np.float64)
    assert np.linalg.norm(found - weights) < 3e-3 * np.linalg.norm(weights)


LONG_PRODUCTS = {"block_m": 1024, "block_n": 1024, "block_k": 4096, "dequant": "operands_bf16"}
ILLEGAL = [
    (LARGE, {"sub_m": 1024}, "inside its block"),
    (LARGE, {"placement": "cached", "grid_order": "nm"}, "cached for one row block"),
    (LARGE, {"order": "groups"}, "groups outermost"),
    (LARGE, {"order": "columns", "row_unroll": 1}, "rows outermost"),
    (LARGE, {"placement": "ahead"}, "cannot cost"),
    (LARGE, {"placement": "cached", "skew": 1}, "nothing to run ahead"),
    ({**LARGE, "group": 128}, {"block_m": 1024, "block_k": 4096}, "straight-line"),
    (LARGE, LONG_PRODUCTS, "straight-line"),
    ({**LARGE, "group": 128}, LONG_PRODUCTS, None),
    ({**LARGE, "K": 28672}, {"block_m": 1024, "placement": "cached"}, "must fit vmem_mib"),
    (LARGE, {"block_m": 1024, "placement": "cached"}, None),
]


@pytest.mark.parametrize(("constants", "change", "reason"), ILLEGAL)
def test_illegal_schedules_are_refused_with_a_reason(constants, change, reason):
    source, params = kernel("fused", **change)
    found = Space.from_source(source, constants).violations(params)
    assert any(reason in violation for violation in found) if reason else found == [], found


def narrowed(bits, product, steps):
    """Sums over so many steps in an accumulator of so many bits."""

    def summed(a, b):
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for part in np.split(np.arange(a.shape[1]), steps):
            total = (total + product(a[:, part], b[part])).astype(np.float32)
            kept = total.view(np.uint32) + np.uint32(1 << (23 - bits))
            total = (kept & ~np.uint32((1 << (24 - bits)) - 1)).view(np.float32)
        return total

    return summed


@pytest.mark.parametrize(
    ("cheat", "refused"),
    [
        ("signs of small outputs", True),
        ("small outputs scaled", True),
        ("answers lean", True),
        (14, True),
        ("honest", False),
        (24, False),
        ("bf16 operands", False),
    ],
)
def test_elements_are_held_to_what_the_contract_explains(cheat, refused):
    operator = operators()["g128"]
    shape = gemm(128, 128, 4096) if isinstance(cheat, int) else gemm(512 if cheat == "answers lean" else 256, 512, 1024)
    found = []
    kinds = ("randn", "integers", "repeated") if refused or cheat == 24 else operator.input_kinds
    for kind, seed in itertools.product(kinds, range(2)):
        inputs = operator.make_inputs(shape, seed, kind)
        references = operator.oracle(shape, inputs)
        q, s = quantise(inputs["a"], 128)
        a = (q.astype(np.float32) * np.repeat(s, 128, axis=1)).astype(np.float32)
        w = dequantise_weights(inputs["w"], inputs["sw"]).astype(np.float32)
        if cheat == "bf16 operands":
            a, w = (x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (a, w))
        made = narrowed(cheat, np.matmul, 32)(a, w) if isinstance(cheat, int) and cheat < 24 else a @ w
        if cheat == "signs of small outputs":
            made = np.where(np.abs(made) < 0.5, -made, made)
        elif cheat == "small outputs scaled":
            made = np.where(np.abs(made) < 2.0, 0.8 * made, made)
        elif cheat == "answers lean":
            made = made * np.float32(1.0001)
        readings = read_gates(operator.gates, {"c": made.astype(ml_dtypes.bfloat16)}, references, kind)
        found += [(kind, seed, r.value, r.detail) for r in readings if not r.passed]
    assert bool(found) is refused, found
