"""A tile of a tensor of the host, as a kernel's text says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One axis of a tile: first element, and how many, as texts of the kernel."""

    start: str
    extent: str


@dataclass(frozen=True)
class Tile:
    """A two-dimensional tile of a tensor of the host: ``outer`` and ``inner`` (contiguous) axis.

    ``turned``: the kernel's value has the contiguous axis first.
    """

    tensor: str
    outer: Axis
    inner: Axis
    turned: bool

    limit: str = ""
    """What its rows stay below beside the tensor's side, as a text of the kernel."""

    sheets: tuple[str, ...] = ()
    """Of a tensor of three sides, whose sheets lie one under the other: what the host must find true of it."""

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of the value."""
        return (self.inner, self.outer) if self.turned else (self.outer, self.inner)
