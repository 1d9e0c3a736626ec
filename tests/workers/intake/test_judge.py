"""The judge that is made from a reference: inputs that show a mistake, bounds that refuse one, shapes that loop."""

import dataclasses
import itertools
import math
import time

import ml_dtypes
import numpy as np
import pytest

from tilewright.fitness.gates import read_gates
from tilewright.fitness.score import product_flops
from tilewright.seeds.operator import SnrGate, Workload
from tilewright.workers.intake.judge import bounds as judge
from tilewright.workers.intake.judge.input_kinds import (
    CheckedShape,
    Effort,
    InputKinds,
    inputs_of,
    negative_numbers,
    with_bounds,
    with_edges,
)
from tilewright.workers.intake.judge.inputs import draw, draws
from tilewright.workers.intake.operator import Operand, Result, TakenOperator
from tilewright.workers.intake.triton.checked_shapes import looped

ROWS = Operand("x", "float32", ("M", "N"))


def _spread(seed=3, m=64, n=70):
    return draw(ROWS, {"M": m, "N": n}, "spread", 4, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(6))
def test_a_spread_has_outliers_of_both_signs_a_tiny_row_and_one_of_zeros(seed):
    made = _spread(seed=seed)
    largest = np.abs(made).max(axis=1)
    assert made.max() >= 256 and made.min() <= -256
    assert (largest == 0).any() and ((largest > 0) & (largest < 2.0**-8)).any()
    assert not np.isinf(made.astype(np.float16)).any(), "narrow operands hold it, too"


def test_outliers_of_two_operands_are_never_multiplied():
    for seed in range(6):
        factors = (Operand("a", "float32", ("M", "K")), Operand("b", "float32", ("K", "N")))
        made = draws(factors, {"M": 32, "K": 32, "N": 32}, "spread", 4, np.random.default_rng(seed))
        first, second = made["a"], made["b"]
        columns = {int(c) for c in np.argwhere(np.abs(first) > 200)[:, 1]}
        rows = {int(r) for r in np.argwhere(np.abs(second) > 200)[:, 0]}
        assert columns and rows and not columns & rows


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_one_sign_show_a_largest_value_that_begins_at_zero(seed):
    """Of normal values the largest of a row is always above what stands for nothing: 0, -10, -100."""
    made = draw(ROWS, {"M": 64, "N": 70}, "shifted", 4, np.random.default_rng(seed))
    assert made.max(axis=1).min() < -100 and made.min(axis=1).max() > 0
    sided = draw(ROWS, {"M": 64, "N": 70}, "sided", 4, np.random.default_rng(seed))
    assert -20 < sided.max(axis=1).min() < 0 < sided.min(axis=1).max() and np.abs(sided).max() < 20


@pytest.mark.parametrize("shape", [(7, 70), (2, 5), (16, 4), (3, 1)], ids=str)
def test_an_edge_is_there_and_never_all_of_an_axis(shape):
    dims = dict(zip("MN", shape, strict=True))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        made = draw(dataclasses.replace(ROWS, edge="-inf"), dims, "repeated", 4, rng)
        gone = np.isinf(made)
        assert gone.any() == (shape[1] >= 4) and not gone.all(axis=1).any() and not gone.all(axis=0).any()
        assert not np.isinf(draw(dataclasses.replace(ROWS, edge="-inf"), dims, "randn", 4, rng)).any()
        label = draw(Operand("l", "int64", ("M",), "N", edge="-100"), dims, "repeated", 4, rng)
        assert (label == -100).any() and (label >= 0).any() and label.max() < shape[1]
        flags = draw(Operand("b", "bool", ("M", "N"), edge="rows"), dims, "repeated", 4, rng)
        assert flags.all(axis=1).any() and not flags.any(axis=1).all()
        parts = draw(Operand("p", "int32", (8,), total="M", edge="none"), dims, "repeated", 4, rng)
        assert parts.sum() == shape[0] and (parts == 0).sum() >= 2


