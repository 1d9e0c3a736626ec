"""Mistakes planted in kernels that were taken in: which of them the judge of their campaign refuses.

``python -m experiments.studies.tune.twins FOLDER... [--target NAME] [--harmless] [--out FILE]``: each folder is one
that ``tilewright tune`` wrote. Every changed module is judged as a candidate of its campaign, by the cascade of the
target, at the seed's own parameters. ``--harmless`` changes what nobody may mind, and takes other points of the space:
those must pass.
"""

import argparse
import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.studies.tune.mistakes import HARMLESS, MISTAKES, planted

POINTS = 8
"""Other points of the space that are tried."""

SEED = 23


Row = tuple[str, str, dict[str, Any]]
"""Name, source and parameters of a candidate."""


def candidates(
    source: str, space: Mapping[str, Sequence[Any]], defaults: Mapping[str, Any], *, harmless: bool
) -> list[Row]:
    """The seed's own first, then one of every kind before a second of any."""
    found = list(planted(source, HARMLESS if harmless else MISTAKES))
    found.sort(key=lambda row: row[0].rpartition("(")[2] if row[0].endswith(")") else "1")
    rows = [("none", source, dict(defaults)), *((name, text, dict(defaults)) for name, text in found)]
    if harmless:
        rng = random.Random(SEED)
        for _ in range(POINTS):
            point = {name: rng.choice(list(values)) for name, values in space.items()}
            rows.append((f"at {point}", source, point))
    return rows


class Judge:
    """Threads that judge candidates of one taken operator, on one station where the target has a device."""

    def __init__(self, folder: Path, target: str, threads: int) -> None:
        from tilewright.evolve.intake.folder import CALLS, RECIPE, SMALL
        from tilewright.evolve.intake.folder import SEED as KERNEL
        from tilewright.evolve.intake.tune import target_named
        from tilewright.fitness.targets import Target
        from tilewright.seeds.catalogue import load_operator
        from tilewright.workers.cascade.measured import MeasuredCascade
        from tilewright.workers.device.station import LocalStation
        from tilewright.workers.device.timing import Samples
        from tilewright.workers.request import Truth

        self.operator = load_operator(f"{folder.resolve()}/{RECIPE}")
        self.seed = self.operator.kernels[KERNEL]
        on: Target = target_named(target)
        self.device = LocalStation(on.hardware)
        threads = 1 if on.interpreted else threads  # every job of an interpreter has a process of its own
        truth, samples = Truth(self.operator, 64), Samples(self.operator)
        suite = self.operator.suites[SMALL if on.interpreted else CALLS]
        self._free = [
            MeasuredCascade(self.operator, on, suite, self.device, truth=truth, samples=samples)
            for _ in range(threads)
        ]
        self._threads = ThreadPoolExecutor(threads)

    def all(self, rows: Sequence[Row], until: float) -> Iterator[dict[str, Any]]:
        """Verdicts in order; what is not begun by ``until`` is left out."""
        yield self._one(0, rows[0])
        later = [self._threads.submit(self._in_time, n, row, until) for n, row in enumerate(rows[1:], 1)]
        yield from filter(None, (one.result() for one in later))

    def _in_time(self, number: int, row: Row, until: float) -> dict[str, Any] | None:
        return None if time.monotonic() > until else self._one(number, row)

    def _one(self, number: int, row: Row) -> dict[str, Any]:
        cascade = self._free.pop()
        try:
            found = cascade.evaluate(f"twin{number}", row[1], row[2], seed=SEED)
        finally:
            self._free.append(cascade)
        passed = found.verdict.value == "ok"
        lowest = min((g.value for g in found.gates if g.value is not None), default=None)
        return {
            "change": row[0], "verdict": found.verdict.value, "reason": found.reason, "stage": found.stage.value,
            **({"lowest reading": lowest} if passed else {}),
        }  # fmt: skip

    def close(self) -> None:
        self._threads.shutdown()
        for cascade in self._free:
            cascade.close()
        self.device.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--target", default="interpreter")
    parser.add_argument("--harmless", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for each folder")
    parser.add_argument("--threads", type=int, default=4, help="on a device")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    for folder in given.folders:
        with contextlib.closing(Judge(folder, given.target, given.threads)) as judge:
            space = _space(judge.seed.source)
            rows = candidates(judge.seed.source, *space, harmless=given.harmless)
            found = list(judge.all(rows, time.monotonic() + given.seconds))
        record = {"kernel": folder.name, "target": given.target, "asked": len(rows), "found": found}
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(record) + "\n")
        odd = [r for r in found[1:] if (r["verdict"] == "ok") != given.harmless]
        said = [f"{folder.name}: {found[0]['verdict']}; {len(found) - 1} of {len(rows) - 1} judged"]
        said += [f"  {row['change']}: {row['verdict']} {row['reason']}" for row in odd]
        print("\n".join(said), flush=True)  # noqa: T201
    return 0


def _space(source: str) -> tuple[Mapping[str, Sequence[Any]], Mapping[str, Any]]:
    from tilewright.evolve.space.space import read_declarations

    found = read_declarations(source)
    return found.space, found.defaults


if __name__ == "__main__":
    raise SystemExit(main())
