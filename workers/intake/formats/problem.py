"""Problems as benchmarks write them, read as inputs and a reference: KernelBench, JAXBench, flashinfer-bench.

A problem has no kernel: what it gives an operator is what to compute, on what, and when an answer is right. Sizes
stand in its file as constants, so a small case of the same problem is the file with smaller constants.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.workers.intake.judge import bounds as judge
from tilewright.workers.intake.judge.reference import flat, to_array

JUDGES: Mapping[str, str] = {"KernelBench": "Model", "JAXBench": "workload", "flashinfer-bench": "run"}
"""What a problem's file calls its reference, by format."""

SMALLEST = 16
"""Constants up to this stay as they are: kernel sizes, strides, groups, heads."""


class NoProblem(ValueError):
    """A file that is none of the known formats. The message is one sentence."""


@dataclass(frozen=True)
class Case:
    """One size of a problem. ``run(dtype)``: the reference's results as arrays, floats computed in ``dtype`` ("" for
    their own)."""

    inputs: Mapping[str, np.ndarray]
    run: Callable[[str], list[np.ndarray]]


@dataclass(frozen=True)
class Problem:
    """``kind``: the format's name. ``constants``: sizes by name. ``case(cap, seed)``: with sizes of at most ``cap``."""

    name: str
    kind: str
    constants: Mapping[str, int]
    case: Callable[[int, int], Case]
    workloads: Sequence[Mapping[str, int]] = field(default_factory=tuple)


def read(path: Path) -> Problem:
    """The problem in a file. Raises NoProblem, OSError."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _flashinfer(path, text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NoProblem(f"{path.name} cannot be read as Python: {error.msg}") from error
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if {"Model", "get_inputs"} <= names:
        return Problem(path.stem, "KernelBench", _constants(tree), lambda cap, seed: _model(tree, cap, seed))
    if {"workload", "create_inputs"} <= names:
        return Problem(path.stem, "JAXBench", _constants(tree), lambda cap, seed: _workload(tree, cap))
    raise NoProblem(
        f"{path.name} is no known problem: KernelBench has Model and get_inputs, JAXBench workload and create_inputs"
    )


# -- constants -----------------------------------------------------------------------------------------


def _constants(tree: ast.Module) -> dict[str, int]:
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Constant) and type(node.value) is int and node.value > SMALLEST:
                    found[f"{statement.targets[0].id}:{node.value}"] = node.value
    return found


class _Capped(ast.NodeTransformer):
    """Whole numbers above SMALLEST become at most ``cap``, of the same divisibility by powers of two."""

    def __init__(self, cap: int) -> None:
        self._cap = cap

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and node.value > max(self._cap, SMALLEST):
            odd = node.value % 2
            return ast.copy_location(ast.Constant(self._cap - odd), node)
        return node


def _namespace(tree: ast.Module, cap: int) -> dict[str, Any]:
    """The file with its module's sizes, and those in its functions of inputs, capped."""
    import copy

    made = copy.deepcopy(tree)
    capped = _Capped(cap)
    inputs = ("get_inputs", "get_init_inputs", "create_inputs")
    for place, statement in enumerate(made.body):
        sized = isinstance(statement, ast.Assign | ast.AnnAssign)
        if sized or (isinstance(statement, ast.FunctionDef) and statement.name in inputs):
            made.body[place] = capped.visit(statement)
    space: dict[str, Any] = {"__name__": "problem"}
    exec(compile(ast.fix_missing_locations(made), "problem", "exec"), space)
    return space


# -- KernelBench ---------------------------------------------------------------------------------------


