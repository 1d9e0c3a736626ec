"""How a promoted Triton or Gluon kernel is run from torch: as a launch plan, through its module, or not at all.

A ``Served`` stands for one operator at one shape on one device. On a CUDA device it holds a plan, which comes from the
version's packs, from the user's cache, or is made here, and is launched through the driver alone; a kernel that no plan
can hold runs through its module. A resolved shape costs a look into a dict.
"""

import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from . import cuda_record, plan_shelf, store
from .loaded import Dispatcher
from .nvrtc import NoCompiler
from .operands import Operands
from .plans import driver
from .plans.format import ALIGNMENT, NotRecorded, Output, Plan, PlanError, Tensor
from .plans.replay import Codes, Prepared, Ready

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[Mapping[str, torch.Tensor]], Tensors]


def device_key(device: torch.device) -> str:
    """``cuda:9.0`` (compute capability); ``interpret`` on a CPU under TRITON_INTERPRET=1; else the device's type."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda:{major}.{minor}"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return store.INTERPRET
    return device.type


@dataclass(frozen=True)
class Served:
    """One operator at one shape on one device. ``plan`` is None for what runs through ``call``.

    ``kind``: ``plan``, ``module`` or ``reference``. ``call`` takes contiguous inputs by name.
    """

    kind: str
    call: Call
    plan: Ready | None = None


class Launcher:
    """Resolves operators of a library's folder; everything it resolves is kept. Safe to use from several threads."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._lock = threading.RLock()
        self._served: dict[tuple[str, tuple[int, ...], torch.device, int | None], Served] = {}
        self._verified: dict[tuple[str, str, torch.device], int] = {}
        self._codes: dict[int, Codes] = {}
        self._packs: dict[tuple[str, str], list[plan_shelf.Pack]] = {}

    def serve(
        self, operator: str, dims: tuple[int, ...], device: torch.device, reference: Call, rows: int | None = None
    ) -> Served:
        """What runs an operator at a shape; its reference, with one warning, where no promoted kernel does.

        ``rows``: so many of the first input's rows are there, the others count as zeros. Only a plan that reads the
        input through the copy engine serves that, and what is returned holds no plan where there is none.
        """
        key = (operator, dims, device, rows)
        found = self._served.get(key)
        if found is None:
            with self._lock:
                found = self._served.get(key)
                if found is None:
                    found = self._served[key] = self._resolve(operator, dims, device, reference)
                    if rows is not None:
                        found = self._served[key] = self._with_rows(found, rows, device)
        return found

    def verified(self, operator: str, dimension: str, device: torch.device) -> int:
        """The largest size of a dimension that an operator was verified at on a device; 0 where it is not promoted."""
        key = (operator, dimension, device)
        found = self._verified.get(key)
        if found is None:
            try:
                table = self.dispatcher.table(operator, device_key(device))
            except store.NotServed:
                found = 0
            else:
                place = table.dimensions.index(dimension)
                found = max((region.dims[place] for region in table.regions), default=0)
            self._verified[key] = found
        return found

    def _with_rows(self, served: Served, rows: int, device: torch.device) -> Served:
        if served.plan is None:
            return served
        try:
            plan = served.plan.plan.with_rows(0, rows)
        except PlanError:
            return Served("reference", served.call)
        return self._ready(plan, device)

    def _resolve(self, operator: str, dims: tuple[int, ...], device: torch.device, reference: Call) -> Served:
        try:
            table = self.dispatcher.table(operator, device_key(device))
            region = table.choose(dims)
            if device.type == "cuda" and table.operands is not None:
                plan = self._plan(table, region.kernel, table.operands, dims, device)
                if plan is not None:
                    return self._ready(plan, device)
            if table.fault is not None:
                raise store.NotServed(f"{operator}: {table.fault}")
            return Served("module", load(region.kernel, device))
        except store.NotServed as error:
            self.dispatcher.warn(operator, str(error))
        except driver.CudaError as error:
            self.dispatcher.warn(operator, f"{operator}: its plan is refused by the driver ({error})")
        return Served("reference", reference)

    def _ready(self, plan: Plan, device: torch.device) -> Served:
        index = device.index or 0
        if index not in self._codes:
            self._codes[index] = Codes(index)
        ready = Ready(plan, index, self._codes[index], overlaps=True)
        return Served("plan", _planned(ready, device), ready)

    def _plan(
        self, table: store.Table, kernel: store.Kernel, shapes: Operands, dims: tuple[int, ...], device: torch.device
    ) -> Plan | None:
        """A kernel's plan at a shape: promoted, cached, or made here; None where it has to run through its module."""
        major, minor = torch.cuda.get_device_capability(device)
        architecture = 10 * major + minor
        place = (str(table.version), table.target)
        if place not in self._packs:
            self._packs[place] = plan_shelf.packs(table.version, table.target)
        for pack in self._packs[place]:
            plan = pack.find(kernel.name, dims)
            if plan is not None and plan.architecture == architecture:
                return plan
        if table.fault is not None and recorder_of(kernel) is not cuda_record:
            return None
        return made_plan(kernel, shapes, dims, architecture, device, self._packs[place])


