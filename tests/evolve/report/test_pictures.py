"""Pictures of the report: they show what the journal holds, open alone, and are readable, clickable and comparable."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.browser import browser_page, missing_browser
from testkit.promote_campaign import one_sentence
from testkit.sample_campaign import HOSTILE, SampleCampaign, write_sample
from tests.evolve.report.test_graph import big_campaign
from tilewright.evolve import cli
from tilewright.evolve.record.history import Candidate, Mutation, MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.archive_map import MOST_CELLS, archive_map, archive_svg
from tilewright.evolve.report.charts import Axis, convergence_svg
from tilewright.evolve.report.compare import overlay_svg, pair_of
from tilewright.evolve.report.credit import by_proposer, by_rule
from tilewright.evolve.report.data import CampaignData, Point, load
from tilewright.evolve.report.files import campaign_files, pictures
from tilewright.evolve.report.grid import FAINTEST, STRONGEST
from tilewright.evolve.report.heat import heat_svg, ratios
from tilewright.evolve.report.html import render
from tilewright.evolve.report.page import resource
from tilewright.evolve.report.roofline import roofline, roofline_svg
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import Scope

needs_browser = pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two campaigns of one operator, and one on another target."""
    root = tmp_path_factory.mktemp("home")
    for name, count in (("first-001", 48), ("second-001", 24)):
        write_sample(root / "campaigns" / name / "journal.sqlite", count, campaign=name)
    path = root / "campaigns" / "other-001" / "journal.sqlite"
    path.parent.mkdir()
    with Journal(path, write=True, create=True) as journal:
        facts = {
            "id": "other-001",
            "operator": "gemm_fp8_fused/g512",
            "target": "h200",
            "target_kind": "measured",
        }
        journal.set_meta("campaign", facts)
    return root


def loaded(home: Path, name: str) -> CampaignData:
    with Journal(home / "campaigns" / name / "journal.sqlite") as journal:
        return load(journal)


@pytest.fixture(scope="module")
def data(home: Path) -> CampaignData:
    return loaded(home, "first-001")


def crowd(count: int) -> CampaignData:
    """A large campaign whose candidates fall into 120 cells."""
    found = big_campaign(count)
    points = []
    for candidate in found.candidates.values():
        evaluation = found.evaluations[candidate.genome.id]
        if evaluation.verdict is Verdict.OK:
            cell = {"vmem": str(candidate.index % 12), "placement": str(candidate.index % 10)}
            evaluation = evaluation.model_copy(update={"descriptors": cell})
        points.append(Point(len(points) + 1, candidate, evaluation, float(len(points))))
    evaluations = {p.candidate.genome.id: p.evaluation for p in points}
    return replace(found, points=tuple(points), evaluations=evaluations, config={"search": {"islands": 3}})


def test_every_picture_is_a_whole_file_with_unit_target_and_kind(data: CampaignData) -> None:
    found = pictures(data)
    assert set(found) == {
        "convergence.svg", "shapes.svg", "roofline.svg", "credit-by-proposer.svg", "archive.svg", "lineage.svg",
        "timeline.svg",
    }  # fmt: skip
    for name, text in found.items():
        root = ET.fromstring(text)
        assert root.tag.endswith("svg") and float(root.attrib["height"]) > 50, name
        assert "href" not in text, "a file of its own links nowhere"
        said = " ".join(root.itertext())
        assert "tpu7x" in said and "modelled" in said and "measured" not in said, name
    assert set(campaign_files(data)) == {
        *found, "report.html", "lineage.html", "winner.py", "winner.params.json",
    }  # fmt: skip


def test_pictures_speak_in_the_campaigns_unit(data: CampaignData) -> None:
    found = replace(data, facts={**data.facts, "unit": "GB/s"})
    drawn = pictures(found)
    for name in ("convergence.svg", "archive.svg", "lineage.svg"):
        assert "GB/s" in drawn[name] and "TFLOP/s" not in drawn[name], name
    assert "roofline.svg" not in drawn, "no figure says its bytes"


