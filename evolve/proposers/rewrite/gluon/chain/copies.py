"""Tiles that a chain's products multiply, as a copy by TMA wants them: sides, strides, coordinates of a box."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.statements import names_in
from tilewright.evolve.proposers.rewrite.gluon.tiles import in_host
from tilewright.evolve.proposers.rewrite.sums import Sum, SumReader, conjuncts, constant
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel


@dataclass(frozen=True)
class Box:
    """A tile of a tensor, as texts of the kernel, or of the host where a docstring says so."""

    parameter: str
    tensor: str
    """Name of the tensor; of the host."""

    outer: tuple[tuple[str, str], ...]
    """(index, stride; of the host) of each dimension along which the tile has one element."""

    start: str
    """First row; rows are the tile's dimension that is not contiguous."""

    stride: str
    """Elements from row to row; of the host."""

    bound: str
    """Number of rows of the tensor; of the host, "" where no mask says it."""

    rows: str
    columns: str
    width: str
    """Number of columns of the tensor; of the host."""

    turned: bool
    """Whether the kernel's tile has the contiguous dimension first."""

    conditions: tuple[str, ...]
    """Conditions for the host to check, beside those of every descriptor."""

    there: Sum | None = None
    """Number of rows that a mask leaves, where only the device knows it: the others are zeros, or not stored."""

    @property
    def extents(self) -> tuple[str, str]:
        """Sides of the kernel's tile, in its order."""
        return (self.columns, self.rows) if self.turned else (self.rows, self.columns)

    @property
    def reads(self) -> set[str]:
        """Names of the kernel in the box's coordinates."""
        texts = (self.start, self.there.text() if self.there is not None else "0", *(index for index, _ in self.outer))
        return set[str]().union(*map(names_in, texts))


