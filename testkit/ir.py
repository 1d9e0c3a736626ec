"""Helpers that import jax: tracing a source and reading facts from the module, in the process that calls them."""

from testkit.twins import PARAMS
from tilewright.workers.child.frames import Frame


def traced(source, params=PARAMS, m=256, n=256, k=512):
    from tilewright.workers.runners import pallas_check, pallas_trace

    def tensor(name, *shape):
        return {"name": name, "shape": list(shape), "dtype": "bfloat16"}

    workload = {"id": "w", "inputs": [tensor("a", m, k), tensor("b", k, n)], "outputs": [tensor("c", m, n)]}
    chip = {"kind": "TPU7x", "cores": 1}
    data = {
        "source": source,
        "params": params,
        "chip": chip,
        "workloads": [workload],
        "check": [],
        "lower": ["w"],
    }
    frames = []
    pallas_trace.run(Frame("pallas.trace", data), frames.append)
    if frames[-1].kind == "artefact":
        arrays = {f"constant/w/{number}": array for number, array in frames[-1].arrays.items()}
        job = Frame("pallas.check", data, arrays, {"w": frames[-1].blobs["text"]})
        pallas_check.run(job, frames.append)
    return frames[-1]


def facts(source, **options):
    from tilewright.workers.runners.mosaic import module_facts

    frame = traced(source, **options)
    assert frame.kind == "traced", dict(frame.data)
    return module_facts(frame.blobs["module"])


def refusal(module):
    from tilewright.workers.runners.mosaic import ModuleError, module_facts

    try:
        module_facts(module)
    except ModuleError as error:
        return str(error)
    return None
