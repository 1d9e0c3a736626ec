"""Trace child: runs a Pallas candidate's Python, once, and hands back what it traces to, as data.

It sees shapes and parameters: no inputs, no outputs, no clock. Each workload is traced to one jaxpr, and what is made
of its data elsewhere (``pallas_check``) is interpreted on the gates' inputs and compiled.

Job data: ``source``, ``params``, ``chip`` (device kind, cores), ``workloads`` [{id, inputs, outputs}].
Answers, in order: one ``artefact`` per workload (see ``jaxpr_codec``; blob ``text``, arrays by number), or one
``error`` {phase, type, message}.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.core import jaxprs_in_params
from jax.extend.core import ClosedJaxpr, Literal
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from tilewright.workers.child.frames import Frame, dtype_named
from tilewright.workers.runners import bare_module
from tilewright.workers.runners.failures import describe
from tilewright.workers.runners.pallas import jaxpr_names as names
from tilewright.workers.runners.pallas.jaxpr_codec import encode

Answer = Callable[[Frame], None]
CANDIDATE_FILE = "candidate.py"


class NestedKernel(ValueError):
    """A Pallas call inside a loop or branch of the surrounding program."""


def run(
    job: Frame,
    answer: Answer,
    load: Callable[[str], Callable[..., Any]] | None = None,
    plain: Callable[[ClosedJaxpr], ClosedJaxpr] = lambda closed: closed,
) -> None:
    """Serve one trace job; failures of the candidate become an ``error`` frame.

    ``load``: ``build`` of a source (default: of the dialect's); ``plain``: what is handed back of a jaxpr.
    """
    phase = "import"
    try:
        with mesh_of(job.data["chip"]):
            build = (load or load_build)(job.data["source"])
            phase = "trace"
            for workload in job.data["workloads"]:
                artefact = encode(plain(trace(build, job.data["params"], workload)))
                arrays = {str(number): array for number, array in enumerate(artefact.arrays)}
                answer(Frame("artefact", {"workload": workload["id"]}, arrays, {"text": artefact.text}))
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
        answer(Frame("error", {"phase": phase, **describe(error)}))


def mesh_of(chip: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """While it is entered, code is traced for a chip (its ``kind`` and ``cores``) that need not be there."""
    device = AbstractDevice(device_kind=chip["kind"], num_cores=chip["cores"], platform="tpu")
    # since JAX 0.11 nothing runs on the host under a mesh that is explicit, as it is unless one says so
    given = {"axis_types": (AxisType.Auto,)} if names.GROUPS else {}
    return jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device, **given))


def load_build(source: str) -> Callable[..., Any]:
    """A candidate's ``build``: runs its module."""
    build: Callable[..., Any] = bare_module.execute(source, "candidate", CANDIDATE_FILE).build
    return build


def trace(build: Callable[..., Any], params: Mapping[str, Any], workload: Mapping[str, Any]) -> ClosedJaxpr:
    """The candidate's function for one workload. Raises TypeError for other outputs, NestedKernel for hidden loops."""
    traced = closed_of(build(dict(params)), specs_of(workload["inputs"]))
    check_form(traced, workload)
    return traced


def closed_of(function: Callable[..., Any], specs: Sequence[jax.ShapeDtypeStruct]) -> ClosedJaxpr:
    """A function on shapes. A rule of differentiation around a kernel runs it once: it is traced without the rule."""
    traced: ClosedJaxpr = jax.jit(function).trace(*specs).jaxpr
    return unwrapped(traced) if _wraps_kernels(traced.jaxpr) else traced


def unwrapped(traced: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr with what ``jit`` and other wrappers hold in their place."""
    made: ClosedJaxpr = jax.jit(lambda *operands: _unwrapped(traced, operands)).trace(*traced.in_avals).jaxpr
    return made


def check_form(closed: ClosedJaxpr, workload: Mapping[str, Any]) -> None:
    """Raises TypeError for other operands or results than the workload's, NestedKernel for hidden loops."""
    for tensors, avals in ((workload["inputs"], closed.in_avals), (workload["outputs"], closed.out_avals)):
        wanted = [(tuple(t["shape"]), dtype_named(t["dtype"])) for t in tensors]
        found = [(tuple(a.shape), np.dtype(a.dtype)) for a in avals]
        if wanted != found:
            does = "returns" if tensors is workload["outputs"] else "takes"
            raise TypeError(f"build's function {does} {_say(found)} instead of {_say(wanted)}")
    _refuse_nested_kernels(closed.jaxpr)


_WRAPPERS = {
    "custom_vjp_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that run what is in them exactly once, and under which parameter they hold it."""


def _wraps_kernels(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in _WRAPPERS and any(map(_has_kernel, jaxprs_in_params(equation.params))):
            return True
        if name == "jit" and _wraps_kernels(equation.params["jaxpr"].jaxpr):
            return True
    return False


def _unwrapped(closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr, what wrappers hold in their place."""
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, operands, strict=True))
    for equation in closed.jaxpr.eqns:
        inputs = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        held = params["jaxpr"] if name == "jit" else params.get(_WRAPPERS.get(name, ""))
        if held is not None:
            results = _unwrapped(held if isinstance(held, ClosedJaxpr) else ClosedJaxpr(held, ()), inputs)
        else:
            results = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(params))
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [atom.val if isinstance(atom, Literal) else values[atom] for atom in closed.jaxpr.outvars]


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


def specs_of(tensors: Sequence[Mapping[str, Any]]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(tuple(t["shape"]), dtype_named(t["dtype"])) for t in tensors]
