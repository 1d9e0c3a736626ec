"""How many problems of a benchmark make an operator whose reference passes the gate derived from it.

``python -m experiments.studies.tune.problems FOLDER [--out FILE]``: every file of KernelBench, JAXBench or
flashinfer-bench below a folder, each at the smallest sizes at which it runs. The benchmarks are no part of this
project.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CAPS = (16, 32, 64, 128, 256, 1024)
"""Most of a size, tried in turn."""

SECONDS = 60.0


def judged(path: Path) -> dict[str, Any]:
    """Format, the sizes' cap at which it ran, and what is against it."""
    from tilewright.workers.intake.formats.problem import NoProblem, own_gate, read

    began, why, kind = time.monotonic(), "", ""
    for cap in CAPS:
        try:
            problem = read(path)
            kind = problem.kind
            why = own_gate(problem.case(cap, 1))
        except NoProblem as error:
            return {"problem": path.stem, "format": "", "cap": 0, "against": str(error), "seconds": 0.0}
        except Exception as error:  # noqa: BLE001 - a size that the problem does not take
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if not why or time.monotonic() - began > SECONDS / 2:
            break
    return {
        "problem": path.stem, "format": kind, "cap": cap, "against": why,
        "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    files = sorted(
        p for p in given.folder.rglob("*") if p.suffix in (".py", ".json") and p.name != "__init__.py"
    )
    rows = []
    context = multiprocessing.get_context("fork")
    for path in files:
        with context.Pool(1) as pool:
            try:
                row = pool.apply_async(judged, (path,)).get(SECONDS)
            except multiprocessing.TimeoutError:
                row = {
                    "problem": path.stem,
                    "format": "",
                    "cap": 0,
                    "against": "too slow",
                    "seconds": SECONDS,
                }
        if row["format"] or "is no" not in row["against"]:
            rows.append(row)
            sys.stdout.write(
                f"{row['problem']}: {row['against'] or 'passes'} ({row['cap']}, {row['seconds']} s)\n"
            )
    passed = sum(not row["against"] for row in rows)
    sys.stdout.write(f"{passed} of {len(rows)} problems pass their own gate\n")
    if given.out:
        given.out.write_text(json.dumps({"passed": passed, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
