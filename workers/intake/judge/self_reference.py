"""A kernel that is its own reference: its module in an interpreter, Triton's or Pallas', with its defaults.

Triton's interpreter is chosen before Triton is first imported, so such a reference has a process of its own, which ends
with the one that asks. This module is its program: it answers a frame of inputs by a frame of results.
"""

import functools
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.launch import interpreter_environment

SELF = "itself"
"""What stands for the reference of a kernel that has none; operator files hold it."""

KEPT_BYTES = 1 << 28
"""Of answers that are kept: a seed that is judged again, or by another worker, meets the same inputs."""

LIMIT = 1 << 33
"""Most bytes of one answer."""


class ModuleProcess:
    """The process of one module. Raises RuntimeError with what the module raised."""

    takes_arrays = True
    """Told from references that take tensors (``judge.reference.run_reference``)."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = FrameReader(LIMIT)
        self._lock = threading.Lock()
        self._kept: dict[str, list[np.ndarray]] = {}

    def __call__(self, operands: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The module's results, in the dtypes that it gives them."""
        arrays = {n: np.ascontiguousarray(a) for n, a in operands.items()}
        digest = hashlib.blake2b()
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        with self._lock:
            if (key := digest.hexdigest()) not in self._kept:
                answer = self._ask(Frame("run", arrays=arrays))
                if answer.kind != "done":
                    raise RuntimeError(f"{SELF}.py: {answer.data.get('why', 'no answer')}")
                found = [answer.arrays[f"o{n}"] for n in range(len(answer.arrays))]
                held = sum(a.nbytes for results in (*self._kept.values(), found) for a in results)
                self._kept = {**(self._kept if held <= KEPT_BYTES else {}), key: found}
            return list(self._kept[key])

    def _ask(self, frame: Frame) -> Frame:
        if self._process is None or self._process.poll() is not None:
            self._process = self._started()
            self._reader = FrameReader(LIMIT)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(encode(frame))
        self._process.stdin.flush()
        while data := os.read(self._process.stdout.fileno(), 1 << 20):
            if frames := self._reader.feed(data):
                return frames[0]
        raise RuntimeError(f"{SELF}.py: the process that runs it as its own reference ended")

    def _started(self) -> subprocess.Popen[bytes]:
        process = begun_process("\ndef launch(" in self._source)
        begun_process.cache_clear()  # the next module has another
        assert process.stdin is not None
        process.stdin.write(encode(Frame("module", {"source": self._source})))
        return process


@functools.cache
def begun_process(triton: bool) -> subprocess.Popen[bytes]:
    """A process for a module of Triton or of Pallas that it does not know yet: its imports take seconds, for which a
    caller that begins it need not wait."""
    return subprocess.Popen(
        [sys.executable, "-m", "tilewright.workers.intake.judge.self_reference", "triton" if triton else "jax"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=interpreter_environment(),
    )  # fmt: skip


@functools.cache
def launched(path: Path) -> Callable[..., Any]:
    """The module of a file, run in this process with its defaults where its tensors lie."""
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
    from tilewright.workers.runners.triton.launch_guard import leave_interpreter_unguarded
    from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

    repair()
    leave_interpreter_unguarded()
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
    reader, run = FrameReader(LIMIT), None
    with tempfile.TemporaryDirectory(prefix="tilewright-itself-") as folder:
        while data := os.read(0, 1 << 20):
            for frame in reader.feed(data):
                if run is None:
                    run = (_triton if triton else _pallas)(str(frame.data["source"]), Path(folder))
                else:
                    _answer(run, frame, out)


def _answer(run: Run, frame: Frame, out: int) -> None:
    try:
        answer = Frame("done", arrays={f"o{n}": a for n, a in enumerate(run(frame.arrays))})
    except Exception as error:  # noqa: BLE001 - told to who asked
        answer = Frame("failed", {"why": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
    view = memoryview(encode(answer))
    while view:
        view = view[os.write(out, view) :]


if __name__ == "__main__":
    main()
