"""Promotion: what is refused and why, what is written, and that nothing half-done is left."""

import json

import pytest

from testkit.promote_campaign import (
    CHILD,
    OPERATOR,
    OTHER,
    SHAPES,
    FormulaPool,
    one_sentence,
    quick_child,
    run,
    write_campaign,
)
from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.command import Options, promote, record
from tilewright.evolve.promote.library_commands import list_lines
from tilewright.evolve.promote.verify import Refusal
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import normalise
from tilewright.fitness.evaluation import Verdict

# -- what is written ---------------------------------------------------------------------------------


def test_a_winner_is_verified_on_ten_times_the_inputs_and_written_whole(campaign, writer):
    pools: list[FormulaPool] = []

    def make(resolved):
        pools.append(FormulaPool(resolved, quick_child))
        return pools[-1]

    outcome = promote(campaign, writer, Options(), lambda line: None, make)
    jobs = pools[0].jobs
    mine = [job for job in jobs if job.genome == CHILD]
    assert len({job.seed for job in jobs}) == len(jobs) and pools[0].closed
    # a round of the final check reads the one kind of inputs on one check shape and on a measured one
    assert 2 * sum(job.scope == "final" for job in mine) >= 10
    assert all(job.best == 0.0 for job in mine), "every round passes the harder check"
    version, receipt, dispatch = writer.version(OPERATOR)
    assert version == outcome.version
    entry = receipt["targets"]["tpu7x"]
    assert entry["gain"]["value"] == pytest.approx(2.0)
    assert (entry["gain"]["kind"], entry["gain"]["incumbents"]) == ("modelled", "whole")
    assert [s["workload"] for s in entry["shapes"]] == ["256x256x512", "512x256x512"]
    assert entry["candidates"][0]["genome"] == CHILD.id
    assert len(entry["candidates"][0]["gate_seeds"]) == len(mine)
    assert entry["forced"] is None and entry["overruled"] is None
    kernel = dispatch["targets"]["tpu7x"]["kernels"][CHILD.id]
    text = writer.source(OPERATOR, version, kernel)
    assert normalise(text) == normalise(CHILD.source)
    assert entry["campaign"]["id"] == "tiny-001"
    assert entry["candidates"][0]["lineage"][0] == "#0 seed: seed kernel tiled"
    assert all(line.startswith("#") for line in text.split('"""')[0].splitlines())
    ranges = {"jax": ["0.10.2", "0.11"], "libtpu": ["0.0.51", "0.0.52"]}
    assert dispatch["targets"]["tpu7x"]["toolchain"] == ranges


def test_a_promotion_is_noted_in_the_journal_and_is_no_part_of_the_campaigns_time(campaign, writer):
    from tilewright.evolve.report.data import load

    with Journal(campaign / JOURNAL) as journal:
        before = load(journal).elapsed
    outcome = run(campaign, writer)
    assert record(outcome.promotion, str(outcome.version)) is None
    with Journal(campaign / JOURNAL) as journal:
        event = journal.events()[-1]
        assert load(journal).elapsed == before and load(journal).state == "finished"
    assert event.kind == "promoted" and event.detail["version"] == outcome.version


def test_the_next_winner_is_compared_with_the_incumbent(campaign, writer):
    run(campaign, writer)
    outcome = run(campaign, writer, Options(candidate="2"))
    assert outcome.judgement.gain == pytest.approx(50 / 40)
    assert outcome.judgement.incumbents == f"library's {CHILD.id}"
    with pytest.raises(Refusal, match="candidate 2 already serves"):
        run(campaign, writer, Options(candidate=OTHER.id[:8]))


def test_a_campaign_whose_seed_is_gone_is_promoted(tmp_path, writer):
    assert run(write_campaign(tmp_path / "old", seeds=["gone"]), writer).version


def test_a_table_gives_each_shape_its_kernel(campaign, writer, tmp_path):
    def seconds(genome, workload):
        fast = CHILD if workload == "256x256x512" else OTHER
        return 50e-6 if genome == fast else 70e-6

    table = tmp_path / "table.json"
    chosen = zip(SHAPES, (CHILD, OTHER), strict=True)
    table.write_text(json.dumps({"entries": [{"workload": {"id": w}, "genome": g.id} for w, g in chosen]}))
    outcome = run(campaign, writer, Options(table=table), seconds)
    entry = writer.version(OPERATOR)[2]["targets"]["tpu7x"]
    assert [r["kernel"] for r in entry["regions"]] == [CHILD.id, OTHER.id]
    assert len({k["file"] for k in entry["kernels"].values()}) == 1, "one source, two sets of parameters"
    assert outcome.judgement.gain == pytest.approx(70 / 50)
    table.write_text('{"entries": [')
    with pytest.raises(UserError, match=r"--table: .* is no dispatch table"):
        run(campaign, writer, Options(table=table))


