"""What the dumps of a compile child become."""

import dataclasses
from pathlib import Path

import pytest

from testkit.modelled_stages import NAMES, OPERATOR, TARGET, compiled_findings, facts, request
from testkit.scripted import Doubler
from tilewright.fitness import score
from tilewright.fitness.evaluation import FigureKind, Verdict
from tilewright.fitness.tpu import simulation, time_model
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.llo import OperationCycles, ParseError, scan_bundles
from tilewright.fitness.tpu.structure import ModuleFacts
from tilewright.workers.cascade import modelled_stages as stages
from tilewright.workers.request import Failure

BUNDLES = b"""0x0: bundle slots:
  %1 = dma.hbm_to_vmem [x] /*size_in_granules=*/8192
  %2 = vld [vmem:[%s3_s1] sm:$0xff]
"""


def a_run(cycles=100_000):
    operations = (OperationCycles("k", cycles, 1),)
    return simulation.StaticRun(operations, scan_bundles(BUNDLES), 5 << 20, None, ((Events.idle(cycles), 1),))


def measuring(monkeypatch, run, operator=OPERATOR, **changes):
    found = compiled_findings()
    found.dumps = {name: Path(name) for name in ("m64", "m32")}
    found.facts = {name: ModuleFacts.from_data(facts(name).data) for name in NAMES}
    for name, value in changes.pop("found", {}).items():
        setattr(found, name, value)
    asked = dataclasses.replace(request(**changes), operator=operator)

    def read(folder, chip, *, timeline):
        drawn = asked.timeline or (asked.final and folder.name == "m64")
        assert chip is TARGET.chip and timeline is drawn, "of finals the first is drawn"
        if isinstance(run, Exception):
            raise run
        return run

    monkeypatch.setattr(simulation, "read_dumps", read)
    return stages.MeasureStage().run(asked, found), found


def test_figures_are_those_of_the_model(monkeypatch):
    run = a_run()
    failure, found = measuring(monkeypatch, run)
    time = simulation.modelled(run, TARGET.chip)
    assert failure is None and [f.workload for f in found.figures] == ["m64", "m32"]
    figures = found.figures[0]
    assert (figures.seconds, figures.kind) == (time.seconds, FigureKind.MODELLED)
    assert figures.model_version == time_model.VERSION and figures.gbytes is None
    assert figures.tflops == pytest.approx(40960 / time.seconds / 1e12)
    floor = score.roofline_seconds(40960, 32768, TARGET.chip, "bf16")
    assert figures.roofline_fraction == pytest.approx(floor / time.seconds)
    assert figures.diagnosis["artefact"] == "source m64" and figures.diagnosis["vmem_bytes"] == 5 << 20
    bound = Doubler()
    bound.memory_bound = True
    _, found = measuring(monkeypatch, run, bound, timeline=True)
    assert found.figures[0].gbytes == pytest.approx(32768 / time.seconds / 1e9)
    assert len(measuring(monkeypatch, run, final=True)[1].figures) == 2


def test_what_cannot_be_measured_has_a_verdict(monkeypatch):
    failure, found = measuring(monkeypatch, a_run(), found={"dumps": {"m64": Path("m64")}})
    assert failure == Failure(Verdict.INFRA_ERROR, "no dump of workload m32 was made")
    failure, _ = measuring(monkeypatch, ParseError("line 3"))
    assert failure == Failure(Verdict.COMPILE_ERROR, "the simulator's dump of m64: line 3")
    lazy = dataclasses.replace(a_run(), executed=scan_bundles(b"0x0: bundle slots:\n"))
    failure, found = measuring(monkeypatch, lazy)
    said = "m64: 0 bytes move where the operator needs 32768 (modelled, tpu7x)"
    assert failure == Failure(Verdict.IMPLAUSIBLE, said) and not found.figures
