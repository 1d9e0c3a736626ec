"""What is looked at of a large answer, and a reference that a process of its own runs on a device."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tilewright.evolve.intake.folder import _can_be_sampled
from tilewright.seeds.operator import Suite, Workload
from tilewright.seeds.sampled import Elements, kind_tables, sampling
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import SessionDied
from tilewright.workers.device.oracle import DeviceOracle, _sample
from tilewright.workers.device.timing import Samples
from tilewright.workers.intake.judge import reference_process as oracle
from tilewright.workers.intake.judge.inputs import bound_of
from tilewright.workers.intake.judge.oracles import OwnAnswers
from tilewright.workers.intake.judge.reference import function_of
from tilewright.workers.intake.judge.self_reference import ModuleProcess, begun_process
from tilewright.workers.intake.operator import MOST_SENT, Operand, Result, SampledOperator, TakenOperator
from tilewright.workers.runners.triton.tensors import DeviceElements, Operands

LARGE = Workload("512x384x256", {"M": 512, "N": 384, "K": 256})
SMALL = Workload("8x4x6", {"M": 8, "N": 4, "K": 6})


def product(folder, body="return a @ b", made=SampledOperator, **changes):
    """A product whose reference stands in a file."""
    (folder / "reference.py").write_text(f"import torch\ncalls = []\n\ndef f(a, b):\n    {body}\n")
    given = {
        "name": "p/taken",
        "reference": f"{folder}/reference.py:f",
        "call": "a, b",
        "operands": (Operand("a", "float16", ("M", "K")), Operand("b", "float16", ("K", "N"))),
        "results": (Result("o0", "float16", ("M", "N"), min_db=60.0),),
        "suites": {"calls": Suite("calls", workloads=(LARGE,), check=(SMALL,))},
        "kernels": {},
        "work": {LARGE.id: 1 << 40},
        **changes,
    }
    return made(**given)


class InProcess:
    """A station whose oracle answers in this process."""

    def sample(self, asked, seed):
        question = json.loads(json.dumps({"operator": asked, "seed": seed}))
        return _sample(oracle._sample_frame(question, "cpu", set()))


@pytest.mark.parametrize("ends", [(), (-1.0, 1.0), (-2.0, -1.0)])
def test_floats_between_two_ends_come_from_tables_and_no_kind_of_these_leaves_them(tmp_path, ends):
    operands = (Operand("a", "bfloat16", ("M", "K")), Operand("b", "float32", ("K", "N"), 0, 0, 1.0, "", 0, "", *ends))
    operator = product(tmp_path, operands=operands, kinds=("randn", "sided", "usual", "far", "huge-115"))
    lost = {(): 0, (-1.0, 1.0): 1, (-2.0, -1.0): 3}[ends]  # huge; signs and zeros, too
    assert len(operator.table_kinds) == 5 - lost
    tables = [kind_tables(operator.tables(), kind)["b"] for kind in operator.table_kinds if ends]
    assert all(ends[0] <= table.min() and table.max() <= ends[1] for table in tables)
    row = ["x0", "float32", ["M"], 0, 0, 1.0, "", 0, "", *(ends or (None, None)), ""]
    assert _can_be_sampled({"operands": [row], "independent": ["M"]})


@pytest.mark.parametrize("kind", ["", "repeated", "signed"])
@pytest.mark.parametrize("independent", [(), ("M", "N")])
def test_a_device_says_of_a_large_shape_what_the_host_says(tmp_path, independent, kind):
    operator = product(tmp_path, independent=independent)
    found = Samples(operator, InProcess()).of(LARGE, 5, kind)
    here = sampling(operator, LARGE, 5, kind_tables(operator.tables(), kind))
    np.testing.assert_array_equal(found.references["o0"]["o0"], here.references["o0"]["o0"])
    for one, other in zip(found.where["o0"], here.where["o0"], strict=True):
        np.testing.assert_array_equal(one, other)
    rows, columns = here.where["o0"]
    assert here.references["o0"]["o0"].shape == (len(rows), len(columns))


def test_codes_come_from_the_device_as_the_reference_finds_them_in_float32_as_well(tmp_path):
    codes = (Result("o0", "int8", ("M", "N")),)
    operator = product(tmp_path, "return (a @ b).clamp(-99, 99).round().to(torch.int8)", results=codes)
    found = Samples(operator, InProcess()).of(LARGE, 5, "")
    here = sampling(operator, LARGE, 5, kind_tables(operator.tables(), ""))
    assert found.references.keys() == here.references.keys() == {"o0", *operator.gates[0].either}
    for by, answers in here.references.items():
        np.testing.assert_array_equal(found.references[by]["o0"], answers["o0"])


@pytest.mark.parametrize("kind", ["randn", "spread"])
def test_of_operands_that_the_host_makes_the_device_finds_every_element(tmp_path, kind):
    operator, shape = product(tmp_path, made=TakenOperator), Workload(LARGE.id, LARGE.dims, 3)
    found = Samples(operator, InProcess()).from_device(shape, 5, kind)
    here = operator.oracle(shape, operator.make_inputs(shape, 5, kind))
    np.testing.assert_allclose(found.references["o0"]["o0"], here["o0"]["o0"], rtol=1e-12, atol=1e-12)


def test_a_reference_that_says_something_else_on_the_device_is_not_believed(tmp_path):
    operator = product(tmp_path, "calls.append(1); return (a @ b) * len(calls)")
    with pytest.raises(oracle.Unlike, match="another on the device"):
        oracle._sample_frame({"operator": operator.elsewhere(LARGE), "seed": 5}, "cpu", set())


INTEGERS = {
    "lengths": Operand("a", "int32", ("M",), "K+1", least=1),
    "indices": Operand("a", "int64", ("M",), "N"),
    "table": Operand("a", "int64", ("M", "M", "B"), "N"),
    "offsets": Operand("a", "int32", ("M+1",), 0, "N", form="offsets"),
    "ends": Operand("a", "int32", ("M",), 0, "N", form="ends"),
    "counts": Operand("a", "int32", ("M",), 0, "N"),
    "pages": Operand("a", "int32", ("B", "M"), "N", form="distinct"),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_those_of_the_shape_and_each_seed_has_the_same_work(tmp_path, name):
    """At the call's sizes and at smaller ones; on the device, in both the processes that make them, as here."""
    integers = INTEGERS[name]
    operands = (integers, Operand("b", "float16", ("N", "K")))
    for dims in ({"M": 300, "N": 90000, "K": 64, "B": 3}, {"M": 5, "N": 40, "K": 8, "B": 2}):
        shape = Workload("w", dims)
        small = {"suites": {"s": Suite("s", workloads=(SMALL,), check=(SMALL,))}}
        operator = product(tmp_path, operands=operands, **small)
        drawn, tables = [], operator.tables()
        for seed in (1, 2):
            given = {spec.name: spec.shape for spec in operator.inputs(shape)}
            sent = operator.sent(shape, seed)
            axes = [np.arange(size) for size in given["a"]]
            here = Elements(seed, "w", given, tables, sent).at("a", *axes)
            there = DeviceElements(seed, "w", given, tables, sent, "cpu").at("a", *axes).numpy()
            specs = [{"name": "a", "shape": list(given["a"]), "dtype": integers.dtype}]
            arrays = {"w/a": sent["a"], "table/b": tables["b"]}
            job = Frame("time", {"seed": seed, "tables": ["b"]}, arrays)
            made = Operands("cpu").of(job, {"id": "w", "inputs": specs}, "signed")["a"].numpy()
            for other in (there, made):
                np.testing.assert_array_equal(here, other)
            drawn.append(here)
        least, most = integers.least or 0, bound_of(integers, dims) - 1 if integers.below else dims["N"]
        assert not np.array_equal(*drawn) and all(least <= a.min() and a.max() <= most for a in drawn)
        parts = [np.diff(a, prepend=0) if integers.form in ("offsets", "ends") else a.reshape(-1) for a in drawn]
        if len(parts[0]) <= MOST_SENT:
            assert np.array_equal(*map(np.sort, parts))
        if integers.total:
            assert all(part.min() >= 0 and part.sum() == dims["N"] for part in parts)
        elif name == "pages":
            assert all(len(np.unique(part)) == part.size for part in parts)
        else:
            assert all(np.ptp(part) > 0.8 * (most - least) for part in parts)


