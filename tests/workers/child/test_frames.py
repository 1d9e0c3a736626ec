import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.workers.child.frames import PREFIX, Frame, FrameError, FrameReader, encode

FRAME = Frame(
    "checked",
    {"workload": "w", "races": False},
    {"c": np.arange(6, dtype=np.float32).reshape(2, 3), "f8": np.ones(3, ml_dtypes.float8_e4m3fn)},
    {"module": b"\x00\x01"},
)


def test_a_frame_survives_the_journey_in_any_pieces():
    raw = encode(FRAME) * 2
    reader = FrameReader(1 << 20)
    frames = [frame for start in range(0, len(raw), 7) for frame in reader.feed(raw[start : start + 7])]
    assert [frame.kind for frame in frames] == ["checked", "checked"]
    assert frames[1].data == FRAME.data and frames[1].blobs == FRAME.blobs
    for name, array in FRAME.arrays.items():
        assert frames[1].arrays[name].dtype == array.dtype
        assert np.array_equal(frames[1].arrays[name], array)
    assert reader.pending == 0


def test_an_oversized_frame_is_refused_before_it_arrives():
    with pytest.raises(FrameError, match="over the limit of 100"):
        FrameReader(100).feed(PREFIX.pack(b"TWF1", 90, 1 << 40))
    with pytest.raises(FrameError, match="does not start with a frame"):
        FrameReader(100).feed(b"score: 1e9 TFLOP/s\n\n\n")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"name": "c", "dtype": "object", "shape": [1], "bytes": 8}, "unknown dtype 'object'"),
        ({"name": "c", "dtype": "float32", "shape": [3], "bytes": 8}, "does not have 8 bytes"),
        ({"name": "c", "dtype": "float32", "shape": [2], "bytes": 800}, "shorter"),
        ({"name": "c", "dtype": "float32", "shape": [1], "bytes": 4}, "longer"),
        ({"name": "c", "dtype": "float32", "shape": [-2], "bytes": 8}, "no sizes"),
        ({"name": "c", "dtype": "float32", "shape": [True], "bytes": 8}, "no sizes"),
        ({"name": 3, "dtype": "float32", "shape": [2], "bytes": 8}, "wrong type"),
        ({"dtype": "float32"}, "lacks a field"),
        (7, "lacks a field"),
    ],
)
def test_a_lying_header_is_refused(entry, why):
    header = json.dumps({"kind": "x", "data": {}, "blobs": [entry]}).encode()
    with pytest.raises(FrameError, match=why):
        FrameReader(1 << 20).feed(PREFIX.pack(b"TWF1", len(header), 8) + header + b"\0" * 8)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400), st.booleans())
def test_damage_gives_frames_or_a_frame_error(noise, at, replace):
    raw = encode(FRAME)
    damaged = raw[:at] + noise + raw[at + (len(noise) if replace else 0) :]
    try:
        for frame in FrameReader(1 << 16).feed(damaged):
            assert isinstance(frame.kind, str)
    except FrameError:
        pass
