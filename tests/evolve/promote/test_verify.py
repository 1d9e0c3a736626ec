"""One promotion with nothing made up: real kernels, the real cascade, and the checks of what was written."""

import pytest

from testkit.promote_campaign import CHILD, FormulaPool, quick_child, write_campaign
from tilewright.evolve.promote.command import Options, promote
from tilewright.evolve.promote.library_commands import _run_checks
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.workers.cascade.modelled import ModelledCascade

OPERATOR = "small_gemm/good"


class CascadePool(FormulaPool):
    """Evaluates candidates in this process, one job after the other; what a baseline takes is made up."""

    def __init__(self, resolved):
        super().__init__(resolved, quick_child)
        self._cascade = ModelledCascade(resolved.operator, resolved.target, resolved.suite)

    def _evaluation(self, job):
        if job.baseline:
            return super()._evaluation(job)
        return self._cascade.evaluate(
            job.genome.id,
            job.genome.source,
            job.genome.params,
            seed=job.seed,
            scope=job.scope,
            best=job.best,
            only=job.only,
        )


def test_a_kernel_is_verified_written_and_still_right_without_tilewright(tmp_path):
    pytest.importorskip("libtpu")
    folder, writer = write_campaign(tmp_path / "home"), LibraryWriter(tmp_path / "library", "small")
    options = Options(rounds=1, force_reason="its speed is not the point here")
    outcome = promote(folder, writer, options, lambda line: None, CascadePool)
    _, receipt, _ = writer.version(OPERATOR)
    (candidate,) = receipt["targets"]["tpu7x"]["candidates"]
    assert candidate["genome"] == CHILD.id and candidate["gates"]["exact"]["worst"] >= 45.0
    assert candidate["artefacts"] and all(shape.seconds > 0 for shape in outcome.judgement.shapes)
    finding = _run_checks(writer, OPERATOR)
    assert finding.good, finding.sentence
