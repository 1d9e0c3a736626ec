"""Evaluations and candidates for tests: what a test does not say has a plain value."""

from typing import Any

from tilewright.evolve.record.history import Candidate, Mutation, MutationKind
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures


def figures(workload: str = "w", seconds: float = 1.0, **more: Any) -> WorkloadFigures:
    """Modelled figures of one workload, at one operation per run."""
    given = {"tflops": 1 / seconds, "roofline_fraction": 0.5, "kind": FigureKind.MODELLED, **more}
    return WorkloadFigures(workload=workload, seconds=seconds, **given)


def passed(genome: Genome | str = "g", *workloads: WorkloadFigures, **more: Any) -> Evaluation:
    """An evaluation with verdict ``ok`` and, unless told, fitness 1."""
    given = {"stage": Stage.MEASURE, "verdict": Verdict.OK, "fitness": 1.0, "workloads": workloads, **more}
    return evaluation(genome, **given)


def failed(genome: Genome | str = "g", verdict: Verdict = Verdict.INCORRECT, **more: Any) -> Evaluation:
    return evaluation(genome, **{"stage": Stage.CHECK, "verdict": verdict, "reason": "12 dB", **more})


def evaluation(genome: Genome | str, **given: Any) -> Evaluation:
    name = genome if isinstance(genome, str) else genome.id
    return Evaluation(genome=name, **{"target": "t", "suite": "s", **given})


def candidate(
    index: int,
    genome: Genome | None = None,
    *,
    parents: tuple[str, ...] = (),
    kind: MutationKind = MutationKind.PARAMETER,
    proposer: str = "parameters",
    detail: str = "",
    generation: int = 0,
    island: int = 0,
    seen: int = 0,
) -> Candidate:
    """Candidate ``index``; without a genome one whose parameter ``x`` is the index."""
    found = genome or Genome("k", {"x": index})
    return Candidate(index, found, parents, Mutation(kind, proposer, detail), generation, island, seen)
