"""The program that reads Triton functions in.

It runs the user's own file, recorded, and then only the module that was written from it, in Triton's interpreter: on
small shapes of the same kind, against the reference, and with other values of what may be a parameter of the search.
"""

import ast
import importlib
import inspect
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tilewright.fitness import dialect
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import GIVEN, Call, ObjectArgument, parse, python_value
from tilewright.workers.intake.calls.call_values import value_text
from tilewright.workers.intake.calls.kept_values import ways_to_draw, with_values
from tilewright.workers.intake.calls.sizes import label_of, shape_text
from tilewright.workers.intake.child_program import (
    Answer,
    Refusal,
    Request,
    answer_request,
    first_line,
    refused,
    show_step,
    undefined,
)
from tilewright.workers.intake.judge import bounds
from tilewright.workers.intake.judge.ahead import Ahead
from tilewright.workers.intake.judge.input_kinds import CheckedShape, Effort, InputKinds, negative_numbers
from tilewright.workers.intake.judge.oracles import CompletedOracle, OwnAnswers
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import LARGE, Operand, operand_row, with_smaller
from tilewright.workers.intake.source.knobs import MEANT
from tilewright.workers.intake.source.load import load
from tilewright.workers.intake.source.settings import SettingsRead
from tilewright.workers.intake.triton.autograd_pair import AutogradPair, pair_of, with_gradients
from tilewright.workers.intake.triton.call_site import CallSite, Seed, argument_names
from tilewright.workers.intake.triton.checked_shapes import NOT_FINITE, checked_shapes, may_be_joined
from tilewright.workers.intake.triton.eager_torch import without_compiler
from tilewright.workers.intake.triton.interpreter_run import RUN_SECONDS, Interpreter, TooSlow
from tilewright.workers.intake.triton.kernel_module import KernelModule
from tilewright.workers.intake.triton.knob_evidence import Trials, independent_dimensions, product_work, tiling_knobs
from tilewright.workers.intake.triton.stub_device import stub_device
from tilewright.workers.intake.triton.trace import Trace
from tilewright.workers.runners.triton.interpreter_rounding import repair
from tilewright.workers.runners.triton.tensors import load_module

EFFORT = Effort(draws=24, kernel_draws=(3, 5), on_largest=True, blamed_spread=1, seconds=10.0, ahead=True)
OWN_DRAWS = 4
"""Draws where the kernel is its own reference, so that each is a run."""

QUICK_SECONDS = 0.3
"""Of a processor, the slowest run of a shape that a campaign checks in the interpreter, where that is the target or
answers for a kernel that is its own reference; and of further ones with loops that kinds of inputs are tried on."""

_OUTSIDE, _VALUE = (re.compile(rf"the name {name} is not defined") for name in (r"u\d+", r"I\d+_"))


def answer_to(request: Request) -> Answer:
    """The answer to a request: {source, operator, ...} or {refusals}."""
    try:
        answer = _answer(request, True)
        why = "; ".join(str(r["what"]) for r in answer["refusals"][:1])
    except Unpaired as unpaired:
        answer, why = {"pair": True}, str(unpaired)
    except Exception as error:
        if not request["function"].endswith(".apply"):
            raise
        answer, why = {"pair": True}, error.what if isinstance(error, Refusal) else first_line(error)
    if why and answer.get("pair"):
        answer = _answer(request, False)
        answer["no_backward"] = why
    return answer


def _answer(request: Request, paired: bool) -> Answer:
    """The answer, with both halves of an autograd Function (``pair``) or with its forward alone."""
    try:
        try:
            site, text = recorded(request, paired)
        except (Refusal, Unpaired, TooSlow):
            raise
        except Exception:  # noqa: BLE001 - whatever the user's call raises, as of a registry that is empty
            site, text = recorded(request, paired, whole=True)
        notes = list(dict.fromkeys(text.notes))
        answer: Answer = {"notes": notes, "dims": site.dims, "refusals": violations(text, site.path)}
        answer["pair"] = site.pair is not None
        answer["knobs"] = [
            {"name": k.name, "default": k.default, "values": list(k.values), "source": k.source}
            for k in text.knobs
            if not k.echo
        ]
        if not answer["refusals"]:
            os.chdir(request["folder"])
            interpreted = load_target(request.get("target") or "h200").gpu_interpreter
            answer.update(_judged(site, text, notes, request.get("values", ""), interpreted))
    except TooSlow:
        return refused(
            f"a checked shape takes more than {RUN_SECONDS} s in the interpreter, on a machine as busy as this"
        )
    return answer


