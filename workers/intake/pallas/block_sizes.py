"""Block sizes in a user's files: the numbers that, changed, change the grid or the blocks of what a call launches.

A public function often only prepares its arguments: sizes stand in constants, defaults, tables and in what it calls.
Each such number is tried; what it changes in the jaxpr says whether it is the size of a block. Whether it only tiles is
for the evidence on answers to say.
"""

import ast
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jax._src.core import jaxprs_in_params

from tilewright.fitness.original import Site
from tilewright.workers.intake.pallas.original import Original
from tilewright.workers.intake.source.knobs import LANES, Knob, block_values, is_size, values_around

_BLOCK = re.compile(r"block|blk|tile|chunk|page|(^|_)b[a-z]{0,2}\d?$|(^|_)t[mnkbsqd]$|rows_per|per_(block|step)", re.I)
"""Names of block sizes: BLOCK_M, blk_q, tile_rows, bm, bkv, tm, rows_per_step."""
SECONDS = 6.0
"""Most that trying numbers may take; those with the names of block sizes come first."""


def kernels_in(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr that launch kernels."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        else:
            for inner in jaxprs_in_params(equation.params):
                yield from kernels_in(inner)


def launches(jaxpr: Any) -> list[Any]:
    """Grid, blocks and scratch memory of every kernel of a jaxpr."""
    found = []
    for equation in kernels_in(jaxpr):
        mapping = equation.params["grid_mapping"]
        blocks = [str(block.block_shape) for block in mapping.block_mappings]
        found.append((str(mapping.grid), blocks, [str(v.aval) for v in equation.params["jaxpr"].invars]))
    return found


def sizes_within(
    original: Original,
    used: Collection[tuple[str, int]],
    launched: Callable[[Original, Mapping[str, int]], Any],
    reserved: Collection[str],
) -> tuple[Original, list[Knob]]:
    """The function with the sites of its block sizes, and a knob for each.

    ``used``: path and first line of the functions that the call runs. ``launched``: what the call launches, compared
    for equality; it may raise. ``reserved``: names of parameters that are taken.
    """
    groups: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for name, value, site in _numbers(original, used):
        groups[name, value].append(site)
    began, plain = time.process_time(), launched(original, {})
    sites, knobs = dict(original.sites), []
    blocks = {key: _BLOCK.search(key[0].strip("_")) is not None for key in groups}
    for name, value in sorted(groups, key=blocks.__getitem__, reverse=True):
        places = groups[name, value]
        if time.process_time() - began > SECONDS:
            break
        tried = replace(original, sites={"tried": tuple(places)})
        values = block_values(value)
        if not any(_changes(launched, tried, other, plain) for other in (value // 2, value * 2)):
            least = LANES if blocks[name, value] and value > 2 * LANES else value
            if least == value or not _changes(launched, tried, least, plain):
                continue
            # it caps what is smaller here: it begins with the least that changes nothing
            while least < value and _changes(launched, tried, least, plain):
                least *= 2
            value = min(value, least)
            values = tuple(v for v in values_around(value, least=8, halvings=6) if v <= value)
        known = _free(name, {*reserved, *sites})
        sites[known] = tuple(places)
        where = ", ".join(str(line) for _, line, _, _ in places)
        knobs.append(Knob(known, value, values, f"{name or 'number'} = {value} at line {where}"))
    return replace(original, sites=sites), knobs


def _changes(launched: Callable[[Original, Mapping[str, int]], Any], tried: Original, value: int, plain: Any) -> bool:
    try:
        return bool(launched(tried, {"tried": value}) != plain)
    except Exception:  # noqa: BLE001 - a value that the function does not take says nothing
        return False


def _free(name: str, used_names: Collection[str]) -> str:
    plain = re.sub(r"\W", "", name).strip("_").lower() or "size"
    known, count = plain, 1
    while known in used_names:
        count += 1
        known = f"{plain}_{count}"
    return known


def _numbers(original: Original, used: Collection[tuple[str, int]]) -> Iterator[tuple[str, int, Site]]:
    """Numbers that may be sizes, with the names that they are given, in functions that run and outside of any."""
    for path, text in original.files.items():
        if Path(path).suffix != ".py":
            continue
        lines = {line for file, line in used if file == path}
        for name, node in _named(ast.parse(text), "", lines.__contains__):
            if is_size(node.value) and node.end_col_offset is not None and node.end_lineno == node.lineno:
                yield name, node.value, (path, node.lineno, node.col_offset, node.end_col_offset)


def _named(node: ast.AST, name: str, runs: Callable[[int], bool]) -> Iterator[tuple[str, ast.Constant]]:
    """Whole numbers below a node, with the names that they are given; those of an index are none."""
    parts: list[tuple[str, ast.AST | None]] = []
    if isinstance(node, ast.Constant):
        if type(node.value) is int:
            yield name, node
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        of = node.args
        positional = zip([*of.posonlyargs, *of.args][::-1], of.defaults[::-1], strict=False)
        parts = [(one.arg, default) for one, default in (*positional, *zip(of.kwonlyargs, of.kw_defaults, strict=True))]
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        parts += [("", statement) for statement in node.body if runs(first)]
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=False)
            parts = [(getattr(one, "id", name), part) for one, part in pairs]
        else:
            parts = [(getattr(target, "id", getattr(target, "attr", name)), node.value)]
    elif isinstance(node, ast.Dict):
        texts = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        parts = [(t if isinstance(t, str) else name, v) for t, v in zip(texts, node.values, strict=True)]
    elif isinstance(node, ast.keyword):
        parts = [(node.arg or name, node.value)]
    elif not isinstance(node, ast.Subscript):
        parts = [(name, child) for child in ast.iter_child_nodes(node)]
    for given, part in parts:
        if part is not None:
            yield from _named(part, given, runs)
