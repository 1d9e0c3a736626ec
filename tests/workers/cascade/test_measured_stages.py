"""Gates on a device and meetings with the champion, as the parent sees them: a device says, the parent judges."""

import dataclasses
import functools
import math
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from testkit import scripted
from testkit.exploits.judges import finalist
from testkit.scripted import INTERPRETED, SOURCE, TARGET, Doubler, ScriptedStation, answers, done, shape
from testkit.taken import softmax
from tilewright.fitness import intervals
from tilewright.fitness.evaluation import FigureKind, GateReading, Stage, Verdict, WorkloadFigures
from tilewright.fitness.race import Race, Rung
from tilewright.fitness.score import geometric_mean
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import Scope, in_order
from tilewright.workers.cascade import drawn_shapes, measured
from tilewright.workers.cascade.drawn_shapes import declared
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.cascade.measured_stages import (
    Confirmation,
    GateStage,
    ScreenStage,
    _foreseen,
    confirm,
    host_seconds,
    interval,
    worst_gates,
)
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Spawn
from tilewright.workers.child.session import SessionDied
from tilewright.workers.device.station import Champion, Entry, LocalStation
from tilewright.workers.device.timing import Samples, calls_of
from tilewright.workers.request import Failure, Findings

OPERATOR = Doubler()


request = functools.partial(scripted.request, OPERATOR, source="text", checked=in_order((shape(32), shape(48))))


def gated(change=lambda frame: frame, **changes):
    station, found = ScriptedStation(lambda job: answers(job, change)), Findings()
    return GateStage(station).run(request(**changes), found), found, station


# -- gates -------------------------------------------------------------------------------------------


def test_each_kind_of_inputs_runs_on_one_shape_and_on_all_for_a_finalist():
    dealt = {}
    for seed in (6, 7):
        failure, found, station = gated(seed=seed)
        ((job, _),) = station.jobs
        assert failure is None and found.logs == ["said by the child"] and job.kind == "check"
        assert [w["id"] for w in job.data["workloads"]] == ["m32", "m48"]
        assert len(job.data["entries"]) == 1 and job.data["entries"][0]["source"] == "text"
        dealt[seed] = [kind for check in job.data["check"] for kind in check["kinds"]]
        assert job.arrays.keys() == {f"{c['workload']}/{k}/a" for c in job.data["check"] for k in c["kinds"]}
        wanted = OPERATOR.make_inputs(shape(32), seed, dealt[seed][0])["a"]
        assert np.array_equal(job.arrays[f"m32/{dealt[seed][0]}/a"], wanted)
        assert [(r.inputs, r.passed) for r in found.gates] == [(kind, True) for kind in dealt[seed]]
    assert sorted(dealt[6]) == sorted(dealt[7]) == ["ones", "randn"] and dealt[6] != dealt[7]
    _, found, station = gated(final=True)
    assert [c["kinds"] for c in station.jobs[0][0].data["check"]] == [["randn", "ones"]] * 2
    assert len(found.gates) == 4


def test_answers_are_due_before_the_device_is_asked():
    class Counted(Doubler):
        asked = 0

        def oracle(self, workload, inputs):
            self.asked += 1
            return super().oracle(workload, inputs)

    stage, operator = GateStage(ScriptedStation(answers)), Counted()
    asked = scripted.request(operator, source="text", checked=in_order((shape(32), shape(48))))
    stage.prepare(asked)
    assert operator.asked == 2
    assert stage.run(asked, Findings()) is None and operator.asked == 2


def test_plans_travel_instead_of_the_source():
    station, found = ScriptedStation(), Findings(plans={"m32": b"plan", "m64": b"not checked"})
    assert GateStage(station).run(request(), found) is None
    ((job, _),) = station.jobs
    (entry,) = job.data["entries"]
    assert entry.keys() == {"id"} and job.blobs == {f"plan/{entry['id']}/m32": b"plan"}
    other = ScriptedStation()
    GateStage(other).run(request(params={"x": 2}), found)
    assert other.jobs[0][0].data["entries"] != [entry], "a point of its own has a name of its own"
    names = []
    for params in ({"x": 1, "y": 2}, {"y": 2, "x": 1}):
        station = ScriptedStation()
        GateStage(station).run(request(params=params), found)
        names.append(station.jobs[0][0].data["entries"][0]["id"])
    assert names[0] == names[1] and len(names[0]) == 16, "whatever the order"


