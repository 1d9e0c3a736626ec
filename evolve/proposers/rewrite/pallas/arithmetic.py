"""Rules on the vector arithmetic of quantisation: the dtype of absmax, division against reciprocal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite import quotients
from tilewright.evolve.proposers.rewrite.base import KernelSource, Language
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, definitions
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS
from tilewright.evolve.proposers.rewrite.place_rule import Place, PlaceRule

_MAXIMA = ("jax.numpy.max", "jax.numpy.amax")


@dataclass(frozen=True)
class DeviceFunction:
    """A function that runs on the device."""

    kernel: KernelSource
    function: cst.FunctionDef

    @property
    def name(self) -> str:
        return self.function.name.value


def device_functions(kernel: KernelSource) -> list[DeviceFunction]:
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
    return [
        DeviceFunction(kernel, f) for f in inner if kernel.enclosing(f, cst.FunctionDef) not in set(inner)
    ]


class FunctionRule(PlaceRule[DeviceFunction, Place]):
    """A rule whose places are in one function of the device; its launch need not be followed."""

    language = Language.PALLAS

    def views(self, kernel: KernelSource) -> list[DeviceFunction]:
        return device_functions(kernel)


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


class AbsmaxDtype(FunctionRule):
    """Take the absolute maximum in the input's dtype instead of float32, or the reverse."""

    name = "pallas_absmax_dtype"
    why = (
        "The maximum of absolute values is exact in bfloat16, where a register holds twice as many; the wider dtype "
        "avoids a second conversion when float32 values are needed anyway."
    )

    def find(self, view: DeviceFunction) -> Iterator[tuple[str, Any]]:
        kernel = view.kernel
        for call, name in kernel.calls(view.function):
            inner = call.args[0].value if name in _MAXIMA and call.args else None
            if not isinstance(inner, cst.Call) or isinstance(kernel.parents.get(call), cst.Attribute):
                continue
            if kernel.qualified(inner.func) in ("jax.numpy.abs", "abs"):
                narrow = self._narrow(view, inner.args[0].value)
                word = "the input's dtype" if narrow else "float32"
                yield f"absolute maximum in {word}", (call, inner, narrow)

    def _narrow(self, view: DeviceFunction, node: cst.BaseExpression) -> str | None:
        """Text of the value before its conversion to float32."""
        direct = _float32(view.kernel, node)
        if direct is None and isinstance(node, cst.Name):
            places = definitions(view.function).get(node.value, [])
            found = assigned_value(places[0]) if len(places) == 1 else None
            direct = _float32(view.kernel, found[1]) if found and len(found[0]) == 1 else None
        return None if direct is None else view.kernel.code(direct)

    def change(self, edit: Edit, view: DeviceFunction, payload: Any) -> None:
        call, inner, narrow = payload
        kernel, wide = view.kernel, inner.args[0].value
        numpy = edit.ensure_import("jax.numpy", "jnp")
        if narrow is not None:
            changed = call.deep_replace(wide, cst.parse_expression(narrow))
            edit.replace(call, f"{kernel.code(changed)}.astype({numpy}.float32)")
        else:
            edit.replace(wide, f"({kernel.code(wide)}).astype({numpy}.float32)")


class DivideToReciprocal(FunctionRule):
    """``x / y`` to ``x * (1 / y)`` where x is a tile."""

    name = "pallas_divide_to_reciprocal"
    why = (
        "Dividing every element of a tile by its row's scale costs a reciprocal per element; one reciprocal per row "
        "and a multiplication per element is cheaper and rounds almost every code alike."
    )

    def find(self, view: DeviceFunction) -> Iterator[tuple[str, Any]]:
        return quotients.divisions(view.kernel, view.function)

    def change(self, edit: Edit, view: DeviceFunction, payload: Any) -> None:
        quotients.multiply_instead(edit, payload)


class ReciprocalToDivide(FunctionRule):
    """``x * (1 / y)`` to ``x / y``."""

    name = "pallas_reciprocal_to_divide"
    why = "Division rounds once where a reciprocal and a product round twice: right where a gate compares every bit."

    def find(self, view: DeviceFunction) -> Iterator[tuple[str, Any]]:
        return quotients.reciprocal_products(view.kernel, view.function)

    def change(self, edit: Edit, view: DeviceFunction, payload: Any) -> None:
        quotients.divide_instead(edit, payload)
