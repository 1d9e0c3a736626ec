"""Reads promoted kernels: which one serves a shape on a device, or, in one sentence, why none does.

Standard library only. Layout of a package:

    kernels/<family>/<recipe>/index.json            which version is current, and every change of that
    kernels/<family>/<recipe>/versions/<id>/        receipt.json, dispatch.json, kernel sources, plans

<id> begins the SHA-256 of its receipt.json, and the receipt lists the SHA-256 of every other file. A file edited
by hand, cut short or lost therefore shows before anything of it is used.
"""

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import operands as operand_shapes
from .dispatch_rule import Legality, Unserved, complete_shares, nearest

FORMAT = 3
READS = (1, 2, 3)
"""Format 1 has no shares of the roofline, and dispatches by distance alone. Before format 3 the device code of a CUDA
C++ kernel is part of its Python file, and ``checks`` are in a generated test."""

ID_LENGTH = 16
KERNELS = Path(__file__).parent / "kernels"
INDEX, RECEIPT, DISPATCH = "index.json", "receipt.json", "dispatch.json"

PACK = "plans_"
"""Beginning of the names of files that hold launch plans (``plan_shelf``)."""

INTERPRET = "interpret"
"""The device key under which plain Triton and Pallas kernels run without their device, for tests."""


class NotServed(LookupError):
    """No promoted kernel for this shape, device or toolchain; the message is one sentence."""


class UnsoundLibrary(NotServed):
    """A file of the library is missing, cut short or edited; the message names it."""


@dataclass(frozen=True)
class Kernel:
    """One promoted kernel: its entry in a table, and the folder of its version."""

    name: str
    version: Path
    entry: Mapping[str, Any]
    language: str

    @property
    def path(self) -> Path:
        """Its Python file."""
        return self.version / self.entry["file"]

    @property
    def sha256(self) -> str:
        """SHA-256 of its Python file, which names its device code by hash."""
        return str(self.entry["sha256"])

    @property
    def params(self) -> Mapping[str, Any]:
        """The values of its parameters, by name."""
        found: Mapping[str, Any] = self.entry["params"]
        return found

    def source(self) -> str:
        """The source text, with its hash checked. Raises UnsoundLibrary."""
        return source(self.version, self.entry)


