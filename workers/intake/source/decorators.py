"""Kernels under decorators of somebody's own: launchers that cache, tuners that keep tables."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable
from typing import Any

_TUNER = "tilewright_tuner"


def is_kernel(statement: ast.stmt) -> bool:
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    return any(re.search(r"\bjit\b", ast.unparse(decorator).split("(")[0]) for decorator in decorators)


def unwrapped(node: ast.FunctionDef, why: str, module: types.ModuleType, define: Callable[[], str]) -> str:
    """Leave out decorators of a kernel, from the outermost on, that fail or launch it in their own way.

    ``define`` runs the statement; what it raises then.
    """
    from triton.runtime import autotuner, interpreter, jit

    kinds = (interpreter.InterpretedFunction, jit.JITFunction, autotuner.Autotuner, autotuner.Heuristics)
    every = node.decorator_list
    if not why and not isinstance(module.__dict__[node.name], jit.KernelInterface):
        return ""  # no kernel that is launched with a grid
    while why or not isinstance(module.__dict__.get(node.name), kinds):
        if len(node.decorator_list) < 2:
            node.decorator_list = every
            return why or define()
        first, *others = node.decorator_list
        node.decorator_list = [*_plain_tuner(first, module), *others]
        why = define()
    found: Any = module.__dict__[node.name]
    while isinstance(found, autotuner.Autotuner | autotuner.Heuristics):
        kind = type(found)
        if "run" in vars(kind) and kind not in kinds and isinstance(found, autotuner.Autotuner):
            kind.run = _first_configuration
        found = found.fn
    return ""


def _plain_tuner(decorator: ast.expr, module: types.ModuleType) -> list[ast.expr]:
    """Triton's own tuner for one that cannot be had and says its configurations; else nothing."""
    from triton.runtime import autotuner

    configs = [k for k in getattr(decorator, "keywords", ()) if k.arg == "configs"]
    if not configs or ast.unparse(decorator).startswith(_TUNER):
        return []
    module.__dict__[_TUNER] = autotuner.autotune
    made = ast.parse(f"{_TUNER}(key=[])", mode="eval").body
    assert isinstance(made, ast.Call)
    for part in ast.walk(made):
        ast.copy_location(part, decorator)
    made.keywords += configs
    return [made]


def _first_configuration(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """``run`` of a tuner of the user's own: as of Triton's, which takes one configuration while it is recorded."""
    from triton.runtime import autotuner

    return autotuner.Autotuner.run(tuner, *args, **kwargs)
