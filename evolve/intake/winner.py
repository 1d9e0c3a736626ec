"""A tuned function: the winner as a callable, and as a plain module without tilewright in it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pprint
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import served_calls
from tilewright.evolve.intake.original_winner import original_module
from tilewright.evolve.intake.served_calls import TILEWRIGHT_DEFAULT, tilewright_text
from tilewright.fitness.original import data_of
from tilewright.workers.intake.calls.call_text import (
    Call,
    Literal,
    ObjectArgument,
    TensorArgument,
    parse,
    parts_of,
)
from tilewright.workers.intake.calls.objects import MADE
from tilewright.workers.intake.calls.sizes import size_code

if TYPE_CHECKING:
    from tilewright.api import RecordedCampaign

RESULTS = "tilewright_results"
ORIGINAL = "tilewright_tuned"
"""The user's own function with the sizes that won."""

DEFAULT = repr(TILEWRIGHT_DEFAULT)
_DECLARED = ("SPACE", "DEFAULTS", "CONSTRAINTS")
_MADE = ("empty", "zeros")


def plain_module(
    source: str, params: Mapping[str, Any], function: str, operands: Sequence[str], note: str
) -> str:
    """A kernel module as one that depends on torch and Triton (or JAX) alone, with ``function(*operands)``."""
    text, entry = _kernels(source, params, function, operands)
    given = ", ".join(operands)
    inputs = ", ".join(f'"{name}": {name}' for name in operands)
    called = (
        f"    return {'build(PARAMS)' if entry == 'build' else entry}({given})\n"
        if entry != "launch"
        else f"    results = launch({{{inputs}}}, PARAMS)\n    return results[0] if len(results) == 1 else results\n"
    )
    return f'"""{note}"""\n\n{text}\n\ndef {function}({given}):\n{called}'


def _kernels(
    source: str, params: Mapping[str, Any], function: str, operands: Sequence[str]
) -> tuple[str, str]:
    """A kernel module's functions with PARAMS, without what the search needs of it; and its entry point: ``launch``,
    ``build``, or ORIGINAL of the user's own file."""
    if (original := data_of(source)) is not None:
        text = original_module(original, params, function, operands, "").partition("\n\n")[2]
        head, _, tail = text.rpartition(f"\ndef {function}(")
        return f"{head}\ndef {ORIGINAL}({tail}", ORIGINAL
    body: list[ast.stmt] = []
    entry = "launch"
    for node in ast.parse(source).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in _DECLARED
        ):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.FunctionDef) and node.name in ("launch", "build"):
            entry = node.name
            if entry == "launch":
                node = _OnDevice(operands[0]).visit(node)
        body.append(node)
    _Renamed(function, f"{function}_kernel_call").rename(body)
    text = ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))
    return f"{text}\n\nPARAMS = {dict(params)!r}\n", entry


Parameters = dict[str, tuple[Any, str]]
"""By name: the kind, as ``inspect`` has it, and the text of the default, empty where there is none."""


@dataclass(frozen=True)
class Signature:
    """A function's parameters as its file writes them."""

    text: str
    returns: str
    doc: str
    names: Parameters

    def forwarded(self) -> str:
        """The arguments of a call with the same ones."""
        forms = {
            Parameter.POSITIONAL_ONLY: "{0}", Parameter.POSITIONAL_OR_KEYWORD: "{0}", Parameter.VAR_POSITIONAL: "*{0}",
            Parameter.KEYWORD_ONLY: "{0}={0}", Parameter.VAR_KEYWORD: "**{0}",
        }  # fmt: skip
        hidden = [n for n, (_, default) in self.names.items() if default == DEFAULT]
        shown = [forms[kind].format(n) for n, (kind, _) in self.names.items() if n not in hidden]
        left = ", ".join(f'"{n}": {n}' for n in hidden)
        return ", ".join([*shown, *([f"**tilewright_given({{{left}}})"] if hidden else [])])


