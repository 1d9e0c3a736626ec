"""Facts about each GPU a target may measure on, with sources.

``h200``: NVIDIA H200 SXM. Dense peaks and memory bandwidth from the vendor's datasheet (half of its "with sparsity"
figures); shared memory per block, L2 and multiprocessors from the CUDA programming guide's table for compute
capability 9.0 and the device's own properties. The peaks are upper bounds: a time below what they allow is refused.
``copy`` was measured (``experiments/records/h200_fp8/h200_fp8_quantise.json``, 8192 x 29568 bf16).
``h100``: NVIDIA H100 SXM, the same multiprocessors with less memory bandwidth; ``copy`` is the share an H200 reaches.
Other devices are described by their own properties (``local_gpu``); those in ``RATES`` have peaks, from their vendor's
datasheets, and the others have none: bounds no device reaches stand in for them.
``interpreter``: Triton's interpreter on this machine's CPU. Its times say nothing about a kernel; it exists so that the
whole measuring path runs in tests, and its peaks are bounds no CPU reaches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


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


LOCAL = "cuda"
"""The measured target of whatever NVIDIA GPU this machine has."""

UNKNOWN_RATE = 1e18
"""Stands for a peak that nobody knows: no time is refused for being below what it allows."""

COPY_SHARE = 0.87
"""Part of its bandwidth that a GPU's copy reaches: what was measured on an H200."""

RATES: Mapping[str, tuple[float, Mapping[str, float]]] = {
    "H200": (4.8e12, {"bf16": 989.5e12, "f8": 1979e12, "s8": 1979e12}),
    "H100 PCIe": (2.0e12, {"bf16": 756e12, "f8": 1513e12, "s8": 1513e12}),
    "H100 NVL": (3.9e12, {"bf16": 835e12, "f8": 1671e12, "s8": 1671e12}),
    "H100": (3.35e12, {"bf16": 989.5e12, "f8": 1979e12, "s8": 1979e12}),
    "B200": (8.0e12, {"bf16": 2250e12, "f8": 4500e12, "s8": 4500e12}),
    "A100-SXM4-80GB": (2.039e12, {"bf16": 312e12, "s8": 624e12}),
    "A100 80GB PCIe": (1.935e12, {"bf16": 312e12, "s8": 624e12}),
    "A100": (1.555e12, {"bf16": 312e12, "s8": 624e12}),
    "L40S": (8.64e11, {"bf16": 362e12, "f8": 733e12, "s8": 733e12}),
    "L4": (3.0e11, {"bf16": 121e12, "f8": 242e12, "s8": 242e12}),
    "A10": (6.0e11, {"bf16": 125e12, "s8": 250e12}),
    "RTX 4090": (1.008e12, {"bf16": 330e12, "f8": 661e12, "s8": 661e12}),
    "RTX 3090": (9.36e11, {"bf16": 142e12, "s8": 284e12}),
}
"""Part of a product's name to memory bandwidth (bytes/s) and dense peaks (FLOP/s); the first that fits."""


def _gpu(name: str, product: str, capability: int, multiprocessors: int, smem_bytes: int, flush_bytes: int) -> Gpu:
    """A GPU with the rates of its product."""
    plain = product.replace("-", " ")
    rates = next((found for key, found in RATES.items() if key.replace("-", " ") in plain), None)
    hbm, peaks = rates or (UNKNOWN_RATE, {"bf16": UNKNOWN_RATE})
    return Gpu(name, product, capability, multiprocessors, smem_bytes, flush_bytes, hbm, COPY_SHARE * hbm, peaks)


GPUS: Mapping[str, Gpu] = {
    "h200": replace(_gpu("h200", "NVIDIA H200", 90, 132, 232448, 256 << 20), copy=4.18e12),
    "h100": _gpu("h100", "NVIDIA H100 80GB HBM3", 90, 132, 232448, 256 << 20),
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


def local_name(product: str, capability: int, multiprocessors: int, smem_bytes: int, l2_bytes: int) -> str:
    """The target that stands for such a device: a name that says all that ``local_gpu`` needs."""
    plain = "".join(c if c.isalnum() else "_" for c in product).strip("_")
    return f"{LOCAL}-{plain}-{capability}-{multiprocessors}-{smem_bytes}-{l2_bytes}"


def local_product(name: str) -> str:
    """The product's name in one of ``local_name``; empty for another name."""
    head, _, rest = name.partition("-")
    parts = rest.rsplit("-", 4)
    local = head == LOCAL and len(parts) == 5 and all(part.isdigit() for part in parts[1:])
    return parts[0].replace("_", " ") if local else ""


def local_gpu(name: str) -> Gpu | None:
    """The device that a name of ``local_name`` speaks of; None for another name."""
    product = local_product(name)
    if not product:
        return None
    capability, multiprocessors, smem_bytes, l2_bytes = map(int, name.rsplit("-", 4)[1:])
    found = _gpu(name, product, capability, multiprocessors, smem_bytes, max(4 * l2_bytes, 64 << 20))
    return replace(found, product="")  # the station looks for the product in the device's name
