"""Records what a Triton or Gluon kernel's ``launch`` does at a shape, as a launch plan.

``launch`` runs on tensors without memory; its kernels are compiled, and instead of running, what they would be launched
with is written down (``RecordedCall``). ``record`` does so in the program that wants the plan of a promoted kernel.
Triton's driver is left as it is, since other threads use it: each jitted function of the module, which is this
package's own copy, is told to hand its launches over instead. On a machine without a device, ``pretend`` gives Triton a
target to compile for.
"""

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .plans.format import (
    MOST_ALLOCATED,
    Fill,
    Launch,
    NotRecorded,
    Output,
    Plan,
    Pointer,
    Scalar,
    Tensor,
    TensorMap,
    scalar,
)

FRESH = frozenset(("empty", "empty_like", "empty_strided", "new_empty"))
ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
RESET = frozenset(("zero_", "fill_"))
VIEWS = frozenset(
    (
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "alias",
        "detach",
        "slice",
        "select",
        "transpose",
        "t",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "split",
        "split_with_sizes",
        "unbind",
    )
)
"""What ``launch`` may ask torch to do: make tensors, make zeros, fill tensors, view them."""


class ForeignWork(NotRecorded):
    """``launch`` computes something with torch."""


class RecordedCall(TorchDispatchMode):
    """One call of ``launch``: the tensors it is given and makes, and what is done with them, in order.

    ``shift`` bytes lie before every tensor in its storage, which changes all addresses.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper that skips it would import torch's compiler, which takes seconds, in every child."""
        return False

    def __init__(self, inputs: Sequence[Tensor], shift: int = 0) -> None:
        super().__init__()
        self._given, self._shift = tuple(inputs), shift
        self._kept: list[torch.Tensor] = []
        self._slots: dict[int, int] = {}
        self._sizes: list[int] = []
        self._steps: list[Launch | Fill] = []
        self._codes: list[bytes] = []
        self.inputs = {t.name: self._placed(t.shape, getattr(torch, t.dtype)) for t in self._given}

    def plan(self, results: Mapping[str, torch.Tensor], architecture: int, toolchain: Mapping[str, str]) -> Plan:
        """The plan of a call that returned ``results``. Raises NotRecorded, PlanError."""
        given = len(self._given)
        outputs = []
        for name, tensor in results.items():
            slot, offset = self._located(tensor, f"output {name}")
            if slot < given:
                raise NotRecorded(f"output {name} is input {self._given[slot].name}: launch returns tensors it makes")
            dtype = str(tensor.dtype).removeprefix("torch.")
            outputs.append(Output(name, dtype, tuple(tensor.shape), slot - given, offset))
        return Plan(
            architecture=architecture,
            inputs=self._given,
            outputs=tuple(outputs),
            buffers=tuple(self._sizes[given:]),
            steps=tuple(self._steps),
            codes=tuple(self._codes),
            toolchain=toolchain,
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
        if name in VIEWS:
            return func(*args, **options)
        # within an operator, operations that torch makes of others come undivided, such as ``reshape``
        with self:
            made = func.decompose(*args, **options)
        if made is NotImplemented:
            raise ForeignWork(f"work outside the kernel: torch computes {name}")
        return made

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
        from triton.runtime.jit import TensorWrapper

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
        if slot < len(self._given):
            raise NotRecorded(f"launch changes its inputs: it fills {self._given[slot].name}")
        if not tensor.is_contiguous():
            raise NotRecorded("part of a tensor with gaps is filled: fill the whole tensor")
        width = tensor.element_size()
        try:
            with _disable_current_modes():
                one = torch.full((1,), value, dtype=tensor.dtype, device="cpu")
            pattern = int.from_bytes(bytes(one.view(torch.uint8).tolist()), "little")
        except RuntimeError as error:
            raise NotRecorded(f"a tensor cannot be filled with {value}: {error}") from error
        if width == 8:
            if pattern >> 32 != pattern & 0xFFFFFFFF:
                raise NotRecorded(f"a tensor of 8-byte elements is filled with {value}: fill it with 0 or -1")
            width, pattern = 4, pattern & 0xFFFFFFFF
        self._steps.append(Fill(slot, offset, tensor.numel() * tensor.element_size(), pattern, width))

    # -- what Triton is asked to launch ----------------------------------------------------------

    def add_launch(
        self, metadata: Any, signature: Sequence[Any], grid: tuple[int, int, int], code: bytes, values: Sequence[Any]
    ) -> None:
        """Write a launch down. Raises NotRecorded."""
        if not all(type(size) is int for size in grid):
            raise NotRecorded("a grid is not of whole numbers")
        if math.prod(grid) == 0:  # of no programs, Triton's own launcher launches nothing
            return
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
            if size:
                self._sizes.append(programs * size)
            arguments.append(Pointer(len(self._sizes) - 1, 0) if size else Scalar(8, 0))
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

    def _arguments(
        self, metadata: Any, signature: Sequence[Any], values: Sequence[Any], name: str
    ) -> list[Pointer | TensorMap | Scalar]:
        """In the order of the kernel's parameters, as Triton's launcher passes them."""
        maps = iter(getattr(metadata, "tensordesc_meta", None) or [None] * len(signature))
        found: list[Pointer | TensorMap | Scalar] = []
        for kind, value in zip(signature, values, strict=True):
            if isinstance(kind, str) and kind.startswith("tensordesc"):
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
        return [scalar(kind, value)]

    def _descriptor(self, meta: Mapping[str, Any] | None, value: Any, name: str) -> list[Pointer | TensorMap | Scalar]:
        """A tensor map, shape and strides."""
        if meta is None or meta.get("fp4_padded") or getattr(value, "round_f32_to_tf32", False):
            raise NotRecorded("a descriptor is of a form that plans do not hold")
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

        slot, offset = self._located(value.base, f"a descriptor of {name}")
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
        sizes = [scalar("i32", size) for size in shape]
        return [made, *sizes, *(scalar("i64", int(stride)) for stride in value.strides)]


# -- in the program that wants a plan ----------------------------------------------------------------


def record(
    module: Mapping[str, Any],
    params: Mapping[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    architecture: int,
    earlier: object = None,
) -> Plan:
    """What the module's ``launch`` does on inputs of these shapes. ``architecture``: 90 for compute capability 9.0.

    ``earlier`` is of no use here: what Triton compiles to depends on the arguments of a launch.

    Raises NotRecorded, PlanError, and what ``launch`` or the compiler raises. One call at a time for one module.
    """
    call = RecordedCall(inputs)
    with _handed_over(module, call), call:
        made = module["launch"](dict(call.inputs), dict(params))
    if not isinstance(made, tuple | list) or len(made) != len(outputs):
        raise NotRecorded(f"launch does not return {len(outputs)} tensors")
    for tensor, output in zip(made, outputs, strict=True):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != output.shape or dtype != output.dtype or not tensor.is_contiguous():
            raise NotRecorded(f"output {output.name} is {dtype}{list(tensor.shape)}, not as promoted")
    return call.plan(
        {output.name: tensor for tensor, output in zip(made, outputs, strict=True)}, architecture, toolchain()
    )


@contextlib.contextmanager
def _handed_over(module: Mapping[str, Any], call: RecordedCall) -> Iterator[None]:
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


def _running(kernel: Any, call: RecordedCall, owner: int) -> Any:
    run = type(kernel).run

    def handed(*args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() != owner or warmup:
            return run(kernel, *args, grid=grid, warmup=warmup, **options)
        compiled = run(kernel, *args, grid=grid, warmup=True, **options)
        named = {p.name: p.default for p in kernel.params if p.has_default}
        named.update(zip(kernel.arg_names, args, strict=False))
        named.update({name: value for name, value in options.items() if name in kernel.arg_names})
        size = tuple(grid(named) if callable(grid) else grid)
        values = [named[name] for name in kernel.arg_names]
        signature = list(compiled.src.signature.values())
        call.add_launch(compiled.metadata, signature, (*size, 1, 1)[:3], bytes(compiled.asm["cubin"]), values)
        return compiled

    return handed


def toolchain() -> dict[str, str]:
    """What decides the code of a plan made here."""
    import triton

    return {"triton": str(triton.__version__)}


class TargetDriver:
    """As much of a Triton driver as compiling for ``target`` (triton.backends.compiler.GPUTarget) asks for; there is no
    device."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def map_python_to_cpp_type(self, kind: str) -> str:
        from triton.backends.nvidia import driver

        return str(driver.ty_to_cpp(kind))


def pretend(architecture: int) -> None:
    """Give Triton a target to compile for where there is no device. For processes that do nothing else."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    driver.set_active(TargetDriver(GPUTarget("cuda", architecture, 32)))
