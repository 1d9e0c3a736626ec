"""flashinfer-bench's files, read as text: a Definition with its workloads, and a Solution with its sources.

Nothing of them is run here. Format: the schema of flashinfer-bench (definition, workload, solution), as of its 0.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tilewright.workers.intake.calls.call_text import DTYPES

LANGUAGES = ("triton", "python")
"""What a Solution may be written in to hold kernels that can be taken in."""

MOST_WORKLOADS = 3
"""Shapes that are taken of a list: the largest, the smallest, and the one in the middle."""

_LEVELS = 5
_SHORT = {long: short for short, long in reversed(list(DTYPES.items())) if len(short) < len(long)}


class NoTrace(ValueError):
    """A file that is no Definition or Solution, or one that cannot be used. The message is one sentence."""


@dataclass(frozen=True)
class Definition:
    """``axes``: sizes of constant ones, None for those that workloads set; tensors as (axes, dtype), axes None for a
    number."""

    path: Path
    name: str
    axes: Mapping[str, int | None]
    inputs: Mapping[str, tuple[Sequence[str] | None, str]]
    outputs: Mapping[str, tuple[Sequence[str] | None, str]]


@dataclass(frozen=True)
class Solution:
    """``sources``: texts by path below a folder; ``file`` and ``function``: the entry point; ``passes_outputs``: it is
    given its results' tensors behind its inputs and fills them."""

    path: Path
    name: str
    definition: str
    language: str
    file: str
    function: str
    sources: Mapping[str, str]
    passes_outputs: bool


def is_solution(path: Path) -> bool:
    """Whether a JSON file holds sources. Raises NoTrace, OSError."""
    return "sources" in _json(path)


def read_definition(path: Path) -> Definition:
    """Raises NoTrace, OSError."""
    data = _json(path)
    try:
        axes = {n: axis["value"] if axis["type"] == "const" else None for n, axis in data["axes"].items()}
        tensors = [
            {n: (spec["shape"], str(spec["dtype"])) for n, spec in data[side].items()}
            for side in ("inputs", "outputs")
        ]
        if not isinstance(data["reference"], str):
            raise TypeError("reference")
    except (KeyError, TypeError, AttributeError) as error:
        raise NoTrace(f"{path.name} is no Definition of flashinfer-bench: it lacks {error}") from error
    return Definition(path, str(data.get("name", path.stem)), axes, *tensors)


