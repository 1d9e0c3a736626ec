"""Needs of the measured TPU targets of a machine: a TPU on its PCI bus, jax and libtpu.

Nothing here starts libtpu: the chip is read off the bus, as jax itself does (``jax._src.hardware_utils``).
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tilewright.fitness.chips import CHIPS, Chip
from tilewright.fitness.targets import MEASURED_TPUS
from tilewright.workers.child.session import SessionConfig
from tilewright.workers.toolchains import libtpu_simulator

PCI = Path("/sys/bus/pci/devices")
VENDOR = "0x1ae0"
DEVICES: Mapping[str, str] = {"0x0063": "v5e", "0x006f": "v6e", "0x0076": "tpu7x"}
"""PCI device numbers of the chips that have a time model; others are told as unknown."""

RESOURCE = "TPU"
"""What Ray calls a chip."""

SYSTEM_FOLDERS = tuple(map(Path, ("/sys/bus", "/sys/class", "/sys/devices", "/sys/module", "/dev/vfio", "/proc")))

LOCK = Path("/tmp/libtpu_lockfile")

_PASSED = ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")
"""What Ray sets for a worker that holds some of a host's chips."""


def silence_libtpu() -> None:
    """Keep libtpu from writing errors to the terminal on a machine without a TPU, where JAX was not imported yet."""
    if "jax" not in sys.modules and chip_here() is None:
        os.environ.update({**libtpu_simulator.SILENT, **os.environ})


def chip_here(bus: Path = PCI) -> str | None:
    """Name of this machine's chip; None without one. Raises LookupError for a TPU without a time model."""
    for vendor in sorted(bus.glob("*/vendor")):
        if vendor.read_text().strip() != VENDOR:
            continue
        number = vendor.with_name("device").read_text().strip()
        if number not in DEVICES:
            raise LookupError(f"this machine's TPU (PCI device {number}) is none of {', '.join(CHIPS)}")
        return DEVICES[number]
    return None


def missing_parts(chip: Chip | None, *, remote: bool = False, bus: Path = PCI) -> str | None:
    """One sentence on what this machine lacks, without starting anything; None when all is there.

    ``chip``: which one is wanted; None for any. ``remote``: candidates are measured on another machine; they are
    still traced and checked here.
    """
    if (absent := libtpu_simulator.missing_parts()) is not None:
        return absent
    if remote:
        return None
    try:
        found = chip_here(bus)
    except LookupError as error:
        return str(error)
    if found is None:
        names = ", ".join(MEASURED_TPUS)
        return f"this machine has no TPU on its PCI bus; a campaign's file names one of a cluster: target: {names}"
    if chip is not None and found != chip.name:
        return f"this machine's TPU is a {found}"
    return None


def device_config(chip: Chip) -> SessionConfig:
    """How the child of a station is started."""
    interpreted = chip.interpreted
    environment = {"JAX_PLATFORMS": "cpu"} if interpreted else _device_environment(chip)
    return SessionConfig(
        runner="tpu.device",
        runner_config={"kind": chip.device_kind, "cores": chip.cores, "interpreted": interpreted},
        environment={"TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        shared=() if interpreted else (LOCK, Path("/proc/self")),
        readable=() if interpreted else SYSTEM_FOLDERS,
        devices=() if interpreted else tuple(sorted((*Path("/dev").glob("accel*"), *Path("/dev").glob("vfio/*")))),
    )


def _device_environment(chip: Chip) -> dict[str, str]:
    """One chip as a topology of its own, without the metadata server, which a confined child cannot reach."""
    own = {"TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1", "TPU_VISIBLE_CHIPS": "0"}
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {
        "JAX_PLATFORMS": "tpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": f"{chip.name}-1",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        **own,
        **passed,
    }
