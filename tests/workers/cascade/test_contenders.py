"""Contenders and the champion: who meets it, who is crowned, and what a fitness is without having met it."""

import dataclasses
from types import SimpleNamespace

import pytest

from testkit.scripted import INTERPRETED, SOURCE, TARGET, Doubler, ScriptedStation, answers, shape
from tilewright.fitness.evaluation import FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.fitness.race import Race, Rung
from tilewright.fitness.score import geometric_mean
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import Scope
from tilewright.workers.cascade import measured
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.child.launch import Spawn
from tilewright.workers.child.session import SessionDied
from tilewright.workers.device.station import Champion, Entry
from tilewright.workers.request import Findings

OPERATOR = Doubler()
SUITE = OPERATOR.suites["tiny"]
PLAUSIBLE = dataclasses.replace(
    INTERPRETED, part=dataclasses.replace(INTERPRETED.gpu, peaks={"bf16": 1e12}, hbm=1e12)
)
"""An interpreter: nothing is compiled ahead, and no clock is doubted."""


def figures(name, seconds):
    work = {"m64": 40960, "m32": 20480}[name]
    return WorkloadFigures(
        workload=name, seconds=seconds, tflops=work / seconds / 1e12, roofline_fraction=0.5,
        kind=FigureKind.MEASURED, diagnosis={"relative_error": 0.01},
    )  # fmt: skip


def champion(seconds):
    each = (figures("m64", seconds), figures("m32", seconds))
    return Champion(Entry("best", "its source", {}), geometric_mean(f.rate for f in each), each)


def station(times=(1e-4, 1e-4, 1e-4), held=None, **options):
    """Times of champion, contender and champion again; of a contender alone, the second."""

    def change(frame):
        if frame.kind != "timed":
            return frame
        rounds = frame.data["rounds"]
        chosen = times if len(rounds) == 3 else times[1:2]
        said = [
            [[t * (1 + (n + k) / 1e5) for k in range(len(c))] for n, c in enumerate(e)]
            for t, e in zip(chosen, rounds, strict=True)
        ]
        return dataclasses.replace(frame, data={**frame.data, "rounds": said})

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
    assert held.claims == ["g", "released g"] and "confirmation" not in found.workloads[0].diagnosis
    assert held.champion().fitness == found.fitness and held.champion().figures == found.workloads
    assert found.interval[0] < found.fitness < found.interval[1]
    assert found.toolchain.keys() >= {"device", "cuda"} and "other" not in found.toolchain
    assert found.toolchain["cuda"] == "13" and len(held.jobs) == 2
    assert found.stage is Stage.MEASURE and found.spent["check"] >= 0
    timed = [r for r in found.gates if r.inputs.startswith("timed calls")]
    assert len(timed) == 1, "of the timed calls the lowest reading is kept"


@pytest.mark.parametrize(
    ("seconds", "meets"),
    [(1.1e-4, False), (1.0051e-4, False), (1.0049e-4, True), (1e-4, True), (0.5e-4, True)],
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
        told = found.workloads[0].diagnosis["confirmation"]
        assert told["accepted"] is crowned and told["champion"] == "best"
        assert "calls" in found.workloads[0].diagnosis and "confirmation" not in found.workloads[1].diagnosis
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
    for options in ({"only": ["m32", "m64"]}, {"scope": Scope.TIMELINE}):
        held = station(held=champion(1e-4))
        assert judged(held, **options).verdict is Verdict.OK and not held.claims
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
    timed = figures("m64", 1.0)
    timed = timed.model_copy(update={"diagnosis": {"host_seconds": host}})
    found = Findings(claimed={} if shared is None else {"shared": str(shared)}, figures=[timed])
    assert measured._descriptors(found) == cell
    assert shape(64).id == timed.workload and TARGET.measured
