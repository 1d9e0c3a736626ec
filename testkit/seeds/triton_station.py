"""Seed kernels in the child that interprets candidates, held to the real gates."""

from collections.abc import Mapping
from typing import Any

from testkit.compile_ahead import described
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.gates import failure, ill_formed, read_gates
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import Operator, Workload
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.station import LocalStation

PATIENCE = JobLimits(120.0, 120.0)


def interpreter() -> LocalStation:
    """A station whose child interprets; close it."""
    return LocalStation(load_target("interpreter").gpu)


def objection(
    station: LocalStation,
    operator: Operator,
    workload: Workload,
    kind: str,
    *,
    kernel: str | None = None,
    source: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> str | None:
    """Why a seed, changed or not, does not pass the operator's gates on these inputs; None if it does."""
    seed = operator.kernels[kernel or next(iter(operator.kernels))]
    point = {**read_declarations(seed.source).defaults, **seed.overrides, **(params or {})}
    inputs = operator.make_inputs(workload, 5, kind)

    tensors = {n: described(getattr(operator, n)(workload)) for n in ("inputs", "outputs")}
    entry = {"id": "one", "source": source or seed.source, "params": point}
    check = {"workload": workload.id, "kinds": [kind]}
    data = {"entries": [entry], "workloads": [{"id": workload.id, **tensors}], "check": [check]}
    arrays = {f"{workload.id}/{kind}/{name}": array for name, array in inputs.items()}
    outcome = station.run(Frame("check", data, arrays), PATIENCE)
    (answer,) = [frame for frame in outcome.frames if frame.kind in ("checked", "error")] or [None]
    if answer is None:
        return f"{outcome.ending}: {outcome.detail}"
    if answer.kind == "error":
        return f"{answer.data['type']}: {answer.data['message']}"
    outputs = dict(answer.arrays)
    if (fault := ill_formed(outputs, operator.outputs(workload))) is not None:
        return fault
    references = operator.oracle(workload, inputs)
    return failure(read_gates(operator.gates, outputs, references, kind), operator.gates)
