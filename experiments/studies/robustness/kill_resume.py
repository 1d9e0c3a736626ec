"""Kill a campaign's driver with SIGKILL at random moments, resume it each time, and compare with an unbroken run.

    python -m experiments.studies.robustness.kill_resume quickstart --kills 10 --evaluations 30 --home /tmp/kills

Exit code 0 when both journals hold the same candidates and evaluations, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal

TILEWRIGHT = (sys.executable, "-m", "tilewright.evolve.cli")


def main() -> int:
    """Run the comparison and print one JSON object."""
    arguments = _arguments()
    whole, killed = arguments.home / "whole", arguments.home / "killed"
    run = ["run", arguments.campaign, "--evaluations", str(arguments.evaluations)]
    if not _rows(whole):
        _finish(whole, run)
    rng = random.Random(arguments.seed)
    moments, rows = [], []
    command = run
    for _ in range(arguments.kills):
        after = rng.uniform(0.0, arguments.longest_seconds)
        if not _kill(killed, command, after):
            break
        moments.append(round(after, 1))
        rows.append(_rows(killed))
        command = ["resume"]
    _finish(killed, command)
    one, other = _content(whole), _content(killed)
    submitted = [index for index, *_ in other["candidates"]]
    print(  # noqa: T201
        json.dumps(
            {
                "campaign": arguments.campaign,
                "evaluations": arguments.evaluations,
                "killed_after_seconds": moments,
                "evaluations_at_each_kill": rows,
                "same_journal": one == other,
                "evaluated_once_each": len(set(submitted)) == len(submitted) == len(other["evaluations"]),
            },
            indent=1,
        )
    )
    return 0 if one == other else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("campaign")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=30)
    parser.add_argument("--longest-seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, required=True)
    return parser.parse_args()


def _command(home: Path, arguments: list[str]) -> list[str]:
    return [*TILEWRIGHT, "--home", str(home), *arguments]


def _finish(home: Path, arguments: list[str]) -> None:
    subprocess.run(_command(home, arguments), check=True, stdout=subprocess.DEVNULL)


def _kill(home: Path, arguments: list[str], after_seconds: float) -> bool:
    """Kill so long after the campaign went on; whether the driver was still running then."""
    before = _begun(home)
    process = subprocess.Popen(_command(home, arguments), stdout=subprocess.DEVNULL)
    while _begun(home) == before and process.poll() is None:
        time.sleep(0.1)
    time.sleep(after_seconds)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return alive


def _journal(home: Path) -> Path | None:
    known = campaigns(home)
    return known[-1] / JOURNAL if known else None


def _content(home: Path) -> dict:
    path = _journal(home)
    if path is None:
        return {"candidates": [], "evaluations": {}}
    with Journal(path) as journal:
        return journal.content()


def _begun(home: Path) -> int:
    """How often the campaign was started or resumed."""
    path = _journal(home)
    if path is None:
        return 0
    try:
        with Journal(path) as journal:
            return sum(event.kind in ("started", "resumed") for event in journal.events())
    except JournalError:  # being created
        return 0


def _rows(home: Path) -> int:
    return len(_content(home)["evaluations"])


if __name__ == "__main__":
    sys.exit(main())
