"""Pictures and tables of the report: they show what the journal holds, open alone, and are readable."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from testkit.evaluations import candidate
from testkit.sample_campaign import SampleCampaign
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.report.charts import convergence_svg
from tilewright.evolve.report.data import ancestry, load
from tilewright.evolve.report.html import campaign_files
from tilewright.evolve.report.lineage import lineage_svg
from tilewright.evolve.report.roofline import roofline, roofline_svg
from tilewright.evolve.report.tables import outcomes_section
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target


def words(markup):
    return " ".join(ET.fromstring(markup).itertext())


def test_every_picture_is_a_complete_file_with_unit_target_and_kind(data):
    files = campaign_files(data)
    pages = {"report.html", "lineage.html", "winner.py", "winner.params.json"}
    assert set(files) == {*pages, "convergence.svg", "lineage.svg"}
    roofs = roofline(data)
    assert roofs is not None
    pictures = [text for name, text in files.items() if name.endswith(".svg")]
    pictures += [roofline_svg(data, roofs), convergence_svg(data, standalone=True)]
    for text in pictures:
        root = ET.fromstring(text)
        assert root.tag.endswith("svg") and float(root.attrib["viewBox"].split()[3]) > 50
        assert "tpu7x" in words(text) and "modelled" in words(text) and "measured" not in words(text)
    in_bytes = replace(data, facts={**data.facts, "unit": "GB/s"})
    for text in (convergence_svg(in_bytes), lineage_svg(in_bytes, data.winner or next(iter(data.candidates.values())))):
        assert "GB/s" in text and "TFLOP/s" not in text
    assert roofline(in_bytes) is None, "memory is the only roof"
    interpreted = replace(data, facts={**data.facts, "target": "interpreter"})
    assert "convergence.svg" not in campaign_files(interpreted), "without times there is nothing to plot"


def test_every_ancestor_has_a_row_and_every_failure_a_tick(data):
    assert data.winner is not None
    picture = lineage_svg(data, data.winner)
    for member in ancestry(data, data.winner):
        assert f"#{member.index}  " in picture
    failed = sum(point.evaluation.failed for point in data.points)
    path = re.search(r'<path d="([^"]*)" class="fails"', convergence_svg(data))
    assert path is not None and path[1].count("M") == failed > 0


def step(sample, kind, who, detail, factor):
    """One more candidate from the seed, ``factor`` as fit as it; None fails."""
    parent, evaluation = sample.passed[0]
    genome = replace(parent.genome, params={**parent.genome.params, "number": sample.index})
    step = {"kind": kind, "proposer": who, "detail": detail}
    sample.journal.add_candidate(candidate(sample.index, genome, parents=(parent.genome.id,), **step))
    update: dict[str, object] = {"genome": genome.id, "fitness": (evaluation.fitness or 0) * (factor or 0)}
    if factor is None:
        update |= {"fitness": None, "verdict": Verdict.INCORRECT, "reason": "30 dB", "workloads": ()}
    sample.journal.add_evaluation(sample.index, evaluation.model_copy(update=update))
    sample.index += 1


def test_the_outcomes_of_rules_and_proposers_are_counted(tmp_path):
    sample = SampleCampaign(tmp_path / "journal.sqlite")
    sample.grow(1)
    step(sample, MutationKind.REWRITE, "rewrite", "hoist_scale: out; then split_k: by 2", 1.1)
    step(sample, MutationKind.PARAMETER, "surrogate", "block_m 1 -> 2", 1.1**2)
    step(sample, MutationKind.PARAMETER, "surrogate", "block_m 1 -> 4", 1.0)
    step(sample, MutationKind.REWRITE, "rewrite", "split_k: by 4", None)
    step(sample, MutationKind.REWRITE, "rewrite", "split_k: by 8", 0.9)
    found = load(sample.journal)
    sample.close()
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', outcomes_section(found))
    numbers = {name: [int(n) for n in re.findall(r">(\d+)<", cells)] for name, cells in rows}
    assert numbers == {
        "rewrite": [3, 1, 1, 1],
        "surrogate": [2, 1, 1, 0],
        "rule hoist_scale": [1, 1, 0, 0],
        "rule split_k": [3, 1, 1, 1],
    }


def with_figures(data, **update):
    """The final figures with ``update``, and none of the suite."""

    def updated(e):
        return e.model_copy(update={"workloads": tuple(w.model_copy(update=update) for w in e.workloads)})

    final = {name: updated(e) for name, e in data.references["final"].items()}
    return replace(data, references={"final": final}, evaluations={})


def test_no_mark_lies_above_the_roof(data):
    found, chip = roofline(data), load_target("tpu7x").chip
    assert found is not None and not found.moved
    assert found.bandwidth == chip.hbm and found.peaks == {"bf16": 1153.5, "f8": 2307.0}
    for spot in found.spots:
        assert spot.rate <= min(max(found.peaks.values()), spot.intensity * found.bandwidth / 1e12) * 1.001
    # the sample's floors: 64.5 us at the peak, 21.6 us at the bandwidth
    assert found.spots[0].intensity == pytest.approx(2 * 4096**3 / (21.6e-6 * chip.hbm))
    text = words(roofline_svg(data, found))
    for part in ("HBM 3.69 TB/s", "f8 2307 TFLOP/s", "FLOP per byte", "(tpu7x, modelled)", "bf16 (baseline)"):
        assert part in text
    assert roofline(replace(data, facts={**data.facts, "target": "abacus"})) is None
    moved = roofline(with_figures(data, diagnosis={"dma_bytes": 10**8}))
    assert moved is not None and moved.moved, "bytes that were moved count where they are known"
    assert all(spot.intensity == pytest.approx(2 * 4096**3 / 1e8) for spot in moved.spots)