@pytest.mark.parametrize("name", ["m32", "m48"])
def test_one_wrong_answer_is_incorrect_and_changed_inputs_are(name):
    def wrong(frame):
        if frame.data["workload"] != name:
            return frame
        return dataclasses.replace(frame, arrays={"c": frame.arrays["c"] * 1.01})

    failure, found, _ = gated(wrong)
    failed = [reading for reading in found.gates if not reading.passed]
    reason = f"gate exact on {failed[0].inputs}: 40.1 dB, at least 45 dB needed"
    assert (failure.verdict, failure.stage) == (Verdict.INCORRECT, Stage.CHECK)
    assert failure.reason.split(":")[0] == reason.split(":")[0]

    def changed(frame):
        return dataclasses.replace(frame, data={**frame.data, "inputs_changed": frame.data["workload"] == name})

    failure, found, _ = gated(changed)
    reasons = {f"the kernel changes its inputs ({reading.inputs})" for reading in found.gates}
    assert failure.verdict is Verdict.INCORRECT and failure.reason in reasons


def test_every_question_is_answered_once():
    failure = Failure(Verdict.CRASHED, "the child ended before it had answered everything")
    for kept in ([], [0], [1], [0, 0], [1, 1], [0, 1, 1]):
        found = Findings()
        station = ScriptedStation(lambda job, kept=kept: done([answers(job).frames[n] for n in kept]))
        assert GateStage(station).run(request(), found) == failure and not found.gates
    swapped = ScriptedStation(lambda job: done([Frame("note"), Frame("aside"), *answers(job).frames[::-1]]))
    assert GateStage(swapped).run(request(), Findings()) is None


@pytest.mark.parametrize("name", ["workload", "kind", "inputs_changed"])
def test_an_answer_that_does_not_read_is_a_crash(name):
    failure, *_ = gated(lambda f: dataclasses.replace(f, data={k: v for k, v in f.data.items() if k != name}))
    assert failure == Failure(Verdict.CRASHED, f"the child's answer is malformed: KeyError '{name}'")
    failure, *_ = gated(lambda f: dataclasses.replace(f, data={**f.data, "kind": ["randn"]}))
    assert failure.verdict is Verdict.CRASHED and "malformed: TypeError" in failure.reason


def test_a_child_that_dies_is_the_verdict():
    found = Findings()
    station = ScriptedStation(lambda job: ChildOutcome(Ending.TIMEOUT, detail="silent", log="the log"))
    failure = GateStage(station).run(request(), found)
    assert failure == Failure(Verdict.TIMEOUT, "checking: silent", "the log", Stage.CHECK)
    assert found.logs == ["the log"]


# -- times -------------------------------------------------------------------------------------------


def figures(name, seconds, **diagnosis):
    return WorkloadFigures(
        workload=name,
        seconds=seconds,
        tflops=1.0 / seconds,
        roofline_fraction=0.5,
        kind="measured",
        diagnosis=diagnosis,
    )


CHAMPION = Champion(Entry("best", "its source", {}), 2.0, (figures("m32", 3e-4), figures("m64", 2e-4)))


def test_a_screen_is_paced_by_the_champion():
    station, found = ScriptedStation(champion=CHAMPION), Findings()
    assert ScreenStage(station, Samples(OPERATOR)).run(request(), found) is None
    ((job, _),) = station.jobs
    assert (job.data["rounds"], job.data["calls"]) == (1, 5)
    assert job.data["pace"] == {"m32": 3e-4, "m64": 2e-4}
    assert {f.workload for f in found.figures} == {"m32", "m64"}
    alone = ScriptedStation()
    assert ScreenStage(alone, Samples(OPERATOR)).run(request(target=INTERPRETED), Findings()) is None
    assert (alone.jobs[0][0].data["pace"], alone.jobs[0][0].data["calls"]) == ({}, 2), "few calls of an interpreter"
    broken, found = ScriptedStation(lambda job: done([])), Findings()
    assert ScreenStage(broken, Samples(OPERATOR)).run(request(), found).verdict is Verdict.CRASHED
    assert not found.figures


def test_samples_are_due_of_every_shape_and_kind_with_the_seed_that_will_be_asked_for():
    flags, made = [], []
    station = SimpleNamespace(operand_seed=lambda seed, ahead=False: flags.append(ahead) or 3)
    samples = SimpleNamespace(sampled=True, of=lambda *key: made.append(key), from_device=lambda *key: None)
    samples.draw_kinds = lambda workload, seed, most: [f"{seed} {most}"]
    for final, most in ((False, 1), (True, None)):
        made.clear()
        ScreenStage(station, samples).prepare(request(final=final))
        assert [(w.id, *rest) for w, *rest in made] == [
            (name, 3, kind) for name in ("m64", "m32") for kind in ("", f"7 {most}")
        ]
    samples.sampled, asked = False, request()
    with mock.patch.object(asked.truth, "prepare") as prepare:
        ScreenStage(station, samples).prepare(asked)
    first = asked.operator.input_kinds[0]
    assert [(w.id, *rest) for w, *rest in prepare.call_args[0][0]] == [
        (name, 3, kind) for name in ("m64", "m32") for kind in (first, "7 1")
    ]
    assert flags == [True] * 3, "another job counts its use"


