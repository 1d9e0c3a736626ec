"""Records what a candidate's ``launch`` does as a plan (``library.plans``), without a device and without operands.

``launch`` is called on tensors without memory (torch's meta device) under a driver that knows a target and no device.
Each kernel it starts is compiled; instead of running, its code, grid and arguments are written down, every pointer by
the tensor it points into. What torch may do beside kernels is make tensors, view them and fill them; a fill becomes a
step of the plan.

It is called twice, on tensors at other addresses, and must do the same both times: then what it does depends on shapes
and parameters alone, and one plan speaks for every later call.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver as runtime_driver

from tilewright.library.plans.format import Launch, NotRecorded, Plan, Pointer, Scalar, Tensor, TensorMap, scalar
from tilewright.library.torch_record import RecordedCall, TargetDriver
from tilewright.workers.runners.triton.tensors import checked_results

SHIFT = 1 << 12
"""Bytes by which addresses of the second call differ; a multiple of every alignment a kernel is compiled for."""


class _Described:
    """Stands for an encoded tensor map: what Triton asks the driver to encode, without the address."""

    def __init__(
        self,
        address: int,
        swizzle: int,
        size: int,
        dtype: int,
        box: Sequence[int],
        shape: Sequence[int],
        strides: Sequence[int],
        fill_nan: int,
    ) -> None:
        self.swizzle, self.dtype, self.fill_nan = swizzle, dtype, bool(fill_nan)
        self.shape, self.box = tuple(map(int, shape)), tuple(map(int, box))
        self.strides = tuple(size * int(stride) for stride in strides[:-1])


class _Utilities:
    """Of a driver: loads nothing, and encodes nothing."""

    fill_tma_descriptor = fill_tma_descriptor_tiled = staticmethod(_Described)

    def __init__(self, recorder: "Recorder") -> None:
        self._recorder = recorder

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._recorder.smem_bytes}

    def load_binary(self, name: str, code: bytes, shared: int, device: int) -> tuple[int, bytes, int, int, int]:
        """Module, function, registers, spills, threads of a block at most; the code itself serves as function."""
        return 0, bytes(code), 0, 0, 1024


class _Launcher:
    """Of a compiled kernel: writes its launches down."""

    recorder: "Recorder"

    def __init__(self, source: Any, metadata: Any) -> None:
        self._signature = list(source.signature.values())
        self._metadata = metadata

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: bytes,
        packed: Any,
        metadata: Any,
        enter: Any,
        leave: Any,
        *arguments: Any,
    ) -> None:
        self.recorder.launched(self._metadata, self._signature, (x, y, z), function, arguments)


class RecordingDriver(TargetDriver):
    """One whose launches are written down. ``capability``: 90 for 9.0."""

    def __init__(self, capability: int, recorder: "Recorder") -> None:
        super().__init__(GPUTarget("cuda", capability, 32))
        self.utils = _Utilities(recorder)
        self.launcher_cls = type("Launcher", (_Launcher,), {"recorder": recorder})


class Recorder:
    """Records launches of this process; make one in a process, since Triton has one driver.

    ``capability``: 90 for compute capability 9.0. ``smem_bytes``: shared memory a block may use.
    """

    def __init__(self, capability: int, smem_bytes: int) -> None:
        self._capability = capability
        self.smem_bytes = smem_bytes
        self._call: _Call | None = None
        runtime_driver.set_active(RecordingDriver(capability, self))

    def record(self, launch: Any, params: Mapping[str, Any], workload: Mapping[str, Any]) -> Plan:
        """What ``launch(inputs, params)`` does on a workload's shapes {inputs, outputs}.

        Raises what ``launch`` raises, Triton's errors, NotRecorded, ForeignWork, and TypeError for wrong results.
        """
        first, again = (self._recorded(launch, params, workload, shift) for shift in (0, SHIFT))
        if first.digest != again.digest:
            raise NotRecorded(
                "launch does something else when it is called again with the same shapes "
                f"({_difference(first, again)}): grids and numbers may depend on shapes and parameters alone"
            )
        return first

    def needed(self, launch: Any, params: Mapping[str, Any], workload: Mapping[str, Any]) -> set[str]:
        """Which kernels a workload has compiled, without compiling them; none where that is not known."""
        found: set[str] = set()

        def note(**given: Any) -> bool:
            found.add(f"{given['repr']} {given['key']}")
            return True

        knobs.runtime.jit_cache_hook = note  # what it returns skips the compiler
        try:
            self._recorded(launch, params, workload, 0)
        except Exception:  # noqa: BLE001 - a launch that reads what a kernel makes, or says why when it is recorded
            return set()
        finally:
            knobs.runtime.jit_cache_hook = None
        return found

    def _recorded(self, launch: Any, params: Mapping[str, Any], workload: Mapping[str, Any], shift: int) -> Plan:
        inputs = [Tensor(s["name"], s["dtype"], tuple(s["shape"])) for s in workload["inputs"]]
        self._call = call = _Call(inputs, shift)
        try:
            with call:
                made = launch(dict(call.inputs), dict(params))
            results = checked_results(made, workload["outputs"])
            versions = {"torch": torch.__version__, "triton": triton.__version__}
            return call.plan(results, self._capability, versions)
        finally:
            self._call = None

    def launched(
        self, metadata: Any, signature: Sequence[Any], grid: tuple[int, int, int], code: bytes, values: Sequence[Any]
    ) -> None:
        """Write a launch down. Raises NotRecorded."""
        if self._call is None:
            raise NotRecorded("a kernel is launched outside of launch")
        self._call.add_launch(metadata, signature, grid, code, values)


class _Call(RecordedCall):
    """One call of ``launch``, whose descriptors are what Triton's own launcher would make of them."""

    def _descriptor(self, meta: Mapping[str, Any] | None, value: Any, name: str) -> list[Pointer | TensorMap | Scalar]:
        """A tensor map, shape and strides; or base, shape and strides twice where the kernel has none."""
        first, *rest = _described_by_triton(value, meta)
        slot, offset = self._located(value.base, f"a descriptor of {name}")
        rank = len(value.shape)
        sizes = [scalar("i32", int(n)) for n in rest[-2 * rank : -rank]]
        sizes += [scalar("i64", int(n)) for n in rest[-rank:]]
        if isinstance(first, _Described):
            shape, strides, box = first.shape, first.strides, first.box
            made = TensorMap(slot, offset, first.dtype, shape, strides, box, first.swizzle, first.fill_nan)
            return [made, *sizes]
        flags = [scalar("i1", bool(flag)) for flag in rest[2 * rank : -2 * rank]]
        return [Pointer(slot, offset), *(scalar("i64", int(n)) for n in rest[: 2 * rank]), *flags, *sizes]


def _described_by_triton(value: Any, meta: Mapping[str, Any] | None) -> list[Any]:
    """What Triton's launcher makes of a descriptor. From 3.8 on it hands over a launch's other arguments, unused."""
    encode = nvidia.make_tensordesc_arg
    unused = len(inspect.signature(encode).parameters) - 2
    return list(encode(value, meta, *[None] * unused))


def _difference(one: Plan, other: Plan) -> str:
    """Where two plans part, in a few words."""
    if len(one.steps) != len(other.steps):
        return f"{len(one.steps)} steps, then {len(other.steps)}"
    for first, again in zip(one.steps, other.steps, strict=True):
        if isinstance(first, Launch) and isinstance(again, Launch):
            if first.grid != again.grid:
                return f"{first.symbol} on a grid of {first.grid}, then of {again.grid}"
            if first != again:
                return f"other arguments of {first.symbol}"
        elif first != again:
            return "another step"
    return "other buffers or other code"
