"""Makes Triton's interpreter compute as a GPU does where it does not: bfloat16 and fp8 arithmetic, rounding of casts.

Left alone (Triton 3.7) it computes on the bit patterns of bfloat16 and fp8 values, and cuts digits off where hardware
rounds to nearest even, so that a right quantiser differs in 3 to 6 % of its codes. Casts to fp8 saturate, as the
conversion instructions do that Triton uses. ``and``, ``or`` and ``not`` are of a tensor's elements, as the compiler
reads them; Python's own give one of the operands.
"""

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter
from torch.utils._python_dispatch import _disable_current_modes

NARROW: Mapping[Any, type] = {
    tl.bfloat16: ml_dtypes.bfloat16,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e5: ml_dtypes.float8_e5m2,
    tl.float8e4b8: ml_dtypes.float8_e4m3fnuz,
    tl.float8e5b16: ml_dtypes.float8_e5m2fnuz,
}
"""Types the interpreter keeps as integers, with the numpy types of the same bits."""

MATHS = ("exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "sqrt_rn", "rsqrt", "abs", "erf", "floor", "ceil")
"""Functions that are methods of a tensor, too, which the interpreter forgets."""

_TURNED = "add sub mul truediv floordiv mod and or lshift rshift"
REFLECTED: Mapping[str, str] = {
    **{f"__{name}__": f"__r{name}__" for name in _TURNED.split()},
    **{f"__{one}__": f"__{other}__" for one, other in map(str.split, ("lt gt", "le ge", "gt lt", "ge le"))},
    **{name: name for name in ("__eq__", "__ne__")},
}
"""What a constant before a tensor computes, and the tensor's own name for it."""


def _reflected(plain: Callable[[Any, Any], Any], other_way: str) -> Callable[[Any, Any], Any]:
    """An operation of a constant that gives a tensor with a tensor, and no constant that holds one."""

    def operation(constant: Any, other: Any) -> Any:
        if isinstance(other, tl.tensor):
            return getattr(other, other_way)(constant.value)
        return plain(constant, other)

    return operation


def _method(name: str) -> Callable[[Any], Any]:
    return lambda tensor: getattr(tl.math, name)(tensor)


def _all_ones(self: Any, kind: Any) -> Any:
    """The constant of ``~``: of an unsigned type numpy makes no -1, and of a truth value it is True."""
    made = interpreter._get_np_dtype(kind.scalar)
    if made.kind not in "iub":
        raise TypeError(f"unsupported type {kind}")
    return interpreter.TensorHandle(~np.zeros(1, dtype=made), kind.scalar)


class _ElementBooleans(interpreter.ASTTransformer):
    """Makes a kernel's text call ``_joined`` for ``and`` and ``or``, and ``_negated`` for ``not``."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = self.visit(node.value)
        return super().visit_Assign(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        word = ast.Constant("logical_and" if isinstance(node.op, ast.And) else "logical_or")
        return ast.Call(ast.Name(_joined.__name__, ast.Load()), [word, *(ast.Lambda(none, v) for v in node.values)], [])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.Call(ast.Name(_negated.__name__, ast.Load()), [node.operand], [])


def _joined(word: str, *parts: Callable[[], Any]) -> Any:
    """What the compiler makes of ``and`` or ``or``: constants are looked at in order, tensors are joined."""
    found: list[Any] = []
    for part in parts:
        value = part()
        if isinstance(value, tl.tensor):
            found.append(value)
        elif bool(value) is (word == "logical_or"):
            return value
    while len(found) > 1:
        last = found.pop()
        found.append(getattr(found.pop(), word)(last))
    return found[0] if found else value


def _negated(value: Any) -> Any:
    return value.__not__() if isinstance(value, tl.tensor) else not value


def _remember_types() -> None:
    """Shapes, and numpy types by the language's: the interpreter makes each anew for every operation, a third of a
    run's time."""
    dtypes: dict[str, Any] = {}
    shapes: dict[Any, tuple[Any, Any]] = {}
    blocks: dict[Any, tuple[Any, int, str]] = {}
    old_dtype, old_block = interpreter._get_np_dtype, tl.block_type.__init__

    def np_dtype(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = old_dtype(kind)
        return dtypes[name]

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = (getattr(size, "value", size) for size in getattr(shape, "values", shape))
        key = element_ty.name, *sizes
        if key not in blocks:
            old_block(self, element_ty, shape)
            blocks[key] = self.shape, self.numel, self.name
        self.element_ty = element_ty
        self.shape, self.numel, self.name = blocks[key]

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(getattr(type.shape, "values", type.shape)) if type.is_block() else ()
        if key not in shapes:
            shapes[key] = tl.constexpr(math.prod(key)), tl.tuple([tl.constexpr(size) for size in key])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shapes[key]

    interpreter._get_np_dtype = np_dtype
    tl.block_type.__init__, tl.tensor.__init__ = block, tensor


def repair() -> None:
    """Change the interpreter of this process. Calling it twice changes nothing more."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "computes_in_float32", False):
        return
    builder.computes_in_float32 = True
    _remember_types()
    run = interpreter.GridExecutor.__call__

    def outside(executor: Any, *args: Any, **kwargs: Any) -> Any:
        """What the interpreter itself does with torch is no work of the candidate's."""
        with _disable_current_modes():
            return run(executor, *args, **kwargs)

    interpreter.GridExecutor.__call__ = outside
    # a third of a kernel's time goes into checks for overflow that nothing reads: assertions are off without ``debug``
    plain = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = plain
    old_binary, old_ternary, old_dot, old_cast = (
        builder.binary_op,
        builder.ternary_op,
        builder.create_dot,
        builder.cast_impl,
    )

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Callable[..., np.ndarray]) -> Any:
        if _narrow(lhs) and _narrow(rhs):
            return _packed(op(_wide(lhs), _wide(rhs)), lhs.dtype.scalar)
        return old_binary(self, lhs, rhs, op)

    def ternary_op(self: Any, first: Any, second: Any, third: Any, op: Callable[..., np.ndarray]) -> Any:
        if _narrow(first) and op is not np.where:
            return _packed(op(_wide(first), _wide(second), _wide(third)), first.dtype.scalar)
        return old_ternary(self, first, second, third, op)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if _narrow(a) or _narrow(b):
            product = np.matmul(_wide(a), _wide(b), dtype=d.data.dtype)
            return interpreter.TensorHandle(product + d.data, d.dtype.scalar)
        return old_dot(self, a, b, d, *rest)

    def create_dot_scaled(
        self: Any,
        a: Any,
        a_scale: Any,
        a_form: Any,
        b: Any,
        b_scale: Any,
        b_form: Any,
        fast: bool,
        a_packed: bool,
        b_packed: bool,
        d: Any,
    ) -> Any:
        left = _scaled(_unpacked(a, a_form, 1 if a_packed else 0), a_scale, 1)
        right = _scaled(_unpacked(b, b_form, 0 if b_packed else 1), b_scale, 0)
        return interpreter.TensorHandle((left @ right + d.data).astype(d.data.dtype), d.dtype.scalar)

    old_unary, old_atomic = builder.unary_op, builder.create_atomic_rmw

    def unary_op(self: Any, value: Any, op: Callable[[np.ndarray], np.ndarray]) -> Any:
        return _packed(op(_wide(value)), value.dtype.scalar) if _narrow(value) else old_unary(self, value, op)

    def create_atomic_rmw(self: Any, operation: Any, at: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if _narrow(value) and operation.name == "FADD":
            return _added_in_memory(at.data[mask.data], value, mask.data)
        return old_atomic(self, operation, at, value, mask, *rest)

    builder.unary_op, builder.create_atomic_rmw = unary_op, create_atomic_rmw
    builder.get_all_ones_value = _all_ones
    old_argument = interpreter._implicit_cvt

    def argument(value: Any) -> Any:
        """A float argument is a float32 scalar of the language, as it is on a device, and no Python number; of a truth
        value the interpreter makes an integer of another size than it says."""
        if type(value) is bool:
            return tl.tensor(interpreter.TensorHandle(np.array([value]), tl.int1), tl.int1)
        if type(value) is float:
            return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return old_argument(value)

    interpreter._implicit_cvt = argument
    interpreter.FunctionRewriter.ast_transformer = _ElementBooleans()
    for function in (_joined, _negated):  # a kernel finds what the interpreter's module holds
        setattr(interpreter, function.__name__, function)
    for name, other_way in REFLECTED.items():
        setattr(tl.constexpr, name, _reflected(getattr(tl.constexpr, name), other_way))
    old_patch = interpreter._patch_lang_tensor

    def patch(tensor: Any, *rest: Any) -> None:
        """A scalar of the language as an index, which numpy gives for arrays of no dimension alone."""
        old_patch(tensor, *rest)
        tensor.__index__ = lambda self: int(np.asarray(self.handle.data).reshape(-1)[0])
        tensor.__bool__ = lambda self: (
            bool(np.asarray(self.handle.data).reshape(-1)[0]) if np.size(self.handle.data) == 1 else True
        )
        for name in MATHS:
            setattr(tensor, name, _method(name))

    interpreter._patch_lang_tensor = patch
    old_language = interpreter._patch_lang

    def patch_language(function: Any) -> Any:
        """Once for a launch: of a device function that is called in one it would be most of the time."""
        known = [one for one in (tl, tl.core) if any(value is one for value in function.__globals__.values())]
        fresh = (*(one.load for one in known), tl.math.exp, tl.tensor.__add__)
        return old_language(function) if any(map(tl.core.is_builtin, fresh)) else interpreter._LangPatchScope()

    interpreter._patch_lang = patch_language
    old_dot_scaled = interpreter.interpreter_semantic.dot_scaled

    def dot_scaled(a: Any, a_scale: Any, a_form: Any, b: Any, b_scale: Any, b_form: Any, *rest: Any) -> Any:
        forms = [tl.constexpr(form) if isinstance(form, str) else form for form in (a_form, b_form)]
        return old_dot_scaled(a, a_scale, forms[0], b, b_scale, forms[1], *rest)

    def cast_impl(self: Any, value: Any, kind: Any) -> Any:
        if _narrow(value) or kind.scalar in NARROW:
            return _cast(value, kind.scalar)
        return old_cast(self, value, kind)

    def create_fp_to_fp(self: Any, value: Any, kind: Any, rounding: Any) -> Any:
        return _cast(value, kind.scalar)

    old_sum = interpreter.ReduceOps.sum

    def reduced_sum(self: Any, value: Any) -> Any:
        if not _narrow(value):
            return old_sum(self, value)
        total = _summed(_wide(value.handle), self.axis, value.dtype.scalar)
        return self.to_tensor(total if self.keep_dims else np.squeeze(total, self.axis), value.dtype)

    interpreter.ReduceOps.sum = reduced_sum
    for kind in NARROW:
        setattr(builder, f"get_{kind.name}", _constant_of(kind))
    builder.binary_op, builder.ternary_op, builder.create_dot = binary_op, ternary_op, create_dot
    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp
    builder.create_dot_scaled = create_dot_scaled
    interpreter.interpreter_semantic.dot_scaled = dot_scaled


PLAIN_FORMS: Mapping[str, type] = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "BF16": ml_dtypes.bfloat16,
    "FP16": np.float16,
}


def _unpacked(value: Any, form: Any, axis: int) -> np.ndarray:
    """float64 elements of a payload; two e2m1 codes a byte, the first in the low nibble, follow along ``axis``."""
    if form.name != "E2M1":
        return value.data.view(PLAIN_FORMS[form.name]).astype(np.float64)
    codes = value.data.view(np.uint8)
    pair = np.stack([codes & 0xF, codes >> 4], axis=axis + 1)
    shape = list(codes.shape)
    shape[axis] *= 2
    return pair.reshape(shape).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def _scaled(values: np.ndarray, scale: Any, axis: int) -> np.ndarray:
    """Elements times their scales [lines, blocks], e8m0 or e4m3, whose blocks follow along ``axis``."""
    if scale is None:
        return values
    if scale.dtype.scalar in NARROW:
        factor = _wide(scale).astype(np.float64)
    else:
        codes = scale.data.view(np.uint8)
        factor = np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))
    wide = np.repeat(factor, values.shape[axis] // factor.shape[1], axis=1)
    return values * (wide if axis == 1 else wide.T)


def _narrow(value: Any) -> bool:
    return getattr(value, "dtype", None) is not None and value.dtype.scalar in NARROW


def _wide(value: Any) -> np.ndarray:
    if not _narrow(value):
        return value.data
    return value.data.view(NARROW[value.dtype.scalar]).astype(np.float32)


def _packed(result: np.ndarray, kind: Any) -> Any:
    """Booleans as they are, numbers rounded back to ``kind``."""
    if result.dtype == np.bool_:
        return interpreter.TensorHandle(result, tl.int1)
    return interpreter.TensorHandle(_rounded(result, kind), kind)


def _constant_of(kind: Any) -> Callable[[Any, float], Any]:
    """A scalar of a narrow type, of which Triton's interpreter knows none (``x * 0.5`` of a bfloat16 ``x``)."""
    return lambda _, value: interpreter.TensorHandle(_rounded(np.array([value]), kind), kind)


def _added_in_memory(places: np.ndarray, value: Any, mask: np.ndarray) -> Any:
    """Add a narrow type's masked elements at these addresses, one after the other where some are the same; what was
    there."""
    kind, memory, wide = value.dtype.scalar, interpreter._interpreter, _wide(value)[mask]
    alike = len(np.unique(places)) < len(places)
    found = np.zeros(len(places), value.data.dtype)
    for part in [slice(n, n + 1) for n in range(len(places))] if alike else [slice(None)]:
        every = np.ones(len(places[part]), bool)
        found[part] = memory.load(places[part], every, found[part], found.dtype)
        total = found[part].view(NARROW[kind]).astype(np.float32) + wide[part]
        memory.store(places[part], _rounded(total, kind), every)
    before = np.zeros_like(value.data)
    before[mask] = found
    return interpreter.TensorHandle(before, kind)


def _summed(wide: np.ndarray, axis: int | None, kind: Any) -> np.ndarray:
    """Sums along ``axis`` (None: of all), which keeps size 1, as integers of ``kind``: in pairs, each sum rounded to
    ``kind``, as a device adds."""
    axes = range(wide.ndim) if axis is None else (axis,)
    for place in axes:
        while wide.shape[place] > 1:
            half = wide.shape[place] // 2
            first, second, rest = np.split(wide, (half, 2 * half), axis=place)
            pairs = _rounded(first + second, kind).view(NARROW[kind]).astype(np.float32)
            wide = np.concatenate((pairs, rest), axis=place)
    return _rounded(wide, kind)


def _cast(value: Any, kind: Any) -> Any:
    wide = _wide(value)
    if kind in NARROW:
        return interpreter.TensorHandle(_rounded(wide, kind), kind)
    return interpreter.TensorHandle(wide.astype(interpreter._get_np_dtype(kind)), kind)


def _rounded(wide: np.ndarray, kind: Any) -> np.ndarray:
    """To the nearest value of ``kind``, ties to even, as the integers the interpreter keeps."""
    target = NARROW[kind]
    values = wide.astype(np.float32)
    if kind is not tl.bfloat16:
        most = float(ml_dtypes.finfo(target).max)
        values = np.clip(values, -most, most)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(target).view(interpreter._get_np_dtype(kind))
