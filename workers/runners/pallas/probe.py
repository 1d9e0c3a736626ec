"""Probe child: compiles one tiny kernel of our own, to see whether the toolchain's recipe works here."""

from collections.abc import Callable
from typing import Any

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.pallas import check as pallas_check
from tilewright.workers.runners.pallas import compile as pallas_compile
from tilewright.workers.runners.pallas import trace as pallas_trace

SOURCE = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x, y, z):
    z[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

def build(params):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32), name="probe")
"""


def run(job: Frame, answer: Callable[[Frame], None]) -> None:
    """Trace and compile the probe; answers as the two runners do."""
    tensor = {"shape": [128, 128], "dtype": "bfloat16"}
    workload: dict[str, Any] = {
        "id": "probe",
        "inputs": [{"name": "x", **tensor}, {"name": "y", **tensor}],
        "outputs": [{"name": "z", "shape": [128, 128], "dtype": "float32"}],
    }
    chip = {"kind": job.data["kind"], "cores": job.data["cores"]}
    held: list[Frame] = []
    asked = {"source": SOURCE, "params": {}, "chip": chip, "workloads": [workload]}
    asked |= {"check": [], "lower": ["probe"]}
    pallas_trace.run(Frame("pallas.trace", asked), held.append)
    if held[-1].kind == "artefact":
        pallas_check.run(Frame("pallas.check", asked, blobs={"probe": held.pop().blobs["text"]}), held.append)
    if held[-1].kind == "error":
        answer(held[-1])
        return
    workload["calling_convention"] = held[0].data["calling_convention"]
    ways = {"alone": False, "delays": False}
    data = {"topology": job.data["topology"], "workloads": [workload], "facts_only": [], **ways}
    pallas_compile.run(Frame("pallas.compile", data, blobs={"probe": held[0].blobs["module"]}), answer)
