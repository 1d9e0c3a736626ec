"""A kernel module's ``build`` at the shapes of a call: traced, interpreted, and lowered for a modelled target.

The seed is lowered here as every candidate is, so that problems are reported before a campaign begins.
"""

import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import jaxprs_in_params
from jax._src.pallas.mosaic import lowering
from jax._src.pallas.mosaic.core import CoreType
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import ClosedJaxpr, Literal

from tilewright.fitness.chips import Chip
from tilewright.fitness.tpu import structure
from tilewright.seeds.operator import TensorSpec
from tilewright.seeds.sampled import windows
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.operator import Operand, known_values
from tilewright.workers.intake.pallas.block_sizes import kernels_in
from tilewright.workers.intake.pallas.original import on_chip, plain_jaxpr
from tilewright.workers.runners.failures import describe
from tilewright.workers.runners.pallas.check import IN_ORDER, exported, interpret, settings_of
from tilewright.workers.runners.pallas.jaxpr_codec import decode, encode
from tilewright.workers.runners.pallas.sampled_grid import Program
from tilewright.workers.runners.pallas.trace import check_form, closed_of, mesh_of

Dims = Mapping[str, int]
Params = Mapping[str, int]
Build = Callable[[dict[str, int]], Callable[..., Any]]

_NAMES = re.compile(rb'"(N|name)":(null|"[^"]*")')

UNREAD = "an operand that nothing reads"
"""Stands among the work beside kernels of a function that does not use all that it is given."""

KEPT, KEPT_TRACES = 4, 256
"""Runs whose outputs are kept, and jaxprs."""


def shaped(operands: Sequence[Operand], dims: Dims) -> list[jax.ShapeDtypeStruct]:
    """Operands at a shape, without values."""
    return [jax.ShapeDtypeStruct(o.sizes(dims), jnp.dtype(o.dtype)) for o in operands]