def test_regions_of_other_shapes_stay(campaign, writer):
    run(campaign, writer)
    version, receipt, dispatch = writer.version(OPERATOR)
    entry = dispatch["targets"]["tpu7x"]
    entry["regions"].append({"workload": "tall", "dims": {"M": 4096, "N": 128, "K": 128}, "kernel": CHILD.id})
    name = entry["kernels"][CHILD.id]
    files = {name["file"]: writer.file(OPERATOR, version, name["file"], name["sha256"])}
    files["dispatch.json"] = json.dumps(dispatch).encode()
    with writer.writing():
        writer.add(OPERATOR, files, {**receipt, "files": None}, {"action": "promote"})
    run(campaign, writer, Options(candidate="2"))
    entry = writer.version(OPERATOR)[2]["targets"]["tpu7x"]
    wanted = {"256x256x512": OTHER.id, "512x256x512": OTHER.id, "tall": CHILD.id}
    assert {r["workload"]: r["kernel"] for r in entry["regions"]} == wanted
    assert set(entry["kernels"]) == {CHILD.id, OTHER.id}


def test_what_is_surely_faster_on_a_shape_keeps_it(campaign, writer):
    """Only what a library serves stays; a promotion that gains nowhere else is refused."""
    run(campaign, writer)

    def half(genome, workload):
        faster = OTHER if workload == "256x256x512" else CHILD
        return 50e-6 if genome == faster else 100e-6

    outcome = run(campaign, writer, Options(candidate="2"), half)
    entry = writer.version(OPERATOR)[2]["targets"]["tpu7x"]
    wanted = {"256x256x512": OTHER.id, "512x256x512": CHILD.id}
    assert {r["workload"]: r["kernel"] for r in entry["regions"]} == wanted
    assert outcome.judgement.gain == pytest.approx(2**0.5)
    assert set(entry["kernels"]) == set(wanted.values())


# -- what is refused ---------------------------------------------------------------------------------


def loses_six_percent(genome, workload):
    """Twice as fast on one shape, 6 % slower on the other."""
    if genome != CHILD:
        return 100e-6
    return 50e-6 if workload == "256x256x512" else 100e-6 / 0.94


def not_repeated(job, found):
    seconds = [f.seconds * (1 + job.index) for f in found.workloads]
    slower = zip(found.workloads, seconds, strict=True)
    return found.model_copy(update={"workloads": tuple(f.model_copy(update={"seconds": s}) for f, s in slower)})


def wrong_later(job, found):
    wrong = {"verdict": Verdict.INCORRECT, "fitness": None, "reason": "gate exact on spread: 30.0 dB"}
    return found.model_copy(update=wrong) if job.genome == CHILD and job.index >= 3 else found


def unread(job, found):
    return found.model_copy(update={"gates": tuple(r for r in found.gates if r.workload != SHAPES[1])})


REFUSED = {
    "a shape that loses": (
        "tpu7x",
        {"seconds": loses_six_percent},
        r"512x256x512 loses 6\.0 % against whole.*modelled.*more than 5 %",
        True,
    ),
    "wrong when it is verified": (
        "tpu7x",
        {"spoil": wrong_later},
        r"candidate 1 fails its re-verification: incorrect .*30\.0 dB",
        False,
    ),
    "figures that do not repeat": ("tpu7x", {"spoil": not_repeated}, "should repeat exactly", None),
    "a shape without a reading of its gates": (
        "tpu7x",
        {"spoil": unread},
        rf"was not checked on {SHAPES[1]}: no gate was read there\.",
        False,
    ),
    "a measured gain within the noise": (
        "h200",
        {"seconds": lambda *_: 1e-4},
        r"measured, 95 % interval 0\.99.* to 1\.0.*\) is no gain",
        None,
    ),
    "one that fails while it is timed": (
        "h200",
        {"failed": {CHILD.id: "timeout: silence"}},
        "candidate 1 fails while it is timed: timeout",
        None,
    ),
}
"""Target, what the pool is told, what is said, and whether a reason given counts (None: either)."""


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_faster_or_not_right_is_refused(tmp_path, writer, why):
    target, overrides, message, forceable = REFUSED[why]
    folder = write_campaign(tmp_path / "home", target=target)
    for reason in (None, *(["I insist"] if forceable is False else [])):
        with pytest.raises(Refusal, match=message) as refused:
            run(folder, writer, Options(force_reason=reason), **overrides)
        assert one_sentence(str(refused.value))
    assert not writer.root.exists(), "a refused promotion writes nothing"