TIMES = {
    "m32": ([[1e-4], [1e-4]], [[2e-4], [2.2e-4]], [[1e-4], [1.1e-4]]),
    "m64": ([[3e-4], [3e-4]], [[1e-4], [1e-4]], [[3e-4], [3e-4]]),
}
"""Rounds of champion, contender and champion again."""

CLOSE = dict.fromkeys(TIMES, ([[1e-4], [1e-4]], [[0.999e-4], [0.998e-4]], [[1e-4], [1e-4]]))
"""Of a contender that one pair of rounds does not tell from the champion."""


def confirmed(fitness=1.0, times=TIMES, target=TARGET, operator=OPERATOR):
    def change(frame):
        return dataclasses.replace(frame, data={**frame.data, "rounds": times[frame.data["workload"]]})

    station, found = ScriptedStation(lambda job: answers(job, change)), Findings()
    asked = dataclasses.replace(request(target=target), operator=operator)
    return confirm(station, asked, found, Samples(operator), CHAMPION, fitness), found, station


def test_a_contender_stands_between_two_of_the_champion():
    _, _, station = confirmed(3.0)
    ((job, _),) = station.jobs
    names = [entry["id"] for entry in job.data["entries"]]
    assert names[0] == "best" and names[2] == "best/again" and names[1] not in (names[0], names[2])
    assert [entry["source"] for entry in job.data["entries"]] == ["its source", "text", "its source"]
    assert job.data["pace"] == {}


@pytest.mark.parametrize(
    ("fitness", "target", "efforts"),
    [
        (2.0, TARGET, [(2, 3), (2, 3)]),
        (2.2, TARGET, [(2, 3), (2, 3)]),
        (2.2001, TARGET, [(2, 1)]),
        (2.0, INTERPRETED, [(2, 2), (2, 2)]),
        (4.0, INTERPRETED, [(2, 1)]),
    ],
)
def test_a_clear_contender_needs_fewer_calls(fitness, target, efforts):
    station = confirmed(fitness, CLOSE, target)[2]
    assert [(job.data["rounds"], job.data["calls"]) for job, _ in station.jobs] == efforts


def test_a_contender_behind_at_half_time_meets_the_champion_no_longer():
    slower = {name: [rounds[1], rounds[0], rounds[1]] for name, rounds in TIMES.items()}
    slower["m64"] = ([[1e-4], [1e-4]], [[3e-4], [3e-4]], [[1e-4], [1e-4]])
    verdict, found, station = confirmed(times=slower)
    assert len(station.jobs) == 1 and not verdict.accepted
    assert all(f.diagnosis["calls"] == 2 for f in found.figures)
    assert all(f.diagnosis["calls"] == 4 for f in confirmed(times=CLOSE)[1].figures), "rounds of both parts count"
    verdict, found, station = confirmed()
    assert len(station.jobs) == 1 and verdict.accepted and verdict.ratio.low > 1.1, "nor one that is surely ahead"


def test_what_takes_long_is_called_less():
    station = ScriptedStation(champion=CHAMPION)
    assert ScreenStage(station, Samples(OPERATOR)).run(request(), Findings()) is None
    assert station.jobs[0][0].data["calls_of"] == {"m32": 5, "m64": 5}
    workload = request().measured[0]
    many = {seconds: calls_of(request(), workload, (1, 5), {workload.id: seconds}) for seconds in (3e-4, 8e-4, 6e-3)}
    assert many == {3e-4: 5, 8e-4: 3, 6e-3: 2}
    assert calls_of(request(), workload, (4, 3), {workload.id: 6e-3}) == 1, "of several rounds"
    assert calls_of(request(target=INTERPRETED), workload, (1, 2), {workload.id: 9.0}) == 2


