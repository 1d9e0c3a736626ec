"""The program of a session's child: confine itself, start its runner, then serve one job frame after another.

Started by ``workers.child.session`` as ``python -I session_main.py ROOT PARENT_PID RESULT_FD CONFIG_JSON``;
jobs come on standard input, answers go to RESULT_FD and end with a ``done`` frame that names the job. A ``ping``
is a job of nothing. Standard output and error are logs.
Every runner's child also answers a job ``modules`` with what it has imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

RUNNERS = {
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
    reach = {name: settings[name] for name in ("readable", "shared", "devices")}
    isolation = confine.confine_child(root, parent, settings["limits"], **reach)

    from tilewright.workers.child.frames import Frame, FrameReader, sender

    answer = sender(result)
    runner = importlib.import_module(RUNNERS[settings["runner"]]).Runner(settings["runner_config"])
    answer(Frame("ready", {"isolation": isolation, **runner.hello}))
    reader = FrameReader(1 << 40)
    while piece := os.read(0, 1 << 22):
        for job in reader.feed(piece):
            if job.kind == "modules":
                answer(Frame("modules", _loaded()))
            elif job.kind != "ping":
                runner.run(job, answer)
            answer(Frame("done", {"job": job.data.get("job")}))
    return 0


def _loaded() -> dict[str, Any]:
    """What this process has imported: modules' names and files, and the files in its own folder."""
    modules = {name: str(getattr(module, "__file__", None) or "") for name, module in sys.modules.items()}
    return {"modules": modules, "files": sorted(os.listdir())}


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skip destructors of a runtime that a candidate may have left in any state
