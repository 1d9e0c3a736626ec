"""Scores: TFLOP/s, geometric means, fractions of the roofline, and the floors an operator cannot pass."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.fitness.chips import LANES, Chip
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.gpus import Gpu
from tilewright.seeds.operator import LaneWork, Operator, TensorSpec, Workload

_OPTIONAL = ("vector_two_ops",)
"""Floors of one way to do the work, which another way beats."""


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers. Raises ValueError for none, or for one that is not positive."""
    logs = []
    for value in values:
        if not value > 0:
            raise ValueError(f"a geometric mean needs positive numbers, not {value}")
        logs.append(math.log(value))
    if not logs:
        raise ValueError("a geometric mean of nothing")
    return math.exp(sum(logs) / len(logs))


def tflops(flops: int, seconds: float) -> float:
    """1e12 floating-point operations per second."""
    return flops / seconds / 1e12


def gbytes(size: int, seconds: float) -> float:
    """1e9 bytes per second."""
    return size / seconds / 1e9


def bytes_rank(operator: Operator) -> bool:
    """Whether candidates are ranked by GB/s of compulsory traffic: the operator says ``memory_bound = True``."""
    return bool(getattr(operator, "memory_bound", False))


def rate_unit(operator: Operator) -> str:
    """The unit candidates of an operator are ranked in, on every target that gives times: GB/s or TFLOP/s."""
    return "GB/s" if bytes_rank(operator) else "TFLOP/s"


def rate(operator: Operator, workload: Workload, seconds: float) -> float:
    """What ``seconds`` for one call come to, in ``rate_unit``."""
    if bytes_rank(operator):
        return gbytes(operator.bytes(workload), seconds)
    return tflops(operator.flops(workload), seconds)


def matrix_kind(operator: Operator, specs: Sequence[TensorSpec]) -> str:
    """The matrix-unit rate that inputs like these deserve.

    What the operator says it multiplies in (``matrix_kind``: it quantises its inputs itself), else what they are.
    """
    return str(getattr(operator, "matrix_kind", "")) or operand_kind(specs)


def operand_kind(specs: Sequence[TensorSpec]) -> str:
    """The matrix-unit rate these operands deserve: ``f8`` if any is fp8, ``s8`` if any is int8, else ``bf16``."""
    names = {spec.dtype for spec in specs}
    if any(name.startswith("float8_e4m3") or name.startswith("float8_e5m2") for name in names):
        return "f8"
    return "s8" if "int8" in names else "bf16"


def roofline_seconds(flops: int, size: int, chip: Chip | Gpu, kind: str) -> float:
    """``max(flops / peak, bytes / HBM bandwidth)`` in seconds, at the public figures of one TensorCore or GPU."""
    return max(flops / chip.peak(kind), size / chip.hbm)


def product_flops(operator: Operator, workload: Workload) -> int:
    """FLOP that must be matrix products: 2 M N K of an operator with these dimensions, 0 of any other.

    Never more than the operator's own, nor than those of its ``products`` where it says them: a function that was
    taken in has dimensions of these names whatever it computes.
    """
    dims = workload.dims
    if not all(name in dims for name in "MNK"):
        return 0
    own = getattr(operator, "products", operator.flops)(workload)
    return min(own, 2 * dims["M"] * dims["N"] * dims["K"])


def floors(operator: Operator, workload: Workload, chip: Chip | Gpu) -> dict[str, float]:
    """Seconds no schedule of this operator can beat on one TensorCore or GPU, by unit.

    ``mxu`` (a GPU's matrix units, too): FLOP / peak of the operand type. ``hbm``: compulsory bytes / bandwidth.
    ``vector``, on a TensorCore, for recipes
    with a scale group g along K: M N K / g partial sums, each one fused multiply-add (``vector``) or two
    operations (``vector_two_ops``), over the vector slots x 1024 lanes x clock. ``vector`` and ``eup`` (the
    transcendental unit) also for operators that state their ``lane_work``.
    """
    kind = matrix_kind(operator, operator.inputs(workload))
    result = {"mxu": operator.flops(workload) / chip.peak(kind), "hbm": operator.bytes(workload) / chip.hbm}
    group = operator.constants.get("group")
    if isinstance(chip, Chip) and group and all(name in workload.dims for name in "MNK"):
        dims = workload.dims
        rate = chip.slots["valu"] * LANES * chip.clock
        result["vector"] = dims["M"] * dims["N"] * dims["K"] / group / rate
        result["vector_two_ops"] = 2 * result["vector"]
    if isinstance(chip, Chip) and isinstance(operator, LaneWork):
        for unit, elements in operator.lane_work(workload).items():
            name = "vector" if unit == "valu" else unit
            result[name] = elements / (chip.slots[unit] * LANES * chip.clock)
    return result


@dataclass(frozen=True)
class Headroom:
    """Seconds of one workload: the first seed's, the best's, and the least that its operator needs on its target."""

    workload: str
    before: float
    now: float
    floor: float

    @property
    def gain(self) -> float:
        """Rate of the best over that of the first seed."""
        return self.before / self.now

    @property
    def left(self) -> float:
        """What could still be gained at most, as a factor."""
        return max(1.0, self.now / self.floor)


def headroom(
    before: Iterable[WorkloadFigures], now: Iterable[WorkloadFigures], floors: Mapping[str, Mapping[str, float]]
) -> list[Headroom]:
    """For each workload that both ran and a floor is known for."""
    first = {figures.workload: figures.seconds for figures in before}
    found = []
    for figures in now:
        known = [s for unit, s in floors.get(figures.workload, {}).items() if unit not in _OPTIONAL and s > 0.0]
        if known and figures.workload in first:
            found.append(Headroom(figures.workload, first[figures.workload], figures.seconds, max(known)))
    return found
