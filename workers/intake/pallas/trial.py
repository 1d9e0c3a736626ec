"""Runs of a taken ``build`` in the interpreter that gates use: small shapes, and bounds."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import jaxprs_in_params
from jax.experimental.pallas import tpu as pltpu

from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import Literal
from tilewright.workers.intake.calls.dtypes import is_float, is_narrow
from tilewright.workers.intake.judge import bounds as judge
from tilewright.workers.intake.judge.edges import negative_numbers
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.judge.reference import function_of, run_reference
from tilewright.workers.intake.operator import Operand, operand_row
from tilewright.workers.intake.pallas.function_text import Knob, Refused
from tilewright.workers.intake.pallas.input_kinds import Kinds
from tilewright.workers.intake.pallas.knob_evidence import Below, anywhere, evidence, label_of, legal_values
from tilewright.workers.intake.pallas.lowering import check_blocks, lowered
from tilewright.workers.intake.source.knobs import said_of


def judged(request: Mapping[str, Any], source: str, operands: list[Operand], calls: Sequence[Any],
            knobs: Sequence[Knob],
            said: Mapping[Any, str], places: Sequence[Any], below: Sequence[Below] = ()) -> dict[str, Any]:  # fmt: skip
    """Checked shapes, bounds and evidence, all by the interpreter that candidates are judged with.

    ``below``: pairs of knobs of which the first may not be above the second, as the user's own classes say.
    """
    from tilewright.workers.runners.pallas.trace import load_build

    target = load_target("tpu7x")
    reference = function_of(request["reference"])
    build = load_build(source)
    defaults = {k.name: k.default for k in knobs}
    ways = _reference_ways(calls[0], operands, places, reference)
    state: dict[str, str] = {}

    def answers(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        errors = []
        for precision in ("float64", "float32", ""):
            for way in ways:
                if state and (state["call"], state["precision"]) != (way, precision):
                    continue
                try:
                    values = run_reference(reference, way, inputs, precision)
                except Exception as error:  # noqa: BLE001 - the next way may do
                    errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
                    continue
                if values:
                    state.update(call=way, precision=precision)
                    return values
        raise Refused(
            f"the reference cannot be called with these arguments: {errors[0] if errors else 'no result'}"
        )

    def runs(
        dims: Mapping[str, int], params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        return interpreted(
            target.chip, build, params, [(o.name, o.sizes(dims), o.dtype) for o in operands], inputs
        )

    def works(dims: Mapping[str, int], named: Sequence[Operand]) -> bool:
        """Whether the reference takes operands of these sizes: asked on shapes alone where it is of JAX."""
        shapes = {o.name: jax.ShapeDtypeStruct(o.sizes(dims), _np(o.dtype)) for o in named}
        scope = {"jax": jax, "jnp": jnp, "reference": reference}
        for way in ways:
            try:
                called = eval(f"lambda {', '.join(shapes)}: reference({way})", scope)
                return bool(jax.tree_util.tree_leaves(jax.eval_shape(called, *shapes.values())))
            except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
                return _answered(answers, named, dims)  # it wants values
            except Exception:  # noqa: BLE001 - the next way may do
                continue
        return False

    operands, all_dims = dimensions.settle(operands, len(calls), works, size=8)
    state.clear()
    lowers = functools.partial(_traced, target.chip, build, defaults, operands)
    shapes, why = _shapes(all_dims[0], operands, defaults, answers, runs, lowers)
    if not shapes:
        return {
            "refusals": [
                {"line": 0, "what": f"the kernel agrees with the reference on no small shape: {why}"}
            ]
        }
    notes: list[str] = []
    multiplies = "dot_general" in _traced(target.chip, build, defaults, operands, shapes[0][0])
    products = judge.factors(operands, shapes[0][0]) if multiplies else ""
    numbers = negative_numbers((reference,), (*calls[0].arguments, *calls[0].keywords.values()))
    kinds = Kinds(operands, numbers, shapes, answers, lambda sizes, inputs: runs(sizes, defaults, inputs))
    operands = kinds.operands
    results, failed = _results(
        operands,
        shapes,
        all_dims[0],
        lambda sizes: _eval_shapes(target.chip, build, defaults, operands, sizes),
        lambda number, dtype, kind: judge.bar_of_text(
            kinds.readings(number, kind), [o.dtype for o in operands], dtype, products, source
        ),
        kinds,
        notes,
    )
    if failed:
        return {
            "refusals": [{"line": 0, "what": f"the kernel's own answer is not the reference's: {failed}"}]
        }
    legal, idle = legal_values(
        {k.name: k.values for k in knobs},
        defaults,
        [*all_dims, *(s[0] for s in shapes)],
        lambda sizes, params: _traced(target.chip, build, params, operands, sizes),
    )
    knobs = [replace(k, values=anywhere(k, legal)) for k in knobs]
    space, fixed, held, tied = evidence(
        [k for k in knobs if k.name not in idle], defaults, shapes, results, runs, below
    )
    why = "other values change nothing on these shapes"
    fixed += [{"name": k.name, "value": k.default, "why": why} for k in knobs if k.name in idle]
    within = {f"{name} <= {outer}": f"a block of {outer} is no larger than that" for name, outer in held}
    text = re.sub(
        r"SPACE = .*\nDEFAULTS = .*\nCONSTRAINTS = .*\n",
        f"SPACE = {space!r}\nDEFAULTS = { {k: defaults[k] for k in space}!r}\nCONSTRAINTS = {within!r}\n",
        source,
        count=1,
    )
    text = said_of(
        text,
        {
            k.name: f'params["{tied[k.name]}"]' if k.name in tied else repr(k.default)
            for k in knobs
            if k.name not in space
        },
    )
    _eval_shapes(
        target.chip, load_build(text), {n: defaults[n] for n in space}, operands, shapes[0][0]
    )  # it stands
    seed = {n: defaults[n] for n in space}
    work = _work(reference, state["call"], operands, all_dims)
    timed = {label_of(dims): dims for dims in all_dims}
    made = [str(row[0]) for row in results]
    beside, work, objections = lowered(target.chip, load_build(text), seed, operands, made, work, timed)
    if objections:
        return {"refusals": [{"line": 0, "what": what} for what in objections]}
    if beside:
        names = ", ".join(sorted(name.removeprefix("stablehlo.") for name in beside))
        notes.append(
            f"beside its kernels the function computes {names}: candidates may, too, and the time counts"
        )
    legal = {
        label: {n: [v for v in taken_there[n] if v in space[n]] for n in space}
        for label, taken_there in legal.items()
    }
    return {
        "source": text, "space": {k: list(v) for k, v in space.items()},
        "defaults": {k: defaults[k] for k in space}, "fixed": fixed,
        "operands": [operand_row(o) for o in operands],
        "results": results, "call": state["call"], "precision": state["precision"], "check": [s[0] for s in shapes],
        "constraints": within, "judged_notes": notes, "beside": sorted(beside),
        "kinds": kinds.borne, "spread": kinds.spread, "legal": legal, "independent": [], "dims": all_dims,
        "work": work,
    }  # fmt: skip


def _answered(answers: Any, operands: Sequence[Operand], dims: Mapping[str, int]) -> bool:
    try:
        return bool(answers({o.name: np.zeros(o.sizes(dims), dtype=_np(o.dtype)) for o in operands}))
    except Exception:  # noqa: BLE001 - these dimensions are not different ones
        return False


def interpreted(
    chip: Any, build: Any, params: Mapping[str, Any], specs: Sequence[Any], inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The outputs of a ``build`` under the interpreter that gates use."""
    from tilewright.workers.runners.pallas.check import interpret

    pltpu.reset_tpu_interpret_mode_state()  # what a kernel that failed left behind would fail the next
    with _on(chip):
        tensors = [jax.ShapeDtypeStruct(shape, _np(dtype)) for _, shape, dtype in specs]
        closed = jax.jit(build(dict(params))).trace(*tensors).jaxpr
        settings = pltpu.InterpretParams(out_of_bounds_reads="raise", uninitialized_memory="nan")
        compiled = jax.jit(lambda *operands: interpret(closed, operands, settings))
        return [np.asarray(r) for r in compiled(*(inputs[name] for name, _, _ in specs))]


