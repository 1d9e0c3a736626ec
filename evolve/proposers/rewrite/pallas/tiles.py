"""Rules on masked tiles: no work on those a mask hides altogether, no mask on those of which it hides nothing."""

from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    assigned_value,
    dedented,
    definitions,
    reads_of,
    small,
    substituted,
    target_names,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.masks import Mask, masks
from tilewright.evolve.proposers.rewrite.pallas.analysis.static import StaticNames
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall, pairs

_MAXIMA = ("jax.numpy.max", "jax.numpy.amax")
_POWERS = ("jax.numpy.exp", "jax.numpy.exp2", "jax.lax.exp", "jax.lax.exp2")


def expanded_text(kernel: KernelSource, text: str, block: cst.CSTNode) -> str | None:
    """``text`` in names that ``block`` (a function or a loop) does not bind; None where a name is bound oddly."""
    holder = block if isinstance(block, cst.FunctionDef) else kernel.enclosing(block, cst.FunctionDef)
    assert holder is not None
    inside = set(walk(block))
    bound = {n: [p for p in places if p in inside] for n, places in definitions(holder).items()}
    if isinstance(block, cst.For):
        for name, places in bound.items():
            bound[name] = [p for p in places if p is not block]
    for _ in range(12):
        names = [n for n in sorted(reads_of(text)) if bound.get(n)]
        if not names:
            return text
        for name in names:
            values = [v for n, v in pairs(bound[name][0]) if n == name] if len(bound[name]) == 1 else []
            if not values:
                return None
            text = substituted(text, name, kernel.code(values[0]))
    return None


class SkipMaskedTiles(CallRule[tuple[cst.For, str, bool]]):
    """Leave out the iterations of a softmax over tiles whose tile a mask hides altogether."""

    name = "pallas_skip_masked_tiles"
    why = (
        "A tile that no row sees adds nothing: its exponentials are zero and the running maximum stays. A causal mask "
        "hides half of all tiles."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[cst.For, str, bool]]]:
        kernel = view.kernel
        static = StaticNames(kernel, view.function)
        number = 0
        for loop in (n for n in walk(view.function) if isinstance(n, cst.For)):
            place = _skippable(view, static, loop)
            if place is not None:
                yield "skip tiles that the mask hides altogether", (loop, *place)
                number += 1

    def change(self, edit: Edit, view: PallasCall, payload: tuple[cst.For, str, bool]) -> None:
        kernel = view.kernel
        loop, empty, decided = payload
        if decided:
            edit.insert_before(loop.body.body[0], f"if {empty}:\n    continue")
            return
        numpy = edit.ensure_import("jax.numpy", "jnp")
        name = kernel.fresh("seen_tile")
        header = f"@{view.pallas}.when({numpy}.logical_not({empty}))\ndef {name}():\n    pass"

        def guarded(block: cst.IndentedBlock) -> cst.IndentedBlock:
            function = cst.parse_module(header).body[0]
            assert isinstance(function, cst.FunctionDef)
            return block.with_changes(body=[function.with_changes(body=cst.IndentedBlock(body=block.body))])

        edit.transform(loop.body, guarded)


def _skippable(view: PallasCall, static: StaticNames, loop: cst.For) -> tuple[str, bool] | None:
    """(text that says a tile is hidden, whether Python decides it) of a loop whose body is one softmax step."""
    kernel = view.kernel
    here = [
        m
        for m in masks(kernel, view.function, loop.body)
        if kernel.enclosing(m.node, cst.For) is loop
        and kernel.enclosing(m.node, cst.FunctionDef) is kernel.enclosing(loop, cst.FunctionDef)
    ]
    if len(here) != 1 or any(isinstance(n, cst.Continue | cst.Break | cst.Return) for n in walk(loop.body)):
        return None
    empty = expanded_text(kernel, here[0].empty, loop)
    target = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    if empty is None or not target & reads_of(empty) or not _softmax_step(view, loop, here[0]):
        return None
    decided = static(cst.parse_expression(empty))  # by Python, while it traces the kernel
    if not decided and _leaves_names(view, loop):
        return None
    return empty, decided


def _leaves_names(view: PallasCall, loop: cst.For) -> bool:
    """Whether names that a loop's body binds are read elsewhere, or carried from turn to turn."""
    kernel = view.kernel
    body = set(walk(loop.body))
    own = {n for n, places in definitions(view.function).items() if any(p in body for p in places)}
    if any(isinstance(n, cst.Name) and n.value in own and n not in body for n in walk(view.function)):
        return True
    bound: set[str] = set()
    for statement in loop.body.body:
        if reads_of(dedented(kernel, statement)) & own - bound:
            return True
        bound |= {n for n, places in definitions(view.function).items() if statement in places}
    return False


def _softmax_step(view: PallasCall, loop: cst.For, mask: Mask) -> bool:
    """Whether all that an iteration leaves behind comes from maxima and exponentials of masked scores.

    Masked scores are read by maxima, and by exponentials of a difference. What else is stored would miss the turn.
    """
    kernel = view.kernel
    hidden = kernel.code(mask.hidden)
    if hidden in ("0", "0.0"):
        return False
    scores = _target(kernel, kernel.statement(mask.node))
    if scores is None:
        return False
    later = list(loop.body.body)
    later = later[later.index(kernel.statement(mask.node)) + 1 :] if kernel.statement(mask.node) in later else []
    tainted: set[str] = set()
    bound = {n for s in loop.body.body if (found := assigned_value(s)) for n in found[0]}
    for statement in later:
        for node in walk(statement):
            if isinstance(node, cst.Name) and node.value == scores and not _is_consumed(kernel, node, statement):
                return False
        if {scores, *tainted} & reads_of(dedented(kernel, statement)):
            tainted |= {n for n, places in definitions(view.function).items() if statement in places}
            continue
        if _effect(statement, bound):
            return False
    first = list(loop.body.body)[: len(loop.body.body) - len(later)]
    return bool(later) and not any(_effect(s, bound) for s in first)


def _target(kernel: KernelSource, statement: cst.CSTNode) -> str | None:
    line = small(statement)
    if isinstance(line, cst.Assign) and len(line.targets) == 1 and isinstance(line.targets[0].target, cst.Name):
        return line.targets[0].target.value
    if isinstance(line, cst.AugAssign) and isinstance(line.target, cst.Name):
        return line.target.value
    return None


def _is_consumed(kernel: KernelSource, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
    """Whether scores are read within a maximum, an exponential, or for their shape."""
    current = node
    while current is not statement:
        current = kernel.parents[current]
        if isinstance(current, cst.Call) and kernel.qualified(current.func) in (*_MAXIMA, *_POWERS):
            return True
        if isinstance(current, cst.Attribute) and current.attr.value in ("shape", "dtype"):
            return True
        if (
            isinstance(current, cst.Call)
            and isinstance(current.func, cst.Attribute)
            and current.func.attr.value == "max"
        ):
            return True
    return False


def _effect(statement: cst.CSTNode, bound: set[str]) -> bool:
    """Whether a statement writes to a reference, or adds to a name that the iteration did not bind."""
    for node in walk(statement):
        if isinstance(node, cst.FunctionDef):
            return True
        if isinstance(node, cst.AugAssign) and not (set(target_names(node.target)) & bound):
            return True
        if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Subscript):
            return True
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            return True
    return False
