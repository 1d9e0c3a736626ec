"""What a parent makes of a device's answers: figures worked out by hand, and a verdict for every way to fail."""

import dataclasses
import itertools

import numpy as np
import pytest

from testkit.scripted import INTERPRETED, TARGET, Doubler, ScriptedStation, answers, done, shape
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SeedKernel, SnrGate, TensorSpec, in_order
from tilewright.seeds.sampled import TABLE_KINDS, Sample
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device import timing
from tilewright.workers.device.plan_compiler import CompilePace
from tilewright.workers.device.station import DeviceRatio, Entry
from tilewright.workers.request import Failure, Findings, Limits, TimingRequest, Truth

ENTRIES = [Entry("one", "source one", {"x": 1}), Entry("two", "source two", {"x": 2}, plans={"m32": b"plan"})]
LIMITS = Limits(trace=ChildLimits(60.0), final_factor=4.0)


def request(operator=None, target=TARGET, **changes):
    operator = operator or Doubler()
    fields = {"seed": 7, "measured": operator.suites["tiny"].workloads, "limits": LIMITS}
    return TimingRequest(operator=operator, truth=Truth(operator), target=target, **{**fields, **changes})


def measured(station, asked=None, *, entries=ENTRIES[:1], judged=None, pace=(), effort=(2, 3)):
    asked, found = asked or request(), Findings()
    samples = timing.Samples(asked.operator)
    return timing.measure(station, asked, found, samples, entries, effort, dict(pace), judged), found


def saying(change):
    """A station whose honest answers are changed."""
    return ScriptedStation(lambda job: answers(job, change))


def named(name):
    """What an honest device says of one shape."""
    station = ScriptedStation()
    measured(station)
    return [f for f in answers(station.jobs[0][0]).frames if f.data["workload"] == name]


def with_data(**changes):
    return lambda frame: dataclasses.replace(frame, data={**frame.data, **changes})


def test_a_job_says_what_to_time_least_work_first():
    station = ScriptedStation(seed=3)
    made, found = measured(station, entries=ENTRIES, pace={"m64": 1e-3})
    ((job, limits),) = station.jobs
    assert (job.kind, job.data["rounds"], job.data["calls"], job.data["pace"]) == ("time", 2, 3, {"m64": 1e-3})
    assert [w["id"] for w in job.data["workloads"]] == ["m32", "m64"] and job.data["seed"] == 3
    assert job.data["entries"] == [{"id": "one", "source": "source one", "params": {"x": 1}}, {"id": "two"}]
    assert job.blobs == {"plan/two/m32": b"plan"}
    assert job.arrays.keys() == {"m32/a", "m64/a"}
    assert np.array_equal(job.arrays["m32/a"], Doubler().make_inputs(shape(32), 3, "randn")["a"])
    assert (limits.wall_seconds, limits.stall_seconds) == (60.0, 10.0)
    assert [t.workload.id for t in made] == ["m32", "m64"] and [t.seed for t in made] == [3, 3]
    assert found.logs == ["said by the child"] and all(reading.passed for reading in found.gates)
    assert [r.inputs for r in found.gates] == ["timed calls at m32"] * 2 + ["timed calls at m64"] * 2


def test_wall_clocks_are_a_finalist_s_and_silence_is_short():
    for asked, wall, stall in (
        (request(final=True), 240.0, 10.0),
        (request(limits=Limits(trace=ChildLimits(4.0))), 4.0, 4.0),
        (request(limits=Limits(trace=ChildLimits(4.0)), final=True), 16.0, 10.0),
    ):
        asked_of, found = (
            ScriptedStation(lambda job: ChildOutcome(Ending.DONE, seconds=2.0, cpu_seconds=1.0)),
            Findings(),
        )
        timing.run_job(asked_of, asked, found, Frame("time"))
        ((_, limits),) = asked_of.jobs
        assert (found.device_seconds, found.device_cpu_seconds) == (2.0, 1.0)
        assert (limits.wall_seconds, limits.stall_seconds) == (wall, stall)


