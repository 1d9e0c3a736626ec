"""Numbers that a launch passes to a kernel, and the error of a launch that no plan can hold."""

from __future__ import annotations

import struct
from typing import Any

from .plans.format import Scalar

_NUMBERS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
"""Kinds of numbers in a kernel's signature to the ``struct`` format of their bytes."""

KINDS = (*_NUMBERS, "bf16")


class NotRecorded(RuntimeError):
    """A launch that is no plan: the message says what it does that a plan cannot hold, and what to do instead."""


def scalar(kind: str, value: Any) -> Scalar:
    """A number as the kernel's signature wants it. Raises NotRecorded."""
    try:
        packed = struct.pack("<f", value)[2:] if kind == "bf16" else struct.pack("<" + _NUMBERS[kind], value)
    except (KeyError, struct.error, OverflowError, TypeError) as error:
        raise NotRecorded(f"an argument of type {kind} cannot hold what launch passes: {error}") from error
    return Scalar(len(packed), int.from_bytes(packed, "little"))