class BoxReader:
    """Reads addresses and masks of loads as boxes. ``moving``: the variable of the loop, None before it."""

    def __init__(self, kernel: TritonKernel, sums: SumReader, moving: str | None) -> None:
        self.kernel, self.sums, self.moving = kernel, sums, moving

    def read(self, pointer: ast.expr, mask: ast.expr | None) -> Box:
        """The box of a load. Raises Unsupported that names the construct which is not understood."""
        root = self._root(pointer)
        address = self.sums.read(pointer) - Sum({(root,): 1})
        if root in address.factors:
            raise Unsupported("an address whose tensor is not told apart")
        sides = [address.split(axis) for axis in (0, 1)]
        if sides[0] is None or sides[1] is None:
            raise Unsupported("an operand that is no tile of two axes")
        (first, second), conditions = (sides[0], sides[1]), []
        units = [self._is_unit(stride) for _, stride in (first, second)]
        limits = self._limits(mask)
        if units[0] == units[1]:
            # which axis is contiguous only the host knows: the one that the loop does not move along
            moved = [a for a, (_, step) in enumerate((first, second)) if self._moves(address, step, limits.get(a))]
            if units[0] or len(moved) != 1:
                raise Unsupported("a tile without one contiguous axis")
            units = [axis not in moved for axis in (0, 1)]
            conditions.append(f"({self._host((first, second)[1 - moved[0]][1])}) == 1")
        inner = 1 if units[1] else 0
        (rows, stride), (columns, _) = (second, first) if inner == 0 else (first, second)
        if not stride.single:
            raise Unsupported("rows whose distance is a sum")
        limit = limits.get(1 - inner)
        here = limit is None or all(self._known(f) for f in limit[1].factors)
        start = self._start(address.scalar, stride, limit, here, rows)
        rest = address.scalar - start * stride
        if self.moving is not None and self.moving in rest.factors:
            raise Unsupported("a tile that the loop moves along no axis")
        given = self.kernel.given(root)
        if given is None:
            raise Unsupported(f"parameter {root}, which the launch does not pass")
        tensor = self.kernel.source.code(given)
        outer = self._outer(rest)
        width = limits.get(inner)
        conditions += [f"{text} in {tensor}.stride()" for _, text in outer]
        return Box(
            root,
            tensor,
            outer,
            start.text(),
            self._host(stride),
            self._host(limit[1]) if limit is not None and here else "",
            rows,
            columns,
            self._width(width, columns),
            inner == 0,
            tuple(conditions),
            limit[1] - limit[0] if limit is not None and not here else None,
        )

    def row_numbers(self, load: ast.Call, rows: str, begin: Sum) -> tuple[str, str, str, list[str]]:
        """(tensor of the host, first element, mask, conditions for the host to check) of a load of one number for each
        of the rows that the loop moves along from ``begin``. Raises Unsupported for another load."""
        root = self._root(load.args[0])
        address = (self.sums.read(load.args[0]) - Sum({(root,): 1})).along(0)
        given, masks = self.kernel.given(root), [k.value for k in load.keywords if k.arg == "mask"]
        tensor = "" if given is None else self.kernel.source.code(given)
        if address.split(0) != (rows, constant(1)) or self.moving not in address.scalar.factors:
            raise Unsupported("what is no number of each row")
        if not tensor.isidentifier() or root in address.factors:
            raise Unsupported("an address whose tensor is not told apart")
        masks = load.args[1:2] or masks
        first, conditions = address.scalar - Sum({(str(self.moving),): 1}) + begin, []
        for product, count in first.parts.items():
            if count % 4 and rows not in product:  # a copy from anywhere but a multiple of 16 bytes is illegal
                known = tuple(f for f in product if self._known(f))
                if not known or self.moving in product:
                    raise Unsupported("numbers of rows that begin anywhere")
                conditions.append(f"({self._host(Sum({known: count}))}) % 4 == 0")
        return tensor, address.scalar.text(), ast.unparse(masks[0]) if masks else "", conditions

    def _root(self, node: ast.expr) -> str:
        """The parameter that an address begins with."""
        for _ in range(40):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                node = node.left
            elif isinstance(node, ast.Name) and node.id in self.sums.running:
                roots = [
                    p[0]
                    for p, c in self.sums.running[node.id].parts.items()
                    if len(p) == 1 and c == 1 and self._is_pointer(p[0])
                ]
                if len(roots) == 1:
                    return roots[0]
                break
            elif isinstance(node, ast.Name) and node.id in self.sums.bound:
                node = self.sums.bound[node.id]
            else:
                break
        if isinstance(node, ast.Name) and self._is_pointer(node.id):
            return node.id
        raise Unsupported("an operand at an address that no parameter begins")

    def _is_pointer(self, name: str) -> bool:
        return name not in self.kernel.constexprs and self.kernel.given(name) is not None

    def _is_unit(self, stride: Sum) -> bool:
        if stride.parts == {(): 1}:
            return True
        (name,) = stride.factors if len(stride.factors) == 1 else ("",)
        given = self.kernel.given(name) if stride.parts == {(name,): 1} else None
        text = "" if given is None else self.kernel.source.code(given)
        return text == "1" or text.endswith(".stride(-1)")

    def _moves(self, address: Sum, stride: Sum, limit: tuple[Sum, Sum] | None) -> bool:
        """Whether the loop, or the program where there is none, moves a tile along the axis of ``stride``."""
        start = limit[0] if limit is not None else address.scalar.over(stride) if stride.single else constant(0)
        return bool(start.parts) if self.moving is None else self.moving in start.factors

    def _limits(self, mask: ast.expr | None) -> dict[int, tuple[Sum, Sum]]:
        """By axis (number, bound) of a mask ``number < bound``. Raises Unsupported for other masks."""
        found: dict[int, tuple[Sum, Sum]] = {}
        for node, axis in conjuncts(mask, self.sums.bound) if mask is not None else ():
            less = self.sums.less(node, axis)
            if less is None:
                raise Unsupported(f"an operand masked by {ast.unparse(node)[:40]}")
            low, high = less
            sides = [a for a in (0, 1) if low.split(a) is not None]
            if len(sides) != 1 or any(f.startswith("@") for f in high.factors) or sides[0] in found:
                raise Unsupported(f"an operand masked by {ast.unparse(node)[:40]}")
            step = low.split(sides[0])
            if step is None or step[1].parts != {(): 1}:
                raise Unsupported(f"an operand masked by {ast.unparse(node)[:40]}")
            found[sides[0]] = (low.scalar, high)
        return found

    def _start(self, scalar: Sum, stride: Sum, limit: tuple[Sum, Sum] | None, here: bool, rows: str) -> Sum:
        """The first row. ``here``: whether the host knows a limit; rows of a tensor that only the device knows the
        ends of begin where it says."""
        among = scalar.over(stride)
        first = Sum({}) if limit is None else limit[0]
        if limit is not None and here:
            return first
        mine = {self.moving, rows}
        kept = {
            p: c
            for p, c in (among - first).parts.items()
            if not any(map(self._known, p))
            or (limit is None and (mine & set(p) or (rows.isdigit() and c % int(rows) == 0 and len(p) == 1)))
        }
        return first + Sum(kept)

    def _outer(self, rest: Sum) -> tuple[tuple[str, str], ...]:
        """(index, stride; of the host) of every other part of an address. Raises Unsupported for more than three."""
        found: dict[str, Sum] = {}
        for product, count in rest.parts.items():
            known = tuple(f for f in product if self._known(f))
            index = Sum({tuple(f for f in product if not self._known(f)): 1})
            text = self._host(Sum({known: count}))
            found[text] = found.get(text, constant(0)) + index
        if len(found) > 3:
            raise Unsupported("a tile of a tensor of more than five dimensions")
        return tuple((index.text(), text) for text, index in found.items())

    def _known(self, factor: str) -> bool:
        """Whether a name or number of the kernel is known to the host."""
        if factor.isdigit():
            return True
        if not factor.isidentifier() or factor in self.kernel.bound:
            return False
        return self.kernel.given(factor) is not None

    def _host(self, value: Sum) -> str:
        """The text of a sum in names of the host. Raises Unsupported for a name that it does not know."""
        written = []
        for product, count in sorted(value.parts.items()):
            texts = [] if count == 1 and product else [str(count)]
            for factor in product:
                if not self._known(factor):
                    raise Unsupported(f"{factor}, which the host does not know")
                given = self.kernel.given(factor)
                text = factor if given is None else self.kernel.source.code(given)
                texts.append(text if text.isidentifier() or text.isdigit() else f"({text})")
            written.append(" * ".join(texts))
        return " + ".join(written) or "0"

    def _width(self, limit: tuple[Sum, Sum] | None, columns: str) -> str:
        if limit is None:
            return in_host(self.kernel, columns)
        if limit[0].parts:
            raise Unsupported("columns that do not begin at the first")
        return self._host(limit[1])


