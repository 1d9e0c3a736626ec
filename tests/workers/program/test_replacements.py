"""What stands in for a kernel: where it serves and where not, on kernels that are Python functions on tensors."""

from __future__ import annotations

import json
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from tilewright.evolve.errors import UserError  # noqa: E402
from tilewright.evolve.program import run as program_run  # noqa: E402
from tilewright.library import launch_replacement as replacing  # noqa: E402
from tilewright.library.launch_replacement import Installation, NotInstalled, Option, Replacement, Winner  # noqa: E402
from tilewright.library.torch_linear_replacement import LinearLayers  # noqa: E402
from tilewright.workers.program import ENDED, options, scout, turns  # noqa: E402
from tilewright.workers.program import main as program_main  # noqa: E402
from tilewright.workers.program.launches import Launch, LaunchRecorder, Values  # noqa: E402
from tilewright.workers.program.main import _replacements  # noqa: E402
from tilewright.workers.program.search import Job, Outcomes, search  # noqa: E402


class Kernel:
    """A function in the form of a Triton kernel."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.fn, self.arg_names, self.calls = body, list(body.__code__.co_varnames), 0

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        self.calls += 1
        self.fn(*args, **kwargs)


def nothing(out: Any, x: Any, n: int, eps: constexpr, BLOCK: constexpr, num_warps: int = 4) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.fixture
def module() -> Iterator[Any]:
    sys.modules["replaced"] = found = ModuleType("replaced")
    vars(found).update(kernel=Kernel(nothing), __file__="somewhere/replaced.py")
    yield found
    sys.modules.pop("replaced", None)


X = torch.arange(64.0)
ARGS = {"out": torch.zeros(4, 8), "x": X[:32].view(4, 8), "n": 4, "eps": 1e-5, "BLOCK": 16}
OTHER = {
    "dtype": {"x": torch.zeros(4, 8, dtype=torch.bfloat16)},
    "shape": {"x": X[:8].view(1, 8)},
    "stride": {"x": X.view(4, 16)[:, :8]},
    "alignment": {"x": X[1:33].view(4, 8)},
    "overlapping": {"out": X[16:48].view(4, 8)},
    "integer": {"n": 5},
    "compiled in": {"eps": 1e-6},
    "option": {"num_warps": 8},
    "in place": {"x": ARGS["out"]},
    "address": {"n": X.data_ptr()},
    "not compared": {"n": [4]},
}


def replacement(winner: Any = None) -> Replacement:
    key = replacing.signature((), ARGS, ("eps", "BLOCK"))
    return Replacement("replaced", "kernel", {key: {"BLOCK": 32}}, winner)


class Compiled:
    """What a launch returns that Triton has compiled."""

    packed_metadata = ()

    def __init__(self) -> None:
        self.launched: list[Any] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args: self.launched.append((grid, args[2:]))


class Ready(Kernel):
    """A kernel whose launches are compiled. ``used_global_vals``: what its text reads of its module."""

    def __init__(self, used_global_vals: dict[str, Any]) -> None:
        super().__init__(nothing)
        self.pre_run_hooks: list[Any] = []
        self.used_global_vals, self.compiled, self.arg_names = used_global_vals, Compiled(), list(ARGS)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        super().run(*args, **kwargs)
        return self.compiled


@pytest.mark.parametrize("what", OTHER)
def test_a_launch_like_an_earlier_one_goes_to_the_compiled_kernel_and_others_to_the_original(
    module: Any, what: str
) -> None:
    original, winner = module.kernel, Ready({})
    with Installation([replacement(winner)]).installed():
        for grid in ((4,), lambda named: (named["BLOCK"], named["n"])):
            module.kernel[grid](**ARGS)
            module.kernel[grid](**ARGS)
        assert (winner.calls, original.calls) == (1, 0)
        assert winner.compiled.launched == [((4, 1, 1), (4, 1e-5, 32)), *[((32, 4, 1), (4, 1e-5, 32))] * 2]
        known = module.kernel
        known[(1,)](**{**ARGS, **OTHER[what]})
    known[(1,)](**ARGS)  # somebody still has it
    assert (original.calls, winner.calls, len(winner.compiled.launched)) == (2, 1, 3)


def test_a_kernel_whose_global_values_changed_is_launched_by_triton(module: Any) -> None:
    read = {"EPS": 1e-5}
    winner = Ready({("EPS", 0): (1e-5, read)})
    with Installation([replacement(winner)]).installed():
        for EPS in (1e-5, 1e-5, 1e-6):
            read["EPS"] = EPS
            module.kernel[(1,)](**{**ARGS, "n": 4})
    assert (winner.calls, len(winner.compiled.launched)) == (2, 1)


def test_only_what_a_tuner_or_heuristics_look_at_is_launched_directly() -> None:
    kernel, facts = (Kernel(nothing), {"module": "m", "name": "n", "key": (), "values": 1, "left": "", "chosen": {}})
    launches: Any = [SimpleNamespace(outer=k, number=0, **facts) for k in (kernel, SimpleNamespace(fn=kernel))]
    assert [len(_replacements([], [of])) for of in launches] == [0, 1]


def test_every_name_is_restored_whatever_came_between(module: Any) -> None:
    original, ours, theirs = module.kernel, replacement(), replacement()
    first, second = Installation([ours]), Installation([theirs])  # two steps in one process
    first.install()
    stand_in, later = module.kernel, ModuleType("later")
    sys.modules["later"], later.known = later, stand_in  # type: ignore[attr-defined]
    second.install()
    known = module.kernel
    first.uninstall()
    module.kernel[(1,)](**ARGS)
    assert (ours.calls, theirs.calls) == (0, 1)
    second.uninstall()
    del sys.modules["later"]
    assert module.kernel is original and later.known is original
    known[(1,)](**ARGS)  # somebody still has it
    assert theirs.calls == 1 and original.calls == 2
    with first.installed():
        assert module.kernel is stand_in, "torch.compile would compile again for another object"
    del sys.modules["replaced"]  # it runs as a script, which is not run again
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", module)
        with first.installed():
            assert module.kernel is stand_in and "replaced" not in sys.modules


CALLS = {
    "other strides": lambda x: x.t().contiguous().t(),
    "differentiated": lambda x: x.clone().requires_grad_(),
    "elsewhere": lambda x: x.to("meta"),
    "another class": lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})),
    "sparse": lambda x: x.to_sparse(),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_was_not_recorded_keeps_its_option(module: Any, what: str) -> None:
    x, seen = X.view(8, 8), []

    def cut(*args: Any, n: int, rows: int = 2) -> None:
        seen.append(rows)

    module.cut = cut
    known = {replacing.call_signature((x, [x]), {"n": 1})}
    with Installation([Option("replaced", "cut", "rows", 8, known)]).installed():
        other = CALLS[what](x)
        for args in ((x, [x]), (other, [x]), (x, [other]), (x, [x, x]), (x, [x.clone()])):
            module.cut(*args, n=1)
        with torch.no_grad(), torch.autocast("cpu"):
            module.cut(x, [x], n=1)
        module.cut(x, [x], n=2)
    assert seen == [8, 2, 2, 2, 2, 2, 2]


def test_layers_that_are_taken_away_in_any_order_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = torch.nn.functional.linear, torch.ones(2, 4)
    first, second = LinearLayers([(2, 4, 4)]), LinearLayers([(2, 4, 4)])
    first.install()
    known = torch.nn.functional.linear
    second.install()
    first.uninstall()
    assert torch.nn.functional.linear(x, torch.ones(4, 4)).sum() == 32 and (first.others, second.others) == (0, 1)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.nn.functional.linear(x, torch.ones(4, 4))
    assert (first.others, second.others) == (0, 1), "torch.compile would compile again for each other count"
    second.uninstall()
    assert torch.nn.functional.linear is linear
    assert known(x, torch.ones(4, 4)).sum() == 32, "somebody still has it"


TUNED = """
SERVED = {"original": ("", "", "replaced", "doubled"), "winner": "tuned"}

