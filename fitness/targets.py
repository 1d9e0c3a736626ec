"""Targets: the hardware that candidates are for, and whether a device times them, a model does, or nothing does."""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.fitness.architectures import ARCHITECTURES, Architecture
from tilewright.fitness.chips import CHIPS, Chip
from tilewright.fitness.evaluation import FigureKind, Reached
from tilewright.fitness.gpus import GPUS, LOCAL, Gpu, local_gpu, local_product

TPU = "tpu"
"""The measured target of whatever TPU this machine has; ``workers.toolchains.tpu`` finds out which of MEASURED_TPUS."""

MEASURED_TPUS: Mapping[str, str] = {"tpu-v5e": "v5e", "tpu-v6e": "v6e", "tpu-7x": "tpu7x"}
"""Measured targets by name, with the chip they run on."""


class UnknownTarget(LookupError):
    """No such target. The message is one sentence that lists what there is."""


@dataclass(frozen=True)
class Target:
    """A target: its ``name`` in YAML and journals, the ``kind`` of its figures, and its hardware, ``part``."""

    name: str
    kind: FigureKind
    part: Chip | Gpu | Architecture

    @property
    def measured(self) -> bool:
        """Whether a device runs the candidates."""
        return self.kind is FigureKind.MEASURED

    @property
    def compile_only(self) -> bool:
        """Whether candidates are compiled and checked, and nothing is timed."""
        return self.kind is FigureKind.COMPILED

    @property
    def hardware(self) -> Chip | Gpu:
        """The chip or GPU of a target that has times."""
        assert not isinstance(self.part, Architecture)
        return self.part

    @property
    def chip(self) -> Chip:
        """The TPU core of a modelled target."""
        assert isinstance(self.part, Chip)
        return self.part

    @property
    def gpu(self) -> Gpu:
        """The device of a measured target."""
        assert isinstance(self.part, Gpu)
        return self.part

    @property
    def architecture(self) -> Architecture:
        """The architecture of a target that only compiles."""
        assert isinstance(self.part, Architecture)
        return self.part

    @property
    def hopper(self) -> bool:
        """Whether a GPU multiplies by ``wgmma``, as compute capability 9.0 alone does."""
        number = self.part.capability if isinstance(self.part, Gpu) else getattr(self.part, "arch", None)
        return number == 90

    @property
    def interpreted(self) -> bool:
        """Whether a CPU stands in for the device, so that times mean nothing."""
        return not isinstance(self.part, Architecture) and self.part.interpreted

    @property
    def gpu_interpreter(self) -> bool:
        """Whether it is Triton's interpreter: it judges answers, and its figures are no fitness."""
        return isinstance(self.part, Gpu) and self.part.interpreted

    @property
    def reached(self) -> Reached:
        """The strongest check that a candidate passes here: on a device, as a traced program, or in an interpreter."""
        if self.compile_only or self.gpu_interpreter:
            return Reached.INTERPRETER
        return Reached.DEVICE if self.measured and not self.interpreted else Reached.TRACE

    @property
    def entry(self) -> str:
        """The function of a kernel module that the target's runner calls."""
        return "build" if isinstance(self.part, Chip) else "launch"

    @property
    def constants(self) -> Mapping[str, int]:
        """Sizes of the hardware by name, bytes or counts, which a kernel's constraints may use."""
        if isinstance(self.part, Chip):
            return {"vmem_bytes": self.part.vmem_bytes}
        return {"smem_bytes": self.part.smem_bytes, "multiprocessors": self.part.multiprocessors}

    @property
    def label(self) -> str:
        """How a number of this target is introduced: ``tpu7x (modelled)``."""
        return f"{target_text(self.name)} ({self.kind.value})"


def target_text(name: object) -> str:
    """A target's name as people read it: that of the device where it spells out what this machine's GPU has."""
    return local_product(str(name)) or str(name)


def targets() -> Mapping[str, Target]:
    """Every known target by name."""
    modelled = {name: Target(name, FigureKind.MODELLED, chip) for name, chip in CHIPS.items()}
    measured = {name: Target(name, FigureKind.MEASURED, gpu) for name, gpu in GPUS.items()}
    compiled = {name: Target(name, FigureKind.COMPILED, part) for name, part in ARCHITECTURES.items()}
    tpus = {name: Target(name, FigureKind.MEASURED, CHIPS[chip]) for name, chip in MEASURED_TPUS.items()}
    return {**modelled, **measured, **tpus, **compiled}


def load_target(name: str) -> Target:
    """The target of that name. Raises UnknownTarget."""
    known = targets()
    if (gpu := local_gpu(name)) is not None:
        return Target(name, FigureKind.MEASURED, gpu)
    if name not in known:
        listed = ", ".join([*known, TPU, LOCAL])
        raise UnknownTarget(f"target: {name!r} is unknown; known targets are {listed}")
    return known[name]
