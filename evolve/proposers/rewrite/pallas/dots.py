"""Rules on the matrix product and its scales: chunks of rows or columns, another order of the scales, operands that
are scaled before one long dot."""

import ast
from collections.abc import Iterator, Sequence
from itertools import takewhile
from textwrap import indent

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import dedented
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.accumulation import (
    Accumulate,
    absorbed_statements,
    accumulates,
    dot_of,
    dots,
    expanded_sum,
    factors,
    scaled_dot,
)
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.shapes import Inference, ShapedValue
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall

_PLAIN = cst.Module(body=[])


def _text(node: cst.CSTNode) -> str:
    return _PLAIN.code_for_node(node).strip()


class _Chunk(CallRule[Accumulate]):
    """Common part of chunking along the rows (axis 0) or the columns (axis 1) of the product."""

    axis: int
    word: str
    letter: str

    def find(self, view: PallasCall) -> Iterator[tuple[str, Accumulate]]:
        kernel = view.kernel
        for item in accumulates(view):
            value = expanded_sum(view, item)
            # names that a comprehension binds mean nothing outside it, where chunks are cut
            own = any(isinstance(node, cst.BaseComp) for node in walk(value))
            if item.is_whole and len(dots(kernel, value)) == 1 and not own:
                yield f"{self.word} chunks of the dot added to {_text(item.target)}", item

    def change(self, edit: Edit, view: PallasCall, item: Accumulate) -> bool:
        kernel = view.kernel
        parameter = edit.add_parameter(f"chunk_{self.letter}", (64, 128, 256, 512), 128)
        block = view.outputs[0].spec
        owner = view.parameter_of(block.shape[self.axis]) if block and len(block.shape) == 2 else None
        if owner:
            edit.add_constraint(f"{owner} % {parameter} == 0", f"{parameter} must divide {owner}")
            if isinstance(kernel.defaults.get(owner), int) and kernel.defaults[owner] % 128:
                return False
        size = view.pass_static(edit, parameter)
        names = {w: kernel.fresh(w) for w in ("start", "extent", "chunk_of")}
        names["numpy"] = edit.ensure_import("jax.numpy", "jnp")
        self._helper(edit, view, names["chunk_of"])
        value = expanded_sum(view, item)
        dot = dots(kernel, value)[0]
        side = dot.lhs if self.axis == 0 else dot.rhs
        along = self.axis if self.axis == 0 or not dot.transposed else 0
        piece = self._piece(kernel, value, along, size, names)
        extent = f"{names['extent']} = {_text(side)}.shape[{along}]"
        edit.replace_statement(item.statement, self._loop(item, piece, extent, size, names))
        for statement in absorbed_statements(view, item):
            edit.remove(statement)
        return True

    def _helper(self, edit: Edit, view: PallasCall, name: str) -> None:
        edit.insert_before(
            edit.kernel.statement(view.function),
            f"\n\ndef {name}(x, axis, start, count, extent):\n"
            f'    """``count`` entries of x along axis, or all of x where it is broadcast along it."""\n'
            f"    if x.ndim != 2 or x.shape[axis] != extent:\n        return x\n"
            f"    return x[start : start + count] if axis == 0 else x[:, start : start + count]",
        )

    def _piece(
        self, kernel: KernelSource, value: cst.BaseExpression, along: int, size: str, names: dict[str, str]
    ) -> str:
        """The accumulated expression for one chunk: every operand cut, or whole where it is broadcast."""
        cut = f"{names['start']}, {size}, {names['extent']})"

        def take(node: cst.CSTNode, axis: int) -> str:
            return f"{names['chunk_of']}({_text(node)}, {axis}, {cut}"

        def visit(node: cst.BaseExpression) -> str:
            dot = dot_of(kernel, node)
            if dot is not None:
                side = dot.lhs if self.axis == 0 else dot.rhs
                before, _, after = (
                    _text(node).partition(_text(side)) if self.axis == 0 else _text(node).rpartition(_text(side))
                )
                return f"{before}{take(side, along)}{after}"
            if isinstance(node, cst.BinaryOperation):
                return f"({visit(node.left)} {_text(node.operator)} {visit(node.right)})"
            if isinstance(node, cst.Integer | cst.Float):
                return _text(node)
            if isinstance(node, cst.Call) and _text(node.func).endswith(".astype"):
                assert isinstance(node.func, cst.Attribute)
                return f"{visit(node.func.value)}.astype({_text(node.args[0].value)})"
            return take(node, self.axis)

        return visit(value)

    def _loop(self, item: Accumulate, piece: str, extent: str, size: str, names: dict[str, str]) -> str:
        start = names["start"]
        steps = f"range(0, {names['extent']}, {size})"
        if item.ref is None:
            numpy = names["numpy"]
            parts = f"[{piece} for {start} in {steps}]"
            target = _text(item.target)
            return f"{extent}\n{target} = {target} + {numpy}.concatenate({parts}, axis={self.axis})"
        where = f"{start} : {start} + {size}, :" if self.axis == 0 else f":, {start} : {start} + {size}"
        return f"{extent}\nfor {start} in {steps}:\n    {item.ref}[{where}] += {piece}"


