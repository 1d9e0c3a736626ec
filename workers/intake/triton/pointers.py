"""What a kernel does through each of its pointers: reads, writes, or both, by its syntax."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from tilewright.workers.intake.triton.dead_branches import constants_of, cut
from tilewright.workers.intake.triton.kernel_text import definition, is_jitted
from tilewright.workers.intake.triton.trace import Launch


def written_tensors(launches: Sequence[Launch]) -> dict[int, str]:
    """By the identity of a tensor: ``read``, ``written`` or ``both``."""
    found: dict[int, str] = {}
    for launch in launches:
        uses = pointer_uses(launch.kernel.fn, known=constants_of([launch.arguments]))
        for parameter, value in launch.arguments.items():
            value = value.base if isinstance(value, TensorWrapper) else value
            if isinstance(value, torch.Tensor):
                use = uses.get(parameter, "read")
                before = found.get(id(value))
                found[id(value)] = use if before in (None, use) else "both"
    return found


def pointer_uses(fn: Any, depth: int = 0, known: Mapping[str, Any] = {}) -> dict[str, str]:
    """By parameter of a kernel: what it does through that pointer. ``known``: parameters that are constant."""
    node = cut(definition(fn)[0], known, fn.__globals__)
    roots: dict[str, set[str]] = {a.arg: {a.arg} for a in node.args.args}
    statements = [
        n for n in ast.walk(node) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr)
    ]
    for _ in range(4):
        for statement in statements:
            if statement.value is None or _is_value(statement.value):
                continue
            used = _names(statement.value)
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for name in _names(target):
                    made = set().union(*(roots.get(u, set()) for u in used)) if used else set()
                    roots.setdefault(name, set()).update(made)
    reads: set[str] = set()
    writes: set[str] = set()
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        name = ast.unparse(call.func).rpartition(".")[2]
        if not call.args:
            continue
        through = (
            set().union(*(roots.get(n, set()) for n in _names(call.args[0])))
            if _names(call.args[0])
            else set()
        )
        if name == "load":
            reads |= _pointers(call.args[0], roots)
        elif name == "store":
            writes |= _pointers(call.args[0], roots)
        elif name.startswith("atomic_"):
            writes |= through
            reads |= through
        elif depth < 3:
            inner = fn.__globals__.get(ast.unparse(call.func))
            if inner is not None and is_jitted(inner):
                target = inner
                while hasattr(target, "fn"):
                    target = target.fn
                uses = pointer_uses(target, depth + 1)
                parameters = list(uses_order(target))
                given = {**dict(zip(parameters, call.args, strict=False)),
                         **{k.arg: k.value for k in call.keywords if k.arg}}  # fmt: skip
                for parameter, value in given.items():
                    roots_of = _pointers(value, roots)
                    use = uses.get(str(parameter), "")
                    if use in ("written", "both"):
                        writes |= roots_of
                    if use in ("read", "both"):
                        reads |= roots_of
    result = {}
    for name in (a.arg for a in node.args.args):
        if name in writes:
            result[name] = "both" if name in reads else "written"
        elif name in reads:
            result[name] = "read"
    return result


def uses_order(fn: Any) -> list[str]:
    return [a.arg for a in definition(fn)[0].args.args]


def _is_value(node: ast.expr) -> bool:
    """Whether an assigned expression is loaded or computed, and no address."""
    return any(
        isinstance(n, ast.Call)
        and ast.unparse(n.func).rpartition(".")[2] in ("load", "program_id", "dot", "sum", "max", "arange")
        for n in ([node] if isinstance(node, ast.Call) else [])
    )


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _pointers(node: ast.AST, roots: Mapping[str, set[str]]) -> set[str]:
    """Roots of the first name of an address: pointers come first in a sum, and offsets after them."""
    if isinstance(node, ast.BinOp):
        return _pointers(node.left, roots) or _pointers(node.right, roots)
    if isinstance(node, ast.Call):
        return _pointers(node.args[0], roots) if node.args else set()
    if isinstance(node, ast.Attribute | ast.Subscript):
        return _pointers(node.value, roots)
    if isinstance(node, ast.Name):
        return set(roots.get(node.id, set()))
    return set()
