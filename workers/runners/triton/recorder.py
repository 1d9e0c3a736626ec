"""Records what a candidate's ``launch`` does as a plan (``library.plans``), without a device and without operands.

``launch`` is called on tensors without memory (torch's meta device) under a driver that knows a target and no device.
Each kernel it starts is compiled; instead of running, its code, grid and arguments are written down, every pointer by
the tensor it points into. What torch may do beside kernels is make tensors, view them and fill them; a fill becomes a
step of the plan.

It is called twice, on tensors at other addresses, and must do the same both times: then what it does depends on shapes
and parameters alone, and one plan speaks for every later call.
"""

from __future__ import annotations

import inspect
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver as runtime_driver
from triton.runtime.jit import TensorWrapper

from tilewright.library.plans.format import (
    MOST_ALLOCATED,
    Fill,
    Launch,
    Output,
    Plan,
    Pointer,
    Scalar,
    Tensor,
    TensorMap,
)
from tilewright.workers.runners.triton.candidate import checked_results
from tilewright.workers.runners.triton.launch_guard import FRESH, RESET, VIEWS, ZEROS, ForeignWork
from tilewright.workers.runners.triton.tensors import bits_of, torch_dtype

SHIFT = 1 << 12
"""Bytes by which addresses of the second call differ; a multiple of every alignment a kernel is compiled for."""

_SCALARS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
"""Kinds of numbers in a kernel's signature to the ``struct`` format of their bytes."""

_DESCRIPTOR = re.compile(r"tensordesc(_im2col)?<")


class NotRecorded(RuntimeError):
    """A launch that is no plan: the message says what it does that a plan cannot hold, and what to do instead."""


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

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._recorder.smem_bytes}

    def load_binary(
        self, name: str, code: bytes, shared: int, device: int
    ) -> tuple[int, bytes, int, int, int]:
        """Module, function, registers, spills, threads of a block at most; the code itself serves as function."""
        return 0, bytes(code), 0, 0, 1024


class _Launcher:
    """Of a compiled kernel: writes its launches down."""

    recorder: Recorder

    def __init__(self, source: Any, metadata: Any) -> None:
        self._signature = list(source.signature.values())
        self._metadata = metadata

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: bytes, packed: Any, metadata: Any, enter: Any, leave: Any,
        *arguments: Any,
    ) -> None:  # fmt: skip
        self.recorder.launched(self._metadata, self._signature, (x, y, z), function, arguments)


class RecordingDriver:
    """As much of a Triton driver as compiling and recording ask for. ``capability``: 90 for 9.0."""

    def __init__(self, capability: int, recorder: Recorder) -> None:
        self._target = GPUTarget("cuda", capability, 32)
        self.utils = _Utilities(recorder)
        self.launcher_cls = type("Launcher", (_Launcher,), {"recorder": recorder})

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def map_python_to_cpp_type(self, kind: str) -> str:
        return nvidia.ty_to_cpp(kind)


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

    def _recorded(
        self, launch: Any, params: Mapping[str, Any], workload: Mapping[str, Any], shift: int
    ) -> Plan:
        self._call = call = _Call(workload["inputs"], shift)
        try:
            with call:
                made = launch(dict(call.inputs), dict(params))
            results = checked_results(made, workload["outputs"])
            return call.plan(results, self._capability)
        finally:
            self._call = None

    def launched(
        self,
        metadata: Any,
        signature: Sequence[Any],
        grid: tuple[int, int, int],
        code: bytes,
        values: Sequence[Any],
    ) -> None:
        """Write a launch down. Raises NotRecorded."""
        if self._call is None:
            raise NotRecorded("a kernel is launched outside of launch")
        if not all(type(size) is int for size in grid):
            raise NotRecorded("a grid is not of whole numbers")
        if math.prod(grid) > 0:  # of no programs, Triton's own launcher launches nothing
            self._call.add_launch(metadata, signature, grid, code, values)