def recorder_of(kernel: store.Kernel) -> Any:
    """What records the launches of a kernel's language: ``toolchain()`` and ``record(...)``. Raises ImportError."""
    if f"\n{cuda_record.DEVICE_CODE} = " in kernel.source():
        return cuda_record
    from . import torch_record

    return torch_record


def made_plan(
    kernel: store.Kernel,
    shapes: Operands,
    dims: tuple[int, ...],
    architecture: int,
    device: torch.device,
    packs: Sequence[plan_shelf.Pack] = (),
) -> Plan | None:
    """A plan from the user's cache, or made here, of code in the packs or with the compiler there is.

    None where it cannot be. Raises UnsoundLibrary for a source that is not what was promoted, NotServed where there is
    no Triton.
    """
    try:
        recorder = recorder_of(kernel)
        toolchain = recorder.toolchain()
    except ImportError as error:
        raise store.NotServed(f"{kernel.name} has no plan for this shape, and {error}") from error
    key = plan_shelf.cache_key(kernel, dims, architecture, toolchain)
    module = _namespace(kernel, device)
    plan = plan_shelf.cached(key)
    if plan is not None:
        return plan
    named = shapes.named(dims)
    inputs, outputs = (
        [Tensor(o.name, o.dtype, o.sizes(named)) for o in part] for part in (shapes.inputs, shapes.outputs)
    )
    try:
        plan = recorder.record(module, kernel.params, inputs, outputs, architecture, _earlier(packs))
    except NoCompiler as error:
        raise store.NotServed(f"{kernel.name} has no plan for this shape, and {error}") from error
    except (NotRecorded, PlanError, MemoryError):
        return None
    plan_shelf.keep(key, plan)
    return plan


def _earlier(packs: Sequence[plan_shelf.Pack]) -> cuda_record.Earlier:
    return lambda key: next((plan for pack in packs if (plan := pack.compiled(key)) is not None), None)


def _planned(ready: Ready, device: torch.device) -> Call:
    """A plan as a function of inputs by name: allocates what comes back and what it works in."""
    names = [tensor.name for tensor in ready.plan.inputs]
    run = runner(ready, device)
    return lambda inputs: run([inputs[name] for name in names])


Run = Callable[..., Tensors]
"""A plan as a function of contiguous inputs in order; of their addresses as well, from who has asked for them."""


