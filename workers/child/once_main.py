"""The program of a child process: confine itself, read one job frame, run its runner, answer in frames.

Started by ``workers.child.run_once`` as ``python -I once_main.py ROOT PARENT_PID RESULT_FD LIMITS_JSON``
with the job on standard input. It answers on RESULT_FD and nowhere else; standard output and error are logs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

RUNNERS = {
    "compile.compile": "tilewright.workers.runners.triton.compile",
    "describe.compile": "tilewright.workers.runners.triton.describe",
    "interpret.hello": "tilewright.workers.runners.triton.interpreter_job",
    "interpret.check": "tilewright.workers.runners.triton.interpreter_job",
    "interpret.time": "tilewright.workers.runners.triton.interpreter_job",
    "pallas.trace": "tilewright.workers.runners.pallas.trace",
    "pallas.check": "tilewright.workers.runners.pallas.check",
    "pallas.compile": "tilewright.workers.runners.pallas.compile",
    "pallas.probe": "tilewright.workers.runners.pallas.probe",
}
"""Job kind to the module whose ``run(job, answer)`` serves it."""


def main(arguments: list[str], *, forked: bool = False) -> int:
    """``forked``: the parent is a template, which ends what this process leaves behind."""
    root, parent, result, limits_text = Path(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    sys.path.insert(0, str(root))
    from tilewright.workers.child import confine
    from tilewright.workers.child.descendants import become_wardens_child

    if not forked:
        parent = become_wardens_child(parent)
    isolation = confine.confine_child(root, parent, json.loads(limits_text))

    from tilewright.workers.child.frames import Frame, FrameReader, sender

    answer = sender(result)
    reader = FrameReader(1 << 40)
    frames: list[Frame] = []
    while not frames and (piece := os.read(0, 1 << 20)):
        frames = reader.feed(piece)
    job = frames[0]
    answer(Frame("started", {"isolation": isolation}))
    importlib.import_module(RUNNERS[job.kind]).run(job, answer)
    answer(Frame("done"))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skip destructors of a runtime that a candidate may have left in any state
