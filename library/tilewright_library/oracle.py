"""The reference that a version brings along: the operator's NumPy oracle, as it was when its kernel was promoted.

``reference.zip`` of a version is a package of the operator's modules, which import NumPy and ml_dtypes and nothing else
from outside. Its SHA-256 stands in the receipt; it is imported under a name of its own, from a folder that goes with
the process.
"""

import importlib.util
import io
import sys
import tempfile
import threading
import types
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import store
from .operands import Operands

FILE = "reference.zip"
PLACEHOLDER = "@@package@@"
"""In its modules, the name the package gets."""

Reference = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def numpy_reference(version: Path, operator: str, operands: Operands, dims: Sequence[int]) -> Reference:
    """A function of NumPy inputs by name to results in order, cast to the outputs' dtypes. Raises NotServed."""
    import numpy as np

    files = store.read_receipt(version)["files"]
    if FILE not in files:
        raise store.NotServed(f"{operator}: version {version.name} brings no reference")
    data = store.read_checked(version / FILE, files[FILE])
    module = _package(data, files[FILE])
    known, workload = module.operator(), module.workload(operands.named(dims))

    def call(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        found = known.oracle(workload, dict(inputs))
        by_name: dict[str, Any] = {}
        for reference in found.values():
            for name, value in reference.items():
                by_name.setdefault(name, value)
        results = []
        for operand in operands.outputs:
            value = np.asarray(by_name[operand.name])
            results.append(value.astype(_dtype(operand.dtype)).reshape(operand.sizes(operands.named(dims))))
        return tuple(results)

    return call


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
_LOCK = threading.Lock()


def _package(data: bytes, sha256: str) -> types.ModuleType:
    """The modules of a reference as a package, unpacked to a folder that lasts as long as the process."""
    name = f"{__package__}_reference_{sha256[:16]}".replace(".", "_")
    with _LOCK:
        if name in sys.modules:
            return sys.modules[name]
        folder = tempfile.TemporaryDirectory(prefix="reference-")
        root = Path(folder.name).resolve()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for path in archive.namelist():
                place = (root / path).resolve()
                if not place.is_relative_to(root):
                    raise store.UnsoundLibrary(f"{FILE} names a file outside of it")
                place.parent.mkdir(parents=True, exist_ok=True)
                text = archive.read(path).decode("utf-8")
                place.write_text(text.replace(PLACEHOLDER, name), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(
            name, root / "__init__.py", submodule_search_locations=[str(root)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _FOLDERS.append(folder)
        return module
