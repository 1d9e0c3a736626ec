"""The child that takes a kernel in: one request as JSON on stdin, one answer as JSON on stdout.

It runs the user's own file, recorded, and then only the module that was made of it, in Triton's interpreter: on small
shapes of the same kind, against the reference, and with other values of what may be a knob.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tilewright.fitness import dialect
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.judge.bounds import wrong
from tilewright.workers.intake.judge.reference import function_of
from tilewright.workers.intake.judge.self_reference import ITSELF, Own
from tilewright.workers.intake.operator import Operand, operand_row
from tilewright.workers.intake.source.literals import Literals
from tilewright.workers.intake.source.load import load
from tilewright.workers.intake.triton.bars import bars
from tilewright.workers.intake.triton.call_site import (
    Oracle,
    Site,
    computes,
    signature_names,
    traced_at,
    wanted_of,
)
from tilewright.workers.intake.triton.interpreter_run import RUN_SECONDS, TooSlow, run
from tilewright.workers.intake.triton.kernel_module import Taken
from tilewright.workers.intake.triton.knob_evidence import (
    evidence,
    independent_of,
    operator_of,
    work_of,
)
from tilewright.workers.intake.triton.stub_device import noted_device
from tilewright.workers.intake.triton.trace import Refusal
from tilewright.workers.intake.triton.trial import (
    deep_shape,
    several_tiles,
    shapes_of,
)
from tilewright.workers.runners.triton.candidate import load_module
from tilewright.workers.runners.triton.interpreter_rounding import repair
from tilewright.workers.runners.triton.launch_guard import leave_interpreter_unguarded

_OUTSIDE = re.compile(r"the name u\d+ is not defined")


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
    except LookupError as error:
        if not str(error).startswith("--reference"):
            raise
        answer = {"refusals": [{"line": 0, "what": str(error)}]}
    except TooSlow:
        what = f"a checked shape takes more than {RUN_SECONDS} s in the interpreter, on a machine as busy as this"
        answer = {"refusals": [{"line": 0, "what": what}]}
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
        if not k.echo
    ]
    if answer["refusals"]:
        return answer
    answer.update(_judged(request, site, taken))
    answer["seconds"] = time.monotonic() - began
    return answer


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
            owner, function = function, getattr(function, name)
            if isinstance(owner, type) and "self" in getattr(function, "__code__", _NO_CODE).co_varnames[:1]:
                function = getattr(_made(owner, module), name)
        if not callable(function):
            raise Refusal(f"{request['function']} of {Path(path).name} is no function")
        if isinstance(function, type) and callable(getattr(function, "forward", None)):
            function = _made(function, module).forward  # a layer: its kernels are launched there
        site = Site(
            function,
            path,
            request["function"],
            [parse(text) for text in request["calls"]],
            literals=literals,
            part=part,
        )
        names = signature_names(function, site.calls[0])
        raw, site.places = dimensions.operands(site.calls, dimensions.slots(site.calls, names), frozenset())

        def works(dims: Mapping[str, int], operands: list[Operand]) -> bool:
            site.operands, site.dims = operands, [dict(dims)]
            try:
                wanted = wanted_of(request, site)
                if wanted is None:
                    return False
                traced_at(site, site.dims[0], wanted)
            except Exception:  # noqa: BLE001 - these dimensions are not different ones
                return False
            return True

        surely = None
        if request["reference"] != ITSELF:
            surely = functools.partial(computes, function_of(request["reference"]), site)
        site.operands, site.dims = dimensions.settle(raw, len(site.calls), works, surely=surely)
        wanted = wanted_of(request, site)
        return site, traced_at(site, site.dims[0], wanted)


_NO_CODE = (lambda: None).__code__


def _made(kind: type, module: Any) -> Any:
    """An object of a class, with the arguments that the file has for it (``get_init_inputs``), if any."""
    try:
        given = module.get_init_inputs()
    except Exception:  # noqa: BLE001 - a file without it
        given = []
    try:
        return kind(*given)
    except TypeError as error:
        raise Refusal(f"{kind.__name__} cannot be made without arguments: {error}") from error


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
    from tilewright.workers.intake.triton.kernel_text import Kernels, is_jitted

    path = str(Path(request["path"]).resolve())
    with noted_device(request["part"]):
        module, loader = load(Path(path), None, Literals())
        kernels, functions, found = [], [], []
        for name, value in list(vars(module).items()):
            if is_jitted(value):
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


def _ready() -> None:
    """Load what torch and Triton load with their first use, once for all the runs that are forked from here."""
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401


def _reference(request: Mapping[str, Any], site: Site, module: Any, defaults: Mapping[str, Any]) -> Any:
    """What answers are compared with: the reference, or where there is none the kernel as it stands."""
    if request["reference"] != ITSELF:
        return Oracle(function_of(request["reference"]))
    return Own(
        lambda inputs: run(module, defaults, inputs),
        lambda one, other: wrong(one, other, site.operands),
        site.operands,
    )


def _keeping(site: Site, taken: Taken) -> tuple[Taken, Any] | None:
    """The module that keeps what arguments held where no kernel writes, as of a cache that is filled in places; None
    where it is the same one."""
    site.keeps = True
    with noted_device(site.part):
        kept = traced_at(site, site.dims[0], [(tuple(t.shape), t.dtype) for t in taken.outputs])
    torch.set_default_device("cpu")
    return None if kept.source == taken.source else (kept, load_module(kept.source))


def _judged(request: Mapping[str, Any], site: Site, taken: Taken) -> dict[str, Any]:
    """Checked shapes, gates, and knobs with their evidence."""
    torch.set_default_device("cpu")
    _ready()
    repair()
    leave_interpreter_unguarded()
    os.chdir(request["folder"])
    defaults = {k.name: k.default for k in taken.knobs}
    module = load_module(taken.source)
    reference = _reference(request, site, module, defaults)
    places = _reference_places(request, site, taken)
    notes: list[str] = []
    shapes = shapes_of(request, site, taken, module, defaults, reference, notes)
    if isinstance(shapes, str):
        kept = _keeping(site, taken)
        if kept is not None:
            taken, module = kept
            reference = _reference(request, site, module, defaults)
            notes.clear()
            kept_shapes = shapes_of(request, site, taken, module, defaults, reference, notes)
            shapes = shapes if isinstance(kept_shapes, str) else kept_shapes
    if isinstance(shapes, str):
        return {"refusals": [{"line": 0, "what": shapes}], "notes": [*taken.notes, *notes]}
    count = len(shapes[0].answers["randn"])
    if count < len(taken.outputs):  # the reference could not be asked for shapes alone
        judged_ones = [(tuple(t.shape), t.dtype) for t in taken.outputs[:count]]
        with noted_device(site.part):
            taken = traced_at(site, site.dims[0], judged_ones)
        torch.set_default_device("cpu")
        module = load_module(taken.source)
    results, failed, spread = bars(request, site, taken, module, defaults, shapes, places, reference, notes)
    if failed:
        return {
            "refusals": [{"line": 0, "what": f"the kernel's own answer is not the reference's: {failed}"}],
            "notes": [*taken.notes, *notes],
        }
    gated = operator_of(request, site, reference, results, spread)
    wide = several_tiles(request, site, taken, module, defaults, reference)
    small = [s for s in shapes if not s.looped] or shapes
    deep = functools.cache(lambda: deep_shape(request, site, taken, module, defaults, reference))
    space, fixed = evidence(site, taken, module, defaults, small, gated, wide, deep)
    source = taken.with_space(space, {k: defaults[k] for k in space})
    again = load_module(source)
    made = run(again, dict(again.DEFAULTS), shapes[0].inputs["randn"])
    fault = wrong(made, shapes[0].answers["randn"], site.operands)
    if fault:
        return {"refusals": [{"line": 0, "what": f"the module that was made is wrong: {fault}"}]}
    independent = independent_of(site, reference, shapes[0], results)
    return {
        "source": source,
        "space": {k: list(v) for k, v in space.items()},
        "defaults": {k: defaults[k] for k in space},
        "points": taken.configurations(space, {k: defaults[k] for k in space}),
        "fixed": fixed,
        "operands": [operand_row(o) for o in site.operands],
        "orders": [dimensions.at(site.calls[0], place).order for place in site.places],
        "results": [[r.name, r.dtype, list(r.shape), r.min_db, r.worst, r.place] for r in results],
        "call": reference.call,
        "precision": reference.precision,
        "check": [s.dims for s in shapes],
        "small": [s.dims for s in shapes if not s.looped] or [shapes[0].dims],
        "kinds": list(shapes[0].inputs),
        "spread": spread,
        "independent": independent,
        "work": work_of(site, reference),
        "notes": [*taken.notes, *notes],
    }


def _reference_places(request: Mapping[str, Any], site: Site, taken: Taken) -> list[int]:
    return list(range(len(taken.outputs)))


if __name__ == "__main__":
    main()
