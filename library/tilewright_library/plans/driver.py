"""The few calls of the CUDA driver's library that loading and launching take, through ctypes.

The library is opened at the first call and not before, so that plans can be read where there is no driver.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

SHARED_BYTES, WIDE_CLUSTERS = 8, 14
"""Of ``CUfunction_attribute``: the most dynamic shared memory; whether clusters of more than 8 CTAs are allowed."""

MOST_SHARED_BYTES = 97
"""Of ``CUdevice_attribute``: dynamic shared memory that a block may ask for."""

COOPERATIVE, CLUSTER, CLUSTER_POLICY, PROGRAMMATIC = 2, 4, 5, 6
"""Of ``CUlaunchAttributeID``."""

SPREAD = 1
"""Of ``CUclusterSchedulingPolicy``."""

NO_CONTEXT, INVALID_HANDLE = 201, 400
"""Of ``CUresult``: what a launch answers in a thread without the context, or in another device's."""

RELAXED = 2
"""Of ``CUstreamCaptureMode``: what another thread captures is not spoilt by what this one does."""


class CudaError(RuntimeError):
    """The driver refused a call, or a kernel failed. ``code`` is its ``CUresult``."""

    def __init__(self, code: int, doing: str) -> None:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(text))
        message = (text.value or b"unknown error").decode(errors="replace")
        super().__init__(f"CUDA driver error: {doing}: {message} ({code})")
        self.code = code


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``; the value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint32),
    )


@functools.cache
def _library() -> Any:
    """Raises OSError where there is no driver."""
    found = ctypes.CDLL(LIBRARY)
    count, pointer = ctypes.c_size_t, ctypes.c_uint64
    found.cuMemsetD8Async.argtypes = (pointer, ctypes.c_ubyte, count, ctypes.c_void_p)
    found.cuMemsetD16Async.argtypes = (pointer, ctypes.c_ushort, count, ctypes.c_void_p)
    found.cuMemsetD32Async.argtypes = (pointer, ctypes.c_uint, count, ctypes.c_void_p)
    return found


def function(name: str) -> Any:
    """A call of the library: returns a ``CUresult``. Raises OSError, AttributeError."""
    return getattr(_library(), name)


def check(code: int, doing: str) -> None:
    """Raises CudaError unless ``code`` says success."""
    if code:
        raise CudaError(code, doing)


def device_attribute(attribute: int, device: int) -> int:
    """A number about a device. Raises CudaError, OSError."""
    found = ctypes.c_int()
    check(function("cuInit")(0), "starting the driver")
    check(function("cuDeviceGetAttribute")(ctypes.byref(found), attribute, device), f"asking device {device}")
    return found.value


@functools.cache
def primary_context(device: int) -> int:
    """The context that libraries share on a device; kept for good. Raises CudaError, OSError."""
    check(function("cuInit")(0), "starting the driver")
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    check(function("cuDeviceGet")(ctypes.byref(handle), device), f"looking for device {device}")
    check(function("cuDevicePrimaryCtxRetain")(ctypes.byref(context), handle), f"opening device {device}")
    assert context.value is not None
    return context.value


def current_context() -> int:
    """The calling thread's context, 0 where it has none."""
    found = ctypes.c_void_p()
    check(function("cuCtxGetCurrent")(ctypes.byref(found)), "looking for a context")
    return found.value or 0


@contextlib.contextmanager
def within(context: int) -> Iterator[None]:
    """Make a context the calling thread's own for a while."""
    check(function("cuCtxPushCurrent_v2")(ctypes.c_void_p(context)), "entering a context")
    try:
        yield
    finally:
        function("cuCtxPopCurrent_v2")(ctypes.byref(ctypes.c_void_p()))


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Allow this thread what must not happen on a stream under capture: loading code happens on none."""
    mode = ctypes.c_int(RELAXED)
    check(function("cuThreadExchangeStreamCaptureMode")(ctypes.byref(mode)), "leaving a capture's mode")
    try:
        yield
    finally:
        function("cuThreadExchangeStreamCaptureMode")(ctypes.byref(mode))