def recorded(request: Request, paired: bool = True, *, whole: bool = False) -> tuple[CallSite, KernelModule]:
    """The function with its calls, and the module of the first; of an autograd Function, where it is ``paired``, both
    halves. ``whole``: see ``load``. Raises Refusal, and what the file raises."""
    part, path = request["part"], Path(request["path"]).resolve()
    # a user's file cannot import it beside the stub
    importlib.import_module("triton.experimental.gluon.nvidia.hopper")
    with stub_device(part):
        wanted = re.match(r"[\w.]*", request["function"])[0]  # type: ignore[index]
        module, loader = load(path, wanted, whole=whole)
        function = function_in(module, request["function"], path.name)
        calls = [parse(text) for text in request["calls"]]
        site = CallSite(function, str(path), request["function"], calls, request["reference"], part=part)
        names = argument_names(function, calls[0])
        if paired and (pair := pair_of(function)) is not None:
            _pair_up(site, pair, names)
            calls = site.calls
        raw, site.places = dimensions.operands(calls, dimensions.tensor_places(calls, names), frozenset())

        # of its own reference, which takes whatever it does not assert, only axes of one tensor are told apart
        square, working_dims = any(map(_square, raw)), list[Mapping[str, int]]()

        def works(dims: Mapping[str, int], operands: list[Operand]) -> bool:
            site.operands, site.dims = operands, [dict(dims)]
            try:
                results = site.result_types(dims)
                if results is None and (
                    working_dims or site.reference != SELF or not square or any(map(_square, operands))
                ):
                    return False
                site.module_at(dims, results)
            except Exception:  # noqa: BLE001 - these dimensions are not different ones
                return False
            working_dims.append(dims)
            return True

        surely = None if site.reference == SELF else site.reference_takes
        site.operands, site.dims = dimensions.name_dimensions(raw, len(calls), works, surely=surely)
        site.follow_longest()
        with SettingsRead(str(loader.home(path))) as read:
            text = site.module_at(site.dims[0], site.result_types(site.dims[0]))
        site.settings = read.found()
        return site, text


def _square(operand: Operand) -> bool:
    """Whether two axes are of one size."""
    named = [size for size in operand.shape if not isinstance(size, int)]
    return len(set(named)) < len(named)


def _pair_up(site: CallSite, pair: AutogradPair, names: Sequence[str]) -> None:
    """Make a call site one of both halves. Raises Unpaired."""
    site.function, site.pair = pair, pair

    def record(call: Call) -> Trace:
        places = dimensions.tensor_places([call], names)
        site.operands, site.places = dimensions.operands([call], places, frozenset())
        shapes = [tensor.shape for tensor in call.tensors()]
        site.operands = [replace(o, shape=shape) for o, shape in zip(site.operands, shapes, strict=True)]
        return site.trace_at({})

    try:
        site.calls = with_gradients(pair, site.calls, record)
    except Refusal as refusal:
        raise Unpaired(refusal.what) from refusal


class Unpaired(Exception):
    """Why a Function's backward cannot be taken in beside its forward."""


def function_in(module: ModuleType, name: str, file: str) -> Any:
    """A function, a method of a new object, what a layer's ``forward`` does, or, of ``name()``, what that returns."""

    def value(node: ast.expr) -> Any:
        try:
            return eval(ast.unparse(node), {**vars(module), "__builtins__": {}})
        except (NameError, AttributeError) as error:
            raise undefined(file, name, module) from error

    node = ast.parse(name, mode="eval").body
    function = value(node)
    owner = value(node.value) if isinstance(node, ast.Attribute) else None
    code = getattr(function, "__code__", None)
    if isinstance(node, ast.Attribute) and isinstance(owner, type) and "self" in getattr(code, "co_varnames", ())[:1]:
        function = getattr(_object_of(owner, module), node.attr)
    if not callable(function):
        raise Refusal(f"{name} of {file} {'returns' if isinstance(node, ast.Call) else 'is'} no function")
    if isinstance(function, type) and callable(getattr(function, "forward", None)):
        return _object_of(function, module).forward  # a layer launches its kernels there
    return function


def _object_of(kind: type, module: ModuleType) -> Any:
    """An object of a class, with the arguments that the file has for it (``get_init_inputs``), if any."""
    try:
        given = module.get_init_inputs()
    except Exception:  # noqa: BLE001 - a file without it
        given = []
    try:
        return kind(*given)
    except TypeError as error:
        raise Refusal(f"{kind.__name__} cannot be made without arguments: {error}") from error


# -- what the dialect refuses ----------------------------------------------------------------------------


