"""A library on disk: append-only versions under the hash of their receipt, one index an operator, atomic changes.

A version is written whole under a temporary name and renamed to its hash; then the index is replaced. A process
killed anywhere leaves either the old state, or the old state and a version nobody points to, which ``gc`` removes.
Writers of one package wait for each other at a lock on its folder.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.library import store

RUNTIME = "tilewright.library"
TEMPORARY = ".writing-"
MAKING = ("promote", "warm", "recheck", "layout", "restrict")
"""Actions in a history that make a version. ``layout``: the same kernels in other files; ``restrict``: a kernel's
limits were mended."""

LOCK_SECONDS = 60.0
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class LibraryError(UserError):
    """The library cannot be written, or what it holds is not what was promoted."""


@dataclass(frozen=True)
class Finding:
    """One line of a verification, and whether it is as it should be."""

    good: bool
    sentence: str


@dataclass(frozen=True)
class LibraryWriter:
    """One package in a library folder."""

    library: Path
    package: str = "tilewright_library"

    def __post_init__(self) -> None:
        if not self.package.isidentifier():
            raise UserError(f"--package: {self.package!r} is no Python name.")
        if self.library.exists() and not self.library.is_dir():
            raise UserError(f"--library: {self.library} is no folder.")

    @property
    def root(self) -> Path:
        return self.library / self.package

    @property
    def kernels(self) -> Path:
        return self.root / "kernels"

    def place(self, operator: str) -> Path:
        """The folder of one operator (``family/recipe``). Raises UserError for a name that is no such path."""
        parts = operator.split("/")
        if len(parts) != 2 or not all(_PART.fullmatch(part) for part in parts):
            raise UserError(f"operator {operator!r} must be family/recipe in letters, digits, '_', '-' and '.'.")
        return self.kernels / parts[0] / parts[1]

    def operators(self) -> list[str]:
        return store.operators(self.kernels)

    def named(self, operator: str | None = None) -> list[str]:
        """The operator, or all there are. Raises LibraryError where there are none."""
        names = self.operators()
        if not names:
            raise LibraryError(f"--library: nothing is promoted in {self.root}.")
        return names if operator is None else [operator]

    def environment(self, **more: str) -> dict[str, str]:
        """Of a program that sees the library alone, ahead of what else it would."""
        paths = filter(None, (str(self.library.absolute()), os.environ.get("PYTHONPATH")))
        own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**os.environ, **own, **more}

    # -- reading -------------------------------------------------------------------------------------

    def index(self, operator: str) -> dict[str, Any]:
        """Current version and history; empty for an operator that is not there. Raises LibraryError."""
        place = self.place(operator)
        if not (place / store.INDEX).exists():
            return {"format": store.FORMAT, "current": None, "history": []}
        return _read_sound(store.read_index, place)

    def version(self, operator: str, name: str | None = None) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """(id, receipt, dispatch) of a version by how its id begins; None: the current one. Raises LibraryError."""
        current = self.index(operator)["current"]
        if name is None and current is None:
            raise LibraryError(f"{operator}: nothing is promoted in {self.root}.")
        found = [v for v in self.versions(operator) if v.startswith(name or str(current))]
        if len(found) != 1:
            known = ", ".join(self.versions(operator)) or "none"
            raise LibraryError(f"{operator}: version {name or current} is not there (versions: {known}).")
        receipt, dispatch = _read_sound(store.read_version, self.place(operator) / "versions" / found[0])
        return found[0], receipt, dispatch

    def versions(self, operator: str) -> list[str]:
        """Every version on disk, by id."""
        folders = (self.place(operator) / "versions").glob("*")
        return sorted(f.name for f in folders if f.is_dir() and not f.name.startswith(TEMPORARY))

    def file(self, operator: str, version: str, name: str, sha256: str) -> bytes:
        """A file of a version, hash checked. Raises LibraryError."""
        path = self.place(operator) / "versions" / version / name
        return _read_sound(lambda p: store.read_checked(p, sha256), path)

    def source(self, operator: str, version: str, kernel: Mapping[str, Any]) -> str:
        """The text of a kernel that a version's table names, hashes checked. Raises LibraryError."""
        return _read_sound(lambda p: store.source(p, kernel), self.place(operator) / "versions" / version)

    def kernel_files(self, operator: str, version: str, kernel: Mapping[str, Any]) -> dict[str, bytes]:
        """The files of such a kernel, hashes checked. Raises LibraryError."""
        hashes = store.kernel_files(kernel)
        return {name: self.file(operator, version, name, sha256) for name, sha256 in hashes.items()}

    # -- writing -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the package's lock. Raises LibraryError when the folder cannot be written or stays locked."""
        try:
            self.kernels.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root, os.O_RDONLY)
        except OSError as error:
            raise LibraryError(f"--library: cannot write to {self.root}: {error.strerror}.") from error
        try:
            _lock(handle, self.root)
            yield
        except OSError as error:
            raise LibraryError(f"--library: cannot write to {self.root}: {error.strerror}.") from error
        finally:
            os.close(handle)

    def add(self, operator: str, files: Mapping[str, bytes], receipt: dict[str, Any], note: Mapping[str, Any]) -> str:
        """Write one version and make it current; its id. Call inside ``writing``."""
        receipt = {**receipt, "files": {name: store.digest(data) for name, data in sorted(files.items())}}
        text = (json.dumps(receipt, indent=1, sort_keys=True) + "\n").encode()
        version = store.digest(text)[: store.ID_LENGTH]
        versions = self.place(operator) / "versions"
        versions.mkdir(parents=True, exist_ok=True)
        if not (versions / version).exists():
            part = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=versions))
            try:
                part.chmod(0o755)
                for name, data in {**files, store.RECEIPT: text}.items():
                    _write(part / name, data)
                part.rename(versions / version)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        self.update_runtime()
        if version != self.index(operator)["current"]:
            self.point(operator, version, note)
        return version

    def point(self, operator: str, version: str | None, note: Mapping[str, Any]) -> None:
        """Make ``version`` current and append to the history. Call inside ``writing``."""
        index = self.index(operator)
        entry = {"version": version, "previous": index["current"], "at": _now(), **note}
        changed = {**index, "format": store.FORMAT, "current": version, "history": [*index["history"], entry]}
        data = (json.dumps(changed, indent=1, sort_keys=True) + "\n").encode()
        _replace(self.place(operator) / store.INDEX, data)

    def update_runtime(self) -> None:
        """Bring the package's own modules up to this tilewright's."""
        for name, data in runtime_files().items():
            path = self.root / name
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(exist_ok=True)
                _replace(path, data)

    def runtime_faults(self) -> list[str]:
        """Modules of the package that differ from this tilewright's, each in one sentence."""
        found = []
        for name, data in runtime_files().items():
            path = self.root / name
            if not path.exists() or path.read_bytes() != data:
                found.append(f"{self.package}/{name} differs from this tilewright's; a promote or gc restores it.")
        return found


def runtime_files() -> dict[str, bytes]:
    """The run time of a library, which promoted kernels are no part of: text by path within the package."""
    found = {}
    for prefix, package in (("", RUNTIME), ("plans/", f"{RUNTIME}.plans")):
        modules = (path for path in resources.files(package).iterdir() if path.name.endswith(".py"))
        found.update({prefix + path.name: path.read_bytes() for path in modules})
    return found


def _read_sound(read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except store.UnsoundLibrary as error:
        raise LibraryError(f"{error}.") from error


def _lock(handle: int, root: Path) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise LibraryError(
                    f"--library: {root} has been locked by another promotion for {LOCK_SECONDS:.0f} s."
                ) from error
            time.sleep(0.05)


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, data: bytes) -> None:
    """Atomic, and the same for whoever reads at the same time."""
    part = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        _write(part, data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
