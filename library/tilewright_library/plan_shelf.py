"""Launch plans kept with a library: in packs that a version's receipt vouches for, and in a user's own cache.

A pack is a zip file of a version, ``plans_<target>_<key>.zip``; its SHA-256 stands in the receipt. ``index.json`` in it
names, by kernel and shape, the head of a plan, the SHA-256 of its codes and the plan's digest; kernels of many shapes
share one code. A shape that no plan was made for takes the code of one that was, where its kernel's ``launch`` says how
(``cuda_record``). The cache is a folder (``TILEWRIGHT_CACHE``, else the user's cache folder): one file a plan, named
after what it was made from and after its digest. What is damaged, or is not what its name says, is not used.
"""

import hashlib
import io
import json
import os
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .cuda_record import COMPILATION
from .plans.format import Plan, PlanError
from .store import PACK, Kernel, UnsoundLibrary, digest, read_checked, read_receipt

FORMAT = 1
CACHE_VARIABLE = "TILEWRIGHT_CACHE"
_DIGEST_BYTES = 32


def shape_key(dims: Iterable[int]) -> str:
    """``4096x4096x128``."""
    return "x".join(map(str, dims))


def pack_name(target: str, toolchain: Mapping[str, str]) -> str:
    """The file of a version that holds the plans made by a toolchain."""
    return f"{PACK}{target}_{digest(repr(sorted(toolchain.items())).encode())[:8]}.zip"


def packed(
    plans: Mapping[tuple[str, tuple[int, ...]], Plan],
    toolchain: Mapping[str, str],
    verified: Mapping[str, Any] | None = None,
) -> bytes:
    """A pack of plans by (kernel, dims). The same plans give the same bytes. ``verified``: on what they were run."""
    index: dict[str, Any] = {
        "format": FORMAT,
        "toolchain": dict(toolchain),
        "verified": verified,
        "plans": {},
        "compiled": {},
    }
    parts: dict[str, bytes] = {}
    for (kernel, dims), plan in sorted(plans.items()):
        data = plan.to_bytes()
        size = len(data) - sum(map(len, plan.codes)) - _DIGEST_BYTES
        codes = [digest(code) for code in plan.codes]
        parts.update({f"codes/{name}": code for name, code in zip(codes, plan.codes, strict=True)})
        head = digest(data[:size])
        parts[f"heads/{head}"] = data[:size]
        shapes = index["plans"].setdefault(kernel, {})
        shapes[shape_key(dims)] = {"head": head, "codes": codes, "digest": plan.digest}
        if COMPILATION in plan.toolchain:
            index["compiled"].setdefault(plan.toolchain[COMPILATION], [kernel, shape_key(dims)])
    parts["index.json"] = json.dumps(index, sort_keys=True).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(parts.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


class Pack:
    """A pack whose bytes are known to be what was promoted. Raises UnsoundLibrary for one that is malformed."""

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            index = json.loads(self._archive.read("index.json"))
            self.plans: dict[str, dict[str, Any]] = index["plans"]
            self.toolchain: dict[str, str] = index["toolchain"]
            self.verified: dict[str, Any] | None = index["verified"]
            self._compiled: dict[str, list[str]] = index.get("compiled", {})
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise UnsoundLibrary(f"{name} is no pack of plans: {type(error).__name__}") from error
        self._lock = threading.Lock()

    def find(self, kernel: str, dims: tuple[int, ...]) -> Plan | None:
        """The plan of a kernel at a shape, None where there is none. Raises UnsoundLibrary."""
        entry = self.plans.get(kernel, {}).get(shape_key(dims))
        if entry is None:
            return None
        try:
            with self._lock:
                head = self._archive.read(f"heads/{entry['head']}")
                codes = [self._archive.read(f"codes/{name}") for name in entry["codes"]]
            body = head + b"".join(codes)
            plan = Plan.from_bytes(body + hashlib.sha256(body).digest())
        except (PlanError, KeyError, zipfile.BadZipFile, OSError, ValueError) as error:
            raise UnsoundLibrary(f"{self._name} holds a damaged plan: {error}") from error
        if plan.digest != entry["digest"]:
            raise UnsoundLibrary(f"{self._name} holds another plan than its index says")
        return plan

    def compiled(self, key: str) -> Plan | None:
        """A plan whose code was compiled from what the key stands for. Raises UnsoundLibrary."""
        if key not in self._compiled:
            return None
        kernel, shape = self._compiled[key]
        return self.find(kernel, tuple(map(int, shape.split("x"))))

    def everything(self) -> dict[tuple[str, tuple[int, ...]], Plan]:
        """All plans, as ``packed`` takes them. Raises UnsoundLibrary."""
        found = {}
        for kernel, shapes in self.plans.items():
            for key in shapes:
                dims = tuple(map(int, key.split("x")))
                plan = self.find(kernel, dims)
                assert plan is not None
                found[kernel, dims] = plan
        return found


def packs(version: Path, target: str) -> list[Pack]:
    """The packs of a version for a target. Raises UnsoundLibrary for one that is not what was promoted."""
    files = read_receipt(version)["files"]
    names = sorted(name for name in files if name.startswith(f"{PACK}{target}_"))
    return [Pack(read_checked(version / name, files[name]), f"{version.name}/{name}") for name in names]


# -- a user's cache ----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where plans are kept that were made on this machine."""
    base = os.environ.get(CACHE_VARIABLE) or os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilewright" / "plans"


def cache_key(kernel: Kernel, dims: tuple[int, ...], architecture: int, toolchain: Mapping[str, str]) -> str:
    """Identity of what a plan is made from."""
    identity = (kernel.sha256, sorted(kernel.params.items()), dims, architecture, sorted(toolchain.items()))
    return digest(repr(identity).encode())[:40]


def cached(key: str) -> Plan | None:
    """The plan under a key, None where there is none that is sound."""
    try:
        found = sorted(cache_folder().glob(f"{key}-*.plan"))
    except OSError:
        return None
    for path in found:
        try:
            plan = Plan.from_bytes(path.read_bytes())
        except (OSError, PlanError):
            continue
        if path.stem == f"{key}-{plan.digest[:40]}":
            return plan
    return None


def keep(key: str, plan: Plan) -> None:
    """Put a plan into the cache, whole or not at all; a folder that cannot be written is left alone."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(plan.to_bytes())
        os.replace(part, folder / f"{key}-{plan.digest[:40]}.plan")
    except OSError:
        return
