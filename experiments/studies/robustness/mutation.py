"""The judge judged: mutants of the modules that decide what is right and faster, and whether the tests notice.

    pip install cosmic-ray
    nice python -m experiments.studies.robustness.mutation --out experiments/records/robustness/mutation.md

Cosmic Ray's operators make the mutants: of each kind of change at most ``--each`` at any one place, and of these a
random ``--share``. A mutant's module is imported in place of the real one, in a fork, and the tests that stand beside
the module in ``TESTS`` run until the first fails, or for ``--seconds``. What no test notices is listed with its line.
Cosmic Ray is a dependency of this study alone.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[3]
PRELOADED = ("numpy", "ml_dtypes", "scipy.stats", "pydantic", "pytest", "hypothesis")

GATES = ("tests/fitness/test_detail.py", "tests/fitness/test_gates.py")
TESTS: dict[str, tuple[str, ...]] = {
    "fitness/gates.py": GATES,
    "fitness/detail.py": GATES,
    "fitness/intervals.py": ("tests/fitness/test_intervals.py",),
    "fitness/dispatch_rule.py": ("tests/evolve/promote/test_rule.py",),
    "fitness/evaluation.py": ("tests/fitness/test_gates.py", "tests/evolve/report", "tests/evolve/record"),
    "fitness/score.py": ("tests/fitness/test_model.py", "tests/evolve/campaign"),
    "fitness/structure.py": ("tests/fitness/test_model.py",),
    "fitness/race.py": ("tests/evolve/campaign/test_racing.py",),
}
"""Module to the tests that must notice its mutants; quick ones first."""


@dataclass(frozen=True)
class Mutant:
    """One change: Cosmic Ray's operator, its occurrence, the line, and the module's text with it."""

    operator: str
    line: int
    text: str
    changed: str


def mutants(source: str, each: int, rng: random.Random) -> list[Mutant]:
    """At most ``each`` of a family of operators at a place, in random order. Raises ImportError without Cosmic Ray."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    found: list[tuple[str, int, tuple[int, int], Any]] = []
    for name in operator_names():
        try:
            operator = get_operator(name)()
        except TypeError:
            continue  # one that wants arguments
        places = (p for node in ast_nodes(get_ast(source)) for p in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(places):
            found.append((name, occurrence, start, operator))
    rng.shuffle(found)
    seen: Counter[tuple[str, tuple[int, int]]] = Counter()
    made = []
    lines, plain = source.splitlines(), meaning(source)
    for name, occurrence, start, operator in found:
        family = name.split("_")[0]
        seen[family, start] += 1
        if seen[family, start] > each:
            continue
        text = mutate_code(source, operator, occurrence)
        if text is None or text == source or meaning(text) == plain:
            continue
        after = text.splitlines()
        at = next((n for n, (a, b) in enumerate(zip(lines, after, strict=False)) if a != b), start[0] - 1)
        made.append(
            Mutant(name.removeprefix("core/"), at + 1, text, after[at].strip() if at < len(after) else "")
        )
    return made


def meaning(text: str) -> str:
    """A module as it runs: without annotations of functions, which nothing evaluates."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


class _Mutated(MetaPathFinder, Loader):
    """Imports a module from another text."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self._path))

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


def noticed(module: str, text: str, tests: Sequence[str], seconds: float) -> bool:
    """Whether a test fails, or none ends in time, with this text for the module."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            name = "tilewright." + module.removesuffix(".py").replace("/", ".")
            sys.meta_path.insert(0, _Mutated(name, ROOT / module, text))
            import pytest

            code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def survey(modules: Sequence[str], args: argparse.Namespace) -> Iterator[tuple[str, Mutant, bool]]:
    """Every mutant that was run, and whether it was noticed."""
    rng, ends = random.Random(args.seed), time.monotonic() + args.limit
    todo = []
    for module in modules:
        source = (ROOT / module).read_text(encoding="utf-8")
        if noticed(module, source, TESTS[module], args.seconds):
            raise SystemExit(
                f"{module}: its tests fail, or take over {args.seconds:g} s, without any change."
            )
        made = mutants(source, args.each, rng)
        todo += [(module, mutant) for mutant in made if rng.random() < args.share]
    rng.shuffle(todo)
    for module, mutant in todo:
        if time.monotonic() > ends:
            return
        yield module, mutant, noticed(module, mutant.text, TESTS[module], args.seconds)


def report(found: Sequence[tuple[str, Mutant, bool]], command: str) -> list[str]:
    """Lines of a record."""
    killed = sum(seen for _, _, seen in found)
    lines = [
        "# The judge judged",
        "",
        f"Written by `{command}`.",
        "",
        f"* mutants: {len(found)}; noticed by a test: {killed} ({killed / max(1, len(found)):.1%})",
        "",
        "| module | mutants | noticed |",
        "| --- | ---: | ---: |",
    ]
    for module in dict.fromkeys(m for m, _, _ in found):
        mine = [seen for m, _, seen in found if m == module]
        lines.append(f"| `{module}` | {len(mine)} | {sum(mine) / len(mine):.1%} |")
    lines += ["", "| not noticed | line | change | the line then |", "| --- | ---: | --- | --- |"]
    for module, mutant, seen in sorted(found, key=lambda f: (f[0], f[1].line)):
        if not seen:
            changed = mutant.changed.replace("|", "\\|")
            lines.append(f"| `{module}` | {mutant.line} | {mutant.operator} | `{changed}` |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modules", nargs="*", default=list(TESTS), choices=list(TESTS))
    parser.add_argument("--each", type=int, default=2, help="mutants of one kind at a place")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, chosen at random")
    parser.add_argument("--seconds", type=float, default=90.0, help="for the tests of one mutant")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.chdir(ROOT)
    for name in PRELOADED:
        importlib.import_module(name)
    found = []
    for module, mutant, seen in survey(args.modules, args):
        found.append((module, mutant, seen))
        if not seen:
            sys.stdout.write(f"{module}:{mutant.line} {mutant.operator}: {mutant.changed}\n")
            sys.stdout.flush()
    text = "\n".join(report(found, "python -m experiments.studies.robustness.mutation"))
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
