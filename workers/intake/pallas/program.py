"""The program that reads Pallas functions in: the text of the function and what it uses, with a ``build`` around it.

JAX functions are pure, so the wrapper is kept as it is written; decorators, annotations, underscores and options of the
call that only watch it go, and block sizes become parameters. The result is then traced and interpreted as any
candidate is.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.fitness import dialect
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import Call, Literal, TensorArgument, parse
from tilewright.workers.intake.child_program import (
    Answer,
    Refusal,
    Request,
    answer_request,
    refusal_of,
)
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.pallas.argument_names import plain
from tilewright.workers.intake.pallas.block_sizes import AUTOMATIC, names_block
from tilewright.workers.intake.pallas.cut import as_text
from tilewright.workers.intake.pallas.function_text import RESERVED, Module
from tilewright.workers.intake.pallas.observation import UNKNOWN, Observed, observe, traced
from tilewright.workers.intake.pallas.trial import judge
from tilewright.workers.intake.source.knobs import Knob, block_values, is_size
from tilewright.workers.intake.source.literals import Literals
from tilewright.workers.intake.source.load import load
from tilewright.workers.intake.source.names import plain_function
from tilewright.workers.runners.pallas.trace import mesh_of


def answer_to(request: Request) -> Answer:
    """The answer to a request, like that of ``triton.program``."""
    _add_old_names()
    began = time.monotonic()
    path = str(Path(request["path"]).resolve())
    module, loader = load(Path(path), request["function"], Literals(), traced=False)
    if not request["function"]:
        return _surveyed(module, path, loader.missing)
    home = loader.home(Path(path))
    function: Any = module
    for name in request["function"].split("."):
        if not hasattr(function, name):
            raise Refusal(f"{Path(path).name} defines no {request['function']}")
        function = getattr(function, name)
    if not callable(function):
        raise Refusal(f"{request['function']} of {Path(path).name} is no function")
    calls = [parse(text) for text in request["calls"]]
    parameters = list(inspect.signature(plain_function(function)).parameters)
    origin = f"{Path(path).name}:{request['function']}"
    given = calls
    calls = _resolved(function, calls, home)

    def made_with(observed: Observed | None) -> tuple[Module, str, list[Operand], list[Any], list[Knob]]:
        made = Module(observed=observed, reserved=frozenset(p.strip("_") for p in parameters))
        entry = made.add(function, entry=True)
        operands, said, places = _operands(calls, parameters)
        knobs = _knobs(made, calls[0], function, said)
        return made, _source(made, entry, operands, said, knobs, origin), operands, places, knobs

    made, source, operands, places, knobs = made_with(None)
    violations = _violations(made, source, path)
    if violations:
        observed = _observed(function, calls[0], home)
        if isinstance(observed, dict):
            # what its text has beside that may lie in branches that a call that works does not take
            violations = [observed]
        else:
            made, source, operands, places, knobs = made_with(observed)
            while _frozen(made, observed, _violations(made, source, path), function):
                made, source, operands, places, knobs = made_with(observed)
            made.notes.append(
                "the module has what this call does: branches that it does not take are dropped"
            )
            violations = _violations(made, source, path)
    answer: dict[str, Any] = {
        "refusals": violations, "notes": made.notes,
        "knobs": [{"name": k.name, "default": k.default, "values": list(k.values), "source": k.source} for k in knobs],
    }  # fmt: skip
    if violations:
        return answer
    below = declared(made.observed.owners, made.knobs) if made.observed is not None else []
    answer.update(judge(request, source, operands, given, knobs, places, below))
    answer["notes"] = [*made.notes, *answer.pop("judge_notes", ())]
    answer["seconds"] = time.monotonic() - began
    return answer


def _add_old_names() -> None:
    """Give JAX the names that public code uses from its older versions."""
    for module, name, now in (
        (pltpu, "TPUCompilerParams", pltpu.CompilerParams),
        (pltpu, "TPUMemorySpace", pltpu.MemorySpace),
        (pltpu, "ANY", pl.ANY),
        (pl, "load", lambda ref, index: ref[index]),
        (pl, "store", lambda ref, index, value: ref.__setitem__(index, value)),
    ):
        if not hasattr(module, name):
            setattr(module, name, now)


def declared(owners: Mapping[str, Any], knobs: Mapping[str, Knob]) -> list[tuple[str, str]]:
    """Pairs of knobs of which the first may not be above the second, as the class of the object that holds both
    checks them when it is made."""
    found = []
    for one, other in itertools.permutations(owners, 2):
        owner = owners[one]
        if owner is not owners[other] or not dataclasses.is_dataclass(owner) or isinstance(owner, type):
            continue
        pairs = list(itertools.product(knobs[one].values, knobs[other].values))
        refused = {pair for pair in pairs if not _takes(owner, {one: pair[0], other: pair[1]})}
        if refused and refused == {(a, b) for a, b in pairs if a > b}:
            found.append((knobs[one].name, knobs[other].name))
    return found


def _takes(owner: Any, values: Mapping[str, int]) -> bool:
    try:
        dataclasses.replace(owner, **values)
    except Exception:  # noqa: BLE001 - whatever its check raises
        return False
    return True


def _frozen(made: Module, observed: Observed, violations: Sequence[Mapping[str, Any]], entry: Any) -> bool:
    """Freeze functions that the dialect has something against and that returned a plain value; whether there were."""
    at = {(v["file"], v["line"]) for v in violations}
    found = {
        key
        for name, key in made.places.items()
        if any((made.files[name], line) in at for line in made.lines[name].values())
        and _says(key, as_text(observed.returned.get(key, UNKNOWN)))
    }
    found -= {
        *observed.frozen,
        (plain_function(entry).__code__.co_filename, plain_function(entry).__code__.co_firstlineno),
    }
    observed.frozen |= found
    made.notes += [
        f"line {line}: this function is replaced by what it returned for this call" for _, line in found
    ]
    return bool(found)


def _resolved(function: Any, calls: Sequence[Call], home: Path) -> list[Call]:
    """Calls with the block sizes that a function works out where they are not given (``block_q=None``, ``"auto"``):
    what it was seen to choose, or what does the same; only if the first call then does what it did."""
    parameters = inspect.signature(plain_function(function)).parameters
    call, code = calls[0], plain_function(function).__code__
    given = {*list(parameters)[: len(call.arguments)], *call.keywords}
    asked = [
        p.name for p in parameters.values()
        if p.name not in given and names_block(p.name) and (p.default is None or isinstance(p.default, str))
    ]  # fmt: skip
    observed = _observed(function, call, home) if asked else {}
    if not isinstance(observed, Observed):
        return list(calls)
    held = observed.held.get((code.co_filename, code.co_firstlineno), {})
    plain = _traced(function, call)

    def same(sizes: Mapping[str, int]) -> bool:
        return bool(sizes) and _traced(function, replace(call, keywords={**call.keywords, **sizes})) == plain

    sizes = {name: held[name] for name in asked if is_size(held.get(name))}
    sizes = sizes if same(sizes) else {}
    for name in (n for n in asked if n not in sizes):
        sizes.update(next(({name: v} for v in AUTOMATIC if same({**sizes, name: v})), {}))
    return [replace(one, keywords={**one.keywords, **sizes}) for one in calls]


def _traced(function: Any, call: Call) -> str:
    """What a call does, as text; empty where it raises."""
    chip = load_target("tpu7x").chip
    try:
        with mesh_of({"kind": chip.device_kind, "cores": chip.cores}):
            return re.sub(r"0x[0-9a-f]+", "", str(_run(function, call)()))
    except Exception:  # noqa: BLE001 - whatever the user's code raises
        return ""


def _run(function: Any, call: Call) -> Callable[[], Any]:
    """The call on shapes, to be made where a chip is known."""

    def given(value: Any) -> Any:
        if isinstance(value, TensorArgument):
            return jax.ShapeDtypeStruct(value.shape, jnp.dtype(value.dtype))
        if isinstance(value, Literal):
            return eval(value.text, {"jnp": jnp, "jax": jax})
        return type(value)(given(v) for v in value) if isinstance(value, list | tuple) else value

    return traced(
        function, [given(v) for v in call.arguments], {k: given(v) for k, v in call.keywords.items()}
    )


def _says(key: tuple[str, int], returned: str) -> bool:
    """Whether a function's text returned a plain value: one that returns nothing at all does something."""
    if returned != "None":
        return bool(returned)
    file, first = key
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    made = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    found = next((n for n in made if min([n.lineno, *(d.lineno for d in n.decorator_list)]) == first), None)
    return found is not None and any(isinstance(n, ast.Return) and n.value for n in ast.walk(found))