def test_where_bytes_rank_memory_is_the_only_roof(data: CampaignData) -> None:
    def ranked(evaluation: Evaluation) -> Evaluation:
        shapes = tuple(w.model_copy(update={"gbytes": 1500.0}) for w in evaluation.workloads)
        return evaluation.model_copy(update={"workloads": shapes})

    final = {name: ranked(e) for name, e in data.references["final"].items()}
    facts = {**data.facts, "unit": "GB/s", "target": "h200"}
    found = roofline(replace(data, facts=facts, references={"final": final}, evaluations={}))
    assert found is not None and found.peaks == {"HBM": 4800.0, "device copy": 4180.0}
    assert {spot.rate for spot in found.spots} == {1500.0}
    seconds = min(e.workloads[0].seconds for e in final.values())
    assert min(s.intensity for s in found.spots) == pytest.approx(1500.0 * 1e9 * seconds / 1e6)
    text = " ".join(ET.fromstring(roofline_svg(replace(data, facts=facts), found)).itertext())
    assert "device copy 4180 GB/s" in text and "MB that must be moved" in text and "FLOP" not in text


def test_pictures_of_nothing_are_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite", write=True, create=True) as journal:
        assert pictures(load(journal)) == {}


# -- archive -----------------------------------------------------------------------------------------


def test_the_archive_shows_the_fittest_of_each_cell_of_each_island(data: CampaignData) -> None:
    best: dict[tuple, float] = defaultdict(float)
    for point in data.points:
        if point.evaluation.fitness:
            key = (tuple(sorted(point.evaluation.descriptors.items())), point.candidate.island)
            best[key] = max(best[key], point.evaluation.fitness)
    found = archive_map(data)
    shown = {(cell, n): e.fitness for cell, row in found.cells for n, e in enumerate(row) if e is not None}
    assert shown == dict(best) and found.hidden == 0
    text = archive_svg(data, found)
    for elite in found.elites:
        assert f'href="#candidate-{elite.candidate.index}"' in text
    assert sum(found.passed.values()) == sum(p.evaluation.verdict is Verdict.OK for p in data.points)


def test_elites_that_migrated_are_shown_where_they_went(data: CampaignData) -> None:
    moved = archive_map(replace(data, config={"search": {"islands": 2, "migration_interval": 1}}))
    homes = [(e.candidate.island, n) for _, row in moved.cells for n, e in enumerate(row) if e is not None]
    assert any(home != shown for home, shown in homes)


# -- credit ------------------------------------------------------------------------------------------


def step(sample: SampleCampaign, kind: MutationKind, who: str, detail: str, factor: float | None) -> None:
    """One more candidate from the seed, ``factor`` as fit as it; None fails."""
    parent, evaluation = sample.passed[0]
    genome = replace(parent.genome, params={**parent.genome.params, "number": sample.index})
    candidate = Candidate(sample.index, genome, (parent.genome.id,), Mutation(kind, who, detail), 1, 0)
    sample.journal.add_candidate(candidate)
    update: dict[str, object] = {"genome": genome.id, "fitness": (evaluation.fitness or 0) * (factor or 0)}
    if factor is None:
        update |= {"fitness": None, "verdict": Verdict.INCORRECT, "reason": "30 dB", "workloads": ()}
    sample.journal.add_evaluation(sample.index, evaluation.model_copy(update=update))
    sample.index += 1


def test_credit_is_shared_by_what_set_the_records(tmp_path: Path) -> None:
    sample = SampleCampaign(tmp_path / "journal.sqlite")
    sample.grow(1)
    step(sample, MutationKind.REWRITE, "rewrite", "hoist_scale: out; then split_k: by 2", 1.1)
    step(sample, MutationKind.PARAMETER, "surrogate", "block_m 1 -> 2", 1.1**2)
    step(sample, MutationKind.PARAMETER, "surrogate", "block_m 1 -> 4", 1.0)
    step(sample, MutationKind.REWRITE, "rewrite", "split_k: by 4", None)
    step(sample, MutationKind.REWRITE, "rewrite", "split_k: by 8", 0.9)
    found = load(sample.journal)
    sample.close()
    who = {row.name: row for row in by_proposer(found)}
    assert (who["rewrite"].share, who["surrogate"].share) == pytest.approx((0.5, 0.5))
    rewrite, surrogate = who["rewrite"], who["surrogate"]
    assert (rewrite.faster, rewrite.slower, rewrite.failed, rewrite.records) == (1, 1, 1, 1)
    assert (surrogate.faster, surrogate.equal, surrogate.tried, surrogate.records) == (1, 1, 2, 1)
    rules = {row.name: (row.tried, row.failed, row.share) for row in by_rule(found)}
    assert rules == {"hoist_scale": (1, 0, pytest.approx(0.25)), "split_k": (3, 1, pytest.approx(0.25))}


