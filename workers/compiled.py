"""The cascade of a target that only compiles: dialect, code for the target, gates in Triton's interpreter. No time.

Nothing is ranked: every candidate that compiles for the target and answers rightly has fitness 1. What its code says
(registers, spills, matrix instructions, widths of stores) describes it and places it in the archive.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fitness.evaluation import Evaluation, Stage, Verdict
from fitness.gpus import GPUS
from fitness.targets import Target
from seeds.operator import Operator, SeedKernel, Suite
from workers import gpu_recipe
from workers.attempt import Failure, Found, Request, StageStep
from workers.compiled_stages import CrossCompileStage, describe_config
from workers.limits import Limits
from workers.measured_stages import GateStage
from workers.processes import Spawn
from workers.sandbox import temporary_folder
from workers.session import Keeper, SessionDied
from workers.station import LocalStation
from workers.steps import DialectStage, run_steps
from workers.truth import Truth

FITNESS = 1.0
"""Of everything that passes: what only compiles is not ranked."""

_LOG_BYTES = 32 << 10


class CompiledCascade:
    """Evaluates genomes of one operator for one target that only compiles, one at a time.

    Not safe for several threads; make one per worker. ``close`` ends its children.
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
        compiler: Keeper | None = None,
    ) -> None:
        """``checked``: whether answers pass the gates; without, only the code is looked at.

        ``compiler``: the child of ``describe_config`` to use, for cascades that share one.
        """
        self._operator = operator
        self._truth = Truth(operator)
        self._target = target
        self._suite = suite
        self._limits = limits or Limits()
        self._scratch = scratch
        self._compiler = compiler or Keeper(describe_config())
        self._station = LocalStation(GPUS["interpreter"]) if checked else None
        self._worker = socket.gethostname()

    @property
    def replaced(self) -> int:
        """Compiling children that ended badly and were replaced."""
        return self._compiler.replaced

    def close(self) -> None:
        """Kill the children."""
        self._compiler.close()
        if self._station is not None:
            self._station.close()

    def evaluate(
        self,
        genome_id: str,
        source: str,
        params: Mapping[str, Any],
        *,
        seed: int,
        figures: str = "cycles",
        workloads: str = "suite",
        baseline: SeedKernel | None = None,
        known_artefacts: Collection[str] = (),
        best: float = 0.0,
        on_stage: Callable[[Stage], None] | None = None,
    ) -> Evaluation:
        """Judge one genome; as ``workers.cascade.Cascade.evaluate``, with no figures. Raises ValueError as that."""
        began = time.monotonic()
        found, compiling = Found(), CrossCompileStage(self._compiler)
        stage = Stage.DIALECT
        try:
            with temporary_folder(self._scratch) as folder:
                request = Request(
                    operator=self._operator,
                    truth=self._truth,
                    target=self._target,
                    limits=self._limits,
                    source=source,
                    params=params,
                    seed=seed,
                    timeline=False,
                    measured=self._suite.timed(workloads),
                    checked=() if baseline else self._suite.check,
                    baseline=baseline,
                    final=workloads == "final",
                    folder=folder,
                    is_known=lambda artefact: "an earlier genome" if artefact in known_artefacts else None,
                    launcher=Spawn(),
                )
                steps: list[StageStep] = [DialectStage("launch"), compiling]
                if self._station is not None and request.checked:
                    steps.append(GateStage(self._station))
                stage, failure = run_steps(steps, request, found, on_stage)
        except (OSError, SessionDied) as error:
            failure = Failure(Verdict.INFRA_ERROR, f"{type(error).__name__}: {error}")
        return self._evaluation(genome_id, stage, failure, found, compiling.code, time.monotonic() - began)

    def _evaluation(
        self,
        genome: str,
        stage: Stage,
        failure: Failure | None,
        found: Found,
        code: dict[str, dict[str, Any]],
        wall: float,
    ) -> Evaluation:
        passed = failure is None
        logs = [failure.log, *found.logs[-1:]] if failure else []
        return Evaluation(
            genome=genome,
            target=self._target.name,
            suite=self._suite.name,
            stage=(failure.stage or stage) if failure else stage,
            verdict=failure.verdict if failure else Verdict.OK,
            reason=failure.reason if failure else "",
            fitness=FITNESS if passed else None,
            interval=(FITNESS, FITNESS) if passed else None,
            gates=tuple(found.gates),
            descriptors=descriptors(code) if passed else {},
            compiled=code,
            artefact=found.artefact,
            toolchain=gpu_recipe.toolchain(),
            log="\n".join(text for text in logs if text)[-_LOG_BYTES:],
            wall_seconds=wall,
            worker=self._worker,
        )


def descriptors(compiled: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Where a kernel belongs in an archive: the occupancy bound, spills, matrix instruction and width of stores.

    Of several kernels, the worst bound and the narrowest stores count.
    """
    if not compiled:
        return {}
    kernels = list(compiled.values())
    matrix = sorted({name for k in kernels for name in k["matrix"]})
    return {
        "occupancy": f"{100 * min(k['occupancy'] for k in kernels):g}%",
        "spills": "yes" if any(k["spilled"] or k["stack_bytes"] for k in kernels) else "no",
        "matrix": ",".join(matrix) or "none",
        "stores": f"{min(k['store_bytes'] for k in kernels):.0f}B",
    }
