"""Takes a Pallas function in: its own text, what it reaches, and a ``build`` around it.

JAX functions are pure, so the wrapper is kept as it is written; decorators, annotations, underscores and options of the
call that only watch it go, and block sizes become parameters. The result is then traced and interpreted as any
candidate is.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import math
import os
import re
import sys
import textwrap
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.fitness import dialect
from tilewright.fitness.dialect_names import ALL_BUILTINS, BUILTINS
from tilewright.fitness.targets import load_target
from tilewright.workers.intake import dims as dimensions
from tilewright.workers.intake import judge
from tilewright.workers.intake.arguments import Literal, parse
from tilewright.workers.intake.load import Literals, load
from tilewright.workers.intake.operator import Operand, as_result, draw, function_of, run_reference

MODULES = {
    "jax": "jax", "jax.numpy": "jnp", "jax.lax": "jax.lax", "jax.nn": "jax.nn", "jax.experimental.pallas": "pl",
    "jax.experimental.pallas.tpu": "pltpu", "functools": "functools", "math": "math",
}  # fmt: skip
_TAKEN = ALL_BUILTINS | frozenset(("jax", "jnp", "pl", "pltpu", "functools", "math", "build", "params"))
_DROPPED_OPTIONS = frozenset(("debug", "interpret", "cost_estimate", "metadata", "name"))
_RENAMED = {"TPUCompilerParams": "CompilerParams", "TPUMemorySpace": "MemorySpace"}
EVIDENCE_SECONDS = 60.0


class Refused(Exception):
    """Why a function cannot be taken in."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.what, self.line = what, line


@dataclass
class Knob:
    name: str
    default: int
    values: tuple[int, ...]
    source: str


@dataclass
class Module:
    """The module being made."""

    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    lines: dict[str, dict[int, int]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    knobs: dict[str, Knob] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def take(self, function: Any, entry: bool = False) -> str:
        fn = _plain(function)
        if id(fn) in self._names:
            return self._names[id(fn)]
        name = self._free(fn.__name__)
        self._names[id(fn)] = name
        lines, start = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, start - 1)
        node = tree.body[0]
        if not isinstance(node, ast.FunctionDef):
            raise Refused(f"{fn.__name__} is no plain function", start)
        cells = zip(fn.__code__.co_freevars, (c.cell_contents for c in fn.__closure__ or ()), strict=True)
        if entry:
            self._lift(node, fn)
        made = _Transform(self, fn.__globals__, dict(cells), node).visit(node)
        made.name = name
        made.decorator_list = []
        ast.fix_missing_locations(made)
        self.functions[name] = ast.unparse(made)
        self.files[name] = inspect.getsourcefile(fn) or ""
        again = ast.walk(ast.parse(self.functions[name]))
        found: dict[int, int] = {}
        for new, old in zip(again, [None, *ast.walk(made)], strict=False):
            if old is not None and hasattr(new, "lineno") and hasattr(old, "lineno"):
                found.setdefault(new.lineno, old.lineno)
        self.lines[name] = found
        return name

    def _free(self, wanted: str) -> str:
        name = wanted.strip("_") or "f"
        while name in _TAKEN or name in self._names.values() or name in self.constants:
            name += "_f"
        return name

    def _lift(self, node: ast.FunctionDef, fn: Any) -> None:
        """Literal sizes that the wrapper assigns become keyword parameters of it, with the literal as default."""
        lifted: list[tuple[str, int, int]] = []
        for place, statement in enumerate(node.body):
            if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                continue
            value = statement.value
            if isinstance(value, ast.Constant) and type(value.value) is int and value.value >= 8:
                lifted.append((statement.targets[0].id, value.value, statement.lineno))
                node.body[place] = ast.copy_location(ast.Pass(), statement)
        globals_used = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        for name in sorted(globals_used):
            known = fn.__globals__.get(name)
            if type(known) is int and known >= 8:
                lifted.append((name, known, node.lineno))
        for name, size, line in lifted:
            node.args.kwonlyargs.append(ast.arg(name))
            node.args.kw_defaults.append(ast.Constant(size))
            self.knobs[name] = Knob(name.lower().strip("_"), size, _around(size), f"literal at line {line}")
        for part in (*node.args.kwonlyargs, *node.args.kw_defaults):
            if part is not None:
                ast.copy_location(part, node)
        ast.fix_missing_locations(node)

    def constant(self, name: str, text: str) -> str:
        new = name.strip("_") or "c"
        while new in _TAKEN or new in self._names.values() or self.constants.get(new, text) != text:
            new += "_c"
        self.constants[new] = text
        return new