def test_the_meeting_is_worked_out_by_hand():
    verdict, found, _ = confirmed(3.0)
    held32 = (1e-4, 1.05e-4)  # the medians of both entries' calls, by round
    over32 = math.sqrt((2e-4 / held32[0]) * (2.2e-4 / held32[1]))
    assert verdict.champion == "best"
    assert verdict.ratio.value == pytest.approx(math.sqrt(3.0 / over32)), "over 1 is faster"
    assert verdict.control.value == pytest.approx((1 * (1 / 1.1)) ** (1 / 4)), "the first over the second"
    first, second = found.figures
    assert [f.workload for f in found.figures] == ["m64", "m32"], "in the order of the suite"
    assert first.seconds == pytest.approx(2e-4 / 3) and second.seconds == pytest.approx(3e-4 * over32)
    assert first.tflops == pytest.approx(40960 / first.seconds / 1e12)
    assert first.roofline_fraction == pytest.approx(40.96e-6 / first.seconds) and first.gbytes is None
    assert first.diagnosis["raw_seconds"] == pytest.approx(1e-4)
    assert first.diagnosis["paired"] == pytest.approx(1 / 3) and first.diagnosis["calls"] == 2
    bound = Doubler()
    bound.memory_bound = True
    _, found, _ = confirmed(operator=bound)
    assert found.figures[0].gbytes == pytest.approx(32768 / (2e-4 / 3) / 1e9)


def test_a_contender_alone_is_on_trial_and_must_be_faster_by_more_than_chance():
    noisy = {name: ([[3e-4], [1e-4]], [[1e-4], [1.1e-4]], [[3e-4], [1e-4]]) for name in TIMES}
    wide, _, _ = confirmed(times=noisy)
    assert wide.ratio.low < 1.0 < wide.ratio.value and not wide.accepted, "two rounds disagree"
    clear = {name: ([[3e-4], [3.01e-4]], [[1e-4], [1e-4]], [[3e-4], [3e-4]]) for name in TIMES}
    verdict, _, _ = confirmed(times=clear)
    assert verdict.accepted and verdict.ratio.low > 2.5 and verdict.__dataclass_params__.frozen
    data = verdict.data()
    assert data == {
        "champion": "best",
        "ratio": verdict.ratio.value,
        "interval": [verdict.ratio.low, verdict.ratio.high],
        "control": verdict.control.value,
        "control_spread": verdict.control.spread,
        "accepted": True,
    }
    for low, accepted in ((1.0, False), (1.0001, True)):
        level = dataclasses.replace(verdict, ratio=dataclasses.replace(verdict.ratio, low=low))
        assert isinstance(level, Confirmation) and level.accepted is accepted
    broken = ScriptedStation(lambda job: done([]))
    found = Findings(figures=[figures("m32", 1.0)])
    failure = confirm(broken, request(), found, Samples(OPERATOR), CHAMPION, 1.0)
    assert failure.verdict is Verdict.CRASHED and found.figures[0].seconds == 1.0

    def spoilt(job, place):
        def change(frame):
            return dataclasses.replace(frame, arrays={**frame.arrays, f"{place}/c": frame.arrays["0/c"] * 2})

        return answers(job, change)

    for place, judged in ((0, False), (1, True), (2, False)):
        station = ScriptedStation(lambda job, place=place: spoilt(job, place))
        found = confirm(station, request(), Findings(), Samples(OPERATOR), CHAMPION, 1.0)
        assert isinstance(found, Failure) is judged


def test_the_interval_of_a_fitness_is_that_of_a_mean():
    two = [figures("a", 1.0, relative_error=0.03), figures("b", 1.0, relative_error=0.04)]
    low, high = interval(two, 10.0)
    half = 1.96 * 0.05 / 2
    assert (low, high) == (pytest.approx(10 * math.exp(-half)), pytest.approx(10 * math.exp(half)))
    low, high = interval([figures("a", 1.0)], 1.0)
    assert (low, high) == (pytest.approx(math.exp(-0.098)), pytest.approx(math.exp(0.098)))


def test_the_host_time_is_the_median_over_workloads():
    three = [figures("a", 1.0, host_seconds=9.0), figures("b", 1.0, host_seconds=2.0), figures("c", 1.0)]
    assert host_seconds(three) == 2.0 and host_seconds(three[2:]) == 0.0


def test_per_gate_the_lowest_reading_of_timed_calls_is_kept():
    def reading(gate, inputs, value, passed=True):
        return GateReading(gate=gate, inputs=inputs, value=value, passed=passed)

    small = [reading("g", "randn", 50.0), reading("g", "ones", 40.0)]
    timed = [reading("g", "timed calls at a", v) for v in (60.0, 55.0, 58.0)] + [
        reading("h", "timed calls at a", None),
        reading("h", "timed calls at b", 70.0),
        reading("i", "timed calls at a", 70.0),
        reading("i", "timed calls at b", None),
    ]
    assert worst_gates([timed[0], small[0], *timed[1:], small[1]]) == (*small, timed[1], timed[4], timed[5])
    failed = reading("g", "timed calls at c", 99.0, passed=False)
    assert worst_gates([timed[0], failed]) == (failed, timed[0]), "whatever its value"
    assert worst_gates([timed[0], timed[0]]) == (timed[0],) and worst_gates([]) == ()


