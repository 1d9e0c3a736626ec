"""Size of the repository: lines of Python by part, files, the largest folder, checked against limits.

    python -m experiments.house                        the tracked files as they are now
    python -m experiments.house --against REVISION     the same, before -> after
    python -m experiments.house --check                exit with 1 where a limit is passed

Lines are those that ``wc -l`` counts, docstrings and blank ones included.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

LIMITS = {"product": 76_000, "all Python": 120_000, "tracked files": 1_100, "modules in the largest folder": 25}
"""The most these rows may be."""

PARTS = {
    **dict.fromkeys(("evolve", "workers", "fitness", "seeds", "tilewright"), "product"),
    **dict.fromkeys(("tests", "testkit"), "tests and testkit"),
    "library": "library",
    "experiments": "experiments",
}
"""Part of each top-level folder; others count in ``all Python`` alone."""

ROOT = Path(__file__).resolve().parent.parent


def tracked_files(revision: str | None) -> Iterator[tuple[str, bytes]]:
    """Path and content of each tracked file: of ``revision``, or of the working tree for None. Links are left out."""
    if revision is None:
        for path in _git("ls-files", "-z").decode().split("\0"):
            if (ROOT / path).is_file() and not (ROOT / path).is_symlink():
                yield path, (ROOT / path).read_bytes()
        return
    rows = [line.split(None, 3) for line in _git("ls-tree", "-r", "-z", revision).decode().split("\0") if line]
    files = [(path, blob) for mode, _, blob, path in rows if mode != "120000"]
    answer = _git("cat-file", "--batch", stdin="\n".join(blob for _, blob in files).encode())
    at = 0
    for path, _ in files:
        # each answer is "<id> blob <size>\n<content>\n"
        end = answer.index(b"\n", at)
        size = int(answer[at:end].split()[2])
        yield path, answer[end + 1 : end + 1 + size]
        at = end + size + 2


def _git(*arguments: str, stdin: bytes | None = None) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, input=stdin, capture_output=True, check=True).stdout


def measure(revision: str | None) -> tuple[dict[str, float], list[str]]:
    """The table's rows, and the folders that hold more modules than ``LIMITS`` allows."""
    rows = dict.fromkeys((*PARTS.values(), *LIMITS, "size of the tracked tree (MB)"), 0.0)
    modules = Counter[str]()
    for name, content in tracked_files(revision):
        path = PurePosixPath(name)
        rows["tracked files"] += 1
        rows["size of the tracked tree (MB)"] += len(content) / 1e6
        if path.suffix == ".py":
            rows["all Python"] += content.count(b"\n")
            if (part := PARTS.get(path.parts[0])) is not None:
                rows[part] += content.count(b"\n")
            modules[str(path.parent)] += path.name != "__init__.py"
    rows["modules in the largest folder"] = max(modules.values())
    most = LIMITS["modules in the largest folder"]
    return rows, [f"{folder}: {count} modules" for folder, count in sorted(modules.items()) if count > most]


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts what the repository holds.")
    parser.add_argument("--against", metavar="REVISION", help="print that revision's figures as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is passed")
    options = parser.parse_args()
    rows, crowded = measure(None)
    before = measure(options.against)[0] if options.against else None
    passed = [name for name, limit in LIMITS.items() if rows[name] > limit]
    for name, value in rows.items():
        places = 1 if name.endswith("(MB)") else 0
        was = f"{before[name]:>10,.{places}f} -> " if before is not None else ""
        limit = f"  (limit {LIMITS[name]:,}{', passed' if name in passed else ''})" if name in LIMITS else ""
        sys.stdout.write(f"{name:<32}{was}{value:>10,.{places}f}{limit}\n")
    for line in crowded:
        sys.stdout.write(f"{line}\n")
    return 1 if options.check and passed else 0


if __name__ == "__main__":
    sys.exit(main())
