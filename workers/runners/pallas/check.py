"""Check child: trusted code only. Makes kernels from what a trace child wrote, lowers them, runs them on inputs.

What is interpreted on the gates' inputs and what is lowered for the compiler are the same jaxpr, read from the same
data; its hash goes with both. No module of a candidate's text is ever loaded here.

JAX's interpreter by itself reads and writes ranges of references alone. A kernel may read and write
``ref.reshape(...)``, ``ref.bitcast(...)`` and ``ref.transpose(...)``, and ranges of these: what it asks of the memory
is then the range before the first such view, and the rest follows on those values.

Job data: ``chip`` (device kind, cores), ``workloads`` [{id, inputs, outputs}], ``lower`` [ids], ``check`` [{workload,
kinds, sampled, whole}]; blobs: the artefact's text by workload; arrays: ``constant/workload/number``, the gates' inputs
``workload/kind/operand``, and where a workload is sampled ``where/workload/output/axis`` (see ``pallas_sampled``).
Answers, in order: one ``traced`` per id in ``lower`` (blob ``module``: portable StableHLO), one ``checked`` per
(check workload, kind) with the outputs as arrays, or one ``error`` {phase, type, message}.
"""

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import export
from jax._src import callback as callbacks
from jax._src.core import jaxprs_in_params
from jax._src.pallas.mosaic.interpret import interpret_pallas_call, utils
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.state import types as state
from jax._src.state.indexing import NDIndexer, Slice
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.failures import describe
from tilewright.workers.runners.mosaic.facts import fingerprint
from tilewright.workers.runners.pallas.jaxpr_codec import Artefact, decode
from tilewright.workers.runners.pallas.sampled_grid import Program, places
from tilewright.workers.runners.pallas.trace import check_form, mesh_of, specs_of

_GET, _STORE, _SWAP = interpreter.get.__wrapped__, interpreter.store.__wrapped__, interpreter.swap.__wrapped__
_WAIT = interpreter.dma_wait
_PARALLEL = interpreter._get_parallel_dim_semantics
Place = tuple[Any, ...]
"""Device, core, memory and buffer."""


def install() -> None:
    """Let the interpreter know views, and axes that ``jax.vmap`` puts in front of a grid, and call Python at once."""
    vars(callbacks)["io_callback_impl"] = _called
    vars(interpreter)["_get_parallel_dim_semantics"] = _parallel
    for name, made in (("get", _get), ("store", _store), ("swap", _swap)):
        setattr(interpreter, name, interpreter.fail_on_exception(made))
    vars(interpreter)["dma_wait"] = _dma_wait


def _called(*values: Any, callback: Callable[..., Any], **_: Any) -> Any:
    """JAX's own puts each number on a device first, which takes longer than what is done with it."""
    return jax.tree.map(np.asarray, callback(*values))


def _dma_wait(token: Any, *call: Any, **options: Any) -> Any:
    """JAX's own wants the clock of who signalled, also where a copy of nothing is waited for."""
    return _WAIT(token, *call, **options) if int(call[3]) else token


def _parallel(params: Any, count: int) -> tuple[bool, ...]:
    named = _PARALLEL(params, count)
    return (*[True] * (count - len(named)), *named)


def _get(token: Any, *call: Any, **options: Any) -> Any:
    ranges, views = _divided(call)
    token, found = _GET(token, *call[:4], ranges, *call[5:], **options)
    return token, view_of(found, views)


def _store(token: Any, *call: Any, **options: Any) -> Any:
    ranges, views = _divided(call)
    value = call[5]
    if views:
        # no read of the kernel's: the copy that stores would race with itself
        at, shared = utils.to_range(jax.tree.map(int, ranges)), interpreter._get_shared_memory()
        before, (shape, _), _ = shared.get_buffer_content(_key(call), at, 0, increment_clock=False)
        if before is None or utils.is_range_out_of_bounds_for_shape(at, shape):
            raise IndexError(f"out-of-bounds access of a reference: [{at}] of shape {shape}")
        value = put(before, views, np.array(value))
    return _STORE(token, *call[:4], ranges, value, *call[6:], **options)


def _swap(token: Any, *call: Any, **options: Any) -> Any:
    """JAX's own takes a mask whose rows outnumber its columns for one that reaches out of the memory."""
    ranges, views = _divided(call)
    value, mask = np.array(call[5]), call[6]
    if not views and mask is None:
        return _SWAP(token, *call, **options)
    try:
        before = _GET(None, *call[:4], ranges, **options)[1]
    except IndexError:
        if views:
            raise
        return _SWAP(token, *call, **options)  # what the mask leaves out may lie outside
    seen = view_of(before, views)
    changed = put(before, views, value if mask is None else np.where(np.array(mask), value, seen))
    return _SWAP(token, *call[:4], ranges, changed, None, **options)[0], seen


