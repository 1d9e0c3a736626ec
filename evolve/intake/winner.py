"""A tuned function: the winner as a callable, and as a plain module without tilewright in it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.original_winner import original_module
from tilewright.fitness.original import data_of
from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.calls.call_values import value_text

if TYPE_CHECKING:
    from tilewright.api import RecordedCampaign

_DECLARED = ("SPACE", "DEFAULTS", "CONSTRAINTS")
_MADE = ("empty", "zeros")


def plain_module(
    source: str, params: Mapping[str, Any], function: str, operands: Sequence[str], note: str
) -> str:
    """A kernel module as one that depends on torch and Triton (or JAX) alone, with ``function(*operands)``."""
    if (original := data_of(source)) is not None:
        return original_module(original, params, function, operands, note)
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    entry = "launch"
    for node in tree.body:
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
    given = ", ".join(operands)
    if entry == "build":
        called = f"    return build(PARAMS)({given})\n"
    else:
        inputs = ", ".join(f'"{name}": {name}' for name in operands)
        called = (
            f"    results = launch({{{inputs}}}, PARAMS)\n"
            "    return results[0] if len(results) == 1 else results\n"
        )
    return f'"""{note}"""\n\n{text}\n\nPARAMS = {dict(params)!r}\n\n\ndef {function}({given}):\n{called}'


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

    def __init__(self, operand: str) -> None:
        self._operand = operand

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
            node.keywords.append(ast.keyword("device", where))
        return node


class Tuned:
    """The winner of a campaign as a function of the original's signature.

    Calls whose tensors have other dtypes or ranks than those it was tuned for, or are larger along some axis, or whose
    other arguments are none of those it was tuned with, go to the original: its wrapper may do something else there.
    """

    def __init__(
        self, campaign: RecordedCampaign, original: Callable[..., Any] | None, module: Path, name: str,
        operands: Sequence[tuple[str, str, int, Sequence[int]]], calls: Sequence[str],
    ) -> None:  # fmt: skip
        self.campaign, self.original, self.module = campaign, original, module
        self._name, self._operands = name, list(operands)
        self._function: Callable[..., Any] | None = None
        made = [parse(text) for text in calls]
        self._settled = [plain_arguments(original, call.arguments, call.keywords) for call in made]
        shapes = zip(*([tensor.shape for tensor in call.tensors()] for call in made), strict=True)
        self._largest = [tuple(map(max, *of)) if len(of) > 1 else of[0] for of in shapes]

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
        seeds = [row["fitness"] for row in self.history if row["mutation"] == "seed" and row["fitness"]]
        winner = self.campaign.winner
        return float(winner["fitness"] / seeds[0]) if seeds and winner else None

    def report(self, path: str | Path | None = None) -> Path:
        """The campaign's report as one HTML file."""
        return self.campaign.report(path)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        named = self._named(arguments, keywords)
        if named is None:
            if self.original is None:
                raise UserError(
                    f"{self._name}: tuned for other dtypes, ranks or options, and there is no original to call."
                )
            return self.original(*arguments, **keywords)
        return self._loaded()(**named)

    def _named(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any] | None:
        tensors = list(_tensors((*arguments, *keywords.values())))
        if len(tensors) != len(self._operands):
            return None
        if plain_arguments(self.original, arguments, keywords) not in self._settled:
            return None
        named = {}
        for tensor, (name, dtype, rank, order), largest in zip(
            tensors, self._operands, self._largest, strict=True
        ):
            if order and hasattr(tensor, "permute"):
                tensor = tensor.permute([order.index(n) for n in range(len(order))])
            strided = hasattr(tensor, "is_contiguous") and not tensor.is_contiguous()
            if str(tensor.dtype).rpartition(".")[2] != dtype or len(tensor.shape) != rank or strided:
                return None
            if any(size > most for size, most in zip(tensor.shape, largest, strict=True)):
                return None
            named[name] = tensor
        return named

    def _loaded(self) -> Callable[..., Any]:
        if self._function is None:
            spec = importlib.util.spec_from_file_location(f"tilewright_tuned_{self._name}", self.module)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self._function = getattr(module, self._name)
        return self._function


def plain_arguments(
    function: Callable[..., Any] | None, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, str]:
    """Arguments that are no tensors by their names, as text; those left out with their defaults."""
    try:
        signature = inspect.signature(function) if function is not None else None
    except (TypeError, ValueError):
        signature = None
    named: dict[str, Any] = {f"x{n}": value for n, value in enumerate(arguments)} | dict(keywords)
    if signature is not None:
        parameters = signature.parameters.values()
        taken = {k: v for k, v in keywords.items()
                 if k in signature.parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)}  # fmt: skip
        try:
            bound = signature.bind_partial(*arguments, **taken)
        except TypeError:
            return {"": "no such call"}
        bound.apply_defaults()
        named = dict(bound.arguments)
    return {k: value_text(v) for k, v in named.items() if not _is_tensor(v)}


def _is_tensor(value: Any) -> bool:
    return next(_tensors((value,)), None) is not None


def _tensors(values: Sequence[Any]) -> Iterator[Any]:
    """Tensors among values, also in lists of them, in order."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _tensors(value)
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            yield value


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
