"""The child that takes a kernel in: one request as JSON on stdin, one answer as JSON on stdout.

It runs the user's own file, recorded, and then only the module that was made of it, in Triton's interpreter: on small
shapes of the same kind, against the reference, and with other values of what may be a knob.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilewright.fitness import dialect
from tilewright.workers.intake import dims as dimensions
from tilewright.workers.intake import judge
from tilewright.workers.intake.arguments import Call, Literal, parse
from tilewright.workers.intake.emit import Knob, Origin, Taken, emit
from tilewright.workers.intake.load import Literals, load
from tilewright.workers.intake.operator import (
    Operand,
    Result,
    TakenOperator,
    _is_float,
    _is_narrow,
    flat,
    function_of,
    run_reference,
    to_tensor,
)  # fmt: skip
from tilewright.workers.intake.record import Refusal, device_numbers, noted_device, record
from tilewright.workers.runners.tensors import to_numpy, to_torch
from tilewright.workers.runners.triton_common import load_module
from tilewright.workers.runners.triton_guard import Canaries, LaunchGuard, leave_interpreter_unguarded
from tilewright.workers.runners.triton_interpreter import repair

RUN_SECONDS = 12
_OUTSIDE = re.compile(r"the name u\d+ is not defined")
EVIDENCE_SECONDS = 25.0


class TooSlow(Exception):
    """A run in the interpreter took too long."""


@dataclass
class Site:
    """The function, its calls, and the names and dimensions of what it is given."""

    function: Callable[..., Any]
    path: str
    name: str
    calls: list[Call]
    operands: list[Operand] = field(default_factory=list)
    places: list[tuple[Any, ...]] = field(default_factory=list)
    dims: list[dict[str, int]] = field(default_factory=list)
    literals: Literals = field(default_factory=Literals)
    part: Mapping[str, Any] = field(default_factory=dict)


def main() -> None:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer = take(request)
    except dimensions.Uneven as error:
        answer = {"refusals": [{"line": 0, "what": str(error)}]}
    except Refusal as refusal:
        answer = {"refusals": [{"line": refusal.line, "what": refusal.what}]}
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        import traceback

        traceback.print_exc()
        line = next(
            (
                f.lineno
                for f in reversed(traceback.extract_tb(error.__traceback__))
                if f.filename == request["path"]
            ),
            0,
        )
        text = str(error).splitlines()[0] if str(error) else ""
        answer = {
            "refusals": [{"line": line or 0, "what": f"the call raises {type(error).__name__}: {text}"}]
        }
    json.dump(answer, out)
    out.close()


def take(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request: {source, operator, ...} or {refusals}."""
    began = time.monotonic()
    if not request.get("function"):
        return _surveyed(request)
    site, taken = _recorded(request)
    taken.notes[:] = dict.fromkeys(taken.notes)
    answer: dict[str, Any] = {"notes": taken.notes, "dims": site.dims}
    answer["refusals"] = _refusals(taken, site)
    answer["knobs"] = [
        {"name": k.name, "default": k.default, "values": list(k.values), "source": k.source}
        for k in taken.knobs
    ]
    if answer["refusals"]:
        return answer
    answer.update(_judged(request, site, taken))
    answer["seconds"] = time.monotonic() - began
    return answer


# -- recording -------------------------------------------------------------------------------------


def _recorded(request: Mapping[str, Any]) -> tuple[Site, Taken]:
    part = request["part"]
    path = str(Path(request["path"]).resolve())
    with noted_device(part):
        literals = Literals()
        module, _ = load(Path(path), request["function"], literals)
        function: Any = module
        for name in request["function"].split("."):
            if not hasattr(function, name):
                raise Refusal(f"{Path(path).name} defines no {request['function']}")
            function = getattr(function, name)
        site = Site(
            function,
            path,
            request["function"],
            [parse(text) for text in request["calls"]],
            literals=literals,
            part=part,
        )
        names = _signature_names(function, site.calls[0])
        raw, site.places = dimensions.operands(site.calls, dimensions.slots(site.calls, names), frozenset())

        def works(dims: Mapping[str, int], operands: list[Operand]) -> bool:
            site.operands, site.dims = operands, [dict(dims)]
            try:
                wanted = _wanted(request, site)
                if wanted is None:
                    return False
                _traced(site, site.dims[0], wanted)
            except Exception:  # noqa: BLE001 - these dimensions are not different ones
                return False
            return True

        site.operands, site.dims = dimensions.settle(raw, len(site.calls), works)
        wanted = _wanted(request, site)
        return site, _traced(site, site.dims[0], wanted)


