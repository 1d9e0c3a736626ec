"""Rechecks: everyone answers again here; who fails is no longer served, and losses are told."""

import json
from collections.abc import Callable

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
from tilewright.evolve.promote import library_commands
from tilewright.evolve.promote.command import Options
from tilewright.evolve.promote.library_commands import add_plans
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.recheck import recheck_library
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.library import plan_shelf, store
from tilewright.library.loaded import served
from tilewright.workers.cluster.jobs import Job

Spoil = Callable[[Job, Evaluation], Evaluation]
NEWER = {"jax": "0.11.2", "libtpu": "0.0.60"}


@pytest.fixture
def writer(writer, campaign):
    """A library where ``CHILD`` was promoted first and ``OTHER`` serves now."""
    run(campaign, writer)
    run(campaign, writer, Options(candidate="2"))
    return writer


def with_newer_tools(job, evaluation):
    return evaluation.model_copy(update={"toolchain": NEWER})


def failing(*genomes):
    """Answers of these are wrong with the newer tools."""

    def spoil(job, evaluation):
        if job.genome not in genomes:
            return with_newer_tools(job, evaluation)
        return evaluation.model_copy(
            update={"verdict": Verdict.INCORRECT, "reason": "gate exact: 12.0 dB on randn, 40.0 are needed"}
        )

    return spoil


class OneByOne(FormulaPool):
    """Answers one job at a time, so that a kernel's refusal leaves others under way."""

    def wait(self, timeout_seconds):
        job = self._waiting.pop(0)
        return [(job.index, self.spoil(job, self._evaluation(job)))]


def recheck(writer, spoil=with_newer_tools, seconds=quick_child, target="tpu7x"):
    make = lambda resolved: OneByOne(resolved, seconds, spoil)  # noqa: E731
    found = list(recheck_library(writer, OPERATOR, target, make, lambda line: None))
    assert all(one_sentence(finding.sentence) for finding in found)
    return found


def limits(dispatch):
    return tuple(dispatch["targets"]["tpu7x"]["kernels"][OTHER.id]["constraints"])


def table(writer):
    regions = writer.version(OPERATOR)[2]["targets"]["tpu7x"]["regions"]
    return {region["workload"]: region["kernel"] for region in regions}


def test_a_sound_table_gets_a_version_that_says_what_was_verified_where(writer):
    before, _, table = writer.version(OPERATOR)
    served_before, asked = limits(table), set()

    def spoil(job, evaluation):
        asked.add(job.within)
        return with_newer_tools(job, evaluation)

    (finding,) = recheck(writer, spoil)
    version, receipt, dispatch = writer.version(OPERATOR)
    assert served_before and asked == {served_before}, "shapes by lot lie within what the table serves"
    assert set(served_before) == set(limits(dispatch)), "and the same is served afterwards"
    assert finding.good and version != before and version in finding.sentence
    assert "+0.0 % against their receipts" in finding.sentence and "jax 0.11.2" in finding.sentence
    record = receipt["targets"]["tpu7x"]
    assert record["rechecked"]["version"] == before and record["rechecked"]["on"] == "jax 0.11.2, libtpu 0.0.60"
    (candidate,) = record["candidates"]
    assert candidate["toolchain"] == NEWER and candidate["gate_seeds"] and candidate["gates"]
    assert candidate["lineage"], "and where the kernel comes from"
    assert [(s["change"], s["before"]["seconds"]) for s in record["shapes"]] == [(0.0, 40e-6)] * 2
    ranges = dispatch["targets"]["tpu7x"]["toolchain"]
    assert ranges == {"jax": ["0.11.2", "0.12"], "libtpu": ["0.0.60", "0.0.61"]}
    service = served(OPERATOR, "interpret", (256, 256, 512), writer.kernels)
    assert dict(service.verified_on) == NEWER and service.seconds == 40e-6 and service.exact
    assert writer.index(OPERATOR)["history"][-1]["action"] == "recheck"
    assert library_commands.rollback(writer, OPERATOR, None, None) == (version, before)


