"""A kernel that is its own reference: its module in Triton's interpreter, with its defaults.

The interpreter is chosen before Triton is first imported, so such a reference has a process of its own, which ends
with the one that asks. This module is its program: it answers a frame of inputs by a frame of results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.launch import ROOT

if TYPE_CHECKING:
    pass

SELF = "itself"
"""What stands for the reference of a kernel that has none; operator files hold it."""

LIMIT = 1 << 33
"""Most bytes of one answer."""


class ModuleProcess:
    """The process of one module. Raises RuntimeError with what the module raised."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = FrameReader(LIMIT)
        self._lock = threading.Lock()

    def __call__(self, **operands: Any) -> list[Any]:
        """The module's results as torch tensors, of operands likewise."""
        from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

        question = Frame("run", arrays={n: to_numpy(t.contiguous()) for n, t in operands.items()})
        with self._lock:
            answer = self._ask(question)
        if answer.kind != "done":
            raise RuntimeError(f"{self._path.name}: {answer.data.get('why', 'no answer')}")
        return [to_torch(answer.arrays[f"o{n}"], "cpu") for n in range(len(answer.arrays))]

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
        raise RuntimeError(f"{self._path.name}: the process that runs it as its own reference ended")

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "tilewright.workers.intake.judge.self_reference", str(self._path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip


def main() -> None:
    """Answer frames until there are no more."""
    from tilewright.workers.runners import bare_module
    from tilewright.workers.runners.triton.interpreter_rounding import repair
    from tilewright.workers.runners.triton.launch_guard import leave_interpreter_unguarded
    from tilewright.workers.runners.triton.tensors import to_numpy, to_torch

    path = Path(sys.argv[1])
    out = os.dup(1)
    os.dup2(2, 1)
    repair()
    leave_interpreter_unguarded()
    module = bare_module.execute(path.read_text(encoding="utf-8"), "itself", str(path))
    reader = FrameReader(LIMIT)
    while data := os.read(0, 1 << 20):
        for frame in reader.feed(data):
            try:
                given = {name: to_torch(array, "cpu") for name, array in frame.arrays.items()}
                results = module.launch(given, dict(module.DEFAULTS))
                made = {f"o{n}": to_numpy(result) for n, result in enumerate(results)}
                answer = Frame("done", arrays=made)
            except Exception as error:  # noqa: BLE001 - told to who asked
                answer = Frame("failed", {"why": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
            view = memoryview(encode(answer))
            while view:
                view = view[os.write(out, view) :]


if __name__ == "__main__":
    main()
