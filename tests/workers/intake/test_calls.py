"""Calls that a user's file makes, as texts."""

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.workers.intake.calls.call_text import GIVEN, accepted_keywords, parse, python_value  # noqa: E402
from tilewright.workers.intake.calls.call_values import arguments_of, call_text  # noqa: E402
from tilewright.workers.intake.calls.dimensions import operands, tensor_places  # noqa: E402
from tilewright.workers.intake.calls.file_calls import calls  # noqa: E402
from tilewright.workers.intake.calls.kept_values import values_of, ways_to_draw, write, write_renamed  # noqa: E402
from tilewright.workers.intake.judge.inputs import draw  # noqa: E402
from tilewright.workers.intake.operator import Operand  # noqa: E402

FILE = """
import torch

def calls():
    begins = torch.tensor([0, 100, 250, 1024], device="cuda")
    x = torch.zeros(1024, 64, device=torch.device("cuda"), dtype=torch.bfloat16)
    return [(x, begins, 512), (x.half(), begins.to("cuda"), {"slots": torch.randperm(64).cuda(), "scale": 0.5})]

inputs = (torch.zeros(3, 4).T, torch.ones(8, dtype=torch.int32), torch.tensor([200, 500, 1024]))
several = ["f32[4]", "f32[8]"]
"""


def test_what_counts_of_tensors_is_said(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE)

    def texts(name=""):
        return [c if isinstance(c, str) else call_text(*arguments_of(c)) for c in calls(file, name)]

    first, second = texts()
    assert first == "bf16[1024, 64], i64[4].offsets(1024, 774), 512"
    assert second == ("f16[1024, 64], i64[4].offsets(1024, 774), slots=i64[64].distinct() < 64, scale=0.5")
    assert texts("inputs") == ["f32[3, 4].permute(1, 0), i32[8] < 2, i64[3].ends(1024, 524)"]
    assert texts("several") == ["f32[4]", "f32[8]"]
    with pytest.raises(LookupError, match="has nothing named other"):
        texts("other")


OBJECTS = """
import dataclasses, enum

class Mode(enum.Enum):
    FAST = 1

@dataclasses.dataclass
class Config:
    block: int
    mode: Mode
    weight: object

@dataclasses.dataclass
class Range:
    low: float
    size: float

    def __init__(self, low, high):
        self.low, self.size = low, high - low

class Layer:
    def __init__(self):
        raise ValueError("an object is made without it")
"""


def test_objects_and_values_go_through_a_calls_text(tmp_path, monkeypatch):
    (tmp_path / "own_objects.py").write_text(OBJECTS)
    monkeypatch.syspath_prepend(tmp_path)
    own: Any = importlib.import_module("own_objects")
    layer = object.__new__(own.Layer)
    layer.scale = torch.ones(3)
    config = own.Config(64, own.Mode.FAST, torch.arange(6.0).reshape(2, 3).T)
    given = ((config, layer, own.Range(1.0, 3.0)), {"dtype": torch.float16})
    text = call_text(*given)
    assert text == (
        "own_objects.Config(block=64, mode=own_objects.Mode.FAST, weight=f32[2, 3].permute(1, 0)), "
        "object(own_objects.Layer, scale=f32[3]), object(own_objects.Range, low=1.0, size=2.0), dtype=torch.float16"
    )
    call = parse(text)
    places = [place for _, place in tensor_places([call], ["config", "layer", "range"])]
    made = [python_value(v, (n,), dict(zip(places, "wc", strict=True))) for n, v in enumerate(call.arguments)]
    assert made[0] == own.Config(64, own.Mode.FAST, "w") and made[1].scale == "c"
    assert made[2] == own.Range(1.0, 3.0)
    write(tmp_path / "in.npz", [values_of(*given)])
    assert write_renamed(tmp_path / "in.npz", tmp_path / "out.npz", ["2x3"], ["w", "s"]) == ["2x3"]
    operand = Operand("w", "float32", ("M", "N"), values=str(tmp_path / "out.npz"))
    dims = {"M": 2, "N": 3}
    assert (draw(operand, dims, GIVEN, 4, np.random.default_rng(0)) == config.weight.T.numpy()).all()
    alone = ways_to_draw([operand])[-1][0]
    assert (draw(alone, dims, "randn", 4, np.random.default_rng(0)) == config.weight.T.numpy()).all()
    with pytest.raises(LookupError, match="none of this shape"):
        draw(alone, {"M": 4, "N": 3}, "randn", 4, np.random.default_rng(0))


def test_integers_are_the_callers_own_at_its_shape_and_drawn_elsewhere(tmp_path):
    write(tmp_path / "in.npz", [[np.array([7, 5, 9], dtype="int32")]])
    write_renamed(tmp_path / "in.npz", tmp_path / "out.npz", ["3"], ["lengths"])
    lengths = Operand("lengths", "int32", ("M",), below=10, values=str(tmp_path / "out.npz"))
    made = [draw(lengths, {"M": m}, "usual", 4, np.random.default_rng(0)) for m in (3, 8)]
    assert made[0].tolist() == [7, 5, 9] and len(made[1]) == 8


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("f32[64, 8] >= 0", lambda a: (a >= 0).all() and a.max() > 1),
        ("f32[64, 8] in [-1, 2]", lambda a: a.min() >= -1 and a.max() <= 2 and a.min() < 0 < a.max()),
        ("i32[64, 8] in [3, 9]", lambda a: a.min() == 3 and a.max() == 8),
        ("f32[64, 8].softmax()", lambda a: np.allclose(a.sum(1), 1) and (a >= 0).all()),
    ],
)
def test_operands_keep_to_what_their_call_says(text, holds):
    call = parse(text)
    (operand,), _ = operands([call], tensor_places([call], ["x"]), frozenset())
    drawn = draw(replace(operand, shape=(64, 8)), {}, "spread", 4, np.random.default_rng(3))
    assert holds(drawn)


@pytest.mark.parametrize(
    ("function", "kept"),
    [(lambda x: x, {}), (lambda x, dim: x, {"dim": 1}), (lambda x, **options: x, {"dim": 1}), (min, {"dim": 1})],
)
def test_a_keyword_of_the_reference_alone_is_not_given_to_the_function(function, kept):
    assert accepted_keywords(function, {"dim": 1}) == kept