class Wide(Doubler):
    """Eight shapes; four of them are most of the work."""

    def flops(self, workload):
        return 1 if int(workload.id[1:]) < 4 else 100


def met(light, heavy, screened):
    """The meeting on eight shapes at these times of a contender, the champion's being 1e-4, and the jobs it took."""
    operator, shapes = (
        Wide(),
        tuple(dataclasses.replace(request().measured[0], id=f"m{n}") for n in range(len(screened))),
    )
    champion = Champion(Entry("best", "its source", {}), 2.0, tuple(figures(w.id, 1e-4) for w in shapes))

    def change(frame):
        seconds = light if int(frame.data["workload"][1:]) < 4 else heavy
        rounds = [[[t, t], [t, t]] for t in (1e-4, seconds, 1e-4)]
        return dataclasses.replace(frame, data={**frame.data, "rounds": rounds})

    station = ScriptedStation(lambda job: answers(job, change))
    found = Findings(figures=[figures(w.id, seconds) for w, seconds in zip(shapes, screened, strict=True)])
    asked = dataclasses.replace(request(), operator=operator, measured=shapes)
    verdict = confirm(station, asked, found, Samples(operator), champion, 2.0)
    return verdict, found, [[w["id"] for w in job.data["workloads"]] for job, _ in station.jobs]


def test_many_shapes_meet_the_lightest_first_and_go_on_while_it_may_be_the_faster():
    light, heavy = [f"m{n}" for n in range(4)], [f"m{n}" for n in range(4, 8)]
    verdict, found, jobs = met(1.02e-4, 1e-4, [1e-4] * 8)
    assert jobs == [light] and not verdict.accepted and verdict.data()["whole"] is False
    assert [f.seconds for f in found.figures] == [1e-4] * 8, "as screened"
    verdict, found, jobs = met(1.02e-4, 0.9e-4, [1.02e-4] * 4 + [0.9e-4] * 4)
    assert jobs == [light, heavy] and verdict.accepted and "whole" not in verdict.data()
    assert found.figures[4].seconds == pytest.approx(0.9e-4)
    _, _, jobs = met(1e-4, 0.998e-4, [1e-4] * 4 + [0.998e-4] * 4)
    assert jobs == [light, heavy, light + heavy], "not surely the faster"
    verdict, _, jobs = met(0.99e-4, 1e-4, [0.97e-4] * 4 + [0.99e-4] * 4)
    assert jobs == [light] and not verdict.accepted, "screened two per cent too fast, the rest is none faster"
    assert met(1.02e-4, 1e-4, [1e-4] * 10)[2] == [[*light, "m4"]], "five, and five that are heavier"
    assert len(met(1.02e-4, 1e-4, [1e-4] * 7)[2][0]) == 7, "three are few"


def test_one_clearly_ahead_on_the_lightest_shapes_is_taken_as_screened_on_the_rest():
    light, heavy = [f"m{n}" for n in range(4)], [f"m{n}" for n in range(4, 8)]
    verdict, found, jobs = met(0.9e-4, 9.9e-4, [0.918e-4] * 4 + [0.969e-4] * 4)
    assert jobs == [light] and verdict.accepted
    assert verdict.data() | {"whole": False, "foreseen": True} == verdict.data()
    assert [f.seconds for f in found.figures] == pytest.approx([0.9e-4] * 4 + [0.95e-4] * 4)
    assert found.figures[7].tflops == pytest.approx(1 / 0.95e-4) and found.figures[7].diagnosis["foreseen"]
    assert verdict.ratio.value == pytest.approx((1 / 0.9 / 0.95) ** 0.5)
    half = 3.1824463 * 0.003 * 0.5 * math.sqrt(1 / 4 + 1 / 4)  # Student's of four shapes that agree, on half of all
    assert verdict.ratio.low == pytest.approx(verdict.ratio.value * math.exp(-half), rel=1e-6)
    assert verdict.ratio.high == pytest.approx(verdict.ratio.value * math.exp(half), rel=1e-6)
    _, _, jobs = met(0.99e-4, 1e-4, [0.97e-4, 1.01e-4] * 2 + [0.98e-4] * 4)
    assert jobs[:2] == [light, heavy], "screens that scatter so much tell too little"


