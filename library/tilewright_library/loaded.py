"""``load(operator)``: any promoted operator as a function of torch or JAX arrays.

    gemm = load("gemm_fp8_blockwise/gemm_nt")
    c = gemm(a_q, a_s, b_q, b_s)         # operands in the operator's order, or by name

Which kernel runs is decided by the operands' shapes. Without a kernel for a shape, device or toolchain the operator's
own reference answers, with one warning: the recipe in torch or JAX where this package has it, else the operator's
NumPy oracle, which a version brings along. The result is not differentiable: gradients are other operators. What serves
a shape is remembered.
"""

import importlib
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import store
from .operands import NoFit, Operands, read
from .store import NotServed


class FallbackWarning(UserWarning):
    """The operator's reference is used instead of a promoted kernel."""


class Dispatcher:
    """Dispatch tables, read once for each (operator, device); safe for several threads."""

    def __init__(self, folder: Path = store.KERNELS) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._tables: dict[tuple[str, str], store.Table | store.NotServed] = {}

    def table(self, operator: str, device: str) -> store.Table:
        """The dispatch table of an operator for a device such as ``cuda:9.0``. Raises NotServed."""
        key = (operator, device)
        found = self._tables.get(key)
        if found is None:
            with self._lock:
                found = self._tables.get(key)
                if found is None:
                    try:
                        found = store.load_table(operator, device, self.folder)
                    except store.NotServed as error:
                        found = error
                    self._tables[key] = found
        if isinstance(found, store.NotServed):
            raise found
        return found

    def warn(self, topic: str, reason: str) -> None:
        """Warn, once for each topic, that a reference is used, and why."""
        with self._lock:
            if topic in self._warned:
                return
            self._warned.add(topic)
        message = f"{reason}; the reference answers, which is correct and slower"
        warnings.warn(message, FallbackWarning, stacklevel=5)


@dataclass(frozen=True)
class Service:
    """Which kernel serves a shape, and its time at the nearest verified shape.

    ``kernel``: None if the reference answers; then ``reason`` says why. ``workload``: the verified shape; ``exact``: it
    is the very shape asked for. ``seconds`` and ``interval`` (95 %): of a call at that verified shape. ``figure``:
    ``measured`` or ``modelled``. ``verified_on``: (name, version) of device and packages, from the receipt.
    """

    operator: str
    kernel: str | None
    workload: str | None = None
    exact: bool = False
    seconds: float | None = None
    interval: tuple[float, float] | None = None
    figure: str | None = None
    verified_on: tuple[tuple[str, str], ...] = ()
    reason: str | None = None

    def __str__(self) -> str:
        if self.kernel is None:
            return f"reference product: {self.reason}"
        text = f"kernel {self.kernel}, verified at {self.workload}"
        if self.seconds is None or self.interval is None:
            return text
        low, high = (f"{value * 1e6:.2f}" for value in self.interval)
        where = ", ".join(f"{name} {value}" for name, value in self.verified_on)
        return f"{text}: {self.seconds * 1e6:.2f} us a call [{low}, {high}] ({self.figure}; {where})"


def served(operator: str, device: str, dims: tuple[int, ...], folder: Path = store.KERNELS) -> Service:
    """Which kernel serves ``dims`` (in the operator's order) on ``device``, or why none does; ``str`` is one line."""
    try:
        table = store.load_table(operator, device, folder)
        region = table.choose(dims)
    except store.NotServed as error:
        return Service(operator, None, reason=str(error))
    receipt = store.read_receipt(table.version)["targets"].get(table.target, {})
    shapes: list[dict[str, Any]] = receipt.get("shapes", [])
    shape = next((s for s in shapes if s["workload"] == region.workload), None)
    candidates: list[dict[str, Any]] = receipt.get("candidates", [])
    verified: dict[str, str] = next((c["toolchain"] for c in candidates if c.get("genome") == region.kernel.name), {})
    return Service(
        operator,
        region.kernel.name,
        region.workload,
        exact=region.dims == dims,
        seconds=shape["seconds"] if shape else None,
        interval=tuple(shape["seconds_interval"]) if shape else None,
        figure=shape["kind"] if shape else None,
        verified_on=tuple(sorted(verified.items())),
    )


class Loaded:
    """One operator. Called with torch tensors it answers with them, on their device; likewise with JAX arrays."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self._callers: dict[type | str, Any] = {}
        """Callers by module name, and by type of array."""

    def __repr__(self) -> str:
        return f"load({self.operator!r})"

    @property
    def operands(self) -> Operands:
        """Its inputs and outputs. Raises NotServed for a version that does not describe them."""
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
        """Which kernel would serve a call with these operands on their device, or why none would.

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
            caller = self._callers[name] = importlib.import_module(f".{name}", __package__).Caller(self.operator)
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
    operands = dispatch.get("operands")
    if operands:
        return read(operands, dispatch["dimensions"])
    raise NotServed(f"{operator}: its version does not tell the shapes of its operands")
