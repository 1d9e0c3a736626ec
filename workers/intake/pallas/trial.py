"""The judge of a Pallas function: checked shapes, bounds and parameters, by the interpreter that gates use."""

import contextlib
import functools
import inspect
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import jaxprs_in_params
from jax.extend.core import ClosedJaxpr

from tilewright.fitness.chips import Chip
from tilewright.fitness.tpu import structure
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import GIVEN, Call, Literal, Place
from tilewright.workers.intake.calls.kept_values import ways_to_draw, with_values
from tilewright.workers.intake.calls.objects import scope_of
from tilewright.workers.intake.calls.sizes import label_of, shape_text
from tilewright.workers.intake.child_program import Answer, Refusal, refused, show_step
from tilewright.workers.intake.judge import bounds
from tilewright.workers.intake.judge.bounds import wrong
from tilewright.workers.intake.judge.input_kinds import CheckedShape, Effort, InputKinds, inputs_of, negative_numbers
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.judge.oracles import Oracle, OwnAnswers
from tilewright.workers.intake.judge.reference import function_of
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import Operand, operand_row
from tilewright.workers.intake.pallas import knob_evidence
from tilewright.workers.intake.pallas.block_sizes import kernels_in
from tilewright.workers.intake.pallas.function_text import FollowedText
from tilewright.workers.intake.pallas.original import Original
from tilewright.workers.intake.pallas.seed_build import SeedBuild, picked, shaped
from tilewright.workers.intake.source.knobs import ALONE, IDLE, Knob
from tilewright.workers.runners.failures import describe

EFFORT = Effort(draws=12, kernel_draws=(0,), on_largest=False, blamed_spread=0, seconds=25.0)
OWN_EFFORT = replace(EFFORT, draws=1, special=False, seconds=15.0)
"""Some kernels take seconds a run. One that is its own judge is asked less: each answer is a run, and what it makes of
infinity depends on its blocks."""

NAMES_SECONDS, SLOW_SECONDS, TIMED_SECONDS = 15.0, 8.0, 15.0
MOST_BYTES = 3 << 29
"""Most that finding dimensions may take, checked shapes before there are no more, and the readings at timed shapes; the
largest operands there."""

FEW, KEPT = 128, dimensions.KEEPABLE[1]
"""Largest size of an axis that keeps it while dimensions are found, and of a dimension that is tried as it is."""

MOST_ACCESSES, SHRUNK, LEAST = 1 << 12, 4, 8
"""Accesses to memory beyond which a run takes many seconds, since each calls Python; what sizes are then divided by,
and the least that is left."""

MOST_ELEMENTS = 1 << 23
"""Most elements of a checked shape's operands."""

Module = Original | FollowedText
"""A kernel module: the function as it stands, or the user's text in the dialect."""