def test_figures_are_worked_out_by_hand():
    made, _ = measured(ScriptedStation(), entries=ENTRIES)
    timed = dataclasses.replace(
        made[1],
        rounds=[[[1.0], [2.0]], [[100e-6, 200e-6, 300e-6], [200e-6, 250e-6]]],
        host_seconds=[1.0, 6e-6],
        wall_seconds=[1.0, 250e-6],
        scale=DeviceRatio("dev1", 2.0, 0.03),
    )
    assert timed.__dataclass_params__.frozen
    found = timed.figures(request(), 1)
    assert (found.workload, found.kind, found.gbytes) == ("m64", TARGET.kind, None)
    assert found.seconds == pytest.approx(100e-6), "the median, as the first device would have given it"
    assert found.tflops == pytest.approx(40960 / 100e-6 / 1e12)
    assert found.roofline_fraction == pytest.approx(40.96e-6 / 100e-6)
    spread = 1.25 * 1.4826 * 50e-6 / 5**0.5 / 200e-6
    assert found.diagnosis == pytest.approx(
        {
            "host_seconds": 6e-6,
            "wall_seconds": 250e-6,
            "calls": 5,
            "relative_error": np.hypot(spread, 0.03),
            "gbytes_per_second": 32768 / 100e-6 / 1e9,
            "copy_fraction": 32768 / 100e-6 / 5e8,
            "device": "dev1",
            "device_ratio": 2.0,
        }
    )
    alone = dataclasses.replace(timed, scale=DeviceRatio()).figures(request())
    assert alone.diagnosis["copy_fraction"] == pytest.approx(32768 / 1.5 / 5e8)
    assert alone.seconds == 1.5 and "device" not in alone.diagnosis and "device_ratio" not in alone.diagnosis


def test_what_memory_bounds_is_ranked_by_bytes():
    bound = Doubler()
    bound.memory_bound = True
    made, _ = measured(ScriptedStation(), request(bound))
    figures = made[1].figures(request(bound))
    assert figures.gbytes == pytest.approx(32768 / 100e-6 / 1e9) == figures.diagnosis["gbytes_per_second"]


FASTEST = 40.96e-6
"""What the peaks allow on m64."""


@pytest.mark.parametrize(
    ("seconds", "host", "wall", "reason"),
    [
        (FASTEST * 1.01, 0.0, 100e-6, None),
        (FASTEST * 0.99, 0.0, 100e-6, "m64: 40.6 us is below what the device's peaks allow"),
        (FASTEST, 0.0, 100e-6, "m64: 41.0 us is below what the device's peaks allow"),
        (100e-6, 0.0, 2299e-6, None),
        (100e-6, 0.0, 2301e-6, "m64: 2301 us by the wall clock, 100 us by device events"),
        (100e-6, 200e-6, 2599e-6, None),
        (100e-6, 200e-6, 2601e-6, "m64: 2601 us by the wall clock, 200 us by device events"),
    ],
)
def test_times_that_cannot_be_are_refused(seconds, host, wall, reason):
    def change(frame):
        if frame.data["workload"] != "m64":
            return frame
        return with_data(rounds=[[[seconds] * 3] * 2], host_seconds=[host], wall_seconds=[wall])(frame)

    made, _ = measured(saying(change))
    if reason is None:
        assert [t.workload.id for t in made] == ["m32", "m64"]
    else:
        assert made == Failure(Verdict.IMPLAUSIBLE, reason, entry="one")
    if "wall" in (reason or ""):
        made, _ = measured(saying(change), request(target=INTERPRETED))
        assert len(made) == 2, "an interpreter's clock means nothing"


def spoilt(place, value=0.0):
    def change(frame):
        array = frame.arrays[f"{place}/c"].copy()
        array[1, 2] = value
        return dataclasses.replace(frame, arrays={**frame.arrays, f"{place}/c": array})

    return change


