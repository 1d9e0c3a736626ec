"""Needs of a measured target of a machine: a GPU, torch, Triton."""

import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path

from tilewright.fitness.architectures import Architecture
from tilewright.fitness.gpus import Gpu, local_name

CACHES = ("TRITON_CACHE_DIR",)
"""Variables that name a folder of compiled kernels: each child has its own, since what is in it is run unseen."""

_FOLDERS = "/proc/driver /proc/devices /proc/modules /sys/bus /sys/module /sys/class /sbin /dev/shm"
DRIVER_FOLDERS = tuple(map(Path, _FOLDERS.split()))
"""What the driver's library reads beside the system's own folders."""

_PARTS = ("torch", "triton")


@lru_cache(maxsize=1)
def toolchain() -> dict[str, str]:
    """Versions that decide a measured figure, as far as they can be read without a device."""
    found = {}
    for name in _PARTS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def device_files() -> tuple[Path, ...]:
    """The driver's device files; those of the GPUs themselves are ``/dev/nvidia0`` and so on."""
    return tuple(sorted(Path("/dev").glob("nvidia*")))


def gpu_count() -> int:
    """GPUs of this machine, by their device files, that ``CUDA_VISIBLE_DEVICES`` leaves in sight.

    As CUDA reads it: a list of numbers or names, of which what follows an empty or negative entry does not count.
    """
    present = sum(path.name.removeprefix("nvidia").isdigit() for path in device_files())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return present
    entries = [entry.strip() for entry in allowed.split(",")]
    visible = list(itertools.takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    return min(present, len(visible))


def missing_parts(gpu: Gpu | Architecture, *, remote: bool = False) -> str | None:
    """One sentence on what this machine lacks, without starting anything; None when all is there.

    ``remote``: candidates run on another machine, which must have the parts.
    """
    if remote:
        return None
    for name in _PARTS:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed; pip install 'tilewright[triton]'"
    if isinstance(gpu, Gpu) and not gpu.interpreted and gpu_count() == 0:
        return "this machine has no NVIDIA GPU in sight (no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides it)"
    return None


def environment(gpu: Gpu) -> dict[str, str]:
    """Environment of a child that runs Triton kernels."""
    interpreted = {"TRITON_INTERPRET": "1"} if gpu.interpreted else {}
    return {**compile_environment(), **interpreted}


def compile_environment() -> dict[str, str]:
    """Environment of a child that compiles Triton kernels; line numbers would make equal kernels differ."""
    return {"TRITON_DISABLE_LINE_INFO": "1", **launch_environment()}


def launch_environment() -> dict[str, str]:
    """Environment of a child that launches what is compiled."""
    names = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CC")
    return {"OMP_NUM_THREADS": "1", **{name: os.environ[name] for name in names if name in os.environ}}


_PROBE = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
def ask(name, *args):
    if getattr(cuda, name)(*args):
        raise SystemExit(name)
ask("cuInit", 0)
device, value, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
ask("cuDeviceGet", ctypes.byref(device), 0)
ask("cuDeviceGetName", text, 128, device)
found = {"product": text.value.decode()}
for name, number in (("major", 75), ("minor", 76), ("multiprocessors", 16), ("smem_bytes", 97), ("l2_bytes", 38)):
    ask("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    found[name] = value.value
print(json.dumps(found))
"""
"""Asks the driver alone, in a process of its own; the numbers are those of ``CUdevice_attribute``."""

PROBE_SECONDS = 30.0


@cache
def local_target() -> str | None:
    """The target that stands for this machine's first GPU (see ``fitness.gpus.local_name``); None without one."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, timeout=PROBE_SECONDS, check=True, text=True
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    capability = 10 * found["major"] + found["minor"]
    return local_name(found["product"], capability, found["multiprocessors"], found["smem_bytes"], found["l2_bytes"])
