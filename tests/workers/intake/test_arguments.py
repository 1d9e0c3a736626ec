"""Calls as text, and the inputs that are drawn for them."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.evolve.intake import served_calls
from tilewright.evolve.intake.signature import signature_of
from tilewright.workers.intake import winner_trial
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import BadCall, Literal, TensorArgument, parse
from tilewright.workers.intake.calls.call_values import call_text
from tilewright.workers.intake.calls.sizes import shape_text, size_of, size_text
from tilewright.workers.intake.judge.inputs import draw, draws
from tilewright.workers.intake.operator import Operand

READ = {
    "f32[4, 8]": TensorArgument("float32", (4, 8)),
    "i64[16] < 100": TensorArgument("int64", (16,), below=100),
    "f32[512, 8] * 0.01": TensorArgument("float32", (512, 8), size=0.01),
    "3 * bf16[64, 32].T": TensorArgument("bfloat16", (64, 32), order=(1, 0), size=3.0),
    "bf16[2, 3, 4].permute(1, 0, 2)": TensorArgument("bfloat16", (2, 3, 4), order=(1, 0, 2)),
    "f32[]": TensorArgument("float32", ()),
    "device(type='cuda')": Literal('torch.device("cuda")'),
    "i64[9].offsets(1024, 200)": TensorArgument("int64", (9,), form="offsets", total=1024, longest=200),
    "i32[64].distinct() < 70": TensorArgument("int32", (64,), below=70, form="distinct"),
    "[bf16[2], 3]": (TensorArgument("bfloat16", (2,)), 3),
}


@pytest.mark.parametrize("text", READ)
def test_an_argument_is_read(text):
    assert parse(text).arguments == (READ[text],)


BAD = {
    "floats times a number": ("i64[8] * 2", "f32[8] * 0", "f32[8] * f32[8]", "f32[8] * True", "2 * 3"),
    "^--args: ": (
        "f32[2, 3].permute(0, 0)",
        "i32[4].sums(0)",
        "f33[4]",
        "f32[-1]",
        "f32[M]",
        "f32[4",
        "os.system('x')",
        "x + 1",
        "i32[64] < x",
        "i32[64] < -1",
        "i32[64] < 2.5",
        "f(3) < 4",
        "i32[64] < True",
    ),
    "integers": ("f32[8].offsets(4)", "i64[8, 8].offsets(4)", "i64[8].offsets()", "f32[8].distinct()"),
}


@pytest.mark.parametrize(("message", "text"), [(m, text) for m, texts in BAD.items() for text in texts])
def test_a_bad_argument_is_reported(message, text):
    with pytest.raises(BadCall, match=message):
        parse(text)


def test_inputs_are_drawn_as_the_call_bounds_them():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for kind in ("randn", "repeated"):
            small = draw(Operand("x", "float32", (4096,), size=0.01), {}, kind, 4, rng)
            assert 0.008 < small.std() < 0.012
        offsets = Operand("x", "int64", (9,), total="M", form="offsets", longest=200)
        made = draw(offsets, {"M": 1024}, "randn", 4, rng)
        lengths = np.diff(made)
        assert made[0] == 0 and made[-1] == 1024 and lengths.min() > 0 and lengths.max() <= 200
        assert len(set(lengths)) > 1
        for total in (5, 9, 19):
            few = draw(offsets, {"M": total}, "randn", 4, rng)
            assert few[0] == 0 and few[-1] == total and np.diff(few).min() >= (total > 8)
            ends = draw(replace(offsets, form="ends"), {"M": total}, "randn", 4, rng)
            assert len(ends) == 9 and ends[-1] == total and np.diff(ends, prepend=0).min() >= (total > 8)
        distinct = draw(Operand("x", "int32", (64,), below=70, form="distinct"), {}, "randn", 4, rng)
        assert len(set(distinct)) == 64 and distinct.min() >= 0 and distinct.max() < 70
        near_zero = draw(Operand("x", "float32", (64,), least=-1.0, most=1.0), {}, "faint-118", 4, rng)
        assert 0 < np.abs(near_zero).max() < 1e-30
        parts = [Operand(n, "int32", (5,), total=t, form="offsets") for n, t in zip("qkv", (64, 64, 80), strict=True)]
        together = draws(parts, {}, "randn", 4, rng)
        assert (together["q"] == together["k"]).all() and together["v"][-1] == 80


def test_bounds_of_integers_follow_their_dimension():
    def settled(text):
        call = parse(text)
        raw, _ = dimensions.operands([call], dimensions.tensor_places([call], [*"abcd"]), frozenset())
        return dimensions.name_dimensions(raw, 1, lambda *_: True)

    (table, ids, groups), sizes = settled("bf16[1000, 64], i64[512] < 1000, i32[4].sums(512)")
    assert ids.below == table.shape[0] and groups.total == ids.shape[0]
    small = dict.fromkeys(sizes[0], 8)
    rng = np.random.default_rng(0)
    assert draw(ids, small, "randn", 4, rng).max() < 8
    assert draw(groups, {**small, str(ids.shape[0]): 30}, "randn", 4, rng).sum() == 30
    (rows, whole, short), sizes = settled("f16[8, 300, 64], i32[8] < 301, i32[8] < 130")
    assert (whole.below, short.below) == (f"{rows.shape[1]}+1", 130)
    assert dimensions.with_bounds_as_dimensions([whole, short], sizes[0])[1].below == rows.shape[1]
    packed, dims = settled(text := "bf16[400, 16], i32[7].offsets(400, 100), 128, 16")
    made = pytest.importorskip("tilewright.workers.intake.triton.call_site").CallSite
    site = made(print, "", "print", [parse(text)], "torch.mul", packed, [(0,), (1,)], dims)
    assert site.follow_longest() and site.reference_calls()[0] == "a, b, min(128, a.shape[0]), 16"
    assert [site._followed((2,), {**dims[0], packed[0].shape[0]: n})[0] for n in (400, 70)] == [128, 70]


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ([({"M": 7, "N": 5}, 7), ({"M": 64, "N": 32}, 64)], "M"),
        ([({"M": 7, "N": 5}, 40), ({"M": 64, "N": 32}, 256)], "8*N"),
        ([({"M": 7}, 128), ({"M": 1000}, 1024)], "M/128*128"),
        ([({"M": 7, "N": 5}, 12), ({"M": 64, "N": 32}, 96)], "M+N"),
        ([({"M": 7, "N": 5, "K": 3}, 105), ({"M": 64, "N": 32, "K": 2}, 4096)], "M*N*K"),
        ([({"M": 7}, 6), ({"M": 64}, 6)], 6),
        ([({"K": 64, "L": 64}, 64), ({"K": 64, "L": 32}, 32), ({"K": 64, "L": 64}, 64)], "L"),
        ([({"N": 300}, 3), ({"N": 640}, 5)], "N/128"),
        ([({"M": 17}, 16), ({"M": 9}, 8)], "M+-1"),
        ([({"M": 1024, "N": 12}, 1013), ({"M": 64, "N": 7}, 58)], "M+-N+1"),
        ([({"K": 128, "N": 1024}, 2176), ({"K": 64, "N": 256}, 320)], "K*N+64/64"),
    ],
)
def test_sizes_of_results_follow_from_dimensions(seen, text):
    assert size_text(seen) == text
    assert all(size_of(text, dims) == size for dims, size in seen)


def test_axes_of_one_size_are_each_a_dimension_of_their_own():
    """An image of as many rows as columns: what was checked keeps both, and cannot tell one from the other."""
    image = {"M": 8, "N": 64, "K": 32, "L": 32}
    assert shape_text(image, [({**image, "M": 4}, (4, 64, 32, 32))], (8, 64, 32, 32)) == ("M", "N", "K", "L")
    assert shape_text(image, [({**image, "L": 16}, (32, 32))], (32, 32)) == ("K", "K")


def test_a_winner_is_given_its_own_tensors_without_the_gradients_of_a_pair():
    x, gradient = np.zeros(2), np.ones(2)
    assert winner_trial._arguments(parse("f32[2], dim=1"), [x, gradient]) == ([x], {"dim": 1})


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_a_layer_among_the_arguments_is_told_apart_by_what_a_new_one_does_not_hold(tmp_path, monkeypatch, eps):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(served_calls, "TILEWRIGHT_TORCH", torch)
    (file := tmp_path / "f.py").write_text("def f(x, norm):\n    return x\n")
    layer, x = torch.nn.RMSNorm(64, eps=eps).eval(), torch.zeros(4, 64)
    call = parse(call_text((x, layer), {}))
    texts, tensors = signature_of(file, "f", call).settled(call)
    assert tensors == ["x", "norm._parameters['weight']"]
    assert texts == [served_calls.tilewright_text(value) for value in (x, layer)]
    layer.register_forward_hook(print)
    assert all(texts[1] != served_calls.tilewright_text(n) for n in (layer, torch.nn.RMSNorm(64, eps=eps)))