def described(box: Box, extents: Sequence[str], layout: str) -> str:
    """Text of the host that makes a descriptor for a box with sides ``extents``."""
    outer = [(_extent(box, text), text) for _, text in box.outer]
    shape = ", ".join([*(n for n, _ in outer), box.bound or _extent(box, box.stride), box.width])
    strides = ", ".join([*(s for _, s in outer), box.stride, "1"])
    ones = "1, " * len(outer)
    return f"TensorDescriptor({box.tensor}, [{shape}], [{strides}], [{ones}{', '.join(extents)}], {layout})"


def _extent(box: Box, stride: str) -> str:
    """Of the dimension that has a stride, as the host says it, with those that an index of it runs on into: all that
    lie below the next stride of the box. Of several with one stride, one alone has more than one element: the rows',
    where it is theirs, else ``apart`` does not hold."""
    others = [t for t in (box.stride, *(t for _, t in box.outer)) if t != stride]
    within = "".join(f" and not {stride} < {other} <= s" for other in others)
    sides = f"zip({box.tensor}.shape, {box.tensor}.stride())"
    reach = f"1 + sum((n - 1) * s for n, s in {sides} if s >= {stride}{within}) // max({stride}, 1)"
    if stride == box.stride:
        return reach
    own = _dimension(box, stride)
    return f"({reach} if ({stride}) != ({box.stride}) else {f'{box.tensor}.shape[{own}]' if own else 1})"


def _dimension(box: Box, stride: str) -> str:
    found = re.fullmatch(rf"\(?{re.escape(box.tensor)}\.stride\((\d+)\)\)?", stride)
    return found[1] if found else ""


def apart(box: Box) -> list[str]:
    """Conditions under which strides tell the dimensions of a box apart, for the host to check."""
    texts = [t for _, t in box.outer if not _dimension(box, t)]
    longest = f"max(n for n, s in zip({box.tensor}.shape, {box.tensor}.stride()) if s == {box.stride})"
    same = f" or {longest} == ({box.bound})" if box.bound else ""
    found = [f"(({t}) != ({box.stride}){same})" for t in texts]
    return [*found, *(f"({a}) != ({b})" for a, b in combinations(texts, 2))]
