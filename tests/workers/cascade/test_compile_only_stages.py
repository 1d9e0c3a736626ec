"""What a parent makes of a compiler's answer for a target that only compiles, and what a code's facts place it by."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest

from testkit.scripted import SOURCE, Doubler, answers, request, shape, travelled
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.targets import load_target
from tilewright.workers.cascade import compile_only
from tilewright.workers.cascade.compile_only import CompileOnlyCascade, CrossCompileStage, descriptors
from tilewright.workers.child.frames import Frame
from tilewright.workers.request import Failure, Findings

OPERATOR = Doubler()
SUITE = OPERATOR.suites["tiny"]
TARGET = load_target("sm_100")
LAUNCHES = {"m64": [{"b": 1, "a": 2}], "m32": ["b", 2], "m96": ["never asked"]}
SASS = "  /*0000*/  STG.E.64 desc[UR4][R2.64], R4 ;\n  /*0010*/  STL [R1], R2 ;\n"


def code(key="k", text=SASS, usage="REG:40 STACK:16 SHARED:0", **data):
    facts = {"key": key, "usage": usage, "name": "kernel", "warps": 4, "shared": 0, **data}
    return travelled(Frame("code", facts, {"text": np.frombuffer(text.encode(), np.uint8)}))


def answer(*codes):
    return [Frame("compiled", {"launches": LAUNCHES}), *codes]


class Compiler:
    """Stands in for the children; keeps what was asked."""

    replaced = 3

    def __init__(self, monkeypatch, frames):
        self.asked, self.closed = [], False

        def compile_all(compiler, request, found, doing, target=None):
            self.asked.append((compiler, doing, target))
            return frames

        monkeypatch.setattr(compile_only, "compile_all", compile_all)

    def close(self):
        self.closed = True


def compiled(monkeypatch, frames, **changes):
    found, compiler = Findings(), Compiler(monkeypatch, frames)
    return (CrossCompileStage(compiler).run(request(OPERATOR, target=TARGET, **changes), found), found, compiler)


def test_code_is_read_in_the_parent(monkeypatch):
    failure, found, compiler = compiled(monkeypatch, answer(code("one"), code("two", usage="REG:80 STACK:0 SHARED:0")))
    assert failure is None and found.compiled.keys() == {"one", "two"}
    one, two = found.compiled["one"], found.compiled["two"]
    assert (one["registers"], one["stack_bytes"], one["spilled"], one["store_bytes"]) == (40, 16, 1, 8.0)
    assert (two["registers"], two["stack_bytes"]) == (80, 0)
    ((asked, doing, target),) = compiler.asked
    part = TARGET.architecture
    assert asked is compiler and doing == "compiling for sm_100"
    assert target == {"backend": part.backend, "arch": part.arch, "lanes": part.lanes, "smem_bytes": part.smem_bytes}
    text = json.dumps([LAUNCHES["m64"], LAUNCHES["m32"]], sort_keys=True)
    assert found.artefact == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_what_was_compiled_before_is_a_duplicate(monkeypatch):
    _, found, _ = compiled(monkeypatch, answer(code()))
    failure, again, _ = compiled(monkeypatch, answer(code()), is_known={found.artefact: "an earlier genome"}.get)
    assert failure.verdict is Verdict.DUPLICATE and again.artefact == found.artefact
    turned = Frame("compiled", {"launches": {**LAUNCHES, "m64": [{"a": 2, "b": 1}]}})
    _, same, _ = compiled(monkeypatch, [turned, code()])
    assert same.artefact == found.artefact, "in whatever order its fields come"
    timed, checked = SUITE.workloads[:1], SUITE.check[-1:]
    spare = [Frame("compiled", {"launches": {**LAUNCHES, checked[0].id: ["another"]}}), code()]
    made = [compiled(monkeypatch, a, measured=timed, checked=checked)[1] for a in (answer(code()), spare)]
    assert timed != checked and made[0].artefact != made[1].artefact, "a shape that is only checked counts"
    long = SASS + "".join(f"  /*{n:04x}0*/  NOP ;\n" for n in range(2, 200))
    _, whole, _ = compiled(monkeypatch, answer(code(text=long)))
    assert whole.compiled["k"]["instructions"] == 200
    other, _, _ = compiled(monkeypatch, answer(code()), is_known={"other": "x"}.get)
    assert other is None


def test_what_does_not_compile_or_read_has_a_verdict(monkeypatch):
    refused = Failure(Verdict.RESOURCE_ERROR, "too much shared memory")
    failure, found, _ = compiled(monkeypatch, refused)
    assert failure is refused and found.artefact is None and not found.compiled
    for unread in (code(text="nothing"), code(usage="nothing")):
        failure, found, _ = compiled(monkeypatch, answer(unread))
        assert failure.verdict is Verdict.COMPILE_ERROR and "\n" not in failure.reason and not found.compiled
    noise = [Frame("note", {"text": "x"}), Frame("aside")]
    failure, found, _ = compiled(monkeypatch, [*answer(code()), *noise])
    assert failure is None and found.compiled.keys() == {"k"}


def without(frame, name):
    return dataclasses.replace(frame, data={k: v for k, v in frame.data.items() if k != name}, arrays={})


@pytest.mark.parametrize(
    "frames",
    [
        [Frame("compiled"), code()],
        [Frame("compiled", {"launches": {"m64": []}}), code()],
        [Frame("compiled", {"launches": 3}), code()],
        *(answer(without(code(), name)) for name in ("key", "usage", "name", "warps", "shared", "text")),
        answer(code(warps="many")),
        answer(code(warps=None)),
    ],
)
def test_an_answer_that_does_not_read_is_a_crash(monkeypatch, frames):
    """The child that compiles runs the candidate's Python."""
    failure, found, _ = compiled(monkeypatch, frames)
    assert failure.verdict is Verdict.CRASHED and not found.compiled and found.artefact is None
    assert failure.reason.startswith("the child's answer is malformed: ")
    failure, _, _ = compiled(monkeypatch, answer(code(warps=0)))
    assert failure.verdict is Verdict.COMPILE_ERROR


