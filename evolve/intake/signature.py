"""A function's parameters as its file writes them, and the values that a call's text gives them."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.served_calls import TILEWRIGHT_DEFAULT, tilewright_text
from tilewright.workers.intake.calls.call_text import (
    Call,
    Literal,
    ObjectArgument,
    TensorArgument,
    accepted_keywords,
    parse,
)
from tilewright.workers.intake.calls.objects import MADE

_FORWARDED = {
    Parameter.POSITIONAL_ONLY: "{0}",
    Parameter.POSITIONAL_OR_KEYWORD: "{0}",
    Parameter.VAR_POSITIONAL: "*{0}",
    Parameter.KEYWORD_ONLY: "{0}={0}",
    Parameter.VAR_KEYWORD: "**{0}",
}
NO_OBJECTS: Mapping[str, Mapping[str, str]] = {}
_DTYPE = r"torch\.(float|bfloat|int|uint)\w+"


@dataclass(frozen=True)
class Signature:
    """``names``: the kind of each parameter, as ``inspect`` has it; ``hidden``: those whose default the file alone
    has."""

    text: str
    returns: str
    doc: str
    names: dict[str, Any]
    hidden: Sequence[str] = ()

    def forwarded(self) -> str:
        """The arguments of a call with the same ones: by name behind the first that may be left out, where it has one;
        an autograd Function's ``apply`` takes none by name."""
        shown, by_name = [], False
        places = list(self.names)
        varied = Parameter.VAR_POSITIONAL in self.names.values()
        if self.hidden and self.names[self.hidden[0]] is Parameter.POSITIONAL_ONLY and not varied:
            first = min(map(places.index, self.hidden))
            filled = f"*tilewright_filled(tilewright_original(SERVED), {', '.join(places[first:])})"
            return ", ".join([*places[:first], filled])
        for name, kind in self.names.items():
            by_name |= name in self.hidden
            if name not in self.hidden:
                named = by_name and kind is Parameter.POSITIONAL_OR_KEYWORD
                shown.append(_FORWARDED[Parameter.KEYWORD_ONLY if named else kind].format(name))
        left = ", ".join(f'"{n}": {n}' for n in self.hidden)
        return ", ".join([*shown, *([f"**tilewright_given({{{left}}})"] if left else [])])

    def settled(self, call: Call, objects: Mapping[str, Mapping[str, str]] = NO_OBJECTS) -> tuple[list[str], list[str]]:
        """A call's values by parameter as ``tilewright_text`` has them, and its tensors as expressions of them. Raises
        UserError where the function takes no such call. ``objects``: what some of its objects hold, as texts."""
        scope: dict[str, Any] = {"TILEWRIGHT_DEFAULT": TILEWRIGHT_DEFAULT, "torch": _Torch()}
        exec(f"def bound({self.text}):\n    return locals()", scope)
        try:
            keywords = accepted_keywords(scope["bound"], call.keywords)
            named = {k: _stand_in(v, objects) for k, v in keywords.items()}
            given = scope["bound"](*(_stand_in(v, objects) for v in call.arguments), **named)
        except TypeError as error:
            raise UserError(f"the function takes no such call: {error}.") from error
        texts = {id(tensor): text for name in self.names for tensor, text in _tensors(given[name], name)}
        tensors = [texts.get(id(tensor), "None") for tensor in call.tensors()]
        return [tilewright_text(given[name]) for name in self.names], tensors


class _SourceText(str):
    """A text that stands for a value."""

    __slots__ = ()  # an object with attributes is told apart by them (``tilewright_text``)
    __repr__ = str.__str__


class _Torch:
    """Stands for torch among defaults: its dtypes by name."""

    def __getattr__(self, name: str) -> _SourceText:
        return _SourceText(f"torch.{name}")


def _stand_in(value: Any, objects: Mapping[str, Mapping[str, str]] = NO_OBJECTS) -> Any:
    """An argument with texts in place of what is not at hand here; a tensor is its description."""
    if isinstance(value, Literal):
        return _SourceText("device" if "device" in value.text else re.sub(r'^named\("(.+)"\)$', r"\1", value.text))
    if isinstance(value, ObjectArgument):
        name = value.arguments[0].text if value.name == MADE else value.name
        made = type(name.removesuffix('")').rpartition(".")[2], (), {})()
        held = {key: parse(text).arguments[0] for key, text in objects.get(repr(value), {}).items()}
        vars(made).update({key: _stand_in(part) for key, part in (held or value.keywords).items()})
        return made
    if isinstance(value, dict):
        return {key: _stand_in(part) for key, part in value.items()}
    return [_stand_in(part) for part in value] if isinstance(value, tuple) else value