def test_outputs_of_timed_calls_pass_the_gates():
    made, found = measured(saying(spoilt(1)), entries=ENTRIES)
    assert (made.verdict, made.stage, made.entry) == (Verdict.INCORRECT, Stage.CHECK, "two")
    assert made.reason.startswith("gate exact on timed calls at m32: ")
    assert [r.passed for r in found.gates] == [True, False]
    made, found = measured(saying(spoilt(1)), entries=ENTRIES, judged=0)
    assert len(made) == 2 and len(found.gates) == 2, "the other entry is not on trial"
    made, _ = measured(saying(spoilt(0)), entries=ENTRIES, judged=0)
    assert (made.verdict, made.entry) == (Verdict.INCORRECT, "one")


def test_a_baseline_s_outputs_are_looked_at_for_their_form_alone():
    baseline = SeedKernel("b", "", baseline=True)
    made, found = measured(saying(spoilt(0)), request(baseline=baseline))
    assert len(made) == 2 and not found.gates
    short = saying(lambda f: dataclasses.replace(f, arrays={"0/c": f.arrays["0/c"][1:]}))
    for asked in (request(baseline=baseline), request()):
        made, found = measured(short, asked)
        reason = "output c has shape [31, 64] instead of [32, 64]"
        assert made == Failure(Verdict.INCORRECT, reason, stage=Stage.CHECK, entry="one") and not found.gates


def test_a_kernel_that_changes_its_inputs_is_incorrect():
    made, _ = measured(saying(with_data(inputs_changed=True)))
    reason = "the kernel changes its inputs (m32)"
    assert made == Failure(Verdict.INCORRECT, reason, stage=Stage.CHECK, entry="one")


def test_a_child_that_leaves_something_out_crashed():
    made, _ = measured(saying(lambda frame: frame if frame.data["workload"] == "m64" else None))
    assert made == Failure(Verdict.CRASHED, "the child ended before it had timed everything")
    for names in (["m64", "m64"], ["m32", "m64", "m32"]):
        repeated = [frame for name in names for frame in named(name)]
        made, _ = measured(ScriptedStation(lambda job, frames=repeated: done(frames)))
        assert made == Failure(Verdict.CRASHED, "the child ended before it had timed everything")
    chatty = ScriptedStation(lambda job: done([Frame("note"), *answers(job).frames]))
    assert len(measured(chatty)[0]) == 2


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "m7"},
        {"workload": ["m32"]},
        {"rounds": []},
        {"rounds": [[]]},
        {"rounds": [[[]]]},
        {"rounds": [[[1e-4], []]]},
        {"rounds": [[[1e-4]], [[1e-4]]]},
        {"rounds": [[[NAN]]]},
        {"rounds": [[[0.0]]]},
        {"rounds": [[[1e-4, -1e-4]]]},
        {"rounds": [[[INF]]]},
        {"rounds": [[["fast"]]]},
        {"rounds": [[None]]},
        {"rounds": 3},
        {"host_seconds": []},
        {"host_seconds": [0.0, 0.0]},
        {"host_seconds": [-1e-9]},
        {"host_seconds": [NAN]},
        {"wall_seconds": []},
        {"wall_seconds": [NAN]},
        {"wall_seconds": [INF]},
        {"wall_seconds": None},
    ],
)
def test_an_answer_that_does_not_read_is_the_end_of_the_child_and_of_nothing_else(changes):
    made, found = measured(saying(with_data(**changes)))
    assert made.verdict is Verdict.CRASHED and "\n" not in made.reason, made
    assert made.reason.startswith("the child's answer is malformed: ") and not found.gates
    for name in changes:
        made, _ = measured(saying(lambda f, n=name: Frame(f.kind, {k: v for k, v in f.data.items() if k != n})))
        assert made.reason == f"the child's answer is malformed: KeyError '{name}'"