def _plain(function: Any) -> Any:
    seen = function
    while True:
        if isinstance(seen, functools.partial):
            seen = seen.func
        elif hasattr(seen, "__wrapped__"):
            seen = seen.__wrapped__
        else:
            return seen


def _around(default: int) -> tuple[int, ...]:
    return tuple(
        sorted({default, *(max(8, default >> n) for n in (1, 2, 3)), *(default << n for n in (1, 2, 3))})
    )


class _Transform(ast.NodeTransformer):
    """Rewrites one function."""

    def __init__(
        self, module: Module, known: Mapping[str, Any], closure: Mapping[str, Any], node: ast.FunctionDef
    ) -> None:
        self._module, self._known, self._closure = module, known, closure
        bound = [n.arg for n in ast.walk(node) if isinstance(n, ast.arg)]
        bound += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        bound += [n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
        self._local = set(bound)
        self._mapping: dict[str, str] = {}
        for name in bound:
            new = name
            if name == "_" and any(isinstance(n, ast.FunctionDef) and n.name == "_" for n in ast.walk(node)):
                new = "step"
            elif name.startswith("_") and name != "_":
                new = name.strip("_") or "u"
            if new in _TAKEN:
                new += "_"
            while new != name and (new in self._local or new in self._mapping.values()):
                new += "_"
            self._mapping.setdefault(name, new)

    def _object(self, node: ast.expr) -> tuple[bool, Any]:
        if isinstance(node, ast.Name) and node.id not in self._local:
            for scope in (self._closure, self._known):
                if node.id in scope:
                    return True, scope[node.id]
        if isinstance(node, ast.Attribute):
            found, value = self._object(node.value)
            if found and isinstance(value, types.ModuleType) and hasattr(value, node.attr):
                return True, getattr(value, node.attr)
        return False, None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._local:
            return ast.copy_location(ast.Name(self._mapping.get(node.id, node.id), node.ctx), node)
        found, value = self._object(node)
        return self._said(node, value, node.id) if found else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = _RENAMED.get(node.attr, node.attr)
        found, value = self._object(node)
        if found and not isinstance(value, types.ModuleType):
            return self._said(node, value, node.attr)
        if found and value.__name__ in MODULES:
            return self._expression(node, MODULES[value.__name__])
        node.value = self.visit(node.value)
        return node

    def _said(self, node: ast.expr, value: Any, name: str) -> ast.AST:
        text = self._text(value, name)
        return node if text is None else self._expression(node, text)

    def _expression(self, node: ast.expr, text: str) -> ast.AST:
        made = ast.parse(text, mode="eval").body
        for part in ast.walk(made):
            ast.copy_location(part, node)
        return made

    def _text(self, value: Any, name: str) -> str | None:
        if isinstance(value, types.ModuleType):
            found = MODULES.get(value.__name__)
            return "jnp" if found is None and value is np else found
        if name in BUILTINS and name not in self._known:
            return name
        for module, alias in ((pltpu, "pltpu"), (pl, "pl"), (jnp, "jnp"), (jax.lax, "jax.lax"), (jax.nn, "jax.nn"),
                              (math, "math"), (functools, "functools"), (jax, "jax")):  # fmt: skip
            if getattr(module, name, None) is value and not isinstance(value, bool | int | float | str):
                return f"{alias}.{name}"
        if value is np.prod:
            return "math.prod"
        if isinstance(value, type) and issubclass(value, np.generic) and hasattr(jnp, value.__name__):
            return f"jnp.{value.__name__}"
        if isinstance(value, bool | int | float | str) or value is None:
            if value is None:
                return "None"
            shown = (
                f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
            )
            return shown if shown.startswith("float") else self._module.constant(name, shown)
        if isinstance(value, tuple) and all(isinstance(v, int | float | str) for v in value):
            return self._module.constant(name, repr(value))
        if isinstance(value, np.generic):
            return self._module.constant(name, repr(value.item()))
        plain = _plain(value)
        if isinstance(plain, types.FunctionType):
            return self._module.take(plain)
        return None

    # -- statements ------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
                         *filter(None, [arguments.vararg, arguments.kwarg])):  # fmt: skip
            argument.annotation = None
            argument.arg = self._mapping.get(argument.arg, argument.arg)
        arguments.defaults = [self.visit(d) for d in arguments.defaults]
        arguments.kw_defaults = [d if d is None else self.visit(d) for d in arguments.kw_defaults]
        node.returns = None
        node.decorator_list = [self.visit(d) for d in node.decorator_list if "jit" not in ast.unparse(d)]
        if node.name in self._mapping:
            node.name = self._mapping[node.name]
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            node.body = node.body[1:]
        node.body = self._block(node.body) or [ast.Pass()]
        return node

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            made += result if isinstance(result, list) else [] if result is None else [result]
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.visit(node.value)), node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        said = ast.Constant("refused by the function")
        return ast.copy_location(
            ast.Raise(ast.Call(ast.Name("ValueError", ast.Load()), [said], []), None), node
        )

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Assert(self.visit(node.test), None), node)

    def visit_With(self, node: ast.With) -> Any:
        if all(
            "named_scope" in ast.unparse(i.context_expr) or "annotate" in ast.unparse(i.context_expr)
            for i in node.items
        ):
            return self._block(node.body)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call) and re.match(
            r"(jax\.debug|pl\.debug|print|logging|logger)", ast.unparse(node.value.func)
        ):
            return None
        node.value = self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = ast.unparse(node.func)
        if called.endswith("pallas_call"):
            node.keywords = [k for k in node.keywords if k.arg not in _DROPPED_OPTIONS]
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg is not None and isinstance(node.func, ast.Name | ast.Attribute):
                keyword.arg = keyword.arg.lstrip("_") or keyword.arg
        return node


