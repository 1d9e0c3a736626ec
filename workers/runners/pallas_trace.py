"""Trace child: runs a Pallas candidate's Python, and nothing that yields its score.

Each workload is traced once, to one jaxpr. The module that will be compiled and the run on the gates' inputs
both come from that jaxpr, so that a candidate has no way to be one kernel when checked and another when timed.

Job data: ``source``, ``params``, ``chip`` (device kind, cores), ``workloads`` [{id, inputs, outputs}],
``check`` [{workload, kinds}]; arrays ``workload/kind/operand`` are the gates' inputs.
Answers, in order: one ``traced`` per workload (blob ``module``: portable StableHLO), one ``checked`` per
(check workload, kind) with the outputs as arrays, or one ``error`` {phase, type, message}.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax._src.core import jaxprs_in_params
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.sharding import AbstractDevice, AbstractMesh

from tilewright.workers.child.frames import Frame, dtype_named
from tilewright.workers.runners import bare_module
from tilewright.workers.runners.failures import describe
from tilewright.workers.runners.mosaic import fingerprint

Answer = Callable[[Frame], None]
CANDIDATE_FILE = "candidate.py"


class NestedKernel(ValueError):
    """A Pallas call inside a loop or branch of the surrounding program."""


def run(job: Frame, answer: Answer) -> None:
    """Serve one trace job; failures of the candidate become an ``error`` frame."""
    phase = "import"
    try:
        with mesh_of(job.data["chip"]):
            build = load_build(job.data["source"])
            phase = "trace"
            jaxprs = {}
            for workload in job.data["workloads"]:
                jaxprs[workload["id"]] = trace(build, job.data["params"], workload)
            phase = "lower"
            for workload in job.data["workloads"]:
                answer(_exported(workload, jaxprs[workload["id"]]))
            phase = "check"
            for check in job.data["check"]:
                workload = next(w for w in job.data["workloads"] if w["id"] == check["workload"])
                _check(workload, check["kinds"], jaxprs[workload["id"]], job.arrays, answer)
    except MemoryError as error:
        answer(Frame("error", {"phase": phase, **describe(error)}))
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
        answer(Frame("error", {"phase": phase, **describe(error)}))


def mesh_of(chip: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """While it is entered, code is traced for a chip (its ``kind`` and ``cores``) that need not be there."""
    device = AbstractDevice(device_kind=chip["kind"], num_cores=chip["cores"], platform="tpu")
    return jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device))


def load_build(source: str) -> Callable[..., Any]:
    """A candidate's ``build``: runs its module."""
    build: Callable[..., Any] = bare_module.execute(source, "candidate", CANDIDATE_FILE).build
    return build


def trace(build: Callable[..., Any], params: Mapping[str, Any], workload: Mapping[str, Any]) -> ClosedJaxpr:
    """The candidate's function for one workload. Raises TypeError for other outputs, NestedKernel for hidden loops."""
    specs = _specs(workload["inputs"])
    traced = jax.jit(build(dict(params))).trace(*specs)
    wanted = [(tuple(s["shape"]), dtype_named(s["dtype"])) for s in workload["outputs"]]
    found = [(tuple(a.shape), np.dtype(a.dtype)) for a in traced.jaxpr.out_avals]
    if wanted != found:
        raise TypeError(f"build's function returns {_say(found)} instead of {_say(wanted)}")
    _refuse_nested_kernels(traced.jaxpr.jaxpr)
    return traced.jaxpr


def _refuse_nested_kernels(jaxpr: Any) -> None:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            continue
        if equation.primitive.name == "jit":
            _refuse_nested_kernels(equation.params["jaxpr"].jaxpr)
        elif any(_has_kernel(inner) for inner in jaxprs_in_params(equation.params)):
            raise NestedKernel(
                f"the kernel is called inside a {equation.primitive.name}: the simulator would count it once"
            )


def _has_kernel(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "pallas_call" or any(map(_has_kernel, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def _say(outputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in outputs) or "nothing"


def _specs(tensors: Sequence[Mapping[str, Any]]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(tuple(t["shape"]), dtype_named(t["dtype"])) for t in tensors]


def _exported(workload: Mapping[str, Any], jaxpr: ClosedJaxpr) -> Frame:
    unchecked = [export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    exporter = export.export(jax.jit(jaxpr_as_fun(jaxpr)), platforms=["tpu"], disabled_checks=unchecked)
    exported = exporter(*_specs(workload["inputs"]))
    kept = list(exported.module_kept_var_idx)
    if kept != list(range(len(workload["inputs"]))):
        unused = [w["name"] for i, w in enumerate(workload["inputs"]) if i not in kept]
        raise TypeError(f"the kernel does not use its operand {', '.join(unused)}")
    module = exported.mlir_module_serialized
    data = {
        "workload": workload["id"],
        "calling_convention": exported.calling_convention_version,
        "fingerprint": fingerprint(module),
    }
    return Frame("traced", data, blobs={"module": module})


def _check(
    workload: Mapping[str, Any],
    kinds: Sequence[str],
    jaxpr: ClosedJaxpr,
    arrays: Mapping[str, np.ndarray],
    answer: Answer,
) -> None:
    """Interpret the jaxpr on each kind of inputs, out-of-bounds reads raising, fresh memory NaN."""
    settings = pltpu.InterpretParams(
        detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan"
    )
    compiled = jax.jit(lambda *operands: interpret(jaxpr, operands, settings))
    for kind in kinds:
        prefix = f"{workload['id']}/{kind}/"
        operands = [arrays[prefix + tensor["name"]] for tensor in workload["inputs"]]
        results = [np.asarray(result) for result in compiled(*operands)]
        races = interpret_pallas_call.races
        data = {
            "workload": workload["id"],
            "kind": kind,
            "races": bool(races is not None and races.races_found),
        }
        outputs = {t["name"]: array for t, array in zip(workload["outputs"], results, strict=True)}
        answer(Frame("checked", data, arrays=outputs))


def interpret(closed: ClosedJaxpr, operands: Sequence[Any], settings: Any) -> list[Any]:
    """Evaluate a jaxpr with every Pallas call under the interpreter, whatever the candidate asked for."""
    environment: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else environment[atom]

    environment.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    environment.update(zip(closed.jaxpr.invars, operands, strict=True))
    for equation in closed.jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        primitive, params = equation.primitive, dict(equation.params)
        if primitive.name == "jit":
            results = interpret(params["jaxpr"], values, settings)
        else:
            if primitive.name == "pallas_call":
                params["interpret"] = settings
            results = primitive.bind(*values, **primitive.get_bind_params(params))
            results = results if primitive.multiple_results else [results]
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]
