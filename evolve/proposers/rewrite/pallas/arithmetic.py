"""Rules on the vector arithmetic of quantisation: the dtype of absmax, division against reciprocal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, definitions, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.view import PALLAS

_MAXIMA = ("jax.numpy.max", "jax.numpy.amax")


def device_functions(kernel: KernelSource) -> list[cst.FunctionDef]:
    """Functions that run on the device: those that launch nothing and hold no function that does."""
    if kernel.language is not Language.PALLAS:
        return []
    launches = [c for c, name in kernel.calls() if name == f"{PALLAS}.pallas_call"]
    hosts: set[cst.CSTNode] = {f for f in kernel.functions if f.name.value == "build"}
    for call in launches:
        scope = kernel.enclosing(call, cst.FunctionDef)
        while scope is not None:
            hosts.add(scope)
            scope = kernel.enclosing(scope, cst.FunctionDef)
    inner = [f for f in kernel.functions if f not in hosts]
    return [f for f in inner if kernel.enclosing(f, cst.FunctionDef) not in set(inner)]


def _float32(kernel: KernelSource, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """x of ``x.astype(float32)``."""
    if (
        (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "astype"
        )
        and node.args
        and kernel.qualified(node.args[0].value) == "jax.numpy.float32"
    ):
        return node.func.value
    return None


def _absolute_maxima(kernel: KernelSource) -> Iterator[tuple[cst.FunctionDef, cst.Call, cst.Call]]:
    """(function, max call, abs call) of every ``max(abs(x), ...)``."""
    for function in device_functions(kernel):
        for call, name in kernel.calls(function):
            if name in _MAXIMA and call.args:
                inner = call.args[0].value
                if isinstance(inner, cst.Call) and kernel.qualified(inner.func) in ("jax.numpy.abs", "abs"):
                    yield function, call, inner


class AbsmaxDtype:
    """Take the absolute maximum in the input's dtype instead of float32, or the reverse."""

    name = "pallas_absmax_dtype"
    language = Language.PALLAS
    why = (
        "The maximum of absolute values is exact in bfloat16, where a register holds twice as many; the wider dtype "
        "avoids a second conversion when float32 values are needed anyway."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for number, (function, call, inner) in enumerate(_absolute_maxima(kernel)):
            narrow = self._narrow(kernel, function, inner.args[0].value)
            if isinstance(kernel.parents.get(call), cst.Attribute):
                continue
            word = "the input's dtype" if narrow else "float32"
            found.append(
                Site(
                    f"{function.name.value}/{number}",
                    f"{function.name.value}: absolute maximum in {word}",
                    (call, inner, narrow),
                )
            )
        return found

    def _narrow(
        self, kernel: KernelSource, function: cst.FunctionDef, node: cst.BaseExpression
    ) -> str | None:
        """Text of the value before its conversion to float32."""
        direct = _float32(kernel, node)
        if direct is not None:
            return kernel.code(direct)
        if isinstance(node, cst.Name):
            places = definitions(function).get(node.value, [])
            found = assigned_value(places[0]) if len(places) == 1 else None
            direct = _float32(kernel, found[1]) if found and len(found[0]) == 1 else None
            if direct is not None:
                return kernel.code(direct)
        return None

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        call, inner, narrow = site.payload
        edit = Edit(kernel)
        numpy = edit.ensure_import("jax.numpy", "jnp")
        if narrow is not None:
            changed = call.deep_replace(inner.args[0].value, cst.parse_expression(narrow))
            edit.replace(call, f"{kernel.code(changed)}.astype({numpy}.float32)")
        else:
            edit.replace(inner.args[0].value, f"({kernel.code(inner.args[0].value)}).astype({numpy}.float32)")
        return edit.finish()


class DivideToReciprocal:
    """``x / y`` to ``x * (1 / y)`` where x is a tile."""

    name = "pallas_divide_to_reciprocal"
    language = Language.PALLAS
    why = (
        "Dividing every element of a tile by its row's scale costs a reciprocal per element; one reciprocal per row "
        "and a multiplication per element is cheaper and rounds almost every code alike."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for function in device_functions(kernel):
            for number, node in enumerate(_divisions(kernel, function)):
                text = " ".join(kernel.code(node).split())
                found.append(
                    Site(
                        f"{function.name.value}/{number}",
                        f"{function.name.value}: multiply instead of {text}",
                        node,
                    )
                )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        node = site.payload
        edit = Edit(kernel)
        edit.replace(node, f"{_tight(kernel, node.left)} * (1.0 / {_tight(kernel, node.right)})")
        return edit.finish()


def _divisions(kernel: KernelSource, function: cst.FunctionDef) -> list[cst.BinaryOperation]:
    return [
        n
        for n in walk(function)
        if isinstance(n, cst.BinaryOperation)
        and isinstance(n.operator, cst.Divide)
        and not isinstance(resolve(kernel, n.left), cst.Integer | cst.Float)
    ]


def _tight(kernel: KernelSource, node: cst.BaseExpression) -> str:
    text = kernel.code(node)
    return f"({text})" if isinstance(node, cst.BinaryOperation | cst.IfExp) and not node.lpar else text


class ReciprocalToDivide:
    """``x * (1 / y)`` to ``x / y``."""

    name = "pallas_reciprocal_to_divide"
    language = Language.PALLAS
    why = "Division rounds once where a reciprocal and a product round twice: right where a gate compares every bit."

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        found = []
        for function in device_functions(kernel):
            number = 0
            for node in walk(function):
                parts = _reciprocal_product(node)
                if parts is not None:
                    found.append(
                        Site(
                            f"{function.name.value}/{number}",
                            f"{function.name.value}: divide instead of {' '.join(kernel.code(node).split())}",
                            (node, *parts),
                        )
                    )
                    number += 1
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        node, left, divisor = site.payload
        edit = Edit(kernel)
        edit.replace(node, f"{_tight(kernel, left)} / {_tight(kernel, divisor)}")
        return edit.finish()


def _reciprocal_product(node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return None
    for left, right in ((node.left, node.right), (node.right, node.left)):
        if not isinstance(right, cst.BinaryOperation) or not isinstance(right.operator, cst.Divide):
            continue
        numerator, divisor = right.left, right.right
        literal = isinstance(numerator, cst.Float | cst.Integer) and float(numerator.evaluated_value) == 1.0
        if literal and not isinstance(divisor, cst.Float | cst.Integer):
            return left, divisor
    return None
