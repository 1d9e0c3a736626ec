"""A call as text: ``f32[4096, 12672], dim=1``. Tensors by dtype and shape, all else as Python literals.

``i64[512] < 32000`` are integers from 0 on, ``i32[4].sums(1024)`` such that add up, ``i64[9].offsets(1024)`` where
parts begin, from 0 to 1024 (``.offsets(1024, 256)``: none longer than 256), ``i64[512].distinct() < 4096`` integers of
which no two are alike, ``f32[512] * 0.01`` floats of that size; ``bf16[128, 64].T`` and
``bf16[2, 8, 64].permute(1, 0, 2)`` are views of memory of that shape; ``f32[]`` has no dimensions; ``x=f32[8]`` is by
keyword; ``[f32[8], f32[8]]`` a list of tensors.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

DTYPES: Mapping[str, str] = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp16": "float16",
    "half": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "f8": "float8_e4m3fn", "i64": "int64",
    "i32": "int32", "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
    "bool": "bool",
    **{n: n for n in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32",
                      "int16", "int8", "uint64", "uint32", "uint16", "uint8")},
}  # fmt: skip


_EMPTY_SHAPE = re.compile(r"(?<=\w)\[\s*\]")


OFFSETS, DISTINCT = "offsets", "distinct"


class BadCall(ValueError):
    """A call that cannot be read. The message is one sentence."""


@dataclass(frozen=True)
class TensorArgument:
    """A tensor: numpy's name of its dtype, sizes in memory, integers' exclusive upper bound, and the order of its
    dimensions as the function sees them (empty: as they lie)."""

    dtype: str
    shape: tuple[int, ...]
    below: int = 0
    order: tuple[int, ...] = ()
    total: int = 0
    """What integers add up to."""

    size: float = 1.0
    """Of floats, their standard deviation."""

    form: str = ""
    """Of integers: OFFSETS, from 0 to ``total``, or DISTINCT."""

    longest: int = 0
    """Of offsets, the most between two of them; 0: any."""


@dataclass(frozen=True)
class Literal:
    """A value that torch or Python names, such as ``torch.float16``, as text."""

    text: str


@dataclass(frozen=True)
class Call:
    """Positional arguments and keywords: TensorArgument, plain values, Literal, or lists of them."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def tensors(self) -> Iterator[TensorArgument]:
        yield from _tensors((*self.arguments, *self.keywords.values()))


def _tensors(values: Sequence[Any]) -> Iterator[TensorArgument]:
    for value in values:
        if isinstance(value, TensorArgument):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def parse(text: str) -> Call:
    """Read a call. Raises BadCall."""
    try:
        node = ast.parse(f"f({_EMPTY_SHAPE.sub('[()]', text)})", mode="eval").body
    except SyntaxError as error:
        raise BadCall(
            f'--args: {text!r} cannot be read; write for example "f32[4096, 1024], dim=1"'
        ) from error
    assert isinstance(node, ast.Call)
    keywords = {str(k.arg): _value(k.value) for k in node.keywords}
    return Call(tuple(_value(a) for a in node.args), keywords)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        name = node.value.id
        if name not in DTYPES:
            raise BadCall(f"--args: {name!r} is no dtype; known are {', '.join(DTYPES)}")
        try:
            sizes = ast.literal_eval(node.slice)
        except ValueError as error:
            raise BadCall(f"--args: the shape of {ast.unparse(node)} must be numbers") from error
        shape = sizes if isinstance(sizes, tuple) else (sizes,)
        if not all(type(n) is int and n > 0 for n in shape):
            raise BadCall(f"--args: the sizes of {ast.unparse(node)} must be whole numbers above 0")
        return TensorArgument(DTYPES[name], shape)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt) and len(node.ops) == 1:
        tensor, bound = _value(node.left), _value(node.comparators[0])
        if not isinstance(tensor, TensorArgument) or type(bound) is not int or bound < 1:
            raise BadCall(f"--args: {ast.unparse(node)} must be a tensor below a whole number above 0")
        return replace(tensor, below=bound)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = _value(node.left), _value(node.right)
        tensor, size = sides if isinstance(sides[0], TensorArgument) else sides[::-1]
        floats = isinstance(tensor, TensorArgument) and "float" in tensor.dtype
        if (
            not floats
            or isinstance(size, bool)
            or not isinstance(size, int | float)
            or not 0 < size < math.inf
        ):
            raise BadCall(f"--args: {ast.unparse(node)} must be a tensor of floats times a number above 0")
        return replace(tensor, size=float(size))
    if isinstance(node, ast.Attribute) and node.attr == "T":
        tensor = _value(node.value)
        if isinstance(tensor, TensorArgument) and len(tensor.shape) == 2:
            return replace(tensor, order=(1, 0))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "permute":
        tensor, order = _value(node.func.value), tuple(_value(a) for a in node.args)
        if not isinstance(tensor, TensorArgument) or sorted(order) != list(range(len(tensor.shape))):
            raise BadCall(f"--args: {ast.unparse(node)} must name each dimension of a tensor once")
        return replace(tensor, order=order)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sums":
        tensor, total = _value(node.func.value), [_value(a) for a in node.args]
        if (
            not isinstance(tensor, TensorArgument)
            or len(total) != 1
            or type(total[0]) is not int
            or total[0] < 1
        ):
            raise BadCall(
                f"--args: {ast.unparse(node)} must be integers that add up to one whole number above 0"
            )
        return replace(tensor, total=total[0])
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in (OFFSETS, DISTINCT)
    ):
        return _formed(node, node.func)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("device", "torch.device"):
        return Literal('torch.device("cuda")')
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(part) for part in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
        if text.startswith(("torch.", "jnp.", "jax.")) and text.replace(".", "").replace("_", "").isalnum():
            return Literal(text)
        raise BadCall(f"--args: {text!r} is neither a tensor such as f32[8, 8] nor a plain value") from None


def _formed(node: ast.Call, called: ast.Attribute) -> TensorArgument:
    """``i64[9].offsets(1024)`` and ``i64[8].distinct()``."""
    tensor, given = _value(called.value), [_value(a) for a in node.args]
    integers = isinstance(tensor, TensorArgument) and "int" in tensor.dtype
    if called.attr == DISTINCT:
        if not integers or given:
            raise BadCall(
                f"--args: {ast.unparse(node)} must be a tensor of integers, and distinct() takes nothing"
            )
        return replace(tensor, form=DISTINCT)
    if (
        not integers
        or len(tensor.shape) != 1
        or tensor.shape[0] < 2
        or len(given) not in (1, 2)
        or not all(type(n) is int and n > 0 for n in given)
    ):
        raise BadCall(
            f"--args: {ast.unparse(node)} must be integers along one axis, from 0 to one whole number above 0"
        )
    return replace(tensor, form=OFFSETS, total=given[0], longest=given[1] if len(given) == 2 else 0)
