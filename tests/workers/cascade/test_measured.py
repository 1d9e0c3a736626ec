"""The measured cascade on real children: through Triton's interpreter here, on a GPU where there is one."""

import json
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import pytest

from testkit import FIXTURES
from testkit.exploits.judges import measured
from testkit.faults.device import FAULTS
from testkit.gpu import require_hopper
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import FigureKind, Stage, Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.comparison import CONTROL, Comparison, compare
from tilewright.workers.device.station import Entry, LocalStation
from tilewright.workers.request import GIB, Limits
from tilewright.workers.runners.triton.clock import WALL_ATTEMPTS, GpuClock
from tilewright.workers.toolchains import triton as triton_toolchain

pytest.importorskip("triton")

FAMILY = FIXTURES / "small_fp8"
POINT = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 4, "group_m": 8, "skew": True}
PATIENT = Limits(trace=ChildLimits(60.0), compile=ChildLimits(120.0, 8 * GIB))
HASTY = Limits(trace=ChildLimits(2.0), compile=ChildLimits(120.0, 8 * GIB))


@pytest.fixture(scope="module")
def operator():
    return load_operator(f"{FAMILY}/gemm_nt")


@pytest.fixture(scope="module")
def honest(operator):
    return operator.kernels["pointer"].source


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    made = LocalStation(load_target("interpreter").gpu)
    yield made
    made.close()


def judge(operator, station, genome, source, limits=PATIENT, params=POINT):
    cascade = MeasuredCascade(operator, load_target("interpreter"), operator.suites["tiny"], station, limits)
    return cascade.evaluate(genome, source, params, seed=11)


def test_an_honest_kernel_is_measured_and_the_next_meets_it(operator, station, honest):
    found = judge(operator, station, "first", honest)
    assert found.verdict is Verdict.OK, found.reason + found.log
    assert found.stage is Stage.MEASURE
    assert [f.workload for f in found.workloads] == [w.id for w in operator.suites["tiny"].workloads]
    assert all(f.kind is FigureKind.MEASURED and 0 < f.roofline_fraction < 1 for f in found.workloads)
    timed = [reading for reading in found.gates if reading.inputs.startswith("timed calls")]
    assert timed and all(reading.value > 45 for reading in timed), "outputs of timed calls are checked"
    assert found.interval[0] <= found.fitness <= found.interval[1]
    champion = station.champion()
    assert champion is not None and champion.entry.id == "first"

    again = judge(operator, station, "second", honest)
    assert again.verdict is Verdict.OK
    met = again.workloads[0].diagnosis.get("confirmation")
    if met is not None and not met["accepted"]:
        assert again.fitness <= found.fitness, "what is not confirmed is never fitter than the champion"
    assert station.champion().entry.id == ("second" if met and met["accepted"] else "first")


def test_a_hanging_kernel_is_killed_and_the_next_is_measured(operator, station, honest):
    loop = "    while tl.load(as_ptr) > 0:\n        M = M + 0\n    tl.store(c_at"
    found = judge(operator, station, "hangs", honest.replace("    tl.store(c_at", loop), HASTY)
    assert found.verdict is Verdict.TIMEOUT, found.reason
    assert judge(operator, station, "after", honest).verdict is Verdict.OK


