"""Coverage-guided fuzzing of the parsers of foreign text, and the inputs that earlier runs kept."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from testkit import CORPUS, ROOT
from testkit.fuzz_targets import Parser

HERE = f"{ROOT}/"


KEPT_INPUTS = CORPUS / "fuzz"


SLOW_SECONDS = 5.0


HANG_SECONDS = 30.0
"""CPU time after which an input is taken for hanging its parser."""


Arc = tuple[int, int, int]


LARGEST = 1 << 17
"""Bytes of an input."""


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


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def on_hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_SECONDS:g} s of CPU time")


def corpus(name: str) -> list[bytes]:
    """What earlier runs kept for the tests."""
    path = KEPT_INPUTS / f"{name.replace(' ', '_')}.json"
    texts = json.loads(path.read_text()) if path.is_file() else []
    return [unpacked(text) for text in texts]