class ChunkRows(_Chunk):
    """Split the dot over the rows of the tile."""

    name = "pallas_chunk_rows"
    axis, word, letter = 0, "row", "m"
    why = (
        "A whole tile's partial product lives in hundreds of vector registers and spills. Row chunks keep it small and "
        "let the scaling of one chunk fill slots while the matrix unit works on the next."
    )


class ChunkColumns(_Chunk):
    """Split the dot over the columns of the tile."""

    name = "pallas_chunk_columns"
    axis, word, letter = 1, "column", "n"
    why = (
        "Column chunks of the matrix unit's width interleave its work with the vector work on the previous chunk and "
        "shorten the life of the partial product."
    )


class ScaleBeforeDot(CallRule[Accumulate]):
    """Scale both operands in bfloat16 before the dot instead of the float32 partial after it, all groups in one dot."""

    name = "pallas_scale_before_dot"
    why = (
        "Scaling the [rows, columns] partial of every group of the depth costs vector work that grows with the tile. "
        "Scaled operands cost less when groups are short, and all groups share one dot, which fills the matrix units."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Accumulate]]:
        for item in accumulates(view):
            split, loop = scaled_dot(view.kernel, expanded_sum(view, item)), item.loop
            if split is None or not split[1] or split[0].transposed or loop is None or not item.is_whole:
                continue
            name = item.ref or _text(item.target)
            looped, added = (
                sum(isinstance(n, cst.Name) and n.value == name for n in walk(node)) for node in (loop, item.statement)
            )
            if looped == added and item.statement in loop.body.body:
                yield f"scale the operands of the dots added to {_text(item.target)}", item

    def change(self, edit: Edit, view: PallasCall, item: Accumulate) -> None:
        split, kernel = scaled_dot(view.kernel, expanded_sum(view, item)), view.kernel
        assert split is not None and item.loop is not None
        numpy, target = edit.ensure_import("jax.numpy", "jnp"), _text(item.target)
        left, right, part = map(kernel.fresh, ("left", "right", "part"))
        dot, scales = split[0], _by_side(view, item.loop, item, [*map(_text, split[1])])
        edit.insert_before(item.loop, f"{left}, {right} = [], []")
        pieces = []
        for side, operand, texts in zip((left, right), (dot.lhs, dot.rhs), scales, strict=True):
            wide = " * ".join([f"({_text(operand)}).astype({numpy}.float32)", *(f"({s})" for s in texts)])
            # a name of its own: what one operand gives alone can be kept across a grid axis
            piece = f"{side}_{part} = ({wide}).astype({numpy}.bfloat16)\n{side} += [{side}_{part}]"
            pieces.append(ast.unparse(ast.parse(piece)))
        edit.replace_statement(item.statement, "\n".join(pieces))
        edit.insert_after(
            item.loop,
            f"{left} = {numpy}.concatenate({left}, axis=1)\n{right} = {numpy}.concatenate({right}, axis=0)\n"
            f"{target} = {target} + {numpy}.dot({left}, {right}, preferred_element_type={numpy}.float32)",
        )
        for statement in absorbed_statements(view, item):
            edit.remove(statement)


def _by_side(view: PallasCall, loop: cst.For, item: Accumulate, scales: Sequence[str]) -> list[list[str]]:
    """The scales that vary along the rows or not at all, and those that vary along the columns.

    Raises Unsupported where a shape cannot be inferred, or varies along both.
    """
    before = takewhile(lambda s: s is not item.statement, loop.body.body)
    lines = "".join(f"\n{indent(dedented(view.kernel, s), '    ')}" for s in before)
    inference, by_side = Inference(view), [list[str](), list[str]()]
    inference.run(f"for {_text(loop.target)} in {_text(loop.iter)}:{lines or ' pass'}")
    for scale in scales:
        found = inference.value(ast.parse(scale, mode="eval").body)
        *over, rows, columns = ("1", "1", *(found.dims if isinstance(found, ShapedValue) else ("", "")))
        if over[2:] or "1" not in (rows, columns):
            raise Unsupported("a scale that varies along rows and columns")
        by_side[columns != "1"].append(scale)
    return by_side


class ReassociateScale(CallRule[Accumulate]):
    """``dot * (a * b)`` to ``(dot * a) * b`` and back."""

    name = "pallas_reassociate_scale"
    why = (
        "Multiplying the row scale with the column scale first makes an outer product as large as the tile; scaling "
        "by one after the other broadcasts small operands. Which is cheaper depends on layout and registers."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Accumulate]]:
        kernel = view.kernel
        for item in accumulates(view):
            split = scaled_dot(kernel, expanded_sum(view, item))
            if split and len(split[1]) >= 2:
                yield f"another order of the scales on {_text(item.target)}", item

    def change(self, edit: Edit, view: PallasCall, item: Accumulate) -> bool:
        kernel = view.kernel
        value = expanded_sum(view, item)
        split = scaled_dot(kernel, value)
        if split is None:
            return False
        dot, scales = split
        names = [_text(s) for s in scales]
        chained = f"{_text(dot.node)} * " + " * ".join(names)
        grouped = f"{_text(dot.node)} * ({' * '.join(names)})"
        flat = isinstance(value, cst.BinaryOperation) and len(list(factors(value.right))) == 1
        edit.replace(item.value, grouped if flat else chained)
        for statement in absorbed_statements(view, item):
            edit.remove(statement)
        return True
