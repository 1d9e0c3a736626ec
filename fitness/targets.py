"""Targets: where a fitness comes from, and whether a device measured it or a model did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fitness.chips import CHIPS, Chip
from fitness.evaluation import FigureKind
from fitness.gpus import GPUS, Gpu


class UnknownTarget(LookupError):
    """No such target. The message is one sentence that lists what there is."""


@dataclass(frozen=True)
class Target:
    """``name`` in YAML and journals, ``kind`` of its figures, and the hardware they speak of."""

    name: str
    kind: FigureKind
    hardware: Chip | Gpu

    @property
    def measured(self) -> bool:
        """Whether a device runs the candidates."""
        return self.kind is FigureKind.MEASURED

    @property
    def chip(self) -> Chip:
        """The TPU core of a modelled target."""
        assert isinstance(self.hardware, Chip)
        return self.hardware

    @property
    def gpu(self) -> Gpu:
        """The device of a measured target."""
        assert isinstance(self.hardware, Gpu)
        return self.hardware

    @property
    def entry(self) -> str:
        """The function of a kernel module that the target's runner calls."""
        return "launch" if self.measured else "build"

    @property
    def constants(self) -> Mapping[str, int]:
        """Numbers that a kernel's constraints may name."""
        if self.measured:
            return {"smem_bytes": self.gpu.smem_bytes, "multiprocessors": self.gpu.multiprocessors}
        return {"vmem_bytes": self.chip.vmem_bytes}

    @property
    def label(self) -> str:
        """How a number of this target is introduced: ``tpu7x (modelled)``."""
        return f"{self.name} ({self.kind.value})"


def targets() -> Mapping[str, Target]:
    """Every known target by name."""
    modelled = {name: Target(name, FigureKind.MODELLED, chip) for name, chip in CHIPS.items()}
    measured = {name: Target(name, FigureKind.MEASURED, gpu) for name, gpu in GPUS.items()}
    return {**modelled, **measured}


def load_target(name: str) -> Target:
    """The target of that name. Raises UnknownTarget."""
    known = targets()
    if name not in known:
        raise UnknownTarget(f"target: {name!r} is unknown; known targets are {', '.join(known)}")
    return known[name]
