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
import json
import multiprocessing
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from testkit.fuzz_targets import parsers
from testkit.fuzzing import HANG_SECONDS, KEPT_INPUTS, Fuzzed, corpus, on_hang, packed, unpacked

SAVE_SECONDS = 20.0
"""Of work that a run which is cut short may lose."""

KEPT_LARGEST, KEPT = 1 << 10, 24
"""Bytes and number of the inputs kept for the tests."""


def fuzz(name: str, minutes: float, seed: int, out: Path) -> None:
    """One parser until it has had so many minutes of wall time, those of earlier runs included."""
    found = restored(name, out)
    rng = random.Random(f"{seed} {name} {found.inputs}")
    signal.signal(signal.SIGVTALRM, on_hang)
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
        found.kept = [unpacked(text) for text in state["kept"]]
        found.failures = {fault: unpacked(text) for fault, text in state["failures"].items()}
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
        "kept": [packed(data) for data in found.kept],
        "failures": {fault: packed(data) for fault, data in found.failures.items()},
    }
    partial = state_path(name, out).with_suffix(".part")
    partial.write_text(json.dumps(state) + "\n")
    partial.replace(state_path(name, out))


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
    texts = [packed(data) for data in ordered]
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
