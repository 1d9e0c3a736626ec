"""Which shapes a kernel must be right on beside the checked ones, and what a second look makes of a wrong sample."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from testkit.scripted import Doubler
from tilewright.fitness.evaluation import GateReading, Verdict
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu.structure import ModuleFacts
from tilewright.seeds.operator import Workload
from tilewright.workers.cascade import verify_shapes
from tilewright.workers.cascade.verify_shapes import Shapes, VerifyStage, to_verify, too_large
from tilewright.workers.request import Failure, Findings, Limits, Request, Truth

GIB = (1 << 30) - (1 << 21)  # room for what the elements of small shapes count as


class Sized(Doubler):
    """Work in units of 2^30 FLOP is the shape's number."""

    def flops(self, workload):
        return workload.dims["G"] * GIB

    def inputs(self, workload, variant=None):
        return super().inputs(small(workload))

    def outputs(self, workload):
        return super().outputs(small(workload))


def small(workload):
    return Workload(workload.id, {"M": workload.dims.get("M", 64)})


def of(work, name=""):
    return Workload(name or f"g{work}", {"G": work})


OPERATOR = Sized()
CHECKED = (of(0, "checked"),)


def request(**changes):
    fields = {
        "target": load_target("tpu7x"),
        "limits": Limits(),
        "seed": 7,
        "measured": (of(3), of(5)),
        "source": "text",
        "params": {},
        "checked": CHECKED,
        "folder": Path("nowhere"),
        "unmeasured": (of(2, "final2"), of(30, "final30"), *CHECKED),
    }
    return Request(operator=OPERATOR, truth=Truth(OPERATOR), **{**fields, **changes})


def findings(**signatures):
    """What each shape's kernels are made of; ``dot`` for those not named."""
    names = ("checked", "g3", "g5", "g1", "a", "b")
    return Findings(
        facts={
            name: ModuleFacts("f", {}, [], 0, [], [], [{"signature": [signatures.get(name, "dot")]}]) for name in names
        },
        sources={"checked": "source"},
    )


def names(shapes):
    return ([w.id for w in shapes.whole], [w.id for w in shapes.sampled])


def test_a_candidate_in_midfield_is_not_looked_at_again():
    shapes = to_verify(request(), findings(), best=False)
    assert names(shapes) == ([], []) and not shapes
    assert Shapes((of(1),)) and Shapes((), (of(1),)) and Shapes.__dataclass_params__.frozen


def test_other_kinds_of_operations_are_looked_at():
    assert names(to_verify(request(), findings(g5="exp"), best=False)) == ([], ["g5"])
    assert names(to_verify(request(), findings(checked="exp"), best=False)) == ([], ["g3", "g5"])
    two = request(checked=(*CHECKED, of(0, "a")))
    assert names(to_verify(two, findings(checked="exp", a="dot"), best=False)) == ([], [])
    unknown = dataclasses.replace(findings(), facts={k: v for k, v in findings().facts.items() if k != "checked"})
    assert names(to_verify(request(), unknown, best=False)) == ([], ["g3", "g5"])


def test_what_is_cheap_is_always_looked_at():
    cheap = request(measured=(of(1), of(0, "a")))
    whole, sampled = names(to_verify(cheap, findings(), best=False))
    assert (whole, sampled) == (["g1", "a"], []), "2^30 FLOP together"
    dear = request(measured=(of(1), dataclasses.replace(of(1), id="a")))
    assert names(to_verify(dear, findings(), best=False)) == ([], [])
    wide = request(measured=(Workload("a", {"M": 1 << 22, "G": 0}),))
    assert names(to_verify(wide, findings(), best=False)) == ([], []), "2^22 elements and more, no FLOP"
    checked_too = request(measured=(of(1), CHECKED[0]))
    assert names(to_verify(checked_too, findings(), best=False)) == (["g1"], [])


