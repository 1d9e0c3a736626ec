"""Run every rewrite rule over the corpus of kernels and tabulate what comes out, per rule.

    python -m experiments.studies.rewrites.corpus [--write docs/rewrites.md] [--only pallas/name.py ...]

Counted per rule: proposals, how many parse and pass the dialect, how many agree with their parent in the
interpreter (40 dB, no device; Triton 3.x interpreter or Pallas interpret mode), and the slowest proposal.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from testkit.rewriting import Case, Trial, load_cases, propose_all, run_checks
from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.registry import rules

TABLE = "## All rules\n"
"""Begins the part of the page that is written here."""


def _all_rules() -> list[Rule]:
    found: dict[str, Rule] = {}
    for language in Language:
        for rule in rules(language):
            found.setdefault(rule.name, rule)
    return list(found.values())


def table(cases: Sequence[Case], trials: Sequence[Trial]) -> str:
    """The page's part on what each rule does to the corpus."""
    lines = [
        TABLE,
        "Written by `python -m experiments.studies.rewrites.corpus --write docs/rewrites.md`; do not edit.",
        "",
    ]
    total, legal, right = len(trials), sum(not t.dialect for t in trials), sum(bool(t.ok) for t in trials)
    slowest = max((t.seconds for t in trials), default=0.0)
    lines += [
        f"Each rule was applied once at each site of the {len(cases)} kernels in `testkit/corpus`. *dialect*: "
        "children that pass the dialect check. *agrees*: children that agree with their parent to 40 dB or better, "
        "in an interpreter on small inputs (Gluon in the emulator, which also finds races and deadlocks).",
        "",
        f"**{total} proposals, {100 * legal / max(1, total):.1f} % pass the dialect, "
        f"{right} of the {legal} that pass it agree with their parent "
        f"({100 * right / max(1, legal):.1f} %); slowest proposal {slowest:.2f} s (host CPU).**",
        "",
        "| rule | kernels | proposals | dialect | agrees | why it can help |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in _all_rules():
        mine = [t for t in trials if t.rule == rule.name]
        share = [f"{sum(f(t) for t in mine)}" for f in (lambda t: not t.dialect, lambda t: bool(t.ok))]
        kernels = len({t.kernel for t in mine})
        agrees = f"{share[1]}/{sum(not t.dialect for t in mine)}"
        lines.append(f"| `{rule.name}` | {kernels} | {len(mine)} | {share[0]} | {agrees} | {rule.why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--no-run", action="store_true", help="check the dialect only")
    options = parser.parse_args()
    cases = load_cases(options.only)
    trials = [t for case in cases for t in propose_all(case)]
    if not options.no_run:
        run_checks(cases, trials)
    for trial in trials:
        if trial.dialect or trial.ok is False:
            sys.stderr.write(f"{trial.kernel} {trial.rule} {trial.site}: {trial.dialect or trial.reason}\n")
    page = table(cases, trials)
    if options.write:
        before = options.write.read_text().partition(TABLE)[0]
        options.write.write_text(before + page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