def test_a_forced_promotion_says_so_for_ever(campaign, writer):
    outcome = run(campaign, writer, Options(force_reason="only used on small shapes"), loses_six_percent)
    entry = writer.version(OPERATOR)[1]["targets"]["tpu7x"]
    assert entry["forced"] == "only used on small shapes" and "loses 6.0 %" in entry["overruled"]
    assert writer.index(OPERATOR)["history"][-1]["forced"] == "only used on small shapes"
    assert "forced: only used on small shapes" in next(iter(list_lines(writer)))
    record(outcome.promotion, str(outcome.version))
    with Journal(campaign / JOURNAL) as journal:
        assert journal.events()[-1].detail["forced"] == "only used on small shapes"
    with pytest.raises(UserError, match="--force-reason"):
        run(campaign, writer, Options(force_reason=" "))


def test_a_library_kernel_that_fails_now_sets_no_bar(campaign, writer):
    run(campaign, writer)

    def spoil(job, evaluation):
        assert bool(job.within) == (job.genome == CHILD), "what is served is judged where it serves"
        changes = {"verdict": Verdict.CRASHED, "fitness": None, "reason": "drawn/M=122: illegal instruction"}
        return evaluation.model_copy(update=changes) if job.genome == CHILD else evaluation

    outcome = run(campaign, writer, Options(candidate="2"), spoil=spoil)
    assert outcome.judgement.incumbents == "whole"
    ((name, reason),) = outcome.promotion.refused.items()
    assert name == f"library's {CHILD.id}" and "illegal instruction" in reason


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("tpu7x", {"candidate": "9"}, "--candidate: '9' is unknown"),
        ("tpu7x", {"suite": "huge"}, "suite: 'huge' is unknown"),
        ("tpu7x", {"against": "nobody"}, "--against: 'nobody' is no baseline or seed"),
        ("tpu7x", {"name": "no-slash"}, "operator 'no-slash' must be family/recipe"),
        ("tpu7x", {"name": "../up"}, "operator '../up' must be"),
        ("interpreter", {}, "by Triton's interpreter alone (target interpreter)"),
    ],
)
def test_what_cannot_be_promoted_is_one_sentence(tmp_path, writer, target, options, words):
    with pytest.raises(UserError) as refused:
        run(write_campaign(tmp_path / "home", target=target), writer, Options(**options))
    assert words in str(refused.value) and one_sentence(str(refused.value))
    assert not writer.root.exists()


def test_measured_gains_are_paired_and_have_intervals(tmp_path, writer):
    folder = write_campaign(tmp_path / "measured", target="h200")
    entries = [{"workload": {"id": "256x256x512"}, "genome": OTHER.id}]
    (folder / "dispatch.json").write_text(json.dumps({"entries": entries}))
    outcome = run(folder, writer)
    (shape,) = outcome.judgement.shapes
    assert shape.genome == OTHER.id, "the campaign's own dispatch table"
    low, high = shape.gain_interval
    assert low < 2.5 < high and high - low < 0.2, "drift of 10 % cancels in pairs"
    assert outcome.judgement.interval[0] > 2.3
    entry = writer.version(OPERATOR)[2]["targets"]["h200"]
    assert (entry["kind"], entry["serves"]) == ("measured", ["cuda:9.0"])
    assert writer.version(OPERATOR)[1]["targets"]["h200"]["shapes"][0]["kind"] == "measured"


def test_what_another_device_of_the_architecture_was_promoted_for_is_compared_and_replaced(tmp_path, writer):
    folder = write_campaign(tmp_path / "measured", target="h200")
    run(folder, writer, Options(candidate="2"))
    version, receipt, dispatch = writer.version(OPERATOR)
    kernels = dispatch["targets"]["h200"]["kernels"].values()
    files = {k["file"]: writer.file(OPERATOR, version, k["file"], k["sha256"]) for k in kernels}
    for document in (receipt, dispatch):
        document["targets"] = {"sister": document["targets"]["h200"]}
    files["dispatch.json"] = json.dumps(dispatch).encode()
    short_receipt = {k: receipt[k] for k in ("format", "operator", "targets")}
    with writer.writing():
        writer.add(OPERATOR, files, short_receipt, {"action": "test"})
    outcome = run(folder, writer, Options(candidate="1", force_reason="a test"))
    assert outcome.judgement.incumbents == f"library's {OTHER.id}", "what the device is served now"
    _, receipt, dispatch = writer.version(OPERATOR)
    assert list(dispatch["targets"]) == list(receipt["targets"]) == ["h200"], "which alone the device would find"