class Device:
    """A station whose device answers, or does not."""

    def __init__(self, sample):
        self.asked: list[int] = []
        self._sample = sample

    def sample(self, asked, seed):
        self.asked.append(seed)
        return self._sample


def test_heavy_samples_come_from_the_device_once_and_else_from_here(tmp_path):
    operator = product(tmp_path)
    answered, silent = Device(sample := sampling(operator, LARGE, 1, operator.tables())), Device(None)
    samples = Samples(operator, answered)
    assert samples.of(LARGE, 1) is sample and samples.of(LARGE, 1) is sample and answered.asked == [1]
    here = Samples(operator, silent).of(LARGE, 1)
    np.testing.assert_array_equal(here.references["o0"]["o0"], sample.references["o0"]["o0"])
    assert silent.asked == [1]


def test_an_oracle_without_a_device_leaves_it_to_the_host_and_a_closed_one_to_nobody(tmp_path, monkeypatch):
    asked = product(tmp_path).elsewhere(LARGE)
    assert asked is not None
    monkeypatch.setattr(sys, "executable", "/bin/false")
    one = DeviceOracle()
    one.begin().wait()  # it ends at once, and another is asked
    assert one.sample(asked, 1) is None
    one.close()
    with pytest.raises(SessionDied):
        one.sample(asked, 2)


