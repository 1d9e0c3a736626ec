"""A call as text: ``f32[4096, 12672], dim=1``. Tensors by dtype and shape, all else as Python literals.

=========================================  ==========================================================================
``f32[8, 64]``, ``f32[]``                  a tensor, by position; ``x=f32[8]`` by keyword; ``[f32[8], f32[8]]`` a list
``bf16[128, 64].T``, ``.permute(1, 0)``    a view of memory of that shape
``f32[512] * 0.01``                        floats of that standard deviation
``f32[8] >= 0``, ``f32[8] in [0, 1]``      floats without signs; floats between two bounds
``f32[4, 64].softmax()``                   rows that add up to 1
``i64[512] < 32000``, ``i32[8] in [3, 9]`` integers from 0 to 31999; from 3 to 8
``i64[512].distinct() < 4096``             integers of which no two are equal
``i32[4].sums(1024)``                      integers that add up to 1024
``i64[9].offsets(1024)``                   where parts begin, from 0 to 1024; ``.offsets(1024, 256)``: none is longer
``package.module.Config(block=128)``       an object; its arguments may be tensors
=========================================  ==========================================================================
"""

import ast
import builtins
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tilewright.workers.intake.calls.objects import MADE, MODULES, scope_of

Kept = TypeVar("Kept")

_NAMED = (
    "f64=float64 f32=float32 f16=float16 bf16=bfloat16 fp32=float32 fp16=float16 half=float16 e4m3=float8_e4m3fn "
    "e5m2=float8_e5m2 f8=float8_e4m3fn i64=int64 i32=int32 i16=int16 i8=int8 u64=uint64 u32=uint32 u16=uint16 u8=uint8 "
    "bool=bool"
)
_LONG = dict(pair.split("=") for pair in _NAMED.split())
DTYPES: Mapping[str, str] = {**_LONG, **{name: name for name in _LONG.values()}}

SHORT = {
    long: short for short, long in reversed(list(DTYPES.items())) if short != long and short[:2] not in ("fp", "ha")
}
"""The usual short name of a dtype."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PYTHON = (frozenset(sys.stdlib_module_names) | frozenset(dir(builtins))) - {MADE}
_EMPTY_SHAPE = re.compile(r"(?<=\w)\[\s*\]")


OFFSETS, ENDS, DISTINCT, SOFTMAX, GIVEN = "offsets", "ends", "distinct", "softmax", "given"


PARTS = (OFFSETS, ENDS)


class BadCall(ValueError):
    """A call that cannot be read. The message is one sentence."""


@dataclass(frozen=True)
class TensorArgument:
    """A tensor of a call."""

    dtype: str
    """Its name in numpy."""
    shape: tuple[int, ...]
    """Sizes as they lie in memory."""
    below: int = 0
    """Exclusive upper bound of integers; 0: none was given."""
    order: tuple[int, ...] = ()
    """Order of the dimensions as the function sees them; empty: as they lie."""
    total: int = 0
    """Sum of the integers."""
    size: float = 1.0
    """Standard deviation of floats."""
    form: str = ""
    """Of integers: OFFSETS (0 to ``total``), ENDS (without the 0) or DISTINCT; of floats: SOFTMAX of rows."""
    longest: int = 0
    """Largest distance of two offsets; 0: any."""
    least: float | None = None
    """Least value; None: 0 of integers, no bound of floats."""
    most: float | None = None
    """Largest value of floats."""


@dataclass(frozen=True)
class Literal:
    """A value that torch or Python names, such as ``torch.float16``, as text."""

    text: str


@dataclass(frozen=True)
class ObjectArgument:
    """An object: what is called, by its name, with arguments and keywords."""

    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """Positional arguments and keywords: TensorArgument, plain values, Literal, ObjectArgument, or lists of them."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def tensors(self) -> Iterator[TensorArgument]:
        yield from _tensors((*self.arguments, *self.keywords.values()))


def _tensors(values: Sequence[Any]) -> Iterator[TensorArgument]:
    for value in values:
        if isinstance(value, TensorArgument):
            yield value
        else:
            yield from _tensors([part for _, part in parts_of(value)])