def judge(
    request: Mapping[str, Any],
    chip: Chip,
    module: Module,
    operands: list[Operand],
    calls: Sequence[Call],
    knobs: Sequence[Knob],
    places: Sequence[Place],
) -> Answer:
    """The answer for a module. Raises Refusal."""
    folder = Path(request["folder"])
    show_step("running it")
    seed = SeedBuild(chip, module.build(folder), operands)
    defaults = {k.name: k.default for k in knobs}
    if request["reference"] == SELF:
        oracle: Oracle | OwnAnswers = OwnAnswers(
            lambda inputs: seed.run(defaults, list(inputs.values())),
            lambda one, other: bounds.wrong(one, other, operands),
            operands,
            precisions=(),  # wider floats turn what a kernel quantises within
        )
    else:
        oracle = _oracle(request["reference"], calls[0], operands, places)

    # with the caller's own integers the call's shape is the one that is checked
    own = bool(request.get("values")) and any("int" in operand.dtype for operand in operands)
    until = time.process_time() + (0.0 if own else NAMES_SECONDS)

    def takes(dims: Mapping[str, int], named: Sequence[Operand]) -> bool:
        if isinstance(oracle, Oracle):
            return _takes(oracle, dims, named)
        if time.process_time() > until:
            return False
        free = [size for size in dims.values() if size > KEPT]
        turned = iter(reversed(free))
        others = {name: next(turned) if size > KEPT else size for name, size in dims.items()}
        with contextlib.suppress(Exception):  # whatever the user's code raises
            tried = replace(seed, operands=named)
            return all(tried.traced(sizes, defaults) for sizes in (dims, others))
        return False

    size, few = (8, 0) if isinstance(oracle, Oracle) else (128, FEW)
    operands, all_dims = dimensions.name_dimensions(operands, len(calls), takes, size=size, few=few)
    shapes = _shapes_with(
        with_values(request.get("values", ""), folder, [label_of(dims) for dims in all_dims], operands),
        all_dims[0],
        seed,
        defaults,
        oracle,
    )
    operands, seed.strict = list(seed.operands), False  # nothing is read outside of these shapes
    multiplies = "dot_general" in str(seed.closed(shapes[0].dims, defaults))
    factors = bounds.factors(operands, shapes[0].dims) if multiplies else ""
    numbers = negative_numbers((oracle.function,), (*calls[0].arguments, *calls[0].keywords.values()))

    def run_all(inputs: Sequence[tuple[Mapping[str, int], Mapping[str, np.ndarray]]]) -> list[Any]:
        found: list[Any] = []
        for _, given in inputs:
            try:
                found.append(seed.interpreted(defaults, given))
            except Exception:  # noqa: BLE001 - inputs that the kernel does not take
                break
        return found + [None] * (len(inputs) - len(found))

    effort = EFFORT if isinstance(oracle, Oracle) else OWN_EFFORT
    if isinstance(module, Original):  # a candidate is the same function, with other sizes
        effort = replace(effort, seconds=effort.seconds / 2)
    # of a kernel that is its own judge nothing is off, and each answer is a run
    tried = shapes if isinstance(oracle, Oracle) else [min(shapes, key=lambda shape: shape.elements)]
    kinds = InputKinds(operands, tried, oracle, run_all, effort, factors, module.source(""), numbers)
    operands, seed.strict = kinds.operands, True  # other bits may be far off after many steps
    seed.operands = operands
    if isinstance(oracle, Oracle):
        _add_timed(kinds, seed, oracle, [d for d in all_dims if all(d != s.dims for s in shapes)], defaults)
    results, failed = kinds.results(_result_sizes(seed, all_dims[0], defaults, shapes))
    notes = kinds.notes
    if failed:
        return refused(f"the kernel's own answer is not the reference's: {failed}")
    every = [*(shape.dims for shape in shapes), *all_dims]

    def traced(dims: Mapping[str, int], params: Mapping[str, int]) -> ClosedJaxpr:
        if params != defaults and seed.result_shapes(dims, params) != seed.result_shapes(dims, defaults):
            raise Refusal("its results have other shapes")
        return seed.traced(dims, params)

    checked, labels = ([label_of(dims) for dims in of] for of in ([s.dims for s in shapes], all_dims))
    if own and _copies_by_values(seed.closed(all_dims[0], defaults).jaxpr):
        for knob in knobs:  # a smaller one may be a buffer that is too small for other values
            knob.values = tuple(v for v in knob.values if v >= knob.default)
            knob.parts = tuple(v for v in knob.parts if v >= knob.default)
    show_step("trying sizes")
    legal, idle = knob_evidence.legal_values(knobs, defaults, every, all_dims, traced, seed.elements, seed.identity)
    knobs = [knob_evidence.values_taken(k, legal, labels, checked[:1]) for k in knobs]
    telling = [k for k in knobs if k.name not in idle and len({*k.values, *k.parts}) > 1]

    smallest = functools.partial(knob_evidence.smallest_taking, shapes, legal)
    first = seed.first_seconds

    def expected(params: Mapping[str, int], dims: Mapping[str, int]) -> float:
        return first * (seed.equations(dims, params) / seed.equations(dims, defaults)) ** 2

    space, fixed, held, tied = knob_evidence.tiling_knobs(
        telling, defaults, smallest, results, seed.interpreted, expected
    )
    if any(smallest({name: v}) is not shapes[-1] for name, values in space.items() for v in values):
        shapes = shapes[:1]  # the other is smaller than a block that the first and the timed ones take
        legal = {label: taken for label, taken in legal.items() if label in (checked[0], *labels)}
    whys = {k.name: IDLE if k.name in idle else ALONE for k in knobs if k not in telling}
    fixed += [{"name": k.name, "value": k.default, "why": whys[k.name]} for k in knobs if k.name in whys]
    chosen = {name: defaults[name] for name in space}
    constraints = {f"{name} <= {outer}": f"a block of {outer} is no larger than that" for name, outer in held}
    starts = dict.fromkeys(labels, chosen)
    for dims, label in zip(all_dims, labels, strict=True) if len(all_dims) > 1 else ():
        elsewhere, values = " or ".join(f"{n} != {size}" for n, size in dims.items()), legal.get(label, space)
        for name, kept in ((n, tuple(v for v in space[n] if v in values[n])) for n in space):
            if kept and kept != space[name]:
                constraints[f"{elsewhere} or {name} in {kept}"] = f"{label} takes no other {name}"
                near = min(kept, key=lambda v, own=chosen[name]: (abs(math.log2(v / own)), v))  # type: ignore[misc]
                starts[label] = {**starts[label], name: near}
    replaced = {
        k.name: f'params["{tied[k.name]}"]' if k.name in tied else repr(k.default) for k in knobs if k.name not in space
    }
    module = module.settled(replaced)
    text = module.source(f"SPACE = {space!r}\nDEFAULTS = {chosen!r}\nCONSTRAINTS = {constraints!r}\n")
    made = SeedBuild(chip, module.build(folder), operands)
    timed = {label_of(dims): dims for dims in all_dims}
    work = _product_work(oracle, operands, timed) if isinstance(oracle, Oracle) else None
    beside, work, reasons = made.lowered(starts, [r.name for r in results], work, timed)
    if reasons:
        return {"refusals": [{"line": 0, "what": what} for what in reasons]}
    alone = structure.timed_alone(beside)
    moved_by = _written if alone else _moved
    moved = {label: moved_by(made, dims, starts[label]) for label, dims in timed.items()}
    if beside:
        names = [n.removeprefix("stablehlo.") for n in beside if not n.startswith(structure.ALONE)]
        then = "candidates may, too, and its time counts"
        then = "every candidate must, too, and times are of the kernels alone" if alone else then
        notes.append(f"the function computes {', '.join(sorted(names))} outside its kernels: {then}")
    return {
        "source": text,
        "space": {k: list(v) for k, v in space.items()},
        "defaults": chosen,
        "fixed": fixed,
        "operands": [operand_row(o) for o in operands],
        "results": [[r.name, r.dtype, list(r.shape), r.min_db, r.worst, r.place, r.leans] for r in results],
        "call": oracle.call,
        "precision": oracle.precision,
        "check": [shape.dims for shape in shapes],
        "constraints": constraints,
        "judge_notes": notes,
        "beside": sorted(beside),
        "moved": {label: count for label, count in moved.items() if count},
        "kinds": kinds.names,
        "spread": kinds.spread,
        "independent": [],
        "dims": all_dims,
        "work": work,
        "chip": chip.name,
        "legal": {
            label: {n: [v for v in values[n] if v in space[n]] for n in space} for label, values in legal.items()
        },
    }


