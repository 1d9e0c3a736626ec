"""Launches plans on one NVIDIA GPU: checks their answers and times them. Exclusive; one per GPU.

What is checked and timed here is data (``library.plans``): compiled code, grids, sizes, arguments by role. No
candidate's Python is ever imported, and Triton is not needed. Jobs and answers are those of
``workers.runners.triton.torch_runner``; entries are {id}, with a blob ``plan/entry/workload`` for each workload.

A call's buffers lie between canaries at places that change, and every byte of them is known before the call. Nothing
that a kernel could leave in memory for a later call of its own survives until then: buffers and canaries are written
anew, L2 is flushed by a write to all of the flushing buffer, shared memory is overwritten on every multiprocessor, free
memory of torch's allocator is given back to the driver, and a write to operands is found by their checksums.
"""

import ctypes
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.library.plans import driver
from tilewright.library.plans.format import Plan
from tilewright.library.plans.replay import Codes, Ready
from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.triton.clock import Clock, GpuClock, nothing
from tilewright.workers.runners.triton.launch_guard import CANARY, CANARY_BYTES, KEPT, Canaries, OutsideWrite, poison
from tilewright.workers.runners.triton.tensors import Tensors, torch_dtype
from tilewright.workers.runners.triton.torch_runner import Call, TorchDevice

ENTRIES = 24
"""Candidates whose code stays on the device."""

_PLACES, _STEP = 64, 256
"""A buffer begins at one of so many places, so many bytes apart."""

_HARMLESS = frozenset((1, 200, 209, 218, 500, 701, 720, 801, 912))
"""``CUresult`` of calls that the driver refuses and that leave the device as it was: what does not fit or exist."""

_SCRUB = b"""
.version 7.8
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry scrub(.param .u32 bytes) {
  .reg .pred %p;
  .reg .b32 %at, %end, %step, %base, %here, %fill;
  mov.u32 %at, %tid.x;
  shl.b32 %at, %at, 2;
  mov.u32 %step, %ntid.x;
  shl.b32 %step, %step, 2;
  ld.param.u32 %end, [bytes];
  mov.u32 %base, memory;
  mov.u32 %fill, -1;
next:
  setp.ge.u32 %p, %at, %end;
  @%p bra done;
  add.u32 %here, %base, %at;
  st.volatile.shared.u32 [%here], %fill;
  add.u32 %at, %at, %step;
  bra next;
done:
  ret;
}
\0"""
"""Overwrites the shared memory of a multiprocessor, all of which one block of it takes, with what is NaN in every
floating-point type: a kernel that counts on zeros there is wrong elsewhere."""


class Runner(TorchDevice):
    """Serves ``check`` and ``time`` jobs. ``config``: ``product``, ``flush_bytes``.

    Raises RuntimeError for another device than the target's, OSError where there is no driver.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        name = torch.cuda.get_device_name()
        if config["product"] not in name:
            raise RuntimeError(f"the target is an {config['product']}, this GPU is an {name}")
        properties = torch.cuda.get_device_properties()
        versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
        self.hello = {**versions, "device": name, "identity": str(properties.uuid)}
        self._start("cuda", GpuClock(int(config["flush_bytes"])), Device())

    def _start(self, device: str, clock: Clock, gpu: "Device") -> None:
        super().__init__(device, clock)
        self._gpu = gpu
        self._arena = Arena(device)
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def _call(self, job: Frame, entry: Mapping[str, Any], workload: Mapping[str, Any], tensors: Tensors) -> Call:
        data = job.blobs[f"plan/{entry['id']}/{workload['id']}"]
        held = self._held.setdefault(entry["id"], _Held(self._gpu))
        self._held.move_to_end(entry["id"])
        while len(self._held) > ENTRIES:
            self._held.popitem(last=False)[1].close()
        ready = held.ready(data)
        for given, spec in ((ready.plan.inputs, workload["inputs"]), (ready.plan.outputs, workload["outputs"])):
            if [(t.name, list(t.shape), t.dtype) for t in given] != [(s["name"], s["shape"], s["dtype"]) for s in spec]:
                raise RuntimeError(f"the plan is not for the tensors of {workload['id']}")
        return _Launched(ready, tensors, self._arena, self._gpu, self._clock)

    def _time(self, job: Frame, answer: Any, state: dict[str, str]) -> None:
        self._gpu.release()
        super()._time(job, answer, state)

    def _spoiled(self, error: BaseException) -> bool:
        if isinstance(error, driver.CudaError) and error.code not in _HARMLESS:
            return True
        return super()._spoiled(error)


class Device:
    """The current CUDA device, as far as launching plans needs it."""

    def __init__(self) -> None:
        self._number = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties()
        self._processors = properties.multi_processor_count
        self._stream = torch.cuda.current_stream().cuda_stream
        torch.cuda.synchronize()
        self._shared = driver.device_attribute(driver.MOST_SHARED_BYTES, self._number)
        self._module, self._scrub = ctypes.c_void_p(), ctypes.c_void_p()
        with driver.within(driver.primary_context(self._number)):
            found = driver.function("cuModuleLoadData")(ctypes.byref(self._module), _SCRUB)
            driver.check(found, "loading the code that overwrites shared memory")
            found = driver.function("cuModuleGetFunction")(ctypes.byref(self._scrub), self._module, b"scrub")
            driver.check(found, "looking for the code that overwrites shared memory")
            found = driver.function("cuFuncSetAttribute")(self._scrub, driver.SHARED_BYTES, self._shared)
            driver.check(found, "preparing the code that overwrites shared memory")

    def stream(self) -> int:
        """That of all work of this process."""
        return self._stream

    def codes(self) -> Codes:
        """A place for binaries."""
        return Codes(self._number)

    def ready(self, plan: Plan, codes: Codes) -> Ready:
        """A plan with its code loaded. Raises CudaError."""
        return Ready(plan, self._number, codes)

    def scrub(self) -> None:
        """Queue a write to all shared memory. Raises CudaError."""
        size = ctypes.c_uint32(self._shared)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(size))
        grid, stream = self._processors, ctypes.c_void_p(self.stream())
        found = driver.function("cuLaunchKernel")(
            self._scrub, grid, 1, 1, 1024, 1, 1, self._shared, stream, parameters, None
        )
        driver.check(found, "overwriting shared memory")

    def release(self) -> None:
        """Give memory that no tensor has back to the driver."""
        torch.cuda.empty_cache()


class _Held:
    """One candidate's plans on the device, by their bytes."""

    def __init__(self, gpu: Device) -> None:
        self._gpu, self._codes = gpu, gpu.codes()
        self._ready: dict[bytes, Ready] = {}

    def ready(self, data: bytes) -> Ready:
        """Raises PlanError, CudaError."""
        if data not in self._ready:
            self._ready[data] = self._gpu.ready(Plan.from_bytes(data), self._codes)
        return self._ready[data]

    def close(self) -> None:
        """Unload."""
        self._codes.close()


