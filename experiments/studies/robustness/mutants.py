"""A search over mutants of exploits: whatever the disguise, the dialect refuses them or a later wall stops them.

    python -m experiments.studies.robustness.mutants --examples 3000 --walls 150 --out experiments/records

Three searches by hypothesis. *Hidden*: a forbidden construct, wrapped and put somewhere into an honest kernel; the
dialect must refuse it. *Disguised*: an exploit of the zoo that the dialect refuses, written otherwise; it must still
be refused, and what is not is judged by the later walls. *Later walls*: exploits that other walls stop, and honest
twins, written otherwise, through Triton's interpreter: an exploit must not pass, an honest kernel must. Writes
``mutants.md``; exit code 0 when all of that held.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from testkit.exploits import pallas, triton
from testkit.exploits.disguises import applied, disguises, is_textual
from testkit.exploits.judges import Judge, measured
from testkit.exploits.mutants import HONEST, entry, inserted, mutants
from testkit.exploits.zoo import Exploit, Wall
from tilewright.fitness import dialect
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.workers.device.station import LocalStation

ZOOS: dict[str, ModuleType] = {"launch": triton, "build": pallas}


@dataclass
class Found:
    """What a search came to: how often each outcome, and whatever should not have been."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def search(strategy: st.SearchStrategy[Any], examples: int, number: int, body: Callable[[Any], None]) -> None:
    """``body`` on so many examples; it notes what is wrong instead of raising, so that the search goes on."""
    configured = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(configured(given(strategy)(body)))()


def hidden(examples: int, number: int) -> Found:
    """Forbidden constructs in honest kernels."""
    found = Found()

    def body(mutant: tuple[str, str, int]) -> None:
        name, text, place = mutant
        try:
            statements = ast.parse(text).body
        except SyntaxError:
            found.outcomes["not Python"] += 1
            return
        source = HONEST[name]
        refused = dialect.check(inserted(source, statements, place), entry=entry(source))
        found.outcomes["rejected by the dialect" if refused else "accepted"] += 1
        if not refused:
            found.wrong.append(f"{text!r} in {name} at {place}")

    search(mutants(), examples, number, body)
    return found


def disguised(examples: int, number: int, judge: Judge) -> Found:
    """Exploits that the dialect refuses, written otherwise."""
    zoo = [(name, e) for name, z in ZOOS.items() for e in z.EXPLOITS if e.wall is Wall.DIALECT]
    found = Found()

    def body(mutant: tuple[tuple[str, Exploit], list[tuple[str, int]]]) -> None:
        (name, exploit), chosen = mutant
        try:
            source = applied(exploit.source, chosen)
        except (SyntaxError, ValueError):
            found.outcomes["not Python"] += 1
            return
        if dialect.check(source, entry=name):
            found.outcomes["rejected by the dialect"] += 1
            return
        said = "accepted"
        if name == "launch":
            evaluation = judge(source, exploit.params, True, float("inf"))
            said = f"accepted, then {evaluation.verdict.value}"
        found.outcomes[said] += 1
        found.wrong.append(f"{exploit.number} {exploit.name} by {chosen}: {said}")

    pairs = st.sampled_from(zoo).flatmap(
        lambda one: st.tuples(st.just(one), disguises(textual=is_textual(one[1])))
    )
    search(pairs, examples, number, body)
    return found


def later_walls(examples: int, number: int, judge: Judge) -> Found:
    """Exploits for other walls, and honest kernels, written otherwise, through the interpreter."""
    exploits = [
        e for e in triton.EXPLOITS if e.wall is not Wall.DIALECT and e.where != "gpu" and not e.costly
    ]
    found = Found()

    def body(mutant: tuple[Exploit, bool, list[tuple[str, int]]]) -> None:
        exploit, honest, chosen = mutant
        source = applied(exploit.twin if honest else exploit.source, chosen)
        evaluation = judge(source, exploit.params, exploit.hasty, exploit.best)
        kind = "honest twin" if honest else "exploit"
        found.outcomes[f"{kind}: {evaluation.verdict.value}"] += 1
        if (evaluation.verdict is Verdict.OK) is not honest:
            found.wrong.append(
                f"{kind} {exploit.number} {exploit.name} by {chosen}: {evaluation.verdict} {evaluation.reason}"
            )

    drawn = st.tuples(st.sampled_from(exploits), st.sampled_from([False, False, True]), disguises(False))
    search(drawn, examples, number, body)
    return found


def markdown(found: dict[str, tuple[Found, float]], number: int) -> str:
    """What the searches came to."""
    lines = [
        f"# Mutants of exploits, {time.strftime('%Y-%m-%d')}",
        "",
        f"`{' '.join(['python -m experiments.studies.robustness.mutants', *sys.argv[1:]])}` (seed {number}). "
        "Through the interpreter: "
        f"{load_target('interpreter').label}.",
        "",
        "| search | mutants | outcomes | wrong | minutes |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    for name, (one, seconds) in found.items():
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in one.outcomes.most_common())
        total = sum(one.outcomes.values())
        lines.append(f"| {name} | {total} | {outcomes} | {len(one.wrong)} | {seconds / 60:.1f} |")
    wrong = [f"* {name}: {text}" for name, (one, _) in found.items() for text in one.wrong]
    return "\n".join([*lines, "", *wrong]).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=3000, help="of either search of the dialect")
    parser.add_argument("--walls", type=int, default=150, help="through the interpreter")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    station = LocalStation(load_target("interpreter").gpu)
    found: dict[str, tuple[Found, float]] = {}
    try:
        with measured(station, "interpreter") as judge:
            for name, run in {
                "hidden": lambda: hidden(arguments.examples, arguments.seed),
                "disguised": lambda: disguised(arguments.examples, arguments.seed, judge),
                "later walls": lambda: later_walls(arguments.walls, arguments.seed, judge),
            }.items():
                if not (arguments.walls if name == "later walls" else arguments.examples):
                    continue
                began = time.monotonic()
                found[name] = run(), time.monotonic() - began
                (arguments.out / "mutants.md").write_text(markdown(found, arguments.seed))
    finally:
        station.close()
    sys.stdout.write(markdown(found, arguments.seed))
    return 1 if any(one.wrong for one, _ in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