def _written(seed: SeedBuild, dims: Mapping[str, int], params: Mapping[str, int]) -> int:
    """Bytes that kernels write, where they are timed alone; of one that changes operands in place none are sure."""
    kernels = kernels_in(seed.closed(dims, params).jaxpr)
    outputs = [v.aval for k in kernels if not k.params["input_output_aliases"] for v in k.outvars]
    return max(1, sum(a.size * a.dtype.itemsize for a in outputs))


def _moved(seed: SeedBuild, dims: Mapping[str, int], params: Mapping[str, int]) -> int:
    """Bytes of what a kernel must read and write, where integers say which part of an operand it reads, or nothing
    reads one; 0 elsewhere."""
    closed = seed.closed(dims, params)
    parts, changed = picked(closed)
    if not any(operand.dtype == "int32" for operand in seed.operands):
        parts, changed = set(), set()
    asked = [v for e in closed.jaxpr.eqns for v in e.invars] + closed.jaxpr.outvars
    parts |= {n for n, v in enumerate(closed.jaxpr.invars) if not any(v is one for one in asked)}
    if not parts:
        return 0
    read = (a for n, a in enumerate(closed.in_avals) if n not in parts)
    written = (a for n, a in enumerate(closed.out_avals) if n not in changed)
    return max(1, sum(a.size * a.dtype.itemsize for a in (*read, *written)))


def _add_timed(
    kinds: InputKinds, seed: SeedBuild, oracle: Oracle, timed: Sequence[Mapping[str, int]], defaults: Mapping[str, int]
) -> None:
    """Readings of the seed at timed shapes, as the campaign's gates take them: bounds must hold there, too."""
    began = time.process_time()
    for dims in timed:
        for kind in kinds.names:
            if time.process_time() - began > TIMED_SECONDS:
                return
            inputs = inputs_of(seed.operands, dims, kind, kinds.spread)
            if sum(array.nbytes for array in inputs.values()) > MOST_BYTES:
                break
            try:
                outputs, where = seed.sampled(dims, defaults, inputs, np.random.default_rng(5))
                whole = oracle(inputs)
            except Exception:  # noqa: BLE001 - inputs that reference or kernel do not take
                continue
            answers = [a[np.ix_(*axes)] if a.ndim else a for a, axes in zip(whole, where, strict=False)]
            if not wrong(outputs, answers, seed.operands):
                kinds.add(kind, outputs, answers)