def runner(ready: Ready, device: torch.device) -> Run:
    """A plan as a ``Run``. Results and scratch are torch's, freed as torch frees."""
    plan = ready.plan
    index = device.index or 0
    alone = _alone(plan)
    empty, stream_of = torch.empty, torch._C._cuda_getCurrentRawStream
    if alone is not None and len(alone) == len(plan.buffers):
        with torch.inference_mode(False):
            made = [
                (empty(0, dtype=getattr(torch, output.dtype), device=device).new_empty, output.shape or ((),))
                for output in plan.outputs
            ]
        chain = Chain.of(ready, alone)

        def simple(inputs: Sequence[torch.Tensor], addresses: Sequence[int] | None = None) -> Tensors:
            results = tuple([new(*shape) for new, shape in made])
            bases = addresses or [tensor.data_ptr() for tensor in inputs]
            chain((*bases, *[tensor.data_ptr() for tensor in results]), stream_of(index))
            return results

        return simple

    def general(inputs: Sequence[torch.Tensor], addresses: Sequence[int] | None = None) -> Tensors:
        buffers = [empty(size, dtype=torch.uint8, device=device) for size in plan.buffers]
        places = [tensor.data_ptr() for tensor in (*inputs, *buffers)]
        ready(places, stream_of(index))
        return tuple([_result(buffers[o.buffer], o) for o in plan.outputs])

    return general


def _alone(plan: Plan) -> tuple[int, ...] | None:
    """The buffer of each output, if every output fills a buffer of its own; else None."""
    buffers = tuple(output.buffer for output in plan.outputs)
    whole = all(o.offset == 0 and o.bytes == plan.buffers[o.buffer] for o in plan.outputs)
    return buffers if whole and len(set(buffers)) == len(buffers) else None


def _result(buffer: torch.Tensor, output: Output) -> torch.Tensor:
    part = buffer[output.offset : output.offset + output.bytes]
    return part.view(getattr(torch, output.dtype)).view(output.shape)


class Layout:
    """Places of bytes in one allocation, each at a multiple of 256."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, size: int) -> int:
        """The offset of ``size`` more bytes."""
        place = self.bytes
        self.bytes += -(-size // 256) * 256
        return place


Place = tuple[int, int]
"""The number of a base address, and bytes beyond it."""


MOST_PREPARED = 512
"""Sets of addresses for which a chain keeps its launches ready: allocators hand out the same few again and again, for
each of the layers of a model that have this shape. Some 10 KB each."""

MOST_SEEN = 4096


class Chain:
    """Plans launched one after the other, over base addresses that are given with each call.

    For addresses that come again on the same stream, everything a launch needs is kept. What is kept never changes, so
    that threads share it, and it holds no address of memory it would read or write by itself: an address that torch has
    given to somebody else means what that somebody put there.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Ready, tuple[Place, ...]]] = []
        self._prepared: dict[tuple[tuple[int, ...], int], list[Prepared]] = {}
        self._seen: set[tuple[tuple[int, ...], int]] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, ready: Ready, alone: Sequence[int]) -> Self:
        """One plan without scratch, whose bases are its inputs, then its outputs; ``alone``: the buffer of each."""
        chain, given = cls(), len(ready.plan.inputs)
        order = [*range(given), *(given + alone.index(n) for n in range(len(ready.plan.buffers)))]
        chain._steps.append((ready, tuple((base, 0) for base in order)))
        return chain

    def add(
        self, served: Served, inputs: Sequence[Place], outputs: Sequence[Place], work: Callable[[int], Place]
    ) -> None:
        """One more plan; ``work`` makes room for scratch. Raises NotServed for what is no plan, or not so simple."""
        ready = served.plan
        alone = None if ready is None else _alone(ready.plan)
        if ready is None or alone is None:
            raise store.NotServed("an operator of the chain has no plan")
        places = list(inputs)
        for number, size in enumerate(ready.plan.buffers):
            places.append(outputs[alone.index(number)] if number in alone else work(size))
        self._steps.append((ready, tuple(places)))

    def __call__(self, bases: tuple[int, ...], stream: int) -> None:
        """Queue all of it on a stream. Raises CudaError."""
        steps = self._prepared.get((bases, stream))
        if steps is None:
            steps = self._missed(bases, stream)
        for call, arguments, _ in steps:
            code = call(*arguments)
            if code:
                self._again(call, arguments, code)

    def _missed(self, bases: tuple[int, ...], stream: int) -> list[Prepared]:
        """Queue it for addresses that are new, or keep what is needed for those seen before; what is left to queue."""
        self._steps[0][0].bind()
        key = (bases, stream)
        if key not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            for ready, places in self._steps:
                ready([bases[base] + offset for base, offset in places], stream)
            return []
        made = [
            step
            for ready, places in self._steps
            for step in ready.prepared([bases[base] + offset for base, offset in places], stream)
        ]
        with self._lock:
            while len(self._prepared) >= MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[key] = made
        return made

    def _again(self, call: Callable[..., int], arguments: tuple[Any, ...], code: int) -> None:
        """A launch was refused: once more in the right context, which this thread did not have, or CudaError."""
        ready = self._steps[0][0]
        if code in (driver.NO_CONTEXT, driver.INVALID_HANDLE) and driver.current_context() != ready.context:
            if not driver.current_context():
                ready.bind()
                code = call(*arguments)
            else:
                with driver.within(ready.context):
                    code = call(*arguments)
        driver.check(code, "launching a promoted plan")


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, contiguous and at an address that kernels take; a copy where it is not."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


