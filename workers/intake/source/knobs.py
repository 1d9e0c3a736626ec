"""Knobs of a module that is being made: what replaces a literal or a configuration, and which values to try."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4, 5)


@dataclass
class Knob:
    """A parameter of the search. ``atom``: what it replaces in expressions; ``source``: where it was found, in words.

    ``certain``: it tiles or schedules by its nature; any other must show it by evidence.
    """

    name: str
    default: int | bool
    values: tuple[int | bool, ...]
    atom: str
    source: str
    certain: bool
    configured: tuple[int | bool, ...] = ()
    """Its value in each configuration of the file's own tuner, in the file's order."""
    echo: bool = False
    """A literal outside compile-time arguments that has a knob's value, as of a grid that says 64 beside BLOCK=64: no
    knob, and to be tied to one if that is what it repeats."""


MOST_SIZE = 1 << 16
"""Largest number of a Pallas function that is taken for the size of a block."""


def is_size(value: Any) -> TypeGuard[int]:
    """Whether a number may be the size of a block: a limit of memory in bytes is none."""
    return type(value) is int and 8 <= value <= MOST_SIZE


def around(default: int) -> tuple[int, ...]:
    """Values of a literal that may be a knob: powers of two around one, else small steps."""
    if default & (default - 1) == 0:
        return tuple(
            sorted(
                {default, *(max(1, default >> n) for n in (1, 2, 3, 4)), *(default << n for n in (1, 2, 3))}
            )
        )
    return tuple(sorted({default, default * 2, max(1, default // 2), default * 4}))


def between(default: int, seen: Iterable[int]) -> set[int]:
    """Between and next to the values of configurations."""
    known = {v for v in (*seen, default) if v > 0}
    if not known or any(v & (v - 1) for v in known):
        return set()
    low, high = min(known), max(known)
    return {1 << n for n in range(max(0, int(math.log2(low)) - 1), int(math.log2(high)) + 2)}


def said_of(source: str, said: Mapping[str, str]) -> str:
    """A module with what stands for some of its parameters, by their names."""
    return re.sub(r"""params\[(["'])(\w+)\1\]""", lambda found: said.get(found[2], found[0]), source)


def constexprs(fn: Any) -> set[str]:
    return {n for n, a in getattr(fn, "__annotations__", {}).items() if "constexpr" in str(a)}