def _model(tree: ast.Module, cap: int, seed: int) -> Case:
    """Inputs and weights of a ``Model``; in training mode, as the benchmark runs it."""
    import torch

    space = _namespace(tree, cap)
    torch.manual_seed(seed)
    given = space["get_init_inputs"]() if "get_init_inputs" in space else []
    model = space["Model"](*given[0], **given[1]) if _split(given) else space["Model"](*given)
    weights = {n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    values = space["get_inputs"]()
    inputs = {f"x{n}": to_array(v) for n, v in enumerate(values) if isinstance(v, torch.Tensor)}
    inputs.update({name.replace(".", "_"): to_array(t) for name, t in weights.items()})

    def run(dtype: str) -> list[np.ndarray]:
        def cast(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point() and dtype:
                return value.detach().clone().to(getattr(torch, dtype))
            return value.detach().clone() if isinstance(value, torch.Tensor) else value

        torch.manual_seed(seed)
        with torch.no_grad():
            kept = {name: cast(t) for name, t in weights.items()}
            result = torch.func.functional_call(model, kept, tuple(map(cast, values)))
        return [to_array(part) for part in flat(result)]

    return Case(inputs, run)


def _split(given: Any) -> bool:
    """Whether initial inputs come as (positional, by keyword)."""
    return len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict)


# -- JAXBench ------------------------------------------------------------------------------------------


def _workload(tree: ast.Module, cap: int) -> Case:
    import jax

    space = _namespace(tree, cap)
    made = space["create_inputs"]()
    values = made if isinstance(made, tuple | list) else (made,)
    leaves, shape = jax.tree_util.tree_flatten(list(values))
    inputs = {f"x{n}": np.asarray(leaf) for n, leaf in enumerate(leaves) if hasattr(leaf, "dtype")}

    def run(dtype: str) -> list[np.ndarray]:
        def cast(leaf: Any) -> Any:
            floats = hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
            return jax.numpy.asarray(np.asarray(leaf).astype(dtype)) if floats and dtype else leaf

        with jax.enable_x64(True):
            given = jax.tree_util.tree_unflatten(shape, [cast(leaf) for leaf in leaves])
            result = jax.tree_util.tree_leaves(space["workload"](*given))
            found = [np.asarray(leaf) for leaf in result]
        return [
            a.astype(np.float64) if jax.numpy.issubdtype(a.dtype, jax.numpy.floating) else a for a in found
        ]

    return Case(inputs, run)


# -- flashinfer-bench ----------------------------------------------------------------------------------


def _flashinfer(path: Path, text: str) -> Problem:
    """A Definition: axes, inputs by shape and dtype, ``run`` as source; its workloads are lines of a file beside it."""
    try:
        data = json.loads(text)
        axes, inputs, source = data["axes"], data["inputs"], data["reference"]
    except (ValueError, KeyError, TypeError) as error:
        raise NoProblem(f"{path.name} is no Definition: it lacks {error}") from error
    fixed = {name: axis["value"] for name, axis in axes.items() if axis["type"] == "const"}
    workloads = tuple({**fixed, **w} for w in _lines(path, data.get("name", path.stem)))

    def case(cap: int, seed: int) -> Case:
        import torch

        space: dict[str, Any] = {"__name__": "problem"}
        exec(compile(source, path.name, "exec"), space)
        sizes = {name: min(fixed.get(name, cap), cap) for name in axes}
        generator = torch.Generator().manual_seed(seed)
        values: dict[str, Any] = {}
        for name, spec in inputs.items():
            dtype = getattr(torch, spec["dtype"])
            if spec["shape"] is None:
                values[name] = 1.0 if dtype.is_floating_point else 1
                continue
            shape = [sizes[n] for n in spec["shape"]]
            drawn = torch.randn(shape, generator=generator)
            values[name] = drawn.to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)

        def run(precision: str) -> list[np.ndarray]:
            def cast(value: Any) -> Any:
                floats = isinstance(value, torch.Tensor) and value.is_floating_point()
                return value.to(getattr(torch, precision)) if floats and precision else value

            with torch.no_grad():
                return [to_array(part) for part in flat(space["run"](*map(cast, values.values())))]

        return Case({n: to_array(v) for n, v in values.items() if isinstance(v, torch.Tensor)}, run)

    return Problem(str(data.get("name", path.stem)), "flashinfer-bench", fixed, case, workloads)


def _lines(path: Path, name: str) -> list[Mapping[str, int]]:
    """Axes of the workloads, each once."""
    beside = path.parent.parent / "workloads" / f"{name}.jsonl"
    if not beside.is_file():
        return []
    found: list[Mapping[str, int]] = []
    for row in beside.read_text(encoding="utf-8").splitlines():
        axes = json.loads(row).get("workload", {}).get("axes", {}) if row.strip() else {}
        if axes and axes not in found:
            found.append(axes)
    return found


# -- the gate ------------------------------------------------------------------------------------------


def own_gate(case: Case) -> str:
    """Why a problem's reference fails the gate that is derived from it; empty where it passes.

    The gate is of the operands' own dtypes against the reference in float64, as for a kernel that is taken in.
    """
    exact, own = case.run("float64"), case.run("")
    if not exact:
        return "it returns no tensor"
    dtypes = sorted({a.dtype.name for a in case.inputs.values() if a.dtype.kind == "f"} | {"float32"})
    for place, (truth, found) in enumerate(zip(exact, own, strict=True)):
        if truth.dtype.kind != "f":
            if not np.array_equal(truth, found):
                return f"result {place}: {np.mean(truth == found):.1%} of its integers agree"
            continue
        if not np.isfinite(truth).all():
            return f"result {place} is not finite"
        reading = judge.read(found.astype(np.float32), truth)
        floats = [d for d in dtypes if d != "float64"]
        bound, why = judge.bar([reading], floats, "float32", "float32")
        if bound is None:
            return f"result {place}: {why}"
    return ""


__all__ = ["Case", "NoProblem", "Problem", "own_gate", "read"]
