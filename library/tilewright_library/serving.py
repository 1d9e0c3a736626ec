"""What serves a shape, remembered: tables by operator and device, one warning a reason. Standard library only."""

import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import store


class FallbackWarning(UserWarning):
    """The operator's reference is used instead of a promoted kernel."""


class Dispatcher:
    """Tables, read once for an operator and a device; safe to use from several threads."""

    def __init__(self, folder: Path = store.KERNELS) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._tables: dict[tuple[str, str], store.Table | store.NotServed] = {}

    def table(self, operator: str, device: str) -> store.Table:
        """What serves an operator on a device such as ``cuda:9.0``. Raises NotServed."""
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
        """Say once for each topic why a fallback is used."""
        with self._lock:
            if topic in self._warned:
                return
            self._warned.add(topic)
        message = f"{reason}; the reference answers, which is correct and slower"
        warnings.warn(message, FallbackWarning, stacklevel=5)


@dataclass(frozen=True)
class Service:
    """What serves a shape, and what it was seen to take.

    ``seconds`` and ``interval`` (95 %) are of a call at the verified shape ``workload``, ``figure`` says ``measured``
    or ``modelled``; scaled to no other shape. ``exact``: the shape asked for is that shape. ``verified_on``: the device
    and versions of the receipt. ``kernel`` is None where the reference answers, ``reason`` says why.
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
    """What serves ``dims`` (in the operator's order) on ``device``, or why nothing does; prints as a line."""
    try:
        table = store.load_table(operator, device, folder)
        region = table.choose(dims)
    except store.NotServed as error:
        return Service(operator, None, reason=str(error))
    told = store.read_receipt(table.version)["targets"].get(table.target, {})
    shapes: list[dict[str, Any]] = told.get("shapes", [])
    shape = next((s for s in shapes if s["workload"] == region.workload), None)
    candidates: list[dict[str, Any]] = told.get("candidates", [])
    verified: dict[str, str] = next(
        (c["toolchain"] for c in candidates if c.get("genome") == region.kernel.name), {}
    )
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
