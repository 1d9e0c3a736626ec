"""A plan on a device: its code loaded, its parameter blocks laid out, launched for addresses and a stream.

A ``Ready`` plan may be called from any thread, on any stream of its device, and while a stream is captured. A thread
that has no current context, or another device's, gets the right one for the length of the call. Tensor maps are encoded
once for an address; of the addresses seen, a bounded number is remembered.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from . import driver
from .cubin import waits_first
from .format import ALIGNMENT, MAP_BYTES, Fill, Launch, Plan, Pointer, TensorMap

MOST_MAPS = 512
"""Encoded tensor maps that a plan remembers: a quarter of a kibibyte each."""

_PROMOTE_128 = 2
"""Of ``CUtensorMapL2promotion``: what Triton asks for."""

_FILLS = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}


Prepared = tuple[Callable[..., int], tuple[Any, ...], object]
"""A step for good: see ``Ready.prepared``."""


class Ready:
    """A plan whose code is on a device.

    ``codes``: loads binaries, for callers that share those of many plans. ``overlaps``: the first launch, if the plan
    has it programmatic and its kernel waits before it does anything else, is brought onto the device while what was
    queued before it ends. Raises CudaError where the device cannot run the plan, OSError where there is no driver.
    """

    def __init__(self, plan: Plan, device: int = 0, codes: Codes | None = None, *, overlaps: bool = False) -> None:
        self.plan = plan
        self._context = driver.primary_context(device)
        self._slots = len(plan.inputs) + len(plan.buffers)
        self._maps = _Maps()
        self._codes = codes or Codes(device)
        with driver.within(self._context), driver.beside_captures():
            modules = [self._codes.load(code) for code in plan.codes]
            self._steps = [
                _Kernel(step, modules[step.code], alone=number == 0 and not (overlaps and _waits(plan, step)))
                if isinstance(step, Launch)
                else step
                for number, step in enumerate(plan.steps)
            ]
        self._local = threading.local()
        self._current = driver.function("cuCtxGetCurrent")

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Queue the plan's steps on ``stream``. ``addresses``: first bytes of the inputs, then of the buffers.

        Raises ValueError for addresses that are too few, too many or not aligned, CudaError.
        """
        mine = self._local
        try:
            context, blocks, known = mine.context, mine.blocks, mine.addresses
        except AttributeError:
            context = mine.context = ctypes.c_void_p()
            blocks = mine.blocks = [self._queued(step) for step in self._steps]
            known = mine.addresses = None
        if self._current(ctypes.byref(context)) or context.value != self._context:
            with driver.within(self._context):
                self._run(blocks, known, addresses, stream)
        else:
            self._run(blocks, known, addresses, stream)

    def _run(self, blocks: list[_Queued], known: Sequence[int] | None, addresses: Sequence[int], stream: int) -> None:
        if known != addresses:
            self._place(blocks, addresses)
        for block in blocks:
            block.go(stream)

    def _place(self, blocks: list[_Queued], addresses: Sequence[int]) -> None:
        self._require(addresses)
        self._local.addresses = None  # until all of them are in place
        for block in blocks:
            block.place(addresses)
        self._local.addresses = addresses[:]

    def place(self, addresses: Sequence[int]) -> None:
        """Have this thread's next call, if it is for these addresses, launch and do nothing else.

        Raises ValueError, CudaError as a call does.
        """
        mine = self._local
        if not hasattr(mine, "addresses"):
            mine.context, mine.blocks = ctypes.c_void_p(), [self._queued(step) for step in self._steps]
        self._place(mine.blocks, addresses)

    def prepared(self, addresses: Sequence[int], stream: int) -> list[Prepared]:
        """The plan's steps for good: for these addresses on this stream, to be launched again and again in order.

        Each is (a call of the driver, its arguments, what must live as long). A call returns a ``CUresult`` and needs
        the device's context to be current (``bind``); any thread may make it. Raises ValueError, CudaError.
        """
        self._require(addresses)
        with driver.within(self._context):
            blocks = [self._queued(step) for step in self._steps]
            for block in blocks:
                block.place(addresses)
        return [block.prepared(stream) for block in blocks]

    def bind(self) -> None:
        """Make the device's context the calling thread's, if it has none: what CUDA's run time does at its first call.

        Raises CudaError.
        """
        context = ctypes.c_void_p()
        if self._current(ctypes.byref(context)) or not context.value:
            found = driver.function("cuCtxSetCurrent")(ctypes.c_void_p(self._context))
            driver.check(found, "entering a context")

    @property
    def context(self) -> int:
        """The context the plan runs in."""
        return self._context

    def _require(self, addresses: Sequence[int]) -> None:
        if len(addresses) != self._slots:
            raise ValueError(f"the plan takes {self._slots} addresses, it was given {len(addresses)}")
        if any(address % ALIGNMENT for address in addresses):
            raise ValueError(f"an address is no multiple of {ALIGNMENT} bytes")

    def _queued(self, step: _Kernel | Fill) -> _Queued:
        return _QueuedFill(step) if isinstance(step, Fill) else _QueuedLaunch(step, self._maps)


