"""Rules on what a dot is given: its scale, a transposed operand, an operand that was widened for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site
from tilewright.evolve.proposers.rewrite.dataflow import definitions, small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.accumulation import Dot, dot_of, dots
from tilewright.evolve.proposers.rewrite.pallas.exponents import scalings
from tilewright.evolve.proposers.rewrite.pallas.find import pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.view import PallasCall, pairs

_CONTRACT_LAST = "(((1,), (1,)), ((), ()))"


class ScaleOperand:
    """Scale a dot's left operand by a Python number instead of the dot's result."""

    name = "pallas_scale_operand"
    language = Language.PALLAS
    why = (
        "An operand has fewer elements than the scores it makes, and is often the same for many dots. The product is "
        "rounded to the operand's dtype: exact for powers of two, for gates to judge otherwise."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for view in pallas_calls(kernel):
            for name, group in scalings(view).items():
                products = [_product_of(view, statement) for statement in group]
                if all(product is not None for product in products):
                    found.append(
                        Site(
                            f"{view.name}/{name}",
                            f"{view.name}: scale the left operand of {name}",
                            list(zip(group.items(), products, strict=True)),
                        )
                    )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        edit = Edit(kernel)
        for (statement, factor), (dot, scaled) in site.payload:
            left = f"({kernel.code(dot.lhs)})"
            edit.replace(dot.lhs, f"({left} * ({kernel.code(factor)})).astype({left}.dtype)")
            line = small(statement)
            name = (
                kernel.code(line.targets[0].target) if isinstance(line, cst.Assign) else kernel.code(scaled)
            )
            if name == kernel.code(scaled):
                edit.remove(statement)
            elif isinstance(line, cst.Assign):
                edit.replace(line.value, kernel.code(scaled))
        return edit.finish()


def _product_of(view: PallasCall, statement: cst.CSTNode) -> tuple[Dot, cst.BaseExpression] | None:
    """(dot, the expression that is scaled) of ``scores = product * factor``, with the dot in the same block."""
    kernel = view.kernel
    line = small(statement)
    if isinstance(line, cst.AugAssign):
        sides: list[cst.BaseExpression] = [line.target]
    elif isinstance(line, cst.Assign) and isinstance(line.value, cst.BinaryOperation):
        sides = [line.value.left, line.value.right]
    else:
        return None
    block = list(kernel.parents[statement].body)  # type: ignore[attr-defined]
    before = block[: block.index(statement)]
    for side in sides:
        if (dot := dot_of(kernel, side)) is not None:
            # a new node replaces the whole product: edits within it would be lost
            continue
        for place in reversed(before):
            values = [v for n, v in pairs(place) if n == kernel.code(side)]
            if values:
                dot = dot_of(kernel, values[0])
                return (dot, side) if dot is not None and place is before[-1] else None
    return None


class TransposeInDot:
    """``dot(a, b.T)`` to a product that contracts b's last axis."""

    name = "pallas_transpose_in_dot"
    language = Language.PALLAS
    why = "The matrix unit contracts either axis of its right operand; a transpose before it is work and registers."

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for view in pallas_calls(kernel):
            for number, (dot, inner) in enumerate(_transposed(view)):
                found.append(
                    Site(
                        f"{view.name}/dot{number}",
                        f"{view.name}: contract the last axis of {' '.join(kernel.code(inner).split())}",
                        (dot, inner),
                    )
                )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        dot, inner = site.payload
        edit = Edit(kernel)
        jax = edit.ensure_import("jax", "jax")
        words = [kernel.code(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for a in dot.node.args[2:]]
        texts = [kernel.code(dot.lhs), kernel.code(inner), _CONTRACT_LAST, *words]
        edit.replace(dot.node, f"{jax}.lax.dot_general({', '.join(texts)})")
        return edit.finish()


def _transposed(view: PallasCall) -> Iterator[tuple[Dot, cst.BaseExpression]]:
    """Library calls whose right operand is ``x.T``, with x; further arguments are keywords."""
    kernel = view.kernel
    for dot in dots(kernel, view.function):
        right = dot.rhs
        if isinstance(right, cst.Name):
            values = _once(view, right.value)
            right = values[0] if values else right
        plain = isinstance(dot.node, cst.Call) and kernel.qualified(dot.node.func) in (
            "jax.numpy.dot",
            "jax.lax.dot",
        )
        if plain and not dot.transposed and isinstance(right, cst.Attribute) and right.attr.value == "T":
            assert isinstance(dot.node, cst.Call)
            if all(a.keyword is not None for a in dot.node.args[2:]):
                yield dot, right.value


def _once(view: PallasCall, name: str) -> list[cst.BaseExpression]:
    places = definitions(view.function).get(name, [])
    return [v for n, v in pairs(places[0]) if n == name] if len(places) == 1 else []


class NarrowOperands:
    """Multiply in bfloat16 where an operand was widened to float32 to meet another in float32."""

    name = "pallas_narrow_operands"
    language = Language.PALLAS
    why = (
        "A product in float32 takes several passes of the matrix unit, and widened operands twice the registers. An "
        "operand that was bfloat16 before loses nothing; the other is rounded, for gates to judge."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for view in pallas_calls(kernel):
            for number, dot in enumerate(dots(kernel, view.function)):
                left, right = _unwidened(kernel, dot.lhs), _unwidened(kernel, dot.rhs)
                if (left is not None or right is not None) and isinstance(dot.node, cst.Call):
                    found.append(
                        Site(
                            f"{view.name}/dot{number}",
                            f"{view.name}: dot {number} in bfloat16",
                            (dot, left, right),
                        )
                    )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        dot, left, right = site.payload
        edit = Edit(kernel)
        numpy = edit.ensure_import("jax.numpy", "jnp")
        changed = dot.node
        for old, narrow in ((dot.lhs, left), (dot.rhs, right)):
            text = narrow or f"({kernel.code(old)}).astype({numpy}.bfloat16)"
            changed = changed.deep_replace(old, cst.parse_expression(text))
        if "preferred_element_type" not in kernel.code(changed):
            return None
        tests = [f"{text}.dtype == {numpy}.bfloat16" for text in (left, right) if text is not None]
        edit.replace(
            dot.node, f"({kernel.code(changed)} if {' and '.join(tests)} else {kernel.code(dot.node)})"
        )
        return edit.finish()


def _unwidened(kernel: KernelSource, node: cst.BaseExpression) -> str | None:
    """Text of x of ``x.astype(float32)``."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or not node.args:
        return None
    if node.func.attr.value != "astype" or kernel.qualified(node.args[0].value) != "jax.numpy.float32":
        return None
    text = kernel.code(node.func.value)
    return text if isinstance(node.func.value, cst.Name | cst.Subscript) else f"({text})"