def tuned(x):
    return 2 * x if x == 3 else SERVED["function"](x)
"""


def test_a_tuned_function_stands_under_every_name_and_gives_other_calls_back(module: Any, tmp_path: Path) -> None:
    class Base:
        apply = classmethod(lambda cls, x: (cls.__name__, x))

    vars(module).update(doubled=lambda x: ("original", x), Own=type("Own", (Base,), {}))
    vars(module).update(alias=module.doubled, of_class=module.Own.apply)
    original = module.doubled
    (tmp_path / "tuned.py").write_text(TUNED)
    names = {"doubled": ("original", 4), "Own.apply": ("Own", 4)}
    winners = {name: Winner("replaced", name, str(tmp_path / "tuned.py")) for name in names}
    found = Installation([*winners.values()])
    for _ in range(2):
        with found.installed():
            known = module.doubled
            for one in (module.doubled, module.alias, module.Own.apply, module.of_class):
                assert one(3) == 6
            assert {name: (module.doubled if name == "doubled" else module.Own.apply)(4) for name in names} == names
            assert Base.apply(3) == ("Base", 3)
        assert module.doubled is module.alias is original and module.of_class == module.Own.apply
        assert module.Own.apply(3) == ("Own", 3) and "apply" not in vars(module.Own)
        assert known(3) == ("original", 3), "somebody still has it"
    assert [(w.calls, w.others) for w in winners.values()] == [(4, 4), (4, 2)]
    (tmp_path / "tuned.py").write_text("x = 1")
    with pytest.raises(NotInstalled, match="is no winner's module"):
        Installation([Winner("replaced", "doubled", str(tmp_path / "tuned.py"))]).install()
    assert module.doubled is original


def test_a_winner_is_loaded_before_a_stream_is_captured(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = iter((True, False))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.compiler, "disable", lambda function: function)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: next(captured))
    ours, found = replacement(), []
    with Installation([ours]).installed():
        for _ in range(3):
            module.kernel[(1,)](**ARGS)
            found.append((ours.calls, ours.others))
    assert found == [(0, 1), (1, 1), (2, 1)]


UNTOLD = {
    "changes none": lambda out, x: None,
    "its own answers differ": lambda out, x: out.copy_(torch.rand(8)),
    "cannot be run again: ZeroDivisionError": lambda out, x: 1 / 0,
}


@pytest.mark.parametrize("why", UNTOLD)
def test_a_launch_of_which_nothing_can_be_told_is_left_as_it_is(tmp_path: Path, why: str) -> None:
    pytest.importorskip("triton")
    views: Any = {n: (n, torch.float32, (8,), (1,), 0) for n in (0, 1)}
    values = Values([X[:8].clone().view(torch.uint8), X[8:16].clone().view(torch.uint8)], views)
    facts: Any = (Kernel(UNTOLD[why]), "m", "k", "", (), (None, None), {}, (1,), (), {}, 0, "", "", 0, values)
    (found,) = search([Job(Launch("k", *facts), 1.0)], 1.0, lambda _: None, Outcomes(tmp_path / "kept.json"))
    assert why in found.why and found.configuration is None


def test_threads_do_not_take_each_other_s_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    jit, both = pytest.importorskip("triton").runtime.jit, threading.Barrier(2)
    monkeypatch.setattr(jit.JITFunction, "run", lambda *_, **__: both.wait(5))
    kernels = [jit.JITFunction(nothing), jit.JITFunction(nothing)]
    with LaunchRecorder() as recorder:
        runs = [lambda n=n: kernels[n].run(n, grid=(1,)) for n in (0, 1)]
        threads = [threading.Thread(target=run) for run in runs]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert {(kernels.index(of.outer), of.args) for of in recorder.launches} == {(0, (0,)), (1, (1,))}


def test_a_look_ahead_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scout, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(scout._Look, "run", lambda *_: time.sleep(60))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert scout.scouted(lambda: None)["why"] == "ended by signal 14"  # type: ignore[arg-type, return-value]


def test_what_ctrl_c_interrupted_is_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ({"kernel": "k", "why": why} for why in (ENDED, "x"))
    kept = {"launches": {"a": a, "b": b}, "options": {"c": {}, "d": {"gain": 1.1}}}
    (tmp_path / "search.json").write_text(json.dumps(kept))
    stop = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(program_run.subprocess, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        program_run.Program(tmp_path / "step.py", "step", folder=tmp_path, home=tmp_path).tune()
    left = json.loads((tmp_path / "search.json").read_text())
    assert left == {"launches": {"b": b}, "options": {"d": {"gain": 1.1}}}


def test_a_search_that_ended_its_process_goes_on_without_that_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: dict[str, Any] = {}

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        if len(ended) == 2:
            Path(command[-1]).write_text('{"why": "looked at"}')
        else:
            ended[str(len(ended))] = {"why": ENDED}
        (tmp_path / "search.json").write_text(json.dumps({"launches": ended, "options": {}}))
        return SimpleNamespace(returncode=-6, stderr="")

    monkeypatch.setattr(program_run.subprocess, "run", run)
    with pytest.raises(UserError, match="looked at"):
        program_run.Program(tmp_path / "step.py", "step", folder=tmp_path, home=tmp_path).tune()


@pytest.mark.parametrize("count", [2, 3])
def test_arms_are_as_often_first_as_last(count: int) -> None:
    order: list[int] = []
    arms = {str(n): lambda n=n: [float(order.append(n) or 1)] for n in range(count)}  # type: ignore[misc]
    turns.take_turns(arms, least=2 * count)
    ends = [(order[at], order[at + count - 1]) for at in range(0, len(order), count)]
    assert all([first for first, _ in ends].count(n) == [last for _, last in ends].count(n) > 0 for n in range(count))


def test_rounds_that_were_interrupted_hardly_move_the_interval_and_chance_is_no_gain() -> None:
    drawn, gained = random.Random(20261128), 0
    for _ in range(400):
        noise = [drawn.gauss(0, 0.004) + (0.06 if drawn.random() < 0.1 else 0.0) for _ in range(16)]
        gained += turns.middle([a - b for a, b in zip(noise[:8], noise[8:], strict=True)]).low > 1
    assert gained <= 18  # one in forty is due
    steady = [0.1, 0.101, 0.099, 0.1, 0.102, 0.098, 0.1, 0.1, 0.101, 0.099]
    for found in (turns.middle(2 * steady), turns.middle([*2 * steady, -0.5])):
        assert 0.097 < math.log(found.low) < 0.1 < math.log(found.high) < 0.102
    assert turns.middle(steady[:5]).low == 0.0, "five rounds say nothing"


@pytest.mark.parametrize(("noise", "gained", "share"), [(0.002, 0.04, 1.0), (0.03, 0.04, 0.9), (0.12, 0.04, 0.5)])
def test_an_option_is_tried_more_often_where_rounds_are_far_apart(
    monkeypatch: pytest.MonkeyPatch, noise: float, gained: float, share: float
) -> None:
    """Pairs of bursts of half a second, whose times are drawn. One pair found 1, 0.42 and 0.01 of these gains."""
    drawn, clock = random.Random(20261128), [0.0]
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(options, "time", turns.time)
    monkeypatch.setattr(turns, "gc", mock.Mock())
    timed = object.__new__(turns.Turns)
    timed._count, timed._seconds, timed.graph = 6, 0.035, False

    def burst(installation: Any, count: int) -> list[float]:
        clock[0] += 0.035 * (count + 1)
        faster = gained * (installation is not None and installation.replacements[0].value > 16)
        return [math.exp(drawn.gauss(0, noise / 2**0.5)) / (1 + faster)]

    monkeypatch.setattr(timed, "_timed", burst)
    found, seconds = 0, []
    for _ in range(40):
        clock[0] = 0.0
        option = Option("module", "name", "rows", 16, ())
        found += options._best(option, SimpleNamespace(turns=timed), 15.0)[0] > 16  # type: ignore[arg-type]
        seconds.append(clock[0])
    assert found >= share * 40 and max(seconds) < 20, (found, seconds)


class Event:
    """A device's event that sees each step of this thread end, or none."""

    seen = True

    def __init__(self, enable_timing: bool) -> None: ...

    def record(self) -> None:
        self.at = turns.time.perf_counter() if self.seen else 0.0

    def elapsed_time(self, later: Any) -> float:
        return 1e3 * float(later.at - self.at)


