"""The winner's module against the original: on every call they agree, or the original serves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from testkit import ROOT
from tilewright.evolve.intake import served_calls
from tilewright.evolve.intake.signature import signature_of
from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.child_program import loaded_module

pytest.importorskip("triton")
PROGRAM = Path(__file__).with_name("odd_calls.py")
PALLAS = Path(__file__).with_name("odd_pallas.py")
QUICK = {"jit", "grad", "grad of jit", "jvp of jit"}
"""Transformations of a recorded call that are compared where the whole is not."""

NEVER = {
    "other dtype",
    "half",
    "bfloat",
    "rank",
    "flat",
    "empty",
    "larger",
    "with gaps",
    "turned",
    "spread",
    "other device",
    "of numpy",
    "numbers",
    "none",
    "none, of the first",
    "sparse",
    "subclass",
    "autocast",
    "needs a gradient: jvp",
    "needs a gradient: vmap",
    "unknown option",
    "too few",
    "too many",
}
"""Calls that no winner serves."""

PAIRS = ("Doubled", "Product", "Twisted", "Overwriting", "Reusing", "Consuming")

TOLD = {
    ("Overwriting.apply", "twice"),
    *((f"{name}.apply", "create") for name in ("Doubled", "Twisted", "Overwriting", "Reusing", "Consuming")),
}
"""Pairs and backwards that the screen and the file say to be errors: a second one, and a gradient of a gradient."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("winners")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts, rows = json.loads(done.stdout.splitlines()[-1])
    return facts, rows, folder


def test_winner_and_original_agree_on_odd_calls_or_the_original_serves(answers):
    _, rows, _ = answers
    errors = {(name, f"needs a gradient: {way}") for name, way in TOLD}
    assert [str(row)[:900] for row in rows if row[2] and (row[0], row[1]) not in errors] == []
    served = {(name, case) for name, case, _, own, _ in rows if own}
    assert {name for name, case in served if case == "as recorded"} == {name for name, *_ in rows}
    assert {("branched", "fewer rows"), ("guarded", "fewer rows")}.isdisjoint(served)  # other branches there
    assert {("signed", "deterministic"), ("signed", "another sign")}.isdisjoint(served)
    assert ("careful", "needs a gradient: without gradients") not in served
    assert ("rows", "deterministic") in served and ("scale_", "another sign") in served
    assert ("turned", "fewer rows") in served and ("summed", "fewer rows") in served
    pairs = {f"{name}.apply" for name in PAIRS}
    gradients = {"needs a gradient: once", "needs a gradient: last", "gradient of a view", "one gradient"}
    assert {(name, case) for name in pairs for case in gradients} <= served
    assert {(name, case) for name, case in served if case in NEVER} == set()
    assert {name for name, case in served if "needs a gradient: once" in case or case == "one gradient"} == pairs
    assert {("into", case) for case in ("one tensor", "one memory", "one memory in part")}.isdisjoint(served)


def test_an_original_that_reads_memory_nobody_wrote_differs_from_itself():
    torch = pytest.importorskip("torch")
    from testkit import odd_calls

    winner = SimpleNamespace(f=lambda x: torch.zeros(4**6), g=lambda x: x + 1)
    cases = [("as recorded", lambda: ([torch.ones(4)], {}), "once")]
    original = lambda x: torch.empty(4**6)  # noqa: E731
    assert [row[1:] for row in odd_calls.compared(winner, "f", original, cases)] == [([], True, True)]
    ((_, sides, _, undefined),) = odd_calls.compared(winner, "g", torch.sin, cases)
    assert len(sides) == 3 and not undefined


def test_every_winner_does_what_is_asked_of_it_before_it_is_named(answers):
    assert {name: of["why"] for name, of in answers[0].items() if of["why"]} == {}


def test_a_pair_is_taken_where_its_backward_can_be(answers):
    facts, rows, folder = answers
    assert {name for name, of in facts.items() if of["pair"]} == {f"{name}.apply" for name in PAIRS}
    text = (folder / "doubled.py").read_text()
    assert "can be run once" not in text and '__name__ = "DoubledBackward"' in text, "torch names it in messages"
    again = next(row for row in rows if row[:2] == ["Overwriting.apply", "needs a gradient: twice"])
    assert again[2][1][0] == "RuntimeError" and "can be run once" in again[2][1][1][0]


