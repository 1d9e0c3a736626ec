"""Confinement that a child puts on itself before it sees a candidate: limits, no network, no files but its own.

Everything here is one-way: nothing in the process can lift it again. Steps that the kernel does not offer are
skipped and named in the returned report, so that ``tilewright doctor`` can say what is enforced.
Sources: prctl(2), setrlimit(2), unshare(2), landlock(7).
"""

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1, 2, 4, 8
_IOCTL = 1 << 15
_FS_READ = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
_NET_ALL = 3  # bind and connect, TCP
_SCOPE_ALL = 3  # abstract unix sockets and signals to processes outside
_SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/sys/devices", "/sys/fs/cgroup", "/opt")
# of /proc only its own folder and the machine's description: another process's environment holds secrets
_SYSTEM_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/version")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when the parent dies; exit at once when it is dead already."""
    _libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def limit_resources(*, memory_bytes: int, cpu_seconds: int, file_bytes: int, open_files: int = 512) -> None:
    """Hard limits of address space, CPU time, file size and open files; no core dumps."""
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        _, ceiling = resource.getrlimit(kind)
        if ceiling != resource.RLIM_INFINITY:
            value = min(value, ceiling)
        resource.setrlimit(kind, (value, value))


def confine_child(
    root: Path,
    parent: int,
    limits: Mapping[str, int],
    *,
    readable: Sequence[str] = (),
    shared: Sequence[str] = (),
    devices: Sequence[str] = (),
) -> dict[str, bool]:
    """Take every step on this process, in the order in which each is still permitted; which of them were taken.

    ``root`` is the folder of tilewright's packages, ``limits`` the arguments of ``limit_resources``; the rest is as in
    ``restrict_files``, whose writable folder is the working directory.
    """
    die_with_parent(parent)
    give_up_privileges()
    network = drop_network()
    package = root / "tilewright"
    library = ["__init__.py", "plans", "torch_record.py", "cuda_record.py", "nvrtc.py"]
    parts = ("__init__.py", "workers", "fitness", "seeds", *(f"library/{name}" for name in library))
    files = restrict_files(
        Path.cwd(),
        (*(package / name for name in parts), *map(Path, readable)),
        # an import lists the folder of a package before it opens a file
        listed=(package, package / "library"),
        shared=tuple(map(Path, shared)),
        devices=tuple(map(Path, devices)),
    )
    limit_resources(**limits)
    return {"network": network, "files": files}


def give_up_privileges() -> None:
    """For good, and for all that this process starts; it is also the mark of a confined process."""
    _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_network() -> bool:
    """Move into an empty network namespace; False where the kernel does not permit it."""
    libc = _libc()
    return libc.unshare(CLONE_NEWNET) == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0


def restrict_files(
    writable: Path,
    readable: tuple[Path, ...],
    *,
    listed: tuple[Path, ...] = (),
    shared: tuple[Path, ...] = (),
    devices: tuple[Path, ...] = (),
) -> bool:
    """Landlock: write under ``writable`` and ``shared`` only, read there, in system folders and under ``readable``.

    The names of files under ``listed`` may be read, not the files; ``devices`` may be opened for reading, writing and
    control calls.

    Also forbids TCP, signals to processes outside and tracing them, where the kernel offers it.
    False where Landlock is missing.
    """
    libc = _libc()
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    handled = (1 << 13) - 1
    for needed, bit in ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15)):
        handled |= bit if version >= needed else 0
    attributes = struct.pack("QQQ", handled, _NET_ALL if version >= 4 else 0, _SCOPE_ALL if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    truncate = handled & (1 << 14)
    for folder in (writable, *shared):
        _allow(libc, ruleset, folder, handled & ~(1 << 15))
    for file in devices:
        _allow(libc, ruleset, file, handled & (_FS_READ_FILE | _FS_WRITE_FILE | truncate | _IOCTL))
    for device in _DEVICES:
        _allow(libc, ruleset, Path(device), _FS_READ_FILE | _FS_WRITE_FILE | truncate)
    prefixes = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix))
    for folder in (*map(Path, _SYSTEM_FOLDERS + _SYSTEM_FILES), *prefixes, *readable):
        _allow(libc, ruleset, folder, _FS_READ)
    for folder in listed:
        _allow(libc, ruleset, folder, _FS_READ_DIR)
    give_up_privileges()
    enforced = libc.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return enforced


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a folder this machine does not have
    if not path.is_dir():
        access &= _FS_EXECUTE | _FS_WRITE_FILE | _FS_READ_FILE | (1 << 14) | _IOCTL
    rule = struct.pack("=Qi", access, handle)
    libc.syscall(_LANDLOCK_ADD, ruleset, ctypes.c_int(1), rule, ctypes.c_uint32(0))
    os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
