"""The program that reads Pallas functions in: the function as it stands, or its text where that can be followed.

The function is called on shapes, as any Python, and what it launches is found in its jaxpr: also which numbers of its
files and arguments are sizes of blocks. Where a text in the dialect traces to the same jaxpr, rewrites can apply to it;
elsewhere the function itself is the candidate, with other sizes.
"""

import contextlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tilewright.fitness import dialect
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls import call_text, dimensions
from tilewright.workers.intake.calls.call_text import Call, ObjectArgument, parse, python_text, python_value
from tilewright.workers.intake.child_program import Answer, Refusal, Request, answer_request, refusal_of
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.pallas.block_sizes import launches, sizes_within
from tilewright.workers.intake.pallas.function_text import RESERVED, followed_text
from tilewright.workers.intake.pallas.original import Original, function_in, on_chip
from tilewright.workers.intake.pallas.seed_build import SeedBuild, shaped
from tilewright.workers.intake.pallas.trial import Module, judge
from tilewright.workers.intake.source.knobs import LANES, MOST_SIZE, Knob, block_values, is_size
from tilewright.workers.intake.source.load import load
from tilewright.workers.intake.source.names import plain_function
from tilewright.workers.runners.pallas.jaxpr_codec import NoForm, encode
from tilewright.workers.runners.pallas.trace import unwrapped

_COUNTED = re.compile(r"block|tile|page|chunk")
_MARKS = 15_485_863
"""The first of the numbers that stand for sizes while a text is read: no function's own."""
_FEW = (1, 2, 4, 8, 16, 32)
"""Values of a small number that counts what is done at once, such as pages of a block."""


def answer_to(request: Request) -> Answer:
    """The answer to a request, like that of ``triton.program``."""
    folder = Path(request["folder"])
    path = _own_copy(Path(request["path"]).resolve(), folder)
    chip = load_target(request.get("target") or "tpu7x").chip
    assert chip is not None
    device = {"kind": chip.device_kind, "cores": chip.cores}
    with on_chip(device):
        module, loader = load(path, request["function"], traced=False)
        function = function_in(module, request["function"], path.name)
        if not callable(function):
            raise Refusal(f"{request['function']} of {path.name} is no function")
        calls = [parse(text.replace("torch.", "jnp.")) for text in request["calls"]]
        try:
            used = _called(function, calls[0], str(loader.home(path)))
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            return {"refusals": [refusal_of(error, str(loader.home(path)))], "notes": [], "knobs": []}
    parameters = list(inspect.signature(plain_function(function)).parameters)
    operands, argument_texts, places = _operands(calls, parameters)
    knobs = _argument_knobs(calls[0], function, argument_texts)
    names = dict(zip(places, (o.name for o in operands), strict=True))
    used_names = {*parameters, *RESERVED, *(k.name for k in knobs)}
    knobs += _object_knobs(calls[0], argument_texts, names, used_names)
    place, taken = loader.place(path), tuple(o.name for o in operands)
    root = Path(str(path).removesuffix(place))
    text = ", ".join(t if isinstance(k, int) else f"{k}={t}" for k, t in argument_texts.items())
    original = Original(place, request["function"], text, taken, loader.files(path), {})
    defaults = {knob.name: knob.default for knob in knobs}
    specs = shaped(_sized(operands, 0), {})

    def launched(tried: Original, params: Mapping[str, int]) -> Any:
        with on_chip(device):
            return launches(jax.make_jaxpr(tried.build(folder)({**defaults, **params}))(*specs).jaxpr)

    if not launched(original, {}):
        raise Refusal(f"{request['function']} launches no Pallas kernel in this call")
    seed = SeedBuild(chip, original.build(folder), _sized(operands, 0))
    try:
        with seed.mesh():
            encode(seed.closed({}, defaults))
    except NoForm as error:
        raise Refusal(f"the call does what no candidate may: {error}") from error
    places_used = {(str(Path(file).relative_to(root).as_posix()), line) for file, line in used}
    original, inner = sizes_within(original, places_used, launched, {*parameters, *defaults, *RESERVED})
    knobs += inner
    sizes = {min(n, MOST_SIZE) for call in calls for tensor in call.tensors() for n in tensor.shape}
    parts = {n for size in sizes for n in range(LANES, size + 1, LANES) if size % n == 0}
    for knob in (k for k in knobs if is_size(k.default)):
        knob.parts = tuple(sorted(parts - {*knob.values}))

    def traced(module: Module, params: Mapping[str, int]) -> str:
        with contextlib.suppress(Exception):  # a size that this shape does not take
            tried = SeedBuild(chip, module.build(folder), _sized(operands, 0))
            return tried.identity(unwrapped(tried.closed({}, params)))  # rewrites see it without its ``jax.jit``
        return ""

    with on_chip(device):
        followed, note = _followed(original, knobs, traced, folder)
    answer: dict[str, Any] = {
        "refusals": [],
        "knobs": [{"name": k.name, "default": k.default, "values": list(k.values), "source": k.source} for k in knobs],
    }
    answer.update(judge(request, chip, followed, operands, calls, knobs, places))
    answer["notes"] = [*([note] if note else []), *answer.pop("judge_notes", ())]
    return answer


def _own_copy(path: Path, folder: Path) -> Path:
    """A file of JAX's own as one that stands alone: its package is loaded already."""
    if Path(jax.__file__).parent not in path.parents:
        return path
    copy = folder / "jax_kernels" / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(path.read_text(encoding="utf-8-sig"), encoding="utf-8")
    return copy


def _sized(operands: Sequence[Operand], call: int) -> list[Operand]:
    """Operands with the sizes of one call; ``dimensions.operands`` gives those of every call."""
    return [replace(o, shape=tuple(axis[call] for axis in o.shape)) for o in operands]  # type: ignore[index]


