"""Re-verification: candidates from scratch in fresh workers, on inputs nobody has seen, beside the incumbent.

A campaign's own figures count for nothing here. Every round asks the pool for the suite's final workloads with
a new seed, which checks all kinds of inputs (outliers, spread magnitudes, zero blocks; tails where the suite has
them) on all check shapes, under the race detector where there is one, and times every shape again. On a measured
target everyone is then timed side by side on the device, in rounds of reversed order, for the figures that count.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.errors import UserError
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.original import is_original
from tilewright.seeds.operator import Scope
from tilewright.workers.cascade.drawn_shapes import drawn_dims
from tilewright.workers.cascade.verify_shapes import too_large
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.pool import Pool
from tilewright.workers.device.comparison import Comparison

FACTOR = 10
"""Sets of inputs, as a multiple of what the search checked a candidate on."""

WAIT_SECONDS = 0.5
SAME_FIGURE = 1e-9


class Refusal(UserError):
    """The promotion is refused. ``genome``: of the kernel that failed."""

    def __init__(self, message: str, *, genome: str | None = None) -> None:
        super().__init__(message)
        self.genome = genome


@dataclass(frozen=True)
class Contender:
    """A genome under the name it has in the receipt. ``baseline`` names the operator's baseline kernel it is.

    ``only``: ids of the shapes it is evaluated on (see ``evolve.promote.serving``); None: all of the suite's.
    ``within``: constraints of the table that it serves from, which shapes by lot keep to.
    """

    name: str
    genome: Genome
    baseline: str | None = None
    only: frozenset[str] | None = None
    within: tuple[str, ...] = ()


@dataclass
class Verified:
    """Every evaluation of one contender; all have the verdict ``ok``."""

    contender: Contender
    seeds: list[int] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def seconds(self, workload: str) -> list[float]:
        """Seconds per call in each round that measured ``workload``."""
        return [f.seconds for e in self.evaluations for f in e.workloads if f.workload == workload]

    @property
    def input_sets(self) -> int:
        """Checked pairs of a shape and a set of inputs."""
        per_set = max(1, len({reading.gate for e in self.evaluations for reading in e.gates}))
        return sum(len(e.gates) for e in self.evaluations) // per_set


def rounds_needed(resolved: Resolved) -> int:
    """Rounds after which the gates have seen ``FACTOR`` times the search's sets of inputs."""
    kinds = len(resolved.operator.input_kinds)
    a_round = kinds * len(resolved.suite.check) + 1
    return math.ceil(FACTOR * kinds / a_round)


@dataclass(frozen=True)
class Verification:
    """Evaluations by contender's name, and, on a measured target, everyone's times side by side."""

    found: Mapping[str, Verified]
    comparison: Comparison | None = None


def verify(
    resolved: Resolved,
    contenders: Sequence[Contender],
    incumbents: Sequence[Contender],
    evaluator: Pool,
    say: Callable[[str], None],
    rounds: int | None = None,
    first_job: int = 0,
) -> Verification:
    """Evaluate everyone. Raises Refusal for a contender that fails, UserError for failing workers.

    After a refusal nobody waits for what else was asked: whoever asks the same evaluator again begins at another
    ``first_job``, and late answers are left aside.
    """
    for contender in contenders:
        if is_original(contender.genome.source):
            raise Refusal(
                f"promotion refused: {contender.name} runs your file as it stands, and a library holds kernels of the "
                "dialect; use the module that tune wrote."
            )
    rng = np.random.default_rng(secrets.randbits(64))
    jobs = _jobs(resolved, contenders, incumbents, rounds or rounds_needed(resolved), rng, first_job)
    found = {c.name: Verified(c) for c in (*contenders, *incumbents)}
    owner = {job.index: name for name, job in jobs}
    for _, job in jobs:
        evaluator.submit(job)
    done = 0
    while done < len(jobs):
        for index, evaluation in evaluator.wait(WAIT_SECONDS):
            if index not in owner:
                continue
            done += 1
            mine = found[owner[index]]
            try:
                _require_ok(mine.contender, evaluation)
            except UserError:
                evaluator.drop(owner)
                raise
            mine.evaluations.append(evaluation)
            say(f"verified {done} of {len(jobs)}: {owner[index]}, round {len(mine.evaluations)}")
    for name, job in jobs:
        found[name].seeds.append(job.seed)
    if not resolved.target.measured:
        for verified in found.values():
            _require_repeatable(verified)
            _require_gated(resolved, verified)
        return Verification(found)
    say("comparing on the device")
    return Verification(found, _comparison(found, evaluator, int(rng.integers(2**31))))


def _comparison(found: Mapping[str, Verified], evaluator: Pool, seed: int) -> Comparison:
    contenders = [v.contender for v in found.values()]
    genomes = {c.genome.id: c.genome for c in contenders}
    only: dict[str, frozenset[str]] = {}
    for contender in contenders:
        if contender.only is not None:
            only[contender.genome.id] = only.get(contender.genome.id, frozenset()) | contender.only
    try:
        comparison = evaluator.compare(list(genomes.values()), seed, only)
    except ConnectionError as error:
        raise UserError(f"the comparison on the device failed: {error}; nothing was promoted.") from error
    for verified in found.values():
        genome = verified.contender.genome.id
        if (reason := comparison.failed.get(genome)) is not None:
            name = verified.contender.name
            raise Refusal(f"promotion refused: {name} fails while it is timed: {reason}.", genome=genome)
    return comparison


