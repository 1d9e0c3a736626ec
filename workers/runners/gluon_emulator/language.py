"""The emulated language: what a kernel finds in ``gluon.language`` and its modules for Hopper."""

import functools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import triton.experimental.gluon.language as real
import triton.experimental.gluon.language.nvidia.hopper as real_hopper
import triton.language as tl

from tilewright.fitness.dialect_names import names
from tilewright.workers.runners.gluon_emulator import values
from tilewright.workers.runners.gluon_emulator.global_memory import Descriptor, Pointer
from tilewright.workers.runners.gluon_emulator.machine import Machine
from tilewright.workers.runners.gluon_emulator.shared_memory import Barrier, CopyIn, CopyOut, Product, Shared
from tilewright.workers.runners.gluon_emulator.values import EmulationError, Tensor, elementwise, lift, reduced

_KEPT = names(
    "AutoLayout BlockedLayout CoalescedLayout DistributedLinearLayout DotOperandLayout NVMMADistributedLayout "
    "NVMMASharedLayout PaddedSharedLayout SharedLinearLayout SliceLayout SwizzledSharedLayout int1 int8 int16 "
    "int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 float8e4nv float8e5 dtype "
    "pointer_type"
)
"""Layouts and types, which are the real ones."""


class constexpr:
    """Says of a value that it is known when compiling, which here every value is."""

    def __new__(cls, value: Any = None) -> Any:
        return value


def static_range(*bounds: Any) -> Iterator[int]:
    return iter(range(*(int(b) for b in bounds)))


def arange(start: Any, end: Any, layout: Any = None) -> Tensor:
    size = int(end) - int(start)
    if size < 1 or size & (size - 1):
        raise EmulationError(f"arange of {size} elements; a power of two is wanted")
    return Tensor(np.arange(int(start), int(end), dtype=np.int32), tl.int32, layout)


def full(shape: Any, value: Any, dtype: Any, layout: Any = None) -> Tensor:
    sizes = [int(n) for n in shape]
    data = np.empty(sizes, values.storage(dtype))
    data[...] = values.rounded(np.asarray(lift(value).data), dtype)
    return Tensor(data, dtype, layout)


def zeros(shape: Any, dtype: Any, layout: Any = None) -> Tensor:
    return full(shape, 0, dtype, layout)


def load(pointer: Pointer, mask: Any = None, other: Any = None, **_: Any) -> Tensor:
    return pointer.load(mask, other)


