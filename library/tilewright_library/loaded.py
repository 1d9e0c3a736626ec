"""``load(operator)``: any promoted operator as a function of torch or JAX arrays.

    gemm = load("gemm_fp8_blockwise/gemm_nt")
    c = gemm(a_q, a_s, b_q, b_s)         # operands in the operator's order, or by name

Which kernel runs is decided by the operands' shapes. Without a kernel for a shape, device or toolchain the operator's
own reference answers, with one warning: the recipe in torch or JAX where this package has it, else the operator's
NumPy oracle, which a version brings along. The result is not differentiable: gradients are other operators.
"""

import importlib
from typing import Any

from . import store
from .operands import NoFit, Operands, read
from .serving import Service, served
from .store import NotServed


class Loaded:
    """One operator. Called with torch tensors it answers with them, on their device; likewise with JAX arrays."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self._callers: dict[type | str, Any] = {}
        """By the module that serves them, and by the types of arrays seen."""

    def __repr__(self) -> str:
        return f"load({self.operator!r})"

    @property
    def operands(self) -> Operands:
        """What it takes and gives. Raises NotServed for a version that does not say it."""
        return operands_of(self.operator)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The result, or a tuple of several.

        Raises NotServed for an unknown operator, TypeError and ValueError for operands it does not take.
        """
        if named or not inputs:
            inputs = self._ordered(inputs, named)
        caller = self._callers.get(type(inputs[0]))
        if caller is None:
            caller = self._caller(inputs[0])
        return caller(inputs)

    def served(self, *inputs: Any, **named: Any) -> Service:
        """What serves a call with these operands where they are: the kernel, its time with its interval, or why none.

        Nothing is launched or compiled. Raises as a call does.
        """
        inputs = self._ordered(inputs, named)
        caller = self._caller(inputs[0])
        try:
            dims = self.operands.dims([tuple(array.shape) for array in inputs])
        except NoFit as error:
            raise ValueError(f"{self.operator} takes {error}") from error
        return served(self.operator, caller.device_key(inputs[0]), dims)

    def _ordered(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if named:
            names = [operand.name for operand in self.operands.inputs]
            unknown = set(named) - set(names)
            if unknown or len(inputs) + len(named) != len(names):
                raise TypeError(f"{self.operator} takes {', '.join(names)}")
            inputs = (*inputs, *(named[name] for name in names[len(inputs) :]))
        if not inputs:
            raise TypeError(f"{self.operator} takes operands")
        return inputs

    def _caller(self, first: Any) -> Any:
        kind = type(first)
        if kind in self._callers:
            return self._callers[kind]
        module = kind.__module__.partition(".")[0]
        homes = {"torch": "torch_load", "jax": "jax_operators", "jaxlib": "jax_operators"}
        name = homes.get(module)
        if name is None:
            raise TypeError(f"{self.operator} takes torch tensors or JAX arrays, not {kind.__name__}")
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = importlib.import_module(f".{name}", __package__).Caller(
                self.operator
            )
        self._callers[kind] = caller
        return caller


_LOADED: dict[str, Loaded] = {}


def load(operator: str) -> Loaded:
    """The promoted operator called ``family/recipe``. Raises NotServed for one that was never promoted."""
    if operator not in store.operators():
        known = ", ".join(store.operators()) or "nothing"
        raise NotServed(f"{operator}: no kernel has been promoted (promoted: {known})")
    return _LOADED.setdefault(operator, Loaded(operator))


def operands_of(operator: str) -> Operands:
    """Operands of a promoted operator. Raises NotServed."""
    dispatch = store.current_dispatch(operator)
    told = dispatch.get("operands")
    if told:
        return read(told, dispatch["dimensions"])
    raise NotServed(f"{operator}: its version does not tell the shapes of its operands")
