"""Rules that replace tiles of pointers by tensor descriptors (TMA)."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, short, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, resolve, small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    device_name,
    terms,
    turn_of,
)

_DESCRIBED = "_DESCRIBED"
"""How the compile-time parameter ends that says whether a descriptor is there."""


@dataclass
class BlockAxis:
    """One axis of an address tile: first offset (text), extent (text), stride (text, "" for none)."""

    start: str
    extent: str
    stride: str


@dataclass
class Address:
    """``base + rows[:, None] * s + columns[None, :] * t``; ``tensor`` is what the host passes as base."""

    base: str
    tensor: str
    rows: BlockAxis
    columns: BlockAxis

    def contiguous_columns(self, kernel: TritonKernel) -> bool:
        """Which axis has unit stride. Raises Unsupported if that cannot be told."""
        unit = [is_unit(kernel, a.stride) for a in (self.rows, self.columns)]
        if unit[0] == unit[1]:
            raise Unsupported("an address tile without one contiguous axis")
        return unit[1]


def is_unit(kernel: TritonKernel, stride: str) -> bool:
    if stride in ("", "1"):
        return True
    names = {p.name.value for p in kernel.function.params.params}
    given = kernel.given(stride) if stride in names else None
    text = kernel.source.code(given) if given is not None else ""
    return text in ("1",) or text.endswith((".stride(1)", ".stride(-1)"))


def has_more_sides(kernel: TritonKernel, name: str) -> bool:
    """Whether the host tells that the tensor behind a pointer has a third side: a box of two axes does not describe
    it."""
    node = kernel.given(name)
    made = resolve(kernel.source, node) if node is not None else None
    names = {kernel.source.code(n) for n in (node, made) if n is not None}
    if isinstance(made, cst.Call) and kernel.source.qualified(made.func).endswith("_like") and made.args:
        names.add(kernel.source.code(made.args[0].value))
    third = {f"{tensor}.{text}" for tensor in names for text in ("shape[2]", "size(2)", "stride(2)")}
    for place in walk(kernel.source.module):
        if (
            isinstance(place, cst.Subscript | cst.Call)
            and "".join(kernel.source.code(place).split()) in third
        ):
            return True
        if isinstance(place, cst.Assign) and kernel.source.code(place.value) in {f"{t}.shape" for t in names}:
            targets = [t.target for t in place.targets]
            if any(isinstance(t, cst.Tuple) and len(t.elements) > 2 for t in targets):
                return True
    return False


@dataclass
class Parts:
    """Summands of an address tile: its axes as they are written, scalars, and what a loop advances it by."""

    address: Address
    scalars: list[str]
    steps: list[tuple[str, str]]


def address_of(kernel: TritonKernel, pointer: cst.BaseExpression, at: cst.CSTNode) -> Address | None:
    """The affine form of a pointer tile of a tensor of two sides; None for anything else."""
    parts = address_parts(kernel, pointer, at)
    if parts is None or has_more_sides(kernel, parts.address.base):
        return None
    return with_offsets(kernel, parts.address, parts.scalars, parts.steps)


def address_parts(kernel: TritonKernel, pointer: cst.BaseExpression, at: cst.CSTNode) -> Parts | None:
    """What a pointer tile is the sum of; None for anything else."""
    scalars: list[str] = []
    axes: dict[int, BlockAxis] = {}
    bases: list[str] = []
    pending = list(terms(pointer))
    steps: list[tuple[str, str]] = []
    followed: set[str] = set()
    while pending:
        term = pending.pop(0)
        text = "".join(kernel.source.code(term).split())
        if "[:,None]" in text or "[None,:]" in text:
            if "[:,None]" in text and "[None,:]" in text:
                if not isinstance(term, cst.BinaryOperation) or not isinstance(term.operator, cst.Add):
                    return None
                pending = [*terms(term), *pending]
                continue
            place = 0 if "[:,None]" in text else 1
            axis = _axis(kernel, term)
            if axis is None or place in axes:
                return None
            axes[place] = axis
        elif isinstance(term, cst.Name) and term.value in kernel.bound:
            _follow(term.value, followed)
            value, step = _running(kernel, term.value, at)
            if value is None:
                scalars.append(text)
                continue
            pending = [*terms(value), *pending]
            steps += step
        elif isinstance(term, cst.Name) and len(kernel.launches) == 1:
            bases.append(term.value)
        elif isinstance(term, cst.BinaryOperation):
            scalars.append(kernel.source.code(term))
        else:
            return None
    base = [b for b in bases if _is_tensor(kernel, b)]
    if len(base) != 1 or set(axes) != {0, 1}:
        return None
    scalars += [b for b in bases if b not in base]
    found = Address(base[0], kernel.source.code(kernel.given(base[0])), axes[0], axes[1])  # type: ignore[arg-type]
    return Parts(found, scalars, steps)


def _is_tensor(kernel: TritonKernel, name: str) -> bool:
    names = {p.name.value for p in kernel.function.params.params}
    return (
        name in names
        and name not in kernel.constexprs
        and isinstance(kernel.given(name), cst.Name | cst.Subscript)
        and name.lower().endswith(("ptr", "pointer", "p", "_", "ptrs", ""))
        and _is_pointer(kernel, name)
    )


def _is_pointer(kernel: TritonKernel, name: str) -> bool:
    """A parameter that only ever begins an address: it is never multiplied, divided or compared."""
    given = kernel.given(name)
    text = kernel.source.code(given).replace("'", '"') if given is not None else ""
    if isinstance(given, cst.Name):
        scope = kernel.source.enclosing(kernel.launch(), cst.FunctionDef)
        for statement in scope.body.body if scope else ():
            found = assigned_value(statement)
            if found and given.value in found[0]:
                source = kernel.source.code(found[1]).replace("'", '"')
                return "torch." in source or ('["' in source and ".shape" not in source)
        return False
    return '["' in text and ".shape" not in text


def _running(
    kernel: TritonKernel, name: str, at: cst.CSTNode
) -> tuple[cst.BaseExpression | None, list[tuple[str, str]]]:
    """(first value, [(iteration text, increment text)]) of a name that a loop may advance."""
    first: cst.BaseExpression | None = None
    steps: list[tuple[str, str]] = []
    for place in kernel.bound.get(name, ()):
        line = small(place)
        found = assigned_value(place)
        if found and len(found[0]) == 1 and first is None:
            first = found[1]
        elif isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign):
            loop = kernel.source.enclosing(place, cst.For)
            turn = turn_of(kernel.source, loop) if loop is not None else None
            if turn is None or kernel.source.enclosing(at, cst.For) is not loop:
                raise Unsupported("a pointer advanced outside its loop")
            steps.append((turn, kernel.source.code(line.value)))
        else:
            raise Unsupported("a pointer bound several times")
    if first is None or not any(isinstance(t, cst.Name | cst.BinaryOperation) for t in [first]):
        return None, []
    return first, steps


def _follow(name: str, followed: set[str]) -> None:
    """Note that a name's value takes its place, once: a second time it is bound to what it is part of."""
    if name in followed:
        raise Unsupported("a name bound to itself")
    followed.add(name)


