"""Requests and answers for tests of the modelled cascade's stages: children say what a test has them say."""

from pathlib import Path

import numpy as np

from testkit.scripted import Doubler, shape, travelled
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.workers.child.frames import Frame
from tilewright.workers.request import Failure, Findings, Limits, Request, Truth

OPERATOR = Doubler()
TARGET = load_target("tpu7x")
INCOMPLETE = Failure(Verdict.CRASHED, "the child ended before it had answered everything")


def request(**changes):
    fields = {
        "target": TARGET, "limits": Limits(), "seed": 7, "measured": (shape(64), shape(32)), "source": "text",
        "params": {}, "checked": (shape(32), shape(48)), "folder": Path("nowhere"),
    }  # fmt: skip
    return Request(operator=OPERATOR, truth=Truth(OPERATOR), **{**fields, **changes})


def error(phase="trace", **said):
    told = {"type": "ValueError", "message": "why", "phase": phase, "trace": "the trace", **said}
    return travelled(Frame("error", told))


def artefact(name):
    return Frame("artefact", {"workload": name}, {"0": np.arange(2)}, {"text": name.encode()})


NAMES = ("m32", "m48", "m64")


def traced_findings():
    return Findings(traced={name: artefact(name) for name in NAMES})


KERNEL = {
    "grid": [2], "signature": [], "data_branches": 0, "data_loops": 0, "while_loops": 0, "manual_dmas": 0,
    "loads_in_index_maps": 0, "constant_bytes": 0, "matmul_flops": 0,
}  # fmt: skip


def facts(name, **changes):
    data = {
        "workload": name, "fingerprint": f"print {name}", "operations": {}, "foreign_calls": [],
        "constant_bytes": 0, "unused_operands": [], "outputs_not_from_kernels": [], "kernels": [KERNEL],
    }  # fmt: skip
    return Frame("facts", {**data, **changes})


def compiled_findings():
    found = traced_findings()
    found.modules = {name: name.encode() for name in NAMES}
    found.claimed = {name: f"print {name}" for name in NAMES}
    found.sources = {name: f"source {name}" for name in NAMES}
    found.conventions = dict.fromkeys(NAMES, 9)
    return found