def test_what_is_foreseen_is_as_uncertain_as_what_was_met_and_what_was_screened():
    paired, four = intervals.Ratio(1.1, 1.0, 1.2), [f"m{n}" for n in range(4)]
    held, contender = ({name: [[seconds]] for name in four} for seconds in (1.1, 1.0))
    screened = {f"m{n}": math.log(1.1) for n in range(10)}
    ratio, off = _foreseen(paired, held, contender, screened)
    half = math.hypot(3.1824463 * 0.003 * 0.6 * math.sqrt(1 / 6 + 1 / 4), 0.4 * math.log(1.2 / 1.1))
    assert off == pytest.approx(0, abs=1e-12) and ratio.value == pytest.approx(1.1)
    assert (ratio.low, ratio.high) == pytest.approx((1.1 * math.exp(-half), 1.1 * math.exp(half)), rel=1e-6)


SUITE = OPERATOR.suites["tiny"]
PLAUSIBLE = dataclasses.replace(INTERPRETED, part=dataclasses.replace(INTERPRETED.gpu, peaks={"bf16": 1e12}, hbm=1e12))
"""An interpreter: nothing is compiled ahead, and no clock is doubted."""


def rated(name, seconds):
    work = {"m64": 40960, "m32": 20480}[name]
    return WorkloadFigures(
        workload=name,
        seconds=seconds,
        tflops=work / seconds / 1e12,
        roofline_fraction=0.5,
        kind=FigureKind.MEASURED,
        diagnosis={"relative_error": 0.01},
    )


def champion(seconds):
    each = (rated("m64", seconds), rated("m32", seconds))
    return Champion(Entry("best", "its source", {}), geometric_mean(f.rate for f in each), each)


def station(times=(1e-4, 1e-4, 1e-4), held=None, **options):
    """Times of champion, contender and champion again; of a contender alone, the second."""

    def change(frame):
        if frame.kind != "timed":
            return frame
        rounds = frame.data["rounds"]
        chosen = times if len(rounds) == 3 else times[1:2]
        seconds = [
            [[t * (1 + (n + k) / 1e5) for k in range(len(c))] for n, c in enumerate(e)]
            for t, e in zip(chosen, rounds, strict=True)
        ]
        return dataclasses.replace(frame, data={**frame.data, "rounds": seconds})

    return ScriptedStation(lambda job: answers(job, change), champion=held, **options)


def judged(held, **options):
    cascade = MeasuredCascade(OPERATOR, PLAUSIBLE, SUITE, held)
    try:
        return cascade.evaluate("g", SOURCE, {"x": 1}, seed=7, **options)
    finally:
        cascade.close()


def test_the_first_is_crowned_unmet():
    held = station()
    found = judged(held)
    assert found.verdict is Verdict.OK, found.reason
    assert held.champion().entry.id == "g" and held.champion().entry.source == SOURCE
    assert held.champion().screens == 1.0
    assert held.claims == ["g", "released g"] and "confirmation" not in found.workloads[0].diagnosis
    assert held.champion().fitness == found.fitness and held.champion().figures == found.workloads
    assert found.interval[0] < found.fitness < found.interval[1]
    assert found.toolchain.keys() >= {"device", "cuda"} and "other" not in found.toolchain
    assert found.toolchain["cuda"] == "13" and len(held.jobs) == 2
    assert found.stage is Stage.MEASURE and found.spent["check"] >= 0
    timed = [r for r in found.gates if r.inputs.startswith("timed calls")]
    assert len(timed) == 1, "of the timed calls the lowest reading is kept"


@pytest.mark.parametrize(
    ("seconds", "meets"), [(1.1e-4, False), (1.0051e-4, False), (1.0049e-4, True), (1e-4, True), (0.5e-4, True)]
)
def test_who_screens_near_the_champion_meets_it(seconds, meets):
    held = station((1e-4, seconds, 1e-4), champion(1e-4))
    found = judged(held)
    assert found.verdict is Verdict.OK and (len(held.jobs) == 3) is meets
    assert held.claims == (["g", "released g"] if meets else [])
    assert ("confirmation" in found.workloads[0].diagnosis) is meets
    crowned = seconds < 0.9e-4
    assert held.champion().entry.id == ("g" if crowned else "best")
    if meets:
        confirmation = found.workloads[0].diagnosis["confirmation"]
        assert confirmation["accepted"] is crowned and confirmation["champion"] == "best"
        assert "calls" in found.workloads[0].diagnosis and "confirmation" not in found.workloads[1].diagnosis
    if seconds in (1e-4, 1.0049e-4):
        assert found.fitness == pytest.approx(champion(seconds).fitness, rel=1e-6), "as measured when they met"
    if crowned:
        assert found.fitness == pytest.approx(2 * champion(1e-4).fitness, rel=0.01)
        assert held.champion().fitness == pytest.approx(found.fitness)
        assert [f.workload for f in held.champion().figures] == ["m64", "m32"]


