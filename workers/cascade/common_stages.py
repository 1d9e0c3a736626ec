"""Parts of modelled and measured cascades alike: the dialect's stage, the order of stages, kinds of inputs."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from tilewright.fitness import dialect
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.original import is_original
from tilewright.seeds.operator import Workload
from tilewright.workers.request import Failure, Findings, Request, StageStep, one_line


class DialectStage:
    """Stage that checks the source's syntax tree, before anything runs."""

    stage = Stage.DIALECT

    def __init__(self, entry: str) -> None:
        """``entry``: the function a source must define."""
        self._entry = entry

    def run(self, request: Request, found: Findings) -> Failure | None:
        """A failure for a source outside the dialect, unless it is a function of the operator's own as it stands."""
        if (
            self._entry == "build"
            and is_original(request.source)
            and request.source in {seed.source for seed in request.operator.kernels.values()}
        ):
            return None
        violations = _violations(request.source, self._entry)
        if not violations:
            return None
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        log = "\n".join(str(violation) for violation in violations)
        return Failure(Verdict.REJECTED, one_line(str(violations[0])) + more, log)


@lru_cache(maxsize=64)
def _violations(source: str, entry: str) -> tuple[dialect.Violation, ...]:
    """Violations of a source, kept, since most candidates are other parameters of a source that was read before."""
    return tuple(dialect.check(source, entry=entry))


def run_steps(
    steps: Iterable[StageStep], request: Request, found: Findings, on_stage: Callable[[Stage], None] | None
) -> tuple[Stage, Failure | None]:
    """(stage that decided, its failure or None), after running stages until one fails."""
    stage = Stage.DIALECT
    for step in steps:
        stage = step.stage
        if on_stage is not None:
            on_stage(stage)
        failure = step.run(request, found)
        if failure is not None:
            return failure.stage or stage, failure
    return stage, None


class RaceStage:
    """Race: the steps that time workloads run on few of them first, and on more while the candidate may contend."""

    stage = Stage.MEASURE

    def __init__(self, steps: Sequence[StageStep], cell: Callable[[Findings], Mapping[str, str]]) -> None:
        """``cell``: the descriptors that are known so far."""
        self._steps = steps
        self._cell = cell

    def run(self, request: Request, found: Findings) -> Failure | None:
        """None once all of ``measured`` is timed, else the first failure or ``outpaced``; at once without a race."""
        left = list(request.measured)
        for rung in request.race.rungs if request.race is not None else ():
            chosen = [w for w in left if w.id in rung.workloads]
            left = [w for w in left if w not in chosen]
            if chosen and (failure := self._time(request, found, chosen)) is not None:
                return failure
            assert request.race is not None
            outpaced = request.race.outpaced(rung, found.figures, self._cell(found))
            if left and outpaced is not None:
                found.projected = outpaced.projected
                return Failure(Verdict.OUTPACED, str(outpaced))
        return self._time(request, found, left) if left else None

    def _time(self, request: Request, found: Findings, workloads: Sequence[Workload]) -> Failure | None:
        part = dataclasses.replace(request, measured=tuple(workloads))
        stage, failure = run_steps(self._steps, part, found, None)
        order = {w.id: n for n, w in enumerate(request.measured)}
        found.figures.sort(key=lambda figures: order[figures.workload])
        return failure and dataclasses.replace(failure, stage=failure.stage or stage)


def dealt_kinds(request: Request, workload: Workload, most: int | None = None) -> Sequence[str]:
    """Kinds of inputs for one checked shape, as the request's seed deals them; all where the request says so.

    ``most``: so many; None: each kind runs on one of the checked shapes, as while searching, the next seed on another.
    """
    kinds = request.operator.input_kinds
    if workload.id in request.every_kind:
        return kinds
    if most is not None:
        return workload.dealt(kinds, request.seed, most)
    place, shapes = request.checked.index(workload), len(request.checked)
    return [kind for turn, kind in enumerate(kinds) if (turn + request.seed) % shapes == place]
