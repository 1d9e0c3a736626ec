"""Targets: where a fitness comes from, and whether a device measured it or a model did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fitness.chips import CHIPS, Chip
from fitness.evaluation import FigureKind


class UnknownTarget(LookupError):
    """No such target. The message is one sentence that lists what there is."""


@dataclass(frozen=True)
class Target:
    """``name`` in YAML and journals, ``kind`` of its figures, and what its runner needs."""

    name: str
    kind: FigureKind
    chip: Chip

    @property
    def constants(self) -> Mapping[str, int]:
        """Numbers that a kernel's constraints may name."""
        return {"vmem_bytes": self.chip.vmem_bytes}

    @property
    def label(self) -> str:
        """How a number of this target is introduced: ``tpu7x (modelled)``."""
        return f"{self.name} ({self.kind.value})"


def targets() -> Mapping[str, Target]:
    """Every known target by name."""
    return {name: Target(name, FigureKind.MODELLED, chip) for name, chip in CHIPS.items()}


def load_target(name: str) -> Target:
    """The target of that name. Raises UnknownTarget."""
    known = targets()
    if name not in known:
        raise UnknownTarget(f"target: {name!r} is unknown; known targets are {', '.join(known)}")
    return known[name]
