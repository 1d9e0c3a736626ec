"""One promotion with nothing made up: real kernels, the real cascade, and the generated test of what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolve.evaluator import Job
from evolve.promote.command import Options, promote
from evolve.promote.keep import _run_test
from evolve.promote.shelf import Shelf
from evolve.resolve import Resolved
from fitness.evaluation import Evaluation
from tests.evolve.promote_campaign import CHILD, FormulaPool, quick_child, write_campaign
from workers.cascade import Cascade

OPERATOR = "small_gemm/good"


class CascadePool(FormulaPool):
    """Evaluates in this process, one job after the other."""

    def __init__(self, resolved: Resolved) -> None:
        super().__init__(resolved, quick_child)
        self._cascade = Cascade(resolved.operator, resolved.target, resolved.suite)

    def _evaluation(self, job: Job) -> Evaluation:
        baseline = self.resolved.operator.kernels[job.baseline] if job.baseline else None
        return self._cascade.evaluate(
            job.genome.id,
            job.genome.source,
            job.genome.params,
            seed=job.seed,
            workloads=job.scope.value,
            baseline=baseline,
            best=job.best,
            only=job.only,
        )


def test_a_kernel_is_verified_written_and_still_right_without_tilewright(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    folder, shelf = write_campaign(tmp_path / "home"), Shelf(tmp_path / "library", "small")
    options = Options(rounds=1, force_reason="its speed is not the point here")
    outcome = promote(folder, shelf, options, lambda line: None, CascadePool)
    version, receipt, _ = shelf.version(OPERATOR)
    (candidate,) = receipt["targets"]["tpu7x"]["candidates"]
    assert candidate["genome"] == CHILD.id and candidate["gates"]["exact"]["worst"] >= 45.0
    assert candidate["artefacts"] and all(shape.seconds > 0 for shape in outcome.judgement.shapes)
    place = shelf.place(OPERATOR) / "versions" / version
    finding = _run_test(OPERATOR, place)
    assert finding.good, finding.sentence