# -- the child -------------------------------------------------------------------------------------


def main() -> None:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer = take(request)
    except Refused as refusal:
        answer = {"refusals": [{"line": refusal.line, "what": refusal.what}]}
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
    made = Module()
    entry = made.take(function, entry=True)
    call = parse(request["calls"][0])
    calls = [parse(text) for text in request["calls"]]
    parameters = list(inspect.signature(_plain(function)).parameters)
    operands, said, places = _operands(calls, parameters)
    knobs = _knobs(made, call, function, said)
    source = _source(made, entry, operands, said, knobs, f"{Path(path).name}:{request['function']}")
    violations = _violations(made, source, path)
    answer: dict[str, Any] = {
        "refusals": violations, "notes": made.notes,
        "knobs": [{"name": k.name, "default": k.default, "values": list(k.values), "source": k.source} for k in knobs],
    }  # fmt: skip
    if violations:
        return answer
    answer.update(_judged(request, source, operands, calls, knobs, said, places))
    answer["seconds"] = time.monotonic() - began
    return answer


def _surveyed(module: Any, path: str, missing: Sequence[str]) -> dict[str, Any]:
    functions, refusals = [], []
    for name, value in list(vars(module).items()):
        plain = _plain(value) if callable(value) else None
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
    taken = {"inputs", "params", *_TAKEN}
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


def _knobs(made: Module, call: Any, function: Any, said: dict[Any, str]) -> list[Knob]:
    """Whole numbers among the call's arguments and the function's defaults, and literals that were lifted."""
    found = list(made.knobs.values())
    for name, knob in made.knobs.items():
        said[name] = f'params["{knob.name}"]'
    parameters = inspect.signature(_plain(function)).parameters
    given = dict(zip(parameters, call.arguments, strict=False)) | dict(call.keywords)
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        parts = value if isinstance(value, tuple) else (value,)
        if not all(type(v) is int and v >= 8 for v in parts) or not parts:
            continue
        names = [
            name.strip("_") if len(parts) == 1 and not isinstance(value, tuple) else f"{name.strip('_')}_{n}"
            for n in range(len(parts))
        ]
        for one, number in zip(names, parts, strict=True):
            found.append(Knob(one, number, _around(number), f"argument {name} of the call"))
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
    functions = "\n\n\n".join(made.functions.values())
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
    return (
        f'"""Taken from {Path(origin).name}."""\n\n{imports}import jax\nimport jax.numpy as jnp\n'
        "from jax.experimental import pallas as pl\nfrom jax.experimental.pallas import tpu as pltpu\n\n"
        f"{head}\n{constants}\n\n{functions}\n\n\ndef build(params):\n"
        f"    def apply({names}):\n        return {called}\n\n    return apply\n"
    )


