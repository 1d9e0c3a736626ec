"""The judge judged: mutants of the modules that decide what is right and faster, and whether the tests notice.

    pip install cosmic-ray
    nice python -m experiments.studies.robustness.mutation --out experiments/records/robustness/mutation.md

Cosmic Ray's operators make the mutants: of each family of changes at most ``--each`` at any one place, and of these at
most ``--most`` of a module, chosen at random. A mutant's module is imported in place of the real one, in a fork of a
process that has imported all that does not depend on it, and the tests named for it in ``TESTS`` run until the first
fails, or for ``--seconds``. They are tests of ``make test``, those meant for the module: what they miss another may
still notice. What no test notices is listed with its line, and with what ``mutation_equal`` says of it; those that
compute the same are counted apart. Cosmic Ray is a dependency of this study alone; where mutants are made before they
run, of ``--make``:

    python -m experiments.studies.robustness.mutation --make made.json
    python -m experiments.studies.robustness.mutation --made made.json --modules M --part 0/3 --rows rows.jsonl
    python -m experiments.studies.robustness.mutation --told rows.jsonl --out experiments/records/robustness/mutation.md
"""

import argparse
import ast
import datetime
import gc
import importlib
import importlib.util
import json
import os
import random
import shlex
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.studies.robustness.mutation_equal import why_equal

ROOT = Path(__file__).parents[3]
PRELOADED = ("numpy", "ml_dtypes", "scipy.stats", "pydantic", "pytest", "hypothesis")
OURS = ("tilewright.", "testkit.", "tests.")
QUICK = tuple(
    shlex.split("-x -q -W ignore -p no:cacheprovider -m 'not slow and not gpu' -o addopts=--import-mode=importlib")
)


def _test_of(module: str) -> str:
    """``tpu/memory``: ``tpu/test_memory.py``."""
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name}.py".removeprefix("/")


FROZEN = "tests/fitness/test_frozen.py"
GATES = ("tests/fitness/test_gates.py", "tests/fitness/test_elements.py")
DIALECT = (
    *(f"tests/exploits/test_{zoo}.py::test_the_dialect_refuses" for zoo in ("pallas", "triton")),
    "tests/fitness/test_dialect.py",
)
_OF_FITNESS = (
    "intervals",
    "race",
    "tpu/structure",
    "evaluation",
    "score",
    "tpu/simulation",
    "tpu/time_model",
    "targets",
    "isa",
)
_OF_STAGES = ("measured_stages", "modelled_stages", "verify_shapes", "drawn_shapes", "modelled", "base")
TESTS: dict[str, tuple[str, ...]] = {
    "fitness/gates.py": GATES,
    "fitness/elements.py": (*GATES, FROZEN),
    **{f"fitness/{name}.py": (f"tests/fitness/{_test_of(name)}", FROZEN) for name in _OF_FITNESS},
    "library/tilewright_library/dispatch_rule.py": ("tests/library/test_dispatch_rule.py", FROZEN),
    "fitness/tpu/memory.py": ("tests/fitness/tpu/test_memory.py", "tests/fitness/tpu/test_time_model.py", FROZEN),
    "fitness/tpu/llo.py": ("tests/fitness/tpu/test_llo.py", "tests/fitness/tpu/test_model.py"),
    "fitness/dialect.py": DIALECT,
    "workers/device/timing.py": (
        "tests/workers/device/test_timing.py",
        "tests/workers/cascade/test_measured_stages.py",
    ),
    **{f"workers/cascade/{name}.py": (f"tests/workers/cascade/{_test_of(name)}",) for name in _OF_STAGES},
    "workers/cascade/named_sizes.py": ("tests/workers/cascade/test_drawn_shapes.py",),
    "workers/cascade/common_stages.py": ("tests/workers/cascade/test_base.py",),
    "workers/cascade/measured.py": (
        "tests/workers/cascade/test_measured_stages.py",
        "tests/workers/cascade/test_base.py",
    ),
    "workers/cascade/compile_only.py": ("tests/workers/cascade/test_compile_only_stages.py",),
}
"""Module to the tests that must notice its mutants."""


@dataclass(frozen=True)
class Mutant:
    """One change: Cosmic Ray's operator, its occurrence, the line, and the module's text with it."""

    operator: str
    line: int
    text: str
    changed: str