def _waits(plan: Plan, launch: Launch) -> bool:
    return launch.programmatic and waits_first(plan.codes[launch.code], launch.symbol)


class Codes:
    """Binaries loaded on a device, each once. ``close`` unloads them: no plan that uses them may run any more."""

    def __init__(self, device: int = 0) -> None:
        self._context = driver.primary_context(device)
        self._modules: dict[bytes, ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def load(self, code: bytes) -> ctypes.c_void_p:
        """The module of a binary. Raises CudaError."""
        with self._lock:
            module = self._modules.get(code)
            if module is None:
                module = ctypes.c_void_p()
                found = driver.function("cuModuleLoadData")(ctypes.byref(module), code)
                driver.check(found, "loading code")
                self._modules[code] = module
            return module

    def close(self) -> None:
        """Unload."""
        with self._lock, driver.within(self._context):
            for module in self._modules.values():
                driver.function("cuModuleUnload")(module)
            self._modules.clear()


class _Kernel:
    """A launch with its function on the device."""

    def __init__(self, launch: Launch, module: ctypes.c_void_p, *, alone: bool) -> None:
        self.launch = launch
        self.function = ctypes.c_void_p()
        found = driver.function("cuModuleGetFunction")(ctypes.byref(self.function), module, launch.symbol.encode())
        driver.check(found, f"looking for {launch.symbol}")
        self._require_parameters()
        self._allow(driver.SHARED_BYTES, launch.shared)
        self._allow(driver.WIDE_CLUSTERS, int(launch.cluster > 8))
        self.attributes = self._attributes(alone)

    def _allow(self, attribute: int, value: int) -> None:
        """Raise an attribute of the function, which other plans may share, to ``value`` and never lower it."""
        doing, held = f"preparing {self.launch.symbol}", ctypes.c_int()
        found = driver.function("cuFuncGetAttribute")(ctypes.byref(held), attribute, self.function)
        driver.check(found, doing)
        if value > held.value:
            driver.check(driver.function("cuFuncSetAttribute")(self.function, attribute, value), doing)

    def _require_parameters(self) -> None:
        """The driver, which copies the parameters, must see the sizes that the plan was checked against."""
        try:
            ask = driver.function("cuFuncGetParamInfo")
        except AttributeError:  # a driver before CUDA 12.4
            return
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        for place, argument in enumerate(self.launch.arguments):  # as many as the code has, says the plan's check
            found = ask(self.function, place, ctypes.byref(offset), ctypes.byref(size))
            driver.check(found, f"asking {self.launch.symbol} for its parameters")
            if size.value != (wanted := len(_bytes_of(argument))):
                raise ValueError(
                    f"{self.launch.symbol} takes {size.value} bytes as argument {place}, the plan has {wanted}"
                )

    def _attributes(self, alone: bool) -> ctypes.Array[driver.LaunchAttribute]:
        launch = self.launch
        chosen: list[tuple[int, tuple[int, ...]]] = []
        if launch.programmatic and not alone:  # alone: it begins when what was queued before it has ended
            chosen.append((driver.PROGRAMMATIC, (1,)))
        if launch.cooperative:
            chosen.append((driver.COOPERATIVE, (1,)))
        if launch.cluster != 1:
            chosen.append((driver.CLUSTER, (launch.cluster, 1, 1)))
            chosen.append((driver.CLUSTER_POLICY, (driver.SPREAD,)))
        made = (driver.LaunchAttribute * max(len(chosen), 1))()
        for attribute, (number, values) in zip(made, chosen, strict=False):
            attribute.id = number
            attribute.value[: len(values)] = values
        self.attribute_count = len(chosen)
        return made


class _QueuedLaunch:
    """One thread's parameter block of a launch."""

    def __init__(self, kernel: _Kernel, maps: _Maps) -> None:
        self._kernel, self._maps = kernel, maps
        arguments = kernel.launch.arguments
        self._pointers = [(a.slot, a.offset) for a in arguments if isinstance(a, Pointer)]
        self._addresses = (ctypes.c_uint64 * max(len(self._pointers), 1))()
        self._pack = struct.Struct(f"={len(self._pointers)}Q").pack_into
        self._described: list[tuple[int, TensorMap]] = []
        self._held: list[Any] = []
        parameters = (ctypes.c_void_p * max(len(arguments), 1))()
        base, seen = ctypes.addressof(self._addresses), 0
        for place, argument in enumerate(arguments):
            if isinstance(argument, Pointer):
                parameters[place] = base + 8 * seen
                seen += 1
            elif isinstance(argument, TensorMap):
                self._described.append((place, argument))
                self._held.append(None)
            else:
                value = _bytes_of(argument)
                number = ctypes.create_string_buffer(value, len(value))
                self._held.append(number)
                parameters[place] = ctypes.addressof(number)
        self._parameters = parameters
        launch = kernel.launch
        grid = (launch.grid[0] * launch.cluster, *launch.grid[1:])
        self._config = driver.LaunchConfig(
            grid=(ctypes.c_uint32 * 3)(*grid),
            block=(ctypes.c_uint32 * 3)(*launch.threads),
            shared=launch.shared,
            attributes=kernel.attributes,
            count=kernel.attribute_count,
        )
        self._config_at = ctypes.byref(self._config)
        self._encoded: list[Any] = [None] * len(self._described)
        self._launch = driver.function("cuLaunchKernelEx")

    def place(self, addresses: Sequence[int]) -> None:
        """Put addresses into the block, and tensor maps over them."""
        self._pack(self._addresses, 0, *[addresses[slot] + offset for slot, offset in self._pointers])
        for number, (place, described) in enumerate(self._described):
            encoded = self._maps.of(described, addresses[described.slot] + described.offset)
            self._encoded[number] = encoded  # kept alive for as long as the block points to it
            self._parameters[place] = ctypes.addressof(encoded)

    def prepared(self, stream: int) -> Prepared:
        self._config.stream = stream
        return self._launch, (self._config_at, self._kernel.function, self._parameters, None), self

    def go(self, stream: int) -> None:
        self._config.stream = stream
        code = self._launch(self._config_at, self._kernel.function, self._parameters, None)
        if code:
            driver.check(code, f"launching {self._kernel.launch.symbol}")


class _QueuedFill:
    """One thread's fill."""

    def __init__(self, fill: Fill) -> None:
        self._fill, self._address = fill, 0
        self._set: Callable[..., int] = driver.function(_FILLS[fill.width])

    def place(self, addresses: Sequence[int]) -> None:
        self._address = addresses[self._fill.slot] + self._fill.offset

    def prepared(self, stream: int) -> Prepared:
        fill = self._fill
        if not fill.bytes:
            return _nothing, (), self
        return self._set, (self._address, fill.pattern, fill.bytes // fill.width, stream), self

    def go(self, stream: int) -> None:
        fill = self._fill
        if fill.bytes:
            count = fill.bytes // fill.width
            driver.check(self._set(self._address, fill.pattern, count, stream), "filling a buffer")


def _nothing() -> int:
    return 0


_Queued = _QueuedLaunch | _QueuedFill


class _Maps:
    """Encoded tensor maps by description and address, the latest ``MOST_MAPS``."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()
        self._encode = driver.function("cuTensorMapEncodeTiled")

    def of(self, described: TensorMap, address: int) -> Any:
        """128 bytes at a multiple of 64. Raises CudaError."""
        key = (id(described), address)  # a part of the plan, which lives as long as this does
        found = self._known.get(key)
        if found is None:
            found = self._made(described, address)
            with self._lock:
                while len(self._known) >= MOST_MAPS:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
        return found

    def _made(self, described: TensorMap, address: int) -> Any:
        # the encoded map begins at a multiple of 64 and keeps the memory it lies in alive
        memory = ctypes.create_string_buffer(MAP_BYTES + 64)
        made = (ctypes.c_char * MAP_BYTES).from_buffer(memory, -ctypes.addressof(memory) % 64)
        rank = len(described.shape)
        shape = (ctypes.c_uint64 * rank)(*reversed(described.shape))
        strides = (ctypes.c_uint64 * max(rank - 1, 1))(*reversed(described.strides))
        box = (ctypes.c_uint32 * rank)(*reversed(described.box))
        ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        code = self._encode(
            made,
            described.dtype,
            rank,
            ctypes.c_void_p(address),
            shape,
            strides,
            box,
            ones,
            0,
            described.swizzle,
            _PROMOTE_128,
            int(described.fill_nan),
        )
        driver.check(code, "encoding a tensor map")
        return made


def _bytes_of(argument: Any) -> bytes:
    """A scalar's bytes, and zeros of the right length for what depends on addresses."""
    if isinstance(argument, Pointer):
        return bytes(8)
    if isinstance(argument, TensorMap):
        return bytes(MAP_BYTES)
    return argument.bits.to_bytes(argument.size, "little")