def _signature_names(function: Any, call: Call) -> list[str]:
    if getattr(function, "__name__", "") == "apply" and isinstance(getattr(function, "__self__", None), type):
        names = list(inspect.signature(function.__self__.forward).parameters)[1:]
    elif hasattr(function, "rewriter"):
        raise Refusal(
            f"{function.__name__} is a kernel, and how it is launched is not said: name the function that launches it"
        )
    else:
        try:
            names = [
                n for n, p in inspect.signature(function).parameters.items() if p.kind not in (p.VAR_KEYWORD,)
            ]
        except (TypeError, ValueError):
            names = []
    return [names[n] if n < len(names) else f"x{n}" for n in range(len(call.arguments))]


def _filled(call: Call, values: Mapping[tuple[Any, ...], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The call with tensors put in."""

    def put(value: Any, place: tuple[Any, ...]) -> Any:
        if place in values:
            return values[place]
        if isinstance(value, tuple):
            return [put(part, (*place, n)) for n, part in enumerate(value)]
        if isinstance(value, Literal):
            return eval(value.text, {"torch": torch})
        return value

    return [put(v, (n,)) for n, v in enumerate(call.arguments)], {
        k: put(v, (k,)) for k, v in call.keywords.items()
    }


def _accepted(function: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that the wrapper takes; the others are the reference's alone."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(keywords)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(keywords)
    return {k: v for k, v in keywords.items() if k in parameters}


def _traced(site: Site, dims: Mapping[str, int], wanted: Any) -> Taken:
    tensors = {}
    by_place = {}
    for operand, place in zip(site.operands, site.places, strict=True):
        tensor = torch.empty(operand.sizes(dims), dtype=getattr(torch, operand.dtype), device="meta")
        tensors[operand.name] = tensor
        given = dimensions.at(site.calls[0], place)
        by_place[place] = tensor.T if given.transposed else tensor
        if given.transposed:
            raise Refusal(
                "a transposed argument: give it as it lies in memory, and let the wrapper transpose it"
            )
    arguments, keywords = _filled(site.calls[0], by_place)
    keywords = _accepted(site.function, keywords)
    trace = record(site.function, arguments, keywords, tensors, [site.path])
    origin = f"{Path(site.path).name}:{site.name}"
    shapes = {o.name: o.shape for o in site.operands}
    device = {f"D{name}_": value for name, value in device_numbers(site.part).items()}
    return emit(trace, Origin(origin, site.literals.found, site.literals.names, shapes, device), wanted)


def _refusals(taken: Taken, site: Site) -> list[dict[str, Any]]:
    """All that the dialect has against the module, at the user's lines."""
    found = [{"line": line, "what": what, "file": site.path} for line, what in taken.kernels.refusals]
    lines = taken.source.splitlines()
    starts = {}
    for text in taken.kernels.functions.values():
        head = next((row for row in text.text.splitlines() if row.startswith("def ")), "")
        if head in lines:
            starts[text.name] = lines.index(head) - text.text.splitlines().index(head)
    for violation in dialect.check(taken.source, entry="launch"):
        if taken.kernels.refusals and _OUTSIDE.match(violation.what):
            continue  # what torch computes is refused where it is computed
        line, file = 0, ""
        for name, start in starts.items():
            text = taken.kernels.functions[name]
            within = violation.line - start
            if 0 < within <= len(text.text.splitlines()):
                line, file = text.lines.get(within, 0), text.file
        found.append(
            {
                "line": line,
                "what": violation.what,
                "file": file,
                "said": lines[violation.line - 1].strip() if violation.line else "",
            }
        )
    unique = {(f["file"], f["line"], f["what"]): f for f in found}
    return list(unique.values())


def _surveyed(request: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in a file: its kernels, each with what the dialect has against it, and the functions around them."""
    from tilewright.workers.intake.normalise import Kernels, _jitted

    path = str(Path(request["path"]).resolve())
    with noted_device(request["part"]):
        module, loader = load(Path(path), None, Literals())
        kernels, functions, found = [], [], []
        for name, value in list(vars(module).items()):
            if _jitted(value):
                fn = value
                while hasattr(fn, "fn"):
                    fn = fn.fn
                if getattr(fn, "__module__", "") != module.__name__:
                    continue
                kernels.append(name)
                taken = Kernels()
                taken.take(value)
                found += _violations(taken, path)
            elif (
                inspect.isfunction(value)
                and value.__module__ == module.__name__
                and not name.startswith("tilewright_")
            ):
                functions.append(name)
    unique = {(f["file"], f["line"], f["what"]): f for f in found}
    refusals = sorted(unique.values(), key=lambda f: (f["file"], f["line"]))
    return {"kernels": kernels, "functions": functions, "refusals": refusals, "notes": loader.missing}


def _violations(kernels: Any, path: str) -> list[dict[str, Any]]:
    constants = "".join(f"{n} = {t}\n" for n, t in kernels.constants.items())
    functions = "\n\n".join(t.text for t in kernels.functions.values())
    head = f"import torch\nimport triton\nimport triton.language as tl\n{constants}\n{functions}\n\n"
    source = f"{head}def launch(inputs, params):\n    return ()\n"
    taken = Taken(source, [], [], kernels)
    return _refusals(taken, Site(None, path, "", []))  # type: ignore[arg-type]


# -- the reference -----------------------------------------------------------------------------------


def _reference_calls(site: Site) -> list[str]:
    """Ways to call the reference with the operands, the most complete first."""
    call = site.calls[0]
    by_place = {p: o.name for o, p in zip(site.operands, site.places, strict=True)}

    def text(value: Any, place: tuple[Any, ...]) -> str:
        if place in by_place:
            return by_place[place]
        if isinstance(value, tuple):
            return "[" + ", ".join(text(v, (*place, n)) for n, v in enumerate(value)) + "]"
        return value.text if isinstance(value, Literal) else repr(value)

    positional = [text(v, (n,)) for n, v in enumerate(call.arguments)]
    keyword = [f"{k}={text(v, (k,))}" for k, v in call.keywords.items()]
    tensors = [o.name for o in site.operands]
    ways = [[*positional, *keyword], positional, [*tensors, *keyword], tensors]
    return list(dict.fromkeys(", ".join(w) for w in ways))


def _wanted(request: Mapping[str, Any], site: Site) -> Any:
    """Shapes and dtypes of the reference's results; None where it cannot be asked without data."""
    try:
        function = function_of(request["reference"])
    except LookupError as error:
        raise Refusal(str(error)) from error
    for call in _reference_calls(site):
        given = {
            o.name: torch.empty(o.sizes(site.dims[0]), dtype=getattr(torch, o.dtype), device="meta")
            for o in site.operands
        }
        try:
            with torch.no_grad():
                result = eval(f"reference({call})", {"torch": torch, "reference": function, **given})
        except Exception:  # noqa: BLE001 - the next way may do
            continue
        return [(tuple(t.shape), t.dtype) for t in flat(result)]
    return None


@dataclass
class Oracle:
    """The reference, as it can be called."""

    function: Callable[..., Any]
    call: str = ""
    precision: str = "float64"

    def settle(self, site: Site, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        errors = []
        for precision in ("float64", "float32", ""):
            for call in _reference_calls(site):
                try:
                    values = run_reference(self.function, call, inputs, precision)
                except Exception as error:  # noqa: BLE001 - the next way may do
                    errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
                    continue
                if values:
                    self.call, self.precision = call, precision
                    return values
        why = errors[0] if errors else "it returns no tensor"
        raise Refusal(f"the reference cannot be called with these arguments: {why}")

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return run_reference(self.function, self.call, inputs, self.precision)


# -- runs in the interpreter -------------------------------------------------------------------------


@contextmanager
def _limited(seconds: int) -> Any:
    def ring(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run(module: Any, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a taken module. Raises OutsideWrite for one that writes beside its tensors, TooSlow."""
    canaries = Canaries()
    tensors = {name: canaries.copy(to_torch(array, "cpu")) for name, array in inputs.items()}
    with _limited(RUN_SECONDS), LaunchGuard(canaries):
        results = module.launch(tensors, dict(params))
    canaries.inspect()
    return [to_numpy(result) for result in results]


def _check_dims(dims: Mapping[str, int], scale: str, rank: int) -> dict[str, int]:
    """Small sizes of the same kind: with tails (``odd``), round (``even``), or deep in the last dimension."""
    names = list(dims)
    odd = (7, 70, 37, 19, 11, 5)
    even = (16, 128, 64, 32, 16, 16)
    large = (32, 256, 128, 64, 32, 16)
    made = {}
    flat = len(names) == 1 and rank < 2
    for n, name in enumerate(names):
        small = {"odd": odd, "even": even, "large": large, "deep": (4, 4, 4, 4, 4, 4)}[scale][min(n, 5)]
        if scale == "deep" and name == max(names, key=lambda k: (dims[k] <= 16384, names.index(k))):
            small = dims[name]
        if flat and scale != "deep":
            small = {"odd": 3001, "even": 4096, "large": 16384}[scale]
        made[name] = min(dims[name], small)
    return made


def _id(dims: Mapping[str, int]) -> str:
    return "x".join(str(n) for n in dims.values()) or "one"


@dataclass
class Shape:
    """A checked shape with its inputs and answers by kind of inputs."""

    dims: dict[str, int]
    inputs: dict[str, dict[str, np.ndarray]]
    answers: dict[str, list[np.ndarray]]


def _judged(request: Mapping[str, Any], site: Site, taken: Taken) -> dict[str, Any]:
    """Checked shapes, gates, and knobs with their evidence."""
    torch.set_default_device("cpu")
    repair()
    leave_interpreter_unguarded()
    os.chdir(request["folder"])
    reference = Oracle(function_of(request["reference"]))
    defaults = {k.name: k.default for k in taken.knobs}
    module = load_module(taken.source)
    places = _reference_places(request, site, taken)
    notes: list[str] = []
    shapes = _shapes(request, site, taken, module, defaults, reference, notes)
    if isinstance(shapes, str):
        return {"refusals": [{"line": 0, "what": shapes}], "notes": [*taken.notes, *notes]}
    results, failed, spread = _bars(request, site, taken, module, defaults, shapes, places, notes)
    if failed:
        return {
            "refusals": [{"line": 0, "what": f"the kernel's own answer is not the reference's: {failed}"}],
            "notes": [*taken.notes, *notes],
        }
    gated = _operator(request, site, reference, results, spread)
    space, fixed = _evidence(taken, module, defaults, shapes, gated, notes)
    independent = _independent(site, reference, shapes[0], results)
    return {
        "source": taken.with_space(space, {k: defaults[k] for k in space}),
        "space": {k: list(v) for k, v in space.items()},
        "defaults": {k: defaults[k] for k in space},
        "fixed": fixed,
        "operands": [[o.name, o.dtype, list(o.shape), o.below] for o in site.operands],
        "results": [[r.name, r.dtype, list(r.shape), r.min_db, r.worst, r.place] for r in results],
        "call": reference.call,
        "precision": reference.precision,
        "check": [s.dims for s in shapes],
        "kinds": list(shapes[0].inputs),
        "spread": spread,
        "independent": independent,
        "work": _work(site, reference),
        "notes": [*taken.notes, *notes],
    }


def _reference_places(request: Mapping[str, Any], site: Site, taken: Taken) -> list[int]:
    return list(range(len(taken.outputs)))


def _make(site: Site, dims: Mapping[str, int], kind: str, spread: int) -> dict[str, np.ndarray]:
    from tilewright.workers.intake.operator import draw

    rng = np.random.default_rng([17, len(kind), spread])
    return {o.name: draw(o, o.sizes(dims), kind, spread, rng) for o in site.operands}


def _shapes(request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any],
            reference: Oracle, notes: list[str]) -> list[Shape] | str:  # fmt: skip
    """Up to three small shapes on which the recording holds and the default is right; or why there is none."""
    dims = site.dims[0]
    found: list[Shape] = []
    reasons: list[str] = []
    for scale in ("odd", "even", "large", "deep", "whole"):
        small = (
            dict(dims)
            if scale == "whole"
            else _check_dims(dims, scale, max(len(o.shape) for o in site.operands))
        )
        if any(s.dims == small for s in found) or (found and scale in ("large", "whole")):
            continue
        if scale == "whole" and sum(int(np.prod(o.sizes(small))) for o in site.operands) > 1 << 24:
            continue
        try:
            with noted_device(site.part):
                wanted = None
                again = _traced(
                    site,
                    small,
                    wanted if wanted else _wanted(request, site) and _wanted_at(request, site, small),
                )
            if again.source != taken.source:
                reasons.append(f"{_id(small)}: the wrapper launches otherwise there")
                continue
            inputs = _make(site, small, "randn", 4)
            answers = reference.settle(site, inputs) if not reference.call else reference(inputs)
            outputs = _run(module, defaults, inputs)
        except TooSlow:
            reasons.append(f"{_id(small)}: more than {RUN_SECONDS} s in the interpreter")
            continue
        except Refusal as refusal:
            reasons.append(f"{_id(small)}: {refusal.what}")
            continue
        except Exception as error:  # noqa: BLE001 - a shape the kernel or the reference does not take
            reasons.append(f"{_id(small)}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        wrong = _wrong(outputs, answers)
        if wrong:
            reasons.append(f"{_id(small)}: {wrong}")
            continue
        found.append(Shape(small, {"randn": inputs}, {"randn": answers}))
        if len(found) == 3:
            break
    if not found:
        return f"the kernel agrees with the reference on no small shape: {'; '.join(reasons)}"
    notes += [f"not checked at {reason}" for reason in reasons]
    return found


def _wanted_at(request: Mapping[str, Any], site: Site, dims: Mapping[str, int]) -> Any:
    before = site.dims
    site.dims = [dict(dims)]
    try:
        return _wanted(request, site)
    finally:
        site.dims = before


def _wrong(outputs: Sequence[np.ndarray], answers: Sequence[np.ndarray]) -> str:
    """A coarse look: another function, or a shape outside the kernel's domain; no judgement of precision."""
    for number, (output, answer) in enumerate(zip(outputs, answers, strict=False)):
        if output.shape != answer.shape:
            return f"result {number} has shape {list(output.shape)}, the reference's {list(answer.shape)}"
        if output.dtype.kind in "iub":
            share = float(np.mean(output == answer)) if output.size else 1.0
            if share < 1.0:
                return f"result {number}: {share:.1%} of its integers are the reference's"
            continue
        reading = judge.read(output, np.asarray(answer, dtype=np.float64))
        if not reading.db > 20:
            return (f"result {number} is {reading.db:.1f} dB from the reference; element {list(reading.place)} is "
                    f"{reading.found:.6g} where the reference says {reading.wanted:.6g}")  # fmt: skip
    return ""


def _bars(request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any],
          shapes: list[Shape], places: Sequence[int], notes: list[str]) -> tuple[list[Result], str, int]:  # fmt: skip
    """Results with their bounds, from all kinds of inputs; why the seed is wrong; the spread that it bears."""
    operator = function_of(request["reference"])
    del operator
    outputs: dict[tuple[int, str], list[np.ndarray]] = {}
    reference = Oracle(function_of(request["reference"]))
    reference.settle(site, shapes[0].inputs["randn"])
    spread = 4
    for kind in ("spread", "repeated"):
        for attempt in (4, 2, 1):
            fine = True
            for shape in shapes:
                inputs = _make(site, shape.dims, kind, attempt)
                answers = reference(inputs)
                finite = all(np.isfinite(a).all() for a in answers if a.dtype.kind == "f")
                made = _run(module, defaults, inputs) if finite else []
                fine = fine and finite and not _wrong(made, answers)
                shape.inputs[kind], shape.answers[kind] = inputs, answers
                outputs[id(shape), kind] = made
            if fine:
                spread = attempt if kind == "spread" else spread
                break
        else:
            notes.append(f"inputs of kind {kind} are left out: the kernel itself fails on them")
            for shape in shapes:
                shape.inputs.pop(kind)
                shape.answers.pop(kind)
    for shape in shapes:
        outputs[id(shape), "randn"] = _run(module, defaults, shape.inputs["randn"])
    results = []
    products = any("tl.dot" in t.text for t in taken.kernels.functions.values())
    dtypes = [o.dtype for o in site.operands]
    for number, tensor in enumerate(taken.outputs):
        dtype = str(tensor.dtype).removeprefix("torch.")
        symbolic = _symbolic(site, shapes[0], outputs[id(shapes[0]), "randn"][number].shape, tensor.shape)
        bound = judge.Bar(0.0, None)
        if _is_float(dtype) and not _is_narrow(dtype):
            readings = [
                judge.read(outputs[id(s), kind][number], s.answers[kind][places[number]])
                for s in shapes
                for kind in s.inputs
            ]
            derived, why = judge.bar(readings, [*dtypes, dtype], products=products)
            if derived is None:
                return [], f"result {number}: {why}", spread
            bound = derived
        results.append(Result(f"o{number}", dtype, symbolic, bound.min_db, bound.worst, places[number]))
    return results, "", spread


def _symbolic(site: Site, shape: Shape, small: Sequence[int], whole: Sequence[int]) -> tuple[int | str, ...]:
    """A result's shape by dimensions; products of neighbours as they come."""
    dims = site.dims[0]
    found: list[int | str] = []
    for one, other in zip(small, whole, strict=True):
        fits = [n for n in dims if dims[n] == other and shape.dims[n] == one]
        if fits:
            found.append(fits[0])
            continue
        if one == other:
            found.append(int(one))
            continue
        pairs = [
            p
            for p in itertools.permutations(dims, 2)
            if dims[p[0]] * dims[p[1]] == other and shape.dims[p[0]] * shape.dims[p[1]] == one
        ]
        parts = [(n, 1 << k) for n in dims for k in range(1, 13)
                 if -(-dims[n] // (1 << k)) == other and -(-shape.dims[n] // (1 << k)) == one]  # fmt: skip
        if parts and not pairs:
            found.append(f"{parts[0][0]}/{parts[0][1]}")
            continue
        if not pairs:
            raise Refusal(f"a result's size {other} follows from no dimension of the arguments")
        found.append("*".join(pairs[0]))
    return tuple(found)


def _operator(
    request: Mapping[str, Any], site: Site, reference: Oracle, results: Sequence[Result], spread: int
) -> TakenOperator:
    judge_of = (request["reference"], reference.call, tuple(site.operands), tuple(results))
    return TakenOperator("taken/one", *judge_of, {}, {}, reference.precision, (), {}, ("randn",), spread)


def _evidence(taken: Taken, module: Any, defaults: Mapping[str, Any], shapes: Sequence[Shape], operator: TakenOperator,
              notes: list[str]) -> tuple[dict[str, tuple[Any, ...]], list[dict[str, Any]]]:  # fmt: skip
    """Which knobs only tile: other values give answers that pass. Those that do not stay as they are."""
    from tilewright.fitness.gates import failure, read_gates

    began = time.monotonic()
    space: dict[str, tuple[Any, ...]] = {}
    fixed: list[dict[str, Any]] = []
    said = {knob.name: _uses(taken, knob) for knob in taken.knobs}
    probe = min(shapes, key=lambda s: sum(a.size for a in s.inputs["randn"].values()))

    def passes(params: Mapping[str, Any], shape: Shape) -> bool:
        try:
            outputs = _run(module, params, shape.inputs["randn"])
        except Exception:  # noqa: BLE001 - a value that does not work is no knob's
            return False
        named = {r.name: o for r, o in zip(operator.results, outputs, strict=True)}
        from tilewright.workers.intake.operator import as_result

        wanted = {
            r.name: {r.name: as_result(shape.answers["randn"][r.place], r.dtype)} for r in operator.results
        }
        return failure(read_gates(operator.gates, named, wanted, "randn"), operator.gates) is None

    for knob in taken.knobs:
        if not said[knob.name]:
            fixed.append({"name": knob.name, "value": knob.default, "why": "the kernel never uses it"})
            continue
        values = knob.values
        if "num_stages" in knob.name:
            values = tuple(v for v in values if v <= 8) or (knob.default,)
        if knob.certain:
            space[knob.name] = values
            continue
        seen = _arguments(taken, module, {**defaults}, shapes)
        kept, changed = [knob.default], False
        for value in values:
            if value == knob.default:
                continue
            changes = _arguments(taken, module, {**defaults, knob.name: value}, shapes) != seen
            changed = changed or changes
            late = time.monotonic() - began > EVIDENCE_SECONDS
            tried = [probe] if late else shapes
            if changes and all(passes({**defaults, knob.name: value}, s) for s in tried):
                kept.append(value)
        if len(kept) > 1:
            space[knob.name] = tuple(sorted(kept))
        elif changed:
            fixed.append(
                {
                    "name": knob.name,
                    "value": knob.default,
                    "why": "another value gives another answer: it is part of the meaning",
                }
            )
        else:
            fixed.append(
                {
                    "name": knob.name,
                    "value": knob.default,
                    "why": "other values change nothing on these shapes",
                }
            )
    return space, fixed


def _uses(taken: Taken, knob: Knob) -> bool:
    """Whether a launch argument that the knob is in is used by its kernel."""
    import ast

    text = taken.source[taken.source.index("def launch(") :]
    for call in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)):
        if not isinstance(call.func, ast.Subscript):
            continue
        kernel = taken.kernels.functions.get(ast.unparse(call.func.value))
        if f"'{knob.name}'" in ast.unparse(call.func.slice) or any(
            f"'{knob.name}'" in ast.unparse(k.value) for k in call.keywords
        ):
            return True
        if kernel is None:
            continue
        node = next(n for n in ast.parse(kernel.text).body if isinstance(n, ast.FunctionDef))
        body = {n.id for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name)}
        for parameter, value in zip(node.args.args, call.args, strict=False):
            if f"'{knob.name}'" in ast.unparse(value) and parameter.arg in body:
                return True
    return False


def _arguments(taken: Taken, module: Any, params: Mapping[str, Any], shapes: Sequence[Shape]) -> Any:
    """The numbers that kernels would be given, without running them."""
    from triton.runtime.interpreter import GridExecutor

    noted: list[Any] = []
    run = GridExecutor.__call__

    def note(executor: Any, *args: Any, **kwargs: Any) -> None:
        grid = executor.grid(kwargs) if callable(executor.grid) else executor.grid
        noted.append((tuple(grid), [a for a in args if isinstance(a, bool | int | float | str)]))

    GridExecutor.__call__ = note
    try:
        for shape in shapes:
            tensors = {
                n: torch.empty(a.shape, dtype=to_tensor(a[:0] if a.ndim else a, "").dtype)
                for n, a in shape.inputs["randn"].items()
            }
            module.launch(tensors, dict(params))
    except Exception as error:  # noqa: BLE001 - no arguments either
        noted.append(repr(error))
    finally:
        GridExecutor.__call__ = run
    return noted


def _independent(site: Site, reference: Oracle, shape: Shape, results: Sequence[Result]) -> list[str]:
    """Dimensions along which the reference treats elements by themselves, found by asking for some of them."""
    found: list[str] = []
    inputs, whole = shape.inputs["randn"], shape.answers["randn"]
    for name, size in shape.dims.items():
        if size < 3 or not all(name in r.shape for r in results):
            continue
        picks = np.array([0, size // 2, size - 1])

        def some(
            array: np.ndarray, of: Sequence[Any], name: str = name, picks: np.ndarray = picks
        ) -> np.ndarray:
            for axis, dim in enumerate(of):
                if dim == name:
                    array = np.take(array, picks, axis=axis)
            return array

        try:
            part = reference({o.name: some(inputs[o.name], o.shape) for o in site.operands})
        except Exception:  # noqa: BLE001 - then it does not
            continue
        wanted = [some(whole[r.place], r.shape) for r in results]
        got = [part[r.place] for r in results]
        if all(
            g.shape == w.shape
            and np.allclose(g.astype(np.float64), w.astype(np.float64), rtol=1e-6, atol=1e-9)
            for g, w in zip(got, wanted, strict=True)
        ):
            found.append(name)
    return found


def _work(site: Site, reference: Oracle) -> dict[str, int]:
    """Floating-point operations of matrix products in the reference, by workload."""
    from torch.utils.flop_counter import FlopCounterMode

    found = {}
    for dims in site.dims:
        given = {
            o.name: torch.empty(o.sizes(dims), dtype=getattr(torch, o.dtype), device="meta")
            for o in site.operands
        }
        counter = FlopCounterMode(display=False)
        try:
            with torch.no_grad(), counter:
                eval(
                    f"reference({reference.call})", {"torch": torch, "reference": reference.function, **given}
                )
            found[_id(dims)] = int(counter.get_total_flops())
        except Exception:  # noqa: BLE001 - a reference that wants data
            found[_id(dims)] = 0
    return found


if __name__ == "__main__":
    main()
