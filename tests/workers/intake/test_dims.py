"""Which sizes of a call are one dimension, another, or a count of blocks of one."""

import pytest

from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.calls.dimensions import name_dimensions, operands, tensor_places
from tilewright.workers.intake.child_program import Refusal

Shapes = list[tuple[int | str, ...]]


def _settled(call, works, **more):
    """Shapes by dimensions. ``works`` and ``surely`` are asked with the operands' sizes."""
    calls = [parse(call)]
    raw, _ = operands(calls, tensor_places(calls, [f"x{n}" for n in range(9)]), frozenset())

    def asked(rule):
        return lambda dims, given: rule(*(o.sizes(dims) for o in given))

    made, dims = name_dimensions(raw, 1, asked(works), **{name: asked(rule) for name, rule in more.items()})
    return [o.shape for o in made], dims[0]


def _scaled_product(a, a_scale, b, b_scale):
    blocks = a_scale == (a[0], a[1] // 128) and b_scale == (b[0] // 128, b[1] // 128)
    return a[1] == b[1] and blocks and a[1] % 128 == b[0] % 128 == 0


def _packed(q, s, begins, lengths):
    return s[1] == 8 * q[1] and q[0] == 128 * s[0] and begins[0] == lengths[0] + 1


def _convolution(x, w):
    return x[1] == w[1] and w[2] <= x[2] and w[3] <= x[3] and w[2] * w[3] <= 81


@pytest.mark.parametrize(
    ("call", "works", "shapes"),
    [
        # scales count blocks of the dimensions that they scale
        (
            "f8[4096,2048], f32[4096,16], f8[6144,2048], f32[48,16]",
            _scaled_product,
            [("M", "N"), ("M", "N/128"), ("P", "N"), ("P/128", "N/128")],
        ),
        # where nothing works, equal sizes are one
        ("f16[256,256], f16[256,64]", lambda *_: False, [("M", "M"), ("M", "N")]),
        # square factors of a product have three dimensions
        ("f16[256,256], f16[256,256]", lambda a, b: a[1] == b[0], [("M", "N"), ("N", "K")]),
        # half of a dimension is half of it
        (
            "f16[4096,32,128], f16[4096,64]",
            lambda x, cos: x[0] == cos[0] and 2 * cos[1] == x[2],
            [("M", "N", "K"), ("M", "K/2")],
        ),
        # a dimension that is cut into chunks is tried with whole ones
        ("bf16[8,8192,128]", lambda x: x[1] % 256 == 0, [("M", "N", "K")]),
        # a head that must keep its size keeps it
        (
            "f16[2,8,1024,64], f16[2,8,1024,64]",
            lambda q, k: q == k and q[-1] in (64, 128),
            [("M", "N", "K", "L"), ("M", "N", "K", "L")],
        ),
        # packed codes are an eighth, and offsets one more
        ("i32[1024,256], f16[8,2048], i64[5], i32[4]", _packed, [("M", "L/8"), ("M/128", "L"), ("Q+1",), ("Q",)]),
        # the few elements of a batch and a filter stay
        ("f32[2,18,12,12], f32[20,18,3,3]", _convolution, [("M", "N", "K", "L"), ("P", "N", "Q", "R")]),
        # a batch alone changes where all else decides a result's size
        (
            "f32[16,32,9,9], f32[64,32,3,3], f32[16,64,7,7]",
            lambda x, w, y: (x[1:], w, y) == ((32, 9, 9), (64, 32, 3, 3), (x[0], 64, 7, 7)),
            [("M", 32, 9, 9), (64, 32, 3, 3), ("M", 64, 7, 7)],
        ),
    ],
    ids=["scales", "nothing", "product", "half", "chunks", "head", "packed", "filter", "batch"],
)
def test_dimensions_are_as_different_as_the_function_bears(call, works, shapes):
    found, dims = _settled(call, works)
    names = list(dict.fromkeys(n for shape in found for n in shape if str(n).isidentifier()))
    wanted = list(dict.fromkeys(n for shape in shapes for n in shape if str(n).isidentifier()))
    letters = dict(zip(names, wanted, strict=True))
    renamed = [tuple("".join(letters.get(c, c) for c in str(n)) for n in shape) for shape in found]
    assert renamed == [tuple(map(str, shape)) for shape in shapes]
    sizes = [tensor.shape for tensor in parse(call).tensors()]
    plain = [(n, size) for shape, of in zip(found, sizes, strict=True) for n, size in zip(shape, of, strict=True)]
    assert all(dims[n] == size for n, size in plain if n in dims)


def test_calls_that_differ_in_a_plain_value_are_refused():
    calls = [parse("f32[8, 64], 2.0, eps=[f32[4]]"), parse("f32[16, 64], 3.0, eps=[f32[4]]")]
    places = tensor_places(calls, ["x", "scale"])
    with pytest.raises(Refusal, match="differ in arguments that are no tensors"):
        operands(calls, places, frozenset())


def test_axes_of_few_elements_keep_their_size_and_are_one_dimension():
    calls, seen = [parse("bf16[1024, 16, 64], i32[16]")], set()
    raw, _ = operands(calls, tensor_places(calls, ["q", "lengths"]), frozenset())
    made, _ = name_dimensions(raw, 1, lambda dims, q: not seen.add(q[0].sizes(dims)), size=128, few=128)
    assert [o.shape for o in made] == [("M", "N", "K"), ("N",)] and seen == {(256, 16, 64)}