def mutants(source: str, each: int, most: int, rng: random.Random) -> Iterator[Mutant]:
    """At most ``most``, and ``each`` of a family of operators at a place, in random order. Raises ImportError without
    Cosmic Ray."""
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
    meanings = {meaning(source)}
    lines = source.splitlines()
    for name, occurrence, start, operator in found:
        family = name.split("_")[0]
        if seen[family, start] >= each:
            continue
        text = mutate_code(source, operator, occurrence)
        if text is None or (means := meaning(text)) in meanings:
            continue
        meanings.add(means)
        seen[family, start] += 1
        after = text.splitlines()
        at = next((n for n, (a, b) in enumerate(zip(lines, after, strict=False)) if a != b), start[0] - 1)
        yield Mutant(name.removeprefix("core/"), at + 1, text, after[at].strip() if at < len(after) else "")
        if sum(seen.values()) == most:
            return


def meaning(text: str) -> str:
    """A module as it runs: without annotations, which nothing evaluates but pydantic."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.arguments):  # the star before what is named is no product
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults = [*node.defaults, *(d for d in node.kw_defaults if d is not None)]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        elif isinstance(node, ast.AnnAssign) and "BaseModel" not in text:
            node.annotation = ast.Name("object")
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


def imported_name(module: str) -> str:
    """``fitness/gates.py`` as it is imported."""
    path = module.replace("library/tilewright_library/", "library/")
    return "tilewright." + path.removesuffix(".py").replace("/", ".")


def keep_apart(module: str, tests: Sequence[str]) -> None:
    """Import the tests, then forget whatever depends on the module: forks import that anew, and nothing else."""
    for test in tests:
        importlib.import_module(test.partition("::")[0].removesuffix(".py").replace("/", "."))
    loaded = {name: m for name, m in sys.modules.items() if name.startswith(OURS) and getattr(m, "__file__", None)}
    uses = {name: _imports(Path(str(m.__file__)), name) for name, m in loaded.items()}
    tainted = {imported_name(module)}
    while more := {name for name, used in uses.items() if name not in tainted and used & tainted}:
        tainted |= more
    for name in tainted | {n for n in loaded if n.startswith("tests.")}:
        parent, _, last = name.rpartition(".")
        sys.modules.pop(name, None)
        if hasattr(sys.modules.get(parent), last):
            delattr(sys.modules[parent], last)


def _imports(file: Path, name: str) -> set[str]:
    """Names of modules that a file may import, and more."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*name.split(".")[: -node.level], node.module or ""]) if node.level else node.module
            found |= {str(base), *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def noticed(module: str, text: str, tests: Sequence[str], seconds: float) -> bool:
    """Whether a test fails, or none ends in time, with this text for the module."""
    pid = os.fork()
    if pid == 0:
        code = 1
        gc.disable()
        try:
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            sys.meta_path.insert(0, _Mutated(imported_name(module), ROOT / module, text))
            import pytest

            code = int(pytest.main([*QUICK, *tests]))
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def survey(module: str, args: argparse.Namespace) -> Iterator[tuple[Mutant, bool]]:
    """Mutants of a module that were run, and whether they were noticed."""
    source = (ROOT / module).read_text(encoding="utf-8")
    keep_apart(module, TESTS[module])
    gc.freeze()
    began = time.monotonic()
    if noticed(module, source, TESTS[module], args.seconds):
        raise SystemExit(f"{module}: its tests fail, or take over {args.seconds:g} s, without any change.")
    sys.stdout.write(f"# {module}: {time.monotonic() - began:.1f} s without any change\n")
    place, count = map(int, args.part.split("/"))
    for mutant in list(_of(module, args))[place::count]:
        yield mutant, noticed(module, mutant.text, TESTS[module], args.seconds)


def _of(module: str, args: argparse.Namespace) -> Iterator[Mutant]:
    """Made now, or before. Raises ValueError where the module is another since."""
    source = (ROOT / module).read_text(encoding="utf-8")
    if args.made is None:
        yield from mutants(source, args.each, args.most, random.Random(f"{args.seed} {module}"))
        return
    lines = source.splitlines(keepends=True)
    made = json.loads(args.made.read_text(encoding="utf-8"))
    if made[module]["source"] != zlib.crc32(source.encode()):
        raise ValueError(f"{module} has changed since its mutants were made")
    for operator, line, changed, begin, end, put in made[module]["mutants"]:
        yield Mutant(operator, line, "".join([*lines[:begin], *put, *lines[end:]]), changed)


def _written(args: argparse.Namespace) -> str:
    """All mutants as what they put in place of which lines."""
    found = {}
    for module in args.modules:
        source = (ROOT / module).read_text(encoding="utf-8")
        lines, rows = source.splitlines(keepends=True), []
        for one in _of(module, args):
            after = one.text.splitlines(keepends=True)
            begin = next((n for n, (a, b) in enumerate(zip(lines, after, strict=False)) if a != b), len(lines))
            same = 0
            while same < min(len(lines), len(after)) - begin and lines[-1 - same] == after[-1 - same]:
                same += 1
            put = after[begin : len(after) - same]
            rows.append((one.operator, one.line, one.changed, begin, len(lines) - same, put))
        found[module] = {"source": zlib.crc32(source.encode()), "mutants": rows}
    return json.dumps(found)


@dataclass(frozen=True)
class Found:
    """One mutant that was run; ``why``: what is known of one that nobody noticed."""

    module: str
    mutant: Mutant
    noticed: bool
    why: str

    @property
    def equal(self) -> bool:
        """It computes the same."""
        return not self.noticed and bool(self.why)


def report(found: Sequence[Found], command: str) -> list[str]:
    """Lines of a record."""
    lines = [
        "# The judge judged",
        "",
        f"Written by `{command}`, {datetime.date.today()}.",
        "",
        "| module | mutants | noticed | share | without those that compute the same |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    names = list(dict.fromkeys(f.module for f in found))
    for name in [*names, "all"]:
        mine = [f for f in found if name in (f.module, "all")]
        seen, real = sum(f.noticed for f in mine), sum(not f.equal for f in mine)
        label = name if name == "all" else f"`{name}`"
        shares = f"{seen / max(1, len(mine)):.1%} | {seen / max(1, real):.1%}"
        lines.append(f"| {label} | {len(mine)} | {seen} | {shares} |")
    lines += ["", "| not noticed | line | the line then | why |", "| --- | ---: | --- | --- |"]
    for f in sorted(found, key=lambda f: (names.index(f.module), f.mutant.line)):
        if not f.noticed:
            changed = f.mutant.changed.replace("|", "\\|")
            lines.append(f"| `{f.module}` | {f.mutant.line} | `{changed}` | {f.why or 'left'} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modules", nargs="*", default=list(TESTS), choices=list(TESTS))
    parser.add_argument("--each", type=int, default=1, help="mutants of one kind at a place")
    parser.add_argument("--most", type=int, default=100, help="mutants of a module")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the tests of one mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--make", type=Path, help="write mutants there and run none")
    parser.add_argument("--made", type=Path, help="mutants that --make wrote")
    parser.add_argument("--part", default="0/1", help="which of how many parts of each module's mutants")
    parser.add_argument("--rows", type=Path, help="add a line there for each mutant")
    parser.add_argument("--told", type=Path, nargs="*", default=(), help="report what these lines say")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.make:
        args.make.write_text(_written(args), encoding="utf-8")
        return 0
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half of a short run is their import
    for name in PRELOADED:
        importlib.import_module(name)
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants", phases=[Phase.generate], deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutants")
    found = [
        Found(m, Mutant(operator, line, "", changed), seen, "" if seen else why_equal(m, changed))
        for path in args.told
        for m, operator, line, changed, seen in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    ]
    for module in () if args.told else args.modules:
        for mutant, seen in survey(module, args):
            why = "" if seen else why_equal(module, mutant.changed)
            found.append(Found(module, mutant, seen, why))
            if args.rows:
                row = json.dumps((module, mutant.operator, mutant.line, mutant.changed, seen))
                with args.rows.open("a", encoding="utf-8") as rows:
                    rows.write(row + "\n")
            if not seen:
                sys.stdout.write(f"{module}:{mutant.line} {mutant.operator}: {mutant.changed}  [{why}]\n")
            sys.stdout.flush()
    command = shlex.join(["python", "-m", "experiments.studies.robustness.mutation", *sys.argv[1:]])
    text = "\n".join(report(found, command))
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
