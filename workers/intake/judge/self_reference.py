"""A kernel that is its own reference: its module in an interpreter, Triton's or Pallas', with its defaults.

Triton's interpreter is chosen before Triton is first imported, so such a reference has a process of its own, which ends
with the one that asks. This module is its program: it answers a frame of inputs by a frame of results, Triton's in a
process forked for each, as many at once as there are processors.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.workers.child.frames import Frame, FrameReader, encode, sender
from tilewright.workers.child.launch import interpreter_environment

SELF = "itself"
"""Name of the reference of a kernel that is its own; operator files hold it."""

KEPT_BYTES = 1 << 28
"""Bytes of answers that are kept, since a seed judged again, or by another worker, gets the same inputs."""

LIMIT = 1 << 33
"""Most bytes of one answer."""


class ModuleProcess:
    """The process of one module, for several threads. Raises RuntimeError with what the module raised."""

    takes_arrays = True
    """Read by ``judge.reference.run_reference``; other references take tensors."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._asked: dict[str, Future[list[np.ndarray]]] = {}
        self._waited: dict[str, Future[list[np.ndarray]]] = {}
        """Questions that the process has not answered yet."""

    def __call__(self, operands: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The module's results, in the dtypes that it gives them."""
        arrays = {n: np.ascontiguousarray(a) for n, a in operands.items()}
        digest = hashlib.blake2b()
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        key = digest.hexdigest()
        with self._lock:
            self._forget()
            if (answer := self._asked.get(key)) is None:
                self._require()
                answer = self._asked[key] = self._waited[key] = Future()
                with contextlib.suppress(OSError):  # it has ended, and ``_hear`` says so
                    self._write(Frame("run", {"key": key}, arrays))
        return list(answer.result())

    def _forget(self) -> None:
        """Drop answers that failed, and all that are there where they hold too much."""
        there = {k: future for k, future in self._asked.items() if future.done()}
        good = {k: future for k, future in there.items() if future.exception() is None}
        over = sum(a.nbytes for future in good.values() for a in future.result()) > KEPT_BYTES
        for key in there if over else there.keys() - good:
            del self._asked[key]

    def _require(self) -> None:
        """Begin the process, where there is none or it has ended. Raises OSError where none can be made."""
        if self._process is None or self._process.poll() is not None:
            self._process = begun_process("\ndef launch(" in self._source)
            begun_process.cache_clear()  # the next module has another
            self._waited = {}
            threading.Thread(target=self._hear, args=(self._process, self._waited), daemon=True).start()
            self._write(Frame("module", {"source": self._source}))

    def _write(self, frame: Frame) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(encode(frame))
        self._process.stdin.flush()

    def _hear(self, process: subprocess.Popen[bytes], waited: dict[str, Future[list[np.ndarray]]]) -> None:
        """Hand over the answers of a process until it ends."""
        assert process.stdout is not None
        reader = FrameReader(LIMIT)
        with contextlib.suppress(ValueError, KeyError):  # what it writes does not read: it is ended
            while data := os.read(process.stdout.fileno(), 1 << 20):
                for frame in reader.feed(data):
                    answer = waited.pop(frame.data["key"])
                    if frame.kind == "done":
                        answer.set_result([frame.arrays[f"o{n}"] for n in range(len(frame.arrays))])
                    else:
                        answer.set_exception(RuntimeError(f"{SELF}.py: {frame.data['why']}"))
        process.kill()
        process.wait()
        with self._lock:
            for answer in waited.values():
                answer.set_exception(RuntimeError(f"{SELF}.py: the process that runs it has ended"))


@functools.cache
def begun_process(triton: bool) -> subprocess.Popen[bytes]:
    """A started process that gets its module, of Triton or of Pallas, later: its imports take seconds, and a caller
    that starts it early need not wait for them."""
    return subprocess.Popen(
        [sys.executable, "-m", "tilewright.workers.intake.judge.self_reference", "triton" if triton else "jax"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=interpreter_environment(),
    )


@functools.cache
def launching_function(path: Path) -> Callable[..., Any]:
    """A file's kernel module as a function that launches it in this process, with its defaults, on its inputs'
    device."""
    from tilewright.workers.runners import bare_module

    module = bare_module.execute(path.read_text(encoding="utf-8"), "launched", str(path))
    narrow: list[str] = []

    def run(**inputs: Any) -> Any:
        given = {n: t.float() if str(t.dtype) in narrow else t for n, t in inputs.items()}
        try:
            return module.launch(given, dict(module.DEFAULTS))
        except Exception:
            if narrow:
                raise
        narrow.append("torch.float64")  # sums that begin in float32 are not compiled with wider terms
        return run(**inputs)

    return run


Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def _triton(source: str, folder: Path) -> Run:
    from tilewright.workers.runners import bare_module
    from tilewright.workers.runners.triton.interpreter_rounding import repair
    from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

    repair()
    path = folder / f"{SELF}.py"
    path.write_text(source, encoding="utf-8")  # where Triton reads the kernels' text
    module = bare_module.execute(source, SELF, str(path))

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        given = {name: to_torch(array, "cpu") for name, array in inputs.items()}
        return [to_numpy(result) for result in module.launch(given, dict(module.DEFAULTS))]

    return run


def _pallas(source: str, folder: Path) -> Run:
    from tilewright.fitness.original import is_original
    from tilewright.fitness.targets import load_target
    from tilewright.workers.intake.pallas.original import Original
    from tilewright.workers.intake.pallas.seed_build import SeedBuild
    from tilewright.workers.runners import bare_module

    module = bare_module.execute(source, "itself", "itself.py")
    build = Original.of_source(source).build(folder) if is_original(source) else module.build
    chip = load_target(getattr(module, "CHIP", "tpu7x")).chip  # the one that it was read in for
    assert chip is not None
    seed = SeedBuild(chip, build, [])
    return lambda inputs: seed.run(dict(module.DEFAULTS), list(inputs.values()))


def main() -> None:
    """Answer frames until there are no more; the first names the module, of Triton or of JAX as the argument says."""
    out = os.dup(1)
    os.dup2(2, 1)
    importlib.import_module(sys.argv[1])
    if triton := sys.argv[1] == "triton":
        importlib.import_module("tilewright.workers.runners.triton.tensors")
        importlib.import_module("torch").set_num_threads(1)  # of a fork others would not be there
    with tempfile.TemporaryDirectory(prefix="tilewright-itself-") as folder:
        reader, run, runs = FrameReader(LIMIT), None, Runs(out, Path(folder) / "turn")
        while data := os.read(0, 1 << 20):
            for frame in reader.feed(data):
                if run is None:
                    run = (_triton if triton else _pallas)(str(frame.data["source"]), Path(folder))
                elif triton:
                    runs.begin(run, frame)
                else:  # JAX's threads do not bear a fork
                    runs.tell(_answer(run, frame))


class Runs:
    """Forked processes that each answer one frame on ``out``, in ``turn``, a file that they lock."""

    def __init__(self, out: int, turn: Path) -> None:
        self._send, self._turn = sender(out), turn
        self._free = threading.Semaphore(len(os.sched_getaffinity(0)))

    def begin(self, run: Run, frame: Frame) -> None:
        """Answer a frame in a process of its own, once a processor is free for it."""
        self._free.acquire()
        if pid := os.fork():
            threading.Thread(target=self._wait, args=(pid, frame.data["key"]), daemon=True).start()
            return
        with contextlib.suppress(BaseException):
            self.tell(_answer(run, frame))
            os._exit(0)
        os._exit(1)

    def _wait(self, pid: int, key: str) -> None:
        if os.waitpid(pid, 0)[1]:
            self.tell(Frame("failed", {"key": key, "why": "its process ended"}))
        self._free.release()

    def tell(self, answer: Frame) -> None:
        with self._turn.open("w") as turn:
            fcntl.lockf(turn, fcntl.LOCK_EX)  # which a fork does not hand on
            self._send(answer)


def _answer(run: Run, frame: Frame) -> Frame:
    key = frame.data["key"]
    try:
        return Frame("done", {"key": key}, {f"o{n}": a for n, a in enumerate(run(frame.arrays))})
    except Exception as error:  # noqa: BLE001 - told to who asked
        return Frame("failed", {"key": key, "why": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


if __name__ == "__main__":
    main()
