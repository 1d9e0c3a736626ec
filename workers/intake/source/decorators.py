"""Kernels under decorators of somebody's own: launchers that cache, tuners that keep tables."""

import ast
import re
import types
from collections.abc import Callable
from typing import Any

_TUNER = "tilewright_tuner"


def is_kernel(statement: ast.stmt) -> bool:
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    return any(re.search(r"\bjit\b", ast.unparse(decorator).split("(")[0]) for decorator in decorators)


def undecorated_kernel(node: ast.FunctionDef, why: str, module: types.ModuleType, define: Callable[[], str]) -> str:
    """Leave Triton's own decorators of a kernel alone, where another fails or launches it in its own way.

    A tuner of somebody's own becomes Triton's, with its configurations. ``why``: what the statement raised; ``define``
    runs it again, and says what it raises then.
    """
    from triton.runtime import autotuner, interpreter, jit

    found: Any = module.__dict__.get(node.name)
    while type(found) in (autotuner.Autotuner, autotuner.Heuristics):
        found = found.fn
    launched = why or isinstance(found, jit.KernelInterface)  # with a grid
    if not launched or type(found) in (interpreter.InterpretedFunction, jit.JITFunction):
        return why
    every = node.decorator_list
    node.decorator_list = [plain for d in every if (plain := _tritons(d, module)) is not None]
    module.__dict__[_TUNER] = autotuner.autotune
    if failed := define():
        node.decorator_list = every
        return why or failed
    return ""


def _tritons(decorator: ast.expr, module: types.ModuleType) -> ast.expr | None:
    """A decorator, if it is Triton's; Triton's tuner for one that is given configurations; None for any other."""
    import triton

    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = ast.unparse(called)
    own = module.__dict__.get(name) in (triton.autotune, triton.heuristics)
    if own or re.search(r"\bjit$", name) or name in ("triton.autotune", "triton.heuristics"):
        return decorator
    named = [k.value for k in getattr(decorator, "keywords", ()) if k.arg == "configs"]
    given = [*named, *getattr(decorator, "args", ())]
    configs = next((value for value in given if "onfig" in ast.unparse(value)), None)
    if configs is None:
        return None
    made = ast.Call(ast.Name(_TUNER, ast.Load()), [configs, ast.List([], ast.Load())], [])
    return ast.fix_missing_locations(ast.copy_location(made, decorator))
