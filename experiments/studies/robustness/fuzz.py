"""Coverage-guided fuzzing of every parser of text that tilewright did not write itself.

    python -m experiments.studies.robustness.fuzz --minutes 10 --jobs 11 --out DIR     every parser for 10
    minutes, on a core each
    python -m experiments.studies.robustness.fuzz --report --out DIR                   the table of what DIR
    records so far

A run that was cut short goes on where it was when it is started again with the same DIR.
Inputs are damaged samples; one that takes a step between two lines of tilewright that none took before is kept and
damaged further. A parser gives a value or its module's own named error; anything else, and anything slower than
``SLOW_SECONDS`` of CPU time, is a failure. ``tests/fitness/test_parsers.py`` runs what was kept again
(``testkit/corpus/fuzz``; ``--keep`` writes it).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.studies.robustness.fuzz_targets import Parser, parsers
from testkit import CORPUS, ROOT

HERE = f"{ROOT}/"
KEPT_INPUTS = CORPUS / "fuzz"
SLOW_SECONDS = 5.0
HANG_SECONDS = 30.0
"""CPU time after which an input is taken for hanging its parser."""

SAVE_SECONDS = 20.0
"""Of work that a run which is cut short may lose."""

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
            self._ours[name] = name.startswith(HERE) and "/experiments/" not in name and "/.venv/" not in name
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
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def step(self, rng: random.Random, folder: Path) -> None:
        """One input."""
        pool = self.kept if self.kept and rng.random() < 0.8 else self.parser.samples
        data = mutated(rng.choice(pool), self.parser.words, rng)
        fault, new = self.learn(data, folder)
        self.inputs += 1
        if fault is not None:
            self.failures.setdefault(fault, data)
        elif new:
            self.kept.append(data)

    def learn(self, data: bytes, folder: Path) -> tuple[str | None, bool]:
        """What is wrong with how ``data`` is taken, and whether it takes an arc that none took before."""
        tracer = Tracer()
        with tracer.tracing():
            fault = attempt(self.parser, data, folder)
        new = fault is None and not tracer.arcs <= self.arcs
        if new:
            self.arcs |= tracer.arcs
        return fault, new


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


def fuzz(name: str, minutes: float, seed: int, out: Path) -> None:
    """One parser until it has had so many minutes of wall time, those of earlier runs included."""
    found = restored(name, out)
    rng = random.Random(f"{seed} {name} {found.inputs}")
    signal.signal(signal.SIGVTALRM, _hang)
    with tempfile.TemporaryDirectory() as folder:
        for data in found.kept:  # the arcs they take are known again
            found.learn(data, Path(folder))
        before = (found.seconds, found.cpu_seconds)
        began = (time.monotonic(), time.process_time())
        saved = began[0]
        while found.seconds < 60 * minutes:
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
            found.step(rng, Path(folder))
            now = time.monotonic()
            found.seconds = before[0] + now - began[0]
            found.cpu_seconds = before[1] + time.process_time() - began[1]
            if now - saved > SAVE_SECONDS or found.seconds >= 60 * minutes:
                save(name, found, out)
                saved = now
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def state_path(name: str, out: Path) -> Path:
    """Where a parser's state is kept."""
    return out / f"{name.replace(' ', '_')}.json"


def restored(name: str, out: Path) -> Fuzzed:
    """A parser as an earlier run left it in ``out``, or at its beginning."""
    found, path = Fuzzed(parsers()[name]), state_path(name, out)
    if path.is_file():
        state = json.loads(path.read_text())
        found.inputs, found.seconds, found.cpu_seconds = (
            state[key] for key in ("inputs", "seconds", "cpu_seconds")
        )
        found.kept = [_unpacked(text) for text in state["kept"]]
        found.failures = {fault: _unpacked(text) for fault, text in state["failures"].items()}
    return found


def save(name: str, found: Fuzzed, out: Path) -> None:
    """Write a parser's state whole or not at all."""
    state = {
        "parser": name,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": found.seconds,
        "cpu_seconds": found.cpu_seconds,
        "inputs": found.inputs,
        "arcs": len(found.arcs),
        "kept": [_packed(data) for data in found.kept],
        "failures": {fault: _packed(data) for fault, data in found.failures.items()},
    }
    partial = state_path(name, out).with_suffix(".part")
    partial.write_text(json.dumps(state) + "\n")
    partial.replace(state_path(name, out))


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_SECONDS:g} s of CPU time")


def corpus(name: str) -> list[bytes]:
    """What earlier runs kept for the tests."""
    path = KEPT_INPUTS / f"{name.replace(' ', '_')}.json"
    texts = json.loads(path.read_text()) if path.is_file() else []
    return [_unpacked(text) for text in texts]


def keep(name: str, found: Fuzzed) -> None:
    """Add the smallest inputs that reached something new, and of each kind of failure, to the tests' corpus."""
    failing: dict[str, bytes] = {}
    for fault, data in sorted(found.failures.items(), key=lambda item: len(item[1])):
        failing.setdefault(fault.partition(":")[0], data)
    new = sorted(
        (data for data in found.kept if len(data) <= KEPT_LARGEST), key=lambda data: (len(data), data)
    )
    together = {*corpus(name), *new[:KEPT], *failing.values()}
    KEPT_INPUTS.mkdir(parents=True, exist_ok=True)
    ordered = sorted(together, key=lambda data: (len(data), data))
    texts = [_packed(data) for data in ordered]
    (KEPT_INPUTS / f"{name.replace(' ', '_')}.json").write_text(json.dumps(texts, indent=0) + "\n")


def report(out: Path) -> str:
    """What ``out`` records as a table."""
    lines = [
        "| parser | minutes | of CPU time | inputs | reached something new | arcs of lines | failures |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name in sorted(parsers()):
        if state_path(name, out).is_file():
            state = json.loads(state_path(name, out).read_text())
            lines.append(
                f"| {name} | {state['seconds'] / 60:.1f} | {state['cpu_seconds'] / 60:.1f} | {state['inputs']} "
                f"| {len(state['kept'])} | {state['arcs']} | {kinds(state['failures'])} |"
            )
    return "\n".join(lines) + "\n"


def kinds(failures: Iterable[str]) -> str:
    """Failures by the type of their error, the number of different messages in brackets."""
    counted = Counter(failure.partition(":")[0] for failure in failures)
    return ", ".join(f"{kind} ({count})" for kind, count in counted.items()) or "none"


def _share(names: Sequence[str], minutes: float, seed: int, out: Path) -> None:
    for name in names:
        fuzz(name, minutes, seed, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each parser, earlier runs included")
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the state")
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.randbytes(4)))
    parser.add_argument("--only", nargs="*", choices=sorted(parsers()), default=sorted(parsers()))
    parser.add_argument("--jobs", type=int, default=1, help="processes; parsers are dealt to them")
    parser.add_argument("--keep", action="store_true", help="add what --out holds to the tests' corpus")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not (arguments.report or arguments.keep):
        context = multiprocessing.get_context("spawn")
        shares = [arguments.only[n :: arguments.jobs] for n in range(arguments.jobs)]
        processes = [
            context.Process(target=_share, args=(names, arguments.minutes, arguments.seed, arguments.out))
            for names in shares
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    found = {name: restored(name, arguments.out) for name in arguments.only}
    if arguments.keep:
        for name, one in found.items():
            keep(name, one)
    sys.stdout.write(report(arguments.out))
    done = all(one.seconds >= 60 * arguments.minutes for one in found.values())
    return 0 if done and not any(one.failures for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
