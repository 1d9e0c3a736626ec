"""Rules that replace tiles of pointers by tensor descriptors (TMA)."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, short, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, resolve, small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.statements import device_call
from tilewright.evolve.proposers.rewrite.sums import Sum, SumReader, constant
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    parsed,
    turn_of,
)

_DESCRIBED = "_DESCRIBED"
"""How the compile-time parameter ends that says whether a descriptor is there."""


@dataclass(frozen=True)
class BlockAxis:
    """One axis of an address tile: first offset, extent (text), distance of two elements in memory."""

    first: Sum
    extent: str
    stride: Sum

    @property
    def start(self) -> str:
        return self.first.text()


@dataclass(frozen=True)
class Address:
    """``base + rows[:, None] * s + columns[None, :] * t``; ``tensor`` is what the host passes as base."""

    base: str
    tensor: str
    rows: BlockAxis
    columns: BlockAxis
    contiguous_columns: bool
    """Whether columns, and not rows, lie side by side."""


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
        if isinstance(place, cst.Subscript | cst.Call) and "".join(kernel.source.code(place).split()) in third:
            return True
        if isinstance(place, cst.Assign) and kernel.source.code(place.value) in {f"{t}.shape" for t in names}:
            targets = [t.target for t in place.targets]
            if any(isinstance(t, cst.Tuple) and len(t.elements) > 2 for t in targets):
                return True
    return False


def address_of(kernel: TritonKernel, pointer: cst.BaseExpression, at: cst.CSTNode) -> Address | None:
    """The affine form of a pointer tile of a tensor of two sides; None for anything else."""
    found = tile_address(kernel, pointer, at)
    return None if found is None or has_more_sides(kernel, found.base) else found


def tile_address(kernel: TritonKernel, pointer: cst.BaseExpression, at: cst.CSTNode) -> Address | None:
    """The affine form of a pointer tile; None or Unsupported for anything else."""
    address = _AddressReader(kernel, at).read(parsed(kernel.source.code(pointer)))
    bases = [p[0] for p, c in address.parts.items() if len(p) == c == 1 and _is_tensor(kernel, p[0])]
    first, second = address.split(0), address.split(1)
    if len(bases) != 1 or first is None or second is None:
        return None
    unit = [is_unit(kernel, stride.text()) for _, stride in (first, second)]
    if unit[0] == unit[1]:
        raise Unsupported("an address tile without one contiguous axis")
    (extent, stride), (width, one) = (first, second) if unit[1] else (second, first)
    if not stride.single:
        raise Unsupported("rows whose distance is a sum")
    rest = address.scalar - Sum({(bases[0],): 1})
    outer = BlockAxis(_counted(rest, stride, extent), extent, stride)
    rest -= outer.first * stride
    within = rest.over(one)
    inner = BlockAxis(within + (rest - within * one), width, one)
    rows, columns = (outer, inner) if unit[1] else (inner, outer)
    return Address(bases[0], kernel.source.code(kernel.given(bases[0])), rows, columns, unit[1])  # type: ignore[arg-type]


def _counted(scalar: Sum, stride: Sum, extent: str) -> Sum:
    """The rows that a scalar is, of tiles of ``extent``: of literal strides the multiples of a tile alone."""
    found = scalar.over(stride)
    if stride.factors:
        return found
    most = int(extent) if extent.isdigit() else 1
    return Sum({p: c for p, c in found.parts.items() if extent in p or (extent.isdigit() and c % most == 0)})


class _AddressReader(SumReader):
    """Follows pointers and tiles, also those that the loop around ``at`` advances, and keeps the factors of products
    along no axis of a tile as they are written. A tile that is wrapped or held below a side counts as it is."""

    def __init__(self, kernel: TritonKernel, at: cst.CSTNode) -> None:
        super().__init__(kernel.tl, kernel.values, {})
        self.kernel, self.at = kernel, at

    def read(self, node: ast.expr, depth: int = 0) -> Sum:
        if isinstance(node, ast.Name) and len(self.kernel.bound.get(node.id, ())) > 1:
            try:
                return self._advanced(node.id, depth + 1)
            except Unsupported:
                if self._places(node.id):
                    raise
                return Sum({(node.id,): 1})
        if not self.varies(node):
            product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            return self._factors(node) if product else super().read(node, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self.read(node.left, depth + 1)
        if isinstance(node, ast.Call) and device_call(node, self.tl) == "minimum":
            return self.read(node.args[0], depth + 1)
        return super().read(node, depth)

    def _places(self, name: str) -> bool:
        """Whether a name that is bound several times may be a tile or an address."""
        found = [assigned_value(place) for place in self.kernel.bound[name]]
        values = [parsed(self.kernel.source.code(pair[1])) for pair in found if pair]
        names = {n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)}
        return any(map(self.varies, values)) or any(_is_tensor(self.kernel, n) for n in names)

    def _factors(self, node: ast.expr) -> Sum:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self._factors(node.left) * self._factors(node.right)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return constant(node.value)
        return Sum({(ast.unparse(node),): 1})

    def _advanced(self, name: str, depth: int) -> Sum:
        """A name that a loop adds to, in a turn of it."""
        total: Sum | None = None
        for place in self.kernel.bound[name]:
            line, found, source = small(place), assigned_value(place), self.kernel.source
            if found and len(found[0]) == 1 and total is None:
                total = self.read(parsed(source.code(found[1])), depth)
            elif isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign) and total is not None:
                loop = source.enclosing(place, cst.For)
                turn = turn_of(source, loop) if loop is not None else None
                if turn is None or source.enclosing(self.at, cst.For) is not loop:
                    raise Unsupported("a pointer advanced outside its loop")
                total += self._factors(parsed(turn)) * self._factors(parsed(source.code(line.value)))
            else:
                raise Unsupported("a pointer bound several times")
        assert total is not None
        return total


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


def _host(kernel: TritonKernel, extent: str) -> str:
    if extent in kernel.constexprs:
        given = kernel.given(extent)
        if given is None:
            raise Unsupported(f"constexpr {extent} that the launch does not pass")
        return kernel.source.code(given)
    if extent.isdigit():
        return extent
    raise Unsupported(f"a tile extent that is no constexpr: {extent}")


def _declare(edit: Edit, kernel: TritonKernel, address: Address) -> tuple[str, str]:
    """Pass a host descriptor of the tensor where there can be one; returns its name in the kernel, and the name of
    whether it is there: a descriptor's rows begin at 16 bytes."""
    first, second = (address.rows, address.columns) if address.contiguous_columns else (address.columns, address.rows)
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