def _on(chip: Any) -> contextlib.AbstractContextManager[Any]:
    """While it is entered, code is traced for a chip: a pipeline within a kernel asks which one."""
    from tilewright.workers.runners.pallas.trace import mesh_of

    return mesh_of({"kind": chip.device_kind, "cores": chip.cores})


def _eval_shapes(
    chip: Any, build: Any, params: Mapping[str, Any], operands: Sequence[Operand], dims: Mapping[str, int]
) -> list[tuple[int, ...]]:
    tensors = [jax.ShapeDtypeStruct(o.sizes(dims), _np(o.dtype)) for o in operands]
    with _on(chip):
        found = jax.eval_shape(build(dict(params)), *tensors)
    return [tuple(leaf.shape) for leaf in jax.tree_util.tree_leaves(found)]


def _reference_ways(
    call: Any, operands: Sequence[Operand], places: Sequence[Any], reference: Any
) -> list[str]:
    """Ways to call the reference, the likeliest first: as the function is, without keywords that it does not know (as
    of block sizes), by position alone, with the tensors alone."""
    by_place = {p: o.name for o, p in zip(operands, places, strict=True)}
    positional = [by_place.get((n,), repr(v)) for n, v in enumerate(call.arguments)]
    keyword = [
        f"{k}={by_place.get((k,), repr(v))}" for k, v in call.keywords.items() if not isinstance(v, Literal)
    ]
    tensors = [o.name for o in operands]
    try:
        taken = set(inspect.signature(reference).parameters)
    except (TypeError, ValueError):  # of a function that is not Python's
        taken = set()
    known = [k for k in keyword if k.partition("=")[0] in taken]
    ways = ([*positional, *keyword], [*positional, *known], positional, [*tensors, *known], tensors)
    return list(dict.fromkeys(", ".join(way) for way in ways))