@pytest.mark.parametrize(("busy", "seen", "counted"), [(0.02, False, 1), (0.01, True, 5)])
def test_bursts_fit_the_budget_and_are_shorter_where_the_device_waits(
    monkeypatch: pytest.MonkeyPatch, busy: float, seen: bool, counted: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "seen", seen)
    monkeypatch.setattr(turns, "gc", mock.Mock())
    clock = [0.0]
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0]))

    def step() -> None:
        clock[0] += 0.02

    timed: Any = turns.Turns(None, step, False, 0.02, busy)  # type: ignore[arg-type]
    once = timed.rounds({"": None}, least=1)
    assert [len(of) for of in once[""]] == [counted] and timed._count == (20 if busy > 0.015 else 5)
    found = timed.rounds({str(n): None for n in range(3)}, 2.0)  # rounds of 3 bursts of 4 steps
    assert {len(of) for of in found.values()} == {turns.LEAST_ROUNDS + 2}, "and one not counted"
    assert {len(burst) for of in found.values() for burst in of} == {3 if seen else 1}


def test_a_line_follows_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program_main, "SILENT_SECONDS", 0.05)
    program_main._say("  setting up")
    time.sleep(0.3)
    program_main._AFTER[0].cancel()
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("s  setting up") and len(others) > 1 and all(o.endswith("s  ...") for o in others)