class _Call(TorchDispatchMode):
    """One call of ``launch``: the tensors it is given and makes, and what is done with them, in order.

    ``shift`` bytes lie before every tensor in its storage, which changes all addresses.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper that skips it would import torch's compiler, which takes seconds, in every child."""
        return False

    def __init__(self, specs: Sequence[Mapping[str, Any]], shift: int) -> None:
        super().__init__()
        self._shift = shift
        self._kept: list[torch.Tensor] = []
        self._slots: dict[int, int] = {}
        self._sizes: list[int] = []
        self._specs = [Tensor(s["name"], s["dtype"], tuple(s["shape"])) for s in specs]
        self._steps: list[Launch | Fill] = []
        self._codes: list[bytes] = []
        self.inputs = {s.name: self._placed(s.shape, torch_dtype(s.dtype)) for s in self._specs}

    def plan(self, results: Mapping[str, torch.Tensor], capability: int) -> Plan:
        """Raises NotRecorded, PlanError."""
        given = len(self._specs)
        outputs = []
        for name, tensor in results.items():
            slot, offset = self._located(tensor, f"output {name}")
            if slot < given:
                raise NotRecorded(
                    f"output {name} is input {self._specs[slot].name}: launch returns tensors it makes"
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            outputs.append(Output(name, dtype, tuple(tensor.shape), slot - given, offset))
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        return Plan(
            architecture=capability,
            inputs=tuple(self._specs),
            outputs=tuple(outputs),
            buffers=tuple(self._sizes[given:]),
            steps=tuple(self._steps),
            codes=tuple(self._codes),
            toolchain=versions,
        )

    # -- what torch is asked to do ---------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name in FRESH or name in ZEROS:
            like = func(*args, **{**options, "device": "meta"})
            if not like.is_contiguous():
                raise ForeignWork("work outside the kernel: torch makes a tensor that is not contiguous")
            made = self._placed(tuple(like.shape), like.dtype)
            if name in ZEROS:
                self._fill(made, 0)
            return made
        if name in RESET:
            value = args[1] if name == "fill_" else 0
            if not isinstance(value, bool | int | float):
                raise NotRecorded("a tensor is filled with what is no number: fill it with a number")
            self._fill(args[0], value)
            return args[0]
        if name not in VIEWS:
            raise ForeignWork(f"work outside the kernel: torch computes {name}")
        return func(*args, **options)

    def _placed(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor without memory in a slot of its own."""
        size = math.prod(shape) * dtype.itemsize
        if size > MOST_ALLOCATED:
            raise MemoryError(f"out of memory: launch makes a tensor of {size} bytes")
        with _disable_current_modes():
            storage = torch.empty(self._shift + size, dtype=torch.uint8, device="meta")
            tensor = storage[self._shift :].view(dtype).view(tuple(shape))
        self._slots[tensor.untyped_storage()._cdata] = len(self._sizes)
        self._kept.append(tensor)
        self._sizes.append(size)
        return tensor

    def _located(self, tensor: Any, what: str) -> tuple[int, int]:
        """Slot of a tensor, and bytes before its first element."""
        if isinstance(tensor, TensorWrapper):  # what ``triton.reinterpret`` makes
            tensor = tensor.base
        if not isinstance(tensor, torch.Tensor):
            raise NotRecorded(f"{what} is a {type(tensor).__name__}: pass tensors, not addresses")
        slot = self._slots.get(tensor.untyped_storage()._cdata)
        if slot is None:
            raise NotRecorded(f"{what} is no input and no tensor that this call of launch made")
        return slot, int(tensor.storage_offset()) * tensor.element_size() - self._shift

    def _fill(self, tensor: torch.Tensor, value: float) -> None:
        slot, offset = self._located(tensor, "a filled tensor")
        if slot < len(self._specs):
            raise NotRecorded(f"launch changes its inputs: it fills {self._specs[slot].name}")
        if not tensor.is_contiguous():
            raise NotRecorded("part of a tensor with gaps is filled: fill the whole tensor")
        width = tensor.element_size()
        try:
            with _disable_current_modes():
                one = torch.full((1,), value, dtype=tensor.dtype, device="cpu")
                pattern = int(one.view(bits_of(one)).item()) & ((1 << 8 * width) - 1)
        except RuntimeError as error:
            raise NotRecorded(f"a tensor cannot be filled with {value}: {error}") from error
        if width == 8:
            if pattern >> 32 != pattern & 0xFFFFFFFF:
                raise NotRecorded(f"a tensor of 8-byte elements is filled with {value}: fill it with 0 or -1")
            width, pattern = 4, pattern & 0xFFFFFFFF
        self._steps.append(Fill(slot, offset, tensor.numel() * tensor.element_size(), pattern, width))

    # -- what Triton is asked to launch ----------------------------------------------------------

    def add_launch(
        self,
        metadata: Any,
        signature: Sequence[Any],
        grid: tuple[int, int, int],
        code: bytes,
        values: Sequence[Any],
    ) -> None:
        """Raises NotRecorded."""
        if code not in self._codes:
            self._codes.append(code)
        name = str(metadata.name)
        arguments = self._arguments(metadata, signature, values, name)
        programs = math.prod(grid) * metadata.num_ctas
        for size, alignment in (
            (metadata.global_scratch_size, metadata.global_scratch_align),
            (metadata.profile_scratch_size, metadata.profile_scratch_align),
        ):
            if size and alignment > 256:
                raise NotRecorded(f"{name} needs scratch memory at a multiple of {alignment} bytes")
            arguments.append(self._workspace(programs * size) if size else Scalar(8, 0))
        self._steps.append(
            Launch(
                code=self._codes.index(code),
                symbol=name,
                grid=grid,
                warps=int(metadata.num_warps),
                shared=int(metadata.shared),
                arguments=tuple(arguments),
                cluster=int(metadata.num_ctas),
                cooperative=bool(metadata.launch_cooperative_grid),
                programmatic=bool(metadata.launch_pdl),
            )
        )

    def _workspace(self, size: int) -> Pointer:
        self._sizes.append(size)
        return Pointer(len(self._sizes) - 1, 0)

    def _arguments(
        self, metadata: Any, signature: Sequence[Any], values: Sequence[Any], name: str
    ) -> list[Pointer | TensorMap | Scalar]:
        """In the order of the kernel's parameters, as Triton's launcher passes them."""
        maps = iter(metadata.tensordesc_meta or [None] * len(signature))
        found: list[Pointer | TensorMap | Scalar] = []
        for kind, value in zip(signature, values, strict=True):
            if isinstance(kind, str) and _DESCRIPTOR.match(kind):
                found += self._descriptor(next(maps), value, name)
            else:
                found += self._plain(kind, value, name)
        return found

    def _plain(self, kind: Any, value: Any, name: str) -> list[Pointer | TensorMap | Scalar]:
        if isinstance(kind, tuple):
            return [a for part in zip(kind, value, strict=True) for a in self._plain(*part, name)]
        if kind == "constexpr":
            return []
        if kind.startswith("*"):
            return [Pointer(*self._located(value, f"an argument of {name}"))]
        return [_scalar(kind, value)]

    def _descriptor(
        self, meta: Mapping[str, Any] | None, value: Any, name: str
    ) -> list[Pointer | TensorMap | Scalar]:
        """A tensor map, shape and strides; or base, shape and strides twice where the kernel has none."""
        first, *rest = _described_by_triton(value, meta)
        slot, offset = self._located(value.base, f"a descriptor of {name}")
        rank = len(value.shape)
        sizes = [_scalar("i32", int(n)) for n in rest[-2 * rank : -rank]]
        sizes += [_scalar("i64", int(n)) for n in rest[-rank:]]
        if isinstance(first, _Described):
            shape, strides, box = first.shape, first.strides, first.box
            made = TensorMap(slot, offset, first.dtype, shape, strides, box, first.swizzle, first.fill_nan)
            return [made, *sizes]
        flags = [_scalar("i1", bool(flag)) for flag in rest[2 * rank : -2 * rank]]
        return [Pointer(slot, offset), *(_scalar("i64", int(n)) for n in rest[: 2 * rank]), *flags, *sizes]


def _described_by_triton(value: Any, meta: Mapping[str, Any] | None) -> list[Any]:
    """What Triton's launcher makes of a descriptor. From 3.8 on it hands over a launch's other arguments, unused."""
    encode = nvidia.make_tensordesc_arg
    unused = len(inspect.signature(encode).parameters) - 2
    return list(encode(value, meta, *[None] * unused))


def _scalar(kind: str, value: Any) -> Scalar:
    """A number as the kernel's signature wants it. Raises NotRecorded."""
    try:
        packed = struct.pack("<f", value)[2:] if kind == "bf16" else struct.pack("<" + _SCALARS[kind], value)
    except (KeyError, struct.error, OverflowError, TypeError) as error:
        raise NotRecorded(f"an argument of type {kind} cannot hold what launch passes: {error}") from error
    return Scalar(len(packed), int.from_bytes(packed, "little"))


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
