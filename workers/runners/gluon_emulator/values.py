"""Tensors in registers: NumPy arrays with the device language's types, arithmetic and rounding; an emulation's errors.

Types narrower than float32 are kept in the types of ``ml_dtypes`` and rounded to after every operation. Layouts are
carried for the programs that ask for them; that they fit is the compiler's to check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl


class EmulationError(RuntimeError):
    """A program does what a device forbids, or what the emulator does not know."""


class Race(EmulationError):
    """Two accesses of shared memory that nothing orders, or a value read before it is there."""


class Deadlock(EmulationError):
    """No partition can go on, and no copy is under way."""


class StrayAccess(EmulationError):
    """A pointer outside of the tensor it was made from."""


_SAME_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
NUMPY: dict[Any, type] = {
    tl.int1: np.bool_,
    tl.bfloat16: ml_dtypes.bfloat16,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e5: ml_dtypes.float8_e5m2,
    **{getattr(tl, name): getattr(np, name) for name in _SAME_NAMES.split()},
}
"""Types of the language to those of the arrays that hold them."""

NARROW = (tl.float8e4nv, tl.float8e5)
"""Types that casts saturate to."""

_WIDTH = {tl.float8e4nv: 0, tl.float8e5: 0, tl.float16: 1, tl.bfloat16: 1, tl.float32: 2, tl.float64: 3}


def storage(dtype: Any) -> np.dtype:
    """The array type of a type of the language. Raises EmulationError."""
    if dtype not in NUMPY:
        raise EmulationError(f"the emulator has no type {dtype}")
    return np.dtype(NUMPY[dtype])


def dtype_of(kind: np.dtype) -> Any:
    return next(name for name, found in NUMPY.items() if np.dtype(found) == kind)


_WIDE = {dtype: np.arange(256, dtype=np.uint8).view(storage(dtype)).astype(np.float32) for dtype in NARROW}


def widened(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers of a type as float32."""
    if dtype in _WIDE:
        return _WIDE[dtype][data.view(np.uint8)]
    return data.astype(np.float32)


