"""Facts about each GPU a target may measure on, with sources.

``h200``: NVIDIA H200 SXM. Dense peaks and memory bandwidth from the vendor's datasheet (half of its "with sparsity"
figures); shared memory per block, L2 and multiprocessors from the CUDA programming guide's table for compute
capability 9.0 and the device's own properties. The peaks are upper bounds: a time below what they allow is refused.
``copy`` was measured (``experiments/records/h200_fp8/h200_fp8_quantise.json``, 8192 x 29568 bf16).
``interpreter``: Triton's interpreter on this machine's CPU. Its times say nothing about a kernel; it exists so that the
whole measuring path runs in tests, and its peaks are bounds no CPU reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """``product`` is the name its driver gives; ``hbm`` and ``copy`` (what a device copy reaches) in bytes/s,
    ``peaks`` in FLOP/s, ``capability`` 90 for 9.0.

    ``smem_bytes`` is what one program may use; ``flush_bytes`` is written between timed calls, over 2 x L2.
    """

    name: str
    product: str
    capability: int
    multiprocessors: int
    smem_bytes: int
    flush_bytes: int
    hbm: float
    copy: float
    peaks: Mapping[str, float]
    interpreted: bool = False

    def peak(self, kind: str) -> float:
        """FLOP/s for operands of ``kind`` (``bf16``, ``f8``); the bf16 peak for any other."""
        return self.peaks.get(kind, self.peaks["bf16"])


GPUS: Mapping[str, Gpu] = {
    "h200": Gpu(
        name="h200",
        product="NVIDIA H200",
        capability=90,
        multiprocessors=132,
        smem_bytes=232448,
        flush_bytes=256 << 20,
        hbm=4.8e12,
        copy=4.18e12,
        peaks={"bf16": 989.5e12, "f8": 1979e12, "s8": 1979e12},
    ),
    "interpreter": Gpu(
        name="interpreter",
        product="Triton's interpreter",
        capability=90,
        multiprocessors=1,
        smem_bytes=232448,
        flush_bytes=0,
        hbm=1e12,
        copy=1e12,
        peaks={"bf16": 1e14},
        interpreted=True,
    ),
}
