"""Reads promoted kernels: which one serves a shape on a device, or, in one sentence, why none does.

Standard library only. Layout of a package:

    kernels/<family>/<recipe>/index.json            which version is current, and every change of that
    kernels/<family>/<recipe>/versions/<id>/        receipt.json, dispatch.json, test_promoted.py, kernel sources

<id> begins the SHA-256 of its receipt.json, and the receipt lists the SHA-256 of every other file. A file edited
by hand, cut short or lost therefore shows before anything of it is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FORMAT = 1
ID_LENGTH = 16
KERNELS = Path(__file__).parent / "kernels"
INDEX, RECEIPT, DISPATCH, TEST = "index.json", "receipt.json", "dispatch.json", "test_promoted.py"

INTERPRET = "interpret"
"""The device key under which plain Triton and Pallas kernels run without their device, for tests."""

_FUNCTIONS = {"min": min, "max": max, "abs": abs, "cdiv": lambda a, b: -(-a // b)}


class NotServed(LookupError):
    """No promoted kernel for this shape, device or toolchain; the message is one sentence."""


class UnsoundLibrary(NotServed):
    """A file of the library is missing, cut short or edited; the message names it."""


class FallbackWarning(UserWarning):
    """The reference product is used instead of a promoted kernel."""


@dataclass(frozen=True)
class Kernel:
    """One promoted kernel: its source file, that file's SHA-256, and the values of its parameters."""

    name: str
    path: Path
    sha256: str
    params: Mapping[str, Any]
    language: str

    def source(self) -> str:
        """The text, once it is known to be what was promoted. Raises UnsoundLibrary."""
        return read_checked(self.path, self.sha256).decode("utf-8")


@dataclass(frozen=True)
class Region:
    """Shapes near ``dims`` (element counts in the order of the table's dimensions) go to ``kernel``."""

    workload: str
    dims: tuple[int, ...]
    kernel: Kernel
    rules: tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """What one operator offers on one target. ``reach``: factor by which a dimension may differ from a verified one."""

    operator: str
    target: str
    dimensions: tuple[str, ...]
    constants: Mapping[str, float]
    reach: float
    regions: tuple[Region, ...]

    def choose(self, dims: tuple[int, ...]) -> Region:
        """The legal region nearest in sum |log2(dim / verified dim)|, the earlier on a tie. Raises NotServed."""
        shape = ", ".join(f"{name} {size}" for name, size in zip(self.dimensions, dims, strict=True))
        if min(dims) <= 0:
            raise NotServed(f"{self.operator}: an empty product ({shape}) has no kernel")
        names = {**self.constants, **dict(zip(self.dimensions, dims, strict=True))}
        legal = [
            r for r in self.regions if all(_holds(rule, {**names, **r.kernel.params}) for rule in r.rules)
        ]
        if not legal:
            raise NotServed(f"{self.operator}: no promoted kernel for {self.target} takes {shape}")
        best = min(legal, key=lambda region: sum(_steps(region, dims)))
        if max(_steps(best, dims)) > math.log2(self.reach) + 1e-9:
            raise NotServed(
                f"{self.operator}: {shape} is more than {self.reach:g} times away from every shape verified on "
                f"{self.target}, the nearest being {best.workload}"
            )
        return best


def _steps(region: Region, dims: tuple[int, ...]) -> list[float]:
    return [abs(math.log2(size / known)) for size, known in zip(dims, region.dims, strict=True)]


def _holds(rule: Any, names: Mapping[str, Any]) -> bool:
    try:
        return bool(eval(rule, {"__builtins__": {}, **_FUNCTIONS}, dict(names)))
    except ZeroDivisionError:
        return False


# -- the chain of hashes -----------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def read_checked(path: Path, sha256: str) -> bytes:
    """A file that is what its receipt says. Raises UnsoundLibrary."""
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
    if index.get("format") != FORMAT:
        raise UnsoundLibrary(
            f"{_place(folder / INDEX)} has format {index.get('format')}; this package reads {FORMAT}"
        )
    return index


