"""Every kind of fault many times over, and 200 kills of the driver; the journal must end as without them.

    python -m experiments.studies.robustness.fault_kinds --seeds 10 --kills 200 --out experiments/records

The rows are those of ``testkit/faults/kinds.py``: a campaign on a table, with real children, the pool's own code on a
cluster in virtual time, and real files. Writes ``faults.md``. Exit code 0 when nothing differed. What only real
infrastructure shows is in ``experiments.studies.cluster.loss`` (a Ray node), ``mlflow_away`` and ``kill_resume``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from testkit.faults.campaigns import Table, begun, content, driven, finish, go
from testkit.faults.kinds import FAULTS, Fault, differences


def unbroken(folder: Path) -> dict[str, Any]:
    """The journal of a campaign without faults."""
    path = folder / "unbroken.sqlite"
    go(path, Table(np.random.default_rng(0)))
    return content(path)


def repeat(fault: Fault, seeds: int, wanted: dict[str, Any]) -> list[str]:
    """What was not as stated, over so many seeds."""
    said = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = content(fault.inject(Path(folder), seed, wanted))
            except Exception as error:  # noqa: BLE001 - what is looked for
                said.append(f"seed {seed}: {type(error).__name__}: {error}"[:200])
                continue
            said += [f"seed {seed}: {what}" for what in differences(fault, found, wanted)]
    return said


def kill(kills: int, longest_seconds: float, wanted: dict[str, Any]) -> tuple[int, list[int]]:
    """Campaigns whose journal differed, and how many evaluations were recorded at each kill."""
    rng, recorded, wrong = np.random.default_rng(0), [], 0
    while len(recorded) < kills:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "j.sqlite"
            lives = 0
            while len(recorded) < kills and driven(path, lives, float(rng.uniform(0.0, longest_seconds))):
                lives += 1
                recorded.append(_rows(path))
            finish(path)
            wrong += content(path) != wanted
    return wrong, recorded


def _rows(path: Path) -> int:
    return len(content(path)["evaluations"]) if begun(path) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--longest-seconds", type=float, default=0.12, help="of a driver's life before its kill"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        wanted = unbroken(Path(folder))
    rows, bad = [], 0
    for fault in FAULTS:
        said = repeat(fault, arguments.seeds, wanted)
        bad += bool(said)
        rows.append(f"| {fault.name} | {fault.stated} | {'; '.join(said[:2]) or 'as stated'} |")
        sys.stderr.write(rows[-1] + "\n")
    wrong, recorded = kill(arguments.kills, arguments.longest_seconds, wanted)
    middle = sum(0 < n < len(wanted["evaluations"]) for n in recorded)
    text = [
        f"# Faults, {time.strftime('%Y-%m-%d')}",
        "",
        f"Written by `python -m experiments.studies.robustness.fault_kinds --seeds {arguments.seeds} --kills "
        f"{arguments.kills}`. Each "
        f"kind of fault is injected into a campaign of {len(wanted['evaluations'])} evaluations on a table, with "
        f"{arguments.seeds} seeds; the journal must equal that of a campaign without faults, up to order, but for the "
        "verdict of the one candidate whose own child or device is at fault.",
        "",
        f"* kinds of faults: {len(FAULTS)}; not as stated: {bad}",
        f"* SIGKILL of the driver: {len(recorded)} kills at random moments, {middle} of them in the midst of the "
        f"evaluations; campaigns whose journal differed: {wrong}",
        "",
        "| fault | what happens | found |",
        "| --- | --- | --- |",
        *rows,
    ]
    (arguments.out / "faults.md").write_text("\n".join(text) + "\n")
    return 1 if bad or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