class _Type:
    """``tensor.type``: shape, layout and element type."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.layout = list(tensor.shape), tensor.layout
        self.scalar = self.element_ty = tensor.dtype


class Tensor:
    """A block or, without dimensions, a scalar. ``pending``: the product under way that will write it."""

    __slots__ = ("_data", "dtype", "layout", "pending")

    def __init__(self, data: np.ndarray, dtype: Any, layout: Any = None, pending: Any = None) -> None:
        self._data, self.dtype, self.layout, self.pending = data, dtype, layout, pending

    @property
    def data(self) -> np.ndarray:
        """The elements. Raises Race while a product under way writes them."""
        if self.pending is not None and not self.pending.done:
            raise Race("the result of a product is used before it is waited for")
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def type(self) -> _Type:
        return _Type(self)

    @property
    def T(self) -> Tensor:
        return self.permute((1, 0))

    @property
    def numel(self) -> int:
        return self._data.size

    # -- a scalar as Python wants it ------------------------------------------------------------------

    def __index__(self) -> int:
        if self._data.ndim:
            raise EmulationError("a block is used as an index of the program's control flow")
        return int(self.data)

    __int__ = __index__

    def __bool__(self) -> bool:
        if self._data.size != 1:
            raise EmulationError("a block is used as a condition of the program's control flow")
        return bool(self.data.reshape(-1)[0])

    __hash__ = None  # type: ignore[assignment]

    # -- arithmetic; the other operators are set below --------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return binary(self, other, np.add)

    def __mul__(self, other: Any) -> Any:
        return binary(self, other, np.multiply)

    def __truediv__(self, other: Any) -> Any:
        return binary(self, other, np.divide, true_division=True)

    def __rtruediv__(self, other: Any) -> Any:
        return binary(other, self, np.divide, true_division=True)

    # -- shape ----------------------------------------------------------------------------------------

    def __getitem__(self, where: Any) -> Tensor:
        items = where if isinstance(where, tuple) else (where,)
        if any(not (item is None or item == slice(None)) for item in items):
            raise EmulationError("a block is indexed by something other than None and ':'")
        return Tensor(self.data[where], self.dtype)

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.data.reshape(_sizes(shape)), self.dtype)

    def permute(self, *order: Any) -> Tensor:
        return Tensor(np.ascontiguousarray(self.data.transpose(_sizes(order))), self.dtype)

    def trans(self, *order: Any) -> Tensor:
        return self.permute(*(order or tuple(reversed(range(self._data.ndim)))))

    def expand_dims(self, axis: int) -> Tensor:
        return Tensor(np.expand_dims(self.data, int(axis)), self.dtype)

    def broadcast_to(self, *shape: Any) -> Tensor:
        return Tensor(np.broadcast_to(self.data, _sizes(shape)), self.dtype)

    def split(self) -> tuple[Tensor, Tensor]:
        if self.shape[-1] != 2:
            raise EmulationError("split needs a last dimension of two")
        return Tensor(self.data[..., 0], self.dtype), Tensor(self.data[..., 1], self.dtype)

    # -- numbers --------------------------------------------------------------------------------------

    def to(self, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Tensor:
        if bitcast:
            return Tensor(self.data.view(storage(dtype)), dtype, self.layout)
        return Tensor(rounded(self.data, dtype), dtype, self.layout)

    cast = to

    def sum(self, axis: Any = None, keep_dims: bool = False) -> Tensor:
        return reduced(self, axis, np.sum, keep_dims)

    def max(self, axis: Any = None, keep_dims: bool = False) -> Tensor:
        return reduced(self, axis, np.max, keep_dims)

    def min(self, axis: Any = None, keep_dims: bool = False) -> Tensor:
        return reduced(self, axis, np.min, keep_dims)

    def __neg__(self) -> Tensor:
        return Tensor(-self.data, self.dtype, self.layout)

    def __abs__(self) -> Tensor:
        return Tensor(np.abs(self.data), self.dtype, self.layout)

    def __invert__(self) -> Tensor:
        return Tensor(~self.data, self.dtype, self.layout)


def _sizes(given: Any) -> tuple[int, ...]:
    parts = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return tuple(int(part) for part in parts)


def reduced(tensor: Tensor, axis: Any, how: Callable[..., Any], keep_dims: bool = False) -> Tensor:
    """Along ``axis`` (None: all); sums of types narrower than 32 bits are taken in 32."""
    values = tensor.data
    dtype = tensor.dtype
    if how is np.sum and dtype in _WIDTH and _WIDTH[dtype] < 2:
        values = values.astype(np.float32)
    if how is np.sum and not dtype.is_floating() and dtype.primitive_bitwidth < 32:
        dtype = tl.int32
        values = values.astype(np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        made = how(values, axis=None if axis is None else int(axis), keepdims=bool(keep_dims))
    return Tensor(np.asarray(rounded(np.asarray(made), dtype)), dtype)


def rounded(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values of a type: to nearest even; casts to fp8 saturate, of numbers to integers cut off."""
    kind = storage(dtype)
    if values.dtype == kind:
        return values
    if kind == np.bool_:
        return values != 0
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype in NARROW:
            most = float(ml_dtypes.finfo(kind).max)
            return np.clip(values.astype(np.float32), -most, most).astype(kind)
        return values.astype(kind)


