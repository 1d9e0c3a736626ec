"""Compilers beside one GPU that several campaigns of ``direct`` share, in one process that only hands work on.

A genome that is asked for comes back as a *reading*: why it has none, or device time by shape. It is compiled in a
process of its own (forked from this one, which has imported Triton and touched no device), and its plans are launched
by the one process that has the GPU, as ``points`` does: answers against float32 on some rows, then times with L2
flushed. A genome that any campaign asked for before, or one that compiles to the same code, has its reading already.
What hangs is killed, and costs itself.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from experiments.studies.rewrites.point_cases import Case

Json = dict[str, Any]
Measuring = Callable[[Connection, Path, Mapping[str, Case]], None]

COMPILE_SECONDS = 45.0
MEASURE_SECONDS = 25.0
"""A candidate that takes longer over all shapes hangs; the first of a case makes its operands, too."""
FIRST_SECONDS = 90.0
FINAL_SECONDS = 60.0
LEAVING_SECONDS = 4.0
"""Before the end, what is asked for is told that it was not reached, so that campaigns end with their rows."""


@dataclass(frozen=True)
class Ask:
    """A genome of a case, and who wants it under which number."""

    case: str
    genome: str
    source: str
    params: Mapping[str, Any]
    campaign: str = ""
    index: int = -1


@dataclass
class Reading:
    """``problem`` and the stage it arose at, or ``us`` by shape. Seconds are those of its first evaluation."""

    stage: str = "measure"
    problem: str = ""
    us: Mapping[str, float] = field(default_factory=dict)
    db: float | None = None
    code: str = ""
    compile_seconds: float = 0.0
    device_seconds: float = 0.0


def measure(pipe: Connection, folder: Path, cases: Mapping[str, Case]) -> None:
    """The process that has the GPU: ``one`` row or ``final`` rows of a case in, lines out."""
    from experiments.studies.rewrites.point_device import Bench

    lines: list[Json] = []
    bench = Bench(folder, lines.append, [])
    pipe.send(list(lines))
    while True:
        what, case, rows = pipe.recv()
        lines.clear()
        try:
            if what == "final":
                bench.final(cases[case], rows)
            else:
                bench.all_shapes(cases[case], rows[0])
        except Exception as error:  # noqa: BLE001 - what a candidate leaves behind ends this process, not the study
            pipe.send([{"error": f"{type(error).__name__}: {error}"[:300]}])
            return
        pipe.send([line for line in lines if "at" not in line])


def _compile(pipe: Connection, folder: Path, ask: Ask, workloads: list[Json]) -> None:
    """In a process of its own: writes plans, sends (problem, hash of the code)."""
    from testkit.compile_ahead import compiled, start

    start(str(folder / "cache"))
    problem, plans = compiled(ask.source, dict(ask.params), workloads)
    digest = hashlib.sha256()
    for shape, blob in plans.items():
        (folder / f"{ask.genome}.{shape}.plan").write_bytes(blob)
        digest.update(blob)
    pipe.send((problem, digest.hexdigest()[:32]))


@dataclass
class _Running:
    process: BaseProcess
    ask: Ask
    until: float
    began: float = field(default_factory=time.monotonic)


class Lab:
    """``serve`` answers campaigns' asks until they are done or the time is over."""

    def __init__(
        self, cases: Sequence[Case], folder: Path, processes: int, measuring: Measuring = measure
    ) -> None:
        self.cases = {case.name: case for case in cases}
        self.folder, self.processes, self._measuring = folder, processes, measuring
        self.readings: dict[tuple[str, str], Reading] = {}
        self.device: list[Json] = []
        self.device_seconds = 0.0
        self._by_code: dict[tuple[str, str], Reading] = {}
        self._context = multiprocessing.get_context("fork")
        self._wanted: dict[tuple[str, str], list[tuple[Connection, int]]] = {}
        self._queue: deque[Ask] = deque()
        self._compiling: dict[Connection, _Running] = {}
        self._compiled: deque[tuple[Ask, Reading]] = deque()
        self._measured: tuple[Ask, Reading, float] | None = None
        self._seen: set[str] = set()
        self._gpu: tuple[BaseProcess, Connection] | None = None
        self._gpu_ready = 0.0

    # -- serving ------------------------------------------------------------------------------------------------

    def serve(
        self,
        campaigns: Mapping[str, Callable[[Connection], None]],
        seconds: float,
        said: Callable[[Any], None],
    ) -> None:
        """Run each campaign in a process; whatever it sends but asks goes to ``said``."""
        until = time.monotonic() + seconds
        live: dict[Connection, BaseProcess] = {}
        for name, body in campaigns.items():
            here, there = self._context.Pipe()
            process = self._context.Process(target=body, args=(there,), name=name)
            process.start()
            there.close()
            live[here] = process
        self._start_gpu()
        try:
            while live and time.monotonic() < until:
                if time.monotonic() < until - LEAVING_SECONDS:
                    self._fill()
                else:
                    self._dismiss()
                pipes: list[Any] = [*live, *self._compiling]
                if self._gpu is not None and (self._measured is not None or not self._gpu_ready):
                    pipes.append(self._gpu[1])
                for pipe in wait(pipes, 0.2):
                    assert isinstance(pipe, Connection)
                    if pipe in live:
                        self._heard(pipe, live, said)
                    elif pipe in self._compiling:
                        self._take_compiled(pipe)
                    else:
                        self._take_measured()
                self._reap()
        finally:
            for process in live.values():
                process.kill()
            for running in self._compiling.values():
                running.process.kill()
            self._compiling.clear()
            self._queue.clear()
            self._compiled.clear()

    def _heard(
        self, pipe: Connection, live: dict[Connection, BaseProcess], said: Callable[[Any], None]
    ) -> None:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            live.pop(pipe).join(1.0)
            for waiting in self._wanted.values():
                waiting[:] = [(p, index) for p, index in waiting if p is not pipe]
            return
        if not isinstance(message, Ask):
            said(message)
            return
        key = (message.case, message.genome)
        if key in self.readings:
            _send(pipe, message.index, self.readings[key])
        elif key in self._wanted:
            self._wanted[key].append((pipe, message.index))
        else:
            self._wanted[key] = [(pipe, message.index)]
            self._queue.append(message)

    def _fill(self) -> None:
        while self._queue and len(self._compiling) < self.processes:
            ask = self._queue.popleft()
            if not self._wanted.get((ask.case, ask.genome)):
                self._wanted.pop((ask.case, ask.genome), None)  # whoever asked has ended
                continue
            here, there = self._context.Pipe()
            arguments = (there, self.folder, ask, self.cases[ask.case].workloads())
            process = self._context.Process(target=_compile, args=arguments)
            process.start()
            there.close()
            self._compiling[here] = _Running(process, ask, time.monotonic() + COMPILE_SECONDS)
        while self._compiled and self._measured is None and self._gpu_ready:
            ask, reading = self._compiled.popleft()
            known = self._by_code.get((ask.case, reading.code))
            if known is not None:
                self._answer(ask, Reading(**{**asdict(known), "compile_seconds": reading.compile_seconds}))
                continue
            assert self._gpu is not None
            seconds = MEASURE_SECONDS if ask.case in self._seen else FIRST_SECONDS
            self._seen.add(ask.case)
            try:
                self._gpu[1].send(("one", ask.case, [_row(ask)]))
            except OSError:  # it ended after its last answer
                self._compiled.appendleft((ask, reading))
                self._start_gpu()
                return
            reading.device_seconds = time.monotonic()
            self._measured = (ask, reading, time.monotonic() + seconds)

    def _take_compiled(self, pipe: Connection) -> None:
        running = self._compiling.pop(pipe)
        try:
            problem, code = pipe.recv()
        except (EOFError, OSError):
            problem, code = "the compiler died", ""
        running.process.join(2.0)
        pipe.close()
        spent = round(time.monotonic() - running.began, 2)
        if problem:
            self._answer(running.ask, Reading("compile", problem, compile_seconds=spent))
        else:
            self._compiled.append((running.ask, Reading(code=code, compile_seconds=spent)))

    def _take_measured(self) -> None:
        assert self._gpu is not None
        try:
            lines = list(self._gpu[1].recv())
        except (EOFError, OSError):
            self._lost("its process died")
            return
        if self._measured is None:
            self.device, self._gpu_ready = lines, time.monotonic()
            return
        (ask, reading, _), self._measured = self._measured, None
        reading.device_seconds = round(time.monotonic() - reading.device_seconds, 3)
        self.device_seconds += reading.device_seconds
        wrong = next((line["error"] for line in lines if "error" in line), "")
        reading.us = {line["shape"]: line["us"] for line in lines if "us" in line}
        reading.db = min((line["db"] for line in lines if "db" in line), default=None)
        if wrong or len(reading.us) < len(self.cases[ask.case].shapes):
            reading.stage, reading.problem = "check", wrong or "not every shape has a time"
        self._by_code[ask.case, reading.code] = reading
        self._answer(ask, reading)

    def _dismiss(self) -> None:
        """Nobody waits any longer; what is under way is not kept."""
        for key, waiting in self._wanted.items():
            for pipe, index in waiting:
                _send(pipe, index, Reading("lost", "not reached before the study's end"))
            self._wanted[key] = []
        self._queue.clear()
        self._compiled.clear()

    def _answer(self, ask: Ask, reading: Reading) -> None:
        key = (ask.case, ask.genome)
        self.readings[key] = reading
        for pipe, index in self._wanted.pop(key, []):
            _send(pipe, index, reading)

    def _reap(self) -> None:
        now = time.monotonic()
        for pipe, running in list(self._compiling.items()):
            if now > running.until:
                running.process.kill()
                del self._compiling[pipe]
                self._answer(running.ask, Reading("compile", f"compiling took over {COMPILE_SECONDS:.0f} s"))
        if self._measured is not None and now > self._measured[2]:
            self._lost("hangs")

    def _lost(self, why: str) -> None:
        """The GPU's process, and the candidate it was at."""
        if self._measured is not None:
            (ask, reading, _), self._measured = self._measured, None
            reading.stage, reading.problem = "check", why
            reading.device_seconds = round(time.monotonic() - reading.device_seconds, 3)
            self._by_code[ask.case, reading.code] = reading
            self._answer(ask, reading)
        self._start_gpu()

    def _start_gpu(self) -> None:
        if self._gpu is not None:
            self._gpu[0].kill()
            self._gpu[0].join(20.0)
        here, there = self._context.Pipe()
        process = self._context.Process(target=self._measuring, args=(there, self.folder, self.cases))
        process.start()
        there.close()
        self._gpu, self._gpu_ready, self._seen = (process, here), 0.0, set()

    # -- afterwards ---------------------------------------------------------------------------------------------

    def compile_now(self, asks: Iterable[Ask]) -> dict[str, str]:
        """Plans of kernels that stand beside the winners: why one has none, by genome."""
        found = {}
        for ask in asks:
            here, there = self._context.Pipe()
            arguments = (there, self.folder, ask, self.cases[ask.case].workloads())
            process = self._context.Process(target=_compile, args=arguments)
            process.start()
            there.close()
            found[ask.genome] = here.recv()[0] if here.poll(COMPILE_SECONDS) else "compiling hangs"
            process.kill()
        return found

    def side_by_side(self, case: str, asks: Sequence[tuple[str, Ask]]) -> list[Json] | None:
        """Interleaved rounds of labelled genomes that have plans, and of the case's peers; None if that hangs."""
        if self._measured is not None or self._gpu is None:
            self._lost("the study ended")
        assert self._gpu is not None
        pipe = self._gpu[1]
        if not self._gpu_ready and pipe.poll(FIRST_SECONDS):
            self.device, self._gpu_ready = list(pipe.recv()), time.monotonic()
        rows = []
        for label, ask in asks:
            known = self.readings.get((ask.case, ask.genome))
            shapes = self.cases[case].shapes
            rows.append(
                {**_row(ask), "label": label, "us": dict(known.us) if known else dict.fromkeys(shapes, 1.0)}
            )
        try:
            pipe.send(("final", case, rows))
            if pipe.poll(FINAL_SECONDS):
                return list(pipe.recv())
        except (EOFError, OSError):
            pass
        self._start_gpu()
        return None

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu[0].kill()


def _row(ask: Ask) -> Json:
    return {"case": ask.case, "id": ask.genome, "label": "one", "params": dict(ask.params)}


def _send(pipe: Connection, index: int, reading: Reading) -> None:
    try:
        pipe.send((index, reading))
    except (BrokenPipeError, OSError):
        return  # a campaign that has ended; its pipe is found closed in turn
