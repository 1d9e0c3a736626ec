"""A tuned function: the winner as a callable, and as a plain module without tilewright in it."""

from __future__ import annotations

import ast
import inspect
import os
import pprint
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import served_calls
from tilewright.evolve.intake.original_winner import Renamed, original_text
from tilewright.evolve.intake.signature import signature_of
from tilewright.fitness.dialect_names import DEVICE_CODE
from tilewright.fitness.original import data_of
from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.calls.call_values import order_of
from tilewright.workers.intake.calls.sizes import size_code, size_of
from tilewright.workers.intake.child_program import loaded_module
from tilewright.workers.intake.source.load import import_place

if TYPE_CHECKING:
    from tilewright.api import RecordedCampaign

RESULTS = "tilewright_results"
ORIGINAL = "tilewright_tuned"
"""The user's own function with the sizes that won."""

_DECLARED = ("SPACE", "DEFAULTS", "CONSTRAINTS")
_CALLED = "\n\nfrom tilewright.library.cuda_call import called\n\n"
_MADE = ("empty", "zeros")
_NO_MEMORY = ("shape", "stride", "device", "dtype", "size", "numel", "dim")
_REFERENCES = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "jax.numpy", "jax.nn", "jax.lax")
"""Modules of which a reference may be a function."""


def _kernels(source: str, params: Mapping[str, Any], function: str, operands: Sequence[str]) -> tuple[str, str]:
    """A kernel module's functions with PARAMS, without what the search needs of it; and its entry point: ``launch``,
    ``build``, or ORIGINAL of the user's own file."""
    if (original := data_of(source)) is not None:
        return original_text(original, params, function, ORIGINAL, operands), ORIGINAL
    body: list[ast.stmt] = []
    entry, code = "launch", ""
    for node in ast.parse(source).body:
        declared = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _DECLARED
        if declared or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == DEVICE_CODE:
            code = f'{_CALLED}{DEVICE_CODE} = r"""{ast.literal_eval(node.value)}"""\n'
            continue
        if isinstance(node, ast.FunctionDef) and node.name in ("launch", "build"):
            entry = node.name
            if entry == "launch":
                node = _OnDevice(operands[0]).visit(node)
        body.append(node)
    made = Renamed(function, f"{function}_kernel_call").visit(ast.Module(body, []))
    text = f"{ast.unparse(ast.fix_missing_locations(made))}\n\nPARAMS = {dict(params)!r}\n{code}"
    return text, "cuda" if code else entry


