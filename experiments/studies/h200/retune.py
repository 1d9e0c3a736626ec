"""Do two campaigns agree? Their dispatch tables' choices side by side on the device, shape by shape.

    python -m experiments.studies.h200.retune FIRST/dispatch.json SECOND/dispatch.json --out results.json

Both genomes of a shape run in the same rounds, order reversed each time, with the first genome a second time as
control. Every figure printed is measured on the tables' target.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign.dispatch_table import lookup
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.device.comparison import compare
from tilewright.workers.device.station import Entry, LocalStation

EFFORT = (8, 3)
"""Rounds, and timed calls a round."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tables = [json.loads(path.read_text()) for path in arguments.tables]
    found = side_by_side(tables, arguments.seed)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["workloads"]:
        sys.stdout.write(
            f"{row['workload']:24s} {row['seconds'][0] * 1e6:8.1f} us {row['seconds'][1] * 1e6:8.1f} us  "
            f"second / first {row['ratio']:.4f} [{row['interval'][0]:.4f}, {row['interval'][1]:.4f}]  "
            f"control {row['control']:.4f}\n"
        )
    sys.stdout.write(f"largest disagreement {found['largest']:.4f} ({found['target']}, measured)\n")
    return 0


def side_by_side(tables: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Times of both tables' choices on every workload of the first. Raises RuntimeError when a genome fails."""
    operator, target = load_operator(tables[0]["operator"]), load_target(tables[0]["target"])
    workloads = operator.suites[tables[0]["suite"]].workloads
    sources = {name: genome for table in tables for name, genome in table["genomes"].items()}
    station = LocalStation(target.gpu)
    try:
        rows = []
        for workload in workloads:
            picks = [lookup(table, workload.dims) for table in tables]
            names = list(dict.fromkeys(picks))
            entries = [Entry(name, sources[name]["source"], sources[name]["params"]) for name in names]
            found = compare(station, operator, target, [workload], entries, seed, EFFORT)
            if found.failed:
                raise RuntimeError(f"{workload.id}: {found.failed}")
            ratio = found.ratio(picks[1], picks[0])
            rows.append(
                {
                    "workload": workload.id,
                    "genomes": picks,
                    "seconds": [found.seconds(workload.id, name) for name in picks],
                    "ratio": ratio.value,
                    "interval": [ratio.low, ratio.high] if len(names) > 1 else [1.0, 1.0],
                    "control": found.control()[workload.id],
                    "rounds": found.rounds[workload.id],
                }
            )
        device = {k: str(v) for k, v in station.hello().items() if k != "isolation"}
    finally:
        station.close()
    largest = max(abs(row["ratio"] - 1.0) for row in rows)
    return {
        "target": target.name,
        "kind": "measured",
        "device": device,
        "largest": largest,
        "workloads": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