def test_plans_of_cuda_are_taken_as_they_come(monkeypatch):
    refused, seen = Failure(Verdict.DUPLICATE, "known"), []
    monkeypatch.setattr(compile_only, "adopt_plans", lambda frame, *_: seen.append(frame) or refused)
    first, last = Frame("compiled", {"notes": []}), Frame("aside")
    assert compiled(monkeypatch, [first, last])[0] is refused and seen == [first]


CODE = {"spills": 0, "matrix": {}, "yields": 0.0}
FACTS = {"occupancy": 0.5, "spilled": 0, "stack_bytes": 0, "matrix": {}, "store_bytes": 16.0}


@pytest.mark.parametrize(
    ("kernels", "cell"),
    [
        ([], {}),
        ([{}], {"occupancy": "50%", "spills": "no", "matrix": "none", "stores": "16B"}),
        (
            [{"spilled": 1, "matrix": {"b": 1, "a": 2}}, {"occupancy": 0.125, "matrix": {"b": 3}}],
            {"occupancy": "12.5%", "spills": "yes", "matrix": "a,b", "stores": "16B"},
        ),
        (
            [{}, {"stack_bytes": 8, "store_bytes": 3.6}],
            {"occupancy": "50%", "spills": "yes", "matrix": "none", "stores": "4B"},
        ),
    ],
)
def test_a_cell_is_the_worst_of_its_kernels(kernels, cell):
    assert descriptors({str(n): {**FACTS, **kernel} for n, kernel in enumerate(kernels)}) == cell


@pytest.mark.parametrize(
    ("kernels", "cell"),
    [
        ([{}], {"spills": "no", "matrix": "none", "yields": "no"}),
        ([{"yields": 0.25}, FACTS], {"spills": "no", "matrix": "none", "yields": "yes"}),
        ([{"yields": 0.24, "matrix": {"b": 1}}, {"spills": 2}], {"spills": "yes", "matrix": "b", "yields": "no"}),
    ],
)
def test_what_plans_say_of_their_code_is_a_cell_of_its_own(kernels, cell):
    assert descriptors({str(n): {**CODE, **kernel} for n, kernel in enumerate(kernels)}) == cell


class Interpreter:
    """Stands in for the station that answers the gates."""

    def __init__(self, change=lambda frame: frame):
        self.jobs, self.closed = [], False
        self._change = change

    def run(self, job, limits):
        self.jobs.append(job)
        return answers(job, self._change)

    def close(self):
        self.closed = True


def test_everything_that_passes_is_worth_one(monkeypatch):
    compiler, interpreter = Compiler(monkeypatch, answer(code())), Interpreter()
    monkeypatch.setattr(compile_only, "LocalStation", lambda gpu, scratch: interpreter)
    cascade = CompileOnlyCascade(OPERATOR, TARGET, SUITE, compiler=compiler)
    found = cascade.evaluate("g", SOURCE, {}, seed=7)
    assert found.verdict is Verdict.OK, found.reason
    assert (found.fitness, found.interval, found.stage) == (1.0, (1.0, 1.0), Stage.CHECK)
    assert found.descriptors["spills"] == "yes" and found.unit == "passes" and found.toolchain
    assert len(interpreter.jobs) == 1 and len(found.gates) == 2 and cascade._compiler.replaced == 3
    cascade.close()
    assert compiler.closed and interpreter.closed
    interpreter._change = lambda frame: dataclasses.replace(frame, arrays={"c": frame.arrays["c"] * 2})
    wrong = cascade.evaluate("g", SOURCE, {}, seed=7)
    assert (wrong.verdict, wrong.stage, wrong.fitness) == (Verdict.INCORRECT, Stage.CHECK, None)


def test_without_checks_only_the_code_is_looked_at(monkeypatch):
    compiler = Compiler(monkeypatch, answer(code()))
    monkeypatch.setattr(compile_only, "LocalStation", lambda gpu, scratch: pytest.fail("no station is needed"))
    cascade = CompileOnlyCascade(OPERATOR, TARGET, SUITE, checked=False, compiler=compiler)
    found = cascade.evaluate("g", SOURCE, {}, seed=7)
    assert (found.verdict, found.stage, found.gates) == (Verdict.OK, Stage.COMPILE, ())
    rejected = cascade.evaluate("g", SOURCE + "import os\n", {}, seed=7)
    assert rejected.verdict is Verdict.REJECTED and len(compiler.asked) == 1
    cascade.close()
    assert compiler.closed and shape(32) in SUITE.check
    interpreter = Interpreter()
    monkeypatch.setattr(compile_only, "LocalStation", lambda gpu, scratch: interpreter)
    kept = CompileOnlyCascade(OPERATOR, TARGET, SUITE, compiler=compiler)
    assert kept.evaluate("g", SOURCE, {}, seed=7, only=["m64"]).stage is Stage.COMPILE and not interpreter.jobs
