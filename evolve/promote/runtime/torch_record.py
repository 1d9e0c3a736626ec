"""Makes the launch plan of a promoted Triton or Gluon kernel at a shape, in the program that wants it.

The kernel module's ``launch`` runs on tensors without memory; its kernels are compiled, and instead of running, what
they would be launched with is written down. Triton's driver is left as it is, since other threads use it: each jitted
function of the module, which is this package's own copy, is told to hand its launches over instead. On a machine
without a device, ``pretend`` gives Triton a target to compile for.
"""

from __future__ import annotations

import contextlib
import math
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .plans.format import (
    Fill,
    Launch,
    Output,
    Plan,
    PlanError,
    Pointer,
    Scalar,
    Tensor,
    TensorMap,
)

_FRESH = frozenset(("empty", "empty_like", "empty_strided", "new_empty"))
_ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
_VIEWS = frozenset(
    ("view", "_unsafe_view", "_reshape_alias", "alias", "detach", "slice", "select", "transpose", "t", "permute",
     "expand", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind")
)  # fmt: skip
_NUMBERS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
"""Kinds of numbers in a kernel's signature to the ``struct`` format of their bytes."""


class NotRecorded(RuntimeError):
    """``launch`` does what a plan cannot hold; the message says what."""


def record(
    module: Mapping[str, Any],
    params: Mapping[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    architecture: int,
) -> Plan:
    """What the module's ``launch`` does on inputs of these shapes. ``architecture``: 90 for compute capability 9.0.

    Raises NotRecorded, PlanError, and what ``launch`` or the compiler raises. One call at a time for one module.
    """
    call = _Call(inputs, architecture)
    with _handed_over(module, call), call:
        made = module["launch"](dict(call.inputs), dict(params))
    return call.plan(made, outputs)


@contextlib.contextmanager
def _handed_over(module: Mapping[str, Any], call: _Call) -> Iterator[None]:
    """While open, the module's kernels give their launches to ``call`` in this thread and run in all others."""
    from triton.runtime.jit import JITFunction

    owner = threading.get_ident()
    kernels = [value for value in module.values() if isinstance(value, JITFunction)]
    for kernel in kernels:
        kernel.run = _running(kernel, call, owner)
    try:
        yield
    finally:
        for kernel in kernels:
            del kernel.run


def _running(kernel: Any, call: _Call, owner: int) -> Any:
    run = type(kernel).run

    def handed(*args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() != owner or warmup:
            return run(kernel, *args, grid=grid, warmup=warmup, **options)
        compiled = run(kernel, *args, grid=grid, warmup=True, **options)
        named = {p.name: p.default for p in kernel.params if p.has_default}
        named.update(zip(kernel.arg_names, args, strict=False))
        named.update({name: value for name, value in options.items() if name in kernel.arg_names})
        size = tuple(grid(named) if callable(grid) else grid)
        call.add(compiled, (*size, 1, 1)[:3], [named[name] for name in kernel.arg_names])
        return compiled

    return handed


class _Call(TorchDispatchMode):
    """One call of ``launch``: the tensors it is given and makes, and what it does with them, in order."""

    def __init__(self, inputs: Sequence[Tensor], architecture: int) -> None:
        super().__init__()
        self._given, self._architecture = tuple(inputs), architecture
        self._slots: dict[int, int] = {}
        self._sizes: list[int] = []
        self._kept: list[torch.Tensor] = []
        self._steps: list[Launch | Fill] = []
        self._codes: list[bytes] = []
        self.inputs = {t.name: self._placed(t.shape, getattr(torch, t.dtype)) for t in inputs}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = {**(kwargs or {})}
        name = func.overloadpacket.__name__
        if name in _FRESH or name in _ZEROS:
            like = func(*args, **{**options, "device": "meta"})
            if not like.is_contiguous():
                raise NotRecorded("launch makes a tensor that is not contiguous")
            made = self._placed(tuple(like.shape), like.dtype)
            if name in _ZEROS:
                self._fill(made, 0)
            return made
        if name in ("zero_", "fill_"):
            self._fill(args[0], args[1] if name == "fill_" else 0)
            return args[0]
        if name not in _VIEWS:
            raise NotRecorded(f"launch computes {name} with torch")
        return func(*args, **options)

    def _placed(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with _disable_current_modes():
            tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self._slots[tensor.untyped_storage()._cdata] = len(self._sizes)
        self._kept.append(tensor)
        self._sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    def _located(self, tensor: Any) -> tuple[int, int]:
        slot = self._slots.get(tensor.untyped_storage()._cdata) if isinstance(tensor, torch.Tensor) else None
        if slot is None:
            raise NotRecorded("an argument is no input and no tensor that launch made")
        return slot, int(tensor.storage_offset()) * tensor.element_size()

    def _fill(self, tensor: torch.Tensor, value: Any) -> None:
        width = tensor.element_size()
        if not tensor.is_contiguous() or not isinstance(value, bool | int | float) or width == 8:
            raise NotRecorded(
                "launch fills a tensor with gaps, of 8-byte elements, or with what is no number"
            )
        with _disable_current_modes():
            one = torch.full((1,), value, dtype=tensor.dtype, device="cpu").view(torch.uint8)
            pattern = int.from_bytes(bytes(one.tolist()), "little")
        slot, offset = self._located(tensor)
        self._steps.append(Fill(slot, offset, tensor.numel() * width, pattern, width))

    # -- launches ------------------------------------------------------------------------------------

    def add(self, compiled: Any, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        """Write a launch down. Raises NotRecorded."""
        if not all(type(size) is int for size in grid):
            raise NotRecorded("a grid is not of whole numbers")
        if math.prod(grid) == 0:
            return
        metadata, code = compiled.metadata, bytes(compiled.asm["cubin"])
        if code not in self._codes:
            self._codes.append(code)
        maps = iter(getattr(metadata, "tensordesc_meta", None) or ())
        arguments: list[Pointer | TensorMap | Scalar] = []
        for kind, value in zip(compiled.src.signature.values(), values, strict=True):
            if isinstance(kind, str) and kind.startswith("tensordesc"):
                arguments += self._descriptor(next(maps, None), value)
            else:
                arguments += self._plain(kind, value)
        programs = math.prod(grid) * metadata.num_ctas
        for size in (metadata.global_scratch_size, metadata.profile_scratch_size):
            if size:
                self._sizes.append(programs * size)
            arguments.append(Pointer(len(self._sizes) - 1, 0) if size else Scalar(8, 0))
        self._steps.append(
            Launch(
                code=self._codes.index(code),
                symbol=str(metadata.name),
                grid=(grid[0], grid[1], grid[2]),
                warps=int(metadata.num_warps),
                shared=int(metadata.shared),
                arguments=tuple(arguments),
                cluster=int(metadata.num_ctas),
                cooperative=bool(metadata.launch_cooperative_grid),
                programmatic=bool(metadata.launch_pdl),
            )
        )

    def _plain(self, kind: Any, value: Any) -> list[Pointer | TensorMap | Scalar]:
        if isinstance(kind, tuple):
            return [a for part in zip(kind, value, strict=True) for a in self._plain(*part)]
        if kind == "constexpr":
            return []
        if kind.startswith("*"):
            return [Pointer(*self._located(value))]
        return [_scalar(kind, value)]

    def _descriptor(self, meta: Any, value: Any) -> list[Pointer | TensorMap | Scalar]:
        if meta is None or meta.get("fp4_padded") or getattr(value, "round_f32_to_tf32", False):
            raise NotRecorded("a descriptor is of a form that plans do not hold")
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

        slot, offset = self._located(value.base)
        shape = tuple(map(int, value.shape))
        made = TensorMap(
            slot=slot,
            offset=offset,
            dtype=int(TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]),
            shape=shape,
            strides=tuple(int(meta["elem_size"]) * int(stride) for stride in value.strides[:-1]),
            box=tuple(map(int, meta["block_size"])),
            swizzle=int(meta["swizzle"]),
            fill_nan=value.padding == "nan",
        )
        sizes = [_scalar("i32", size) for size in shape]
        return [made, *sizes, *(_scalar("i64", int(stride)) for stride in value.strides)]

    def plan(self, made: Any, outputs: Sequence[Tensor]) -> Plan:
        """Raises NotRecorded, PlanError."""
        if not isinstance(made, tuple | list) or len(made) != len(outputs):
            raise NotRecorded(f"launch does not return {len(outputs)} tensors")
        given, results = len(self._given), []
        for tensor, told in zip(made, outputs, strict=True):
            slot, offset = self._located(tensor)
            if slot < given:
                raise NotRecorded(f"output {told.name} is an input")
            dtype = str(tensor.dtype).removeprefix("torch.")
            if tuple(tensor.shape) != told.shape or dtype != told.dtype or not tensor.is_contiguous():
                raise NotRecorded(f"output {told.name} is {dtype}{list(tensor.shape)}, not as promoted")
            results.append(Output(told.name, dtype, told.shape, slot - given, offset))
        return Plan(
            architecture=self._architecture,
            inputs=self._given,
            outputs=tuple(results),
            buffers=tuple(self._sizes[given:]),
            steps=tuple(self._steps),
            codes=tuple(self._codes),
            toolchain=toolchain(),
        )


def _scalar(kind: str, value: Any) -> Scalar:
    try:
        data = struct.pack("<f", value)[2:] if kind == "bf16" else struct.pack("<" + _NUMBERS[kind], value)
    except (KeyError, struct.error, OverflowError, TypeError) as error:
        raise NotRecorded(f"an argument of type {kind} cannot hold what launch passes") from error
    return Scalar(len(data), int.from_bytes(data, "little"))


def toolchain() -> dict[str, str]:
    """What decides the code of a plan made here."""
    import triton

    return {"triton": str(triton.__version__)}


def pretend(architecture: int) -> None:
    """Give Triton a target to compile for where there is no device. For processes that do nothing else."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Target:
        """As much of a driver as compiling asks for."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", architecture, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def map_python_to_cpp_type(self, kind: str) -> str:
            return kind

    driver.set_active(Target())


__all__ = ["NotRecorded", "PlanError", "pretend", "record", "toolchain"]
