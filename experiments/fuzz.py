"""Coverage-guided fuzzing of every parser of text that tilewright did not write itself.

    python -m experiments.fuzz --only "result frames" --minutes 10 --out DIR     one group of parsers, or several
    python -m experiments.fuzz --report --out DIR                                the table of what DIR records

Inputs are damaged samples; one that takes a step between two lines of tilewright that none took before is kept and
damaged further. A parser gives a value or its module's own named error; anything else, and anything slower than
``SLOW_SECONDS`` of CPU time, is a failure. ``tests/fitness/test_parsers.py`` runs what was kept again
(``tests/corpus/fuzz``; ``--keep`` writes it).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import random
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.fuzz_targets import GROUPS, Parser, parsers

ROOT = str(Path(__file__).parent.parent) + "/"
CORPUS = Path(ROOT) / "tests/corpus/fuzz"
SLOW_SECONDS = 5.0
HANG_SECONDS = 30.0
"""CPU time after which an input is taken for hanging its parser."""

LARGEST, KEPT_LARGEST, KEPT = 1 << 17, 1 << 10, 24
"""Bytes of an input; bytes and number of those kept for the tests."""

Arc = tuple[int, int, int]


class Hang(Exception):
    """A parser that does not come back."""


class Tracer:
    """Arcs between lines of tilewright's own packages, as ``sys.settrace`` reports them."""

    def __init__(self) -> None:
        self.arcs: set[Arc] = set()
        self._ours: dict[str, bool] = {}

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._ours:
            self._ours[name] = name.startswith(ROOT) and "/experiments/" not in name and "/.venv/" not in name
        if not self._ours[name]:
            return None
        code, arcs = id(frame.f_code), self.arcs
        last = 0

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "line":
                arcs.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line


@dataclass
class Fuzzed:
    """One parser under way: the inputs that reached something new, and what went wrong."""

    parser: Parser
    inputs: int = 0
    kept: list[bytes] = field(default_factory=list)
    arcs: set[Arc] = field(default_factory=set)
    failures: dict[str, bytes] = field(default_factory=dict)

    def step(self, rng: random.Random, folder: Path) -> None:
        """One input."""
        pool = self.kept if self.kept and rng.random() < 0.8 else self.parser.samples
        data = mutated(rng.choice(pool), self.parser.words, rng)
        tracer = Tracer()
        with tracer.tracing():
            fault = attempt(self.parser, data, folder)
        self.inputs += 1
        if fault is not None:
            self.failures.setdefault(fault, data)
        elif not tracer.arcs <= self.arcs:
            self.arcs |= tracer.arcs
            self.kept.append(data)


def mutated(sample: bytes, words: Sequence[bytes], rng: random.Random) -> bytes:
    """A sample with a few cuts, copies, flips and words put into it."""
    data = bytearray(sample)
    for _ in range(rng.randint(1, 6)):
        at, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        match rng.randrange(6):
            case 0:
                del data[at : min(end, at + 64)]
            case 1:
                data[at:at] = rng.choice(words)
            case 2:
                data[at:at] = data[at:end] * rng.choice((1, 1, 2, 20))
            case 3 if data:
                data[at % len(data)] = rng.randrange(256)
            case 4:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                data[at:end] = rng.choice(words) * rng.choice((1, 1, 3, 200))
        del data[LARGEST:]
    return bytes(data)


def attempt(parser: Parser, data: bytes, folder: Path) -> str | None:
    """What is wrong with how a parser takes ``data``; None when nothing is."""
    begun = time.process_time()
    try:
        parser.read(data, folder)
    except parser.errors as error:
        if not str(error):
            return "an error without a message"
    except Exception as error:  # noqa: BLE001 - what is looked for
        return f"{type(error).__name__}: {error}"[:200]
    spent = time.process_time() - begun
    return "more CPU time than allowed" if spent > SLOW_SECONDS else None


def fuzz(names: Sequence[str], minutes: float, seed: int, folder: Path) -> dict[str, Fuzzed]:
    """Parsers in turn, for so many minutes together."""
    found = {name: Fuzzed(parsers()[name]) for name in names}
    rng, end = random.Random(f"{seed} {names}"), time.monotonic() + 60 * minutes
    signal.signal(signal.SIGVTALRM, _hang)
    while time.monotonic() < end:
        for one in found.values():
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
            one.step(rng, folder)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return found


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_SECONDS:g} s of CPU time")


def corpus(name: str) -> list[bytes]:
    """What earlier runs kept for the tests."""
    path = CORPUS / f"{name.replace(' ', '_')}.json"
    texts = json.loads(path.read_text()) if path.is_file() else []
    return [zlib.decompress(base64.b64decode(text)) for text in texts]


def keep(name: str, found: Fuzzed) -> None:
    """Add the smallest inputs that reached something new, and every failure, to the tests' corpus."""
    new = sorted(
        (data for data in found.kept if len(data) <= KEPT_LARGEST), key=lambda data: (len(data), data)
    )
    together = {*corpus(name), *new[:KEPT], *found.failures.values()}
    CORPUS.mkdir(parents=True, exist_ok=True)
    ordered = sorted(together, key=lambda data: (len(data), data))
    texts = [base64.b64encode(zlib.compress(data, 9)).decode() for data in ordered]
    (CORPUS / f"{name.replace(' ', '_')}.json").write_text(json.dumps(texts, indent=0) + "\n")


def report(out: Path) -> str:
    """The recorded runs as a table."""
    rows = [json.loads(line) for line in (out / "fuzz.jsonl").read_text().splitlines()]
    lines = [
        "| parsers | minutes (of CPU time) | seed | inputs | reached something new | arcs of lines | failures |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        for name, found in row["parsers"].items():
            said, spent = (
                "; ".join(found["failures"]) or "none",
                f"{row['minutes']:g} ({row['cpu_minutes']:g})",
            )
            lines.append(
                f"| {row['group']}: {name} | {spent} | {row['seed']} | {found['inputs']} "
                f"| {found['kept']} | {found['arcs']} | {said} |"
            )
    return "\n".join(lines) + "\n"


def _record(group: str, arguments: argparse.Namespace, found: Mapping[str, Fuzzed]) -> int:
    for name, one in found.items():
        for data in one.failures.values():
            digest = hashlib.sha256(data).hexdigest()[:16]
            (arguments.out / f"{name.replace(' ', '_')}-{digest}").write_bytes(data)
        if arguments.keep:
            keep(name, one)
    row = {
        "group": group,
        "minutes": arguments.minutes,
        "cpu_minutes": round(time.process_time() / 60, 1),
        "seed": arguments.seed,
        "date": time.strftime("%Y-%m-%d"),
        "parsers": {
            name: {
                "inputs": one.inputs,
                "kept": len(one.kept),
                "arcs": len(one.arcs),
                "failures": sorted(one.failures),
            }
            for name, one in found.items()
        },
    }
    with (arguments.out / "fuzz.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    sys.stdout.write(json.dumps(row) + "\n")
    return sum(len(one.failures) for one in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each group of parsers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.randbytes(4)))
    parser.add_argument("--only", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--keep", action="store_true", help="add to the tests' corpus")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        sys.stdout.write(report(arguments.out))
        return 0
    failures = 0
    for group in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz(GROUPS[group], arguments.minutes, arguments.seed, Path(folder))
        failures += _record(group, arguments, found)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