def test_a_reference_that_took_too_long_once_is_not_asked_on_the_device_again(tmp_path, monkeypatch):
    asked, one = product(tmp_path).elsewhere(LARGE), DeviceOracle()
    monkeypatch.setattr("tilewright.workers.device.oracle.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(one, "_ready_process", lambda: subprocess.Popen(["sleep", "60"], stdin=-1, stdout=-1))
    assert one.sample(asked, 1) is None and one._late
    monkeypatch.setattr(one, "_ready_process", None)  # nobody asks for it
    assert one.sample(asked, 2) is None


def test_a_kernel_without_tensors_is_its_own_reference():
    own = OwnAnswers(lambda inputs: [np.arange(4)], lambda one, other: "", [])
    assert own({})[0].tolist() == own.to_all([{}])[0][0].tolist() == [0, 1, 2, 3]


SHARED = """
import torch
import triton
import triton.language as tl

DEFAULTS = {}

@triton.jit
def step(x, y, n, B: tl.constexpr):
    row, at = tl.program_id(1), tl.program_id(0) * B + tl.arange(0, B)
    own = tl.load(x + row * n + at)
    tl.store(x + row * n + at, own + 1)
    tl.store(y + row * n + at, own * tl.num_programs(0) + tl.program_id(0))

def launch(inputs, params):
    x = inputs["x"]
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device).t().contiguous()
    step[(x.shape[1] // 16, x.shape[0])](x, y, x.shape[1], 16)
    return (y, x)
"""


def test_a_module_in_a_process_of_its_own_answers_the_same_question_once():
    ask = ModuleProcess(SHARED)
    for turn in range(2):
        x = np.arange(8 * 64, dtype=np.float32).reshape(8, 64) + turn
        y, changed = ask({"x": x})
        assert np.array_equal(y, x * 4 + np.arange(64) // 16) and np.array_equal(changed, x + 1)
    assert ask({"x": x})[0] is y  # kept
    with pytest.raises(RuntimeError, match="KeyError"):
        ask({"z": x})


MEETING = """
import torch

DEFAULTS = {}

def launch(inputs, params):
    os = torch.os
    if len(inputs["x"]) == 1:
        os._exit(3)
    os.mkdir(f"FOLDER/{os.getpid()}")
    until = os.times().elapsed + 20.0
    while len(os.listdir("FOLDER")) < 2 and os.times().elapsed < until:
        pass
    return (inputs["x"] + len(os.listdir("FOLDER")),)
"""


@pytest.mark.slow
def test_a_module_in_a_process_of_its_own_answers_several_at_once_and_outlives_a_run_that_ends_it(tmp_path):
    process, ask = begun_process(True), ModuleProcess(MEETING.replace("FOLDER", str(tmp_path)))
    x = np.arange(2.0)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: ask({"x": x + n})[0], (1, 2, 1, 2)))
    assert [y.tolist() for y in found] == [[3.0, 4.0], [4.0, 5.0]] * 2  # two runs met, each asked for twice
    with pytest.raises(RuntimeError, match="its process ended"):
        ask({"x": np.zeros(1)})
    assert process.poll() is None and ask({"x": x + 1})[0] is found[0]
    process.kill()
    with pytest.raises(RuntimeError, match="has ended"):
        ask({"x": x + 9})
    assert ask({"x": x + 9})[0].shape == (2,)  # of a new process


def test_a_kernel_that_is_its_own_judge_runs_on_the_device_however_small_the_shape(tmp_path, monkeypatch):
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # whatever was read in before it
    (tmp_path / "itself.py").write_text(SHARED)
    shapes = [Workload(f"{m}x64", {"M": m, "N": 64}) for m in (16, 8)]
    results = tuple(Result(f"o{n}", "float32", ("M", "N"), 90.0, place=n) for n in range(2))
    operator = product(
        tmp_path,
        reference=f"itself:{tmp_path}/itself.py",
        call="x=x",
        results=results,
        work={},
        operands=(Operand("x", "float32", ("M", "N")),),
        suites={"calls": Suite("calls", workloads=shapes[:1], check=shapes[1:])},
    )
    here = sampling(operator, shapes[0], 5, operator.tables())
    monkeypatch.setattr(ModuleProcess, "__call__", None)  # no other process is asked
    found = Samples(operator, InProcess()).of(shapes[0], 5)
    for name in ("o0", "o1"):
        np.testing.assert_array_equal(found.references[name][name], here.references[name][name])


def test_a_kernel_whose_sums_begin_in_float32_judges_itself_in_that_on_a_device(tmp_path, monkeypatch):
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # whatever was read in before it
    narrow = "    if x.dtype == torch.float64:\n        raise TypeError('a loop-carried variable')\n"
    (tmp_path / "itself.py").write_text(SHARED.replace("    y = torch", f"{narrow}    y = torch"))
    launched = function_of(f"launched:{tmp_path}/itself.py")
    for dtype in (torch.float64, torch.float64, torch.float16):
        found = launched(x=torch.zeros(8, 64, dtype=dtype))[0].dtype
        assert found is (torch.float32 if dtype.itemsize == 8 else dtype)
    with pytest.raises(KeyError):
        launched(z=torch.zeros(8, 64))