class Arena:
    """Memory for the buffers of calls, one after the other: nothing in it outlives a call."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._spans: list[tuple[int, int]] = []
        self._gaps: list[torch.Tensor] = []
        """What lies around the buffers."""

    def laid(self, sizes: Sequence[int], fill: int | None = None) -> list[torch.Tensor]:
        """Buffers of these sizes in bytes, at places drawn anew, CANARY around them.

        All bytes are ``fill``, or one drawn anew; with ``KEPT`` they stay, and no buffer lies where one did.
        """
        room = (_PLACES - 1) * _STEP
        needed = 2 * CANARY_BYTES + sum(_rounded(size) + room + CANARY_BYTES for size in sizes)
        if not needed <= self._memory.numel() <= 2 * needed:
            self._memory = torch.empty(needed, dtype=torch.uint8, device=self._device)
        earlier = {start for start, _ in self._spans}
        self._spans, place = [], CANARY_BYTES
        for size in sizes:
            start = place
            while (place := start + _STEP * secrets.randbelow(_PLACES)) in earlier:
                pass
            self._spans.append((place, place + size))
            place += _rounded(size) + CANARY_BYTES
        starts = [0, *(end for _, end in self._spans)]
        ends = [*(start for start, _ in self._spans), self._memory.numel()]
        self._gaps = [self._memory[start:end] for start, end in zip(starts, ends, strict=True)]
        for gap in self._gaps:
            gap.fill_(CANARY)
        buffers = [self._memory[start:end] for start, end in self._spans]
        fill = poison() if fill is None else fill
        for buffer in buffers if fill != KEPT else ():
            buffer.fill_(fill)
        return buffers

    def inspect(self) -> None:
        """Once the device is done. Raises OutsideWrite when something was written beside the buffers laid last."""
        if bool((torch.cat(self._gaps) != CANARY).any()):
            raise OutsideWrite("a kernel writes outside the tensors it was given")


def _rounded(size: int) -> int:
    return -(-size // _STEP) * _STEP


class _Launched:
    """A plan on one workload's operands."""

    def __init__(self, ready: Ready, tensors: Tensors, arena: Arena, gpu: Device, clock: Clock) -> None:
        self._ready, self._arena, self._gpu, self._clock = ready, arena, gpu, clock
        self._inputs = [tensors[spec.name].data_ptr() for spec in ready.plan.inputs]
        self._buffers: list[torch.Tensor] = []
        self._addresses: list[int] = []

    def guarded(self, canaries: Canaries, rest: Callable[[], object] = nothing) -> Tensors:
        self._prepare(canaries.fill)
        rest()
        self()
        self._clock.synchronise()
        canaries.inspect()
        self.inspect()
        return self.results(None)

    def inspect(self) -> None:
        self._arena.inspect()

    def prepare(self) -> None:
        self._prepare(None)

    def _prepare(self, fill: int | None) -> None:
        self._buffers = self._arena.laid(self._ready.plan.buffers, fill)
        self._addresses = [*self._inputs, *(buffer.data_ptr() for buffer in self._buffers)]
        self._ready.place(self._addresses)
        self._gpu.scrub()

    def __call__(self) -> None:
        self._ready(self._addresses, self._gpu.stream())

    def results(self, made: Any) -> Tensors:
        """Views of the buffers, which hold until the next call is prepared."""
        return {
            output.name: self._buffers[output.buffer][output.offset : output.offset + output.bytes]
            .view(torch_dtype(output.dtype))
            .view(output.shape)
            for output in self._ready.plan.outputs
        }