Place = tuple[Any, ...]


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """(index, key or keyword; value) of each part of a list, a dictionary or an object; none of anything else."""
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, ObjectArgument):
        return [*enumerate(value.arguments), *value.keywords.items()]
    return []


def python_text(value: Any, place: Place, tensors: Mapping[Place, str], listed: str = "[]") -> str:
    """An argument as Python text. ``tensors``: the texts of tensors by place; objects have the names of
    ``objects.scope_of``. ``listed``: the brackets of a list."""
    if place in tensors:
        return tensors[place]
    if isinstance(value, Literal):
        return value.text
    parts = [(key, python_text(part, (*place, key), tensors, listed)) for key, part in parts_of(value)]
    if isinstance(value, ObjectArgument):
        given = ", ".join(text if isinstance(key, int) else f"{key}={text}" for key, text in parts)
        return f"{object_text(value.name)}({given})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in parts) + "}"
    if isinstance(value, tuple | list):
        comma = "," if listed == "()" and len(parts) == 1 else ""
        return listed[0] + ", ".join(text for _, text in parts) + comma + listed[1]
    return repr(value)


def object_text(name: str) -> str:
    """A class or function as Python."""
    if name == MADE:
        return "made_of"
    return name if name.partition(".")[0] in MODULES else f'named("{name}")'


def python_value(value: Any, place: Place, tensors: Mapping[Place, Any], listed: type = list) -> Any:
    """An argument as a value, with ``tensors`` by place. Raises LookupError, and what an object's constructor
    raises."""
    if place in tensors:
        return tensors[place]
    if isinstance(value, Literal):
        return eval(value.text, scope_of(value.text))
    made = {key: python_value(part, (*place, key), tensors, listed) for key, part in parts_of(value)}
    if isinstance(value, ObjectArgument):
        text = object_text(value.name)
        given = [part for key, part in made.items() if isinstance(key, int)]
        return eval(text, scope_of(text))(*given, **{k: v for k, v in made.items() if isinstance(k, str)})
    if isinstance(value, dict):
        return made
    return listed(made.values()) if isinstance(value, tuple | list) else value


def parse(text: str) -> Call:
    """Read a call. Raises BadCall."""
    try:
        node = ast.parse(f"f({_EMPTY_SHAPE.sub('[()]', text)})", mode="eval").body
    except SyntaxError as error:
        raise BadCall(f'--args: {text!r} cannot be read; write for example "f32[4096, 1024], dim=1"') from error
    assert isinstance(node, ast.Call)
    keywords = {str(k.arg): _value(k.value) for k in node.keywords}
    return Call(tuple(_value(a) for a in node.args), keywords)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return _tensor(node, node.value.id)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt | ast.GtE | ast.In):
        return _tensor_with_bounds(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = _value(node.left), _value(node.right)
        tensor, size = sides if isinstance(sides[0], TensorArgument) else sides[::-1]
        floats = isinstance(tensor, TensorArgument) and "float" in tensor.dtype
        fits = floats and type(size) in (int, float) and 0 < size < math.inf
        _require(fits, node, "a tensor of floats times a number above 0")
        return replace(tensor, size=float(size))
    if isinstance(node, ast.Attribute) and node.attr == "T":
        tensor = _value(node.value)
        if isinstance(tensor, TensorArgument) and len(tensor.shape) == 2:
            return replace(tensor, order=(1, 0))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("device", "torch.device"):
        return Literal('torch.device("cuda")')
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUST:
        return _tensor_with_form(node, node.func)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(part) for part in node.elts)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        given = zip(node.keys, node.values, strict=True)
        return {key.value: _value(part) for key, part in given if isinstance(key, ast.Constant)}
    if isinstance(node, ast.Call) and _may_be_called(ast.unparse(node.func)):
        keywords = {str(k.arg): _value(k.value) for k in node.keywords}
        return ObjectArgument(ast.unparse(node.func), tuple(_value(a) for a in node.args), keywords)
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
        if "." in text and _may_be_called(text):
            return Literal(object_text(text))
        raise BadCall(f"--args: {text!r} is neither a tensor such as f32[8, 8] nor a plain value") from None


def _require(fits: bool, node: ast.expr, what: str) -> None:
    if not fits:
        raise BadCall(f"--args: {ast.unparse(node)} must be {what}")