def test_what_calls_hold_and_no_draw_does_is_usual():
    operands = [
        *(Operand(name, "float32", ("M", "N")) for name in "kv"),
        Operand("t", "int64", ("M",), "N", edge="-100"),
        Operand("w", "float32", ("N",)),
    ]
    seen = set()
    for seed in range(40):
        made = draws(operands, {"M": 24, "N": 40}, "usual", 4, np.random.default_rng(seed), seed)
        k, v, t = made["k"], made["v"], made["t"]
        steps = np.diff(k, axis=1)
        top = k.max(axis=1) == 0
        seen |= {"first"} if ((k == 1) & (v == 0)).all(axis=1).any() else set()
        seen |= {"up"} if ((steps >= 0).all(axis=1) & (steps > 0).any(axis=1)).any() else set()
        seen |= {"zeros"} if (np.signbit(k[top]) & (k[top] == 0)).any() else set()
        seen |= {"largest"} if (t == k.argmax(axis=1)).sum() > 4 else set()
        seen |= {"order"} if (np.diff(t) == 1).sum() > 3 else set()
        seen |= {"same"} if (np.diff(t) == 0).sum() > 3 else set()
        seen |= {"ones"} if (made["w"] == 1).all() else set()
        assert ((t >= -100) & (t < 40)).all()
        assert not (t == -100).all()
    assert len(seen) == 7, seen
    made = draws(operands, {"M": 24, "N": 40}, "alike", 4, np.random.default_rng(1))
    assert np.array_equal(made["k"], made["v"])


def test_padding_masks_equal_rows_angles_and_ties_are_drawn():
    operands = [Operand("x", "float32", ("M", "N"), edge="-inf"), Operand("b", "float32", ("N",))]
    operands += [Operand(name, "float32", ("M", "N")) for name in "cs"]
    drawn = [inputs_of(operands, {"M": 24, "N": 40}, "padded-left", 4, n) for n in range(12)]
    x, b = (np.concatenate([made[name] for made in drawn]) for name in "xb")
    some = (x[:, :20] == -np.inf, x[:, 20:] == -np.inf, (x == 0) | (x == 1), x[1:] == x[:-1], x[:, ::2] == 0)
    assert all(rows.all(axis=1).any() for rows in some) and 0 < (b.reshape(12, 40) == 0).all(axis=1).sum() < 12
    assert any(np.allclose(made["c"] ** 2 + made["s"] ** 2, 1) for made in drawn)
    alone = [inputs_of(operands[1:2], {"N": 40}, "padded-left", 4, n)["b"] for n in range(12)]
    assert all(map(np.any, alone)), "a single operand is no bias"
    for name in "xcs":  # of seven draws in a row
        forms = [made[name] for made in drawn[3:10]]
        assert any((form == 1).all() for form in forms), name
        assert any(np.array_equal(form[:, :24], np.eye(24)) and not form[:, 24:].any() for form in forms), name
        assert any(np.linalg.matrix_rank(form) == 1 and len(np.unique(form)) > 24 for form in forms), name
    tied = draws(operands[:1], {"M": 24, "N": 40}, "ties", 4, np.random.default_rng(1))["x"]
    tied *= 448 / np.abs(tied).max()
    assert set(np.abs(tied).max(axis=1)) == {127.0, 448.0} and np.array_equal(tied * 2, np.rint(tied * 2))


def test_an_operand_is_given_the_edges_that_reference_and_kernel_bear():
    operands = [
        ROWS,
        Operand("labels", "int64", ("M",), "N"),
        Operand("mask", "bool", ("M", "N")),
        Operand("parts", "int32", (8,), total="M"),
        Operand("codes", "float8_e4m3fn", ("M", "N")),
    ]
    known = {"-inf", "-100", "rows"}
    found = with_edges(operands, [-1, -100], lambda tried: {o.edge for o in tried} - {""} <= known)
    assert [o.edge for o in found] == ["-inf", "-100", "rows", "", ""]

    def loss(logits, labels, ignored=-100): ...

    assert negative_numbers([loss, len], [1, -1, -2.0, True]) == [-1, -100]


@pytest.mark.parametrize(("rows", "bound"), [(90, "V"), (72, "D"), (math.inf, "M"), (2, 0)])
def test_an_index_without_a_bound_is_below_the_rows_that_it_reads(rows, bound):
    dims = {"M": 50, "V": 90, "D": 72}
    operands = [ROWS, Operand("i", "int64", ("M",)), Operand("t", "int64", ("M",), "D")]
    tried = with_bounds(operands, dims, lambda some: dims.get(some[1].below, some[1].below) <= rows)
    assert [o.below for o in tried] == [0, bound, "D"]


