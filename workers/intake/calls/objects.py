"""Objects among a call's arguments, by the names that Python has for them: classes, enums, dtypes, functions.

A call's text says ``package.module.Config(block=128)`` or ``object(package.module.Layer, weight=f32[64])``: the second
makes an object without its ``__init__`` and gives it these attributes.
"""

import dataclasses
import difflib
import enum
import functools
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MADE = "object"
"""The name, in a call's text, of what makes an object without its ``__init__``."""

MODULES: Mapping[str, str] = {
    "torch": "torch",
    "jnp": "jax.numpy",
    "jax": "jax",
    "np": "numpy",
    "tl": "triton.language",
    "triton": "triton",
    "functools": "functools",
    "types": "types",
}
"""Modules that a text names as everybody does."""

TAKEN = "tilewright_taken_"
"""What stands before the name of a user's file that is of no package, once it is loaded."""

_TRITON_DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8e4nv",
    "float8e5",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int1",
)


def object_named(path: str) -> Any:
    """What ``package.module.Name`` stands for. Raises LookupError."""
    parts = path.split(".")
    parts[0:1] = MODULES.get(parts[0], parts[0]).split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        found: Any = sys.modules.get(f"{TAKEN}{name}")
        try:
            found = found or importlib.import_module(name)
            for part in parts[cut:]:
                found = getattr(found, part)
        except (ImportError, AttributeError):
            continue
        return found
    for name, module in list(sys.modules.items()):
        if len(parts) == 1 and name.startswith(TAKEN) and hasattr(module, path):
            return getattr(module, path)
    raise LookupError(f"--args: {path!r} names nothing here: write package.module.Name")


def made_of(kind: type, /, **attributes: Any) -> Any:
    """An object of a class with these attributes; its ``__init__`` does not run."""
    made: Any = object.__new__(kind)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        old = vars(made).get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            old.update(value)
        else:
            object.__setattr__(made, name, value)
    return made


def scope_of(text: str) -> dict[str, Any]:
    """The names that a call's Python text may use beside its operands."""
    found = {n: importlib.import_module(m) for n, m in MODULES.items() if re.search(rf"\b{n}\.", text)}
    return {**found, "named": object_named, "made_of": made_of, "min": min}


def absent(file: str, name: str, module: Any) -> str:
    """That a file does not define a name, with the nearest that it does."""
    close = difflib.get_close_matches(name, dir(module), n=1)
    return f"{file} defines no {name}" + (f" (did you mean {close[0]}?)" if close else "")


def name_of(value: Any) -> str:
    """``package.module.Name`` of a class or function."""
    module = str(value.__module__)
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", "") or "__main__").stem
    return f"{module.removeprefix(TAKEN)}.{value.__qualname__}"


def parts_of(value: Any) -> tuple[str, list[tuple[str, Any]]] | None:
    """An object as the text of what is called, and what is given by keyword (by position, where the keyword is empty);
    None for a plain value."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return f"{name_of(kind)}.{value.name}", []
    if kind.__module__ == "numpy.dtypes" or (kind.__name__ == "dtype" and kind.__module__ == "numpy"):
        return "jnp.dtype", [("", str(value))]
    if kind.__name__ == "_ScalarMeta" or (isinstance(value, type) and value.__module__ == "numpy"):
        return f"jnp.{value.__name__}" if hasattr(value, "dtype") else f"np.{value.__name__}", []
    if kind.__module__ == "triton.language.core" and kind.__name__ == "dtype":
        tl = importlib.import_module("triton.language")
        return next((f"tl.{n}" for n in _TRITON_DTYPES if getattr(tl, n, None) == value), repr(value)), []
    if kind.__module__.startswith("triton.") and kind.__name__ == "Config":
        given = {**value.kwargs, "num_warps": value.num_warps, "num_stages": value.num_stages}
        options = [(key, part) for key, part in given.items() if key not in value.kwargs]
        return "triton.Config", [("", value.kwargs), *options]
    if isinstance(value, functools.partial):
        parts = [("", part) for part in (value.func, *value.args)]
        return "functools.partial", [*parts, *value.keywords.items()]
    if kind.__name__ == "Mesh" and kind.__module__.startswith("jax."):
        return "jax.make_mesh", [("", value.devices.shape), ("", value.axis_names)]
    if isinstance(value, types.SimpleNamespace):
        return "types.SimpleNamespace", list(vars(value).items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return name_of(kind), list(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if fields.keys() == inspect.signature(kind).parameters.keys():  # else ``__init__`` takes other things
            return name_of(kind), list(fields.items())
    if callable(value) and hasattr(value, "__qualname__") and "<" not in value.__qualname__:
        return name_of(value), []
    plain = kind.__module__ == "builtins" or kind.__name__ in ("dtype", "device")
    if plain or not hasattr(value, "__dict__"):
        return None
    return MADE, [("", kind), *_attributes(value)]


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    """What an object holds; of a layer, what a new one does not hold."""
    held = vars(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        plain = vars(torch.nn.Module())
        return [(n, v) for n, v in held.items() if n not in plain or v != plain[n]]
    return list(held.items())
