"""Does this machine search as the one that made the record? Digests of searches, beside those written down.

    python -m experiments.studies.search.digest --seeds 3

A digest is over all that a search of 200 evaluations proposed, in order. Needs numpy, scipy, ml_dtypes and
threadpoolctl alone: where pydantic is missing, something that holds fields without checking them takes its place.
"""

from __future__ import annotations

import argparse
import copy
import csv
import platform
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testkit import RECORDS

RECORD = RECORDS / "search" / "search_efficiency.csv"


class Fields:
    """What stands in for pydantic's models: fields by keyword, defaults from the class."""

    def __init__(self, **values: Any) -> None:
        for kind in reversed(type(self).__mro__):
            for name in vars(kind).get("__annotations__", {}):
                if name in values or hasattr(kind, name):
                    vars(self)[name] = values[name] if name in values else copy.deepcopy(getattr(kind, name))

    def model_copy(self, update: dict[str, Any]) -> Fields:
        """The same with some fields replaced."""
        made = copy.copy(self)
        vars(made).update(update)
        return made


def stand_in() -> None:
    """Put ``Fields`` in the place of pydantic where there is none."""
    try:
        import pydantic  # noqa: F401
    except ModuleNotFoundError:
        module: Any = types.ModuleType("pydantic")
        module.BaseModel, module.ConfigDict = Fields, dict
        module.Field = lambda default=None, default_factory=lambda: None, **_: default or default_factory()
        module.model_validator = lambda **_: lambda method: method
        sys.modules["pydantic"] = module


def recorded(path: Path) -> dict[tuple[str, int], str]:
    """Digests by space and seed."""
    with path.open(newline="") as file:
        return {(row["space"], int(row["seed"])): row["sequence"] for row in csv.DictReader(file)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a digest differs."""
    parser = argparse.ArgumentParser(description="Digests of searches on recorded spaces.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--record", type=Path, default=RECORD, help="a CSV of search_efficiency to compare with"
    )
    parser.add_argument("--out", type=Path, help="a folder for digests.txt")
    told = parser.parse_args(arguments)
    stand_in()
    import numpy
    import scipy

    from experiments.studies.search.efficiency import Setting, run_search
    from experiments.studies.search.report import digest
    from testkit.spaces.tables import read_tables

    known = recorded(told.record)
    lines = [f"{platform.processor() or platform.machine()}, {_model()}, python {platform.python_version()}, "
             f"numpy {numpy.__version__}, scipy {scipy.__version__}"]  # fmt: skip
    differ = 0
    for table in read_tables():
        for seed in range(told.seeds):
            found = digest(run_search(table, seed, Setting()))
            differ += found != known.get((table.name, seed))
            lines.append(f"{table.name} seed {seed}: {found}, recorded {known.get((table.name, seed))}")
    lines.append(f"{len(lines) - 1 - differ} of {len(lines) - 1} as recorded")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if told.out:
        told.out.mkdir(parents=True, exist_ok=True)
        (told.out / "digests.txt").write_text(text)
    return 1 if differ else 0


def _model() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


if __name__ == "__main__":
    sys.exit(main())