def test_a_recipe_that_rounds_within_may_give_a_zero():
    wanted = np.ones((32, 32))
    wanted[3, 5] = 2.0**-9
    found = wanted.astype(ml_dtypes.bfloat16)
    found[3, 5] = 0
    result = Result("o0", "bfloat16", ("M", "N"), 45.0, 2.0**-7)
    gates = TakenOperator("a/taken", "f", "x", (ROWS,), (result,), {}, {}).gates
    assert read_gates(gates, {"o0": found}, {"o0": {"o0": wanted}}, "repeated")[0].passed
    found[3, 6] = 0
    assert not read_gates(gates, {"o0": found}, {"o0": {"o0": wanted}}, "repeated")[0].passed


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_an_answer_that_is_cut_and_not_rounded_is_refused_where_noise_alone_says_nothing(dtype):
    name = np.dtype(dtype).name
    result = Result("o0", name, ("M", "N"), 40.0, 2.0**-5)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        wanted = rng.standard_normal((64, 512))
        twice = (wanted.astype(dtype) * (1 + rng.uniform(-1, 1, (64, 1)) * 2.0**-9).astype(dtype)).astype(dtype)
        few = np.full((64, 512), 1.003)
        cut = wanted.astype(dtype)
        cut.view(np.int16)[np.abs(cut.astype(float)) > np.abs(wanted)] -= 1
        up = np.nextafter(few.astype(dtype), np.array(9, dtype))
        verdicts = []
        for found, due in ((wanted.astype(dtype), wanted), (twice, wanted), (up, few), (cut, wanted)):
            for leans in (0.0, 1.0):  # as the seed itself
                gates = TakenOperator(
                    "a/taken", "f", "x", (ROWS,), (dataclasses.replace(result, leans=leans),), {}, {}
                ).gates
                reading = read_gates(gates, {"o0": found}, {"o0": {"o0": due}}, "randn")[0]
                verdicts.append(reading.passed or reading.detail)
        assert verdicts == [
            *[True] * 6,
            "errors go one way, towards zero or away from it, by 0.5 of a last place",
            True,
        ]


def _refused(found, wanted, bound):
    gate = SnrGate("o0", "o0", bound.min_db, bound.worst)
    return not read_gates([gate], {"o0": found}, {"o0": {"o0": wanted}}, "spread")[0].passed


def _bar(db, operands, result, products):
    bound, why = judge.bar([judge.Reading(db, 0.0, (0,), 0.0, 0.0)], operands, result, products)
    assert bound is not None, why
    return bound


def _swiglu(a, b):
    with np.errstate(over="ignore"):
        return a / (1 + np.exp(-a)) * b


def _add_norm(x, r, w):
    added = x + r
    return added / np.sqrt(np.square(added).mean(axis=1, keepdims=True) + 1e-6) * w


def _scaled(a, b, s):
    return a @ b * s


FUNCTIONS = {
    "swiglu": (_swiglu, {"a": ("M", "N"), "b": ("M", "N")}),
    "add and norm": (_add_norm, {"x": ("M", "N"), "r": ("M", "N"), "w": ("N",)}),
    "product": (_scaled, {"a": ("M", "K"), "b": ("K", "N"), "s": ("N",)}),
}
"""Functions of bfloat16 operands of these shapes, with a bfloat16 result."""

CLIPS = (8.0, 50.0, 100.0, 1000.0, -8.0, -100.0, -1000.0)
"""Above, or below where it is negative."""


def _clipped(values, at):
    return np.minimum(values, at) if at > 0 else np.maximum(values, at)


