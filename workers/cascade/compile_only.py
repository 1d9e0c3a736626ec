"""The cascade of a target that only compiles: dialect, code for the target, gates in Triton's interpreter. No time.

Nothing is ranked: every candidate that compiles for the target and answers rightly has fitness 1. What its code says
(registers, spills, matrix instructions, widths of stores) describes it and places it in the archive.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.fitness.dialect import is_cuda
from tilewright.fitness.evaluation import Stage
from tilewright.fitness.gpus import GPUS
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import Operator, Suite
from tilewright.workers.cascade.base import Cascade
from tilewright.workers.cascade.common_stages import DialectStage, run_steps
from tilewright.workers.cascade.compile_only_stages import CrossCompileStage, describe_children
from tilewright.workers.cascade.measured_stages import GateStage
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.launch import Spawn
from tilewright.workers.device.station import LocalStation
from tilewright.workers.request import Failure, Findings, Limits, Request, StageStep
from tilewright.workers.toolchains import triton as triton_toolchain

LEAST_YIELDS = 0.25
"""Share of FFMAs with a yield from which an archive tells kernels apart."""

FITNESS = 1.0
"""Of everything that passes: what only compiles is not ranked."""


class CompileOnlyCascade(Cascade):
    """Evaluates genomes of one operator for one target that only compiles, one at a time.

    Not safe for several threads; make one per worker. ``close`` ends its children. ``best`` and ``race`` are not used.
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        suite: Suite,
        limits: Limits | None = None,
        *,
        scratch: Path | None = None,
        checked: bool = True,
        compiler: ForkedChildren | None = None,
    ) -> None:
        """``checked``: whether answers pass the gates; without, only the code is looked at.

        ``compiler``: those of ``describe_children`` to use, for cascades that share one.
        """
        super().__init__(operator, target, suite, limits, scratch, Spawn())
        self._compiler = compiler or describe_children(scratch)
        self._station = LocalStation(GPUS["interpreter"], scratch) if checked else None

    @property
    def replaced(self) -> int:
        """Compiling children that ended badly and were replaced."""
        return self._compiler.replaced

    def close(self) -> None:
        """Kill the children."""
        self._compiler.close()
        if self._station is not None:
            self._station.close()

    def _judge(
        self, request: Request, found: Findings, on_stage: Callable[[Stage], None] | None
    ) -> tuple[Stage, Failure | None]:
        steps: list[StageStep] = [DialectStage("launch"), CrossCompileStage(self._compiler)]
        # no interpreter runs CUDA C++: it is compiled and read, and its answers are for a device to give
        if self._station is not None and request.checked and not is_cuda(request.source):
            steps.append(GateStage(self._station))
        return run_steps(steps, request, found, on_stage)

    def _worth(self, found: Findings) -> tuple[float, tuple[float, float], dict[str, str]]:
        return FITNESS, (FITNESS, FITNESS), descriptors(found.compiled)

    def _toolchain(self, failure: Failure | None) -> dict[str, str]:
        return triton_toolchain.toolchain()


def code_descriptors(compiled: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The same of what ``machine_code`` reads: spills, matrix instruction, and whether FFMAs yield."""
    kernels = list(compiled.values())
    matrix = sorted({name for k in kernels for name in k["matrix"]})
    return {
        "spills": "yes" if any(k["spills"] for k in kernels) else "no",
        "matrix": ",".join(matrix) or "none",
        "yields": "yes" if any(k["yields"] >= LEAST_YIELDS for k in kernels) else "no",
    }


def descriptors(compiled: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Where a kernel belongs in an archive: the occupancy bound, spills, matrix instruction and width of stores.

    Of several kernels, the worst bound and the narrowest stores count.
    """
    if not compiled:
        return {}
    kernels = list(compiled.values())
    if "occupancy" not in kernels[0]:
        return code_descriptors(compiled)
    matrix = sorted({name for k in kernels for name in k["matrix"]})
    return {
        "occupancy": f"{100 * min(k['occupancy'] for k in kernels):g}%",
        "spills": "yes" if any(k["spilled"] or k["stack_bytes"] for k in kernels) else "no",
        "matrix": ",".join(matrix) or "none",
        "stores": f"{min(k['store_bytes'] for k in kernels):.0f}B",
    }
