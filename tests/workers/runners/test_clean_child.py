"""The process that interprets and lowers a kernel holds none of its Python; both are done with one artefact."""

import subprocess
import sys

from testkit import twins
from testkit.exploits.judges import modelled
from tilewright.fitness.evaluation import Verdict
from tilewright.workers.child.frames import FrameReader
from tilewright.workers.child.launch import ROOT

TRACE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from testkit import twins
from tilewright.workers.child.frames import Frame, sender
from tilewright.workers.runners.pallas import trace as pallas_trace
shapes = {"a": [256, 512], "b": [512, 256], "c": [256, 256]}
tensors = [{"name": n, "shape": s, "dtype": "bfloat16"} for n, s in shapes.items()]
workload = {"id": "w", "inputs": tensors[:2], "outputs": tensors[2:]}
chip = {"kind": "TPU7x", "cores": 1}
data = {"source": twins.HONEST, "params": twins.PARAMS, "chip": chip, "workloads": [workload]}
held = []
pallas_trace.run(Frame("pallas.trace", data), held.append)
more = {"lower": ["w"], "check": []}
del data["source"], data["params"]
arrays = {f"constant/w/{number}": array for number, array in held[0].arrays.items()}
sender(1)(Frame("pallas.check", {**data, **more}, arrays, {"w": held[0].blobs["text"]}))
"""

CHECK = """
import gc, os, sys, types
sys.path.insert(0, sys.argv[1])
from tilewright.workers.child.frames import FrameReader
from tilewright.workers.runners.pallas import check as pallas_check
from tilewright.workers.runners.pallas.trace import CANDIDATE_FILE
(job,) = FrameReader(1 << 30).feed(sys.stdin.buffer.read())
held = []
pallas_check.run(job, held.append)
assert held[0].kind == "traced", held[0].data
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    assert file is None or os.path.exists(file), (name, file)
    assert "candidate" not in name.split("."), name
text = {c.co_filename for f in gc.get_objects() if isinstance(f, types.FunctionType) for c in [f.__code__]}
assert CANDIDATE_FILE not in text
print(held[0].data["artefact"])
"""


def python(program, stdin=b""):
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT)], input=stdin, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout


def test_the_process_that_checks_holds_no_module_and_no_function_of_a_candidate():
    written = python(TRACE)
    (frame,) = FrameReader(1 << 30).feed(written)
    assert twins.HONEST.encode() not in written and b"def build" not in frame.blobs["w"]
    assert len(python(CHECK, written).split()[-1]) == 16


def test_what_was_interpreted_is_what_was_timed():
    found = modelled()(twins.HONEST, twins.PARAMS, False, 0.0)
    assert found.verdict is Verdict.OK, found.reason
    timed = {f.workload: f.diagnosis["artefact"] for f in found.workloads}
    read = {r.inputs.rpartition(" at ")[2]: r.artefact for r in found.gates}
    assert timed["256x256x512"] == read["256x256x512"] and len(timed["256x256x512"]) == 16
    assert read["512x256x512"] not in ("", timed["256x256x512"])
