"""Inheritance of parameter values by a child with another space."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.evolve.space.genome import Value
from tilewright.evolve.space.space import Space


def inherit(space: Space, params: Mapping[str, Value]) -> dict[str, Value]:
    """The parent's values where the child's space still has them; its defaults where that is not legal."""
    inherited = dict(space.defaults)
    for name, value in params.items():
        if value in space.parameters.get(name, ()):
            inherited[name] = value
    return inherited if space.legal(inherited) else dict(space.defaults)