def _oracle(reference: str, call: Call, operands: Sequence[Operand], places: Sequence[Place]) -> Oracle:
    """The reference, called as the function is, but without dtypes that the call names: it answers in float64."""
    function = function_of(reference)
    try:
        known = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function that is not Python's
        known = set()
    plain = replace(call, keywords={k: v for k, v in call.keywords.items() if not isinstance(v, Literal)})
    return Oracle(function, dimensions.reference_calls(plain, operands, places, known))


def _takes(oracle: Oracle, dims: Mapping[str, int], operands: Sequence[Operand]) -> bool:
    """Whether the reference takes operands of these sizes: asked on shapes alone where it is of JAX."""
    for call in oracle.calls:
        with contextlib.suppress(Exception):  # another way to call it may work
            try:
                made = jax.eval_shape(_called(oracle, call, operands), *shaped(operands, dims))
                return bool(jax.tree_util.tree_leaves(made))
            except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
                zeros = {o.name: np.zeros(o.sizes(dims), dtype=jnp.dtype(o.dtype)) for o in operands}
                return bool(oracle(zeros))  # it wants values
    return False


def _called(oracle: Oracle, call: str, operands: Sequence[Operand]) -> Any:
    """The reference as a function of the operands."""
    scope = {**scope_of(call), "jnp": jnp, "reference": oracle.function}
    return eval(f"lambda {', '.join(o.name for o in operands)}: reference({call})", scope)


def _shapes_with(
    operands: Sequence[Operand],
    dims: Mapping[str, int],
    seed: SeedBuild,
    defaults: Mapping[str, int],
    oracle: Oracle | OwnAnswers,
) -> list[CheckedShape]:
    """``_checked_shapes`` with the caller's own integers, where there are any: with drawn page tables and lengths a
    kernel may wait for ever, or do nothing. Else with operands that are drawn, or all the caller's own. Raises Refusal
    of the first way."""
    first: Refusal | None = None
    drawn, *own = ways_to_draw(operands)
    for way in [*own[:1], drawn, *own[1:]]:
        seed.operands, oracle.call = way, ""
        if isinstance(oracle, OwnAnswers):
            oracle.operands = way
        try:
            return _checked_shapes(dims, seed, defaults, oracle)
        except Refusal as refusal:
            first = first or refusal
    assert first is not None
    raise first


def _checked_shapes(
    dims: Mapping[str, int], seed: SeedBuild, defaults: Mapping[str, int], oracle: Oracle | OwnAnswers
) -> list[CheckedShape]:
    """Two small shapes on which the default is right: multiples of blocks, then the call's own, or as much smaller as
    its blocks allow. Raises Refusal where there is none."""
    began, largest = time.process_time(), max([128, *(v for v in defaults.values() if v <= 1024)])
    found: list[CheckedShape] = []
    reasons: list[str] = []

    def elements(sizes: Mapping[str, int]) -> int:
        return sum(math.prod(o.sizes(sizes)) for o in seed.operands)

    def tries() -> Iterator[Mapping[str, int]]:
        least = dims
        if all(o.form != GIVEN for o in seed.operands):  # else values are of the call's shape alone
            if _accesses(seed.closed(dims, defaults).jaxpr) > MOST_ACCESSES:
                yield (least := _shrunk(dims, seed, defaults))
            # the first takes the largest blocks that are worth trying
            parts = [[n * largest for n in row] for row in ((2, 4), (1, 2, 3), (1,))]
            for row in ([1024], *parts, [128, 256, 384]):
                yield {n: min(s, row[place % len(row)]) for place, (n, s) in enumerate(dims.items())}
            while not found and elements(least) > MOST_ELEMENTS:
                least, before = _shrunk(least, seed, defaults), least
                if least == before:
                    break
        yield least

    for small in tries():
        if len(found) == 2 or (found and time.process_time() - began > SLOW_SECONDS):
            break
        if any(shape.dims == small for shape in found):
            continue
        if (count := elements(small)) > MOST_ELEMENTS:
            reasons.append(f"{label_of(small)}: {count} elements, of at most {MOST_ELEMENTS} that are interpreted")
            continue
        try:
            rng = np.random.default_rng(17)
            inputs = {o.name: draw(o, small, "randn", 2, rng) for o in seed.operands}
            seed.traced(small, defaults)  # before it runs: a run that fails may spoil the next
            if (count := _accesses(seed.closed(small, defaults).jaxpr)) > (most := 8 * MOST_ACCESSES):
                raise Refusal(f"at least {count} accesses, of at most {most} that are interpreted")
            answers = oracle(inputs)
            if not all(np.isfinite(a).all() for a in answers if a.dtype.kind == "f"):
                raise Refusal("an answer that is not finite")  # as a campaign's operator must not have
            outputs = seed.interpreted(defaults, inputs)
            reason = bounds.wrong(outputs, answers, seed.operands)
        except Refusal as refusal:
            reason = refusal.what
        except Exception as error:  # noqa: BLE001 - a shape the kernel does not take
            row = describe(error)
            reason = f"{row['type']}: {row['message']}".partition("\n")[0][:200]
        if reason:
            reasons.append(f"{label_of(small)}: {reason}")
        else:
            found.append(CheckedShape(dict(small), inputs, answers, outputs))
    if not found:
        telling = "; ".join(dict.fromkeys([reasons[0], reasons[-1]]))
        raise Refusal(f"the kernel agrees with the reference on no small shape: {telling}")
    return found


