"""The program of a child process: confine itself, read job frames, run their runners, answer in frames.

``workers.child.launch`` starts it as ``python -I child_main.py ROOT PARENT_PID RESULT_FD CONFIG_JSON``, a template
forks it; jobs come on standard input. It answers on RESULT_FD and nowhere else; standard output and error are logs.

Keys of the configuration: ``limits`` of ``confine.limit_resources``; and of a session, which serves many jobs,
``runner`` with its ``runner_config``, and ``readable``, ``shared``, ``devices`` of ``confine.confine_child``.

Without a ``runner`` the child serves one job: it answers ``started``, the runner's answers, then ``done``. A session
answers ``ready``, and ends every job with a ``done`` that names it. A ``ping`` does nothing; ``modules`` asks for what
the process has imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.workers.child.frames import Frame

RUNNERS = {
    "compile.compile": "tilewright.workers.runners.triton.compile",
    "describe.compile": "tilewright.workers.runners.triton.code_report",
    "interpret.hello": "tilewright.workers.runners.triton.interpreter_runner",
    "interpret.check": "tilewright.workers.runners.triton.interpreter_runner",
    "interpret.time": "tilewright.workers.runners.triton.interpreter_runner",
    "pallas.original": "tilewright.workers.intake.pallas.original",
    "pallas.trace": "tilewright.workers.runners.pallas.trace",
    "pallas.check": "tilewright.workers.runners.pallas.check",
    "pallas.compile": "tilewright.workers.runners.pallas.compile",
    "pallas.probe": "tilewright.workers.runners.pallas.probe",
}
"""Job kind to the module whose ``run(job, answer)`` serves it."""

SESSION_RUNNERS = {
    "plan.device": "tilewright.workers.runners.triton.plan_runner",
    "tpu.device": "tilewright.workers.runners.pallas.tpu_runner",
}
"""Runner name to the module with a ``Runner(config)`` that has ``hello`` (JSON-able) and ``run(job, answer)``."""


def main(arguments: list[str]) -> int:
    root, parent, result, config = Path(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    sys.path.insert(0, str(root))
    from tilewright.workers.child import confine
    from tilewright.workers.child.descendants import become_wardens_child

    parent = become_wardens_child(parent)
    settings = json.loads(config)
    reach = {name: settings[name] for name in ("readable", "shared", "devices") if name in settings}
    isolation = confine.confine_child(root, parent, settings["limits"], **reach)

    from tilewright.workers.child.frames import sender

    if "runner" in settings:
        _serve_session(settings, isolation, sender(result))
    else:
        _serve_job(isolation, sender(result))
    return 0


def _serve_job(isolation: Mapping[str, bool], answer: Callable[[Frame], None]) -> None:
    from tilewright.workers.child.frames import Frame

    job = next(_jobs())
    answer(Frame("started", {"isolation": isolation}))
    importlib.import_module(RUNNERS[job.kind]).run(job, answer)
    answer(Frame("done"))


def _serve_session(settings: Mapping[str, Any], isolation: Mapping[str, bool], answer: Callable[[Frame], None]) -> None:
    from tilewright.workers.child.frames import Frame

    module = importlib.import_module(SESSION_RUNNERS[settings["runner"]])
    runner = module.Runner(settings["runner_config"])
    answer(Frame("ready", {"isolation": isolation, **runner.hello}))
    for job in _jobs():
        if job.kind == "modules":
            answer(Frame("modules", _loaded_modules()))
        elif job.kind != "ping":
            runner.run(job, answer)
        answer(Frame("done", {"job": job.data.get("job")}))


def _jobs() -> Iterator[Frame]:
    """Frames of standard input, until it closes."""
    from tilewright.workers.child.frames import FrameReader

    reader = FrameReader(1 << 40)
    while piece := os.read(0, 1 << 22):
        yield from reader.feed(piece)


def _loaded_modules() -> dict[str, Any]:
    """What this process has imported: modules' names and files, and the files in its own folder."""
    modules = {name: str(getattr(module, "__file__", None) or "") for name, module in sys.modules.items()}
    return {"modules": modules, "files": sorted(os.listdir())}


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skip destructors of a runtime that a candidate may have left in any state
