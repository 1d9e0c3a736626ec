"""A child process that runs any code under the confinement of a candidate's."""

import sys
import textwrap

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


def child(code, tmp_path, limits=LIMITS, job=None, **options):
    script = PRELUDE + textwrap.dedent(code)
    launcher = Spawn((sys.executable, "-I", "-c", script))
    return run_child(job or Frame("job"), limits, tmp_path, launcher=launcher, **options)
