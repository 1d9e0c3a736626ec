"""Architectures that candidates are compiled for without a device: what a program may use there, with sources.

``gfx950`` (AMD Instinct MI350/MI355X): LLVM's AMDGPU backend guide and AMD's CDNA 4 ISA and white paper: 512 unified
32-bit vector registers per lane and SIMD, allocated in eights, at most 8 waves of 64 lanes on each of 4 SIMDs, 160 KiB
of LDS per compute unit.
``sm_90`` (H200), ``sm_100`` (B200): the CUDA programming guide's table of compute capabilities: 65536 32-bit
registers, 64 warps, 32 blocks and 228 KiB of shared memory per multiprocessor, 227 KiB per block, 1 KiB of it reserved;
registers are allocated to warps in units of 256.
Nothing here is a rate: what only compiles has no time.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """One compilation target. ``backend`` is ``hip`` or ``cuda``; ``arch`` is what Triton calls it there.

    ``multiprocessors`` of the ``product``; ``smem_bytes`` one program may use, ``smem_pool`` one multiprocessor has,
    ``smem_reserved`` the system takes of it per program; ``warps`` and ``blocks`` resident at most;
    ``registers`` 32-bit registers per SIMD and lane, shared by its warps, over ``simds`` SIMDs, in units of
    ``register_unit`` per lane.
    """

    name: str
    product: str
    backend: str
    arch: str | int
    lanes: int
    multiprocessors: int
    smem_bytes: int
    smem_pool: int
    smem_reserved: int
    warps: int
    blocks: int
    simds: int
    registers: int
    register_unit: int

    def resident_warps(self, warps: int, registers: int, shared: int) -> tuple[int, str]:
        """Resident warps of one multiprocessor under programs of so many warps, registers and bytes; what limits them.

        An upper bound: hardware may schedule fewer.
        """
        per_lane = -(-max(registers, 1) // self.register_unit) * self.register_unit
        bounds = {
            "warps": self.warps // warps,
            "blocks": self.blocks,
            "registers": self.registers // per_lane * self.simds // warps,
            "shared": self.smem_pool // max(shared + self.smem_reserved, 1),
        }
        limit = min(bounds, key=lambda name: bounds[name])
        return bounds[limit] * warps, limit


def _nvidia(name: str, product: str, units: int, capability: int) -> Architecture:
    return Architecture(name, product, "cuda", capability, 32, units, 232448, 233472, 1024, 64, 32, 4, 512, 8)


ARCHITECTURES: Mapping[str, Architecture] = {
    "gfx950": Architecture(
        "gfx950", "AMD Instinct MI355X", "hip", "gfx950", 64, 256, 160 << 10, 160 << 10, 0, 32, 32, 4, 512, 8
    ),
    "sm_90": _nvidia("sm_90", "NVIDIA H200", 132, 90),
    "sm_100": _nvidia("sm_100", "NVIDIA B200", 148, 100),
}
