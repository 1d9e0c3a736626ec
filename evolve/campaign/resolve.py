"""Looks up what a checked configuration names; a missing thing is a UserError of one sentence."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.evolve.campaign.config import CampaignConfig
from tilewright.evolve.campaign.loop import Start
from tilewright.evolve.campaign.operator_check import check_operator
from tilewright.evolve.campaign.targets import named_target
from tilewright.evolve.errors import UserError
from tilewright.evolve.space.genome import Genome, Value
from tilewright.evolve.space.space import Space, SpaceError, nearest_point
from tilewright.fitness.architectures import Architecture
from tilewright.fitness.chips import Chip
from tilewright.fitness.dialect import is_cuda
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.score import floors
from tilewright.fitness.targets import Target, UnknownTarget, load_target
from tilewright.library import nvrtc
from tilewright.seeds.catalogue import UnknownOperator, load_operator
from tilewright.seeds.operator import Operator, SeedKernel, Suite, Workload
from tilewright.workers.toolchains.tpu import silence_libtpu


@dataclass(frozen=True)
class Resolved:
    """The parts of a campaign, all known to exist and to fit together."""

    config: CampaignConfig
    operator: Operator
    target: Target
    suite: Suite
    starts: tuple[Start, ...]
    baselines: tuple[tuple[SeedKernel, Genome], ...]
    given: tuple[Genome, ...] = ()
    """Points of the seeds that the search tries first."""

    def space(self, source: str) -> Space:
        """The space a kernel source declares, legal on every workload it will meet. Raises SpaceError."""
        return Space.from_source(source, self.constants)

    @property
    def shapes(self) -> tuple[Workload, ...]:
        """Every shape a candidate runs on."""
        return (*self.suite.workloads, *self.suite.final, *self.suite.check)

    @property
    def constants(self) -> list[Mapping[str, int | float]]:
        """What constraints may name beside parameters: one mapping for each of ``shapes``."""
        return [{**self.operator.constants, **self.target.constants, **s.dims} for s in self.shapes]

    def moved_starts(self) -> list[str]:
        """A line for each seed that starts beside its declared defaults: where, and which shape bars those."""
        found = []
        for name, genome in ((start.name, start.genome) for start in self.starts):
            declared = {**self.space(genome.source).defaults, **self.operator.kernels[name].overrides}
            wanted = Genome(genome.source, declared)  # type: ignore[arg-type]
            moved = ", ".join(f"{n} {v!r}" for n, v in sorted(genome.params.items()) if wanted.params[n] != v)
            reasons = ((shape.id, objection(self, wanted, shape)) for shape in self.shapes)
            if moved and (bar := next((f"{at}: {why}" for at, why in reasons if why), None)):
                found.append(f"starts from: seed {name} at {moved}, since its defaults are illegal at {bar}")
        return found

    def floors(self) -> dict[str, dict[str, float]]:
        """Seconds no schedule can beat, by workload and unit (see ``fitness.score.floors``)."""
        if self.target.compile_only:
            return {}
        shapes = (*self.suite.workloads, *self.suite.final)
        return {shape.id: floors(self.operator, shape, self.target.hardware) for shape in shapes}


RACING_PAYS: Mapping[FigureKind, int] = {FigureKind.MEASURED: 8, FigureKind.MODELLED: 4}
"""Workloads of a suite from which on racing saves more than it costs (docs/search.md). A device is asked once more for
each part of the suite; a modelled workload costs its compilation and nothing else."""


def target_of(config: CampaignConfig) -> Target:
    """The target that the configuration names. Raises UserError."""
    try:
        return load_target(named_target(config.target))
    except UnknownTarget as error:
        raise UserError(f"{error}.") from error


def resolve(config: CampaignConfig, ended: bool = False) -> Resolved:
    """Look up everything the configuration names. Seeds of an ``ended`` campaign may be gone. Raises UserError."""
    try:
        operator = load_operator(config.operator)
    except UnknownOperator as error:
        raise UserError(f"{error}.") from error
    target = target_of(config)
    config = config.model_copy(update={"target": target.name})
    if config.search.racing and target.compile_only:
        raise UserError(f"search.racing: target {target.name} only compiles and ranks nothing; leave it off.")
    suite = operator.suites.get(config.suite)
    if suite is None:
        raise _unknown("suite", config.suite, operator.suites)
    silence_libtpu()  # a reference may import JAX
    check_operator(config.operator, operator, suite)
    if config.search.racing is None:
        pays = len(suite.workloads) >= RACING_PAYS.get(target.kind, len(suite.workloads) + 1)
        config = config.model_copy(update={"search": config.search.model_copy(update={"racing": pays})})
    seeds = [name for name, kernel in operator.kernels.items() if not kernel.baseline]
    if ended:
        config = config.model_copy(update={"seeds": tuple(name for name in config.seeds if name in seeds)})
    for name in config.seeds:
        if name in seeds and (obstacle := language_obstacle(operator.kernels[name].source, target)):
            raise UserError(f"seeds: {name!r} {obstacle}.")
    baselines = [name for name, kernel in operator.kernels.items() if kernel.baseline]
    for name in config.seeds:
        if name not in seeds:
            raise _unknown("seeds", name, seeds)
    for name in config.baselines or ():
        if name not in baselines:
            raise _unknown("baselines", name, baselines)
    if not seeds:
        raise UserError(f"seeds: {config.operator} has no seed kernel; add one to its kernels.")
    shell = Resolved(config, operator, target, suite, (), ())
    chosen = config.seeds or _that_fit(shell, seeds)
    _check_descriptors(shell)
    starts = tuple(Start(name, _genome(shell, operator.kernels[name])) for name in chosen)
    wanted = tuple(baselines) if config.baselines is None else config.baselines
    measured = tuple((operator.kernels[name], _genome(shell, operator.kernels[name])) for name in wanted)
    given = tuple(genome for name in chosen for genome in _given_points(shell, operator.kernels[name]))
    return Resolved(config, operator, target, suite, starts, measured, given)


def _that_fit(resolved: Resolved, names: Sequence[str]) -> tuple[str, ...]:
    """Seeds that have a legal point on this suite; all of them when none has, so that the error names the cause."""
    kernels, target, found = resolved.operator.kernels, resolved.target, []
    for name in names:
        if language_obstacle(kernels[name].source, target):
            continue
        with contextlib.suppress(UserError):
            _genome(resolved, resolved.operator.kernels[name])
            found.append(name)
    return tuple(found or names)


def language_obstacle(source: str, target: Target) -> str | None:
    """Why a kernel's language does not run on a target, as the end of a sentence; None where it does."""
    if not is_cuda(source):
        return None
    if target.interpreted or isinstance(target.part, Chip):
        return f"is CUDA C++, which target {target.name} cannot run; take an NVIDIA GPU or sm_90"
    if isinstance(target.part, Architecture) and target.part.backend != "cuda":
        return f"is CUDA C++, which does not compile for target {target.name}"
    if nvrtc.version() == "missing":
        return "is CUDA C++; install its compiler (pip install 'tilewright[cuda]')"
    return None


