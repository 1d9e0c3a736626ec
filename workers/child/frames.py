"""Frames: the messages that a parent process and its child exchange. A JSON header and raw blobs, no pickle.

Layout: magic ``TWF1``, header length (u32, big endian), payload length (u64), header (UTF-8 JSON), payload.
The header is ``{"kind", "data", "blobs": [{"name", "dtype", "shape", "bytes"}]}``; the blobs follow each other
in the payload. A blob of dtype ``bytes`` is opaque, any other is a C-contiguous little-endian array.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

MAGIC = b"TWF1"
PREFIX = struct.Struct(">4sIQ")
MAX_HEADER_BYTES = 8 << 20
_NUMPY_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_ML_DTYPES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float8_e4m3",
    "int4",
    "uint4",
    "float4_e2m1fn",
)


class FrameError(ValueError):
    """Bytes that are no frame, or a frame over its limits. The message is one line."""


@dataclass(frozen=True)
class Frame:
    """One message: ``data`` is JSON-able, ``arrays`` and ``blobs`` travel as raw bytes."""

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def dtype_named(name: str) -> np.dtype:
    """The NumPy or ml_dtypes dtype called ``name``. Raises FrameError for any other name."""
    if name in _NUMPY_DTYPES:
        return np.dtype(name)
    if name in _ML_DTYPES:
        return np.dtype(getattr(ml_dtypes, name))
    raise FrameError(f"unknown dtype {name[:40]!r}")


def encode(frame: Frame) -> bytes:
    """Serialise a frame. Raises FrameError for an array whose dtype is none of NumPy's or ml_dtypes' numbers."""
    entries, parts = [], []
    for name, array in frame.arrays.items():
        dtype_named(array.dtype.name)
        raw = np.ascontiguousarray(array).tobytes()
        entries.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "bytes": len(raw)})
        parts.append(raw)
    for name, blob in frame.blobs.items():
        entries.append({"name": name, "dtype": "bytes", "shape": [len(blob)], "bytes": len(blob)})
        parts.append(blob)
    header = json.dumps({"kind": frame.kind, "data": dict(frame.data), "blobs": entries}).encode()
    payload = b"".join(parts)
    return PREFIX.pack(MAGIC, len(header), len(payload)) + header + payload


def sender(stream: int) -> Callable[[Frame], None]:
    """A function that writes whole frames to a file descriptor."""

    def send(frame: Frame) -> None:
        view = memoryview(encode(frame))
        while view:
            view = view[os.write(stream, view) :]

    return send


class FrameReader:
    """Cuts a byte stream into frames, never holding more than ``max_bytes`` of an unfinished one."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by ``data``. Raises FrameError on malformed or oversized input."""
        self._held += data
        frames = []
        while (size := self._size()) is not None and len(self._held) >= size:
            frames.append(_decode(bytes(self._held[:size])))
            del self._held[:size]
        return frames

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame."""
        return len(self._held)

    def _size(self) -> int | None:
        if len(self._held) < PREFIX.size:
            return None
        magic, header, payload = PREFIX.unpack_from(self._held)
        if magic != MAGIC:
            raise FrameError("the stream does not start with a frame")
        if header > MAX_HEADER_BYTES or header + payload > self._max:
            raise FrameError(f"a frame of {header + payload} bytes is over the limit of {self._max}")
        return PREFIX.size + header + payload


def _decode(raw: bytes) -> Frame:
    _, header_size, _ = PREFIX.unpack_from(raw)
    start = PREFIX.size + header_size
    try:
        header = json.loads(raw[PREFIX.size : start])
        kind, data, entries = header["kind"], header["data"], header["blobs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError(f"a frame's header is malformed: {type(error).__name__}") from None
    if not (isinstance(kind, str) and isinstance(data, dict) and isinstance(entries, list)):
        raise FrameError("a frame's header has fields of the wrong type")
    arrays: dict[str, np.ndarray] = {}
    blobs: dict[str, bytes] = {}
    for entry in entries:
        name, dtype, shape, size = _entry(entry)
        piece = raw[start : start + size]
        if len(piece) != size:
            raise FrameError("a frame's payload is shorter than its header says")
        start += size
        if dtype == "bytes":
            blobs[name] = piece
        else:
            arrays[name] = _array(piece, dtype, shape)
    if start != len(raw):
        raise FrameError("a frame's payload is longer than its header says")
    return Frame(kind, data, arrays, blobs)


def _entry(entry: Any) -> tuple[str, str, tuple[int, ...], int]:
    try:
        name, dtype, shape, size = entry["name"], entry["dtype"], entry["shape"], entry["bytes"]
    except (KeyError, TypeError):
        raise FrameError("a frame's blob entry lacks a field") from None
    sizes = [size, *shape] if isinstance(shape, list) else [None]
    if not (isinstance(name, str) and isinstance(dtype, str)):
        raise FrameError("a frame's blob entry has fields of the wrong type")
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 48 for n in sizes):
        raise FrameError("a frame's blob entry has sizes that are no sizes")
    if len(shape) > 16:
        raise FrameError("a frame's array has more than 16 dimensions")
    return name, dtype, tuple(shape), size


def _array(piece: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = dtype_named(dtype)
    if math.prod(shape) * kind.itemsize != len(piece):
        raise FrameError(f"an array of shape {shape} and dtype {dtype} does not have {len(piece)} bytes")
    try:
        return np.frombuffer(piece, dtype=kind).reshape(shape)
    except ValueError:
        raise FrameError(f"an array of shape {shape} cannot be made") from None
