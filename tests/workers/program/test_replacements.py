"""What stands in for a kernel: where it serves and where not, on kernels that are Python functions on tensors."""

from __future__ import annotations

import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright.evolve.program import run as program_run  # noqa: E402
from tilewright.evolve.program.folder import KEPT  # noqa: E402
from tilewright.library.launch_replacement import Installation, Replacement, signature  # noqa: E402
from tilewright.workers.program import ENDED, scout  # noqa: E402
from tilewright.workers.program.launches import Launch, Values  # noqa: E402
from tilewright.workers.program.search import Job, Outcomes, search  # noqa: E402


class Kernel:
    """A function in the form of a Triton kernel."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.fn, self.arg_names, self.calls = body, list(inspect.signature(body).parameters), 0

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        self.calls += 1
        self.fn(*args, **kwargs)


def double(out: Any, x: Any, n: int, eps: constexpr, BLOCK: constexpr) -> None:  # type: ignore[name-defined]  # noqa: F821
    out.copy_(2 * x)


@pytest.fixture
def module() -> Iterator[ModuleType]:
    found = ModuleType("replaced")
    found.kernel = Kernel(double)  # type: ignore[attr-defined]
    sys.modules["replaced"] = found
    yield found
    sys.modules.pop("replaced")


X = torch.arange(64.0)
ARGS = {"out": torch.zeros(4, 8), "x": X[:32].view(4, 8), "n": 4, "eps": 1e-5, "BLOCK": 16}
KEY = signature((), ARGS, ("eps", "BLOCK"))
OTHER = {
    "dtype": {"x": torch.zeros(4, 8, dtype=torch.bfloat16)},
    "shape": {"x": X[:8].view(1, 8)},
    "stride": {"x": X.view(4, 16)[:, :8]},
    "alignment": {"x": X[1:33].view(4, 8)},
    "integer": {"n": 5},
    "a number that is compiled in": {"eps": 1e-6},
    "an option": {"num_warps": 8},
    "in place": {"x": ARGS["out"]},
    "what may be an address": {"n": X.data_ptr()},
    "an argument that is not compared": {"n": [4]},
}


def replacement(winner: Any = None) -> Replacement:
    return Replacement("replaced", "kernel", {KEY: {"BLOCK": 32}}, winner)


@pytest.mark.parametrize("what", OTHER)
def test_a_launch_that_was_not_recorded_goes_to_the_original(module: Any, what: str) -> None:
    original, winner = module.kernel, Kernel(lambda out, x, n, eps, BLOCK, num_warps=4: None)
    with Installation([replacement(winner)]).installed():
        module.kernel[(1,)](**ARGS)
        assert (original.calls, winner.calls) == (0, 1)
        original.fn = lambda **_: None
        module.kernel[(1,)](**{**ARGS, **OTHER[what]})
        assert (original.calls, winner.calls) == (1, 1)


def test_every_name_is_restored_whatever_came_between(module: Any) -> None:
    original, later, ours, theirs = module.kernel, ModuleType("later"), replacement(), replacement()
    first, second = Installation([ours]), Installation([theirs])
    first.install()
    stand_in = module.kernel
    sys.modules["later"], later.known = later, module.kernel  # type: ignore[attr-defined]
    second.install()  # of another step in this process
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


def test_a_winner_is_loaded_before_a_stream_is_captured(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = [True]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.compiler, "disable", lambda function: function)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured[0])
    ours = replacement()
    with Installation([ours]).installed():
        module.kernel[(1,)](**ARGS)
        assert (ours.calls, ours.others) == (0, 1), "to load a module breaks the capture"
        captured[0] = False
        module.kernel[(1,)](**ARGS)
        captured[0] = True
        module.kernel[(1,)](**ARGS)
        assert (ours.calls, ours.others) == (2, 1)


def test_the_program_itself_is_a_module(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del sys.modules["replaced"]  # it runs as a script
    module.__file__ = "somewhere/replaced.py"
    monkeypatch.setitem(sys.modules, "__main__", module)
    with Installation([replacement()]).installed():
        assert type(module.kernel).__name__ == "Launcher" and "replaced" not in sys.modules
    sys.modules["replaced"] = module


def fails(out: Any, x: Any) -> None:
    raise MemoryError("no memory")


UNTOLD = {
    "changes none": lambda out, x: None,
    "its own answers differ": lambda out, x: out.copy_(torch.rand(8)),
    "cannot be run again: MemoryError: no memory": fails,
}


@pytest.mark.parametrize("why", UNTOLD)
def test_a_launch_of_which_nothing_can_be_told_is_left_as_it_is(tmp_path: Path, why: str) -> None:
    pytest.importorskip("triton")
    views: Any = {n: (n, torch.float32, (8,), (1,), 0) for n in (0, 1)}
    values = Values([X[:8].clone().view(torch.uint8), X[8:16].clone().view(torch.uint8)], views)
    facts: Any = (Kernel(UNTOLD[why]), "m", "k", "", (), (None, None), {}, (1,), (), {}, 0, "", "", 0, values)
    launch = Launch("k", *facts)
    (found,) = search([Job(launch, 1.0)], 1.0, lambda _: None, Outcomes(tmp_path / "kept.json"))
    assert why in found.why and found.configuration is None


def test_threads_do_not_take_each_other_s_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    jit = pytest.importorskip("triton").runtime.jit
    from tilewright.workers.program.launches import LaunchRecorder

    both = threading.Barrier(2)
    monkeypatch.setattr(jit.JITFunction, "run", lambda *_, **__: both.wait(5))
    kernels = [jit.JITFunction(double), jit.JITFunction(double)]
    with LaunchRecorder() as recorder:
        for thread in (
            made := [threading.Thread(target=lambda n=n: kernels[n].run(n, grid=(1,))) for n in (0, 1)]
        ):
            thread.start()
        for thread in made:
            thread.join()
    assert {(kernels.index(of.outer), of.args) for of in recorder.launches} == {(0, (0,)), (1, (1,))}


def test_a_look_ahead_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scout, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(scout, "_look", lambda *_: (scout.os.setpgrp(), time.sleep(60)))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert scout.scouted(lambda: None)["why"] == "it did not end in 0 s"  # type: ignore[arg-type, return-value]


def test_what_ctrl_c_interrupted_is_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "step.py").write_text("")
    kept = {"launches": {"a": {"why": ENDED}, "b": {"why": "x"}}, "options": {"c": {}, "d": {"gain": 1.1}}}
    (tmp_path / KEPT).write_text(json.dumps(kept))
    monkeypatch.setattr(program_run.subprocess, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        program_run.Program(tmp_path / "step.py", "step", folder=tmp_path, home=tmp_path).tune()
    left = json.loads((tmp_path / KEPT).read_text())
    assert left == {"launches": {"b": {"why": "x"}}, "options": {"d": {"gain": 1.1}}}