def test_what_a_winner_leaves_out_is_told_and_meaning_is_no_knob(answers):
    facts, _, folder = answers
    dropped, flags = sorted(facts["rows"]["left_out"])
    assert "what kernels write into torch.bool[8] is not judged" in dropped + flags
    assert "torch._assert_async is not done" in dropped + flags
    assert "reduction" not in facts["rows"]["knobs"]
    assert "\nimport math\n" in (folder / "held.py").read_text()  # which Triton's interpreter gives, and no GPU
    text = (folder / "rows.py").read_text()
    assert "def rows(x: 'torch.Tensor', w: 'torch.Tensor', eps: 'float'=1e-06, *, mode='plain'):" in text
    assert "'Rows by their root mean square, and its inverse.'" in text and "tilewright." not in text


@pytest.mark.parametrize("name", ["weighted", "signed"])
def test_a_pallas_winner_has_the_derivatives_of_the_original(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    from jax.experimental.pallas import tpu

    from testkit import odd_calls, winners
    from tilewright.workers.intake.pallas.original import on_chip

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    call = "f32[16, 256], f32[1, 256]" if name == "weighted" else "f32[16, 256]"
    sizes = {"rows": 16} if name == "signed" else {"cols": 256}
    text, own_name, made, _ = winners.pallas_winner(PALLAS, name, call, sizes)
    (tmp_path / "winner.py").write_text(text)
    module = loaded_module(tmp_path / "winner.py")
    original = module.tilewright_original(module.SERVED)
    quick = ("none", "of numpy", "rank", "cols=129")
    cases = [c for c in odd_calls.odd_array_calls(original, made) if c[2] in QUICK or c[0] in quick]
    rows = list(odd_calls.compared(module, own_name, original, cases[:1], odd_calls.array_outcome))
    assert [row[2] for row in rows] == [False], "a TPU's kernel serves no array of a host"
    with on_chip({"kind": "TPU7x", "cores": 1}), tpu.force_tpu_interpret_mode(True):
        rows = list(odd_calls.compared(module, own_name, original, cases, odd_calls.array_outcome))
    assert [str(row)[:900] for row in rows if row[1]] == []
    served = {case for case, _, own, _ in rows if own}
    assert served == {"as recorded: jit"}


def test_a_default_that_only_the_originals_file_has_moves_no_other_argument(tmp_path):
    from tilewright.workers.intake.triton.program import leading_names

    path = tmp_path / "left_out.py"
    path.write_text("SCALE = 2\n\n\ndef f(x, scale=SCALE, bias=None, *, mode=SCALE):\n    return x\n")
    forwarded = signature_of(path, "f", parse("f32[8]")).forwarded()
    assert forwarded == 'x, bias=bias, **tilewright_given({"scale": scale, "mode": mode})'
    decorated = signature_of(path, "f", parse("f32[8]"), leading=leading_names(lambda ctx, *rest, **named: rest))
    assert decorated.text.startswith("x, /, scale=") and leading_names(lambda x, scale: x) == []
    path.write_text(
        "class F:\n    @staticmethod\n    def forward(ctx, x, scale=SCALE, bias=None):\n        return x, scale, bias\n"
        "    @classmethod\n    def apply(cls, *given):\n        return cls.forward(cls, *given)\n\n\nSCALE = 2\n"
    )
    forwarded = signature_of(path, "F.apply", parse("f32[8]")).forwarded()
    made = path.read_text().replace("SCALE = 2\n", "").replace("SCALE", "2")
    scope = {**vars(served_calls), "SERVED": {}, "x": 1, "scale": served_calls.TILEWRIGHT_DEFAULT, "bias": 3}
    exec(f"{made}\ntilewright_original = lambda served: F.apply\nfound = F.apply({forwarded})", scope)
    assert scope["found"] == (1, 2, 3)


def test_a_winner_that_stands_where_the_original_stood_finds_it_in_its_file(tmp_path, monkeypatch):
    path = tmp_path / "stood.py"
    sizes = "@dataclasses.dataclass\nclass Sizes:\n    rows: int\n\n\n"  # which looks its module up
    head = f"from __future__ import annotations\nimport dataclasses\n\n{sizes}"
    path.write_text(f"{head}def doubled(x):\n    return 2 * x\n")
    text = Path(served_calls.__file__).read_text() + (
        f"\nSERVED = {{'original': ({str(path)!r}, {str(tmp_path)!r}, 'stood', 'doubled')}}\n\n"
        "def doubled(x):\n    return 'tuned' if x == 3 else tilewright_original(SERVED)(x)\n"
    )
    (tmp_path / "winner.py").write_text(text)
    stood, winner = loaded_module(path), loaded_module(tmp_path / "winner.py")
    monkeypatch.setitem(sys.modules, "stood", stood)
    stood.doubled = winner.doubled
    assert (stood.doubled(3), stood.doubled(4)) == ("tuned", 8)
