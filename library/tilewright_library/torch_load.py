"""A loaded operator for torch tensors: its kernel by launch plan, by module, or its reference."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import store
from .loaded import operands_of
from .operands import NoFit, Operands
from .oracle import numpy_reference
from .plans.format import ALIGNMENT
from .torch_contract import REFERENCES, Tensors
from .torch_launch import Call, Run, device_key, runner
from .torch_layer import LAUNCHER, NAMESPACE


class Caller:
    """One operator, called with a sequence of tensors in its order."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.operands = operands_of(operator)
        self._dtypes = [getattr(torch, operand.dtype) for operand in self.operands.inputs]
        self._runs: dict[tuple[Any, ...], Run] = {}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The result, a tuple of several. Raises TypeError, ValueError."""
        if torch.compiler.is_compiling():
            results = getattr(torch.ops, NAMESPACE).call(self.operator, list(inputs))
            return results[0] if len(results) == 1 else tuple(results)
        results = self.results(inputs)
        return results[0] if len(results) == 1 else results

    def results(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """As a call, always a tuple."""
        key: list[Any] = []
        addresses: list[int] = []
        for tensor in inputs:
            address = tensor.data_ptr()
            if address % ALIGNMENT or not tensor.is_contiguous():
                return self.results([t.contiguous().clone() for t in inputs])
            addresses.append(address)
            key += (tensor.shape, tensor.dtype, tensor.get_device())
        kind = tuple(key)
        run = self._runs.get(kind)
        if run is None:
            run = self._runs[kind] = self._resolved(inputs)
        return run(inputs, addresses)

    def device_key(self, tensor: torch.Tensor) -> str:
        """How tables name the tensor's device."""
        return device_key(tensor.device)

    def _resolved(self, inputs: Sequence[torch.Tensor]) -> Run:
        for operand, tensor, dtype in zip(self.operands.inputs, inputs, self._dtypes, strict=False):
            if tensor.dtype is not dtype or tensor.device != inputs[0].device:
                raise TypeError(
                    f"{self.operator} takes {operand.name} in {operand.dtype} on {inputs[0].device}, "
                    f"not {tensor.dtype} on {tensor.device}"
                )
        shapes = [tuple(tensor.shape) for tensor in inputs]
        try:
            dims = self.operands.dims(shapes)
        except NoFit as error:
            raise ValueError(f"{self.operator} takes {error}") from error
        device = inputs[0].device
        reference = reference_of(self.operator, self.operands, dims)
        served = LAUNCHER.serve(self.operator, dims, device, reference)
        if served.plan is not None:
            run = runner(served.plan, device)
        else:
            names, call = [operand.name for operand in self.operands.inputs], served.call

            def run(given: Sequence[torch.Tensor], addresses: Sequence[int]) -> Tensors:
                return call(dict(zip(names, given, strict=True)))

        return run


def reference_of(operator: str, operands: Operands, dims: Sequence[int]) -> Call:
    """The recipe in torch where the package has it, else what the version brings; made when it is first needed."""
    if operator in REFERENCES:
        return REFERENCES[operator]

    def call(inputs: Mapping[str, torch.Tensor]) -> Tensors:
        place = store.current_version(operator)
        oracle = numpy_reference(place, operator, operands, dims)
        given = {name: _to_numpy(tensor) for name, tensor in inputs.items()}
        device = next(iter(inputs.values())).device
        found = oracle(given)
        return tuple(to_torch(a, o.dtype, device) for a, o in zip(found, operands.outputs, strict=True))

    return call


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _to_numpy(tensor: torch.Tensor) -> Any:
    import ml_dtypes
    import numpy as np

    name = str(tensor.dtype).removeprefix("torch.")
    raw = tensor.detach().cpu().contiguous().view(_BITS[tensor.element_size()]).numpy()
    return raw.view(np.dtype(getattr(ml_dtypes, name, name)))


def to_torch(array: Any, dtype: str, device: torch.device) -> torch.Tensor:
    """A NumPy array, of a dtype torch knows by this name, on a device."""
    import numpy as np

    bits = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[array.dtype.itemsize]
    plain = torch.from_numpy(np.ascontiguousarray(array).view(bits).copy())
    return plain.view(getattr(torch, dtype)).to(device)


# -- for torch.compile -------------------------------------------------------------------------------

_CALLERS: dict[str, Caller] = {}
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_LIBRARY.define("call(str operator, Tensor[] inputs) -> Tensor[]")


def _caller(operator: str) -> Caller:
    if operator not in _CALLERS:
        _CALLERS[operator] = Caller(operator)
    return _CALLERS[operator]


def _call(operator: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(_caller(operator).results(inputs))


def _fake_call(operator: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    operands = _caller(operator).operands
    dims = operands.named(operands.dims([tuple(map(int, tensor.shape)) for tensor in inputs]))
    return [inputs[0].new_empty(o.sizes(dims), dtype=getattr(torch, o.dtype)) for o in operands.outputs]


_LIBRARY.impl("call", _call, "CPU")
_LIBRARY.impl("call", _call, "CUDA")
torch.library.register_fake(f"{NAMESPACE}::call", _fake_call, lib=_LIBRARY)