def _jobs(
    resolved: Resolved,
    contenders: Sequence[Contender],
    incumbents: Sequence[Contender],
    rounds: int,
    rng: np.random.Generator,
    first_job: int,
) -> list[tuple[str, Job]]:
    plan: list[tuple[Contender, Scope]] = []
    for turn in range(rounds):
        # the incumbent was verified when it was promoted: one round, for its figures
        present = [*contenders, *(incumbents if turn == 0 else ())]
        plan += [(c, Scope.FINAL) for c in (present if turn % 2 == 0 else present[::-1])]
    if resolved.suite.final:
        plan += [(c, Scope.SUITE) for c in (*contenders, *incumbents)]
    shapes = {scope: {w.id for w in resolved.suite.timed(scope)} for _, scope in plan}
    plan = [(c, scope) for c, scope in plan if c.only is None or c.only & shapes[scope]]
    jobs = []
    for index, (contender, scope) in enumerate(plan, first_job):
        seed = int(rng.integers(2**31))
        best = math.inf if contender.baseline else 0.0
        job = Job(
            index,
            contender.genome,
            seed,
            best=best,
            scope=scope,
            baseline=contender.baseline,
            only=contender.only,
            within=contender.within,
        )
        jobs.append((contender.name, job))
    return jobs


def _require_ok(contender: Contender, evaluation: Evaluation) -> None:
    if evaluation.verdict is Verdict.INFRA_ERROR:
        raise UserError(f"workers keep failing: {evaluation.reason}; nothing was promoted.")
    if evaluation.verdict is not Verdict.OK:
        raise Refusal(
            f"promotion refused: {contender.name} fails its re-verification: {evaluation.verdict.value} at "
            f"{evaluation.stage.value}, {evaluation.reason}.",
            genome=contender.genome.id,
        )


def _require_repeatable(verified: Verified) -> None:
    """A modelled contender compiles to one artefact a scope, with the same figures each time."""
    first: dict[str, float] = {}
    artefacts: dict[tuple[str, ...], str | None] = {}
    for evaluation in verified.evaluations:
        shapes = tuple(f.workload for f in evaluation.workloads)
        if artefacts.setdefault(shapes, evaluation.artefact) != evaluation.artefact:
            raise Refusal(f"promotion refused: {verified.contender.name} compiles differently each time.")
        for figures in evaluation.workloads:
            known = first.setdefault(figures.workload, figures.seconds)
            if abs(figures.seconds - known) > SAME_FIGURE * known:
                raise Refusal(
                    f"promotion refused: {verified.contender.name} takes {known:.6g} s and {figures.seconds:.6g} s "
                    f"on {figures.workload} (modelled), which should repeat exactly."
                )


def _require_gated(resolved: Resolved, verified: Verified) -> None:
    """Every shape that a kernel is promoted for has passed the gates; a device judges what it times anyway."""
    if verified.contender.baseline is not None:
        return
    passed = {r.workload for e in verified.evaluations for r in e.gates if r.passed}
    suite = resolved.suite
    for workload in dict.fromkeys((*suite.timed(Scope.FINAL), *suite.timed(Scope.SUITE))):
        if workload.id not in passed and verified.seconds(workload.id):
            reason = too_large(resolved.operator, workload) or "no gate was read there"
            raise Refusal(f"promotion refused: {verified.contender.name} was not checked on {workload.id}: {reason}.")


def served_constraints(
    evaluations: Sequence[Evaluation], shapes: Sequence[Mapping[str, int]], alone: bool = False
) -> list[str]:
    """Constraints that keep a library to the shapes that a kernel was verified on, and, not ``alone``, those between.

    ``shapes``: what it is promoted for; the others were drawn. Each size lies between the least and the largest seen,
    and is a multiple of what all seen ones are multiples of; shapes that were left out are left out.
    """
    drawn = [drawn_dims(name) for evaluation in evaluations for name in evaluation.drawn]
    seen = [*shapes, *drawn]
    if alone:
        texts = (" and ".join(f"{name} == {size}" for name, size in shape.items()) for shape in seen)
        return [" or ".join(dict.fromkeys(f"({text})" for text in texts))]
    found = []
    for name in shapes[0]:
        sizes = [shape[name] for shape in seen]
        found.append(f"{min(sizes)} <= {name} <= {max(sizes)}")
        if (step := math.gcd(*sizes)) > 1:
            found.append(f"{name} % {step} == 0")
    return [*found, *left_out_constraints(evaluations)]


def left_out_constraints(evaluations: Sequence[Evaluation]) -> list[str]:
    """Constraints that leave out the drawn shapes outside of what a kernel takes, one for each shape."""
    shapes = dict.fromkeys(name for evaluation in evaluations for name in evaluation.outside)
    sizes = ((f"{name} == {size}" for name, size in drawn_dims(shape).items()) for shape in shapes)
    return [f"not ({' and '.join(texts)})" for texts in sizes]


def gates_read(verified: Verified) -> Mapping[str, tuple[float | None, int]]:
    """Per gate: its worst value (dB for SNR, with None for +inf; mismatches for bit-exact ones) and its readings."""
    worst: dict[str, tuple[float | None, int]] = {}
    for evaluation in verified.evaluations:
        for reading in evaluation.gates:
            value, count = worst.get(reading.gate, (None, 0))
            if reading.value is not None and (value is None or reading.value < value):
                value = reading.value
            worst[reading.gate] = (value, count + 1)
    return worst