# -- the call ------------------------------------------------------------------------------------------------------


def _run(function: Any, call: Call) -> Callable[[], Any]:
    """The call on shapes, to be made where a chip is known."""
    specs: list[jax.ShapeDtypeStruct] = []

    places = [place for _, place in dimensions.tensor_places([call], [""] * len(call.arguments))]
    for tensor in call.tensors():
        shape = tuple(tensor.shape[n] for n in tensor.order) if tensor.order else tensor.shape
        specs.append(jax.ShapeDtypeStruct(shape, jnp.dtype(tensor.dtype)))

    def with_arrays(*arrays: Any) -> Any:
        at = dict(zip(places, arrays, strict=True))
        given = [python_value(v, (n,), at, tuple) for n, v in enumerate(call.arguments)]
        named = {k: python_value(v, (k,), at, tuple) for k, v in call.keywords.items()}
        return jax.tree.leaves(function(*given, **named))

    return lambda: jax.make_jaxpr(with_arrays)(*specs)


def _called(function: Any, call: Call, home: str) -> set[tuple[str, int]]:
    """File and first line of the functions below ``home`` that the call runs. Raises what it raises."""
    found: set[tuple[str, int]] = set()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(home):
            found.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    run, before = _run(function, call), sys.getprofile()
    jax.clear_caches()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def _operands(calls: Sequence[Any], parameters: Sequence[str]) -> tuple[list[Operand], dict[Any, str], list[Any]]:
    """Operands; the other arguments as text, by position or keyword."""
    names = [parameters[n] if n < len(parameters) else f"x{n}" for n in range(len(calls[0].arguments))]
    tensors = dimensions.tensor_places(calls, names)
    operands, places = dimensions.operands(calls, tensors, frozenset(("inputs", "params", *RESERVED)))
    by_place = {p: o.name for o, p in zip(operands, places, strict=True)}

    argument_texts: dict[Any, str] = {n: python_text(v, (n,), by_place, "()") for n, v in enumerate(calls[0].arguments)}
    argument_texts.update({k: python_text(v, (k,), by_place, "()") for k, v in calls[0].keywords.items()})
    return operands, argument_texts, places


def _argument_knobs(call: Any, function: Any, argument_texts: dict[Any, str]) -> list[Knob]:
    """Whole numbers among the call's arguments and the function's defaults; ``argument_texts``: of their parameters."""
    found: list[Knob] = []
    parameters = inspect.signature(plain_function(function)).parameters
    given = dict(zip(parameters, call.arguments, strict=False)) | dict(call.keywords)
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        parts = value if isinstance(value, tuple) else (value,)
        few = _COUNTED.search(name) is not None and type(value) is int and 2 <= value < 8
        if not (few or all(is_size(v) for v in parts)) or not parts:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY and name not in given:
            continue
        plain = name.strip("_")
        names = [f"{plain}_{n}" for n in range(len(parts))] if isinstance(value, tuple) else [plain]
        for one, number in zip(names, parts, strict=True):
            values = tuple(sorted({number, *_FEW})) if few else block_values(number)
            found.append(Knob(one, number, values, f"argument {name} of the call"))
        text = ", ".join(f'params["{one}"]' for one in names)
        place = list(parameters).index(name)
        key = place if place < len(call.arguments) else name
        argument_texts[key] = f"({text},)" if isinstance(value, tuple) else text
    return found


def _object_knobs(
    call: Call, argument_texts: dict[Any, str], operands: Mapping[call_text.Place, str], used_names: set[str]
) -> Iterator[Knob]:
    """Sizes that an object among the arguments is made of, as ``Tiles(rows=64)``, by keyword or position; their
    parameters go to ``argument_texts``. ``operands``: names by place. ``used_names``: names of other parameters."""
    for key, value in (*enumerate(call.arguments), *call.keywords.items()):
        if not isinstance(value, ObjectArgument):
            continue
        texts = dict(operands)
        for part, size in call_text.parts_of(value):
            name = f"{value.name.rpartition('.')[2].lower()}_{part}" if isinstance(part, int) else part
            if is_size(size) and name not in used_names:
                used_names.add(name)
                texts[key, part] = f'params["{name}"]'
                yield Knob(name, size, block_values(size), f"{value.name} of the call")
        argument_texts[key] = python_text(value, (key,), texts, "()")


# -- the text ------------------------------------------------------------------------------------------------------


def _followed(
    original: Original, knobs: Sequence[Knob], traced: Callable[[Module, Mapping[str, int]], str], folder: Path
) -> tuple[Module, str]:
    """The function's text, where that does the same; else the function as it stands, and a line that says why.

    Its text is read with a number of its own in place of each size, by which that is known wherever it is used.
    """
    sizes = {name: _MARKS + place for place, name in enumerate(original.sites)}
    reason = "a copy of its text traces to something else"
    try:
        text = followed_text({mark: name for name, mark in sizes.items()}, original, original.loaded(sizes, folder))
        violations = dialect.check(text.source(""), entry="build")
        if violations:
            reason = violations[0].what
        else:
            params = {knob.name: knob.default for knob in knobs}
            changed = {knob.name: next((v for v in knob.values if v != knob.default), 0) for knob in knobs}
            points = (params, *({**params, name: value} for name, value in changed.items()))
            if traced(original, params) and all(traced(text, at) == traced(original, at) for at in points):
                return text, ""
    except Exception as error:  # noqa: BLE001 - whatever the user's file does with such sizes
        reason = (str(error) or type(error).__name__).splitlines()[0]
    return (original, f"no rewrites: the function runs as it stands with other block sizes ({reason})")


if __name__ == "__main__":
    answer_request(answer_to, own_folder=True)