def _may_be_called(name: str) -> bool:
    """Whether a name can be a class or function of the user's: none of Python's own library is called."""
    root = name.partition(".")[0]
    return _DOTTED.fullmatch(name) is not None and (root in MODULES or root not in _PYTHON)


def _tensor(node: ast.Subscript, dtype: str) -> TensorArgument:
    if dtype not in DTYPES:
        raise BadCall(f"--args: {dtype!r} is no dtype; known are {', '.join(DTYPES)}")
    try:
        sizes = ast.literal_eval(node.slice)
    except ValueError as error:
        raise BadCall(f"--args: the shape of {ast.unparse(node)} must be numbers") from error
    shape = sizes if isinstance(sizes, tuple) else (sizes,)
    if not all(type(n) is int and n > 0 for n in shape):
        raise BadCall(f"--args: the sizes of {ast.unparse(node)} must be whole numbers above 0")
    return TensorArgument(DTYPES[dtype], shape)


def _tensor_with_bounds(node: ast.Compare) -> TensorArgument:
    """``i64[8] < 100``, ``f32[8] >= 0``, ``i32[8] >= 3`` and ``f32[8] in [0, 1]``."""
    tensor, bound = _value(node.left), _value(node.comparators[0])
    if isinstance(node.ops[0], ast.Lt):
        fits = isinstance(tensor, TensorArgument) and type(bound) is int and bound > 0
        _require(fits, node, "a tensor below a whole number above 0")
        return replace(tensor, below=bound)
    between = isinstance(node.ops[0], ast.In)
    ends = bound if isinstance(bound, tuple) else (bound,)
    fits = isinstance(tensor, TensorArgument) and tensor.dtype != "bool" and len(ends) == 1 + between
    fits = fits and all(type(n) in (int, float) for n in ends)
    _require(fits, node, "a tensor, and a number or, after in, two: in [0, 1]")
    whole = "int" in tensor.dtype
    below = ends[1] if between else tensor.below
    rising = ends[0] < ends[-1] or not between
    fits = rising and (not whole or (all(type(n) is int for n in ends) and (not below or ends[0] < below)))
    _require(fits, node, "between a least value and one above it, of integers whole ones")
    if whole:
        return replace(tensor, least=ends[0], below=below)
    return replace(tensor, least=float(ends[0]), most=float(ends[1]) if between else None)


_MUST = {
    "permute": "a tensor with each dimension named once",
    "sums": "integers that add up to one whole number above 0",
    OFFSETS: "integers along one axis, from 0 to one whole number above 0",
    ENDS: "integers along one axis, up to one whole number above 0",
    DISTINCT: "integers, and distinct() takes nothing",
    SOFTMAX: "a tensor of floats, and softmax() takes nothing",
}
"""By method of a tensor, what the expression must be."""


def _tensor_with_form(node: ast.Call, called: ast.Attribute) -> TensorArgument:
    """A tensor with a method of ``_MUST``."""
    tensor, given = _value(called.value), [_value(a) for a in node.args]
    plain = isinstance(tensor, TensorArgument)
    integers, counts = plain and "int" in tensor.dtype, all(type(n) is int and n > 0 for n in given)
    rank = len(tensor.shape) if plain else 0
    fits = {
        "permute": plain and all(type(n) is int for n in given) and sorted(given) == list(range(rank)),
        "sums": plain and counts and len(given) == 1,
        **{f: integers and counts and rank == 1 and tensor.shape[0] > 1 and len(given) in (1, 2) for f in PARTS},
        DISTINCT: integers and not given,
        SOFTMAX: plain and not integers and rank > 0 and not given,
    }
    _require(fits[called.attr], node, _MUST[called.attr])
    if called.attr == "permute":
        return replace(tensor, order=tuple(given))
    if called.attr == "sums":
        return replace(tensor, total=given[0])
    total, longest = [*given, 0, 0][:2]
    return replace(tensor, form=called.attr, total=total or tensor.total, longest=longest)


def accepted_keywords(function: Callable[..., Any], keywords: Mapping[str, Kept]) -> dict[str, Kept]:
    """The keywords that the function accepts; the others are for the reference alone."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(keywords)
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {k: v for k, v in keywords.items() if every or k in parameters}