def violations(text: KernelModule, path: str) -> list[dict[str, Any]]:
    """All that the dialect refuses in a module, at the lines of the user's file ``path``."""
    refusals = text.kernels.refusals
    found: list[dict[str, Any]] = [{"line": line, "what": what, "file": path} for line, what in refusals]
    lines = text.source.splitlines()
    starts = {}
    for kernel in text.kernels.functions.values():
        rows = kernel.text.splitlines()
        head = next((row for row in rows if row.startswith("def ")), "")
        if head in lines:
            starts[kernel.name] = lines.index(head) - rows.index(head)
    for violation in dialect.check(text.source, entry="launch"):
        if refusals and _OUTSIDE.match(violation.what):
            continue  # what torch computes is refused where it is computed
        if _VALUE.match(violation.what):
            found.append({"line": 0, "what": "it takes a size from a tensor's values", "file": path})
            continue
        line, file = 0, ""
        for name, start in starts.items():
            kernel = text.kernels.functions[name]
            within = violation.line - start
            if 0 < within <= len(kernel.text.splitlines()):
                line, file = kernel.lines.get(within, 0), kernel.file
        code = lines[violation.line - 1].strip() if violation.line else ""
        found.append({"line": line, "what": violation.what, "file": file, "code": code})
    return list({(f["file"], f["line"], f["what"]): f for f in found}.values())


# -- the judge -------------------------------------------------------------------------------------------


def _prepare_interpreter() -> None:
    """Load what torch and Triton load with their first use, once for all the runs that are forked from here. Products
    are refused that are too shallow for a GPU's compiler."""
    torch.set_default_device("cpu")
    least = importlib.import_module("triton.backends.nvidia.compiler").min_dot_size(None)
    builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    builder.codegen_fns["min_dot_size"] = least
    repair()


def seed_of(site: CallSite, text: KernelModule) -> Seed:
    """The module, loaded, with what its answers are compared with: the reference, or the module itself."""
    module = load_module(text.source)
    interpreter = Interpreter(module)
    defaults = {knob.name: knob.default for knob in text.knobs}
    own = OwnAnswers(
        lambda inputs: interpreter.outputs(defaults, inputs),
        lambda one, other: bounds.wrong(one, other, site.operands),
        site.operands,
        run_all=lambda every: interpreter.all([(defaults, inputs) for inputs in every]),
    )
    if site.reference == SELF:
        return Seed(site, text, module, own, interpreter)
    oracle = CompletedOracle(site.judge, site.reference_calls(), own=own)
    return Seed(site, text, module, oracle, interpreter)


def _ways(site: CallSite) -> Iterator[None]:
    """Other ways to take a call, each set in ``site`` in turn: with what arguments held kept where no kernel writes, as
    of a cache that is filled in places, and with numbers among the arguments as the sizes, or parts of sizes, that they
    are."""
    site.followed.clear()
    for parts, keeps in ((None, False), (None, True), (False, False), (False, True), (True, False)):
        site.keeps_arguments = keeps
        if parts is None or site.follow(parts=parts):
            yield


def taken_otherwise(site: CallSite, text: KernelModule) -> Iterator[KernelModule]:
    """The different modules of ``_ways``, and one that has a single dimension where the reference tells several of one
    size apart, as lengths of queries and of keys."""
    types = [(tuple(t.shape), t.dtype) for t in text.outputs]

    def made() -> KernelModule:
        with stub_device(site.part):
            module = site.module_at(site.dims[0], types)
        torch.set_default_device("cpu")
        return module

    known = {text.source}
    for _ in _ways(site):
        other = made()
        if other.source not in known:
            known.add(other.source)
            yield other
    site.followed.clear()
    if site.join_equal():
        site.follow_longest()
        yield made()


def _drawn_or_given(site: CallSite, text: KernelModule, notes: list[str]) -> tuple[Seed, list[CheckedShape] | str]:
    """The checked shapes with operands that are drawn, with their bounds within the sizes, or the caller's own where
    drawn ones will not do; else why not of the first way."""
    ways, first = ways_to_draw(site.operands), ""
    within = dimensions.with_bounds_as_dimensions(site.operands, site.dims[0])
    for way in (ways[0], *([within] if within != ways[0] else []), *ways[1:]):
        site.operands = way
        seed = seed_of(site, text)
        shapes = checked_shapes(seed, notes)
        if not isinstance(shapes, str):
            return seed, shapes
        first = first or shapes
    site.operands = ways[0]
    return seed_of(site, text), first