def test_what_is_not_confirmed_is_never_fitter_than_the_champion():
    """It screens at twice the speed and loses when they meet."""
    fast_alone = ScriptedStation(champion=champion(2e-4))
    found = judged(fast_alone)  # all three entries take 1e-4 there: no faster than the champion
    assert found.verdict is Verdict.OK and not found.workloads[0].diagnosis["confirmation"]["accepted"]
    assert found.fitness == fast_alone.champion().fitness == champion(2e-4).fitness
    assert fast_alone.champion().entry.id == "best"


def test_who_meets_the_champion_tells_by_what_screens_are_off():
    """Here all kernels screen one per cent faster than the champion's figures, the champion itself would too."""
    held = station((1e-4, 1e-4, 1e-4), champion(1.01e-4))
    assert not judged(held).workloads[0].diagnosis["confirmation"]["accepted"]
    assert held.champion().screens == pytest.approx(1 / 1.01, rel=1e-4) and held.champion().entry.id == "best"
    slower = station((1e-4, 1.006e-4, 1e-4), held.champion())
    found = judged(slower)
    assert len(slower.jobs) == 2, "it screens faster than the champion did, and is slower"
    assert found.fitness == pytest.approx(champion(1.006e-4).fitness / 1.01, rel=1e-4)
    again = station((1e-4, 1e-4, 1e-4), dataclasses.replace(champion(1.01e-4), screens=0.992))
    judged(again)
    assert again.champion().screens == pytest.approx((0.992 + 1 / 1.01) / 2, rel=1e-4), "of both meetings"
    wrong = station((1e-4, 1e-4, 1e-4), champion(1.2e-4))
    judged(wrong)
    assert wrong.champion().screens == pytest.approx(0.9851, abs=1e-4), "no more than that"


def test_who_fails_before_the_champion_fails():
    held = station(held=champion(1e-4))
    met = []

    def spoilt(job):
        def change(frame):
            if len(frame.data.get("rounds", ())) != 3:
                return frame
            met.append(frame)
            return dataclasses.replace(frame, arrays={**frame.arrays, "1/c": frame.arrays["1/c"] * 2})

        return answers(job, change)

    held._answer = spoilt
    found = judged(held)
    assert met and found.verdict is Verdict.INCORRECT and found.stage is Stage.CHECK
    assert held.claims == ["g", "released g"] and held.champion().entry.id == "best"


def test_the_champion_itself_and_parts_of_a_suite_meet_nobody():
    held = station(held=dataclasses.replace(champion(1e-4), entry=Entry("g", SOURCE, {})))
    assert judged(held).verdict is Verdict.OK and len(held.jobs) == 2
    held = station(held=champion(1e-4))
    assert judged(held, only=["m32", "m64"]).verdict is Verdict.OK and not held.claims
    alone = judged(station(), only=["m32"])
    assert alone.verdict is Verdict.OK and alone.fitness == pytest.approx(20480 / 1e-4 / 1e12, rel=1e-3)
    final = station(held=champion(1e-4))
    assert judged(final, scope=Scope.FINAL).workloads[0].workload == "m96" and not final.claims
    lost = station((1e-4, 1e-4, 1e-4), champion(1e-4))
    race = Race((Rung(("m32",), 0.0, 0.0),), (({}, 1.0),), {"m32": 0.0})
    assert judged(lost, race=race).verdict is Verdict.OUTPACED and not lost.claims


def test_a_contender_waits_its_turn_and_no_longer_than_a_claim(monkeypatch):
    waits = []
    monkeypatch.setattr(measured, "time", SimpleNamespace(sleep=waits.append))
    held = station((1e-4, 0.5e-4, 1e-4), champion(1e-4))
    held.free = False
    found = judged(held)
    assert found.verdict is Verdict.OK and found.fitness == champion(1e-4).fitness
    assert len(held.claims) == 360 and waits == [0.25] * 360 and len(held.jobs) == 2
    waits.clear()
    held = station(held=champion(1e-4))
    held.free = False
    monkeypatch.setattr(measured, "time", SimpleNamespace(sleep=lambda s: setattr(held, "free", True)))
    judged(held)
    assert held.claims == ["g", "g", "released g"]

    def dethroned(seconds):
        held.held = champion(1e-6)

    held = station(held=champion(1e-4))
    held.free = False
    monkeypatch.setattr(measured, "time", SimpleNamespace(sleep=dethroned))
    judged(held)
    assert held.claims == ["g"], "the new champion is too far ahead"