def _accesses(jaxpr: Any) -> int:
    """How often a run reads, writes or copies at least: a loop of unknown length is counted once."""
    count = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        times = params["length"] if name == "scan" else 1
        if name == "pallas_call":
            times = math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
        count += times * sum(map(_accesses, jaxprs_in_params(params)))
        count += name in ("get", "swap") or name.startswith("dma_")
    return count


def _copies_by_values(jaxpr: Any) -> bool:
    """Whether values say how much a copy moves."""
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith("dma_"):
            refs = jax.tree.unflatten(equation.params["tree"], equation.invars)
            parts = (i for r in refs for t in getattr(r, "transforms", ()) for i in getattr(t, "indices", ()))
            if any(getattr(part, "is_dynamic_size", False) for part in parts):
                return True
        elif any(map(_copies_by_values, jaxprs_in_params(equation.params))):
            return True
    return False


def _shrunk(dims: Mapping[str, int], seed: SeedBuild, defaults: Mapping[str, int]) -> dict[str, int]:
    """The shape with one size after the other so much smaller, where the function can still be traced; dimensions of
    one size may have to be equal."""
    found, began = dict(dims), time.process_time()
    for whole in dict.fromkeys(dims.values()):
        less = min(whole, max(LEAST, whole // SHRUNK))
        tried = {n: less if dims[n] == whole else size for n, size in found.items()}
        with contextlib.suppress(Exception):  # whatever the user's code raises
            if tried != found and time.process_time() - began < SLOW_SECONDS and seed.traced(tried, defaults):
                found = tried
    return found


def _result_sizes(
    seed: SeedBuild, dims: Mapping[str, int], defaults: Mapping[str, int], shapes: Sequence[CheckedShape]
) -> list[tuple[int | str, ...]]:
    """Shapes of the results by dimensions. Raises Refusal where they follow from no dimension."""
    seen = [(shape.dims, [output.shape for output in shape.outputs]) for shape in shapes]
    unlike = dict[str, int]()  # sizes that differ, and are no larger than that takes: functions loop over them
    for name, size in dims.items():
        unlike[name] = next(size << n for n in range(1, 99) if size << n not in unlike.values())
    with contextlib.suppress(Exception):  # the function may not take such sizes
        seen.append((unlike, seed.result_shapes(unlike, defaults)))
    whole = seed.result_shapes(dims, defaults)
    try:
        return [
            shape_text(dims, [(at, sizes[number]) for at, sizes in seen], whole[number])
            for number, _ in enumerate(shapes[0].answers)
        ]
    except LookupError as error:
        if all(shape.dims == dims for shape in shapes):  # it is checked and timed at one shape alone
            return [tuple(output.shape) for output in shapes[0].outputs]
        raise Refusal(str(error)) from error


def _product_work(
    oracle: Oracle, operands: Sequence[Operand], shapes: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """Floating-point operations of matrix products, as XLA counts them in the reference."""
    found = {}
    for label, dims in shapes.items():
        try:
            lowered = jax.jit(_called(oracle, oracle.call, operands)).lower(*shaped(operands, dims))
            analysis = lowered.cost_analysis() or {}
            found[label] = int(analysis.get("flops", 0)) if "dot_general" in lowered.as_text() else 0
        except Exception:  # noqa: BLE001 - a reference that is not JAX
            found[label] = 0
    return found