def test_a_kernel_that_fails_is_dropped(tmp_path, campaign):
    """Two kernels serve a shape each; the one that fails here is dropped, its file with it, and the other serves."""
    writer = LibraryWriter(tmp_path / "library")
    both = tmp_path / "table.json"
    chosen = [{"workload": w, "genome": g.id} for w, g in zip(SHAPES, (CHILD, OTHER), strict=True)]
    both.write_text(json.dumps({"entries": chosen}))
    run(campaign, writer, Options(table=both))
    broken, summary = recheck(writer, failing(OTHER))
    assert not broken.good and summary.good
    assert f"kernel {OTHER.id} is no longer served" in broken.sentence and "12.0 dB" in broken.sentence
    assert f"no kernel serves {SHAPES[1]}: run a campaign" in broken.sentence
    assert table(writer) == {SHAPES[0]: CHILD.id}
    _, receipt, dispatch = writer.version(OPERATOR)
    entry = dispatch["targets"]["tpu7x"]
    assert list(entry["kernels"]) == [CHILD.id]
    kept = {entry["kernels"][CHILD.id]["file"]}
    assert {name for name in receipt["files"] if name.startswith("tpu7x_")} == kept
    assert receipt["targets"]["tpu7x"]["rechecked"]["failed"].keys() == {OTHER.id}
    source = store.load_table(OPERATOR, "interpret", writer.kernels).choose((256, 256, 512)).kernel.source()
    assert "pallas" in source


def test_where_nothing_passes_nothing_is_served(writer):
    found = recheck(writer, failing(OTHER))
    assert not all(finding.good for finding in found)
    assert "no kernel serves 256x256x512, 512x256x512" in found[0].sentence
    with pytest.raises(store.NotServed):
        store.load_table(OPERATOR, "interpret", writer.kernels)
    assert writer.index(OPERATOR)["current"] is None
    assert writer.index(OPERATOR)["history"][-1]["dropped"] == list(SHAPES)


def test_a_loss_is_told(writer):
    *slow, summary = recheck(writer, seconds=lambda genome, workload: 60e-6)
    assert [s.sentence.split(" takes ")[1][:40] for s in slow] == ["60.00 us here, 50.0 % more than the 40.0"] * 2
    assert "+50.0 % against their receipts in the geometric mean" in summary.sentence
    assert all(f.good for f in (*slow, summary)) and set(table(writer).values()) == {OTHER.id}


def test_what_was_promoted_elsewhere_or_changed_meanwhile_is_refused(writer, campaign):
    with pytest.raises(UserError, match="not promoted for v6e"):
        recheck(writer, target="v6e")
    with pytest.raises(UserError, match="times nothing"):
        recheck(writer, target="gfx950")

    def meanwhile(job, evaluation):
        if writer.index(OPERATOR)["history"][-1]["action"] != "rollback":
            library_commands.rollback(writer, OPERATOR, None, None)
        return evaluation

    with pytest.raises(UserError, match="changed while it was rechecked"):
        recheck(writer, meanwhile)


def test_on_a_device_times_are_those_of_the_comparison(tmp_path):
    """On a device every kernel is timed in rounds; what another compiler made of it is left out."""
    writer, folder = LibraryWriter(tmp_path / "library"), write_campaign(tmp_path / "home", target="h200")
    run(folder, writer)
    for triton in ("3.6.0", "3.7.1"):
        name = plan_shelf.pack_name("h200", {"triton": triton})
        add_plans(writer, OPERATOR, name, plan_shelf.packed({}, {"triton": triton}))

    def here(job, evaluation):
        return evaluation.model_copy(update={"toolchain": {"triton": "3.7.1", "device": "NVIDIA H200 NVL"}})

    slow, *_, summary = recheck(writer, here, lambda genome, workload: 55e-6, target="h200")
    assert "% more than the" in slow.sentence and "(h200, measured)" in slow.sentence
    assert "NVIDIA H200 NVL, triton 3.7.1" in summary.sentence
    _, receipt, dispatch = writer.version(OPERATOR)
    entry, record = dispatch["targets"]["h200"], receipt["targets"]["h200"]
    assert entry["devices"] == ["NVIDIA H200 NVL"] and entry["toolchain"]["triton"] == ["3.7.1", "3.8"]
    for shape in record["shapes"]:
        low, high = shape["seconds_interval"]
        assert low < shape["seconds"] < high and 0.0 < shape["change"] < 0.25 and shape["model_version"] is None
    (pack,) = (n for n in receipt["files"] if n.startswith("plans_"))
    assert pack == plan_shelf.pack_name("h200", {"triton": "3.7.1"}) and list(receipt["plans"]) == [pack]
