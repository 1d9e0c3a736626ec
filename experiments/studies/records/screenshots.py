"""Pictures of a real campaign for the documentation: ``python -m experiments.studies.records.screenshots
CAMPAIGN_DIR``.

Writes into ``docs/img``: the report, its lineage, MLflow's view of the campaign and its candidates, and
the live display as it stood at the end. Needs the ``dev`` extra and a Chromium on the PATH.
"""

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.studies.records.mlflow_pages import PLAIN_PAGE, MlflowPages, mlflow_server
from testkit.browser import browser_page, missing_browser
from tilewright.evolve.mlflow_mirror.process import ARTIFACTS, mirror_command, mirror_environment, store_uri
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import CampaignData, load
from tilewright.evolve.report.html import write_report
from tilewright.evolve.report.lineage import PAGE
from tilewright.evolve.show.watch import snapshot

SECTIONS = {"lineage": "Lineage of the winner", "roofline": "Roofline"}
"""Parts of the report that get a picture of their own, by file name."""


WIDTH = 1280
"""Of a window in pixels."""

LARGEST_BYTES = 150_000
"""Of a picture; a larger one gets a palette."""


def shrink(folder: Path) -> None:
    """Write large PNG files of a folder again with 256 colours."""
    from PIL import Image

    for path in folder.glob("*.png"):
        if path.stat().st_size > LARGEST_BYTES:
            with Image.open(path) as picture:
                small = picture.convert("RGB").quantize(
                    256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
                )
            small.save(path, optimize=True)


def report_pictures(report: Path, out: Path) -> None:
    with browser_page(WIDTH, 1000) as browser:
        page = browser.page
        page.goto(report.as_uri())
        browser.shot(out / "report.png")
        for name, heading in SECTIONS.items():
            section = page.locator("section", has=page.get_by_role("heading", name=heading, exact=True))
            if section.count():
                section.first.screenshot(path=str(out / f"{name}.png"))
    with browser_page(WIDTH, 720) as browser:
        browser.page.goto(report.with_name(f"{report.stem}-{PAGE}").as_uri())
        browser.shot(out / "lineage-page.png")
    with browser_page(390, 844, "dark", scale=1.5) as browser:
        browser.page.goto(report.as_uri())
        browser.shot(out / "report-phone.png")


def mlflow_pictures(home: Path, uri: str, data: CampaignData, out: Path) -> None:
    with mlflow_server(home, uri) as base, browser_page(WIDTH, 900, storage=PLAIN_PAGE) as browser:
        pages = MlflowPages(browser, base, uri, data)
        pages.run(pages.campaign)
        pages.await_text("Verdicts")
        browser.shot(out / "mlflow-overview.png")
        pages.view()
        pages.await_text("0000 ")
        browser.shot(out / "mlflow-candidates.png")
        pages.view(charts=True)
        browser.page.locator(".js-plotly-plot").nth(2).wait_for(timeout=60_000)
        browser.shot(out / "mlflow-charts.png")
        pages.run(pages.campaign, "model-metrics")
        browser.shot(out / "mlflow-campaign.png")
        pages.artifact(pages.campaign, "lineage.html")
        browser.shot(out / "mlflow-lineage.png")
        if data.winner is not None and data.winner.parents:
            pages.run(pages.candidates[data.winner.index])
            pages.await_text("candidate ")
            browser.shot(out / "mlflow-candidate.png")
            pages.artifact(pages.candidates[data.winner.index], "mutation.diff.txt")
            browser.shot(out / "mlflow-diff.png")


def display_picture(journal: Journal, path: Path) -> None:
    """The live display as it stood when the last evaluation came in."""
    from rich.console import Console

    from tilewright.evolve.show.display import LiveDisplay

    data = load(journal)
    console = Console(record=True, width=112, force_terminal=True, file=io.StringIO())
    display = LiveDisplay(console)
    display.start(data.facts)
    display.update(snapshot(data, journal.path))
    display.stop()
    drawing = console.export_svg(title=f"tilewright watch {data.facts.get('id', '')}")
    with browser_page(1400, 900) as browser:
        browser.page.set_content(f"<body style='margin:0'>{drawing}</body>")
        browser.page.locator("svg").first.screenshot(path=str(path), omit_background=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.studies.records.screenshots", description=__doc__
    )
    parser.add_argument("campaign", type=Path, metavar="CAMPAIGN_DIR")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    arguments = parser.parse_args(argv)
    reason = missing_browser()
    if reason:
        parser.error(reason)
    folder: Path = arguments.campaign.resolve()
    home, out = folder.parent.parent, arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    uri = store_uri(home, {})
    with Journal(folder / JOURNAL) as journal:
        data = load(journal)
        report = write_report(journal, folder / "report.html")
        display_picture(journal, out / "display.png")
    report_pictures(report, out)
    command = mirror_command([folder / JOURNAL], home, uri)
    (home / ARTIFACTS).mkdir(exist_ok=True)
    subprocess.run(command, env=mirror_environment(os.environ), check=True, stderr=subprocess.DEVNULL)
    mlflow_pictures(home, uri, data, out)
    shrink(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