def test_a_new_best_is_looked_at_on_all_measured_and_some_others():
    """Four units of work are done whole; which, the seed and the kernel decide."""
    seen = set()
    for seed in range(30):
        whole, sampled = names(to_verify(request(seed=seed), findings(), best=True))
        assert sorted(whole + sampled) in (["final2", "g3", "g5"], ["g3", "g5"])
        assert set(whole) in ({"g3"}, {"final2"}) and "g5" in sampled and "final2" not in sampled
        again = names(to_verify(request(seed=seed), findings(), best=True))
        assert again == (whole, sampled)
        seen.add(tuple(whole))
    assert len(seen) == 2
    by_source = set()
    for source in range(30):
        result = findings()
        result.sources = {"checked": str(source)}
        by_source.add(tuple(names(to_verify(request(), result, best=True))[0]))
    assert len(by_source) == 2


def test_a_finalist_is_looked_at_everywhere():
    whole, sampled = names(to_verify(request(final=True), findings(), best=True))
    assert (whole, sampled) == (["g3", "g5", "final2"], ["final30"]), "12 units whole"
    final = request(final=True, measured=(of(12, "a"),), unmeasured=())
    assert names(to_verify(final, findings(), best=True)) == (["a"], [])
    final = request(final=True, measured=(of(13, "a"),), unmeasured=())
    assert names(to_verify(final, findings(), best=True)) == ([], ["a"])
    best = request(measured=(of(4, "a"),), unmeasured=())
    assert names(to_verify(best, findings(), best=True)) == (["a"], [])
    best = request(measured=(of(5, "a"),), unmeasured=())
    assert names(to_verify(best, findings(), best=True)) == ([], ["a"])
    odd = request(measured=(of(3), of(5)), unmeasured=())
    assert names(to_verify(odd, findings(g3="exp"), best=True))[1] == ["g5"], "each once"