@dataclass(frozen=True)
class _Part:
    """A view of part of a buffer along its first axis, from ``first`` on, as all of it: the rest is not looked at."""

    shape: tuple[int, ...]
    first: int


def _key(call: Sequence[Any]) -> tuple[str, int, int, int]:
    device, core, space, buffer = map(int, call[:4])
    name = interpreter.TPU_MEMORY_SPACE_NAMES[space]
    return name, buffer, device, interpreter._local_core_id_or_zero_if_hbm(core, name)


def _divided(call: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The ranges before the first view, and what follows. Views of a whole buffer are of the part that they show:
    copies may go on in the rest."""
    transforms = call[4]
    count = next((n for n, t in enumerate(transforms) if not isinstance(t, NDIndexer)), len(transforms))
    views = jax.tree.map(int, tuple(transforms[count:]))
    held = interpreter._get_shared_memory().mem[_key(call)]
    shape = tuple(held.logical_shape)
    if count or not views or not shape:
        return tuple(transforms[:count]), views
    leaves, tree = jax.tree.flatten(views)
    part = _shown(shape, np.dtype(held.dtype), tree, *leaves)
    rows = (Slice(part.start, len(part)), *(Slice(0, size) for size in shape[1:]))
    return (NDIndexer(rows, shape, ()),), (_Part(shape, part.start), *views)


@functools.lru_cache(maxsize=1024)
def _shown(shape: tuple[int, ...], dtype: np.dtype[Any], tree: Any, *leaves: int) -> range:
    """The part of a buffer along its first axis from the first to the last element that views show."""
    axis = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    first = last = np.broadcast_to(axis, shape)
    for view in tree.unflatten(leaves):
        if isinstance(view, state.BitcastTransform):
            before, dtype = dtype.itemsize, np.dtype(view.dtype)
            if (count := dtype.itemsize // before) > 1:
                first, last = first[..., ::count, :], last[..., count - 1 :: count, :]
            first, last = (np.repeat(a, max(1, before // dtype.itemsize), -2) for a in (first, last))
        else:
            first, last = view_of(first, [view]), view_of(last, [view])
    return range(int(first.min()), int(last.max()) + 1) if first.size else range(0)


def view_of(array: np.ndarray, views: Sequence[Any]) -> np.ndarray:
    """What views make of an array. Raises IndexError for a range outside of it, NotImplementedError."""
    for view in views:
        if isinstance(view, NDIndexer):
            array = array[_within(array, view)]
        elif isinstance(view, _Part):
            part, array = array, np.zeros(view.shape, array.dtype)
            array[view.first : view.first + len(part)] = part
        elif isinstance(view, state.ReshapeTransform):
            array = array.reshape(view.shape)
        elif isinstance(view, state.TransposeTransform):
            array = array.transpose(view.permutation)
        elif isinstance(view, state.BitcastTransform):
            array = _bitcast(array, np.dtype(view.dtype))
        else:
            raise NotImplementedError(f"a reference seen through {type(view).__name__}")
    return array


def put(array: np.ndarray, views: Sequence[Any], value: np.ndarray) -> np.ndarray:
    """The array in which ``value`` is what the views show. Raises like ``view_of``."""
    if not views:
        return value
    first, rest = views[0], views[1:]
    changed = put(view_of(array, [first]), rest, value)
    if isinstance(first, NDIndexer):
        made = array.copy()
        made[_within(array, first)] = changed
        return made
    if isinstance(first, _Part):
        return changed[first.first : first.first + len(array)]
    if isinstance(first, state.TransposeTransform):
        return changed.transpose(np.argsort(first.permutation))
    if isinstance(first, state.BitcastTransform):
        return _bitcast(changed, array.dtype)
    return changed.reshape(array.shape)


def _within(array: np.ndarray, view: Any) -> tuple[Any, ...]:
    at: tuple[Any, ...] = utils.to_range([view])
    if utils.is_range_out_of_bounds_for_shape(at, array.shape):
        raise IndexError(f"out-of-bounds access of a reference's view: [{at}] of shape {array.shape}")
    return at


def _bitcast(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """As a TPU does it: elements that become one lie along the last dimension but one."""
    before, after = array.dtype.itemsize, dtype.itemsize
    *rows, columns = array.shape
    if before < after:
        parts = array.reshape(*rows[:-1], -1, after // before, columns).swapaxes(-1, -2)
        return np.ascontiguousarray(parts).view(dtype)[..., 0]
    made = np.ascontiguousarray(array)[..., None].view(dtype)
    return made.swapaxes(-1, -2).reshape(*rows[:-1], -1, columns) if before > after else made[..., 0]


Answer = Callable[[Frame], None]
install()

SETTINGS = pltpu.InterpretParams(detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan")
IN_ORDER = replace(SETTINGS, detect_races=False)
"""For kernels without copies by hand and semaphores: one core does all in order, and remembering every access of every
step to compare the next one with is what takes the time."""

_BESIDE = ("dma_", "semaphore", "core_map", "shard_map", "barrier")
"""What a primitive's name holds that lets something run beside the core."""


def settings_of(closed: ClosedJaxpr) -> Any:
    """How a kernel is interpreted: races are looked for where there can be any."""
    return SETTINGS if _beside(closed.jaxpr) else IN_ORDER


def _beside(jaxpr: Any) -> bool:
    return any(
        any(part in equation.primitive.name for part in _BESIDE) or any(map(_beside, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def run(job: Frame, answer: Answer) -> None:
    """Serve one check job; what the kernel cannot do becomes an ``error`` frame."""
    phase = "read"
    try:
        with mesh_of(job.data["chip"]):
            artefacts, kernels = dict[str, Artefact](), {}
            for workload in job.data["workloads"]:
                prefix = f"constant/{workload['id']}/"
                held = {k.removeprefix(prefix): a for k, a in job.arrays.items() if k.startswith(prefix)}
                artefacts[workload["id"]] = artefact_of(job.blobs[workload["id"]], held)
                kernels[workload["id"]] = decode(artefacts[workload["id"]])
                check_form(kernels[workload["id"]], workload)
            phase = "lower"
            for workload in job.data["workloads"]:
                if workload["id"] in job.data["lower"]:
                    answer(exported(workload, kernels[workload["id"]], artefacts[workload["id"]].hash))
            phase = "check"
            for check in job.data["check"]:
                workload = next(w for w in job.data["workloads"] if w["id"] == check["workload"])
                name = workload["id"]
                _check(workload, check, kernels[name], artefacts[name].hash, job.arrays, answer)
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is its answer
        answer(Frame("error", {"phase": phase, **describe(error)}))


def artefact_of(text: bytes, arrays: Mapping[str, np.ndarray]) -> Artefact:
    """What a trace child wrote: the text, and its arrays by number."""
    numbered = {int(number): array for number, array in arrays.items()}
    return Artefact(text, tuple(numbered[number] for number in sorted(numbered)))


def exported(workload: Mapping[str, Any], jaxpr: ClosedJaxpr, artefact: str) -> Frame:
    """A ``traced`` frame. An operand that nothing uses stays one; ``structure.objection`` says so."""
    unchecked = [export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    exporter = export.export(
        jax.jit(jaxpr_as_fun(jaxpr), keep_unused=True), platforms=["tpu"], disabled_checks=unchecked
    )
    exported = exporter(*specs_of(workload["inputs"]))
    module = exported.mlir_module_serialized
    data = {
        "workload": workload["id"],
        "calling_convention": exported.calling_convention_version,
        "fingerprint": fingerprint(module),
        "artefact": artefact,
    }
    return Frame("traced", data, blobs={"module": module})


def _check(
    workload: Mapping[str, Any],
    check: Mapping[str, Any],
    jaxpr: ClosedJaxpr,
    artefact: str,
    arrays: Mapping[str, np.ndarray],
    answer: Answer,
) -> None:
    """Interpret the jaxpr on each kind of inputs, out-of-bounds reads raising, fresh memory NaN; with ``both`` on every
    second kind zero, so that nothing tells fresh memory by its looks. Of a ``sampled`` shape the steps of the grid on
    which chosen elements depend; the outputs are those elements."""
    settings = settings_of(jaxpr)
    where = places(arrays, workload["id"], workload["outputs"]) if check.get("sampled") else None
    memories = [settings, replace(settings, uninitialized_memory="zero")] if check.get("both") else [settings]
    ways = [jax.jit(lambda *given, by=by: interpret(jaxpr, given, by)) for by in memories]
    first = secrets.randbelow(len(ways))
    for turn, kind in enumerate(check["kinds"]):
        prefix = f"{workload['id']}/{kind}/"
        operands = [arrays[prefix + tensor["name"]] for tensor in workload["inputs"]]
        if where is not None:
            results = Program(jaxpr, operands).run(where, settings, whole=kind in check["whole"])
        else:
            results = [np.asarray(result) for result in ways[(first + turn) % len(ways)](*operands)]
        outputs = {t["name"]: array for t, array in zip(workload["outputs"], results, strict=True)}
        races = interpret_pallas_call.races
        data = {
            "workload": workload["id"],
            "kind": kind,
            "races": bool(races is not None and races.races_found),
            "artefact": artefact,
        }
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