def winner_module(
    source: str, params: Mapping[str, Any], request: Any, answer: Mapping[str, Any], note: str, folder: Path | None
) -> str:
    """The winner as a module of its own in ``folder`` (None: in any), with the original's signature: it serves the
    calls that were tuned, and gives every other one to the original."""
    names = [row[0] for row in answer["operands"]]
    kernels, entry = _kernels(source, params, request.name, names)
    calls = [parse(text) for text in answer.get("calls", request.calls)]
    weights, leading = answer.get("parameters", ()), answer.get("leading", ())
    signature = signature_of(request.path, request.function, calls[0], weights, leading)
    settled = [signature.settled(call, answer.get("objects") or {}) for call in calls]
    shapes = [[tensor.shape for tensor in call.tensors()] for call in calls]
    orders = answer.get("orders") or [()] * len(names)
    wrapper = answer.get("wrapper") or {}
    pair = wrapper.get("pair")
    own = [row for row in answer["operands"] if not (pair and row[0] in pair["given"])]
    python, path = request.path.suffix == ".py", request.path.resolve()
    root, parts = import_place(path) if python else (path.parent, [path.stem])
    module = ".".join(parts)
    places = [os.path.relpath(place, folder.resolve()) if folder else str(place) for place in (path, root)]
    served = {
        "settled": [texts for texts, _ in settled],
        "operands": [
            (row[1], tuple(map(max, *of)) if len(of) > 1 else of[0])
            for row, of in zip(own, list(zip(*shapes, strict=True))[: len(own)], strict=True)
        ],
        "writes": bool(wrapper.get("writes")),
        "gradients": (
            bool(pair),
            bool(wrapper.get("asks_gradients"))
            or "requires_grad" in request.path.read_text(encoding="utf-8", errors="replace"),
        ),
        "globals": _modules_values(request.path, module, answer.get("settings") or {}),
        "jax": entry not in ("launch", "cuda"),
        "original": (*places, module, request.function),
        "winner": request.name,
    }
    turned = [f".permute({[list(order).index(n) for n in range(len(order))]})" * bool(order) for order in orders]
    operand_lines = "".join(
        f"        {row[0]!r}: {text}{turn},\n" for row, text, turn in zip(own, settled[0][1], turned, strict=False)
    )
    inner = ", ".join(row[0] for row in own)
    gradients = _gradients_made(own, [row for row in answer["operands"] if row not in own])
    lines = [] if gradients is None else [*gradients, *wrapper.get("made", ())]
    made = "".join(f"    {line}\n" for line in lines)
    conditions = _sizes(own) if gradients is None else [*_sizes(own), *wrapper.get("conditions", ())]
    if not wrapper or wrapper["exact"] or gradients is None:
        known = [tuple(map(tuple, row)) for row in shapes]
        conditions.append(f"({''.join(f'tuple({row[0]}.shape), ' for row in own)}) in {known}")
    fits = "".join(f"        and {text}\n" for text in conditions)
    returned = "".join(f"    {name}.copy_({RESULTS}[{n}])\n" for name, n in wrapper.get("writes", {}).items())
    value = wrapper.get("returned") or f"{RESULTS}[0] if len({RESULTS}) == 1 else {RESULTS}"
    kernels = f"import math\n\n{kernels}" if "math." in " ".join((value, *lines, *conditions)) else kernels
    returned += f"    return {value}\n"
    if entry == "cuda":
        sizes = [lambda row, d=d: tuple(size_of(n, d) for n in row[2]) for d in answer["dims"]]
        rows = {tuple(map(of, own)): [(*row[:2], of(row)) for row in answer["results"]] for of in sizes}
        kernels += f"RESULTS = {rows!r}\nPLANS = {{}}\n"
    start = f"{entry}_kernel_call" if entry == request.name else entry  # two of one name
    ways = {"launch": f"{start}(tilewright_own, PARAMS)", "cuda": "called(globals(), tilewright_own)"}
    way = "tilewright_paired(tilewright_own)" if pair else ways.get(entry)
    run = f"tilewright_returned({way}, **tilewright_own)"
    given = ", ".join(signature.names)
    original = f"tilewright_original(SERVED)({signature.forwarded()})"
    if served["jax"]:
        called = f"{f'{start}(PARAMS)' if entry == 'build' else entry}(*tilewright_taken(*given).values())"
        both = f"lambda *given: {called}, lambda {given}: {original}"
        run = f"tilewright_differentiable(jax, tilewright_own, {both}, ({given},))"
    doc = f"    {signature.doc!r}\n" if signature.doc else ""
    owner = request.function.rpartition(".")[0]
    halves = _halves_text(kernels, start, pair, [row[0] for row in own], owner) if pair else ""
    runtime = Path(served_calls.__file__).read_text(encoding="utf-8").partition('"""\n\n')[2]
    switches = (answer.get("settings") or {}).get("switches", {})
    asked, was = "".join(f"{text}, " for text in switches), tuple(switches.values())
    return f'''"""{note}"""

{kernels}
{halves}
{runtime}

SERVED = {pprint.pformat(served, width=110, sort_dicts=False)}


def tilewright_fits({inner}):
{made}    return bool(
        True
{fits}    )


def tilewright_taken({given}):
    return {{
{operand_lines}    }}


SERVED.update(taken=tilewright_taken, fits=tilewright_fits, known={{}}, read=lambda: ({asked}), was={was!r})


def tilewright_returned({RESULTS}, {inner}):
{returned}

def {request.name}({signature.text}){signature.returns}:
{doc}    tilewright_own = tilewright_operands(SERVED, {given})
    if tilewright_own is None:
        return {original}
    return {run}
'''