@pytest.mark.parametrize("sizes", [s for s in itertools.product((1, 2, 3), repeat=3) if s != (2, 2, 2)])
def test_every_entry_is_timed_by_every_clock(sizes):
    rounds, host, wall = ([value] * n for value, n in zip(([[1e-4]], 0.0, 0.0), sizes, strict=True))
    made, _ = measured(saying(with_data(rounds=rounds, host_seconds=host, wall_seconds=wall)), entries=ENTRIES)
    assert made.reason == f"the child's answer is malformed: ValueError {sizes[0]} entries instead of 2"


def test_entries_have_as_many_rounds_each():
    uneven = [[[1e-4]], [[1e-4], [1e-4]]]
    made, _ = measured(saying(with_data(rounds=uneven)), entries=ENTRIES)
    assert made.verdict is Verdict.CRASHED and "more of one entry" in made.reason
    made, _ = measured(saying(with_data(rounds=[[[1e-4], [2e-4, 1e-4]]] * 2)), entries=ENTRIES)
    assert [len(entry) for entry in made[0].rounds] == [2, 2]
    assert made[0].host_seconds == [5e-6] * 2 and made[0].wall_seconds == [110e-6] * 2


@pytest.mark.parametrize(
    ("dtype", "target", "bound"),
    [
        ("float32", INTERPRETED, 2.0**-12),
        ("float8_e4m3fn", INTERPRETED, 2.0**-12),
        ("float32", TARGET, 2.0**-11),
        ("float8_e4m3fn", TARGET, 2.0**-8),
        ("float8_e5m2", TARGET, 2.0**-8),
    ],
)
def test_a_device_s_own_sums_explain_as_much_as_they_lose(dtype, target, bound):
    """One element is off by just less, and by just more, than ``bound`` of what is usual around it."""
    asked = request(Doubler(dtype), target, measured=(shape(32),))
    for factor, passes in ((0.97, True), (1.03, False)):

        def change(frame, factor=factor):
            array = frame.arrays["0/c"].copy()
            place = np.unravel_index(np.argmin(np.abs(np.abs(array) - 1)), array.shape)
            tile = array[:, :32] if place[1] < 32 else array[:, 32:]
            array[place] += factor * bound * np.sqrt(np.mean(tile.astype(np.float64) ** 2))
            return dataclasses.replace(frame, arrays={"0/c": array})

        made, _ = measured(saying(change), asked)
        assert (not isinstance(made, Failure)) is passes, made


# -- what a child says of itself ---------------------------------------------------------------------


def error(phase="run", entry=None, **changes):
    data = {"type": "ValueError", "message": "why", "phase": phase, "trace": "the trace", **changes}
    return done([Frame("error", data if entry is None else {**data, "entry": entry})])


EXCEPTIONS = {
    (Verdict.CRASHED, Stage.MEASURE): [
        ({}, "ValueError: why"),
        ({"message": ""}, "ValueError"),
        ({"message": "two\nlines"}, "ValueError: two lines"),
        ({"message": "an Illegal Memory access\nmore"}, "the device reports: an Illegal Memory access"),
        ({"type": "AssertionError", "message": "output c"}, "AssertionError: output c"),
        ({"type": "TypeError", "message": "x"}, "TypeError: x"),
        ({"message": "output c"}, "ValueError: output c"),
    ],
    (Verdict.COMPILE_ERROR, Stage.COMPILE): [
        ({"phase": "import"}, "ValueError: why"),
        ({"phase": "compile"}, "ValueError: why"),
        ({"type": "CompilationError"}, "CompilationError: why"),
        ({"type": "CompileTimeAssertionFailure"}, "CompileTimeAssertionFailure: why"),
    ],
    (Verdict.IMPLAUSIBLE, Stage.CHECK): [
        ({"type": "ForeignWork", "message": "a\nb"}, "a b"),
        ({"type": "ForeignWork", "phase": "import"}, "why"),
    ],
    (Verdict.INCORRECT, Stage.CHECK): [
        ({"type": "OutsideWrite"}, "why"),
        ({"type": "TypeError", "message": "launch returns a list"}, "TypeError: launch returns a list"),
        ({"type": "TypeError", "message": "output c is no tensor"}, "TypeError: output c is no tensor"),
    ],
    (Verdict.RESOURCE_ERROR, Stage.MEASURE): [
        ({"type": "OutOfResources"}, "OutOfResources: why"),
        ({"type": "MemoryError", "message": ""}, "MemoryError"),
        ({"message": "CUDA Out Of Memory", "phase": "compile"}, "ValueError: CUDA Out Of Memory"),
    ],
}