def read_solution(path: Path) -> Solution:
    """Raises NoTrace, OSError."""
    data = _json(path)
    try:
        spec = data["spec"]
        file, _, function = str(spec["entry_point"]).partition("::")
        sources = {str(s["path"]): str(s["content"]) for s in data["sources"]}
        made = Solution(
            path, str(data.get("name", path.stem)), str(data["definition"]), str(spec["language"]), file, function,
            sources, bool(spec.get("destination_passing_style", True)),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise NoTrace(f"{path.name} is no Solution of flashinfer-bench: it lacks {error}") from error
    if made.language not in LANGUAGES:
        raise NoTrace(
            f"{path.name} is a Solution in {made.language}: kernels are taken in from {' and '.join(LANGUAGES)} ones"
        )
    outside = [p for p in sources if PurePosixPath(p).is_absolute() or ".." in PurePosixPath(p).parts]
    if outside:
        raise NoTrace(f"{path.name} has a source outside its own folder: {outside[0]}")
    if file not in sources or not function.isidentifier():
        raise NoTrace(f"{path.name}: its entry point {spec['entry_point']!r} is none of its sources")
    return made


def definition_of(solution: Solution) -> Path | None:
    """The file of the Definition it solves, as a trace set lays it out: in ``definitions`` of a folder above."""
    return _above(solution.path, "definitions", f"{solution.definition}.json")


def calls_of(definition: Definition) -> list[str]:
    """Calls as ``--args`` has them, of its workloads. Raises NoTrace where there are none, or they bring data."""
    listed = _above(definition.path, "workloads", f"{definition.name}.jsonl")
    if listed is None:
        free = ", ".join(n for n, size in definition.axes.items() if size is None)
        if not free:
            return [call_at(definition, {}, {})]
        example = call_at(definition, dict.fromkeys(definition.axes, 1024), {})
        raise NoTrace(
            f'{definition.path.name} has no workloads beside it that say {free}: add --args "{example}"'
        )
    found: list[tuple[int, str]] = []
    for row in listed.read_text(encoding="utf-8").splitlines():
        if not row.strip():
            continue
        try:
            workload = json.loads(row)["workload"]
            sizes, inputs = dict(workload["axes"]), dict(workload.get("inputs", {}))
        except (ValueError, KeyError, TypeError) as error:
            raise NoTrace(f"{listed.name} has a line that is no workload: it lacks {error}") from error
        call = call_at(definition, sizes, inputs)
        size = sum(int(n) for n in sizes.values())
        if (size, call) not in found:
            found.append((size, call))
    if not found:
        raise NoTrace(f"{listed.name} holds no workload")
    found.sort(reverse=True)
    few = found if len(found) <= MOST_WORKLOADS else [found[0], found[len(found) // 2], found[-1]]
    return [call for _, call in few]


def call_at(definition: Definition, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> str:
    """One call, of axes by size. Raises NoTrace."""
    known = {**sizes, **{n: size for n, size in definition.axes.items() if size is not None}}
    parts = []
    for name, (shape, dtype) in definition.inputs.items():
        given = inputs.get(name, {})
        if shape is None:
            parts.append(repr(given.get("value", 1.0 if "float" in dtype else 1)))
            continue
        if given.get("type") == "safetensors":
            raise NoTrace(
                f"{definition.path.name}: its workloads bring {name} as a file of data, which is not read: say shapes "
                "and bounds with --args"
            )
        if dtype not in DTYPES:
            raise NoTrace(f"{definition.path.name}: {name} is {dtype}, which no target here has")
        lacking = [axis for axis in shape if axis not in known]
        if lacking:
            raise NoTrace(f"{definition.path.name}: a workload does not say {lacking[0]}")
        parts.append(f"{_SHORT.get(dtype, dtype)}[{', '.join(str(known[axis]) for axis in shape)}]")
    return ", ".join(parts)


def entry_text(solution: Solution, definition: Definition, name: str) -> str:
    """The entry's file with a function ``name`` behind it, which takes the Definition's inputs and returns its
    results."""
    given = list(definition.inputs)
    lines = [f"def {name}({', '.join(given)}):"]
    if solution.passes_outputs:
        for output, (shape, dtype) in definition.outputs.items():
            sizes = ", ".join(_axis(definition, axis) for axis in shape or ())
            device = next(n for n, (axes, _) in definition.inputs.items() if axes is not None)
            shaped = f"({sizes}{',' if shape else ''})"
            lines.append(f"    {output} = torch.empty({shaped}, dtype=torch.{dtype}, device={device}.device)")
        made = list(definition.outputs)
        lines.append(f"    {solution.function}({', '.join([*given, *made])})")
        lines.append(f"    return {', '.join(made)}")
    else:
        lines.append(f"    return {solution.function}({', '.join(given)})")
    text = solution.sources[solution.file]
    needed = "import torch\n\n\n" if solution.passes_outputs else ""
    return f"{text.rstrip()}\n\n\n{needed}" + "\n".join(lines) + "\n"


def _axis(definition: Definition, axis: str) -> str:
    """A size as text: a number, or of an input's shape. Raises NoTrace."""
    if definition.axes.get(axis) is not None:
        return str(definition.axes[axis])
    for name, (shape, _) in definition.inputs.items():
        if shape and axis in shape:
            return f"{name}.shape[{list(shape).index(axis)}]"
    raise NoTrace(f"{definition.path.name}: no input has the axis {axis}")


def _above(path: Path, folder: str, file: str) -> Path | None:
    for parent in list(path.resolve().parents)[:_LEVELS]:
        if (parent / folder).is_dir():
            return next(iter(sorted((parent / folder).rglob(file))), None)
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NoTrace(f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise NoTrace(f"{path.name} is no Definition or Solution of flashinfer-bench")
    return data