def signature_of(path: Path, function: str, call: Call) -> Signature:
    """The signature of a function of a file, of a Class's ``forward``, or of an autograd Function's ``apply``; of a
    function that the file does not define by a ``def``, as many parameters as a call has arguments."""
    nodes: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    found: ast.AST | None = None
    parts, without_ctx = function.split("."), False
    for part in [*parts[:-1], "forward"] if parts[-1] == "apply" else parts:
        found = next((n for n in reversed(_definitions(nodes)) if n.name == part), None)
        nodes = getattr(found, "body", [])
        without_ctx |= any(n.name == "setup_context" for n in _definitions(nodes))
    if isinstance(found, ast.ClassDef):
        found = next((n for n in _definitions(nodes) if n.name == "forward"), None)
    if not isinstance(found, ast.FunctionDef):
        names = [f"x{n}" for n in range(len(call.arguments))]
        known: Parameters = dict.fromkeys(names, (Parameter.POSITIONAL_OR_KEYWORD, ""))
        known.update(dict.fromkeys(call.keywords, (Parameter.KEYWORD_ONLY, "")))
        star = ["*"] if call.keywords else []
        return Signature(", ".join([*names, *star, *call.keywords]), "", "", known)
    given = found.args
    first = [*given.posonlyargs, *given.args][:1]
    static = any(ast.unparse(d) == "staticmethod" for d in found.decorator_list)
    bound = not static or (parts[-1] == "apply" and not without_ctx)
    if (len(parts) > 1 and bound) or (first and first[0].arg == "self"):
        del (given.posonlyargs or given.args)[0]
    every = [*given.posonlyargs, *given.args]
    defaults = [""] * (len(every) - len(given.defaults)) + [_default(d) for d in given.defaults]
    given.defaults = [_as_code(d) for d in defaults if d]
    keyword = [_default(d) if d is not None else "" for d in given.kw_defaults]
    given.kw_defaults = [_as_code(d) if d else None for d in keyword]
    named: Parameters = {a.arg: (Parameter.POSITIONAL_ONLY, d) for a, d in zip(every, defaults, strict=True)}
    named.update({a.arg: (Parameter.POSITIONAL_OR_KEYWORD, named[a.arg][1]) for a in given.args})
    if given.vararg is not None:
        named[given.vararg.arg] = (Parameter.VAR_POSITIONAL, "()")
    named.update({a.arg: (Parameter.KEYWORD_ONLY, d) for a, d in zip(given.kwonlyargs, keyword, strict=True)})
    if given.kwarg is not None:
        named[given.kwarg.arg] = (Parameter.VAR_KEYWORD, "{}")
    for argument in ast.walk(given):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            argument.annotation = ast.Constant(ast.unparse(argument.annotation))
    returns = f" -> {ast.unparse(found.returns)!r}" if found.returns is not None else ""
    return Signature(ast.unparse(given), returns, ast.get_docstring(found) or "", named)


