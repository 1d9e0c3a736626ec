"""A candidate's module with nothing around it: the builtins of the dialect, imports of the dialect, and no more.

The dialect has said before that the source names nothing else (``fitness.dialect``); should it have missed something,
the name is not there to be found.
"""

import builtins
import types
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.fitness.dialect_names import BUILTINS, MODULES


def bare_builtins() -> dict[str, Any]:
    """The allowed builtins by name, with an ``__import__`` of allowed modules."""
    kept = {name: getattr(builtins, name) for name in BUILTINS}
    return {**kept, "__import__": _import}


def execute(source: str, name: str, path: str) -> types.ModuleType:
    """Run a source as the module ``name``; ``path`` is where its text can be read again, or any name.

    Raises whatever it raises.
    """
    module = types.ModuleType(name)
    module.__file__ = path
    module.__dict__["__builtins__"] = bare_builtins()
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    return module


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> types.ModuleType:
    """The builtin of that name, for modules a kernel may import. Raises ImportError for others.

    Compiled code that is called from a kernel (PyImport_Import) comes here, too, with a list for ``fromlist``: its
    module is loaded, and it finds it by itself.
    """
    if not level and name in MODULES:
        return builtins.__import__(name, None, None, fromlist, 0)
    if not isinstance(fromlist, list):
        raise ImportError(f"a kernel may not import {name}")
    builtins.__import__(name, None, None, fromlist, 0)
    return types.ModuleType("withheld")
