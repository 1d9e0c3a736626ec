"""Takes a Pallas function in: its own text, what it reaches, and a ``build`` around it.

JAX functions are pure, so the wrapper is kept as it is written; decorators, annotations, underscores and options of the
call that only watch it go, and block sizes become parameters. The result is then traced and interpreted as any
candidate is.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import re
import sys
import textwrap
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tilewright.fitness import dialect
from tilewright.fitness.targets import load_target
from tilewright.workers.intake import dims as dimensions
from tilewright.workers.intake.arguments import Call, Literal, TensorArgument, parse
from tilewright.workers.intake.knobs import is_size
from tilewright.workers.intake.literals import Literals
from tilewright.workers.intake.load import load
from tilewright.workers.intake.names import plain_function
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.pallas_cut import as_text
from tilewright.workers.intake.pallas_observed import UNKNOWN, Observed, observe, traced
from tilewright.workers.intake.pallas_plain import plain
from tilewright.workers.intake.pallas_text import TAKEN, Knob, Module, Refused, around
from tilewright.workers.intake.pallas_trial import judged
from tilewright.workers.runners.pallas_trace import mesh_of


def main() -> None:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer = take(request)
    except Refused as refusal:
        answer = {"refusals": [{"line": refusal.line, "what": refusal.what}]}
    except LookupError as error:
        if not str(error).startswith("--reference"):
            raise
        answer = {"refusals": [{"line": 0, "what": str(error)}]}
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        import traceback

        traceback.print_exc()
        text = str(error).splitlines()[0] if str(error) else ""
        answer = {"refusals": [{"line": 0, "what": f"the call raises {type(error).__name__}: {text}"}]}
    json.dump(answer, out)
    out.close()


def take(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request, as of ``workers.intake.main``."""
    began = time.monotonic()
    path = str(Path(request["path"]).resolve())
    module, loader = load(Path(path), request["function"], Literals(), traced=False)
    if not request["function"]:
        return _surveyed(module, path, loader.missing)
    function: Any = module
    for name in request["function"].split("."):
        if not hasattr(function, name):
            raise Refused(f"{Path(path).name} defines no {request['function']}")
        function = getattr(function, name)
    if not callable(function):
        raise Refused(f"{request['function']} of {Path(path).name} is no function")
    calls = [parse(text) for text in request["calls"]]
    parameters = list(inspect.signature(plain_function(function)).parameters)
    origin = f"{Path(path).name}:{request['function']}"

    def made_with(observed: Observed | None) -> tuple[Module, str, list[Operand], Any, Any, list[Knob]]:
        made = Module(observed=observed)
        entry = made.take(function, entry=True)
        operands, said, places = _operands(calls, parameters)
        knobs = _knobs(made, calls[0], function, said)
        return made, _source(made, entry, operands, said, knobs, origin), operands, said, places, knobs

    made, source, operands, said, places, knobs = made_with(None)
    violations = _violations(made, source, path)
    if violations:
        observed = _observed(function, calls[0], Path(path))
        if isinstance(observed, str):
            # what its text has beside that may lie in branches that a call that works does not take
            violations = [{"line": 0, "what": f"the call raises {observed}", "file": path}]
        else:
            made, source, operands, said, places, knobs = made_with(observed)
            while _frozen(made, observed, _violations(made, source, path), function):
                made, source, operands, said, places, knobs = made_with(observed)
            made.notes.append(
                "the function is cut down to what this call does: branches not taken are left out"
            )
            violations = _violations(made, source, path)
    answer: dict[str, Any] = {
        "refusals": violations, "notes": made.notes,
        "knobs": [{"name": k.name, "default": k.default, "values": list(k.values), "source": k.source} for k in knobs],
    }  # fmt: skip
    if violations:
        return answer
    below = declared(made.observed.owners, made.knobs) if made.observed is not None else []
    answer.update(judged(request, source, operands, calls, knobs, said, places, below))
    answer["notes"] = [*made.notes, *answer.pop("judged_notes", ())]
    answer["seconds"] = time.monotonic() - began
    return answer


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
        and as_text(observed.returned.get(key, UNKNOWN))
        not in ("", "None")  # what returns None does something
    }
    found -= {
        *observed.frozen,
        (plain_function(entry).__code__.co_filename, plain_function(entry).__code__.co_firstlineno),
    }
    observed.frozen |= found
    made.notes += [
        f"line {line}: what this function returned for this call is taken as it is" for _, line in found
    ]
    return bool(found)


def _observed(function: Any, call: Call, path: Path) -> Observed | str:
    """What the call does; or what it raises."""

    def given(value: Any) -> Any:
        if isinstance(value, TensorArgument):
            return jax.ShapeDtypeStruct(value.shape, jnp.dtype(value.dtype))
        if isinstance(value, Literal):
            return eval(value.text, {"jnp": jnp, "jax": jax})
        return [given(v) for v in value] if isinstance(value, list) else value

    keywords = {k: given(v) for k, v in call.keywords.items()}
    chip = load_target("tpu7x").chip
    try:
        run = traced(function, [given(v) for v in call.arguments], keywords)
        with mesh_of({"kind": chip.device_kind, "cores": chip.cores}):
            return observe(run, path.parent, chip.device_kind)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]


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
            made.take(plain)
        except (Refused, OSError, AssertionError) as error:
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
    slots = dimensions.slots(calls, names)
    taken = {"inputs", "params", *TAKEN}
    operands, places = dimensions.operands(calls, slots, taken)
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
    found = list(made.knobs.values())
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
            values = tuple(sorted({number, *_FEW})) if few else around(number)
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
    if made.observed is not None:
        inner, functions = textwrap.indent(functions, "    ") + "\n\n", ""
    return (
        f'"""Taken from {Path(origin).name}."""\n\n{imports}import jax\nimport jax.numpy as jnp\n'
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
        said = lines[violation.line - 1].strip() if violation.line else ""
        found.append({"line": line, "what": violation.what, "file": file, "said": said})
    return list({(f["file"], f["line"], f["what"]): f for f in found}.values())


if __name__ == "__main__":
    main()