# -- ratios, roofline, intervals ---------------------------------------------------------------------


def test_ratios_are_times_over_the_winners(data: CampaignData) -> None:
    final, suite = ratios(data)
    assert set(final.others) == {"bf16", "naive"} and len(suite.winner) == 2
    theirs, mine = (data.references["final"][n].workloads[0].seconds for n in ("bf16", "winner"))
    text = " ".join(ET.fromstring(heat_svg(data, [final])).itertext())
    assert f"×{theirs / mine:.2f}" in text and "final: 4096x4096x4096" in text
    assert "geometric mean of 2" in heat_svg(data, [suite])
    seed = next(c for _, c in data.seeds())
    alone = replace(data, winner=seed, references={**data.references, "final": {}})
    assert set(ratios(alone)[0].others) == {"bf16"}, "a winner is not compared with itself"


def test_no_mark_lies_above_the_roof(data: CampaignData) -> None:
    found, chip = roofline(data), load_target("tpu7x").chip
    assert found is not None and not found.moved
    assert found.bandwidth == chip.hbm and found.peaks == {"bf16": 1153.5, "f8": 2307.0}
    for spot in found.spots:
        assert spot.rate <= min(max(found.peaks.values()), spot.intensity * found.bandwidth / 1e12) * 1.001
    # the sample's floors: 64.5 us at the peak, 21.6 us at the bandwidth
    assert found.spots[0].intensity == pytest.approx(2 * 4096**3 / (21.6e-6 * chip.hbm))
    text = " ".join(ET.fromstring(roofline_svg(data, found)).itertext())
    for words in (
        "HBM 3.69 TB/s",
        "f8 2307 TFLOP/s",
        "FLOP per byte",
        "(tpu7x, modelled)",
        "bf16 (baseline)",
    ):
        assert words in text
    assert roofline(replace(data, facts={**data.facts, "target": "abacus"})) is None


def test_bytes_that_were_moved_count_where_they_are_known(data: CampaignData) -> None:
    final = {
        name: e.model_copy(
            update={
                "workloads": tuple(
                    w.model_copy(update={"diagnosis": {**w.diagnosis, "dma_bytes": 10**8}})
                    for w in e.workloads
                )
            }
        )
        for name, e in data.references["final"].items()
    }
    found = roofline(replace(data, references={"final": final}, evaluations={}))
    assert found is not None and found.moved
    assert all(spot.intensity == pytest.approx(2 * 4096**3 / 1e8) for spot in found.spots)


def test_intervals_are_bands(data: CampaignData) -> None:
    assert 'class="band' not in convergence_svg(data) and "figures repeat exactly" in render(data)
    points = tuple(
        replace(p, evaluation=p.evaluation.model_copy(update={"interval": (0.9 * f, 1.1 * f)}))
        if (f := p.evaluation.fitness)
        else p
        for p in data.points
    )
    noisy = replace(data, points=points, evaluations={p.candidate.genome.id: p.evaluation for p in points})
    for axis in Axis:
        heights = [
            float(h) for h in re.findall(r'height="([\d.]+)" class="band', convergence_svg(noisy, axis))
        ]
        assert len(heights) >= 2 and all(5 < height < 300 for height in heights)
    assert "bands, and bars at the right" in render(noisy)


# -- readable ----------------------------------------------------------------------------------------