def _seed_with_shapes(site: CallSite, text: KernelModule, notes: list[str]) -> tuple[Seed, list[CheckedShape]]:
    """Raises Refusal where the kernel agrees with the reference on no small shape."""
    seed, shapes = _drawn_or_given(site, text, notes)
    if NOT_FINITE in (shapes if isinstance(shapes, str) else " ".join(notes)):
        usual, (site.operands, note) = site.operands, with_smaller(site.operands)
        smaller = [note, *dict.fromkeys(text.notes)]
        tried = _drawn_or_given(site, text, smaller) if note else (seed, NOT_FINITE)
        if isinstance(tried[1], str) or NOT_FINITE in " ".join(smaller):
            site.operands = usual
        else:
            (seed, shapes), notes[:] = tried, smaller
    first, before = shapes, (site.operands, site.dims, dict(site.followed))
    alone = not isinstance(shapes, str) and all(shape.dims == site.dims[0] for shape in shapes)
    few = isinstance(shapes, str) or alone or may_be_joined(site.dims[0], shapes)
    for other in taken_otherwise(site, text) if few else ():
        own, own_notes = seed_of(site, other), list(other.notes)
        found = checked_shapes(own, own_notes)
        if not isinstance(found, str) and (isinstance(shapes, str) or len(found) > len(shapes)):
            kept = shapes if alone and site.dims is before[1] and not isinstance(shapes, str) else []
            seed, shapes, notes[:] = own, [*found, *kept], own_notes
            break
    else:
        site.operands, site.dims, site.followed = before
    if isinstance(shapes, str):
        raise Refusal(str(first))
    count, wanted = len(shapes[0].answers), len(seed.text.outputs)
    if count < wanted and isinstance(seed.reference, CompletedOracle):
        seed.reference.completed = True
        for number, shape in enumerate(shapes):
            shapes[number] = replace(shape, answers=seed.reference(shape.inputs))
        notes.append(f"the reference computes {count} of {wanted} results: the original kernel judges the others")
    return seed, shapes


def input_kinds(seed: Seed, shapes: Sequence[CheckedShape]) -> InputKinds:
    """The kinds of inputs that the seed bears. Its runs on all shapes go on at once."""
    site = seed.site
    kernels = " ".join(kernel.text for kernel in seed.text.kernels.functions.values())
    factors = bounds.factors(site.operands, shapes[0].dims) if "tl.dot" in kernels else ""
    call = site.calls[0]
    functions = (site.function, seed.reference.function)
    numbers = negative_numbers(functions, (*call.arguments, *call.keywords.values()))

    def run_seed(inputs: Sequence[tuple[Mapping[str, int], Mapping[str, np.ndarray]]]) -> Any:
        own = seed.reference
        known = [own.outputs(given) if isinstance(own, OwnAnswers) else None for _, given in inputs]
        left = [given for (_, given), made in zip(inputs, known, strict=True) if made is None]
        made = iter(seed.interpreter.all([(seed.defaults, given) for given in left]))
        return [next(made) if outputs is None else outputs for outputs in known]

    effort = replace(EFFORT, clock=seed.interpreter.clock)
    if site.reference == SELF:
        effort = replace(effort, draws=OWN_DRAWS, on_largest=False, blamed_spread=0)
    return InputKinds(site.operands, shapes, seed.reference, run_seed, effort, factors, kernels, numbers)