def _definitions(nodes: Sequence[ast.stmt]) -> list[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes among statements, also below a condition."""
    return [n for s in nodes for n in ([s] if isinstance(s, ast.FunctionDef | ast.ClassDef) else
            ast.walk(s) if isinstance(s, ast.If | ast.Try) else [])
            if isinstance(n, ast.FunctionDef | ast.ClassDef)]  # fmt: skip


def _default(node: ast.expr) -> str:
    """A default as text: of a constant or a dtype its own, of all else DEFAULT."""
    text = ast.unparse(node)
    try:
        return repr(ast.literal_eval(node))
    except ValueError:
        return text if re.fullmatch(r"torch\.(float|bfloat|int|uint)\w+", text) else DEFAULT


def _as_code(default: str) -> ast.expr:
    return ast.parse("TILEWRIGHT_DEFAULT" if default == DEFAULT else default, mode="eval").body


def _settled(signature: Signature, call: Call) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
    """A call's arguments by parameter as ``tilewright_text`` has them, and the places of its tensors. Raises UserError
    where the function takes no such call."""
    given: dict[str, Any] = {}
    places: list[tuple[Any, ...]] = []
    place: tuple[Any, ...]
    kinds = {n: kind for n, (kind, _) in signature.names.items()}
    plain = [n for n, k in kinds.items() if k in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    rest = next((n for n, k in kinds.items() if k is Parameter.VAR_POSITIONAL), "")
    other = next((n for n, k in kinds.items() if k is Parameter.VAR_KEYWORD), "")
    for n, value in enumerate(call.arguments):
        if n >= len(plain) and not rest:
            raise UserError(
                f"the call has {len(call.arguments)} arguments and the function takes {len(plain)}."
            )
        if n < len(plain):
            given[plain[n]], place = value, (plain[n],)
        else:
            given[rest], place = (*given.get(rest, ()), value), (rest, n - len(plain))
        places += _places(value, place)
    for key, value in call.keywords.items():
        if key in kinds or other:
            place = (key,) if key in kinds else (other, key)
            given.update({key: value} if key in kinds else {other: {**given.get(other, {}), key: value}})
            places += _places(value, place)
    for name, (_, default) in signature.names.items():
        if name not in given and default not in ("", DEFAULT) and not default.startswith("torch."):
            given[name] = ast.literal_eval(default)
    left = {name: default for name, (_, default) in signature.names.items() if name not in given}
    return {name: _text(given[name]) if name in given else left[name] for name in signature.names}, places


def _places(value: Any, place: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if isinstance(value, TensorArgument):
        return [place]
    return [p for n, v in parts_of(value) for p in _places(v, (*place, n))]


def _text(value: Any) -> str:
    if isinstance(value, TensorArgument):
        return "tensor"
    if isinstance(value, Literal):
        return "device" if "device" in value.text else re.sub(r'^named\("(.+)"\)$', r"\1", value.text)
    if isinstance(value, ObjectArgument):
        name = value.arguments[0].text if value.name == MADE else value.name
        held = {k: _Said(_text(v)) for k, v in value.keywords.items()}
        return f"{_last(name)}{tilewright_text(held)}"
    return tilewright_text({k: _Said(_text(v)) for k, v in value.items()} if isinstance(value, dict) else
                           [_Said(_text(v)) for v in value] if isinstance(value, tuple) else value)  # fmt: skip


def _last(name: str) -> str:
    """The name of a class without its module."""
    return name.replace('named("', "").rstrip('")').rpartition(".")[2]


class _Said(str):
    """A text that stands for a value."""

    __slots__ = ()  # an object with attributes is told apart by them (``tilewright_text``)
    __repr__ = str.__str__


def winner_module(
    source: str, params: Mapping[str, Any], request: Any, answer: Mapping[str, Any], note: str
) -> str:
    """The winner as a module of its own, with the original's signature: it serves the calls that were tuned, and gives
    every other one to the original."""
    names = [row[0] for row in answer["operands"]]
    kernels, entry = _kernels(source, params, request.name, names)
    calls = [parse(text) for text in request.calls]
    signature = signature_of(request.path, request.function, calls[0])
    settled = [_settled(signature, call) for call in calls]
    shapes = [[tensor.shape for tensor in call.tensors()] for call in calls]
    orders = answer.get("orders") or [()] * len(names)
    wrapper = answer.get("wrapper") or {}
    pair = wrapper.get("pair")
    own = [row for row in answer["operands"] if not (pair and row[0] in pair["given"])]
    root, module = _import_place(request.path)
    served = {
        "settled": [texts for texts, _ in settled],
        "operands": [
            (row[0], place, row[1], tuple(order), tuple(map(max, *of)) if len(of) > 1 else of[0])
            for row, place, order, of in zip(
                own, settled[0][1], orders[: len(own)], list(zip(*shapes, strict=True)), strict=True
            )
        ],
        "writes": bool(wrapper.get("writes")),
        "gradients": bool(pair),
        "original": (str(request.path.resolve()), root, module, request.function),
    }
    inner = ", ".join(row[0] for row in own)
    made = "".join(f"    {line}\n" for line in (*_gradients_made(answer, pair), *wrapper.get("made", ())))
    conditions = [*_sizes(own), *wrapper.get("conditions", ())]
    if not wrapper or wrapper["exact"]:
        known = [tuple(map(tuple, row)) for row in shapes]
        conditions.append(f"({''.join(f'tuple({row[0]}.shape), ' for row in own)}) in {known}")
    fits = "".join(f"        and {text}\n" for text in conditions)
    returned = "".join(f"    {name}.copy_({RESULTS}[{n}])\n" for name, n in wrapper.get("writes", {}).items())
    value = wrapper.get("returned") or f"{RESULTS}[0] if len({RESULTS}) == 1 else {RESULTS}"
    returned += f"    return {value if entry == 'launch' else RESULTS}\n"
    ways = {"launch": "launch(own, PARAMS)", "build": "build(PARAMS)(*own.values())"}
    run = "tilewright_paired(own)" if pair else ways.get(entry, f"{entry}(*own.values())")
    given = ", ".join(f'"{name}": {name}' for name in signature.names)
    doc = f"    {signature.doc!r}\n" if signature.doc else ""
    halves = _halves_text(kernels, pair, [row[0] for row in own]) if pair else ""
    runtime = Path(served_calls.__file__).read_text(encoding="utf-8").partition('"""\n\n')[2]
    return f'''"""{note}"""

{kernels}
{halves}
{runtime}

def tilewright_given(values):
    return {{k: v for k, v in values.items() if v is not TILEWRIGHT_DEFAULT}}


SERVED = {pprint.pformat(served, width=110, sort_dicts=False)}


def tilewright_fits({inner}):
{made}    return bool(
        True
{fits}    )


def tilewright_returned({RESULTS}, {inner}):
{returned}

def {request.name}({signature.text}){signature.returns}:
{doc}    own = tilewright_operands(SERVED, tilewright_fits, {{{given}}})
    if own is None:
        return tilewright_original(SERVED)({signature.forwarded()})
    return tilewright_returned({run}, **own)
'''


def _gradients_made(answer: Mapping[str, Any], pair: Mapping[str, Any] | None) -> Iterator[str]:
    """Assignments of tensors without memory in place of the gradients that a forward's conditions may name."""
    places = {
        size: f"{row[0]}.shape[{axis}]"
        for row in reversed(answer["operands"]) if pair and row[0] not in pair["given"]
        for axis, size in enumerate(row[2]) if isinstance(size, str) and size.isidentifier()
    }  # fmt: skip
    for row in answer["operands"]:
        if pair and row[0] in pair["given"]:
            sizes = "".join(f"{_code(size, places)}, " for size in row[2])
            yield f"{row[0]} = torch.empty(({sizes}), dtype=torch.{row[1]}, device='meta')"


def _code(size: Any, places: Mapping[str, str]) -> str:
    return re.sub(r"triton\.cdiv\((.+?), (\d+)\)", r"-(-(\1) // \2)", size_code(size, places)) or str(size)


def _halves_text(kernels: str, pair: Mapping[str, Any], operands: Sequence[str]) -> str:
    """``launch`` of a pair as its two halves, and the Function that joins them for torch's autograd. The first
    statement that takes a gradient begins the backward. Raises UserError where the text cannot be parted."""
    tree = ast.parse(kernels)
    launch = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "launch")
    given = tuple(pair["given"])
    begin = next(
        (
            n
            for n, s in enumerate(launch.body)
            for c in ast.walk(s)
            if isinstance(c, ast.Constant) and c.value in given
        ),
        len(launch.body),
    )
    first, rest = launch.body[:begin], launch.body[begin:]
    end = rest[-1] if rest else None
    if not isinstance(end, ast.Return) or not isinstance(end.value, ast.Tuple) or len(rest) < 2:
        raise UserError("the winner's launch cannot be parted into a forward and a backward.")
    bound = {
        n.id for s in first for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    results = [ast.unparse(part) for part in end.value.elts]
    numbers = [*pair["gradients"].values()]
    back = ast.parse(f"return ({''.join(f'{results[n]}, ' for n in numbers)})").body
    used = {n.id for s in (*rest[:-1], *back) for n in ast.walk(s) if isinstance(n, ast.Name)}
    kept = sorted(used & bound)
    forward = "\n".join(map(ast.unparse, first))
    backward = "\n".join(ast.unparse(_OnDevice(given[0], again=True).visit(s)) for s in (*rest[:-1], *back))
    outputs = "".join(f"{results[n]}, " for n in pair["outputs"])
    taken = "".join(f"{name}, " for name in kept)
    half_names = {"given": dict(pair["given"]), "gradients": dict(pair["gradients"])}
    once = (
        "        if getattr(ctx, 'ran', False):\n"
        "            raise RuntimeError('this backward overwrites what its forward kept, and can be run once')\n"
        "        ctx.ran = True\n"
    ) * bool(pair["once"])
    return f"""

GRADIENTS = {half_names!r}


def tilewright_forward(inputs, params):
{textwrap.indent(forward, "    ")}
    return ({outputs}), ({taken})


def tilewright_backward(inputs, params, kept):
    ({taken}) = kept
{textwrap.indent(backward, "    ")}


class TilewrightPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *operands):
        results, kept = tilewright_forward(dict(zip({list(operands)!r}, operands)), PARAMS)
        ctx.save_for_backward(*[value if isinstance(value, torch.Tensor) else None for value in kept])
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in kept]
        ctx.mark_non_differentiable(*[value for value in results if not value.is_floating_point()])
        ctx.outputs = [value.is_floating_point() for value in results]
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
{once}        kept = [other if value is None else value for value, other in zip(ctx.saved_tensors, ctx.others)]
        floats = [g.contiguous() for g, wanted in zip(gradients, ctx.outputs) if wanted]
        given = dict(zip({list(given)!r}, [floats[n] for n in {_float_places(pair)!r}]))
        found = tilewright_backward(given, PARAMS, kept)
        named = dict(zip({list(pair["gradients"])!r}, found))
        names = {list(operands)!r}
        return tuple(named.get(n) if need else None for n, need in zip(names, ctx.needs_input_grad))


def tilewright_paired(own):
    results = [None] * {max((*pair["outputs"], 0)) + 1}
    for number, value in zip({tuple(pair["outputs"])!r}, TilewrightPair.apply(*own.values())):
        results[number] = value
    return results
"""


def _float_places(pair: Mapping[str, Any]) -> list[int]:
    """For each given gradient its place among the float outputs, in the order of the outputs' numbers."""
    order = sorted(pair["given"].values())
    return [order.index(number) for number in pair["given"].values()]


def _sizes(operands: Sequence[Any]) -> list[str]:
    """Conditions on the sizes of operands that name dimensions: what is one dimension is of one size."""
    places: dict[str, str] = {}
    found = []
    axes = [(size, f"{row[0]}.shape[{axis}]") for row in operands for axis, size in enumerate(row[2])]
    for size, text in axes:
        if isinstance(size, str) and size.isidentifier():
            places.setdefault(size, text)
    for size, text in axes:
        code = _code(size, places)
        found += [f"{text} == {code}"] if code != text else []
    return found


def _import_place(path: Path) -> tuple[str, str]:
    """The folder from which a file's package is imported, and the module's name there."""
    parts, root = [path.stem], path.resolve().parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return str(root), ".".join(parts)


class _Renamed(ast.NodeTransformer):
    """Renames a function of the kernel module that has the name of the module's new entry point.

    A Pallas module keeps the user's own function. Two functions of one name would make the new one call itself.
    """

    def __init__(self, before: str, after: str) -> None:
        self._before, self._after = before, after

    def rename(self, body: list[ast.stmt]) -> None:
        if not any(isinstance(node, ast.FunctionDef) and node.name == self._before for node in body):
            return
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name == self._before:
                node.name = self._after
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self._before:
            node.id = self._after
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        return node if any(a.arg == self._before for a in given) else self.generic_visit(node)


class _OnDevice(ast.NodeTransformer):
    """Tensors are made where the first operand lies."""

    def __init__(self, operand: str, again: bool = False) -> None:
        self._operand, self._again = operand, again

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "torch"
            and function.attr in _MADE
        ):
            where = ast.parse(f'inputs["{self._operand}"].device', mode="eval").body
            if self._again:
                node.keywords = [k for k in node.keywords if k.arg != "device"]
            node.keywords.append(ast.keyword("device", where))
        return node


