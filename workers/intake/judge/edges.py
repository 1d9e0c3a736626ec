"""What operands may hold out of the ordinary, found by asking: the reference stays finite, and the kernel agrees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilewright.workers.intake.calls.dtypes import is_float, is_narrow
from tilewright.workers.intake.operator import Operand

DRAWS = 8
"""Draws on which the reference must stay finite: a label that meets minus infinity is rare."""

Holds = Callable[[Sequence[Operand]], bool]
"""Whether reference and kernel take inputs of these operands, of kind ``repeated``."""


def with_edges(operands: Sequence[Operand], specials: Iterable[int], holds: Holds) -> list[Operand]:
    """Each operand with the first edge that it bears, alone and beside those of the operands before it."""
    found = list(operands)
    numbers = tuple(specials)
    for place, operand in enumerate(operands):
        for edge in _candidates(operand, numbers):
            tried = [*found[:place], replace(operand, edge=edge), *found[place + 1 :]]
            if holds(tried):
                found = tried
                break
    return found


def _candidates(operand: Operand, specials: Sequence[int]) -> Iterator[str]:
    if operand.form:
        return  # offsets, distinct numbers: none is beside the others
    if operand.dtype == "bool":
        yield from ["rows"] if len(operand.shape) > 1 else []
    elif is_float(operand.dtype):
        yield from [] if is_narrow(operand.dtype) or not operand.shape else ["-inf"]
    elif operand.total:
        yield "none"
    elif operand.below:
        yield from map(str, specials)


def negative_numbers(functions: Iterable[Any], values: Iterable[Any]) -> list[int]:
    """Whole numbers below zero among a call's values and its functions' defaults: a label that is ignored is one."""
    given = list(values)
    for function in functions:
        try:
            given += [p.default for p in inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            continue
    return list(dict.fromkeys(v for v in given if type(v) is int and v < 0))