def store(pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> None:
    pointer.store(value, mask)


def atomic_add(pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> Tensor:
    return pointer.add_atomically(value, mask)


def convert_layout(value: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
    return Tensor(value.data, value.dtype, layout)


def cdiv(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        return -(-x // y)
    return (lift(x) + (lift(y) - 1)) // lift(y)  # type: ignore[operator]


def _pair(x: Any, y: Any, how: Callable[..., Any]) -> Tensor:
    return values.binary(x, y, how)


def maximum(x: Any, y: Any, propagate_nan: Any = None) -> Tensor:
    return _pair(x, y, np.maximum if _is_all(propagate_nan) else np.fmax)


def minimum(x: Any, y: Any, propagate_nan: Any = None) -> Tensor:
    return _pair(x, y, np.minimum if _is_all(propagate_nan) else np.fmin)


def _is_all(propagate_nan: Any) -> bool:
    """Whether a value is ``PropagateNan.ALL``, of Triton's extension."""
    return getattr(propagate_nan, "name", "NONE") == "ALL"


def fma(x: Any, y: Any, z: Any) -> Tensor:
    """Of float32 with one rounding, but where that of float64 in between decides it."""
    whole = [lift(n).to(tl.float64) if lift(n).dtype == tl.float32 else lift(n) for n in (x, y, z)]
    made = whole[0] * whole[1] + whole[2]
    return made.to(tl.float32) if made.dtype == tl.float64 else made


def fdiv(x: Any, y: Any, **_: Any) -> Tensor:
    return lift(x) / y


def _reduction(how: Callable[..., Any]) -> Callable[..., Tensor]:
    def function(x: Tensor, axis: Any = None, keep_dims: bool = False, **_: Any) -> Tensor:
        return reduced(x, axis, how, keep_dims)

    return function


def reduce(x: Tensor, axis: Any, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Tensor:
    """Along ``axis`` with a function of two blocks, in halves."""
    along = int(axis) % x.data.ndim
    left = np.moveaxis(x.data, along, 0)
    while left.shape[0] > 1:
        half = left.shape[0] // 2
        made = combine_fn(Tensor(left[:half], x.dtype), Tensor(left[half:], x.dtype))
        left = made.data
    whole = left[0]
    return Tensor(np.expand_dims(whole, along) if keep_dims else whole, x.dtype)


def associative_scan(x: Tensor, axis: Any, combine_fn: Callable[..., Any], reverse: bool = False) -> Tensor:
    """Running results along ``axis`` of a function of two blocks, in order."""
    along = int(axis) % x.data.ndim
    rows = np.moveaxis(x.data, along, 0)
    found = [rows[-1 if reverse else 0]]
    for row in rows[-2::-1] if reverse else rows[1:]:
        found.append(combine_fn(Tensor(found[-1], x.dtype), Tensor(row, x.dtype)).data)
    stacked = np.stack(found[::-1] if reverse else found)
    return Tensor(np.moveaxis(stacked, 0, along), x.dtype, x.layout)


def static_assert(condition: Any, message: Any = "") -> None:
    if not condition:
        raise EmulationError(f"static_assert fails: {message}")


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return (a.broadcast_to(b.shape), b) if a.numel < b.numel else (a, b.broadcast_to(a.shape))


class Language:
    """The functions that need to know which program runs; ``module`` is what a kernel imports."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._barriers: dict[tuple[int, int], Barrier] = {}
        self.warps = 4

    def program_id(self, axis: Any = 0) -> Tensor:
        return lift(self.machine.program[int(axis)])

    def num_programs(self, axis: Any = 0) -> Tensor:
        return lift(self.machine.grid[int(axis)])

    def num_warps(self, **_: Any) -> int:
        return self.warps

    def allocate_shared_memory(self, dtype: Any, shape: Any, layout: Any, value: Any = None) -> Shared:
        return Shared.allocate(self.machine, dtype, shape, layout, value)

    def warp_specialize(self, functions: Sequence[Any], worker_num_warps: Any, worker_num_regs: Any = None) -> Any:
        """``functions``: (function, arguments) of the partition that goes on, then of the workers."""
        if len(functions) != len(worker_num_warps) + 1:
            raise EmulationError("warp_specialize wants the warps of every partition but the first")
        bodies = [
            (f"partition {number} ({function.__name__})", functools.partial(function, *given))
            for number, (function, given) in enumerate(functions)
        ]
        return self.machine.specialize(bodies)

    # -- barriers ---------------------------------------------------------------------------------------

    def _barrier(self, view: Shared) -> Barrier:
        key = (id(view.whole), view.box[0][0])
        if key not in self._barriers or not any(a is view.whole for a in self.machine.allocations):
            raise EmulationError("a barrier is used before it is initialised")
        found = self._barriers[key]
        if not self.machine.partition.knows(found.made):
            raise EmulationError(f"{found.name} is used where it is not known to be initialised")
        return found

    def init(self, view: Shared, count: Any) -> None:
        number = view.box[0][0]
        name = f"barrier {number} of ring {self.machine.allocations.index(view.whole)}"
        self._barriers[id(view.whole), number] = Barrier(self.machine, name, int(count))

    def invalidate(self, view: Shared) -> None:
        self._barrier(view)

    def wait(self, view: Shared, phase: Any, pred: Any = True, deps: Any = ()) -> None:
        if bool(pred):
            self._barrier(view).wait(int(phase))

    def arrive(self, view: Shared, *, count: Any = 1, pred: Any = True) -> None:
        if bool(pred):
            self._barrier(view).arrive(int(count))

    def expect(self, view: Shared, bytes_per_cta: Any = None, pred: Any = True) -> None:
        if bool(pred):
            self._barrier(view).expect(int(bytes_per_cta))

    def fence_async_shared(self, cluster: bool = False) -> None:
        me = self.machine.partition
        moment = me.tick()
        for whole in self.machine.allocations:
            for access in whole.accesses:
                if access.writes and access.fenced is None and access.moment and me.knows(access.moment):
                    access.fenced = moment
        for barrier in self._barriers.values():
            if barrier.fenced is None and me.knows(barrier.made):
                barrier.fenced = moment

    # -- copies -----------------------------------------------------------------------------------------

    def copy_in(
        self, source: Descriptor, coord: Any, barrier: Shared, result: Shared, pred: Any = True, multicast: Any = False
    ) -> None:
        if not bool(pred):
            return
        if multicast:
            raise EmulationError("the emulator has no clusters")
        landing = self._barrier(barrier)
        if landing.fenced is None or not self.machine.partition.knows(landing.fenced):
            raise EmulationError(f"{landing.name} is not fenced off for copies after it was initialised")
        self.machine.copies.append(CopyIn(source.read(coord), landing, result))

    def copy_out(self, target: Descriptor, coord: Any, source: Shared) -> None:
        self.machine.partition.stores.append(CopyOut(target, coord, source))

    def store_wait(self, pendings: Any) -> None:
        me = self.machine.partition
        while len(me.stores) > int(pendings):
            me.stores.pop(0).complete(me)

    # -- products ---------------------------------------------------------------------------------------

    def warpgroup_mma(
        self,
        a: Any,
        b: Shared,
        acc: Tensor,
        *,
        use_acc: Any = True,
        precision: Any = None,
        max_num_imprecise_acc: Any = None,
        is_async: Any = False,
    ) -> Tensor:
        me = self.machine.partition
        left = a.data
        rows, depth = left.shape
        if b.data.shape[0] != depth or acc.shape != (rows, b.data.shape[1]):
            raise EmulationError(f"a product of {left.shape} and {b.data.shape} into {acc.shape}")
        if a.dtype != b.dtype or rows % 64 or depth * values.storage(a.dtype).itemsize % 32:
            raise EmulationError(f"no matrix instruction for {a.dtype}{left.shape} and {b.dtype}{b.data.shape}")
        width = values.storage(a.dtype).itemsize
        if width != 2 and (not _depth_last(a) or not _depth_last(b, turned=True)):
            raise EmulationError(f"operands of {width} bytes must have the depth as their contiguous dimension")
        before = acc._data if acc.pending in me.products else acc.data
        product = Product([view for view in (a, b) if isinstance(view, Shared)])
        made = values.widened(left, a.dtype) @ values.widened(b.data, b.dtype)
        if bool(use_acc):
            made = made + before
        me.products.append(product)
        if not is_async:
            self._settle(0)
            return Tensor(made.astype(np.float32), acc.dtype, acc.layout)
        return Tensor(made.astype(np.float32), acc.dtype, acc.layout, product)

    def warpgroup_mma_wait(self, num_outstanding: Any = 0, deps: Any = None) -> Any:
        if deps is None:
            raise EmulationError("warpgroup_mma_wait deps must be given")
        self._settle(int(num_outstanding))
        made = tuple(Tensor(d._data, d.dtype, d.layout, d.pending) for d in deps)
        return made[0] if len(made) == 1 else made

    def _settle(self, outstanding: int) -> None:
        me = self.machine.partition
        while len(me.products) > outstanding:
            me.products.pop(0).complete(me)

    # -- modules ----------------------------------------------------------------------------------------

    def modules(self) -> dict[str, types.ModuleType]:
        """Emulated modules by the names they are imported by."""
        root = "triton.experimental.gluon.language"
        math_names: dict[str, Callable[..., Any]] = {
            "exp": np.exp,
            "exp2": np.exp2,
            "log": np.log,
            "log2": np.log2,
            "sqrt": np.sqrt,
            "sqrt_rn": np.sqrt,
            "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
            "sin": np.sin,
            "cos": np.cos,
            "floor": np.floor,
            "ceil": np.ceil,
            "erf": np.vectorize(math.erf, otypes=[np.float32]),
        }
        names: dict[str, Any] = {name: getattr(real, name) for name in _KEPT}
        names |= {name: elementwise(how) for name, how in math_names.items()}
        names |= {"constexpr": constexpr, "tensor": Tensor, "static_range": static_range, "arange": arange}
        names |= {"full": full, "zeros": zeros, "load": load, "store": store, "atomic_add": atomic_add}
        names |= {"where": values.where, "maximum": maximum, "minimum": minimum, "fma": fma, "fdiv": fdiv}
        names |= {"div_rn": fdiv, "abs": lambda x: abs(lift(x)), "sum": _reduction(np.sum), "max": _reduction(np.max)}
        names |= {
            "min": _reduction(np.min),
            "reduce": reduce,
            "associative_scan": associative_scan,
            "cdiv": cdiv,
            "static_assert": static_assert,
        }
        names |= {
            "convert_layout": convert_layout,
            "set_auto_layout": convert_layout,
            "shared_memory_descriptor": Shared,
        }
        names |= dict.fromkeys(("multiple_of", "max_contiguous", "max_constancy", "to_tensor", "assume"), _same)
        names |= {
            "expand_dims": lambda x, axis: x.expand_dims(axis),
            "reshape": lambda x, *shape: x.reshape(*shape),
            "permute": lambda x, *order: x.permute(*order),
            "split": lambda x: x.split(),
            "join": lambda a, b: values.stacked([a, b]),
            "cast": lambda x, dtype, **kw: lift(x).to(dtype, **kw),
            "broadcast": _broadcast,
            "zeros_like": lambda x, **_: zeros(x.shape, x.dtype, x.layout),
            "full_like": lambda x, value, **_: full(x.shape, value, x.dtype, x.layout),
            "barrier": _same,
            "thread_barrier": _same,
        }
        for name in ("program_id", "num_programs", "num_warps", "allocate_shared_memory", "warp_specialize"):
            names[name] = getattr(self, name)
        hopper = {"fence_async_shared": self.fence_async_shared, "warpgroup_mma": self.warpgroup_mma}
        hopper["warpgroup_mma_wait"] = self.warpgroup_mma_wait
        mbarrier = {name: getattr(self, name) for name in ("init", "invalidate", "wait", "arrive", "expect")}
        mbarrier["MBarrierLayout"] = real_hopper.mbarrier.MBarrierLayout
        tma = {"async_copy_global_to_shared": self.copy_in, "async_copy_shared_to_global": self.copy_out}
        tma["store_wait"] = self.store_wait
        made = {
            root: _module(root, names),
            f"{root}.nvidia": _module(f"{root}.nvidia", {}),
            f"{root}.nvidia.hopper": _module(f"{root}.nvidia.hopper", hopper),
            f"{root}.nvidia.hopper.mbarrier": _module(f"{root}.nvidia.hopper.mbarrier", mbarrier),
            f"{root}.nvidia.hopper.tma": _module(f"{root}.nvidia.hopper.tma", tma),
        }
        for name, module in made.items():
            parent, _, last = name.rpartition(".")
            if parent in made:
                setattr(made[parent], last, module)
        return made


def _depth_last(view: Any, turned: bool = False) -> bool:
    """Whether the dimension a product adds up over is the contiguous one of what lies in shared memory."""
    if not isinstance(view, Shared):
        return True
    strides = view.data.strides
    return strides[0] == view.data.itemsize if turned else strides[1] == view.data.itemsize


def _module(name: str, contents: dict[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    return module