def _axis(kernel: TritonKernel, term: cst.BaseExpression) -> BlockAxis | None:
    """``offsets[:, None]`` or ``offsets[:, None] * stride``."""
    stride = ""
    if isinstance(term, cst.BinaryOperation) and isinstance(term.operator, cst.Multiply):
        sides = [term.left, term.right]
        tiles = [s for s in sides if "None" in kernel.source.code(s)]
        if len(tiles) != 1:
            return None
        stride = kernel.source.code(sides[1 - sides.index(tiles[0])])
        term = tiles[0]
    if not isinstance(term, cst.Subscript):
        return None
    parts = _offsets(kernel, term.value)
    return BlockAxis(parts[0], parts[1], stride) if parts else None


def _offsets(kernel: TritonKernel, node: cst.BaseExpression) -> tuple[str, str] | None:
    """(start, extent) of ``start + arange(0, extent)`` behind names, casts, wraps and clamps."""
    starts: list[str] = []
    extent = ""
    pending = [node]
    followed: set[str] = set()
    while pending:
        current = pending.pop(0)
        if (
            isinstance(current, cst.Call)
            and isinstance(current.func, cst.Attribute)
            and current.func.attr.value == "to"
        ):
            pending.insert(0, current.func.value)
        elif isinstance(current, cst.Call) and device_name(kernel.source, current.func) == "minimum":
            pending.insert(0, current.args[0].value)
        elif isinstance(current, cst.BinaryOperation) and isinstance(current.operator, cst.Modulo):
            pending.insert(0, current.left)
        elif isinstance(current, cst.BinaryOperation) and isinstance(current.operator, cst.Add):
            pending = [current.left, current.right, *pending]
        elif isinstance(current, cst.Call) and device_name(kernel.source, current.func) == "arange":
            stop = argument(current, "end", 1)
            if stop is None or extent:
                return None
            extent = kernel.source.code(stop)
        elif isinstance(current, cst.Name) and (value := kernel.value_of(current.value)) is not None:
            names = kernel.definition_closure(current)
            lines = [p for n in names for p in kernel.bound.get(n, ()) if not isinstance(p, cst.For)]
            if any(device_calls(kernel.source, p, "arange") for p in lines):
                _follow(current.value, followed)
                pending.insert(0, value)
            else:
                starts.append(current.value)
        elif device_calls(kernel.source, current, "load", "arange"):
            return None
        else:
            starts.append(kernel.source.code(current))
    return (" + ".join(starts) or "0", extent) if extent else None