@dataclass
class SeedBuild:
    """``build`` of a module for a chip, with its operands."""

    chip: Chip
    build: Build
    operands: Sequence[Operand]
    strict: bool = True
    """Whether runs are those of the gates' interpreter, where reading outside an array raises; else of a quicker one
    with the same numbers, for kernels without anything beside the core."""
    kept: dict[str, list[np.ndarray]] = field(default_factory=dict)
    compiled: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """By parameters and shapes, and by what these trace to: many trace to the same."""
    made: dict[str, ClosedJaxpr] = field(default_factory=dict)
    first_seconds: float = 0.0
    """Of a processor, which the last run took that was compiled for it."""

    def mesh(self) -> Any:
        """While it is entered, code is traced for the chip: a pipeline within a kernel asks which one."""
        return mesh_of({"kind": self.chip.device_kind, "cores": self.chip.cores})

    def closed(self, dims: Dims, params: Params) -> ClosedJaxpr:
        """What it traces to, as candidates are judged by. Raises what the function raises."""
        return self._closed(params, shaped(self.operands, dims))

    def _closed(self, params: Params, specs: Sequence[jax.ShapeDtypeStruct]) -> ClosedJaxpr:
        key = repr((sorted(params.items()), [(s.dtype.name, s.shape) for s in specs]))
        if key not in self.made:
            with on_chip({"kind": self.chip.device_kind, "cores": self.chip.cores}):
                self.made[key] = plain_jaxpr(closed_of(self.build(dict(params)), specs))
            if len(self.made) > KEPT_TRACES:
                del self.made[next(iter(self.made))]
        return self.made[key]

    def identity(self, closed: ClosedJaxpr) -> str:
        """Hash of what a jaxpr does, whatever its functions are called. Raises NoForm."""
        with self.mesh():
            made = encode(closed)
        return replace(made, text=_NAMES.sub(b"", made.text)).hash

    def interpreted(self, params: Params, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs of named inputs: see ``run``."""
        return self.run(params, [inputs[o.name] for o in self.operands])

    def run(self, params: Params, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs under the interpreter that gates use; those of the last runs are kept, since a kernel that is its
        own reference is asked twice. Raises what the kernel raises."""
        digest = hashlib.sha256(repr(sorted(params.items())).encode())
        for array in operands:
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        key = digest.hexdigest()
        if key not in self.kept:
            self.kept[key] = self._interpreted(params, operands)
            if len(self.kept) > KEPT:
                del self.kept[next(iter(self.kept))]
        return self.kept[key]

    def _interpreted(self, params: Params, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        pltpu.reset_tpu_interpret_mode_state()  # a kernel that failed leaves state that would fail the next
        key = repr((self.strict, sorted(params.items()), [(a.dtype.name, a.shape) for a in operands]))
        began, new = time.process_time(), key not in self.compiled
        with self.mesh():
            if new:
                closed = self._closed(params, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands])
                quick = not self.strict and settings_of(closed) is IN_ORDER
                what = f"{quick} {self.identity(closed)}"
                if what not in self.compiled:
                    self.compiled[what] = jax.jit(lambda *given: interpret(closed, given, quick or IN_ORDER))
                self.compiled[key] = self.compiled[what]
            made = [np.asarray(r) for r in self.compiled[key](*operands)]
        self.first_seconds = time.process_time() - began if new else self.first_seconds
        return made

    def equations(self, dims: Dims, params: Params) -> int:
        """How many there are, those of a loop once: what is unrolled takes long to compile."""
        return _equations(self.closed(dims, params).jaxpr)

    def sampled(
        self, dims: Dims, params: Params, inputs: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
        """Some rows and columns of the outputs at a large shape, as gates sample them, and where they are."""
        pltpu.reset_tpu_interpret_mode_state()
        with self.mesh():
            closed = self.closed(dims, params)
            specs = [TensorSpec(str(n), tuple(a.shape), a.dtype.name) for n, a in enumerate(closed.out_avals)]
            axes = windows(specs, rng)
            where = [list(axes[spec.name]) for spec in specs]
            program = Program(closed, [inputs[o.name] for o in self.operands])
            return program.run(dict(enumerate(where)), settings_of(closed)), where

    def elements(self, dims: Dims, params: Params) -> tuple[int, int]:
        """Of what the kernels read and write, and of the blocks that cover it."""
        kernels = kernels_in(self.closed(dims, params).jaxpr)
        blocks = [block for kernel in kernels for block in kernel.params["grid_mapping"].block_mappings]
        sizes = [(b.array_aval.shape, [getattr(n, "block_size", 1) for n in b.block_shape]) for b in blocks]
        covered = sum(math.prod(-(-n // step) * step for n, step in zip(*of, strict=True)) for of in sizes)
        return sum(math.prod(shape) for shape, _ in sizes), covered

    def result_shapes(self, dims: Dims, params: Params) -> list[tuple[int, ...]]:
        return [tuple(aval.shape) for aval in self.closed(dims, params).out_avals]

    def traced(self, dims: Dims, params: Params) -> ClosedJaxpr:
        """Its jaxpr. Raises what it raises, ValueError for blocks that no TPU takes, Refusal where a kernel never runs
        or leaves its operands."""
        closed = self.closed(dims, params)
        for equation in kernels_in(closed.jaxpr):
            mapping, info = equation.params["grid_mapping"], equation.params["jaxpr"].debug_info
            if 0 in mapping.grid:  # a block that is larger than what it divides
                raise Refusal(f"the grid is empty for {dict(dims)} and {dict(params)}: the kernel never runs")
            if not _reaches(mapping):
                raise Refusal(f"a block begins behind the end of its operand for {dict(dims)} and {dict(params)}")
            with self.mesh():
                lowering._check_block_mappings(mapping.block_mappings, None, info, CoreType.TC)
        return closed

    def lowered(
        self,
        params: Mapping[str, Params],
        results: Sequence[str],
        work: Mapping[str, int] | None,
        shapes: Mapping[str, Dims],
    ) -> tuple[frozenset[str], dict[str, int], list[str]]:
        """Operations beside the kernels at these shapes; FLOP of the products that any candidate must do, by shape;
        and why no time can be modelled, if so.

        ``params``: by shape. ``work``: FLOP of the products in the reference, which may do more than it must, as all of
        a masked square; what the function itself does is enough. None: the function is its own reference.
        """
        from tilewright.workers.runners.mosaic.facts import module_facts
        from tilewright.workers.runners.mosaic.known_operands import bind

        beside: frozenset[str] = frozenset()
        reasons, needed, around = [], {}, set()
        names = [o.name for o in self.operands]
        for label, dims in shapes.items():
            specs = [{"name": o.name, "shape": list(o.sizes(dims)), "dtype": o.dtype} for o in self.operands]
            try:
                with self.mesh():
                    closed = self.closed(dims, params[label])
                    made = closed.out_avals
                    outputs = [
                        {"name": f"o{n}", "shape": list(m.shape), "dtype": m.dtype.name} for n, m in enumerate(made)
                    ]
                    workload = {"id": "seed", "inputs": specs, "outputs": outputs}
                    check_form(closed, workload)
                    closed = decode(encode(closed))  # as candidates are compiled
                    module = exported(workload, closed, "seed").blobs["module"]
                known = {names.index(n): np.ravel(v) for n, v in known_values(self.operands, dims).items()}
                facts = structure.ModuleFacts.from_data(module_facts(module, bind(module, known)))
            except Exception as error:  # noqa: BLE001 - whatever lowering raises
                row = describe(error)
                reasons.append(f"it does not lower for {self.chip.name}: {row['type']}: {row['message']}"[:400])
                continue
            own = structure.work_beside(facts)
            own |= {UNREAD} if facts.unused_operands else set()
            beside |= own
            around.add(structure.ALONE + facts.around)
            done, asked = facts.matmul_flops, (work or {}).get(label, 0)
            needed[label] = asked if done is None else done if work is None else min(asked, done)
            reason = structure.objection(facts, names, results, own)
            reason = reason or structure.missing_work(facts, needed[label])
            if reason is not None:
                reasons.append(f"no time can be modelled for {self.chip.name}: {reason}")
        beside |= around if structure.timed_alone(beside) else set()
        return beside, needed, list(dict.fromkeys(reasons))


_SHAPED = frozenset(
    ("reshape", "pad", "transpose", "squeeze", "broadcast_in_dim", "slice", "with_memory_space_constraint")
)


def picked(closed: ClosedJaxpr) -> tuple[set[int], set[int]]:
    """Numbers of the operands of which a kernel may read a part: it copies them by hand, as pages that a table names,
    or integers say where its blocks lie. And of the outputs that are such an operand, changed in place."""
    origins: dict[Any, set[int]] = {v: {n} for n, v in enumerate(closed.jaxpr.invars)}
    found = _picked(closed.jaxpr, origins)
    outputs = [set() if isinstance(v, Literal) else origins.get(v, set()) for v in closed.jaxpr.outvars]
    return found, {n for n, of in enumerate(outputs) if of & found}


def _picked(jaxpr: Any, origins: dict[Any, set[int]]) -> set[int]:
    """``origins``: by variable, the operands that it is made of; those of the jaxpr's own are added."""
    found: set[int] = set()
    for equation in jaxpr.eqns:
        given = [set() if isinstance(v, Literal) else origins.get(v, set()) for v in equation.invars]
        params, made = equation.params, equation.outvars
        if equation.primitive.name == "pallas_call":
            mapping = params["grid_mapping"]
            count = mapping.num_dynamic_grid_bounds
            for of, ref in zip(given[count:], params["jaxpr"].invars, strict=False):
                found |= of if str(getattr(ref.aval, "memory_space", "")) in ("any", "hbm") else set()
            for of, block in zip(given[count + mapping.num_index_operands :], mapping.block_mappings, strict=False):
                place = block.index_map_jaxpr.jaxpr  # may depend on integers beside the axes of the grid
                integers = set(place.invars[len(mapping.grid) :])
                asked = (v for e in place.eqns for v in e.invars if not isinstance(v, Literal))
                found |= of if integers.intersection(asked) else set()
            origins.update((made[output], given[count + n]) for n, output in params["input_output_aliases"])
        elif equation.primitive.name == "jit":
            inner = params["jaxpr"].jaxpr
            within = dict(zip(inner.invars, given, strict=True))
            found |= _picked(inner, within)
            origins.update((v, within[of]) for v, of in zip(made, inner.outvars, strict=True) if of in within)
        elif equation.primitive.name in _SHAPED:
            origins[made[0]] = given[0]
    return found


def _equations(jaxpr: Any) -> int:
    return sum(1 + sum(map(_equations, jaxprs_in_params(e.params))) for e in jaxpr.eqns)


def _reaches(mapping: Any) -> bool:
    """Whether the last step of a grid begins its blocks within their operands, as far as grids alone say where."""
    last = [np.int32(size - 1) for size in mapping.grid if isinstance(size, int)]
    for block in mapping.block_mappings:
        index_map = block.index_map_jaxpr
        if len(last) != len(index_map.jaxpr.invars):
            continue  # values say where
        at = jax.core.eval_jaxpr(index_map.jaxpr, index_map.consts, *last)
        steps = [getattr(size, "block_size", 1) for size in block.block_shape]
        if any(int(n) * step >= size for n, step, size in zip(at, steps, block.array_aval.shape, strict=True)):
            return False
    return True