@pytest.mark.parametrize("kind", ["spread", "far"])
@pytest.mark.parametrize("shape", [(7, 70, 37), (144, 160, 144), (135, 137, 139)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_clipped_operand_shows_at_each_checked_shape(name, shape, kind):
    function, axes = FUNCTIONS[name]
    operands = [Operand(o, "bfloat16", along) for o, along in axes.items()]
    dims = dict(zip("MNK", shape, strict=True))
    for seed in range(3):
        made = draws(operands, dims, kind, 4, np.random.default_rng(seed))
        wanted = function(*(a.astype(np.float64) for a in made.values()))
        narrow = {o: a.astype(np.float32) for o, a in made.items()}
        honest = function(*narrow.values()).astype(ml_dtypes.bfloat16)
        bound, why = judge.bar([judge.read(honest, wanted)], ["bfloat16"], "bfloat16", "")
        assert bound is not None, why
        assert not _refused(honest, wanted, bound)
        for operand, at in itertools.product(made, CLIPS):
            if abs(at) > (32 if len(axes[operand]) == 1 else 256) and kind == "spread":
                continue  # as large as outliers of that kind are
            if (name, operand) == ("swiglu", "a") and at < 0:
                continue  # its gate is shut there
            twin = function(*({**narrow, operand: _clipped(narrow[operand], at)}).values())
            assert _refused(twin.astype(ml_dtypes.bfloat16), wanted, bound), (seed, operand, at)


def test_a_wide_result_of_narrow_operands_keeps_its_own_precision():
    rng = np.random.default_rng(5)
    wanted = rng.standard_normal((64, 64))
    rounded = wanted.astype(ml_dtypes.bfloat16).astype(np.float32)
    bound = _bar(140.0, ["bfloat16", "int64"], "float32", "")
    assert bound.min_db == 90.0
    assert _refused(rounded, wanted, bound) and not _refused(wanted.astype(np.float32), wanted, bound)
    assert _bar(53.0, ["bfloat16"], "float32", "").min_db == 45.0, "a recipe that rounds inside keeps its bar"


@pytest.mark.parametrize("divided", [lambda sums, n: sums / (n + 1), lambda sums, n: np.sqrt(sums / (n - 1))])
def test_a_divisor_that_is_one_off_is_told_from_rounding_at_two_sizes(divided):
    rng, shapes, honest = np.random.default_rng(7), [], []
    for n in (70, 512):
        sums, scale = (np.square(rng.standard_normal((64, n))).sum(1, keepdims=True), rng.standard_normal((64, n)))
        same = sums / n if divided(4.0, 4) == 0.8 else np.sqrt(sums / n)
        rounded, wrong = ((scale * by).astype(ml_dtypes.bfloat16) for by in (same, divided(sums, n)))
        shapes.append(({"M": 64, "N": n}, wrong, scale * same))
        honest.append(({"M": 64, "N": n}, rounded, scale * same))
    assert "N = 70" in judge.divisor_apart(shapes) and not judge.divisor_apart(shapes[1:])
    assert not judge.divisor_apart(honest)


def test_a_recipe_that_rounds_within_meets_its_own_gate_and_an_empty_result_any():
    rng = np.random.default_rng(3)
    x = [rng.standard_normal((64, 64)).astype(np.float16) for _ in range(8)]
    for terms in (2, 4, 8):  # as many roundings, none of which is far off
        wanted = np.prod([a.astype(np.float64) for a in x[:terms]], axis=0)
        found = np.prod(np.stack(x[:terms]), axis=0, dtype=np.float16)
        bound, why = judge.bar([judge.read(found, wanted)] * 4, ["float16"], "float16", "")
        assert bound is not None and not _refused(found, wanted, bound), (terms, why, bound)
    empty = np.zeros((0, 8), np.float32)
    assert judge.read(empty, empty).needed == 0 and not judge.wrong([empty], [empty])


@pytest.mark.parametrize(
    ("operands", "products", "least"),
    [
        (["float32", "float32"], "float32", 54.0),
        (["int8", "int8", "float32"], "int8", 90.0),
        (["float8_e4m3fn", "float8_e4m3fn", "float32"], "float8", 60.0),
        (["bfloat16", "bfloat16"], "float16", 84.0),
    ],
)
def test_products_are_held_to_what_a_device_keeps_of_their_factors(operands, products, least):
    assert _bar(140.0, operands, "float32", products).min_db == least
    matrices = [Operand("a", operands[0], ("M", "K")), Operand("b", operands[1], ("K", "N"))]
    scales = [Operand("s", d, ("M", "K/128")) for d in operands[2:]]
    assert judge.factors([*matrices, *scales], {"M": 64, "N": 64, "K": 256}) == products


def test_checked_shapes_take_several_tiles_with_and_without_a_tail():
    dims = {"B": 4, "M": 4096, "N": 4096}
    odd, even = looped(dims, [128, 4, 3], lambda small: True)
    assert odd["B"] == even["B"] == 4
    assert odd["M"] != odd["N"] and all(odd[n] > 256 and odd[n] % 2 for n in "MN")
    assert all(even[n] % 64 == 0 and even[n] >= 320 for n in "MN")
    assert not list(looped(dims, [3], lambda small: True))
    chunked = next(looped(dims, [64], lambda small: small["M"] % 256 == 0))
    assert chunked["M"] == 512 and chunked["N"] < 512, "a size that does not hold keeps the others small"


def test_products_are_asked_only_of_a_reference_that_multiplies_matrices():
    result = Result("o0", "float32", ("M", "N", "K"))
    called, small = (Workload(name, {"M": m, "N": 8, "K": 16}) for name, m in (("called", 4), ("small", 2)))

    def least(**work):
        operator = TakenOperator("a/taken", "refs.py:f", "x", (ROWS,), (result,), {}, {}, work=work)
        return [product_flops(operator, workload) for workload in (called, small)]

    assert least() == least(called=0) == [0, 0], "element by element on three axes"
    assert least(called=10**6) == [2 * 4 * 8 * 16, 2 * 8 * 16], "of a shape that was not counted, its elements"


def test_a_cancellation_that_float32_explains_only_of_nearer_sizes_gets_those():
    def computed(inputs, dtype):
        x, state = (inputs[name].astype(dtype) for name in ("x", "state"))
        return [(16 * x + state**3) - state**3]

    operands = [ROWS, Operand("state", "float32", ("M", 1))]
    dims = {"M": 16, "N": 32}
    inputs = inputs_of(operands, dims, "randn", 4)
    shape = CheckedShape(dims, inputs, computed(inputs, np.float64), computed(inputs, np.float32))
    kinds = InputKinds(
        operands,
        [shape],
        lambda given: computed(given, np.float64),
        lambda all_inputs: [computed(given, np.float32) for _, given in all_inputs],
        Effort(24, (3, 5), on_largest=True, blamed_spread=1),
        "",
        "",
        [],
    )
    results, why = kinds.results([("M", "N")])
    assert not why and len(results) == 1
    assert "spread" in kinds.names and kinds.spread < 4


@pytest.mark.slow
def test_inputs_whose_last_place_decides_an_answer_now_and_then_are_not_used():
    def computed(given, dtype):
        q, k, v = (given[name].astype(dtype) for name in "qkv")
        scores = q @ k.T / dtype(8.0)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return [weights / weights.sum(axis=1, keepdims=True) @ v]

    operands = [Operand(name, "float32", (rows, "D")) for name, rows in (("q", "S"), ("k", "T"), ("v", "T"))]
    dims = {"S": 64, "T": 256, "D": 64}
    inputs = inputs_of(operands, dims, "randn", 4)
    shape = CheckedShape(dims, inputs, computed(inputs, np.float64), computed(inputs, np.float32))
    kinds = InputKinds(
        operands,
        [shape],
        lambda given: computed(given, np.float64),
        lambda all_inputs: [computed(given, np.float32) for _, given in all_inputs],
        Effort(24, (3, 5), on_largest=True, blamed_spread=1, special=False),
        "float32",
        "",
        [],
    )
    assert "far" not in kinds.names and {"spread", "apart"} & set(kinds.names)


MATRIX = ("M", "N")


@pytest.mark.parametrize(
    ("dtype", "kind", "least", "most"),
    [
        ("float32", "faint-118", 2.0**-140, 2.0**-107),
        ("float32", "faint-20", 2.0**-42, 2.0**-9),
        ("float32", "huge-100", 2.0**85, 2.0**104),
        ("bfloat16", "huge-40", 2.0**25, 2.0**44),
        ("float16", "huge-100", 2.0, 65504.0),
        ("float16", "faint-118", 2.0**-24, 2.0**-1),
    ],
)
def test_values_at_the_edges_of_a_type(dtype, kind, least, most):
    for seed in range(4):
        made = np.abs(draw(Operand("x", dtype, MATRIX), {"M": 40, "N": 60}, kind, 4, np.random.default_rng(seed)))
        sizes = made[made > 0].astype(np.float64)
        assert np.isfinite(sizes).all() and least <= np.median(sizes) <= most and sizes.max() <= most
        if kind.startswith("faint-118") and dtype == "float32":
            assert (sizes < 2.0**-126).any() and (sizes > 2.0**-126).any()


def test_rows_below_zero_are_huge_and_one_of_several_operands_is_alone():
    dims, pair = {"M": 40, "N": 60}, [ROWS, dataclasses.replace(ROWS, name="y")]
    huge = draw(ROWS, dims, "huge-100", 4, np.random.default_rng(1))
    assert 2 <= (huge < 0).all(axis=1).sum() <= 25 and (huge > 0).any()
    alone = [inputs_of(pair, dims, "lone-54", 4, seed) for seed in range(2)]
    sizes = [{name: np.abs(values).max() > 1e6 for name, values in made.items()} for made in alone]
    assert {tuple(one.values()) for one in sizes} == {(True, False), (False, True)}


def test_a_busy_machine_takes_no_kind_away():
    def waits(x):
        time.sleep(0.02)
        return x + x

    began = time.monotonic()
    assert KERNELS["doubled"][2] <= set(_kinds(waits, waits, seconds=0.2).names)
    assert time.monotonic() - began > 0.2


def test_one_sign_and_what_is_no_number_are_drawn():
    dims = {"M": 40, "N": 60}
    signs = set()
    for seed in range(8):
        made = inputs_of([ROWS, dataclasses.replace(ROWS, name="y")], dims, "signed", 4, seed)
        assert all(np.abs(values).min() >= 8 and len(set(np.sign(values).flat)) == 1 for values in made.values())
        signs.add(tuple(values.flat[0] > 0 for values in made.values()))
    assert len(signs) > 2
    infinite = draw(ROWS, dims, "infinite", 4, np.random.default_rng(1))
    assert np.isposinf(infinite).any() and np.isneginf(infinite).any() and not np.isnan(infinite).any()
    rows = draw(ROWS, dims, "infinite-rows", 4, np.random.default_rng(1))
    assert np.isneginf(rows).all(axis=1).sum() == 1
    signed = [inputs_of([ROWS], dims, "signed-rows", 4, seed)[ROWS.name] for seed in range(4)]
    assert {(np.ptp(rows, axis=1) == 0).sum() for rows in signed} == {14, 40} and np.abs(signed).min() >= 8
    nan = draw(ROWS, dims, "nan", 4, np.random.default_rng(1))
    rows = np.isnan(nan).any(axis=1)
    assert 0 < rows.sum() <= 20 and (np.signbit(nan) & (nan == 0)).any()
    flat = draw(Operand("w", "float32", ("N",)), dims, "nan", 4, np.random.default_rng(1))
    assert np.isfinite(flat).all(), "a weight that is no number leaves no answer that is one"


def _kinds(kernel, reference, seconds=math.inf):
    dims = {"M": 16, "N": 40}
    given = inputs_of([ROWS], dims, "randn", 4)
    shape = CheckedShape(dims, given, [reference(given["x"].astype(np.float64))], [kernel(given["x"])])
    with np.errstate(all="ignore"):
        return InputKinds(
            [ROWS],
            [shape],
            lambda inputs: [reference(inputs["x"].astype(np.float64))],
            lambda asked: [[kernel(inputs["x"])] for _, inputs in asked],
            Effort(2, (0,), False, 4, seconds),
            "",
            "",
            (),
        )


KERNELS = {
    "doubled": (lambda x: x + x, lambda x: x + x, {"signed-rows", "faint-118", "huge-115", "infinite-rows", "nan"}),
    "relu that drops nan": (
        lambda x: np.fmax(x, np.float32(0)),
        lambda x: np.maximum(x, 0),
        {"signed-rows", "infinite-rows"},
    ),
    "square": (lambda x: x * x, lambda x: x * x, {"signed-rows", "faint-60", "huge-54", "infinite-rows", "nan"}),
    "hidden rows are zeros": (
        lambda x: np.where(np.isneginf(x.max(axis=1, keepdims=True)), np.float32(0), x),
        lambda x: x,
        {"signed-rows", "infinite", "nan"},
    ),
    "one large value has no spread": (
        lambda x: np.where((np.ptp(x, axis=1, keepdims=True) == 0) & (np.abs(x) >= 8), np.float32(1), x),
        lambda x: x,
        {"signed", "infinite-rows", "nan"},
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_judged_on_the_kinds_that_it_bears_and_the_contract_says_the_rest(name):
    kernel, reference, borne = KERNELS[name]
    kinds = _kinds(kernel, reference)
    assert borne <= set(kinds.names), kinds.names
    unspecified = {"infinite", "nan"} - {kind.removesuffix("-rows") for kind in borne}
    assert all(any(kind in note and "unspecified" in note for note in kinds.notes) for kind in unspecified)
    operator = TakenOperator(
        "a/t", "f", "x", (ROWS,), (Result("o0", "float32", MATRIX, 90.0),), {}, {}, kinds=tuple(kinds.names)
    )
    assert ("unspecified" in operator.contract) == bool(unspecified or "infinite" in borne)
