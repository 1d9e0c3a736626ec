"""Sampled interpretation of large shapes: the grid steps on which chosen elements of the outputs depend, no others.

A step is run if an output block that holds a chosen element is its block, by the block's index map: a sequence of steps
that adds up one block runs whole. Steps at the same indices along any axis come with them, and along axes that are not
declared parallel the first ones, which fill what later ones use. What else a kernel may carry from step to step along
such axes it finds as NaN; it can be interpreted once more with these axes whole (``whole``). Of kernels in a row each
runs as far as the next one reads.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.extend.core import ClosedJaxpr, Literal

MOST_STEPS = 1 << 22
"""Grid steps whose blocks are looked up."""

Places = Mapping[int, Sequence[np.ndarray]]
"""By number of an output: indices along each axis; where they cross is looked at."""


@dataclass(frozen=True)
class _Value:
    """A value of the flat program, by number, or a literal."""

    number: int = -1
    literal: Any = None


@dataclass(frozen=True)
class _Equation:
    primitive: Any
    params: Mapping[str, Any]
    operands: tuple[_Value, ...]
    made: tuple[int, ...]


class Program:
    """A jaxpr with its kernels, nested ``jit`` calls put in their place."""

    def __init__(self, closed: ClosedJaxpr, operands: Sequence[Any]) -> None:
        """Computes at once what no kernel has a part in: tables of positions, above all."""
        self._numbers = itertools.count()
        self._known: dict[int, Any] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        held = [self._hold(operand) for operand in operands]
        self._equations: list[_Equation] = []
        self._outputs = self._flatten(closed, held)
        for equation in self._equations:
            if equation.primitive.name != "pallas_call" and all(
                value.number < 0 or value.number in self._known for value in equation.operands
            ):
                self._evaluate(equation, self._known)

    def run(self, where: Places, settings: Any, *, whole: bool = False) -> list[np.ndarray]:
        """The chosen elements of every output. ``whole``: all steps along axes that are not declared parallel.

        Raises NotImplementedError for a grid whose size is not known or is too large to look at.
        """
        steps = self._needed(where, whole)
        values = dict(self._known)
        for equation in self._equations:
            if all(number in values for number in equation.made):
                continue
            if equation.primitive.name != "pallas_call":
                self._evaluate(equation, values)
            elif equation.made in steps:
                arrays = [self._read(value, values) for value in equation.operands]
                results = _interpret(equation.params, arrays, steps[equation.made], settings)
                values.update(zip(equation.made, results, strict=True))
            else:  # nobody reads what it makes
                values.update({n: jnp.zeros(self._shapes[n]) for n in equation.made})
        found = []
        for number, value in enumerate(self._outputs):
            array = np.asarray(self._read(value, values))
            found.append(np.ascontiguousarray(array[np.ix_(*where[number])] if array.ndim else array))
        return found

    def _hold(self, value: Any) -> _Value:
        number = next(self._numbers)
        self._known[number], self._shapes[number] = value, tuple(np.shape(value))
        return _Value(number)

    def _flatten(self, closed: ClosedJaxpr, inputs: Sequence[_Value]) -> list[_Value]:
        names: dict[Any, _Value] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        names.update((v, self._hold(c)) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True))

        def named(atom: Any) -> _Value:
            return _Value(literal=atom.val) if isinstance(atom, Literal) else names[atom]

        for equation in closed.jaxpr.eqns:
            operands = tuple(named(atom) for atom in equation.invars)
            if equation.primitive.name == "jit":
                made = self._flatten(equation.params["jaxpr"], operands)
                names.update(zip(equation.outvars, made, strict=True))
                continue
            numbers = tuple(next(self._numbers) for _ in equation.outvars)
            for variable, number in zip(equation.outvars, numbers, strict=True):
                names[variable], self._shapes[number] = _Value(number), tuple(variable.aval.shape)
            self._equations.append(_Equation(equation.primitive, equation.params, operands, numbers))
        return [named(atom) for atom in closed.jaxpr.outvars]

    def _read(self, value: _Value, values: Mapping[int, Any]) -> Any:
        return value.literal if value.number < 0 else values[value.number]

    def _evaluate(self, equation: _Equation, values: dict[int, Any]) -> None:
        arrays = [self._read(value, values) for value in equation.operands]
        primitive, params = equation.primitive, dict(equation.params)
        results = primitive.bind(*arrays, **primitive.get_bind_params(params))
        values.update(zip(equation.made, results if primitive.multiple_results else [results], strict=True))

    def _needed(self, where: Places, whole: bool) -> dict[tuple[int, ...], list[np.ndarray]]:
        """By kernel, named by what it makes, the indices to run along each axis of its grid."""
        wanted: dict[int, np.ndarray] = {}

        def want(value: _Value, mask: np.ndarray) -> None:
            if value.number >= 0 and value.number not in self._known:
                held = wanted.get(value.number)
                wanted[value.number] = mask if held is None else held | mask

        for number, value in enumerate(self._outputs):
            if value.number >= 0:
                mask = np.zeros(self._shapes[value.number], dtype=bool)
                mask[np.ix_(*where[number]) if mask.ndim else ()] = True
                want(value, mask)
        steps = {}
        for equation in reversed(self._equations):
            masks = {n: wanted[number] for n, number in enumerate(equation.made) if number in wanted}
            if not masks:
                continue
            if equation.primitive.name == "pallas_call":
                known = [v.literal if v.number < 0 else self._known.get(v.number) for v in equation.operands]
                kernel = _Kernel(equation.params, known)
                steps[equation.made] = kernel.indices(masks, whole)
                reads = kernel.reads(steps[equation.made])
                for place, _ in equation.params["input_output_aliases"]:  # what no step writes
                    reads[place] = np.ones(self._shapes[equation.operands[place].number], dtype=bool)
                for value, read in zip(equation.operands, reads, strict=True):
                    if read is not None:
                        want(value, read)
            else:
                for value in equation.operands:
                    if value.number >= 0:
                        want(value, self._passed_on(equation, value, masks))
        return steps

    def _passed_on(self, equation: _Equation, value: _Value, masks: Mapping[int, np.ndarray]) -> np.ndarray:
        """Elements of an operand that wanted elements depend on: by the transposed operation, else all."""
        shape = self._shapes[value.number]
        if equation.primitive.multiple_results or len(masks) != 1:
            return np.ones(shape, dtype=bool)
        (mask,) = masks.values()
        if mask.shape == shape and equation.primitive.name not in ("transpose", "rev"):
            return mask

        def moved(tensor: Any) -> Any:
            arrays = [
                tensor
                if operand is value
                else jnp.zeros(self._shapes[operand.number])
                if operand.number >= 0
                else operand.literal
                for operand in equation.operands
            ]
            return equation.primitive.bind(*arrays, **equation.params)

        try:
            _, backward = jax.vjp(moved, jnp.zeros(shape, jnp.float32))
            (reached,) = backward(jnp.asarray(mask, jnp.float32))
        except (TypeError, ValueError, NotImplementedError):
            return np.ones(shape, dtype=bool)
        return np.asarray(reached) != 0


class _Kernel:
    """A Pallas call's grid and where its blocks lie."""

    def __init__(self, params: Mapping[str, Any], scalars: Sequence[Any]) -> None:
        """``scalars``: its operands; of those that decide positions, None where they are not known."""
        self._mapping = params["grid_mapping"]
        self._grid = tuple(self._mapping.grid)
        if not all(isinstance(size, int) for size in self._grid) or math.prod(self._grid) > MOST_STEPS:
            raise NotImplementedError("the kernel's grid has too many steps, or a size that is not known")
        semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
        mapped = ["parallel"] * len(self._mapping.vmapped_dims)  # in front of those that the kernel's author named
        named = [*mapped, *semantics, *[None] * len(self._grid)][: len(self._grid)]
        self._parallel = [kind in ("parallel", tpu_core.PARALLEL) for kind in named]
        self._count = self._mapping.num_index_operands
        self._tables = list(scalars[: self._count])
        self._operands = len(scalars)
        #: a semaphore or a copy by hand may link one step with the next
        self._linked = any("semaphore" in str(aval).lower() for aval in self._mapping.scratch_avals)

    def indices(self, masks: Mapping[int, np.ndarray], whole: bool) -> list[np.ndarray]:
        """Along each axis the indices to run."""
        outputs = list(self._mapping.block_mappings_output)
        points = np.indices(self._grid).reshape(len(self._grid), math.prod(self._grid))
        needed = np.zeros(points.shape[1], dtype=bool)
        for number, mask in masks.items():
            mapping = outputs[number]  # of which a step's block may hold an element of the mask
            starts, which = np.unique(self._starts(mapping, points), axis=0, return_inverse=True)
            wanted = np.array([bool(mask[_block(mapping, start)].any()) for start in starts])
            needed |= wanted[which.reshape(-1)]
        found = []
        for axis, size in enumerate(self._grid):
            chosen = np.unique(points[axis][needed])
            if self._parallel[axis]:
                found.append(chosen[::-1])
                continue
            chosen = np.arange(size) if whole or self._linked else np.union1d(chosen, [0])
            found.append(chosen)
        return found

    def reads(self, indices: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Per operand the elements that these steps read; None for those that decide positions."""
        axes = [axis.reshape(-1) for axis in np.meshgrid(*indices, indexing="ij")]
        points = np.stack(axes) if axes else np.zeros((0, 1), dtype=np.int64)
        found: list[np.ndarray | None] = [None] * self._count
        for mapping in self._mapping.block_mappings[: self._mapping.num_inputs]:
            mask = np.zeros(mapping.array_aval.shape, dtype=bool)
            for start in np.unique(self._starts(mapping, points), axis=0):
                mask[_block(mapping, start)] = True
            found.append(mask)
        return found

    def _starts(self, mapping: Any, points: np.ndarray) -> np.ndarray:
        """[steps, axes] first element of the block at each point [axes of the grid, steps]."""
        if any(table is None for table in self._tables):
            raise NotImplementedError("a block's position depends on what another kernel computes")

        def start(*point: Any) -> Any:
            return tuple(mapping.compute_start_indices_interpret(point, *self._tables))

        axes = [jnp.asarray(axis, jnp.int32) for axis in points]
        found = jax.jit(jax.vmap(start, out_axes=0))(*axes) if axes else start()
        columns = [np.broadcast_to(np.asarray(column), points.shape[1:]) for column in found]
        return np.stack(columns, axis=1) if columns else np.zeros((points.shape[1], 0), dtype=np.int64)


def _block(mapping: Any, start: Sequence[int]) -> tuple[slice, ...]:
    sizes = pallas_core._get_block_shape(mapping.block_shape)
    return tuple(slice(max(0, int(at)), int(at) + size) for at, size in zip(start, sizes, strict=True))


def _interpret(
    params: Mapping[str, Any], operands: Sequence[Any], indices: Sequence[np.ndarray], settings: Any
) -> list[Any]:
    """One Pallas call with only these indices along the axes of its grid."""
    mapping = params["grid_mapping"]
    grid = tuple(mapping.grid)

    def environment(point: Sequence[Any], sizes: object) -> tuple[Any, ...]:
        """What a kernel reads of its place: where it is in the whole grid."""
        return tuple(
            pallas_core.GridAxis(index, size)
            for axis, (index, size) in enumerate(zip(point, grid, strict=True))
            if axis not in mapping.vmapped_dims
        )

    # without a grid there is one step, which names no place
    small = mapping.replace(grid=tuple(len(axis) for axis in indices), local_grid_env=environment) if grid else mapping
    given = {**params, "grid_mapping": small, "interpret_params": settings}
    del given["interpret"]

    def called(*arrays: Any) -> Any:
        with _walking(indices) if grid else contextlib.nullcontext():
            return interpreter.interpret_pallas_call(*arrays, **given)

    return list(jax.jit(called)(*operands))


@contextlib.contextmanager
def _walking(indices: Sequence[np.ndarray]) -> Iterator[None]:
    """While it is entered, kernels are interpreted at these indices of their grid, in this order."""
    before = interpreter._get_randomized_grid_coordinates
    coordinates = tuple(jnp.asarray(axis, jnp.int32) for axis in indices)
    interpreter._get_randomized_grid_coordinates = lambda *_: coordinates
    try:
        yield
    finally:
        interpreter._get_randomized_grid_coordinates = before


def places(
    where: Mapping[str, np.ndarray], workload: str, outputs: Sequence[Mapping[str, Any]]
) -> dict[int, list[np.ndarray]]:
    """The arrays ``where/workload/output/axis`` of a job as ``Places``."""
    return {
        number: [where[f"where/{workload}/{spec['name']}/{axis}"] for axis in range(len(spec["shape"]))]
        for number, spec in enumerate(outputs)
    }