def lift(value: Any, like: Tensor | None = None) -> Tensor:
    """A number as a scalar: of the other operand's type if that is wider of kind, else int32 or float32."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, bool | np.bool_):
        return Tensor(np.asarray(bool(value)), tl.int1)
    if isinstance(value, int | np.integer):
        number = int(value)
        dtype = tl.int32 if -(2**31) <= number < 2**31 else tl.int64
        if like is not None and like.dtype is not tl.int1:
            dtype = like.dtype if like.dtype.is_floating() or like.dtype.primitive_bitwidth >= 32 else dtype
            dtype = tl.int64 if not dtype.is_floating() and abs(number) >= 2**31 else dtype
        return Tensor(np.asarray(number).astype(storage(dtype)), dtype)
    if isinstance(value, float | np.floating):
        dtype = like.dtype if like is not None and like.dtype.is_floating() else tl.float32
        return Tensor(np.asarray(value, dtype=np.float64).astype(storage(dtype)), dtype)
    raise EmulationError(f"a {type(value).__name__} where a number or a block is wanted")


def common(left: Tensor, right: Tensor) -> Any:
    """The type two operands are computed in, as the language promotes them."""
    a, b = left.dtype, right.dtype
    if a == b:
        return a
    if a.is_floating() != b.is_floating():
        return a if a.is_floating() else b
    if a.is_floating():
        if _WIDTH[a] == _WIDTH[b]:
            return tl.float32
        return a if _WIDTH[a] > _WIDTH[b] else b
    return a if a.primitive_bitwidth >= b.primitive_bitwidth else b


def _layout(left: Tensor, right: Tensor) -> Any:
    return left.layout if left.layout is not None and left._data.ndim else right.layout


def binary(left: Any, right: Any, how: Callable[..., Any], *, true_division: bool = False) -> Tensor:
    """An operation on two operands, rounded to the type they have in common."""
    one = lift(left, right if isinstance(right, Tensor) else None)
    two = lift(right, one)
    dtype = common(one, two)
    if true_division and not dtype.is_floating():
        dtype = tl.float32
    if one._data.ndim and two._data.ndim and one._data.ndim != two._data.ndim:
        raise EmulationError(f"blocks of {one._data.ndim} and {two._data.ndim} dimensions in one operation")
    with np.errstate(all="ignore"):
        a, b = one.data.astype(storage(dtype)), two.data.astype(storage(dtype))
        made = np.asarray(how(a, b))
    if made.dtype == np.bool_:
        return Tensor(made, tl.int1, _layout(one, two))
    return Tensor(np.asarray(rounded(made, dtype)), dtype, _layout(one, two))


def _divide_down(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as the device divides integers."""
    quotient = np.abs(a) // np.abs(np.where(b == 0, 1, b))
    return np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmod(a, np.where(b == 0, 1, b)).astype(a.dtype)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _divide_down,
    "mod": _remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}
_COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _method(how: Callable[..., Any], turned: bool) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, Tensor | int | float | np.generic | tl.constexpr):
            return NotImplemented
        left, right = (other, self) if turned else (self, other)
        return binary(left, right, how)

    return method


for _name, _how in _OPERATORS.items():
    setattr(Tensor, f"__{_name}__", _method(_how, False))
    setattr(Tensor, f"__r{_name}__", _method(_how, True))
for _name, _how in _COMPARISONS.items():
    setattr(Tensor, f"__{_name}__", _method(_how, False))


def elementwise(how: Callable[..., Any]) -> Callable[[Any], Tensor]:
    """A function of float32 on blocks of any floating type."""

    def function(x: Any, **_: Any) -> Tensor:
        one = lift(x)
        dtype = one.dtype if one.dtype.is_floating() else tl.float32
        wide = np.float64 if dtype is tl.float64 else np.float32
        with np.errstate(all="ignore"):
            made = np.asarray(how(one.data.astype(wide)))
        return Tensor(rounded(made, dtype), dtype, one.layout)

    return function


def where(condition: Any, x: Any, y: Any) -> Tensor:
    chosen = lift(condition)
    one = lift(x, y if isinstance(y, Tensor) else None)
    two = lift(y, one)
    dtype = common(one, two)
    made = np.where(chosen.data, one.data.astype(storage(dtype)), two.data.astype(storage(dtype)))
    return Tensor(made, dtype, chosen.layout if chosen.layout is not None else _layout(one, two))


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    return Tensor(np.stack([t.data for t in tensors], axis=-1), tensors[0].dtype)