def test_side_by_side_each_where_it_serves(operator, station, honest):
    small, deep = operator.suites["tiny"].workloads
    shallow = honest.replace("b.shape[0]", "b.shape[7 if a.shape[1] > 128 else 0]")
    entries = [Entry("good", honest, POINT), Entry("part", shallow, POINT, frozenset({small.id}))]
    entries.append(Entry("bad", honest.replace("b.shape[0]", "b.shape[7]"), POINT))
    found = compare(station, operator, load_target("interpreter"), [small, deep], entries, 5, effort=(2, 1))
    assert found.genomes == ("good", "part") and "IndexError" in found.failed["bad"]
    assert Comparison.from_json(found.to_json()) == found
    assert set(found.rounds[small.id]) == {"good", "part", CONTROL}
    assert set(found.rounds[deep.id]) == {"good", CONTROL}
    assert set(found.control()) == {small.id, deep.id}


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("1", 1), ("0,1", 2), ("0,1,2", 2), ("", 0), ("-1", 0), ("1,-1,0", 1)]
)
def test_gpus_out_of_sight_do_not_count(monkeypatch, visible, count):
    files = [Path("/dev") / name for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")]
    monkeypatch.setattr(triton_toolchain, "device_files", lambda: tuple(files))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert triton_toolchain.gpu_count() == count


def test_without_a_gpu_the_reason_is_one_sentence():
    if triton_toolchain.gpu_count():
        pytest.skip("this machine has a GPU")
    reason = triton_toolchain.missing_parts(load_target("h200").gpu)
    assert reason is not None and "no NVIDIA GPU" in reason and "\n" not in reason
    assert triton_toolchain.missing_parts(load_target("h200").gpu, remote=True) is None


@pytest.mark.gpu
def test_seed_kernels_and_faults_on_the_gpu():
    target = require_hopper()
    operator, station = load_operator("gemm_fp8_blockwise/gemm_nt"), LocalStation(target.gpu)
    wanted = {"hangs": "timeout", "illegal address": "crashed", "out of memory": "resource_error"}
    asked = {name: (source, {"blocks": 1}) for name, source in FAULTS.items()}
    for name, kernel in operator.kernels.items():
        asked[name] = (kernel.source, {**read_declarations(kernel.source).defaults, **kernel.overrides})
    try:
        with measured(station, target.name, 8) as judge, futures.ThreadPoolExecutor(8) as threads:
            under_way = {name: threads.submit(judge, *one, False, 0.0) for name, one in asked.items()}
            for name, evaluation in under_way.items():
                found = evaluation.result()
                assert found.verdict.value == wanted.get(name, "ok"), found.reason + json.dumps(found.log)
            # a child dies with the thread that started it: the one that served them all is asked before they end
            loaded = station.run(Frame("modules"), JobLimits(20.0, 20.0)).frames[0].data["modules"]
        assert not [n for n, file in loaded.items() if "candidate" in n + file or n.split(".")[0] == "triton"]
    finally:
        station.close()


@pytest.mark.parametrize("wait", [0.0, 2.3])
def test_interruptions_and_turns_of_others_do_not_lengthen_the_wall_clock(wait, monkeypatch):
    """Another process may take the core away for milliseconds: the least of a few readings is the call's own. One that
    shares the GPU has its turn before each call: an empty kernel waits as long. Hidden work stays in the reading."""
    walls, call = iter([0.5, 0.3, *[0.4] * (WALL_ATTEMPTS - 3)]), object()
    clock = GpuClock.__new__(GpuClock)
    clock._rested = 0.0
    monkeypatch.setattr(clock, "_wall_of", lambda work: wait + (next(walls) if work is call else 0.0))
    assert clock._seen(call, 3.5, 0.1) == pytest.approx(0.3), "the least of all"
    assert clock._rested == pytest.approx((WALL_ATTEMPTS - 1) * 0.1), "what the device did is no rest"
    assert clock._seen(call, 0.3, 0.29) == 0.3, "near the device time: read once"


def test_the_last_call_of_a_burst_is_seen_by_the_wall_clock(monkeypatch):
    """What a call does beside the events around it shows there; the spinning kernel before it does not."""
    now, calls, waited = [0.0], [], [0]

    class Event:
        def __init__(self, enable_timing):
            self.at = 0.0

        def record(self):
            self.at = now[0]

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    def spin(cycles):
        now[0] += 2e-4

    def call():
        calls.append(now[0])
        now[0] += 1e-3

    def late():  # work of each call that the events around it do not see
        now[0] += 5e-2 * (len(calls) - waited[0])
        waited[0] = len(calls)

    clock = GpuClock.__new__(GpuClock)
    clock._rested, clock._event, clock._sleep = 0.0, Event, spin
    clock._flush = SimpleNamespace(zero_=lambda: None)
    monkeypatch.setattr("tilewright.workers.runners.triton.clock.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    burst = clock.burst(call, 3)
    assert len(calls) == 4 and burst.seconds == pytest.approx([1e-3] * 3) and burst.wall == pytest.approx(1e-3)
    assert len(clock.burst(call, 3, warm=True).seconds) == 3 and len(calls) == 7, "none is thrown away"
    monkeypatch.setattr("torch.cuda.synchronize", late)
    assert clock.burst(call, 3).wall > 4e-2