class Tuned:
    """The winner of a campaign as a function of the original's signature: what its module says, with the ``original``
    at hand."""

    def __init__(
        self, campaign: RecordedCampaign, original: Callable[..., Any] | None, module: Path, name: str
    ) -> None:
        self.campaign, self.original, self.module = campaign, original, module
        self._name = name
        self._function: Callable[..., Any] | None = None

    @property
    def source(self) -> str:
        """The winner's plain module."""
        return self.module.read_text(encoding="utf-8")

    @property
    def params(self) -> Mapping[str, Any]:
        """The winner's parameters."""
        winner = self.campaign.winner
        return dict(winner["params"]) if winner else {}

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row for each evaluation: see ``RecordedCampaign.history``."""
        return self.campaign.history

    @property
    def gain(self) -> float | None:
        """Rate of the winner over that of the seed."""
        return gain_of(self.campaign)

    def report(self, path: str | Path | None = None) -> Path:
        """The campaign's report as one HTML file."""
        return self.campaign.report(path)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._function is None:
            module = loaded_module(self.module)
            if self.original is not None:
                vars(module)["tilewright_original"] = lambda served: self.original
            self._function = getattr(module, self._name)
        return self._function(*arguments, **keywords)


def gain_of(campaign: RecordedCampaign) -> float | None:
    """Rate of a campaign's winner over that of its seed."""
    seeds = [row["fitness"] for row in campaign.history if row["mutation"] == "seed" and row["fitness"]]
    winner = campaign.winner
    return float(winner["fitness"] / seeds[0]) if seeds and winner else None