def colours(scheme: int) -> dict[str, tuple[float, ...]]:
    """The palette of ``picture.css``: 0 for light, 1 for dark."""
    block = re.findall(r":root \{(.*?)\}", resource("picture.css"), re.S)[scheme]
    return {
        name: tuple(int(code[n : n + 2], 16) / 255 for n in (0, 2, 4))
        for name, code in re.findall(r"--([\w-]+): #([0-9a-f]{6})", block)
    }


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """After the Web Content Accessibility Guidelines 2.1, relative luminance."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_is_readable_in_the_light_and_in_the_dark(scheme: int) -> None:
    found = colours(scheme)
    ground = found["ground"]
    for name in ("ink", "quiet", "winner", "seed", "baseline", "good", "bad", "second"):
        assert contrast(found[name], ground) >= 4.5, name
    for name, opacity in itertools.product(("winner", "good", "bad"), (FAINTEST, STRONGEST)):
        square = tuple(opacity * c + (1 - opacity) * g for c, g in zip(found[name], ground, strict=True))
        assert contrast(found["ink"], square) >= 4.5, (name, opacity)


@pytest.mark.slow
@needs_browser
def test_a_square_of_the_archive_leads_to_its_candidate_among_ten_thousand(tmp_path: Path) -> None:
    found = crowd(10_000)
    cells = archive_map(found)
    assert len(cells.cells) == MOST_CELLS and cells.hidden > 0
    page = tmp_path / "report.html"
    page.write_text(render(found), encoding="utf-8")
    assert page.stat().st_size < 8_000_000
    with browser_page(390, 800, "dark") as browser:
        browser.page.goto(page.as_uri())
        assert browser.page.evaluate("document.documentElement.scrollWidth") <= 390
        links = browser.page.locator("svg a")
        assert links.count() == sum(e is not None for _, row in cells.cells for e in row)
        for n, act in ((0, "click"), (7, "Enter")):
            index = (links.nth(n).get_attribute("href") or "").removeprefix("#candidate-")
            goal = browser.page.locator(f"#candidate-{index}")
            assert not goal.locator("p").first.is_visible()
            if act == "click":
                links.nth(n).click()
            else:
                links.nth(n).focus()
                browser.page.keyboard.press(act)
            goal.locator("p").first.wait_for(state="visible")
            assert f"#{index}" in goal.locator("summary").inner_text()
            assert browser.page.evaluate("document.activeElement.parentElement.id") == f"candidate-{index}"
        assert browser.errors == [] and {r.split("#")[0] for r in browser.requests} == {page.as_uri()}
        assert HOSTILE[:30] not in browser.page.content()


# -- two campaigns -----------------------------------------------------------------------------------


def test_a_comparison_shows_both(home: Path, data: CampaignData) -> None:
    assert cli.main(["--home", str(home), "report", "first-001", "--against", "second-001"]) == 0
    path = home / "campaigns" / "first-001" / "report-against-second-001.html"
    page = path.read_text(encoding="utf-8")
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    other = loaded(home, "second-001")
    for scope in (Scope.FINAL, Scope.SUITE):
        mine, theirs = (
            next(r.evaluation for r in d.ranking(scope) if r.role == "winner") for d in (data, other)
        )
        assert f"{theirs.workloads[0].seconds * 1e6:.1f}"[:4] in text
        assert f"{(mine.fitness or 0) / (theirs.fitness or 1) * 100 - 100:+.1f} %" in text
    assert "tpu7x, modelled" in text and "from the winner of second-001 to that of first-001" in text
    assert text.count("Credit") == 0 and 'aria-label="Credit in second-001"' in page
    ET.fromstring(overlay_svg(pair_of(data, other), standalone=True))
    assert "first-001" in text and "Nothing: configuration and toolchain are the same." in text


def test_campaigns_that_say_nothing_about_each_other_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for other, words in (
        (
            "other-001",
            "has target h200 and first-001 has tpu7x; only campaigns of one operator and one target",
        ),
        ("first-001", "--against: first-001 is the campaign itself"),
        ("nobody", "campaign 'nobody' is unknown"),
    ):
        output = tmp_path / "page.html"
        arguments = ["report", "first-001", "--against", other, "--output", str(output)]
        assert cli.main(["--home", str(home), *arguments]) == 2
        said = capsys.readouterr().err.strip()
        assert words in said and one_sentence(said) and not output.exists()
    arguments = [
        "report",
        "first-001",
        "--against",
        "second-001",
        "--output",
        str(tmp_path / "no" / "x.html"),
    ]
    assert cli.main(["--home", str(home), *arguments]) == 2
    assert "--output: cannot write" in capsys.readouterr().err


def test_other_suites_have_no_common_axis(data: CampaignData) -> None:
    from tilewright.evolve.report.compare import render_comparison

    page = render_comparison(pair_of(data, replace(data, facts={**data.facts, "suite": "llm"})))
    assert "there is no common axis" in page and "4096x4096x4096" in page