def objection(resolved: Resolved, genome: Genome, workload: Workload) -> str | None:
    """Why a genome is not legal for a workload; None for one that is."""
    constants = {**resolved.operator.constants, **resolved.target.constants, **workload.dims}
    try:
        reasons = Space.from_source(genome.source, constants).violations(genome.params)
    except SpaceError as error:
        return str(error)
    return reasons[0] if reasons else None


def _check_descriptors(resolved: Resolved) -> None:
    """A misspelt descriptor would leave every candidate in one cell."""
    kernels = resolved.operator.kernels.values()
    parameters = {name for kernel in kernels for name in _parameters(resolved, kernel)}
    for name in resolved.config.search.descriptors:
        if name not in parameters:
            raise _unknown("search.descriptors", name, sorted(parameters))


def _parameters(resolved: Resolved, kernel: SeedKernel) -> Iterable[str]:
    try:
        return resolved.space(kernel.source).defaults
    except SpaceError:
        return ()  # reported where the kernel is used


def _given_points(resolved: Resolved, kernel: SeedKernel) -> Iterable[Genome]:
    """The kernel's points that are legal on this suite. Raises UserError for a parameter it does not have."""
    start = _genome(resolved, kernel)
    space = resolved.space(kernel.source)
    for point in kernel.points:
        for name in point:
            if name not in space.parameters:
                raise UserError(
                    f"kernel {kernel.name}: points: {name} is no parameter (allowed: {', '.join(space.names)})."
                )
        params: dict[str, Value] = {**start.params, **point}  # type: ignore[dict-item]
        if space.legal(params):
            yield Genome(kernel.source, params)


def _genome(resolved: Resolved, kernel: SeedKernel) -> Genome:
    try:
        space = resolved.space(kernel.source)
    except SpaceError as error:
        raise UserError(f"kernel {kernel.name}: {error}") from error
    params: dict[str, Value] = {**space.defaults, **kernel.overrides}  # type: ignore[dict-item]
    if reasons := space.violations(params):
        # made for other shapes than this suite's
        legal = nearest_point(space, params)
        if legal is None:
            raise UserError(f"kernel {kernel.name}: its defaults are illegal: {reasons[0]}.")
        params = legal
    return Genome(kernel.source, params)


def _unknown(key: str, value: str, allowed: Iterable[str]) -> UserError:
    return UserError(f"{key}: {value!r} is unknown (allowed: {', '.join(allowed)}).")
