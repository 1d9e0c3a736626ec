"""Evaluations per second of the loop itself: proposals, archive and journal against a table, in one process.

python -m experiments.studies.search.loop --evaluations 10000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from testkit.spaces.campaigns import PROPOSERS, Setting, table_campaign
from testkit.spaces.tables import SPACES, read_table
from tilewright.evolve.record.journal import Journal


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Evaluations per second of the loop against a table.")
    parser.add_argument("--space", default="gemm_rtx3090")
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--proposers", nargs="*", choices=PROPOSERS, default=list(PROPOSERS))
    told = parser.parse_args(arguments)
    table = read_table(SPACES / f"{told.space}.json")
    setting = Setting(told.evaluations, told.lag, proposers=tuple(told.proposers))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        with Journal(path, write=True, create=True) as journal:
            campaign = table_campaign(table, 0, setting, record=journal)
            wall, cpu = time.perf_counter(), time.process_time()
            campaign.run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = len(campaign.history.evaluated)
    sys.stdout.write(
        f"{told.space}, proposers {', '.join(told.proposers)}, {told.lag} in flight: {count} evaluations, "
        f"{wall:.2f} s wall, {cpu:.2f} s CPU: {count / wall:.0f} evaluations/s of wall time, "
        f"{count / cpu:.0f} of CPU time (measured).\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