@pytest.mark.parametrize(
    ("changes", "verdict", "reason", "stage"),
    [(changes, *of[:1], reason, *of[1:]) for of, rows in EXCEPTIONS.items() for changes, reason in rows],
)
def test_an_exception_has_a_verdict_by_its_phase_and_words(changes, verdict, reason, stage):
    found = timing.child_failure(error(**changes), "timing", Stage.MEASURE)
    assert found == Failure(verdict, reason, "the trace", stage)
    assert timing.child_failure(error(entry="two", **changes), "timing", Stage.MEASURE).entry == "two"


@pytest.mark.parametrize("ending", list(Ending))
def test_a_child_that_does_not_end_well_is_late_or_crashed(ending):
    found = timing.child_failure(ChildOutcome(ending, detail="no\nword", log="log"), "timing", Stage.CHECK)
    if ending is Ending.DONE:
        assert found is None
        return
    verdict = Verdict.TIMEOUT if ending is Ending.TIMEOUT else Verdict.CRASHED
    assert found == Failure(verdict, "timing: no word", "log", Stage.CHECK)


def test_an_error_that_says_nothing_is_a_crash():
    for data in ({}, {"type": []}, {"message": None}):
        outcome = ChildOutcome(Ending.DONE, [Frame("error", data)])
        assert timing.child_failure(outcome, "timing", Stage.MEASURE).verdict is Verdict.CRASHED


@pytest.mark.parametrize(
    ("judged", "blamed", "verdict"),
    [
        (None, "two", Verdict.CRASHED),
        (0, "two", Verdict.INFRA_ERROR),
        (1, "two", Verdict.CRASHED),
        (1, "one", Verdict.INFRA_ERROR),
        (0, None, Verdict.CRASHED),
    ],
)
def test_what_fails_beside_a_candidate_is_no_fault_of_it(judged, blamed, verdict):
    made, _ = measured(ScriptedStation(lambda job: error(entry=blamed)), entries=ENTRIES, judged=judged)
    assert made.verdict is verdict
    if verdict is Verdict.INFRA_ERROR:
        assert made.reason == f"{blamed} failed beside the candidate: ValueError: why"


# -- operators whose operands a device makes by itself -------------------------------------------------


class Sampling(Doubler):
    """The first row and two columns are looked at."""

    made = 0

    def tables(self):
        return {"a": np.arange(1 << 16, dtype=np.float32)}

    def sample(self, workload, elements, rng):
        self.made += 1
        where = (np.array([int(rng.integers(workload.dims["M"]))]), np.array([3, 5]))
        wanted = 2 * elements.at("a", *where).astype(np.float64)
        return Sample({"c": where}, {"exact": {"c": wanted}})


def sampled_answers(job, operator, off=0.0):
    frames = []
    for frame in answers(dataclasses.replace(job, arrays=_Anything(job.arrays))).frames:
        name = frame.data["workload"]
        samples = timing.Samples(operator).of(shape(int(name[1:])), job.data["seed"])
        assert all(np.array_equal(job.arrays[f"where/{name}/c/{n}"], samples.where["c"][n]) for n in range(2))
        found = samples.references["exact"]["c"].astype(np.float32) + off
        frames.append(dataclasses.replace(frame, arrays={"0/c": found}))
    return done(frames)


