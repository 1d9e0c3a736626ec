"""Hints made of a diagnosis."""

from tilewright.fitness.tpu.schedule import hints

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


def test_hints_name_what_takes_the_time_and_what_reduces_it():
    text = " ".join(hints(SPILLING))
    assert "50% are register spills, 44% are vector arithmetic" in text and "DMA" not in text
    assert "fewer values live" in text and "more overlap will not help" in text
    text = " ".join(hints(STREAMING))
    assert "only fewer bytes help" in text and "Caution: small blocks" in text and "overlap" not in text
    assert hints({"spills": 77}) == []
    assert "fewer values live" in hints({"critical_path": {"mxu": 60, "spill": 40}})[1]
