"""Descriptors and hints made of a diagnosis."""

import pytest

from tilewright.fitness.evaluation import FigureKind, WorkloadFigures
from tilewright.fitness.tpu.schedule import UNKNOWN, describe, hints

SPILLING = {
    "overlap": {"mxu_with_valu": 0.94, "valu_with_mxu": 0.44},
    "critical_path": {"spill": 400, "valu": 350, "mxu": 30, "dma": 20},
    "spill_stores": 84256,
    "bound": "vstore",
}
STREAMING = {
    "overlap": {"mxu_with_valu": 0.1, "valu_with_mxu": 0.5},
    "critical_path": {"dma": 700, "mxu": 100},
    "spill_stores": 0,
    "bound": "hbm",
    "caution": "small blocks",
}


def figures(diagnosis, seconds=1.0):
    return WorkloadFigures(
        workload=f"w{seconds}", seconds=seconds, tflops=1.0, roofline_fraction=0.5,
        kind=FigureKind.MODELLED, diagnosis=diagnosis,
    )  # fmt: skip


def test_descriptors_are_those_of_the_slowest_workload():
    names = ("overlap", "spills", "stall", "bound", "block_m")
    found = describe([figures(STREAMING), figures(SPILLING, 2.0)], names)
    assert found == {"overlap": "75%+", "spills": "40%+", "stall": "spill", "bound": "vstore"}
    found = describe([figures(STREAMING, 3.0), figures(SPILLING, 2.0)], names)
    assert found == {"overlap": "under 25%", "spills": "none", "stall": "dma", "bound": "hbm"}
    assert describe([figures(SPILLING)], ("block_m",)) == describe([], names) == {}


@pytest.mark.parametrize("diagnosis", [{}, {"overlap": 3, "critical_path": {}, "bound": None}])
def test_a_diagnosis_that_does_not_say_is_a_cell_of_its_own(diagnosis):
    found = describe([figures(diagnosis)], ("overlap", "spills", "stall"))
    assert set(found.values()) == {UNKNOWN}


def test_hints_name_what_takes_the_time_and_what_reduces_it():
    text = " ".join(hints(SPILLING))
    assert "50% are register spills, 44% are vector arithmetic" in text and "DMA" not in text
    assert "fewer values live" in text and "more overlap will not help" in text
    text = " ".join(hints(STREAMING))
    assert "only fewer bytes help" in text and "Caution: small blocks" in text and "overlap" not in text
    assert hints({"spills": 77}) == []
