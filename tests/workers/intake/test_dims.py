"""Which sizes of a call are one dimension, another, or a count of blocks of one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.calls.dimensions import operands, settle, tensor_places
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.operator import Operand


def _settled(call: str, works) -> tuple[list[tuple[int | str, ...]], dict[str, int]]:
    calls = [parse(call)]
    names = [f"x{n}" for n in range(len(calls[0].arguments))]
    raw, _ = operands(calls, tensor_places(calls, names), frozenset())
    made, dims = settle(raw, 1, works)
    return [o.shape for o in made], dims[0]


def _scaled_product(dims: Mapping[str, int], given: list[Operand]) -> bool:
    a, a_scale, b, b_scale = (o.sizes(dims) for o in given)
    return (
        a[1] == b[1]
        and a_scale == (a[0], a[1] // 128)
        and a[1] % 128 == b[0] % 128 == 0
        and b_scale == (b[0] // 128, b[1] // 128)
    )


def test_scales_count_blocks_of_the_dimensions_they_scale() -> None:
    shapes, dims = _settled("f8[4096,2048], f32[4096,16], f8[6144,2048], f32[48,16]", _scaled_product)
    m, k = shapes[0]
    n = shapes[2][0]
    assert shapes == [(m, k), (m, f"{k}/128"), (n, k), (f"{n}/128", f"{k}/128")]
    assert dims == {m: 4096, k: 2048, n: 6144}


def test_where_nothing_works_equal_sizes_are_one() -> None:
    shapes, dims = _settled("f16[256,256], f16[256,64]", lambda dims, given: False)
    assert shapes == [("M", "M"), ("M", "N")] and dims == {"M": 256, "N": 64}


@pytest.mark.parametrize("shape", [(1,), (1, 8), (1, 16, 8), (1, 1, 8), (6, 8), (2, 1, 1)])
def test_a_batch_of_one_is_not_all_zero(shape: tuple[int, ...]) -> None:
    for seed in range(8):
        made = draw(Operand("x", "float32", shape), {}, "spread", 4, np.random.default_rng(seed))
        assert made.shape == shape and np.abs(made).max() > 0


def test_one_row_of_a_batch_of_one_is_zero() -> None:
    made = draw(Operand("x", "float32", (1, 16, 8)), {}, "spread", 4, np.random.default_rng(0))
    assert (np.abs(made[0]).max(axis=1) == 0).sum() == 1


def _product(dims: Mapping[str, int], given: list[Operand]) -> bool:
    a, b = (o.sizes(dims) for o in given)
    return a[1] == b[0]


def test_square_factors_of_a_product_have_three_dimensions() -> None:
    shapes, dims = _settled("f16[256,256], f16[256,256]", _product)
    (m, k), (again, n) = shapes
    assert again == k and len({m, k, n}) == 3 and dims == {m: 256, k: 256, n: 256}


def test_what_surely_works_is_preferred_to_what_shapes_alone_allow() -> None:
    calls = [parse("f32[64,32], f32[32]")]
    raw, _ = operands(calls, tensor_places(calls, ["x", "bias"]), frozenset())

    def surely(dims: Mapping[str, int], given: list[Operand]) -> bool:
        x, bias = (o.sizes(dims) for o in given)
        return x[1] == bias[0]

    made, _ = settle(raw, 1, lambda dims, given: True)
    assert len({n for o in made for n in o.shape}) == 3
    made, _ = settle(raw, 1, lambda dims, given: True, surely=surely)
    assert [o.shape for o in made] == [("M", "N"), ("N",)]
    made, _ = settle(raw, 1, lambda dims, given: True, surely=lambda dims, given: False)
    assert len({n for o in made for n in o.shape}) == 3


def _rotated(dims: Mapping[str, int], given: list[Operand]) -> bool:
    x, cos = (o.sizes(dims) for o in given)
    return x[0] == cos[0] and 2 * cos[1] == x[2]


def test_half_of_a_dimension_is_said_so() -> None:
    shapes, dims = _settled("f16[4096,32,128], f16[4096,64]", _rotated)
    (n, k, size), (again, half) = shapes
    assert again == n and half == f"{size}/2" and dims == {n: 4096, k: 32, size: 128}


def _chunks(dims: Mapping[str, int], given: list[Operand]) -> bool:
    return all(o.sizes(dims)[1] % 256 == 0 for o in given)


def test_a_dimension_that_is_cut_into_chunks_is_tried_with_whole_ones() -> None:
    shapes, dims = _settled("bf16[8,8192,128]", _chunks)
    assert len(set(shapes[0])) == 3 and list(dims.values()) == [8, 8192, 128]


def test_a_head_that_must_keep_its_size_keeps_it() -> None:
    def works(dims: Mapping[str, int], given: list[Operand]) -> bool:
        q, k = (o.sizes(dims) for o in given)
        return q == k and q[-1] in (64, 128)

    shapes, dims = _settled("f16[2,8,1024,64], f16[2,8,1024,64]", works)
    assert (
        len(dims) == 4 and shapes[0] == shapes[1] == tuple(dims) and list(dims.values()) == [2, 8, 1024, 64]
    )


def test_packed_codes_are_an_eighth_and_offsets_one_more() -> None:
    def works(dims: Mapping[str, int], given: list[Operand]) -> bool:
        q, s, begins, lengths = (o.sizes(dims) for o in given)
        return s[1] == 8 * q[1] and q[0] == 128 * s[0] and begins[0] == lengths[0] + 1

    shapes, _ = _settled("i32[1024,256], f16[8,2048], i64[5], i32[4]", works)
    assert shapes == [("M", "L/8"), ("M/128", "L"), ("Q+1",), ("Q",)]


def test_the_few_elements_of_a_batch_and_a_filter_stay() -> None:
    def works(dims: Mapping[str, int], given: list[Operand]) -> bool:
        x, w = (o.sizes(dims) for o in given)
        return x[1] == w[1] and w[2] <= x[2] and w[3] <= x[3] and w[2] * w[3] <= 81

    shapes, _ = _settled("f32[2,18,12,12], f32[20,18,3,3]", works)
    assert shapes == [("M", "N", "K", "L"), ("P", "N", "Q", "R")]