def loaded_module(path: Path) -> ModuleType:
    """A winner's module."""
    spec = importlib.util.spec_from_file_location(f"tilewright_tuned_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- from values to text ---------------------------------------------------------------------------


def place_of(function: Any) -> tuple[Path, str]:
    """File and name of a function. Raises UserError."""
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "apply" and isinstance(owner, type):
        return Path(inspect.getsourcefile(owner) or ""), f"{owner.__qualname__}.apply"
    while hasattr(function, "fn"):
        function = function.fn
    plain = inspect.unwrap(function)
    try:
        file = inspect.getsourcefile(plain)
    except TypeError:
        file = None
    if not file or not Path(file).is_file() or "<" in plain.__qualname__:
        raise UserError(
            f"{getattr(plain, '__qualname__', plain)!r} is not a function of a file; define it by name in one."
        )
    return Path(file), plain.__qualname__


def reference_text(reference: Any) -> str:
    """``module.name`` or ``FILE:name`` of a reference given as a function or as text. Raises UserError."""
    if isinstance(reference, str):
        return reference
    name = getattr(reference, "__name__", "")
    for module in (
        "torch",
        "torch.nn.functional",
        "torch.linalg",
        "torch.special",
        "jax.numpy",
        "jax.nn",
        "jax.lax",
    ):
        import sys

        loaded = sys.modules.get(module)
        if loaded is not None and getattr(loaded, name, None) is reference:
            return f"{module}.{name}"
    path, found = place_of(reference)
    return f"{path.resolve()}:{found}"


def gaps_of(name: str, value: Any) -> str:
    """What is said of a tensor that does not fill its memory; empty where it does."""
    if not hasattr(value, "is_contiguous") or value.is_contiguous():
        return ""
    order = sorted(range(len(value.shape)), key=lambda n: -value.stride(n))
    if value.permute(order).is_contiguous():
        return ""
    return (
        f"argument {name} has gaps (shape {list(value.shape)}, strides {list(value.stride())}): tuned as contiguous; "
        "such calls go to the original"
    )