def _observed(function: Any, call: Call, home: Path) -> Observed | dict[str, Any]:
    """What the call does; or the refusal that says what it raises."""
    chip = load_target("tpu7x").chip
    try:
        run = _run(function, call)
        _forget(home)
        with mesh_of({"kind": chip.device_kind, "cores": chip.cores}):
            return observe(run, home, chip.device_kind)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        return refusal_of(error, str(home))


def _forget(home: Path) -> None:
    """Empty caches: what was traced or asked before would not run again."""
    jax.clear_caches()
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").startswith(str(home)):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)) and not isinstance(value, type):
                    clear()


def _surveyed(module: Any, path: str, missing: Sequence[str]) -> dict[str, Any]:
    functions, refusals = [], []
    for name, value in list(vars(module).items()):
        plain = plain_function(value) if callable(value) else None
        if (
            not isinstance(plain, types.FunctionType)
            or plain.__module__ != module.__name__
            or name.startswith("tilewright_")
        ):
            continue
        functions.append(name)
        made = Module()
        try:
            made.add(plain)
        except (Refusal, OSError, AssertionError) as error:
            refusals.append({"line": 0, "what": str(error)})
            continue
        source = _source(made, "", [], {}, [], path)
        refusals += _violations(made, source, path)
    unique = {(f.get("file", ""), f["line"], f["what"]): f for f in refusals}
    return {"kernels": [], "functions": functions, "refusals": list(unique.values()), "notes": list(missing)}


