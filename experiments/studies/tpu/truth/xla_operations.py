"""What XLA runs around the kernels of a compiled module, by bytes: for modules whose kernels are simulated alone."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?([\w.-]+) = (.+?) ([a-z][\w-]*)\((.*)$", re.MULTILINE)
_ARRAY = re.compile(r"\b(pred|bf16|f8e\w+|[fsuc]\d+)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.-]+)")
_COMPUTATION = re.compile(r"^%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_PRODUCT = re.compile(r" (?:convolution|dot)\(")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_FREE = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "after-all"])


@dataclass(frozen=True)
class Around:
    """One operation of XLA: its name, the bytes it reads and writes, each array once, and if it has matrix products."""

    name: str
    read: int
    written: int
    product: bool = False


class Uncountable(ValueError):
    """An operation whose bytes do not follow from its arrays. One line."""


def operations_around(hlo: str) -> list[Around]:
    """Operations of the entry computation of optimised HLO text, kernels left out. Raises Uncountable for a loop."""
    entry = hlo[hlo.index("\nENTRY ") :]
    multiplying = {name for name, body in _COMPUTATION.findall(hlo) if _PRODUCT.search(body)}
    sizes: dict[str, int] = {}
    found = []
    for name, kind, opcode, rest in _INSTRUCTION.findall(entry):
        sizes[name] = _bytes(kind)
        if (
            opcode in _FREE
            or opcode.endswith("-done")
            or (opcode == "custom-call" and "tpu_custom_call" in rest)
        ):
            continue
        if opcode in ("while", "conditional", "call"):
            raise Uncountable(f"XLA runs a {opcode} around the kernels")
        operands = _NAME.findall(rest.split("), ", 1)[0])
        product = opcode in ("convolution", "dot") or not multiplying.isdisjoint(_CALLS.findall(rest))
        taken = sum(sizes.get(operand, 0) for operand in operands)
        if opcode.endswith(
            "-update"
        ):  # of a copy that other cores make; its first operand is what was started
            taken -= sizes.get(operands[0], 0)
        if opcode.endswith(("-start", "-update")):
            found += [Around(name, taken, taken)] if taken else []
        else:
            # a slice or a gather reads no more than it writes
            part = opcode in ("slice", "dynamic-slice", "gather")
            read = min(taken, sizes[name]) if part else taken
            found.append(Around(name, read, sizes[name], product))
    return found


def _bytes(kind: str) -> int:
    return sum(
        math.prod(int(size) for size in shape.split(",") if size) * _width(dtype)
        for dtype, shape in _ARRAY.findall(kind)
    )


def _width(dtype: str) -> int:
    named: Mapping[str, int] = {"pred": 1, "bf16": 2}
    if dtype in named:
        return named[dtype]
    if dtype.startswith("f8"):
        return 1
    return max(1, int(dtype[1:]) // 8)
