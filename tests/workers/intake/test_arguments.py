"""Calls as text, and the dimensions in them."""

import numpy as np
import pytest

from tilewright.workers.intake.calls import dimensions as dims
from tilewright.workers.intake.calls.call_text import BadCall, Literal, TensorArgument, parse
from tilewright.workers.intake.calls.sizes import size_of, size_text
from tilewright.workers.intake.judge.inputs import draw, draws
from tilewright.workers.intake.operator import Operand


def test_a_call_is_read() -> None:
    call = parse("f32[4, 8], i64[16] < 100, [bf16[2], bf16[3]], dim=1, dtype=torch.float16, bias=None")
    assert call.arguments[0] == TensorArgument("float32", (4, 8))
    assert call.arguments[1] == TensorArgument("int64", (16,), below=100)
    assert [t.shape for t in call.arguments[2]] == [(2,), (3,)]
    assert dict(call.keywords) == {"dim": 1, "dtype": Literal("torch.float16"), "bias": None}


def test_sizes_of_floats_are_read_and_drawn() -> None:
    call = parse("f32[512, 8] * 0.01, 3 * bf16[64, 32].T")
    assert [(t.shape, t.order, t.size) for t in call.arguments] == [
        ((512, 8), (), 0.01),
        ((64, 32), (1, 0), 3.0),
    ]
    for text in ("i64[8] * 2", "f32[8] * 0", "f32[8] * f32[8]", "f32[8] * True", "2 * 3"):
        with pytest.raises(BadCall, match="floats times a number"):
            parse(text)
    for kind in ("randn", "repeated"):
        small = draw(Operand("x", "float32", (4096,), size=0.01), {}, kind, 4, np.random.default_rng(0))
        assert 0.008 < small.std() < 0.012


def test_views_and_scalars_are_read() -> None:
    call = parse("f32[4, 8].T, bf16[2, 3, 4].permute(1, 0, 2), f32[], device(type='cuda')")
    assert [t.order for t in call.arguments[:3]] == [(1, 0), (1, 0, 2), ()]
    assert call.arguments[2] == TensorArgument("float32", ())
    assert call.arguments[3] == Literal('torch.device("cuda")')


def test_bounds_of_integers_follow_their_dimension() -> None:
    call = parse("bf16[1000, 64], i64[512] < 1000, i32[4].sums(512)")
    raw, _ = dims.operands([call], dims.tensor_places([call], ["table", "ids", "sizes"]), frozenset())
    settled, sizes = dims.settle(raw, 1, lambda *_: True)
    table, ids, groups = settled
    assert ids.below == table.shape[0] and groups.total == ids.shape[0]
    small = dict.fromkeys(sizes[0], 8)
    rng = np.random.default_rng(0)
    assert draw(ids, small, "randn", 4, rng).max() < 8
    assert draw(groups, {**small, str(ids.shape[0]): 30}, "randn", 4, rng).sum() == 30


@pytest.mark.parametrize(
    "text",
    [
        "f32[2, 3].permute(0, 0)",
        "i32[4].sums(0)",
        "f33[4]",
        "f32[-1]",
        "f32[M]",
        "f32[4",
        "os.system('x')",
        "x + 1",
    ],
)
def test_what_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(BadCall, match="--args"):
        parse(text)


def _settled(shapes: list[tuple[int, ...]], works) -> list[tuple]:
    raw = [Operand(f"x{n}", "float32", tuple((s,) for s in shape)) for n, shape in enumerate(shapes)]  # type: ignore[misc]
    return [o.shape for o in dims.settle(raw, 1, works)[0]]


def test_equal_sizes_are_one_dimension_only_where_they_must_be() -> None:
    """A square product: the inner dimension is shared, the outer ones are not."""

    def product(sizes, operands) -> bool:
        a, b = (o.sizes(sizes) for o in operands)
        return a[1] == b[0]

    left, right = _settled([(64, 64), (64, 64)], product)
    assert left[1] == right[0]
    left, right = _settled([(64, 64), (64, 32)], product)
    assert left[1] == right[0] and left[0] != left[1]


def test_a_size_may_be_a_product_or_a_quotient() -> None:
    assert size_of("M*N", {"M": 3, "N": 5}) == 15
    assert size_of("N/128", {"N": 300}) == 3


@pytest.mark.parametrize(
    "text", ["i32[64] < x", "i32[64] < -1", "i32[64] < 2.5", "f(3) < 4", "i32[64] < True"]
)
def test_a_bound_that_is_none_is_told(text: str) -> None:
    with pytest.raises(BadCall, match=r"^--args: "):
        parse(text)


def test_offsets_are_read_and_drawn() -> None:
    (offsets,) = parse("i64[9].offsets(1024, 200)").arguments
    assert (offsets.form, offsets.total, offsets.longest) == ("offsets", 1024, 200)
    for seed in range(5):
        operand = Operand("x", "int64", (9,), total="M", form="offsets", longest=200)
        made = draw(operand, {"M": 1024}, "randn", 4, np.random.default_rng(seed))
        lengths = np.diff(made)
        assert made[0] == 0 and made[-1] == 1024 and lengths.min() > 0 and lengths.max() <= 200
        assert len(set(lengths)) > 1
        few = draw(operand, {"M": 5}, "randn", 4, np.random.default_rng(seed))
        assert few[0] == 0 and few[-1] == 5 and np.diff(few).min() >= 0


def test_offsets_of_one_total_are_alike() -> None:
    parts = [
        Operand(n, "int32", (5,), total=total, form="offsets")
        for n, total in (("q", 64), ("k", 64), ("v", 80))
    ]
    made = draws(parts, {}, "randn", 4, np.random.default_rng(0))
    assert (made["q"] == made["k"]).all() and made["v"][-1] == 80


def test_distinct_integers_are_read_and_drawn() -> None:
    (slots,) = parse("i32[64].distinct() < 70").arguments
    assert (slots.form, slots.below) == ("distinct", 70)
    made = draw(
        Operand("x", "int32", (64,), below=70, form="distinct"), {}, "randn", 4, np.random.default_rng(0)
    )
    assert len(set(made)) == 64 and made.min() >= 0 and made.max() < 70


@pytest.mark.parametrize(
    "text", ["f32[8].offsets(4)", "i64[8, 8].offsets(4)", "i64[8].offsets()", "f32[8].distinct()"]
)
def test_forms_of_what_is_no_row_of_integers_are_refused(text: str) -> None:
    with pytest.raises(BadCall, match="integers"):
        parse(text)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([({"M": 7, "N": 5}, 7), ({"M": 64, "N": 32}, 64)], "M"),
        ([({"M": 7, "N": 5}, 40), ({"M": 64, "N": 32}, 256)], "8*N"),
        ([({"M": 7}, 128), ({"M": 1000}, 1024)], "M/128*128"),
        ([({"M": 7, "N": 5}, 12), ({"M": 64, "N": 32}, 96)], "M+N"),
        ([({"M": 7, "N": 5, "K": 3}, 105), ({"M": 64, "N": 32, "K": 2}, 4096)], "M*N*K"),
        ([({"M": 7}, 6), ({"M": 64}, 6)], 6),
        ([({"K": 64, "L": 64}, 64), ({"K": 64, "L": 32}, 32), ({"K": 64, "L": 64}, 64)], "L"),
    ],
)
def test_sizes_of_results_are_said_by_dimensions(
    seen: list[tuple[dict[str, int], int]], said: int | str
) -> None:
    assert size_text(seen) == said
    assert all(size_of(said, dims) == size for dims, size in seen)
