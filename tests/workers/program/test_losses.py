"""The test of losses, on curves of which it is known whether they are alike."""

from __future__ import annotations

import math
import random
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright.library.launch_replacement import Option, Winner  # noqa: E402
from tilewright.workers.program.calls import Watch, answers, numbers  # noqa: E402
from tilewright.workers.program.prove import LOOKS, Proof, gradient_fault, loss_test  # noqa: E402
from tilewright.workers.program.step import Program  # noqa: E402
from tilewright.workers.program.turns import Turns  # noqa: E402


def curves(kind: str, seed: int) -> list[list[float]]:
    """Three starts of 20 steps: a loss that falls from 12 towards nothing, one that stands still, an output."""
    drawn = random.Random(seed)
    found = []
    for _ in range(3):
        begin = 12 + drawn.gauss(0, 0.05)
        fall = {"falls": 0.8, "stands": 1.0, "output": 1.0}[kind]
        noise = {"falls": 0.01, "stands": 0.05, "output": 0.0}[kind]
        found.append([begin * fall**step * (1 + drawn.gauss(0, noise)) for step in range(20)])
    return found


def _at(curve: list[float], place: float) -> float:
    n = min(int(place), len(curve) - 2)
    return curve[n] + (place - n) * (curve[n + 1] - curve[n])


CHANGES = {
    "rounding": lambda curve, drawn: [v * (1 + drawn.gauss(0, 0.001)) for v in curve],
    "2 % slower": lambda curve, drawn: [_at(curve, 0.98 * n) for n in range(20)],
    "half a step late": lambda curve, drawn: [(a + b) / 2 for a, b in zip([curve[0], *curve], curve, strict=False)],
    "three steps late": lambda curve, drawn: [curve[max(0, n - 3)] for n in range(20)],
    "never learns": lambda curve, drawn: [curve[0]] * 20,
    "ends in NaN": lambda curve, drawn: [*curve[:19], math.nan],
    "a tenth more": lambda curve, drawn: [1.1 * v for v in curve],
    "leaves at the end": lambda curve, drawn: [*curve[:15], *(v + 5 for v in curve[15:])],
}


