"""The lanes of a schedule and the strip of what its critical path waits for."""

import xml.etree.ElementTree as ET

from tilewright.evolve.report.timeline import read_timeline, timeline_svg

DIAGNOSIS = {
    "timeline": {
        "unit": "cycles",
        "bins": [100, 200],
        "lanes": {"mxu": [0.5, 1.0], "spill": [0.0, 0.25], "dma": [1.0, 0.0]},
        "waits": {"spill": [0.75, 0.0], "scalar": [0.25, 0.5], "mxu": [0.0, 0.5], "torn": [1.0]},
    }
}
SVG = "{http://www.w3.org/2000/svg}"


def test_the_strip_divides_each_bin_among_what_is_waited_for():
    timeline = read_timeline("winner", DIAGNOSIS)
    assert timeline.waits == {"spill": (0.75, 0.0), "scalar": (0.25, 0.5), "mxu": (0.0, 0.5)}
    root = ET.fromstring(timeline_svg([timeline], "x", standalone=True))
    tips = [title.text for title in root.iter(f"{SVG}title")]
    assert "scalar code: 38% of the critical path" in tips and "MXU: 25% of the critical path" in tips
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "critical path: scalar code 38%, spills 38%, MXU 25%" in texts or (
        "critical path: spills 38%, scalar code 38%, MXU 25%" in texts
    )
    areas = {
        path.attrib["class"]: path.attrib["d"] for path in root.iter(f"{SVG}path") if "class" in path.attrib
    }
    assert areas["area spill"].startswith("M") and "area other" in areas


def test_without_waits_there_is_no_strip():
    plain = {"timeline": {key: DIAGNOSIS["timeline"][key] for key in ("unit", "bins", "lanes")}}
    timeline = read_timeline("seed", plain)
    assert not timeline.waits and "critical path" not in timeline_svg([timeline], "x")
