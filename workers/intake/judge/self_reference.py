"""A kernel that is its own reference: its module in an interpreter, Triton's or Pallas', with its defaults.

Triton's interpreter is chosen before Triton is first imported, so such a reference has a process of its own, which ends
with the one that asks. This module is its program: it answers a frame of inputs by a frame of results.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.launch import ROOT

SELF = "itself"
"""What stands for the reference of a kernel that has none; operator files hold it."""

LIMIT = 1 << 33
"""Most bytes of one answer."""


class ModuleProcess:
    """The process of one module. Raises RuntimeError with what the module raised."""

    takes_arrays = True
    """Told from references that take tensors (``judge.reference.run_reference``)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._reader = FrameReader(LIMIT)
        self._lock = threading.Lock()

    def __call__(self, operands: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The module's results, in the dtypes that it gives them."""
        with self._lock:
            answer = self._ask(Frame("run", arrays={n: np.ascontiguousarray(a) for n, a in operands.items()}))
        if answer.kind != "done":
            raise RuntimeError(f"{self._path.name}: {answer.data.get('why', 'no answer')}")
        return [answer.arrays[f"o{n}"] for n in range(len(answer.arrays))]

    def _ask(self, frame: Frame) -> Frame:
        with contextlib.suppress(OSError):
            if self._end is None:
                self._end = SPARE.pop() if SPARE else self._started()
                self._reader = FrameReader(LIMIT)
                self._end.sendall(encode(Frame("module", {"path": str(self._path)})))
            self._end.sendall(encode(frame))
            while data := self._end.recv(1 << 20):
                if frames := self._reader.feed(data):
                    return frames[0]
        self._end = None
        raise RuntimeError(f"{self._path.name}: the process that runs it as its own reference ended")

    def _started(self) -> socket.socket:
        environment = {
            **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }  # fmt: skip
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.workers.intake.judge.self_reference"],
                stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        return ours


SPARE: list[socket.socket] = []
"""Ends of processes of Triton's interpreter that wait for a module. Their imports are done: they are forks of the
process that reads functions in."""


def stand_by(end: int) -> None:
    """Fork a process that waits at this socket for a module, and holds no other file of this one."""
    if os.fork() == 0:
        os.dup2(end, 0)
        os.dup2(nothing := os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(nothing, 2)
        main()
        os._exit(0)
    os.close(end)


Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def _triton(source: str, path: Path) -> Run:
    from tilewright.workers.runners import bare_module
    from tilewright.workers.runners.triton.interpreter_rounding import repair
    from tilewright.workers.runners.triton.launch_guard import leave_interpreter_unguarded
    from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

    repair()
    leave_interpreter_unguarded()
    module = bare_module.execute(source, "itself", str(path))

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
    """Answer frames at the socket that is the standard input until there are no more."""
    reader, end, run = FrameReader(LIMIT), socket.socket(fileno=0), None
    with tempfile.TemporaryDirectory(prefix="tilewright-itself-") as folder:
        while data := end.recv(1 << 20):
            for frame in reader.feed(data):
                if run is None:
                    source = (path := Path(frame.data["path"])).read_text(encoding="utf-8")
                    run = (
                        _triton(source, path) if "\ndef launch(" in source else _pallas(source, Path(folder))
                    )
                    continue
                try:
                    answer = Frame("done", arrays={f"o{n}": a for n, a in enumerate(run(frame.arrays))})
                except Exception as error:  # noqa: BLE001 - told to who asked
                    answer = Frame(
                        "failed", {"why": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
                    )
                end.sendall(encode(answer))


if __name__ == "__main__":
    main()
