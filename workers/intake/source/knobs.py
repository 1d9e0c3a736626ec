"""Parameters of the search that the intake finds: what each replaces in the user's text, and which values to try."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4, 5)

MEANING = "another value gives another answer: it is part of the meaning"
MEANT = "it selects a branch by equality"
IDLE = "other values change nothing on these shapes"
ALONE = "no other value fits every checked shape"
"""Why a number is not a parameter of the search."""

LANES, MOST_SIZE = 128, 1 << 16
"""Lanes of a TPU's vectors; the largest number of a Pallas function that is taken for the size of a block."""


@dataclass
class Knob:
    """A parameter of the search. ``atom``: what it replaces in expressions; ``source``: where it was found, in words.

    ``certain``: it tiles or schedules by its nature; any other must show it by evidence.
    """

    name: str
    default: int
    values: tuple[int, ...]
    source: str
    atom: str = ""
    certain: bool = False
    configured: tuple[int, ...] = ()
    """Its value in each configuration of the file's own tuner, in the file's order."""
    echo: bool = False
    """A number outside compile-time arguments that has a knob's value, as of a grid that says 64 beside BLOCK=64: no
    knob, and to be tied to one if that is what it repeats."""
    parts: tuple[int, ...] = ()
    """Further values, to be tried after the others: whole lanes that divide a size of a call."""
    tiles: bool = True
    """Whether a kernel makes tiles of it: any other number, as of a window, has to give the same answer as 1 does."""


def is_size(value: object) -> TypeGuard[int]:
    """Whether a number may be the size of a block: a limit of memory in bytes is none."""
    return type(value) is int and 8 <= value <= MOST_SIZE


def values_around(default: int, least: int = 1, halvings: int = 4) -> tuple[int, ...]:
    """Values of a literal that may be a knob: a power of two has those around it, another number small steps."""
    if default & (default - 1) and least == 1:
        return tuple(sorted({default, default * 2, max(1, default // 2), default * 4}))
    below = (max(least, default >> n) for n in range(1, halvings + 1))
    return tuple(sorted({default, *below, *(default << n for n in (1, 2, 3))}))


def block_values(default: int) -> tuple[int, ...]:
    """Values of a block of a Pallas function."""
    return values_around(default, least=8, halvings=3)


def powers_between(default: int, seen: Iterable[int]) -> set[int]:
    """Powers of two between and next to the values of configurations."""
    known = {v for v in (*seen, default) if v > 0}
    if not known or any(v & (v - 1) for v in known):
        return set()
    low, high = min(known), max(known)
    return {1 << n for n in range(max(0, int(math.log2(low)) - 1), int(math.log2(high)) + 2)}


def with_params(source: str, texts: Mapping[str, str]) -> str:
    """A module with the text that replaces some of its parameters, by their names."""
    return re.sub(r"""params\[(["'])(\w+)\1\]""", lambda found: texts.get(found[2], found[0]), source)


def constexprs(function: Callable[..., object]) -> set[str]:
    """Names of a kernel's compile-time parameters."""
    annotations = getattr(function, "__annotations__", {})
    return {name for name, annotation in annotations.items() if "constexpr" in str(annotation)}