def kernel_files(entry: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 by file name of all files of a kernel, from its entry in a table."""
    return {entry["file"]: entry["sha256"], **entry.get("device_code", {})}


def source(version: Path, entry: Mapping[str, Any]) -> str:
    """A kernel's source text, hashes checked, with its device code inserted where it is named. Raises
    UnsoundLibrary."""
    text, *codes = (
        read_checked(version / name, sha256).decode("utf-8") for name, sha256 in kernel_files(entry).items()
    )
    for name, code in zip(entry.get("device_code", {}), codes, strict=True):
        text = text.replace(f'"{name}"', f'r"""{code}"""')
    return text


@dataclass(frozen=True)
class Region:
    """An entry of a dispatch table: a verified shape, and the kernel that serves it and shapes near it.

    ``dims``: element counts in the order of the table's dimensions. ``share``: share of the roofline that the kernel
    reached there; None if the table does not say.
    """

    workload: str
    dims: tuple[int, ...]
    kernel: Kernel
    legality: Legality
    share: float | None = None


@dataclass(frozen=True)
class Table:
    """The dispatch table of one operator on one target.

    ``reach``: factor by which a dimension may differ from a verified one. ``fault``: one clause on an installed package
    outside the verified versions, or None; with a fault, sources may not be compiled, but compiled plans may run.
    ``operands``: None in versions that do not describe them.
    """

    operator: str
    target: str
    dimensions: tuple[str, ...]
    constants: Mapping[str, float]
    reach: float
    regions: tuple[Region, ...]
    version: Path
    devices: tuple[str, ...] = ()
    fault: str | None = None
    operands: operand_shapes.Operands | None = None

    def choose(self, dims: tuple[int, ...]) -> Region:
        """The region that serves a shape by the dispatch rule (``dispatch_rule``). Raises NotServed."""
        entries = [(dict(zip(self.dimensions, r.dims, strict=True)), r.legality) for r in self.regions]
        shares = complete_shares([region.share for region in self.regions])
        try:
            number = nearest(entries, dict(zip(self.dimensions, dims, strict=True)), self.reach, shares)
        except Unserved as error:
            raise NotServed(f"{self.operator}: {error} on {self.target}") from error
        return self.regions[number]


# -- the chain of hashes -----------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def read_checked(path: Path, sha256: str) -> bytes:
    """The bytes of a file whose hash must be ``sha256``. Raises UnsoundLibrary."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnsoundLibrary(f"{_place(path)} cannot be read: {error.strerror}") from error
    if digest(data) != sha256:
        raise UnsoundLibrary(f"{_place(path)} is not what was promoted: its hash differs from the receipt's")
    return data


def read_index(folder: Path) -> dict[str, Any]:
    """index.json of one operator. Raises UnsoundLibrary."""
    index = _json(folder / INDEX)
    if index.get("format") not in READS:
        known = " and ".join(map(str, READS))
        raise UnsoundLibrary(f"{_place(folder / INDEX)} has format {index.get('format')}; this package reads {known}")
    return index


def read_receipt(version: Path) -> dict[str, Any]:
    """receipt.json of one version, whose hash must begin with the version's name. Raises UnsoundLibrary."""
    path = version / RECEIPT
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnsoundLibrary(f"{_place(path)} cannot be read: {error.strerror}") from error
    if digest(data)[:ID_LENGTH] != version.name:
        raise UnsoundLibrary(f"{_place(path)} is not what was promoted: its hash differs from its version")
    return json.loads(data)


def read_version(version: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(receipt, dispatch) of one version, hashes checked. Raises UnsoundLibrary."""
    receipt = read_receipt(version)
    if DISPATCH not in receipt["files"]:
        raise UnsoundLibrary(f"{_place(version / RECEIPT)} lists no {DISPATCH}")
    return receipt, json.loads(read_checked(version / DISPATCH, receipt["files"][DISPATCH]))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsoundLibrary(f"{_place(path)} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnsoundLibrary(f"{_place(path)} is cut short or not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnsoundLibrary(f"{_place(path)} holds no JSON object")
    return found


def _place(path: Path) -> str:
    return "/".join(path.parts[-5:])


# -- toolchains --------------------------------------------------------------------------------------


def version_numbers(text: str) -> tuple[int, ...]:
    """``3.6.0+git`` -> (3, 6, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def toolchain_fault(ranges: Mapping[str, tuple[str, str]]) -> str | None:
    """One clause on the first installed package outside its range [least, below); None if all are inside."""
    for name, (least, below) in ranges.items():
        found = _installed(name)
        if found is not None and not version_numbers(least) <= version_numbers(found) < version_numbers(below):
            return f"verified with {name} {least} up to below {below}, and {found} is installed"
    return None


@lru_cache(maxsize=64)
def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- tables ------------------------------------------------------------------------------------------


def operators(folder: Path = KERNELS) -> list[str]:
    """Names of the operators that have a promoted kernel."""
    return sorted("/".join(path.parent.parts[-2:]) for path in folder.glob(f"*/*/{INDEX}"))


def current_version(operator: str, folder: Path = KERNELS) -> Path:
    """The folder of an operator's current version. Raises NotServed."""
    place = folder / operator
    if not (place / INDEX).exists():
        raise NotServed(f"{operator}: no kernel has been promoted")
    current = read_index(place).get("current")
    if not current:
        raise NotServed(f"{operator}: its promotion was rolled back")
    if not set(str(current)) <= set("0123456789abcdef"):
        raise UnsoundLibrary(f"{_place(place / INDEX)} names no version: {str(current)[:40]!a}")
    return place / "versions" / str(current)


def current_dispatch(operator: str, folder: Path = KERNELS) -> dict[str, Any]:
    """dispatch.json of an operator's current version, hash checked. Raises NotServed."""
    return read_version(current_version(operator, folder))[1]


def load_table(operator: str, device: str, folder: Path = KERNELS) -> Table:
    """The current table of ``operator`` for a device key such as ``cuda:9.0``, ``tpu:TPU7x`` or ``interpret``.

    Raises NotServed.
    """
    return version_table(current_version(operator, folder), device)


def version_table(version: Path, device: str) -> Table:
    """As ``load_table``, of one version whether it is current or not. Raises NotServed."""
    receipt, dispatch = read_version(version)
    operator = dispatch["operator"]
    for target, entry in dispatch["targets"].items():
        if device != INTERPRET and device not in entry["serves"]:
            continue
        if device == INTERPRET and entry["language"] not in ("triton", "pallas"):
            continue
        found = table(operator, target, dispatch, version, check_toolchain=device != INTERPRET)
        compiled = any(name.startswith(f"{PACK}{target}_") for name in receipt["files"])
        if found.fault is not None and not compiled:
            raise NotServed(f"{operator}: {found.fault}")
        return found
    known = ", ".join(key for entry in dispatch["targets"].values() for key in entry["serves"])
    raise NotServed(f"{operator}: promoted for {known or 'no device'}, not for {device}")


def table(
    operator: str, target: str, dispatch: Mapping[str, Any], version: Path, *, check_toolchain: bool = False
) -> Table:
    """One target's part of a dispatch.json whose hash has been checked, for the version in that folder."""
    entry, dimensions = dispatch["targets"][target], dispatch["dimensions"]
    kernels = {name: Kernel(name, version, k, entry["language"]) for name, k in entry["kernels"].items()}
    legalities = {
        name: Legality(tuple(k["constraints"]), {**entry["constants"], **k["params"]}, k.get("expected"))
        for name, k in entry["kernels"].items()
    }
    regions = tuple(
        Region(
            region["workload"],
            tuple(region["dims"][name] for name in dimensions),
            kernels[region["kernel"]],
            legalities[region["kernel"]],
            region.get("share"),
        )
        for region in entry["regions"]
    )
    # what decides the code of CUDA C++ is no package of the range: NVRTC's version stands in the packs
    in_cuda = entry["language"] == "cuda" or all("device_code" in k for k in entry["kernels"].values())
    ranged = check_toolchain and not in_cuda
    fault = toolchain_fault(entry["toolchain"]) if ranged else None
    operands = dispatch.get("operands")
    return Table(
        operator,
        target,
        tuple(dimensions),
        entry["constants"],
        float(entry["reach"]),
        regions,
        version,
        devices=tuple(entry.get("devices", ())),
        fault=f"its kernels for {target} were {fault}" if fault else None,
        operands=operand_shapes.read(operands, dimensions) if operands else None,
    )
