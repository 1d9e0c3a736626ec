"""Child processes: a program's answer, and any code under the confinement of a candidate's."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import ROOT, Spawn
from tilewright.workers.child.run_once import ChildLimits, run_child

LIMITS = ChildLimits(20.0, memory_bytes=1 << 30, file_bytes=1 << 20, result_bytes=1 << 20, log_bytes=1 << 20)


PRELUDE = f"""
import json, os, signal, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
root, parent, result = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
limits = json.loads(sys.argv[4])["limits"]
from tilewright.workers.child import confine
from tilewright.workers.child.frames import Frame, encode
confine.die_with_parent(parent)
network = confine.drop_network()
files = confine.restrict_files(Path.cwd(), (root / "workers",))
confine.limit_resources(**limits)
def answer(kind, **data):
    os.write(result, encode(Frame(kind, data)))
"""


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without a user's settings; tilewright is imported from here."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "TILEWRIGHT", "RAY"))}
    return {**own, "PYTHONPATH": str(ROOT), **more}


def wait_until(true: Callable[[], bool], seconds: float = 250.0) -> None:
    """Returns as soon as it is true; an error after ``seconds``, which are for a busy machine."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


def answer_of(program: Path, *arguments: str, environment: Mapping[str, str]) -> Any:
    """The last line that a Python program prints, read as JSON; an error where it fails."""
    command, pipes = [sys.executable, str(program), *arguments], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=dict(environment), timeout=280, check=False, **pipes)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def child(code, tmp_path, limits=LIMITS, job=None, **options):
    script = PRELUDE + textwrap.dedent(code)
    launcher = Spawn((sys.executable, "-I", "-c", script))
    return run_child(job or Frame("job"), limits, tmp_path, launcher=launcher, **options)