@pytest.mark.parametrize(
    ("kind", "change", "db", "passes"),
    [
        ("falls", "rounding", 40.0, True),
        ("falls", "2 % slower", 40.0, False),
        ("falls", "2 % slower", 14.0, True),  # noise of 4 % of the gradients' power
        ("falls", "half a step late", 20.0, False),
        ("falls", "half a step late", 5.0, True),
        ("falls", "three steps late", 5.0, False),
        ("falls", "never learns", 5.0, False),
        ("falls", "ends in NaN", 5.0, False),
        ("falls", "leaves at the end", 5.0, False),
        ("stands", "rounding", 40.0, True),
        ("stands", "a tenth more", 5.0, False),
        ("output", "a tenth more", math.inf, False),
        ("output", "ends in NaN", math.inf, False),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_change_that_other_starts_do_not_explain_is_seen(
    kind: str, change: str, db: float, passes: bool, seed: int
) -> None:
    drawn = random.Random(100 + seed)
    own = curves(kind, seed)
    found = loss_test(own, [CHANGES[change](curve, drawn) for curve in own], kind != "output", db)
    assert found.passes == passes, str(found)


def refused(lean: float, noise: float, programs: int) -> float:
    """Share of programs whose every rounding moves a loss by a deviation, and one of which leans or is noisier."""
    drawn, count = random.Random(7), 0

    def runs(noise: float, lean: float) -> list[list[float]]:
        moved = [drawn.gauss(lean, noise / 2**0.5) for _ in range(max(LOOKS))]
        return [[12 * 0.9**step + move for step in range(4)] for move in moved]

    for _ in range(programs):
        own, nudged, ours = runs(1.0, 0.0), runs(1.0, 0.0), runs(noise, lean)
        for starts in LOOKS:
            found = loss_test(own[:starts], ours[:starts], True, 60.0, nudged[:starts])
            if found.shown:
                break
        count += not found.passes
    return count / programs


def test_of_steps_that_a_last_bit_throws_elsewhere_what_leans_is_refused_and_what_rounds_is_not() -> None:
    assert refused(0.0, 1.0, 600) <= 0.012 and refused(0.0, 0.3, 200) == 0
    assert refused(1.0, 1.0, 200) > 0.4 and refused(-2.0, 1.0, 200) > 0.97


def test_steps_that_a_last_bit_throws_elsewhere_are_judged_by_what_it_changes() -> None:
    drawn, own = random.Random(1), [[12 * 0.9**step for step in range(20)]] * 16
    nudged, ours = ([[v * (1 + drawn.gauss(0, 0.05)) for v in curve] for curve in own] for _ in range(2))
    assert not loss_test(own[:3], ours[:3], True, 40.0).passes and loss_test(own, ours, True, 40.0, nudged).passes
    for change in CHANGES.keys() - {"rounding", "2 % slower", "a tenth more"}:
        changed = [CHANGES[change](curve, drawn) for curve in own]
        assert not loss_test(own, changed, True, 40.0, nudged).passes, change
        assert not loss_test(own, changed, True, 40.0, [[math.nan] * 20] * 16).passes, change


torch.manual_seed(3)
NORM, NOISE, ROUNDING, TOKENS = torch.randn(64), torch.randn(64), 1e-4 * torch.randn(64), torch.arange(4096)


@pytest.mark.parametrize(
    ("original", "nudged", "ours", "lost"),
    [
        (NORM, NORM + ROUNDING, NORM + 0.3 * NOISE, False),
        (NORM, NORM + ROUNDING, 0 * NORM, True),
        (NORM, NORM + ROUNDING, -NORM, True),
        (NORM, NORM, NORM, False),
        (0 * NORM, 0 * NORM, 0 * NORM, False),
        (0 * NORM, 0 * NORM, ROUNDING, True),
        (numbers(TOKENS), numbers(TOKENS), numbers(TOKENS ^ 1), True),  # nearly of one norm
        (ROUNDING, ROUNDING.flip(0), 1e-4 * NOISE, False),  # of a key's bias: nothing but rounding
    ],
)
def test_a_small_parameter_that_loses_its_gradient_is_seen(
    original: torch.Tensor, nudged: torch.Tensor, ours: torch.Tensor, lost: bool
) -> None:
    large = {"large.weight": 100 * torch.randn(4096), "result 0": NOISE}
    first, again, found = (large | {"norm.weight": norm} for norm in (original, nudged, ours))
    found = gradient_fault(first, again, found, fp8=True)
    assert bool(found) == lost, found


class Pair:
    def __init__(self, a: Any) -> None:
        self.a = a


def over(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.mul_(2) + b


def yields(a: torch.Tensor) -> Any:
    yield a * 2


def wiped(a: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    out = a * factor
    out.register_hook(lambda _: (out.detach().zero_(), None)[1])
    return out


HALF = torch.randn(8, 6)
WRONG_CALLS = {
    "an argument that was to be written": (over, lambda a, b: 2 * a + b, (HALF, NOISE[:6]), "dB"),
    "what aliases it": (over, lambda a, b: a.mul_(2) + 0.5 * b, (HALF, HALF), "dB"),
    "what is written over after it was returned": (
        wiped,
        lambda a: wiped(a, 1.1),
        (HALF.clone().requires_grad_(),),
        "dB",
    ),
    "every other column": (lambda a: a * 1, lambda a: a * (1 if a.is_contiguous() else 1.1), (HALF[:, ::2],), "dB"),
    "an imaginary part": (lambda a: torch.complex(a, a), lambda a: torch.complex(a, 1.2 * a), (HALF,), "dB"),
    "a conjugate": (lambda a: (a * 1j).conj(), lambda a: a * 1j, (HALF,), "dB"),
    "what a generator yields": (yields, lambda a: iter([a * 2.1]), (HALF,), "dB"),
    "what an object holds": (lambda a: Pair(2 * a), lambda a: Pair(2.1 * a), (HALF,), "dB"),
    "a parameter's": (lambda a: a * 2, lambda a: a * 2.1, (torch.nn.Parameter(HALF.clone()),), "dB"),
    "without gradients": (lambda a: a * 2, lambda a: a * (2 + torch.is_grad_enabled() - 0.5), (HALF,), "dB"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_call_s_wrong_answer_is_found_wherever_it_lies(name: str) -> None:
    original, changed, given, why = WRONG_CALLS[name]
    watch = Watch("m", "f")
    with torch.set_grad_enabled("without" not in name):
        watch.stand_in(lambda *args: None)(*given)
    (call,) = watch.kept.values()
    first, nudged, again = (answers(call, original), answers(call, original, nudged=True), answers(call, original))
    assert not gradient_fault(first, nudged, again)
    served = Option("m", "f", "rows", 1, watch.seen)
    stand_in, served.installed = served.stand_in(lambda *args, rows: changed(*args)), True
    assert why in gradient_fault(first, nudged, answers(call, stand_in)) and served.calls == 1


NORM_CODE = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())["norm"]
HONEST = {"out": "x.float() * r * w", "dx": "dx", "dw": "dw", "dtype": "x.dtype", "result": "Norm.apply(x, w)"}
NORMS = {
    "as it was": ({}, ""),
    "rounded at other places": ({"out": "(x * r).to(x.dtype) * w.float()"}, ""),
    "gradient of 1.02 in one layer": ({"dw": "dw * (1.02 if one else 1)"}, "off in size"),
    "dropped gradient": ({"dw": "0 * dw"}, "0.0 dB"),
    "dropped later": ({"dw": "0 * dw if one and late else dw"}, "in step "),
    "last rows without gradient": ({"dx": "dx * (torch.arange(128) < 124)[:, None]"}, "dB from the original's"),
    "another dtype": ({"dtype": "torch.float32"}, "float32[128, 64] where the original gives result 0 bfloat16"),
    "a tuple of it": ({"result": "(Norm.apply(x, w),)"}, "where the original gives result as *"),
    "a term is missing": ({"dx": "r * g"}, "dB from the original's"),
    "noise": ({"dx": "dx + 0.1 * dx.norm() / dx.numel() ** 0.5 * noise"}, "dB from the original's"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n.startswith("rounded") else n for n in NORMS]
)
def test_a_wrong_function_is_found_in_a_step_that_a_last_bit_throws_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = ModuleType("chaotic")
    monkeypatch.setitem(sys.modules, "chaotic", module)
    exec(NORM_CODE.format(**HONEST), vars(module))
    changed, why = NORMS[name]
    (tmp_path / "norm.py").write_text(NORM_CODE.format(**{**HONEST, **changed}))

    def setup() -> Any:
        drawn = [torch.randn(shape) / 8 for _ in range(6) for shape in ((64, 64), (64,))]
        return torch.nn.ParameterList(drawn).to(torch.bfloat16), torch.randn(128, 64).to(torch.bfloat16)

    def step(state: Any) -> torch.Tensor:
        drawn, x = state
        y = x
        for a, n in zip(drawn[::2], drawn[1::2], strict=True):
            y = y * 0.5 + torch.tanh(4 * module.norm(y, 8 * n) @ a)
        loss = (y.float() - x.roll(1).float()).square().mean()
        gradients = torch.autograd.grad(loss, [*drawn])
        for p, p.grad in zip(drawn, gradients, strict=True):
            p.data -= 0.3 * p.grad
        return loss.detach()

    proof = proof_of("chaotic", step, setup, tmp_path / "norm.py", "norm")
    proof.check_answers()
    proof._check_program()
    assert [why in row["why"] for row in proof.left_out] == ([True] if why else []), (proof.left_out, proof.notes)


def proof_of(module: str, step: Any, setup: Any, file: Path, name: str) -> Proof:
    data: Any = SimpleNamespace(data={"graph": False, "host_seconds": 0, "busy_seconds": 1}, launches=[])
    program = Program(module, step, setup)
    data.turns = Turns(program, program.started(), False, 1.0)
    return Proof(program, data, [Winner(module, name, str(file))])


SEVERAL = """
SERVED = {{"original": ("", "", "several", "scaled"), "winner": "scaled"}}

CALLS = []

def scaled(x):
    CALLS.append(x)
    assert len(CALLS) != {ends}
    return x * (2.1 if len(x) == {wrong} else 2.0)
"""


@pytest.mark.parametrize(
    ("kind", "wrong", "ends"),
    [("real", n, 0) for n in (0, 1, 5, 9)]
    + [("complex", n, 0) for n in (0, 9)]
    + [("real", 0, n) for n in (60, 160, 200)],
)
def test_a_function_is_found_wrong_on_whichever_kind_of_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wrong: int, ends: int
) -> None:
    module = ModuleType("several")
    monkeypatch.setitem(sys.modules, "several", module)
    exec(SEVERAL.format(wrong=0, ends=0), vars(module))
    (tmp_path / "several.py").write_text(SEVERAL.format(wrong=wrong, ends=ends))

    def step(state: Any) -> Any:
        made = [module.scaled(x).sum() for x in state]
        return sum(made) if kind == "real" else [sum(made) * 1j, complex(0, made[-1]), made[-1][None].to_sparse()]

    proof = proof_of(
        "several", step, lambda: [torch.ones(n, 3) for n in range(1, 10)], tmp_path / "several.py", "scaled"
    )
    original = module.scaled
    if kind == "real":
        proof.check_answers()
        assert bool(proof.left_out) == bool(wrong)
        assert not ends or "several raises AssertionError" in proof.run(0.1)["left_out"][0]["why"]
    elif proof.parts:  # the results tell of the imaginary parts, too
        proof._check_program()
        assert bool(proof.left_out) == (wrong == 9), proof.notes
    assert module.scaled is original
