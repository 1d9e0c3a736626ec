"""A loaded operator for JAX arrays: its Pallas kernel, chosen while tracing, or its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import jax_contract, jax_ops, store
from .loaded import operands_of
from .operands import NoFit
from .oracle import numpy_reference


class Side:
    """One operator, called with a sequence of arrays in its order."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.operands = operands_of(operator)
        self._references: dict[tuple[int, ...], Callable[..., Any]] = {}

    def __call__(self, inputs: Sequence[jax.Array]) -> Any:
        """The result, a tuple of several; under ``jit``, ``shard_map`` and eagerly. Raises TypeError, ValueError."""
        for operand, array in zip(self.operands.inputs, inputs, strict=False):
            if str(array.dtype) != operand.dtype:
                raise TypeError(f"{self.operator} takes {operand.name} in {operand.dtype}, not {array.dtype}")
        try:
            dims = self.operands.dims([tuple(array.shape) for array in inputs])
        except NoFit as error:
            raise ValueError(f"{self.operator} takes {error}") from error
        if dims not in self._references:
            self._references[dims] = self._reference(dims)
        found = jax_ops.serve(self.operator, dims, False, self._references[dims])(*inputs)
        results = tuple(found) if isinstance(found, tuple | list) else (found,)
        return results[0] if len(results) == 1 else results

    def device_key(self, array: jax.Array) -> str:
        """How tables name the default device, on which programs are traced."""
        return jax_ops.device_key()

    def _reference(self, dims: tuple[int, ...]) -> Callable[..., Any]:
        if self.operator.startswith(f"{jax_contract.FAMILY}/"):
            return jax_contract.product
        operands = self.operands
        named = operands.named(dims)
        shapes = tuple(jax.ShapeDtypeStruct(o.sizes(named), jnp.dtype(o.dtype)) for o in operands.outputs)
        names = [operand.name for operand in operands.inputs]

        def on_host(*arrays: Any) -> tuple[Any, ...]:
            oracle = numpy_reference(store.current_version(self.operator), self.operator, operands, dims)
            return oracle({name: np.asarray(array) for name, array in zip(names, arrays, strict=True)})

        def called(*arrays: Any) -> tuple[Any, ...]:
            if any(isinstance(array, jax.core.Tracer) for array in arrays):
                return tuple(jax.pure_callback(on_host, shapes, *arrays))
            # a reference in JAX, asked from within a callback, may wait for the threads that wait for it
            return tuple(map(jnp.asarray, on_host(*arrays)))

        return called