def factors(text: str) -> list[str]:
    """What an expression is the product of, without spaces around what stands alone; itself, where it is none."""

    def of(node: ast.expr) -> list[str]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return [*of(node.left), *of(node.right)]
        found = ast.unparse(node)
        return [f"({found})" if isinstance(node, ast.BinOp | ast.IfExp) else found]

    return of(ast.parse(text, mode="eval").body)


def with_offsets(
    kernel: TritonKernel, found: Address, scalars: list[str], steps: list[tuple[str, str]]
) -> Address | None:
    """Attribute scalar summands and increments to the axis whose stride they carry."""
    moves = [(text, "") for text in scalars] + [(count, step) for count, step in steps]
    columns_last = found.contiguous_columns(kernel)
    unit = found.columns if columns_last else found.rows
    other = found.rows if columns_last else found.columns
    for count, step in moves:
        parts = factors(step or count)
        named = other.stride and "".join(other.stride.split()) in parts
        axis = other if named else unit
        if axis.stride and axis.stride in parts:
            parts.remove(axis.stride)
        amount = " * ".join(parts) or "1"
        extra = f"{count} * {amount}" if step else amount
        axis.start = extra if axis.start == "0" else f"{axis.start} + {extra}"
    return found


def _host(kernel: TritonKernel, extent: str) -> str:
    if extent in kernel.constexprs:
        given = kernel.given(extent)
        if given is None:
            raise Unsupported(f"constexpr {extent} that the launch does not pass")
        return kernel.source.code(given)
    if extent.isdigit():
        return extent
    raise Unsupported(f"a tile extent that is no constexpr: {extent}")


def _declare(edit: Edit, kernel: TritonKernel, address: Address, columns_last: bool) -> tuple[str, str]:
    """Pass a host descriptor of the tensor where there can be one; returns its name in the kernel, and the name of
    whether it is there: a descriptor's rows begin at 16 bytes."""
    first, second = (address.rows, address.columns) if columns_last else (address.columns, address.rows)
    stem, tensor = address.base.removesuffix("_ptr"), address.tensor
    name, described = kernel.source.fresh(f"{stem}_desc"), kernel.source.fresh(f"{stem.upper()}{_DESCRIBED}")
    if "triton.tools.tensor_descriptor.TensorDescriptor" not in kernel.source.aliases.values():
        edit.imports.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    block = f"[{_host(kernel, first.extent)}, {_host(kernel, second.extent)}]"
    made = f"TensorDescriptor({tensor}, list({tensor}.shape), list({tensor}.stride()), {block})"
    fits = f"len({tensor}.shape) == 2 and {tensor}.stride(0) * {tensor}.element_size() % 16 == 0"
    kernel.add_argument(edit, name, f"{made} if {fits} else {tensor}", constexpr=False)
    kernel.add_argument(edit, described, fits, constexpr=True)
    return name, described


def _offset(kernel: TritonKernel, text: str) -> str:
    """A place in 32 bits, which is what a descriptor takes, where the kernel counts in 64."""
    wide = "int64" in kernel.source.code(kernel.function)
    return f"{kernel.tl}.cast({text}, {kernel.tl}.int32)" if wide and not text.isdigit() else text


class DescriptorLoad(NodeRule[tuple[cst.Call, Address, bool]]):
    """Load a tile through a tensor descriptor instead of a tile of pointers."""

    name = "triton_descriptor_load"
    launched = True
    why = (
        "The tensor memory accelerator copies a tile with one instruction, computes its addresses and checks bounds, "
        "freeing the registers and threads that a tile of pointers costs."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, tuple[cst.Call, Address, bool]]]:
        for call in device_calls(kernel.source, kernel.function, "load"):
            other = argument(call, "other", 2)
            parent = kernel.source.parents.get(call)
            guarded = isinstance(parent, cst.IfExp) and kernel.source.code(parent.test).endswith(_DESCRIBED)
            if (
                guarded
                or not call.args
                or (other is not None and kernel.source.code(other) not in ("0", "0.0"))
            ):
                continue
            try:
                address = address_of(kernel, call.args[0].value, call)
                last = address.contiguous_columns(kernel) if address else False
            except Unsupported:
                continue
            if address is not None:
                yield f"descriptor for {short(kernel.source, call)}", (call, address, last)

    def change(self, edit: Edit, kernel: TritonKernel, payload: tuple[cst.Call, Address, bool]) -> None:
        call, address, last = payload
        name, described = _declare(edit, kernel, address, last)
        first, second = (address.rows, address.columns) if last else (address.columns, address.rows)
        tile = f"{name}.load([{_offset(kernel, first.start)}, {_offset(kernel, second.start)}])"
        tile = tile if last else f"{kernel.tl}.trans({tile})"
        edit.replace(call, f"({tile} if {described} else {kernel.source.code(call)})")