def _violations(made: Module, source: str, path: str) -> list[dict[str, Any]]:
    lines = source.splitlines()
    found = []
    for violation in dialect.check(source, entry="build"):
        line, file = 0, path
        for name, text in made.functions.items():
            parts = text.splitlines()
            for start in (n for n, row in enumerate(lines) if row == parts[0]):
                within = violation.line - start
                if 0 < within <= len(parts):
                    line, file = made.lines[name].get(within, 0), made.files[name]
        said = lines[violation.line - 1].strip() if violation.line else ""
        found.append({"line": line, "what": violation.what, "file": file, "said": said})
    return list({(f["file"], f["line"], f["what"]): f for f in found}.values())


def _judged(request: Mapping[str, Any], source: str, operands: list[Operand], calls: Sequence[Any],
            knobs: Sequence[Knob],
            said: Mapping[Any, str], places: Sequence[Any]) -> dict[str, Any]:  # fmt: skip
    """Checked shapes, bounds and evidence, all by the interpreter that candidates are judged with."""
    from tilewright.workers.runners.pallas_trace import load_build

    target = load_target("tpu7x")
    reference = function_of(request["reference"])
    build = load_build(source)
    defaults = {k.name: k.default for k in knobs}
    ways = _reference_ways(calls[0], operands, places)
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
        inputs = {o.name: np.zeros(o.sizes(dims), dtype=_np(o.dtype)) for o in named}
        try:
            return bool(answers(inputs))
        except Exception:  # noqa: BLE001 - these dimensions are not different ones
            return False

    operands, all_dims = dimensions.settle(operands, len(calls), works, size=8)
    state.clear()
    shapes, why = _shapes(all_dims[0], operands, defaults, answers, runs)
    if not shapes:
        return {
            "refusals": [
                {"line": 0, "what": f"the kernel agrees with the reference on no small shape: {why}"}
            ]
        }
    results, failed = _results(
        operands,
        shapes,
        all_dims[0],
        lambda sizes: _eval_shapes(target.chip, build, defaults, operands, sizes),
    )
    if failed:
        return {
            "refusals": [{"line": 0, "what": f"the kernel's own answer is not the reference's: {failed}"}]
        }
    space, fixed = _evidence(knobs, defaults, shapes, results, runs)
    text = re.sub(
        r"SPACE = .*\nDEFAULTS = .*\n",
        f"SPACE = {space!r}\nDEFAULTS = { {k: defaults[k] for k in space}!r}\n",
        source,
        count=1,
    )
    for knob in knobs:
        if knob.name not in space:
            text = text.replace(f'params["{knob.name}"]', repr(knob.default))
    kinds = ["randn", "repeated"]
    return {
        "source": text, "space": {k: list(v) for k, v in space.items()},
        "defaults": {k: defaults[k] for k in space}, "fixed": fixed,
        "operands": [[o.name, o.dtype, list(o.shape), o.below] for o in operands],
        "results": results, "call": state["call"], "precision": state["precision"], "check": [s[0] for s in shapes],
        "kinds": kinds, "spread": 2, "independent": [], "dims": all_dims,
        "work": _work(reference, state["call"], operands, all_dims),
    }  # fmt: skip