def _np(dtype: str) -> Any:
    return jnp.dtype(dtype)


def _shapes(
    dims: Mapping[str, int],
    operands: Sequence[Operand],
    defaults: Mapping[str, int],
    answers: Any,
    runs: Any,
    lowers: Callable[[Mapping[str, int]], object],
) -> tuple[list[Any], str]:
    """Small shapes on which the default is right: multiples of blocks, then the whole if it is small."""
    largest = max([128, *(v for v in defaults.values() if v <= 1024)])
    tries = [
        {n: min(s, 1024) for n, s in dims.items()},  # takes the largest blocks that are worth trying
        {n: min(s, 2 * largest * (1 + k % 2)) for k, (n, s) in enumerate(dims.items())},
        {n: min(s, largest * (1 + k % 3)) for k, (n, s) in enumerate(dims.items())},
        {n: min(s, largest) for n, s in dims.items()},
        {n: min(s, 128 * (1 + k % 3)) for k, (n, s) in enumerate(dims.items())},
        dict(dims),
    ]
    found: list[Any] = []
    reasons = []
    for small in tries:
        if any(f[0] == small for f in found) or len(found) == 2:
            continue
        if sum(math.prod(o.sizes(small)) for o in operands) > 1 << 23:
            continue
        label = "x".join(map(str, small.values()))
        try:
            rng = np.random.default_rng(17)
            inputs = {o.name: draw(o, small, "randn", 2, rng) for o in operands}
            wanted = answers(inputs)
            outputs = runs(small, defaults, inputs)
            lowers(small)
        except Refused as refusal:
            reasons.append(f"{label}: {refusal.what}")
            continue
        except Exception as error:  # noqa: BLE001 - a shape the kernel does not take
            reasons.append(f"{label}: {type(error).__name__}: {error}".splitlines()[0][:200])
            continue
        bad = [
            judge.read(o, w.astype(np.float64)).db
            for o, w in zip(outputs, wanted, strict=False)
            if o.shape != w.shape or not judge.read(o, w.astype(np.float64)).db > 20
        ]
        if bad:
            reasons.append(f"{label}: {bad[0]:.1f} dB from the reference")
            continue
        found.append((small, inputs, wanted, outputs))
    return found, "; ".join(reasons)


