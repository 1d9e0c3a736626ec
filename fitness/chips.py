"""Facts of the time model about each TPU generation, per TensorCore, with sources.

Peaks, HBM bandwidths and VMEM sizes: the public system pages docs.cloud.google.com/tpu/docs/{tpu7x,v6e,v5e} and the
per-core table of jax's ``pallas.tpu`` (``tpu_info.py``). A TPU7x chip has two cores that are two devices; its
figures here are one half of the chip's.
Clocks: v5e 1.5 GHz is published (jax-ml.github.io/scaling-book). Those of tpu7x and v6e are derived, public
peak / (matrix-unit rate that libtpu's simulator uses): at them a matrix unit that is busy all the time does the
public peak. They serve floors; what kernels run at is in ``fitness.tpu.time_model``.
``mxu_cycles``: cycles one matrix unit is held by one vmatmul, read off the simulator's critical paths.
``slots``: issue slots of one instruction bundle, from the header of libtpu's utilisation dump.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HBM_EFFICIENCY = 0.8
"""Fraction of the public bandwidth a kernel can use: XLA's own estimate of a 256 MiB copy is 0.75 to 0.81."""

LANES = 1024
"""Elements of one 8 x 128 float32 vector register: the work of one vector slot in one cycle."""


@dataclass(frozen=True)
class Chip:
    """One TensorCore. ``clock`` in Hz, ``hbm`` in bytes/s, ``peaks`` in FLOP/s, ``vmem_bytes`` in bytes.

    ``mxu_rows``: rows of the left operand that one vmatmul multiplies with a ``mxu_size`` square, by type.
    """

    name: str
    device_kind: str
    cores: int
    topology: str
    clock: float
    hbm: float
    vmem_bytes: int
    peaks: Mapping[str, float]
    mxus: int
    mxu_size: int
    mxu_cycles: Mapping[str, int]
    mxu_rows: Mapping[str, int]
    slots: Mapping[str, int]
    interpreted: bool = False
    """Whether this machine's CPU stands in for the chip, in tests of the measuring path."""

    @property
    def copy(self) -> float:
        """Bytes/s that a kernel can move between HBM and the core."""
        return HBM_EFFICIENCY * self.hbm

    def peak(self, kind: str) -> float:
        """FLOP/s for operands of ``kind`` (``bf16``, ``f8``); the bf16 peak for any other."""
        return self.peaks.get(kind, self.peaks["bf16"])


_ROWS = {"bf16": 16, "f8": 32, "s8": 32, "f32": 8}
_SLOTS = {"valu": 4, "vload": 3, "vstore": 2, "xlu": 2, "eup": 1, "vpop": 2, "salu": 2}

CHIPS: Mapping[str, Chip] = {
    "tpu7x": Chip(
        name="tpu7x",
        device_kind="TPU7x",
        cores=1,
        topology="tpu7x:1x1x1",
        clock=2.2e9,
        hbm=3.69e12,
        vmem_bytes=64 << 20,
        peaks={"bf16": 1153.5e12, "f8": 2307e12},
        mxus=2,
        mxu_size=256,
        mxu_cycles={"bf16": 8, "f8": 8, "f32": 8},
        mxu_rows=_ROWS,
        slots=_SLOTS,
    ),
    "v6e": Chip(
        name="v6e",
        device_kind="TPU v6 lite",
        cores=1,
        topology="v6e:1x1",
        clock=1.75e9,
        hbm=1.638e12,
        vmem_bytes=128 << 20,
        peaks={"bf16": 918e12, "f8": 918e12, "s8": 1836e12},
        mxus=2,
        mxu_size=256,
        mxu_cycles={"bf16": 8, "f8": 16, "s8": 8, "f32": 8},
        mxu_rows=_ROWS,
        slots=_SLOTS,
    ),
    "v5e": Chip(
        name="v5e",
        device_kind="TPU v5 lite",
        cores=1,
        topology="v5e:1x1",
        clock=1.5e9,
        hbm=0.819e12,
        vmem_bytes=128 << 20,
        peaks={"bf16": 197e12, "f8": 197e12, "s8": 393e12},
        mxus=4,
        mxu_size=128,
        mxu_cycles={"bf16": 16, "f8": 32, "s8": 16, "f32": 16},
        mxu_rows=_ROWS,
        slots={**_SLOTS, "vstore": 1, "xlu": 3},
    ),
}