def read_receipt(version: Path) -> dict[str, Any]:
    """receipt.json of one version, held against the version's name. Raises UnsoundLibrary."""
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
    """One clause on the first installed package outside [from, below); None when all are inside."""
    for name, (least, below) in ranges.items():
        found = _installed(name)
        if found is not None and not version_numbers(least) <= version_numbers(found) < version_numbers(
            below
        ):
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


def load_table(operator: str, device: str, folder: Path = KERNELS) -> Table:
    """The current table of ``operator`` for a device key such as ``cuda:9.0``, ``tpu:TPU7x`` or ``interpret``.

    Raises NotServed.
    """
    place = folder / operator
    if not (place / INDEX).exists():
        raise NotServed(f"{operator}: no kernel has been promoted")
    current = read_index(place).get("current")
    if not current:
        raise NotServed(f"{operator}: its promotion was rolled back")
    if not set(str(current)) <= set("0123456789abcdef"):
        raise UnsoundLibrary(f"{_place(place / INDEX)} names no version: {str(current)[:40]!a}")
    return version_table(place / "versions" / str(current), device)


def version_table(version: Path, device: str) -> Table:
    """As ``load_table``, of one version whether it is current or not. Raises NotServed."""
    _, dispatch = read_version(version)
    operator = dispatch["operator"]
    for target, entry in dispatch["targets"].items():
        if device != INTERPRET and device not in entry["serves"]:
            continue
        if device == INTERPRET and entry["language"] not in ("triton", "pallas"):
            continue
        fault = toolchain_fault(entry["toolchain"]) if device != INTERPRET else None
        if fault is not None:
            raise NotServed(f"{operator}: its kernels for {target} were {fault}")
        return table(operator, target, dispatch["dimensions"], entry, version)
    known = ", ".join(key for entry in dispatch["targets"].values() for key in entry["serves"])
    raise NotServed(f"{operator}: promoted for {known or 'no device'}, not for {device}")


def table(
    operator: str, target: str, dimensions: list[str], entry: Mapping[str, Any], version: Path
) -> Table:
    """One target's part of a dispatch.json whose hash has been checked, for the version in that folder."""
    kernels = {
        name: Kernel(name, version / k["file"], k["sha256"], k["params"], entry["language"])
        for name, k in entry["kernels"].items()
    }
    rules = {
        name: tuple(compile(text, "constraint", "eval") for text in k["constraints"])
        for name, k in entry["kernels"].items()
    }
    regions = tuple(
        Region(
            region["workload"],
            tuple(region["dims"][name] for name in dimensions),
            kernels[region["kernel"]],
            rules[region["kernel"]],
        )
        for region in entry["regions"]
    )
    return Table(operator, target, tuple(dimensions), entry["constants"], float(entry["reach"]), regions)


def served(operator: str, device: str, dims: tuple[int, ...], folder: Path = KERNELS) -> str:
    """One line on what serves ``dims`` (in the operator's order) on ``device``, or on why nothing does."""
    try:
        region = load_table(operator, device, folder).choose(dims)
    except NotServed as error:
        return f"reference product: {error}"
    return f"kernel {region.kernel.name}, verified at {region.workload}"


class Dispatcher:
    """Shape to callable, remembered: a call costs one look into a dict after the first of its shape."""

    def __init__(self, folder: Path = KERNELS) -> None:
        self._folder = folder
        self._warned: set[str] = set()
        self._tables: dict[tuple[str, str], Table] = {}

    def resolve(
        self,
        operator: str,
        device: str,
        dims: tuple[int, ...],
        launcher: Callable[[Kernel], Callable[..., Any]],
        reference: Callable[..., Any],
    ) -> Callable[..., Any]:
        """The launcher of the kernel for this shape; ``reference``, with one warning, where there is none."""
        try:
            key = (operator, device)
            if key not in self._tables:
                self._tables[key] = load_table(operator, device, self._folder)
            return launcher(self._tables[key].choose(dims).kernel)
        except NotServed as error:
            self.warn(operator, str(error))
            return reference

    def warn(self, topic: str, reason: str) -> None:
        """Say once for each topic why a fallback is used."""
        if topic in self._warned:
            return
        self._warned.add(topic)
        message = f"{reason}; the reference product is used, which is correct and slower"
        warnings.warn(message, FallbackWarning, stacklevel=4)
