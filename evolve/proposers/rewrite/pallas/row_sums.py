"""A rule that leaves sums of rows to the matrix unit, beside a dot that leaves a part of it empty."""

from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.accumulation import Dot, dots
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall, pairs

_SUM = "jax.numpy.sum"


class RowSumsInDot(CallRule[list[tuple[cst.BaseExpression, Dot]]]):
    """Sum the rows of a dot's left operand by columns of ones beside its right operand."""

    name = "pallas_row_sums_in_dot"
    why = (
        "Adding up a row of weights costs the vector units an addition per score. A dot with few columns leaves a part "
        "of the matrix unit empty: columns of ones beside the values sum the weights there, for nothing."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, list[tuple[cst.BaseExpression, Dot]]]]:
        for text, sums in _row_sums(view).items():
            yield f"{text} by columns of ones", sums

    def change(self, edit: Edit, view: PallasCall, sums: list[tuple[cst.BaseExpression, Dot]]) -> bool:
        kernel = view.kernel
        numpy = edit.ensure_import("jax.numpy", "jnp")
        values, both = kernel.fresh("values"), kernel.fresh("values_and_sums")
        for total, dot in sums:
            first = kernel.statement(total)
            right = _earlier_text(view, dot.rhs, first)
            if right is None:
                return False
            left = (
                _earlier_text(view, dot.lhs, first)
                or f"{_operand_name(kernel, dot.lhs)}.astype({values}.dtype)"
            )
            ones = f"{numpy}.ones(({values}.shape[0], 128), {values}.dtype)"
            lines = [
                f"{values} = {right}",
                f"{both} = {numpy}.dot({left}, {numpy}.concatenate([{values}, {ones}], axis=1),"
                f" preferred_element_type={numpy}.float32)",
            ]
            edit.insert_before(first, "\n".join(lines))
            width = f"{values}.shape[1]"
            stop = "" if _spread(view, total) else f" {width} + 1"
            edit.replace(total, f"{both}[:, {width} :{stop}]")
            edit.replace(dot.node, f"{both}[:, :{width}]")
        return True


Sums = list[tuple[cst.BaseExpression, Dot]]
"""Row sums as a column, each with the dot whose left operand is summed."""


def _row_sums(view: PallasCall) -> dict[str, Sums]:
    """Sums of rows of a dot's left operand, in the block of the dot, by their text."""
    kernel = view.kernel
    found: dict[str, Sums] = {}
    products = [d for d in dots(kernel, view.function) if isinstance(d.node, cst.Call) and not d.transposed]
    for call, name in kernel.calls(view.function):
        column = _column(kernel, call) if name == _SUM and call.args else None
        weights = _without_cast(kernel, call.args[0].value) if column is not None else None
        if column is None or weights is None:
            continue
        block = kernel.parents[kernel.statement(call)]
        for dot in products:
            if (
                kernel.parents[kernel.statement(dot.node)] is block
                and _operand_name(kernel, dot.lhs) == weights
            ):
                found.setdefault(" ".join(kernel.code(column).split()), []).append((column, dot))
                break
    return found


def _column(kernel: KernelSource, call: cst.Call) -> cst.BaseExpression | None:
    """The column that a sum along rows is: with ``keepdims``, or indexed by ``[:, None]``."""
    words = {a.keyword.value: kernel.code(a.value) for a in call.args if a.keyword is not None}
    axis = words.get("axis") or (kernel.code(call.args[1].value) if len(call.args) > 1 else None)
    if axis not in ("1", "-1"):
        return None
    if words.get("keepdims") == "True":
        return call
    parent = kernel.parents.get(call)
    if isinstance(parent, cst.Subscript) and "".join(kernel.code(parent).split()).endswith("[:,None]"):
        return parent
    return None


def _without_cast(kernel: KernelSource, node: cst.BaseExpression) -> str | None:
    """x of ``x`` and of ``x.astype(float32)``."""
    name = _operand_name(kernel, node)
    if isinstance(node, cst.Call) and kernel.qualified(node.args[0].value) != "jax.numpy.float32":
        return None
    return name


def _operand_name(kernel: KernelSource, node: cst.BaseExpression) -> str | None:
    """x of ``x`` and of ``x.astype(...)`` to a narrower dtype."""
    if isinstance(node, cst.Name):
        return node.value
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and isinstance(node.func.value, cst.Name)
    ):
        return node.func.value.value if node.func.attr.value == "astype" else None
    return None


def _earlier_text(view: PallasCall, node: cst.BaseExpression, statement: cst.CSTNode) -> str | None:
    """Text of an operand at an earlier statement of its block: a value bound in between is read there."""
    kernel = view.kernel
    block = list(kernel.parents[statement].body)  # type: ignore[attr-defined]
    late = block[block.index(statement) :]
    for name in (n for n in walk(node) if isinstance(n, cst.Name)):
        values = [v for place in late for n, v in pairs(place) if n == name.value]
        if values:
            return _earlier_text(view, values[0], statement) if node is name and len(values) == 1 else None
    return kernel.code(node)


def _spread(view: PallasCall, total: cst.BaseExpression) -> bool:
    """Whether row sums join a running sum that is spread over 128 lanes."""
    kernel = view.kernel
    wide = set()
    for ref in view.scratch:
        if isinstance(ref.declared, cst.Call) and ref.declared.args:
            shape = ref.declared.args[0].value
            elements = shape.elements if isinstance(shape, cst.Tuple) else ()
            if elements and kernel.code(resolve(kernel, elements[-1].value)) == "128":
                wide.add(ref.name)
    names = {n.value for n in walk(kernel.statement(total)) if isinstance(n, cst.Name)}
    bound = definitions(view.function)
    for _ in range(4):
        names |= {
            n.value for name in sorted(names) if len(bound.get(name, ())) <= 2
            for place in bound.get(name, ()) for _, v in pairs(place) for n in walk(v) if isinstance(n, cst.Name)
        }  # fmt: skip
    return bool(names & wide) or any(f"{name}_value" in names for name in wide)
