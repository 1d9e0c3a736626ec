"""Gates on timed shapes, beside the small ones that everyone is checked on; chosen once a kernel is traced.

A kernel may be right on small shapes and wrong on large ones. Large ones are looked at in samples: some rows and
columns of each output, the last ones always, for which the check child runs the grid steps that they depend on and no
others (``workers.runners.pallas.sampled_grid``).
"""

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.fitness.evaluation import Stage
from tilewright.seeds.operator import Operator, Workload
from tilewright.seeds.sampled import OracleAt, windows
from tilewright.workers.cascade.modelled_stages import check, trace
from tilewright.workers.child.frames import dtype_named
from tilewright.workers.request import Failure, Findings, Request

CHEAP_FLOPS = 1 << 30
"""Work (FLOP) of the measured shapes, taken together, that pass the gates whatever the fitness."""

BEST_FLOPS, FINAL_FLOPS = 4 << 30, 12 << 30
"""Work (FLOP) of the shapes that a new best, and a finalist, passes as a whole; larger ones are sampled."""

CARRIED_FLOPS, CARRIED_KINDS = 160 << 30, 2
"""Work of the sampled shapes on which a finalist's grid is left whole along axes not declared parallel, and the kinds
of inputs, as the seed deals them, on which it is: all steps of 4096^3 on eight kinds take a processor minutes.

A kernel may carry what it likes along them, a count of steps among it, and so tell a sample from a run.
"""

ORACLE_FLOPS = 1 << 39
"""Work (FLOP) of the largest shape with whole references, for an operator that cannot sample them."""

ELEMENT_FLOPS = 256
"""Work of an element of an operand or result: it is drawn, sent, answered for and compared. 2^25 took 30 s."""

OPERAND_BYTES = 3 << 29
"""Bytes of the largest operands that gates are passed on."""


@dataclass(frozen=True)
class Shapes:
    """Shapes that pass the gates: ``whole`` ones, and those ``sampled`` at some rows and columns."""

    whole: tuple[Workload, ...] = ()
    sampled: tuple[Workload, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.whole or self.sampled)


def to_verify(request: Request, found: Findings, *, best: bool) -> Shapes:
    """Shapes beside the checked ones on which the gates must be passed, too.

    Those whose kernel does kinds of operations that no checked one does, or the reverse; all measured ones where that
    is cheap or the kernel would be the ``best`` so far; of the suite's others as many as such a kernel is given work
    for, and of a finalist all. Left out is what ``too_large`` says.
    """
    signatures = {found.facts[w.id].signature for w in request.checked if w.id in found.facts}
    measured = [w for w in request.measured if w not in request.checked]
    wanted = [w for w in measured if found.facts[w.id].signature not in signatures]
    if best or sum(_work(request.operator, w) for w in measured) <= CHEAP_FLOPS:
        wanted += [w for w in measured if w not in wanted]
    others = [w for w in request.unmeasured if best and w not in request.checked]
    left, whole = (FINAL_FLOPS if request.final else BEST_FLOPS) if best else CHEAP_FLOPS, []
    for workload in _shuffled([*wanted, *others], request, found):
        if (work := _work(request.operator, workload)) <= left:
            whole.append(workload)
            left -= work
    wanted += [w for w in others if request.final or w in whole]
    rest = (w for w in wanted if w not in whole and too_large(request.operator, w) is None)
    return Shapes(tuple(w for w in wanted if w in whole), tuple(rest))


def _work(operator: Operator, workload: Workload) -> int:
    elements = sum(math.prod(s.shape) for s in (*operator.inputs(workload), *operator.outputs(workload)))
    return max(operator.flops(workload), ELEMENT_FLOPS * elements)


def too_large(operator: Operator, workload: Workload) -> str | None:
    """The reason, in a few words, why a shape cannot pass the gates; None where it can."""
    size = sum(math.prod(s.shape) * dtype_named(s.dtype).itemsize for s in operator.inputs(workload))
    if size > OPERAND_BYTES:
        return f"its operands are {size / 2**30:.1f} GiB, at most {OPERAND_BYTES / 2**30:g} are made"
    if not isinstance(operator, OracleAt) and operator.flops(workload) > ORACLE_FLOPS:
        return "its answers take too long, and the operator has no oracle_at for some of them"
    return None


def _shuffled(workloads: Sequence[Workload], request: Request, found: Findings) -> list[Workload]:
    """Shapes in an order drawn from the kernel and the seed of the gates' inputs, which no candidate knows."""
    return random.Random(_key(request, found)).sample(list(workloads), len(workloads))


def _key(request: Request, found: Findings) -> str:
    return f"{request.seed} {sorted(found.sources.items())}"


class VerifyStage:
    """Stage that passes the gates on further shapes with two kinds of inputs, a finalist's with all."""

    stage = Stage.CHECK

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes

    def run(self, request: Request, found: Findings) -> Failure | None:
        """Another check child, on what was traced for the compiler where that was done.

        What fails on sampled shapes is interpreted once more without leaving out steps that others may build on.
        """
        rng = np.random.default_rng(list(_key(request, found).encode()))
        shapes = self._shapes
        again = dataclasses.replace(
            request,
            measured=(),
            checked=(*shapes.whole, *shapes.sampled),
            large_checks=(*shapes.whole, *shapes.sampled),
            sampled={w.id: windows(request.operator.outputs(w), rng, 1) for w in shapes.sampled},
            whole_axes=self._left_whole(request),
            is_known=lambda artefact: None,
        )
        before = len(found.gates)
        if (failure := trace(again, found)) is not None:
            return failure
        failure = check(again, found)
        wrong = {reading.workload for reading in found.gates[before:] if not reading.passed}
        if failure is None or wrong & {w.id for w in shapes.whole}:
            return failure
        passed = {reading.workload for reading in found.gates[before:]} - wrong
        left = tuple(w for w in again.checked if w.id not in passed)
        found.gates[before:] = [reading for reading in found.gates[before:] if reading.workload in passed]
        where = {name: axes for name, axes in again.sampled.items() if name not in passed}
        if not where:
            return failure
        retried = dataclasses.replace(
            again,
            checked=left,
            sampled=where,
            final=True,
            whole_axes=dict.fromkeys(where, request.operator.input_kinds),
        )
        return check(retried, found)

    def _left_whole(self, request: Request) -> dict[str, Sequence[str]]:
        """Kinds of inputs by the ids of shapes whose grids are left whole, those of least work first."""
        kept, left = [], CARRIED_FLOPS if request.final else 0
        for workload in sorted(self._shapes.sampled, key=request.operator.flops):
            left -= request.operator.flops(workload)
            if left >= 0:
                kept.append(workload)
        return {w.id: w.dealt(request.operator.input_kinds, request.seed, CARRIED_KINDS) for w in kept}