def _modules_values(path: Path, module: str, settings: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Names by which a module may be loaded, the end of its file's path, and what the function read of its values. The
    function's own file may be a program, or what ``tilewright_imported`` loads; files may lie elsewhere by then."""
    own, names = str(path.resolve()), (module, "__main__", f"{module}_original")
    return [
        (names if file == own else (name,), f"/{Path(file).name}", tuple(values), tuple(values.values()))
        for name, file, values in settings.get("globals", ())
    ]


def _places(operands: Sequence[Any]) -> dict[str, str]:
    """Where the size of each dimension stands among operands, the first place of it."""
    return {
        size: f"{row[0]}.shape[{axis}]"
        for row in reversed(operands)
        for axis, size in reversed([*enumerate(row[2])])
        if isinstance(size, str) and size.isidentifier()
    }


def _gradients_made(own: Sequence[Any], gradients: Sequence[Any]) -> list[str] | None:
    """Assignments of tensors without memory in place of the gradients that a forward's conditions may name; None where
    a size of one is no operand's."""
    places, found = _places(own), []
    for row in gradients:
        sizes = [_code(size, places) for size in row[2]]
        if any(text.isidentifier() for text in sizes):
            return None
        shape = "".join(f"{text}, " for text in sizes)
        found.append(f"{row[0]} = torch.empty(({shape}), dtype=torch.{row[1]}, device='meta')")
    return found


def _code(size: Any, places: Mapping[str, str]) -> str:
    return re.sub(r"triton\.cdiv\((.+?), (\d+)\)", r"-(-(\1) // \2)", size_code(size, places)) or str(size)


def _halves_text(kernels: str, start: str, pair: Mapping[str, Any], operands: Sequence[str], owner: str) -> str:
    """A pair's entry point ``start`` as two halves, and the Function that joins them for torch's autograd. The first
    statement that takes a gradient begins the backward. ``owner``: the original's class, of which torch's messages
    speak. Raises UserError where the text cannot be parted."""
    tree = ast.parse(kernels)
    launch = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == start)
    given = tuple(pair["given"])
    takes = [any(isinstance(c, ast.Constant) and c.value in given for c in ast.walk(s)) for s in launch.body]
    begin = [*takes, True].index(True)
    first, rest = launch.body[:begin], launch.body[begin:]
    end = rest[-1] if rest else None
    if not isinstance(end, ast.Return) or not isinstance(end.value, ast.Tuple) or len(rest) < 2:
        raise UserError("the winner's launch cannot be parted into a forward and a backward.")
    bound = {n.id for s in first for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    results = [ast.unparse(part) for part in end.value.elts]
    numbers = [*pair["gradients"].values()]
    back = ast.parse(f"return ({''.join(f'{results[n]}, ' for n in numbers)})").body
    below = [n for s in (*rest[:-1], *back) for n in ast.walk(s)]
    used = {n.id for n in below if isinstance(n, ast.Name)}
    kept = sorted(used & bound)
    asked = {id(n.value) for n in below if isinstance(n, ast.Attribute) and n.attr in _NO_MEMORY}
    read = {n.id for n in below if isinstance(n, ast.Name) and id(n) not in asked}
    forward = "\n".join(map(ast.unparse, first))
    backward = "\n".join(ast.unparse(_OnDevice(given[0]).visit(s)) for s in (*rest[:-1], *back))
    outputs = "".join(f"{results[n]}, " for n in pair["outputs"])
    kept_names = "".join(f"{name}, " for name in kept)
    held = "".join(f"{n}, " if n in read else f"torch.empty_like({n}, device='meta'), " for n in kept)
    order = sorted(pair["given"].values())
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
    return ({outputs}), ({held})


def tilewright_backward(inputs, params, kept):
    ({kept_names}) = kept
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
        given = dict(zip({list(given)!r}, [floats[n] for n in {[order.index(n) for n in pair["given"].values()]!r}]))
        found = tilewright_backward(given, PARAMS, kept)
        named = dict(zip({list(pair["gradients"])!r}, found))
        names = {list(operands)!r}
        return tuple(named.get(n) if need else None for n, need in zip(names, ctx.needs_input_grad))


TilewrightPair._backward_cls.__name__ = "{owner}Backward"


def tilewright_paired(own):
    results = [None] * {max((*pair["outputs"], 0)) + 1}
    for number, value in zip({tuple(pair["outputs"])!r}, TilewrightPair.apply(*own.values())):
        results[number] = value
    return results
"""


def _sizes(operands: Sequence[Any]) -> list[str]:
    """Conditions on the sizes of operands that name dimensions: what is one dimension is of one size."""
    places, found = _places(operands), []
    axes = [(size, f"{row[0]}.shape[{axis}]") for row in operands for axis, size in enumerate(row[2])]
    for size, text in axes:
        code = _code(size, places)
        found += [f"{text} == {code}"] if code != text else []
    return found


class _OnDevice(ast.NodeTransformer):
    """Tensors are made where the first operand lies, and a grid is divided by Python, which is quicker."""

    def __init__(self, operand: str) -> None:
        self._operand = operand

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if called == "triton.cdiv":
            return ast.parse("-(-({}) // ({}))".format(*map(ast.unparse, node.args)), mode="eval").body
        if called in (f"torch.{name}" for name in _MADE):
            where = ast.parse(f'inputs["{self._operand}"].device', mode="eval").body
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

    def __repr__(self) -> str:
        gain = f", ×{self.gain:.2f} over the seed" if self.gain else ""
        return f"<{self._name} of campaign {self.campaign.id}{gain}, in {self.module}>"

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
    for module in _REFERENCES:
        if getattr(sys.modules.get(module), name, None) is reference:
            return f"{module}.{name}"
    path, found = place_of(reference)
    return f"{path.resolve()}:{found}"


def gaps_of(name: str, value: Any) -> str:
    """What is said of a tensor that does not fill its memory; empty where it does."""
    if not hasattr(value, "is_contiguous") or value.permute(order_of(value)).is_contiguous():
        return ""
    return (
        f"argument {name} has gaps (shape {list(value.shape)}, strides {list(value.stride())}): tuned as contiguous; "
        "such calls go to the original"
    )
