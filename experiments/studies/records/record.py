"""Write what a campaign did as Markdown: ``python -m experiments.studies.records.record CAMPAIGN_DIR --out
FILE.md``."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.show.summary import figures
from tilewright.fitness.evaluation import Evaluation
from tilewright.seeds.operator import Scope


def main() -> int:
    """Read the campaign's journal and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--command", default="tilewright run", help="the command that was run")
    arguments = parser.parse_args()
    with Journal(arguments.campaign / JOURNAL) as journal:
        lines = _lines(journal, arguments.command, _table(arguments.campaign / dispatch_table.FILE))
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _table(path: Path) -> list[str]:
    """The dispatch table of a campaign on a measured target, as a code block."""
    if not path.is_file():
        return []
    return ["```", *dispatch_table.lines(json.loads(path.read_text(encoding="utf-8"))), "```", ""]


def _lines(journal: Journal, command: str, table: list[str]) -> list[str]:
    facts, tools, events = journal.meta("campaign"), journal.meta("toolchain"), journal.events()
    began, ended = events[0].at, events[-1].at
    target = f"{facts['target']}, {facts['target_kind']}"
    lines = [
        f"# {facts['name']}: {facts['operator']} on {target}",
        "",
        f"`{command}`, {datetime.fromtimestamp(began, UTC):%Y-%m-%d}, seed {facts['seed']}, "
        f"{ended - began:.0f} s from start to finished (workers' start, search and final check).",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(tools.items())) + ".",
        "",
        f"## Final check ({target})",
        "",
        *table,
    ]
    finals = journal.references(Scope.FINAL.value)
    shown = {name: e for name, e in finals.items() if not name.startswith("finalist:")}
    ranked = sorted(shown.items(), key=lambda item: -(item[1].fitness or 0.0))
    lines += [f"* {name}: {figures(evaluation)}" for name, evaluation in ranked]
    lines += [
        *_floors(facts),
        "",
        "## Evaluations",
        "",
        "| # | mutation | change | verdict | suite, us | wall, s |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    found = {index: evaluation for _, index, evaluation, _ in journal.evaluations()}
    for candidate in journal.candidates():
        evaluation = found[candidate.index]
        mutation = f"{candidate.mutation.kind.value} ({candidate.mutation.proposer})"
        detail = candidate.mutation.detail.replace("|", "\\|")
        lines.append(
            f"| {candidate.index} | {mutation} | {detail} | {evaluation.verdict.value} | {_times(evaluation)} "
            f"| {evaluation.wall_seconds:.1f} |"
        )
    return lines


def _floors(facts: dict) -> list[str]:
    rows = []
    for workload, floors in facts.get("floors", {}).items():
        parts = ", ".join(f"{unit} {seconds * 1e6:.1f}" for unit, seconds in floors.items())
        rows.append(f"* floors at {workload}, us: {parts}")
    return rows


def _times(evaluation: Evaluation) -> str:
    return ", ".join(f"{w.seconds * 1e6:.1f}" for w in evaluation.workloads) or evaluation.reason[
        :80
    ].replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
