"""The report shows the journal's content, escapes everything, and renders alone in a browser."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.browser import browser_page, missing_browser
from testkit.evaluations import candidate, passed
from testkit.sample_campaign import HOSTILE, SampleCampaign
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report import html
from tilewright.evolve.report.data import Point, load
from tilewright.evolve.report.html import render, write_report
from tilewright.evolve.report.lineage import lineage_svg
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Stage

VOID = {"meta", "br", "img"}


class Checker(HTMLParser):
    """Collects elements and attributes, and that every element is closed in order."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()


def check(page):
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def test_page_is_well_formed_and_asks_nothing_of_the_network(data):
    page = render(data)
    checker = check(page)
    for tag, attributes in checker.tags:
        assert not {"src", "onerror", "onload", "onclick"} & set(attributes), (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#"), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
    assert sum(tag == "script" for tag, _ in checker.tags) == 1


def test_every_colour_that_a_page_names_is_one_in_both_modes():
    parts = [path.read_text() for path in Path(html.__file__).parent.iterdir() if path.suffix in (".css", ".js")]
    named = re.findall(r'var\(--(\w+)\)|\bv\("(\w+)"\)', "".join(parts))
    defined = re.findall(r"--(\w+):", "".join(parts))
    assert {css or js for css, js in named} <= {name for name in defined if defined.count(name) == 2}


def test_page_names_unit_target_and_kind_and_never_runs_hostile_text(data):
    page = render(data)
    text = re.sub(r"<[^>]+>", " ", page)
    winner = data.references["final"]["winner"].workloads[0]
    assert f"{winner.seconds * 1e6:.1f} µs" in text
    floors = ("floor: MXU", "64.5 µs", "15.3 µs")
    for part in (*floors, "tpu7x, modelled", "of the roofline", "faster than baseline bf16"):
        assert part in text
    assert "measured" not in text
    assert "<script>document.title" not in page and "<img" not in page and "&lt;/script&gt;" in page
    assert "\x00" not in page and "\x1b" not in page


@settings(max_examples=8, deadline=None)
@given(detail=st.text(max_size=60), source=st.text(max_size=120))
def test_any_text_leaves_the_page_whole(data, detail, source):
    (_, seed), *_ = data.seeds()
    text = detail.encode("utf-8", "replace").decode()
    genome = Genome(source.encode("utf-8", "replace").decode(), {"x": text})
    child = candidate(60, genome, parents=(seed.genome.id,), proposer=text, detail=text)
    better = data.evaluations[seed.genome.id].model_copy(update={"genome": genome.id, "fitness": 1e4})
    found = replace(
        data,
        points=(*data.points, Point(61, child, better, 9.0)),
        candidates={**data.candidates, genome.id: child},
        evaluations={**data.evaluations, genome.id: better},
        winner=child,
    )
    check(render(found))
    ET.fromstring(lineage_svg(found, child, standalone=True))


def test_a_report_of_an_unfinished_or_empty_campaign(tmp_path):
    with Journal(tmp_path / "empty.sqlite", write=True, create=True) as journal:
        check(render(load(journal)))
    sample = SampleCampaign(tmp_path / "journal.sqlite")
    assert "No evaluation has finished yet" in render(load(sample.journal))
    sample.grow(5)
    page = render(load(sample.journal))
    check(page)
    assert "running" in page
    sample.close()


needs_browser = pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))


@needs_browser
def test_report_in_a_browser(journal_path, tmp_path):
    with Journal(journal_path) as journal:
        path = write_report(journal, tmp_path / "report.html")
    with browser_page(390, 900, "dark") as browser:
        page = browser.page
        page.goto(path.as_uri())
        assert browser.errors == [] and browser.requests == [path.as_uri()]
        assert page.title() == "quickstart-001 · tilewright"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("button", name="open all steps").click()
        assert page.locator("details.step[open]").count() == page.locator("details.step").count() > 1
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(20, 24, 29)"
        assert HOSTILE[:30] not in page.content()


def test_a_target_that_only_compiles_has_a_report_without_a_winner(tmp_path):
    seed = candidate(0, kind=MutationKind.SEED)
    with Journal(tmp_path / "journal.sqlite", write=True, create=True) as journal:
        facts = {"id": "compile-001", "operator": "a/b", "target": "gfx950", "target_kind": "compiled"}
        journal.set_meta("campaign", facts)
        journal.add_event("started")
        journal.add_candidate(seed)
        journal.add_evaluation(0, passed(seed.genome, target="gfx950", stage=Stage.CHECK))
        journal.add_event("finished", reason="evaluations", winner=None)
        data = load(journal)
    assert data.winner is None
    assert "of the roofline" not in render(data)