def _results(
    operands: Sequence[Operand], shapes: Sequence[Any], whole: Mapping[str, int], shapes_at: Any,
    bound_of: Callable[[int, str, Sequence[str]], Any], kinds: Kinds, notes: list[str],
) -> tuple[list[Any], str]:  # fmt: skip
    results = []
    floats = [
        (n, o.dtype.name)
        for n, o in enumerate(shapes[0][3][: len(shapes[0][2])])
        if is_float(o.dtype.name) and not is_narrow(o.dtype.name)
    ]
    kinds.settle(lambda names: [bound_of(n, dtype, names)[0] for n, dtype in floats])
    # sizes that differ; small ones stay small, since functions have loops over heads and streams
    unlike = {n: 4096 << place if s > 64 else s * (place + 2) for place, (n, s) in enumerate(whole.items())}
    try:
        made: Any = shapes_at(unlike)
    except Exception:  # noqa: BLE001 - no such shape: the sizes of the small ones must do
        made = None
    small, _, wanted, outputs = shapes[0]
    for number, output in enumerate(outputs[: len(wanted)]):
        dtype = output.dtype.name
        names: list[int | str] = []
        for axis, size in enumerate(output.shape):
            fits = [n for n in small if all(s[0][n] == s[3][number].shape[axis] for s in shapes)]
            exact = [n for n in fits if made is not None and unlike[n] == made[number][axis]]
            fits = exact or fits
            names.append(fits[0] if fits else int(size))
        min_db, worst = 0.0, None
        if dtype.startswith(("float", "bfloat")) and not dtype.startswith("float8"):
            bound, why, narrow = bound_of(number, dtype, kinds.borne)
            if narrow:
                notes.append(f"result {number} is judged as of {narrow}, to which the kernel itself converts")
            if bound is None:
                return [], f"result {number}: {why}"
            min_db, worst = bound.min_db, bound.worst
        results.append([f"o{number}", dtype, names, min_db, worst, number])
    return results, ""


def _traced(
    chip: Any, build: Any, params: Mapping[str, Any], operands: Sequence[Operand], dims: Mapping[str, int]
) -> str:
    """What the function does there, as text. Raises what it raises, ValueError for blocks that no TPU takes,
    Refused where a kernel never runs."""
    tensors = [jax.ShapeDtypeStruct(o.sizes(dims), _np(o.dtype)) for o in operands]
    with _on(chip):
        closed = jax.make_jaxpr(build(dict(params)))(*tensors)
    if _never_runs(closed.jaxpr):
        raise Refused(f"the grid is empty for {dict(dims)} and {dict(params)}: the kernel never runs")
    with _on(chip):
        check_blocks(closed.jaxpr)
    return re.sub(r"0x[0-9a-f]+", "", str(closed))


def _never_runs(jaxpr: Any) -> bool:
    """Whether a kernel has an axis of no steps: a block that is larger than what it divides."""
    return any(
        0 in equation.params["grid_mapping"].grid
        if equation.primitive.name == "pallas_call"
        else any(map(_never_runs, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def _work(
    reference: Any, call: str, operands: Sequence[Operand], all_dims: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Floating-point operations of matrix products, as XLA counts them in the reference."""
    found = {}
    for dims in all_dims:
        key = label_of(dims)
        try:
            names = [o.name for o in operands]
            made = eval(
                f"lambda {', '.join(names)}: reference({call})",
                {"reference": reference, "jnp": jnp, "jax": jax},
            )
            lowered = jax.jit(made).lower(
                *(jax.ShapeDtypeStruct(o.sizes(dims), _np(o.dtype)) for o in operands)
            )
            analysis = lowered.cost_analysis() or {}
            text = lowered.as_text()
            found[key] = int(analysis.get("flops", 0)) if "dot_general" in text else 0
        except Exception:  # noqa: BLE001 - a reference that is not JAX
            found[key] = 0
    return found