def _operands(
    calls: Sequence[Any], parameters: Sequence[str]
) -> tuple[list[Operand], dict[Any, str], list[Any]]:
    """Operands; the other arguments as text, by position or keyword."""
    names = [parameters[n] if n < len(parameters) else f"x{n}" for n in range(len(calls[0].arguments))]
    tensors = dimensions.tensor_places(calls, names)
    operands, places = dimensions.operands(calls, tensors, frozenset(("inputs", "params", *RESERVED)))
    by_place = {p: o.name for o, p in zip(operands, places, strict=True)}

    def text(value: Any, place: tuple[Any, ...]) -> str:
        if place in by_place:
            return by_place[place]
        if isinstance(value, tuple):
            return "(" + "".join(text(v, (*place, n)) + ", " for n, v in enumerate(value)) + ")"
        return value.text.replace("torch.", "jnp.") if isinstance(value, Literal) else repr(value)

    said: dict[Any, str] = {n: text(v, (n,)) for n, v in enumerate(calls[0].arguments)}
    said.update({k: text(v, (k,)) for k, v in calls[0].keywords.items()})
    return operands, said, places


_COUNTED = re.compile(r"block|tile|page|chunk")
_FEW = (1, 2, 4, 8, 16, 32)
"""Values of a small number that counts what is done at once, such as pages of a block."""


def _knobs(made: Module, call: Any, function: Any, said: dict[Any, str]) -> list[Knob]:
    """Whole numbers among the call's arguments and the function's defaults, and literals that were lifted."""
    found = [*made.knobs.values(), *made.knobs_below]
    for name, knob in made.knobs.items():
        if made.observed is None:  # else the text says params itself
            said[name] = f'params["{knob.name}"]'
    parameters = inspect.signature(plain_function(function)).parameters
    given = dict(zip(parameters, call.arguments, strict=False)) | dict(call.keywords)
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        parts = value if isinstance(value, tuple) else (value,)
        few = _COUNTED.search(name) is not None and type(value) is int and 2 <= value < 8
        if not (few or all(is_size(v) for v in parts)) or not parts:
            continue
        names = [
            name.strip("_") if len(parts) == 1 and not isinstance(value, tuple) else f"{name.strip('_')}_{n}"
            for n in range(len(parts))
        ]
        for one, number in zip(names, parts, strict=True):
            values = tuple(sorted({number, *_FEW})) if few else block_values(number)
            found.append(Knob(one, number, values, f"argument {name} of the call"))
        text = ", ".join(f'params["{one}"]' for one in names)
        place = list(parameters).index(name)
        key = place if place < len(call.arguments) else name
        said[key] = f"({text},)" if isinstance(value, tuple) else text
    return found


def _source(
    made: Module,
    entry: str,
    operands: Sequence[Operand],
    said: Mapping[Any, str],
    knobs: Sequence[Knob],
    origin: str,
) -> str:
    constants = "".join(f"{n} = {t}\n" for n, t in made.constants.items())
    functions = "\n\n\n".join(plain(made.functions).values())
    text = constants + functions
    heads = {"functools": "import functools\n", "math": "import math\n"}
    imports = "".join(line for word, line in heads.items() if re.search(rf"\b{word}\.", text))
    positional = [t for k, t in said.items() if isinstance(k, int)]
    keyword = [f"{k.lstrip('_')}={t}" for k, t in said.items() if isinstance(k, str)]
    names = ", ".join(o.name for o in operands)
    called = f"{entry}({', '.join([*positional, *keyword])})" if entry else "()"
    space = {k.name: k.values for k in knobs}
    defaults = {k.name: k.default for k in knobs}
    head = f"SPACE = {space!r}\nDEFAULTS = {defaults!r}\nCONSTRAINTS = {{}}\n"
    inner = ""
    if made.observed is not None or made.knobs_below:
        inner, functions = textwrap.indent(functions, "    ") + "\n\n", ""
    return (
        f'"""From {Path(origin).name}."""\n\n{imports}import jax\nimport jax.numpy as jnp\n'
        "from jax.experimental import pallas as pl\nfrom jax.experimental.pallas import tpu as pltpu\n\n"
        f"{head}\n{constants}\n\n{functions}\n\n\ndef build(params):\n{inner}"
        f"    def apply({names}):\n        return {called}\n\n    return apply\n"
    )


def _violations(made: Module, source: str, path: str) -> list[dict[str, Any]]:
    lines = source.splitlines()
    found = []
    for violation in dialect.check(source, entry="build"):
        line, file = 0, path
        for name, text in made.functions.items():
            parts = text.splitlines()
            for start in (n for n, row in enumerate(lines) if row.strip() == parts[0]):
                within = violation.line - start
                if 0 < within <= len(parts):
                    line, file = made.lines[name].get(within, 0), made.files[name]
        code = lines[violation.line - 1].strip() if violation.line else ""
        found.append({"line": line, "what": violation.what, "file": file, "code": code})
    return list({(f["file"], f["line"], f["what"]): f for f in found}.values())


if __name__ == "__main__":
    answer_request(answer_to, own_folder=True)