# -- a kernel through its module ---------------------------------------------------------------------


class _TorchOn:
    """``torch`` as a kernel module sees it: what it allocates lies on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("empty", "zeros", "ones", "full"):
            return found
        made: Callable[..., Any] = lambda *sizes, **options: found(*sizes, device=self._device, **options)  # noqa: E731
        setattr(self, name, made)
        return made


def from_source(kernel: store.Kernel, shapes: Operands | None, dims: tuple[int, ...], device: torch.device) -> Call:
    """A promoted kernel compiled here, whatever packs there are. Raises NotServed."""
    if recorder_of(kernel) is not cuda_record:
        return load(kernel, device)
    if device.type != "cuda" or shapes is None:
        raise store.NotServed(f"{kernel.name} runs on CUDA devices alone")
    major, minor = torch.cuda.get_device_capability(device)
    plan = made_plan(kernel, shapes, dims, 10 * major + minor, device)
    if plan is None:
        raise store.NotServed(f"what {kernel.name} launches is more than a plan holds")
    return _planned(Ready(plan, device.index or 0), device)


def load(kernel: store.Kernel, device: torch.device) -> Call:
    """A promoted kernel through its module, as a function of its operands by name. Raises NotServed."""
    if recorder_of(kernel) is cuda_record:
        raise store.NotServed(f"{kernel.name} runs from a plan alone, and none can be made here")
    launch = _namespace(kernel, device)["launch"]
    params = dict(kernel.params)
    if device.type != "cuda":
        return lambda inputs: tuple(launch(dict(inputs), params))

    def on_device(inputs: Mapping[str, torch.Tensor]) -> Tensors:
        with torch.cuda.device(device):
            # a thread that torch has run nothing on, autograd's for one, has no context yet, and a tensor map needs one
            if driver.current_context():
                return tuple(launch(dict(inputs), params))
            with driver.within(driver.primary_context(device.index or 0)):
                return tuple(launch(dict(inputs), params))

    return on_device


_IMPORTING = threading.RLock()


def _namespace(kernel: store.Kernel, device: torch.device) -> dict[str, Any]:
    """The kernel module's namespace, for one device. Raises NotServed when it cannot be imported."""
    name = f"{__package__}.loaded_{kernel.sha256[:16]}_{device.type}{device.index or 0}"
    with _IMPORTING:
        if name in sys.modules:
            return sys.modules[name].__dict__
        module = types.ModuleType(name)
        module.__file__ = str(kernel.path)
        text = kernel.source()
        sys.modules[name] = module
        try:
            exec(compile(text, str(kernel.path), "exec"), module.__dict__)
        except ImportError as error:
            del sys.modules[name]
            raise store.NotServed(f"{kernel.name} cannot be imported: {error}") from error
        if "torch" in module.__dict__:
            module.__dict__["torch"] = _TorchOn(device)
        return module.__dict__