def interpreted(
    chip: Any, build: Any, params: Mapping[str, Any], specs: Sequence[Any], inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The outputs of a ``build`` under the interpreter that gates use."""
    from tilewright.workers.runners.pallas_check import interpret
    from tilewright.workers.runners.pallas_trace import mesh_of

    with mesh_of({"kind": chip.device_kind, "cores": chip.cores}):
        tensors = [jax.ShapeDtypeStruct(shape, _np(dtype)) for _, shape, dtype in specs]
        closed = jax.jit(build(dict(params))).trace(*tensors).jaxpr
        settings = pltpu.InterpretParams(out_of_bounds_reads="raise", uninitialized_memory="nan")
        compiled = jax.jit(lambda *operands: interpret(closed, operands, settings))
        return [np.asarray(r) for r in compiled(*(inputs[name] for name, _, _ in specs))]


def _eval_shapes(
    chip: Any, build: Any, params: Mapping[str, Any], operands: Sequence[Operand], dims: Mapping[str, int]
) -> list[tuple[int, ...]]:
    tensors = [jax.ShapeDtypeStruct(o.sizes(dims), _np(o.dtype)) for o in operands]
    found = jax.eval_shape(build(dict(params)), *tensors)
    return [tuple(leaf.shape) for leaf in jax.tree_util.tree_leaves(found)]


def _reference_ways(call: Any, operands: Sequence[Operand], places: Sequence[Any]) -> list[str]:
    by_place = {p: o.name for o, p in zip(operands, places, strict=True)}
    positional = [by_place.get((n,), repr(v)) for n, v in enumerate(call.arguments)]
    keyword = [
        f"{k}={by_place.get((k,), repr(v))}" for k, v in call.keywords.items() if not isinstance(v, Literal)
    ]
    tensors = [o.name for o in operands]
    return list(dict.fromkeys(", ".join(w) for w in ([*positional, *keyword], positional, tensors)))


def _np(dtype: str) -> Any:
    return jnp.dtype(dtype)


def _shapes(
    dims: Mapping[str, int], operands: Sequence[Operand], defaults: Mapping[str, int], answers: Any, runs: Any
) -> tuple[list[Any], str]:
    """Small shapes on which the default is right: multiples of blocks, then the whole if it is small."""
    largest = max([128, *(v for v in defaults.values() if v <= 1024)])
    tries = [
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
            inputs = {o.name: draw(o, o.sizes(small), "randn", 2, rng) for o in operands}
            wanted = answers(inputs)
            outputs = runs(small, defaults, inputs)
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
    operands: Sequence[Operand], shapes: Sequence[Any], whole: Mapping[str, int], shapes_at: Any
) -> tuple[list[Any], str]:
    results = []
    unlike = {n: 4096 * (1 << place) for place, n in enumerate(whole)}
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
            readings = [judge.read(s[3][number], s[2][number].astype(np.float64)) for s in shapes]
            bound, why = judge.bar(readings, [*(o.dtype for o in operands), dtype], products=True)
            if bound is None:
                return [], f"result {number}: {why}"
            min_db, worst = bound.min_db, bound.worst
        results.append([f"o{number}", dtype, names, min_db, worst, number])
    return results, ""


def _evidence(
    knobs: Sequence[Knob],
    defaults: Mapping[str, int],
    shapes: Sequence[Any],
    results: Sequence[Any],
    runs: Any,
) -> tuple[dict[str, Any], list[Any]]:
    from tilewright.fitness.gates import failure, read_gates
    from tilewright.seeds.operator import BitExactGate, SnrGate

    began = time.monotonic()
    gates = [SnrGate(r[0], r[0], r[3], r[4]) if r[3] else BitExactGate(r[0], r[0], (r[0],)) for r in results]
    space: dict[str, Any] = {}
    fixed = []
    for knob in knobs:
        kept, tried = [knob.default], 0
        for value in sorted(knob.values, key=lambda v: abs(math.log2(v / knob.default))):
            if value == knob.default or time.monotonic() - began > EVIDENCE_SECONDS:
                continue
            small, inputs, wanted, _ = shapes[-1]
            tried += 1
            try:
                outputs = runs(small, {**defaults, knob.name: value}, inputs)
                named = {r[0]: o for r, o in zip(results, outputs, strict=False)}
                truth = {r[0]: {r[0]: as_result(w, r[1])} for r, w in zip(results, wanted, strict=False)}
                good = failure(read_gates(gates, named, truth, "randn"), gates) is None
            except Exception:  # noqa: BLE001 - a value that does not work is no knob's
                good = False
            if good:
                kept.append(value)
        if len(kept) > 1:
            space[knob.name] = tuple(sorted(kept))
        else:
            why = (
                "another value gives another answer, or none: it is part of the meaning"
                if tried
                else "no time to try other values"
            )
            fixed.append({"name": knob.name, "value": knob.default, "why": why})
    return space, fixed


def _work(
    reference: Any, call: str, operands: Sequence[Operand], all_dims: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Floating-point operations of matrix products, as XLA counts them in the reference."""
    found = {}
    for dims in all_dims:
        key = "x".join(str(n) for n in dims.values()) or "one"
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


if __name__ == "__main__":
    main()