class DescriptorLoad(NodeRule[tuple[cst.Call, Address]]):
    """Load a tile through a tensor descriptor instead of a tile of pointers."""

    name = "triton_descriptor_load"
    launched = True
    why = (
        "The tensor memory accelerator copies a tile with one instruction, computes its addresses and checks bounds, "
        "freeing the registers and threads that a tile of pointers costs."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, tuple[cst.Call, Address]]]:
        for call in device_calls(kernel.source, kernel.function, "load"):
            other = argument(call, "other", 2)
            parent = kernel.source.parents.get(call)
            guarded = isinstance(parent, cst.IfExp) and kernel.source.code(parent.test).endswith(_DESCRIBED)
            if guarded or not call.args or (other is not None and kernel.source.code(other) not in ("0", "0.0")):
                continue
            try:
                address = address_of(kernel, call.args[0].value, call)
            except Unsupported:
                continue
            if address is not None:
                yield f"descriptor for {short(kernel.source, call)}", (call, address)

    def change(self, edit: Edit, kernel: TritonKernel, payload: tuple[cst.Call, Address]) -> None:
        call, address = payload
        last = address.contiguous_columns
        name, described = _declare(edit, kernel, address)
        first, second = (address.rows, address.columns) if last else (address.columns, address.rows)
        tile = f"{name}.load([{_offset(kernel, first.start)}, {_offset(kernel, second.start)}])"
        tile = tile if last else f"{kernel.tl}.trans({tile})"
        edit.replace(call, f"({tile} if {described} else {kernel.source.code(call)})")