def test_a_champion_that_changed_while_waiting_is_the_one_to_meet():
    class Late(ScriptedStation):
        def claim(self, contender):
            self.held = champion(1e-6)
            return super().claim(contender)

    late = Late(champion=champion(1e-4))
    found = judged(late)
    assert len(late.jobs) == 2 and late.champion().fitness == champion(1e-6).fitness
    assert late.claims == ["g", "released g"] and found.verdict is Verdict.OK

    class Gone(ScriptedStation):
        def claim(self, contender):
            self.held = None
            return super().claim(contender)

    gone = Gone(champion=champion(1e-4))
    judged(gone)
    assert gone.champion().entry.id == "g" and len(gone.jobs) == 2


@pytest.mark.parametrize(("sampled", "lots"), [(False, ["MEASURED"]), (True, ["MEASURED", "LARGE"])])
def test_large_shapes_are_drawn_where_answers_are_sampled_and_compilers_count(sampled, lots):
    compiler = SimpleNamespace(cpu_seconds=3.0)
    cascade = MeasuredCascade(
        OPERATOR,
        TARGET,
        SUITE,
        object.__new__(LocalStation),
        compiler=compiler,
        samples=SimpleNamespace(sampled=sampled),
    )
    assert [lot for lot, _ in cascade._on_drawn()._lots] == [getattr(drawn_shapes, name) for name in lots]
    before = time.thread_time()
    assert before <= cascade._cpu_seconds() - 3.0 <= time.thread_time()
    cascade._compiler = None
    assert cascade._cpu_seconds() <= time.thread_time()


def test_a_large_drawn_shape_is_called_once_and_judged():
    asked = request(target=PLAUSIBLE, final=True)
    for factor, right in ((1.0, True), (1.1, False)):

        def change(frame, factor=factor):
            return dataclasses.replace(frame, arrays={n: a * np.float32(factor) for n, a in frame.arrays.items()})

        held = ScriptedStation(lambda job, change=change: answers(job, change))
        failure = MeasuredCascade(OPERATOR, PLAUSIBLE, SUITE, held)._sampled(asked, Findings())
        assert failure is None if right else failure.verdict is Verdict.INCORRECT
        ((job, _),) = held.jobs
        assert (job.data["rounds"], job.data["calls"]) == (1, 1)
        assert all(kinds == ["ones"] for kinds in job.data["kinds"].values())
        assert [w["id"] for w in job.data["workloads"]] == sorted(w.id for w in asked.checked)


def test_a_device_that_cannot_be_asked_leaves_its_versions_out():
    held = station()

    def hello():
        raise SessionDied("gone")

    held.hello = hello
    found = judged(held)
    assert found.verdict is Verdict.OK and "device" not in found.toolchain and "triton" in found.toolchain
    wrong = MeasuredCascade(OPERATOR, PLAUSIBLE, SUITE, station())
    rejected = wrong.evaluate("g", "import os\n", {}, seed=7)
    assert rejected.verdict is Verdict.REJECTED and "device" not in rejected.toolchain


def test_a_tpu_s_candidates_are_traced_by_forks_of_a_template(monkeypatch):
    started = []
    monkeypatch.setattr(measured, "pallas_template", lambda: started.append(1) or Spawn())
    MeasuredCascade(OPERATOR, PLAUSIBLE, SUITE, station()).close()
    assert not started
    MeasuredCascade(OPERATOR, load_target("tpu-v5e"), SUITE, station()).close()
    assert started


@pytest.mark.parametrize(
    ("shared", "host", "cell"),
    [
        (None, 0.0, {}),
        (0, 0.0, {"shared": "0+KiB"}),
        (64 * 1024, 0.0, {"shared": "0+KiB"}),
        (64 * 1024 + 1, 59e-6, {"shared": "64+KiB", "host": "under 60us"}),
        (128 * 1024, 60e-6, {"shared": "64+KiB", "host": "60us+"}),
        (129 * 1024, 1e-9, {"shared": "128+KiB", "host": "under 60us"}),
        (192 * 1024, 1.0, {"shared": "128+KiB", "host": "60us+"}),
        (227 * 1024, 1.0, {"shared": "192+KiB", "host": "60us+"}),
    ],
)
def test_a_cell_is_shared_memory_and_what_a_launch_costs(shared, host, cell):
    timed = rated("m64", 1.0)
    timed = timed.model_copy(update={"diagnosis": {"host_seconds": host}})
    found = Findings(claimed={} if shared is None else {"shared": str(shared)}, figures=[timed])
    assert measured._descriptors(found) == cell
    assert shape(64).id == timed.workload and TARGET.measured


def test_a_finalist_passes_the_gates_on_drawn_shapes():
    pytest.importorskip("triton")
    operator = softmax()
    seed = operator.kernels["seed"]
    with finalist(operator) as judge:
        found = judge(seed.source, declared(seed.source, "DEFAULTS"), 1)
    assert found.verdict is Verdict.OK and len(found.drawn) > 10, found.reason
