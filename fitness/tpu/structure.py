"""Rules on what a compiled module may contain, so that the simulator cannot be fooled by it.

The simulator counts an HLO loop's body once, assumes one outcome of a branch on data and a trip count of a loop it
cannot bound, and costs nothing for what is folded away. Modules with any of these have no trustworthy time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHAPES = "reshape transpose broadcast_in_dim slice pad concatenate convert constant custom_call"
SHAPE_OPERATIONS = frozenset(["func.return", *(f"stablehlo.{name}" for name in _SHAPES.split())])
"""What may stand beside the kernels: rearranging operands, no arithmetic."""

_NEVER_COSTED = frozenset(
    f"stablehlo.{name}" for name in ("while", "case", "if", "dot_general", "convolution", "scatter")
)
"""Loops, branches on data, what a kernel is written for, and writes to places that data name."""

ALONE = "as the original's around the kernels, "
"""Begins what stands among the work beside kernels that are timed alone: the digest of the module around them follows,
and no candidate may change that."""

MAX_CONSTANT_BYTES = 1 << 16
MAX_KERNELS = 8


@dataclass(frozen=True)
class ModuleFacts:
    """Facts the compile child read from one module (see ``workers.runners.mosaic.facts``)."""

    fingerprint: str
    operations: Mapping[str, int]
    foreign_calls: Sequence[str]
    constant_bytes: int
    unused_operands: Sequence[int]
    outputs_not_from_kernels: Sequence[int]
    kernels: Sequence[Mapping[str, Any]]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "ModuleFacts":
        """From a ``facts`` frame. Raises KeyError when a key is missing."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})

    @property
    def around(self) -> str:
        """Digest of the module around its kernels."""
        return self.fingerprint[:16]

    @property
    def matmul_flops(self) -> int | None:
        """FLOP of the kernels' matrix products, exactly; None when control flow could not be followed."""
        counts = [kernel["matmul_flops"] for kernel in self.kernels]
        return None if None in counts else sum(counts)

    @property
    def signature(self) -> frozenset[str]:
        """Kinds of operations in the kernels, whatever their sizes."""
        return frozenset(item for kernel in self.kernels for item in kernel["signature"])


def objection(
    facts: ModuleFacts, operand_names: Sequence[str], output_names: Sequence[str], beside: frozenset[str] = frozenset()
) -> str | None:
    """Why this module cannot be costed, in one line; None when it can.

    ``beside``: operations that may stand beside the kernels (``seeds.operator.BesideKernels``). Where there are any, an
    operand may be for them alone, and an output may be worked out further or by them.
    """
    return _objection_around(facts, operand_names, output_names, beside) or next(
        (reason for kernel in facts.kernels if (reason := _objection_within(kernel))), None
    )


def _objection_around(
    facts: ModuleFacts, operand_names: Sequence[str], output_names: Sequence[str], beside: frozenset[str]
) -> str | None:
    if not facts.kernels:
        return "no Pallas kernel is left in the compiled module"
    if len(facts.kernels) > MAX_KERNELS:
        return f"{len(facts.kernels)} Pallas kernels in one module, at most {MAX_KERNELS} are allowed"
    if facts.foreign_calls:
        return f"the module calls {', '.join(facts.foreign_calls)}"
    if timed_alone(beside):
        changed = "what XLA computes around the kernels is not what it was, and its time cannot be modelled"
        return None if ALONE + facts.around in beside else changed
    if "stablehlo.while" in facts.operations:
        return "an HLO loop around the kernel: the simulator would count its body once"
    others = sorted(set(facts.operations) - SHAPE_OPERATIONS - beside)
    if others:
        return f"work outside the Pallas kernel: {', '.join(others[:4])}"
    if facts.constant_bytes > MAX_CONSTANT_BYTES:
        return f"{facts.constant_bytes} bytes of constants in the module, at most {MAX_CONSTANT_BYTES} are allowed"
    if beside:
        return None
    if facts.unused_operands:
        return f"no kernel reads operand {operand_names[facts.unused_operands[0]]}"
    if facts.outputs_not_from_kernels:
        return f"output {output_names[facts.outputs_not_from_kernels[0]]} does not come from a kernel alone"
    return None


def work_beside(facts: ModuleFacts) -> frozenset[str]:
    """What a function's own module computes beside its kernels; where the time of that cannot be told, they are timed
    alone."""
    work = frozenset(facts.operations) - SHAPE_OPERATIONS
    return work | {ALONE + facts.around} if work & _NEVER_COSTED else work


def timed_alone(beside: frozenset[str]) -> bool:
    """Whether the time is that of the kernels alone."""
    return any(part.startswith(ALONE) for part in beside)


def missing_work(facts: ModuleFacts, flops: int) -> str | None:
    """Why the kernels cannot have computed ``flops`` of matrix products, in one line; None when they can."""
    done = facts.matmul_flops
    if done is None and (flops or any(item.startswith("tpu.matmul") for item in facts.signature)):
        return "the kernel's control flow cannot be followed, so its work cannot be counted"
    if done is not None and done < flops:
        return f"the kernel's products are {done / flops:.3f} of the operator's FLOP"
    return None


def _objection_within(kernel: Mapping[str, Any]) -> str | None:
    if min(kernel["grid"], default=1) < 0:
        return "the grid has a size that is not known before the run"
    if 0 in kernel["grid"]:
        return f"the grid {' x '.join(map(str, kernel['grid']))} is empty: the kernel never runs"
    if kernel["data_branches"]:
        return "a branch inside the kernel depends on data: the simulator would assume its outcome"
    if kernel["data_loops"] or kernel["while_loops"]:
        return "a loop inside the kernel has a trip count that is not known before the run"
    if kernel["loads_in_index_maps"]:
        return "a block's position depends on data: the simulator would assume it"
    if kernel["constant_bytes"] > MAX_CONSTANT_BYTES:
        return f"{kernel['constant_bytes']} bytes of constants in the kernel, at most {MAX_CONSTANT_BYTES} allowed"
    return None
