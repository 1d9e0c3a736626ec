"""What is known before anything is spent, on one screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_SHORT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
}


def lines(answer: Mapping[str, Any], reference: str, target: str) -> Iterator[str]:
    """A line for each thing: arguments, results, knobs, meaning, checks, space, notes."""
    dims = answer["dims"]
    for row in answer["operands"]:
        yield f"  argument   {row[0]} {_shape(row, dims[0])}"
    for name, dtype, shape, min_db, worst, _ in answer["results"]:
        bound = f"at least {min_db:g} dB" if min_db else "exact"
        single = f", no element off by more than {worst:.2g} of its surroundings" if worst else ""
        yield f"  result     {name} {_shape((name, dtype, shape), dims[0])}: {bound}{single}"
    precision = answer["precision"] or "its own precision"
    yield f"  judge      {reference}({answer['call']}) in {precision}"
    sources = {k["name"]: k["source"] for k in answer["knobs"]}
    for name, values in answer["space"].items():
        shown = " ".join(map(str, values))
        yield f"  knob       {name} = {answer['defaults'][name]} of {shown} ({sources[name]})"
    for row in answer["fixed"]:
        yield f"  fixed      {row['name']} = {row['value']}: {row['why']}"
    checked = ", ".join("x".join(str(n) for n in shape.values()) for shape in answer["check"])
    yield f"  checked    at {checked}, inputs {', '.join(answer['kinds'])}: the seed passes"
    points = math.prod(len(v) for v in answer["space"].values())
    yield f"  space      {points} points, all legal on the {len(dims)} timed and {len(answer['check'])} checked shapes"
    for note in answer["notes"]:
        yield f"  note       {note}"
    yield f"  target     {target}"


def _shape(row: Any, dims: Mapping[str, int]) -> str:
    sizes = [f"{n}={dims[n]}" if isinstance(n, str) and n in dims else str(n) for n in row[2]]
    return f"{_SHORT.get(row[1], row[1])}[{', '.join(sizes)}]"