def _tensors(value: Any, text: str) -> Iterator[tuple[TensorArgument, str]]:
    if isinstance(value, TensorArgument):
        yield value, text
    elif hasattr(value, "__dict__"):
        for name, part in vars(value).items():
            yield from _tensors(part, f"{text}.{name}")
    elif isinstance(value, dict | list | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(part, f"{text}[{key!r}]")


def signature_of(
    path: Path, function: str, call: Call, own: Sequence[str] = (), leading: Sequence[str] = ()
) -> Signature:
    """The signature of a function of a file, of a Class's ``forward``, or of an autograd Function's ``apply``; of a
    function that the file does not define by a ``def``, ``own``, or as many parameters as a call has arguments.
    Keywords of the call that are ``own`` and not named, a layer's weights, are added. ``leading``: names that a
    decorator's function has for the first parameters."""
    nodes: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8-sig") if path.suffix == ".py" else "").body
    found: ast.AST | None = None
    parts, without_ctx = function.split("."), False
    for part in [*parts[:-1], "forward"] if parts[-1] == "apply" else parts:
        found = next((n for n in reversed(_definitions(nodes)) if n.name == part), None)
        nodes = getattr(found, "body", [])
        without_ctx |= any(n.name == "setup_context" for n in _definitions(nodes))
    if isinstance(found, ast.ClassDef):
        found = next((n for n in _definitions(nodes) if n.name == "forward"), None)
        parts.append("forward")
    if not isinstance(found, ast.FunctionDef):
        named = {text.partition("=")[0] for text in own}
        left = [name for name in call.keywords if name not in named]
        listed = ", ".join([*(own or (f"x{n}" for n in range(len(call.arguments)))), *["*"][: len(left)], *left])
        found = ast.parse(f"def f({listed}): pass").body[0]
        assert isinstance(found, ast.FunctionDef)
        parts = parts[:1]
    given = found.args
    static = any(ast.unparse(d) == "staticmethod" for d in found.decorator_list)
    bound = not static or (parts[-1] == "apply" and not without_ctx)
    if len(parts) > 1 and bound:
        del (given.posonlyargs or given.args)[0]
    given.defaults = [_default(d) for d in given.defaults]
    given.kw_defaults = [d and _default(d) for d in given.kw_defaults]
    listed_already = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    unnamed = len([name for name in leading if name not in listed_already and len(parts) == 1])
    given.posonlyargs, given.args = [*given.posonlyargs, *given.args[:unnamed]], given.args[unnamed:]
    weights = [name for name in call.keywords if name in own and name not in listed_already]
    given.kwonlyargs, given.kw_defaults = (
        [*given.kwonlyargs, *map(ast.arg, weights)],
        [*given.kw_defaults, *[None for _ in weights]],
    )
    names: dict[str, Any] = {a.arg: Parameter.POSITIONAL_ONLY for a in given.posonlyargs}
    plain = Parameter.POSITIONAL_ONLY if parts[-1] == "apply" else Parameter.POSITIONAL_OR_KEYWORD
    names |= {a.arg: plain for a in given.args}
    names |= {given.vararg.arg: Parameter.VAR_POSITIONAL} if given.vararg else {}
    names |= {a.arg: Parameter.KEYWORD_ONLY for a in given.kwonlyargs}
    names |= {given.kwarg.arg: Parameter.VAR_KEYWORD} if given.kwarg else {}
    pairs = [
        *zip([*given.posonlyargs, *given.args][::-1], given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    hidden = [a.arg for a, d in pairs if isinstance(d, ast.Name)]
    for argument in ast.walk(given):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            argument.annotation = ast.Constant(ast.unparse(argument.annotation))
    returns = f" -> {ast.unparse(found.returns)!r}" if found.returns is not None else ""
    return Signature(ast.unparse(given), returns, ast.get_docstring(found) or "", names, hidden)


def _definitions(nodes: Sequence[ast.stmt]) -> list[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes among statements, also below a condition."""
    return [
        n
        for s in nodes
        for n in (
            [s]
            if isinstance(s, ast.FunctionDef | ast.ClassDef)
            else ast.walk(s)
            if isinstance(s, ast.If | ast.Try)
            else []
        )
        if isinstance(n, ast.FunctionDef | ast.ClassDef)
    ]


def _default(node: ast.expr) -> ast.expr:
    """A constant or a dtype as it is, anything else as TILEWRIGHT_DEFAULT."""
    try:
        ast.literal_eval(node)
        return node
    except ValueError:
        plain = re.fullmatch(_DTYPE, ast.unparse(node))
        return node if plain else ast.Name("TILEWRIGHT_DEFAULT")