def _judged(site: CallSite, text: KernelModule, notes: list[str], values: str, interpreted: bool) -> Answer:
    """Checked shapes, gates, and parameters with their evidence. ``notes`` are added to. Shapes with loops on which the
    interpreter is slow are for knobs alone, but for the quickest; all slow ones, where a campaign would run them there.
    """
    show_step("running it")
    _prepare_interpreter()
    labels = [label_of(dims) for dims in site.dims]
    site.operands = with_values(values, Path.cwd(), labels, site.operands)
    try:
        seed, shapes = _seed_with_shapes(site, text, notes)
    except Refusal as refusal:
        return {**refused(refusal.what), "notes": notes}
    if all(site.elements(dims) > LARGE and dims not in [s.dims for s in shapes] for dims in site.dims):
        # the caller's own values lie at shapes where operands are drawn from tables, and where nothing is checked
        site.operands = [o if o.form == GIVEN or "int" in o.dtype else replace(o, values="") for o in site.operands]
    work = Ahead(lambda: product_work(seed))
    work.begin([()])
    ranked = sorted(shapes, key=lambda s: s.seconds)
    quick = [s for s in shapes if s.seconds <= QUICK_SECONDS] or ranked[:1]
    spent = itertools.accumulate(s.seconds for s in ranked)
    together = [s for s, seconds in zip(ranked, spent, strict=True) if seconds <= QUICK_SECONDS] or ranked[:1]
    loops = sorted((s for s in shapes if s.looped), key=lambda s: s.seconds)
    slow = [s.dims for s in loops[1:] if s.seconds > QUICK_SECONDS]
    every, shapes = shapes, [s for s in shapes if s.dims not in slow]
    if hosted := interpreted or site.reference == SELF:
        shapes = quick
    tried = together if site.reference == SELF else shapes
    small = [shape for shape in shapes if not shape.looped] or shapes
    wide = [shape for shape in every if shape.looped] or [max(shapes, key=lambda shape: shape.elements)]
    trials = Trials(seed, small, wide)
    kinds = input_kinds(seed, tried)
    for shape in every:
        if shape not in tried:
            kinds.add("randn", shape.outputs, shape.answers)
    site.operands = kinds.operands
    try:
        sizes = [
            shape_text(site.dims[0], [(s.dims, s.outputs[number].shape) for s in shapes], tensor.shape)
            for number, tensor in enumerate(seed.text.outputs)
        ]
    except LookupError as error:
        return {**refused(str(error)), "notes": notes}
    results, failed = kinds.results(sizes)
    notes += kinds.notes
    if failed:
        return {**refused(f"the kernel's own answer is not the reference's: {failed}"), "notes": notes}
    show_step("trying sizes")
    space, fixed = tiling_knobs(trials, results)
    defaults = {name: seed.defaults[name] for name in space}
    source = seed.text.with_space(space, defaults)
    module = load_module(source)
    fault = bounds.wrong(
        Interpreter(module).outputs(module.DEFAULTS, shapes[0].inputs), shapes[0].answers, site.operands
    )
    if fault:
        return {**refused(f"the kernel module is wrong: {fault}"), "notes": notes}
    own = seed.reference  # of it, how the original kernel is called for results that the reference does not compute
    rest = own.own if isinstance(own, CompletedOracle) and own.completed else None
    return {
        "source": source,
        "dims": site.dims,
        "space": {name: list(values) for name, values in space.items()},
        "defaults": defaults,
        "points": seed.text.configurations(space, defaults),
        "fixed": [*fixed, *({"name": n, "value": v, "why": MEANT} for n, v in seed.text.meant.items())],
        "operands": [operand_row(o) for o in site.operands],
        "orders": [dimensions.argument_at(site.calls[0], place).order for place in site.places],
        "results": [[r.name, r.dtype, list(r.shape), r.min_db, r.worst, r.place, r.leans] for r in results],
        "call": seed.reference.call,
        "precision": seed.reference.precision,
        "check": [shape.dims for shape in (shapes if hosted else every)],
        "small": [shape.dims for shape in small] if small is not shapes else [shapes[0].dims],
        "kinds": kinds.names,
        "spread": kinds.spread,
        "independent": independent_dimensions(seed, max(shapes, key=lambda s: s.elements), results),
        "work": work(),
        "notes": notes,
        "rest": [rest.call, rest.precision] if rest else [],
        "left_out": seed.text.left_out,
        "wrapper": asdict(seed.text.wrapper) if seed.text.wrapper is not None else None,
        "settings": site.settings,
        "objects": objects_of(site.calls),
        "parameters": made_parameters(site) if "(" in site.name else [],
        "leading": leading_names(site.function),
    }


def leading_names(function: Any) -> list[str]:
    """What a decorator's own function takes before ``*args``: nobody can give the parameters in their place by name."""
    try:
        given = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return []
    names = [p.name for p in itertools.takewhile(lambda p: p.kind is not p.VAR_POSITIONAL, given)]
    return names if len(names) < len(given) else []


def objects_of(calls: Sequence[Call]) -> dict[str, dict[str, str]]:
    """What dataclasses without tensors among arguments hold, as texts: more than a call says of one with defaults."""
    found = {}
    for value in (v for call in calls for v in (*call.arguments, *call.keywords.values())):
        if isinstance(value, ObjectArgument) and not any(Call((value,), {}).tensors()):
            made = python_value(value, (), {})
            if is_dataclass(made) and not isinstance(made, type):
                found[repr(value)] = {name: value_text(part) for name, part in vars(made).items()}
    return found


def made_parameters(site: CallSite) -> list[str]:
    """Those of a function that another one makes, with their defaults; none where they are not plain."""
    try:
        given = inspect.signature(site.function).parameters.values()
        texts = [str(p.replace(annotation=p.empty)) for p in given]
        ast.parse(f"def made({', '.join(texts)}): pass")
    except (TypeError, ValueError, SyntaxError):
        return []
    return texts if all(p.kind is p.POSITIONAL_OR_KEYWORD for p in given) else []


if __name__ == "__main__":
    without_compiler()
    answer_request(answer_to)