def test_what_is_too_large_is_said():
    huge = Workload("huge", {"G": 1, "M": (3 << 29) // 256})
    assert too_large(OPERATOR, huge) is None, "1.5 GiB of operands"
    above = Workload("huge", {"G": 1, "M": (3 << 29) // 256 + 1})
    assert too_large(OPERATOR, above) == "its operands are 1.5 GiB, at most 1.5 are made"
    double = Workload("huge", {"G": 1, "M": (3 << 30) // 256})
    assert too_large(OPERATOR, double) == "its operands are 3.0 GiB, at most 1.5 are made"
    reason = "its answers take too long, and the operator has no oracle_at for some of them"
    assert too_large(OPERATOR, of(512)) is None and too_large(OPERATOR, of(514)) == reason

    class Spot(Sized):
        def oracle_at(self, workload, inputs, where):
            return {}

    assert too_large(Spot(), of(514)) is None and too_large(Spot(), double) is not None
    dear = request(measured=(of(5), of(600)), final=True, unmeasured=())
    result = findings()
    result.facts["g600"] = result.facts["g5"]
    assert names(to_verify(dear, result, best=True)) == (["g5"], [])


# -- the second look -----------------------------------------------------------------------------------

WRONG = Failure(Verdict.INCORRECT, "wrong")


class Looks:
    """Stands in for the children: each look answers with the shapes that are wrong then."""

    def __init__(self, monkeypatch, *answers, traced=None):
        self.asked, self._answers = [], list(answers)
        monkeypatch.setattr(verify_shapes, "trace", lambda request, found: traced)
        monkeypatch.setattr(verify_shapes, "check", self._check)

    def _check(self, request, found):
        self.asked.append(request)
        wrong = self._answers.pop(0)
        for workload in request.checked:
            fine = workload.id not in wrong
            found.gates.append(GateReading(gate="exact", inputs="randn", value=50.0, passed=fine, workload=workload.id))
            if not fine:
                return WRONG
        return WRONG if "any" in wrong else None


SHAPES = Shapes((of(1, "w1"), of(2, "w2")), (of(30, "s1"), of(20, "s2")))


def looked(looks, asked=None, shapes=SHAPES):
    found = findings()
    found.gates = [GateReading(gate="exact", inputs="randn", value=50.0, passed=True, workload="checked")]
    return VerifyStage(shapes).run(asked or request(), found), [r.workload for r in found.gates]


def test_all_shapes_are_looked_at_in_one_child(monkeypatch):
    looks = Looks(monkeypatch, set())
    assert looked(looks) == (None, ["checked", "w1", "w2", "s1", "s2"])
    (asked,) = looks.asked
    assert asked.measured == () and asked.checked == asked.large_checks == (*SHAPES.whole, *SHAPES.sampled)
    assert asked.sampled.keys() == {"s1", "s2"} and asked.whole_axes == {}
    assert asked.is_known("anything") is None and not asked.final
    assert all(len(axes) == 2 for where in asked.sampled.values() for axes in where.values())


def test_places_are_drawn_anew_for_every_kernel_and_seed(monkeypatch):
    wide = Shapes((), (Workload("s1", {"G": 30, "M": 4096}),))

    def places(seed=7, source="source"):
        looks = Looks(monkeypatch, set())
        found = findings()
        found.sources = {"checked": source}
        VerifyStage(wide).run(request(seed=seed), found)
        return tuple(looks.asked[0].sampled["s1"]["c"][0])

    assert places() == places() and len({places(), places(8), places(7, "other")}) == 3
    assert 4095 in places() and len(places()) <= 192


def test_a_trace_that_fails_ends_it(monkeypatch):
    looks = Looks(monkeypatch, traced=WRONG)
    assert looked(looks) == (WRONG, ["checked"]) and not looks.asked


@pytest.mark.parametrize("wrong", ["w1", "w2"])
def test_what_is_wrong_as_a_whole_is_wrong(monkeypatch, wrong):
    looks = Looks(monkeypatch, {wrong})
    failure, read = looked(looks)
    assert failure is WRONG and read[-1] == wrong and len(looks.asked) == 1


def test_a_wrong_sample_is_looked_at_once_more_with_all_its_steps(monkeypatch):
    looks = Looks(monkeypatch, {"s1"}, set())
    assert looked(looks) == (None, ["checked", "w1", "w2", "s1", "s2"])
    first, second = looks.asked
    assert [w.id for w in second.checked] == ["s1", "s2"] and second.sampled.keys() == {"s1", "s2"}
    assert (
        second.whole_axes == dict.fromkeys(("s1", "s2"), second.operator.input_kinds)
        and second.final
        and not first.final
    )
    assert all(np.array_equal(second.sampled["s1"]["c"][n], first.sampled["s1"]["c"][n]) for n in range(2))
    looks = Looks(monkeypatch, {"s2"}, {"s2"})
    assert looked(looks) == (WRONG, ["checked", "w1", "w2", "s1", "s2"])
    assert [w.id for w in looks.asked[1].checked] == ["s2"]


def test_a_child_that_fails_without_a_reading_is_not_asked_about_what_passed(monkeypatch):
    looks = Looks(monkeypatch, {"any"})
    assert looked(looks) == (WRONG, ["checked", "w1", "w2", "s1", "s2"])
    assert len(looks.asked) == 1, "no sample is left to look at"


def test_a_finalist_s_grid_is_left_whole_where_there_is_work_for_it(monkeypatch):
    for work, kept in (((30, 20), {"s1", "s2"}), ((100, 60), {"s1", "s2"}), ((101, 60), {"s2"}), ((20, 161), {"s1"})):
        shapes = Shapes((), tuple(of(n, f"s{place}") for place, n in enumerate(work, 1)))
        looks = Looks(monkeypatch, set())
        looked(looks, request(final=True), shapes)
        assert looks.asked[0].whole_axes.keys() == kept, work
    looks = Looks(monkeypatch, set())
    looked(looks, request(), shapes)
    assert looks.asked[0].whole_axes == {}