class _Anything(dict):
    def __missing__(self, name):
        return np.zeros(1)


def test_samples_are_judged_where_the_parent_looks():
    operator = Sampling(gates=(SnrGate("exact", "exact", 45.0),))
    station = ScriptedStation(lambda job: sampled_answers(job, operator), seed=5)
    made, found = measured(station, request(operator))
    assert len(made) == 2 and len(found.gates) == 2, made
    ((job, _),) = station.jobs
    assert "table/a" in job.arrays and not any(name.endswith("/a") and "table" not in name for name in job.arrays)
    wrong, _ = measured(ScriptedStation(lambda job: sampled_answers(job, operator, 3000.0)), request(operator))
    assert wrong.verdict is Verdict.INCORRECT and "timed calls at m32" in wrong.reason


def test_samples_are_made_once_and_the_latest_are_kept():
    operator = Sampling()
    samples = timing.Samples(operator, most=2)
    first = samples.of(shape(32), 1)
    assert samples.of(shape(32), 1) is first and operator.made == 1
    again = timing.Samples(operator).of(shape(32), 1)
    assert np.array_equal(again.where["c"][0], first.where["c"][0]), "chosen by seed and shape"
    places = {int(samples.of(shape(64), seed).where["c"][0][0]) for seed in range(12)}
    assert len(places) > 3, "and by them alone"
    operator.made = 0
    samples.of(shape(64), 11), samples.of(shape(64), 10)
    assert operator.made == 0
    samples.of(shape(64), 9)
    assert operator.made == 1
    assert timing.Samples(Doubler()).tables == {}
    assert TensorSpec("c", (1, 2), "float32") not in operator.outputs(shape(32))


@pytest.mark.parametrize(("wrong", "refused"), [("ones", True), ("randn", True), ("", False)])
def test_every_timed_shape_meets_kinds_beside_the_one_it_is_timed_on(wrong, refused):
    asked = request()
    name = asked.measured[0].id

    def spoil(frame):
        if frame.data["workload"] == name and wrong:
            frame.arrays["0/c" if wrong == "randn" else f"0/{wrong}/c"][0, 0] += 1
        return frame

    station, samples = saying(spoil), timing.Samples(asked.operator)
    found = timing.measure(station, asked, Findings(), samples, ENTRIES[:1], (1, 2), {}, kinds=None)
    assert isinstance(found, Failure) is refused, found
    assert all(kinds == ["ones"] for kinds in station.jobs[0][0].data["kinds"].values())


def test_the_seed_deals_the_kinds_of_tables_over_the_shapes():
    operator = load_operator("gemm_fp8_blockwise/gemm_nt")
    samples, shapes = timing.Samples(operator), in_order(operator.suites["primus-core"].workloads)
    dealt = [[samples.draw_kinds(w, seed, 2) for w in shapes] for seed in range(8)]
    assert all({kind for kinds in of_seed for kind in kinds} == set(TABLE_KINDS) for of_seed in dealt)
    assert all(len(set(kinds)) == 2 for of_seed in dealt for kinds in of_seed)
    assert len({tuple(of_seed[0]) for of_seed in dealt}) > 4
    assert set(samples.draw_kinds(shapes[0], 1, None)) == set(TABLE_KINDS)


@pytest.mark.parametrize(
    ("known", "limit"),
    [([], 30.0), ([1.5] * 6, 10.0), ([2.5] * 6, 15.0), ([1.5] * 6 + [8.0], 24.0), ([1.5] * 6 + [20.0], 30.0)],
)
def test_compiling_may_take_several_times_what_is_usual_or_what_the_slowest_took(known, limit):
    pace = CompilePace()
    for seconds in known:
        pace.add(seconds)
    assert pace.limit(30.0) == limit
