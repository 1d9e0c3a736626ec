"""The results of a recorded call: tensors that it returns, and arguments that its kernels write."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.triton.autograd_pair import GRADIENT
from tilewright.workers.intake.triton.dead_branches import constants_of, cut
from tilewright.workers.intake.triton.kernel_module import ResultTypes
from tilewright.workers.intake.triton.kernel_text import definition, is_jitted, kernel_function
from tilewright.workers.intake.triton.trace import Launch, Trace, Var, Work


@dataclass
class Results:
    """``chosen``: what ``launch`` returns. ``replaced``: arguments that are written, as "fresh", or as "copied" where
    they are read as well; "apart" where the kernel takes what it reads and what it writes as two arguments."""

    chosen: list[Var]
    replaced: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)


def results_of(trace: Trace, types: ResultTypes, keeps_arguments: bool = False) -> Results:
    """The results of a call that launches kernels. Raises Refusal where none has a type of the reference's.

    ``keeps_arguments``: an argument keeps its values where no kernel writes.
    """
    candidates: list[tuple[Var, torch.Tensor]] = []
    for result in trace.results:
        var = trace.find(result)
        if var is not None and all(var is not other for other, _ in candidates):
            candidates.append((var, result))
    uses = root_uses(trace, trace.steps)
    replaced: dict[str, str] = {}
    for var in trace.inputs.values():
        use = uses.get(id(var), "read")
        if use != "read":
            replaced[var.name] = "fresh" if use == "written" and not keeps_arguments else "copied"
            if var.name.startswith(GRADIENT) and _apart(trace, var):
                replaced[var.name] = "apart"
            if all(var is not other for other, _ in candidates):
                candidates.append((var, var.tensor))
    candidates = [(v, t) for v, t in candidates if root_of(v).kind != "input" or root_of(v).name in replaced]
    found = Results([v for v, _ in candidates], replaced)
    if trace.split is not None:
        found.chosen = _of_pair(trace, candidates, types)
    elif types is not None:
        found.chosen, left = _of_types(candidates, types)
        found.chosen += [var for var in left if not var.is_foreign]  # the original kernel judges them
        found.left_out += [f"line {v.line}: torch's {v.foreign} is not returned" for v in left if v.is_foreign]
    if not found.chosen:
        kind = type(trace.returned).__name__
        what = "no tensor" if trace.returned is None else f"no tensor but a {kind}"
        raise Refusal(f"the call returns {what}, and its kernels write to none of its arguments")
    found.left_out += _unread(trace, found.chosen)
    for var in found.chosen:
        if var.is_foreign:
            found.refusals.append((var.line, f"torch computes {var.foreign} after the kernel"))
    return found


def _of_pair(trace: Trace, candidates: Sequence[tuple[Var, torch.Tensor]], types: ResultTypes) -> list[Var]:
    """Outputs and gradients in their order. Raises Refusal where they are not the reference's."""
    chosen = [var for var, _ in candidates[: len(trace.results)]]
    fitting = [trace.find(tensor) is var for tensor, var in zip(trace.results, chosen, strict=False)]
    if len(chosen) < len(trace.results) or not all(fitting):
        raise Refusal("an output or a gradient is made by no kernel, or is returned twice")
    shapes = [tuple(t.shape) for t in trace.results]
    if types is not None and shapes != [shape for shape, _ in types]:
        raise Refusal(f"outputs and gradients are of shapes {shapes}, the reference's of {[s for s, _ in types]}")
    return chosen


def forward_results(trace: Trace, chosen: Sequence[Var]) -> list[int]:
    """Numbers of the results that the forward of a pair returns."""
    returned = trace.returned if isinstance(trace.returned, tuple) else (trace.returned,)
    given = [trace.find(tensor) for tensor in returned]
    return [n for n, var in enumerate(chosen) if any(var is known for known in given)]


def _of_types(
    candidates: Sequence[tuple[Var, torch.Tensor]], types: Sequence[tuple[tuple[int, ...], torch.dtype]]
) -> tuple[list[Var], list[Var]]:
    """The first for each of the shapes that are wanted, of its dtype where there is one; those that are left."""
    chosen, left = [], list(candidates)
    for shape, dtype in types:
        fits = [c for c in left if tuple(c[1].shape) == shape and c[1].dtype == dtype]
        fits = fits or [c for c in left if tuple(c[1].shape) == shape]
        if not fits:
            made = ", ".join(f"{list(t.shape)} {t.dtype}" for _, t in candidates) or "none"
            raise Refusal(f"the reference returns a result of shape {list(shape)}, and the call makes none ({made})")
        left = [c for c in left if c[0] is not fits[0][0]]
        chosen.append(fits[0][0])
    return chosen, [var for var, _ in left]


def _unread(trace: Trace, chosen: Sequence[Var]) -> list[str]:
    """Tensors that kernels write, and that nobody reads: no answer shows what is in them."""
    works = [step for step in trace.steps if isinstance(step, Work)]
    known = {id(root_of(var)) for var in chosen} | {id(root_of(v)) for w in works for v in w.reads}
    uses = root_uses(trace, trace.steps)
    return [
        f"line {var.line}: what kernels write into {var.tensor.dtype}{list(var.tensor.shape)} is not judged: "
        "the call does not return it"
        for var in trace.vars.values()
        if var.kind in ("fresh", "zeros") and uses.get(id(var)) == "written" and id(var) not in known
    ]


def root_of(var: Var) -> Var:
    """The tensor that a view is of."""
    while var.base is not None:
        var = var.base
    return var


# -- what kernels do through their pointers, by their syntax ---------------------------------------------


def root_uses(trace: Trace, steps: Sequence[Any]) -> dict[int, str]:
    """By the identity of a tensor that is no view, what kernels do with it: ``read``, ``written`` or ``both``."""
    found: dict[int, str] = {}
    for step in (step for step in steps if isinstance(step, Launch | Work)):
        for root, uses in launch_uses(trace, step).items():
            use = uses.pop() if len(uses) == 1 else "both"
            found[root] = use if found.get(root, use) == use else "both"
    return found


def launch_uses(trace: Trace, launch: Launch | Work) -> dict[int, set[str]]:
    """By the identity of a tensor that is no view, what a launch does with it through its arguments; in place of torch
    arguments of the call alone, of which a part that is written leaves the rest."""
    found: dict[int, set[str]] = {}
    if isinstance(launch, Work):
        target = launch.target, "written" if launch.target.base is None else "both"
        for root, use in ((root_of(v), use) for v, use in (*((v, "read") for v in launch.reads), target)):
            if root.kind == "input":
                found.setdefault(id(root), set()).add(use)
        return found
    uses = argument_uses(launch)
    for parameter, value in launch.arguments.items():
        value = value.base if isinstance(value, TensorWrapper) else value
        known = trace.find(value) if isinstance(value, torch.Tensor) else None
        if known is not None:
            found.setdefault(id(root_of(known)), set()).add(uses.get(parameter, "read"))
    return found


def argument_uses(launch: Launch) -> dict[str, str]:
    """By parameter of a launch: what the kernel does through that pointer."""
    return pointer_uses(launch.kernel.fn, known=constants_of([launch.arguments]))


def _apart(trace: Trace, var: Var) -> bool:
    """Whether one launch alone touches an argument, and reads it through other parameters than it writes it."""
    launches = [step for step in trace.steps if isinstance(step, Launch)]
    touching = [uses[id(var)] for uses in (launch_uses(trace, one) for one in launches) if id(var) in uses]
    return touching == [{"read", "written"}]


def pointer_uses(fn: FunctionType, depth: int = 0, known: Mapping[str, object] = {}) -> dict[str, str]:
    """By parameter of a kernel: what it does through that pointer. ``known``: parameters that are constant."""
    node = cut(definition(fn)[0], known, fn.__globals__)
    found: dict[str, set[str]] = {"read": set(), "written": set()}
    _follow(node.body, {a.arg: {a.arg} for a in node.args.args}, found, fn.__globals__, depth)
    uses = {name: "both" if name in found["read"] else "written" for name in found["written"]}
    return {**dict.fromkeys(found["read"], "read"), **uses}


_Roots = dict[str, set[str]]
_VALUES = ("load", "program_id", "dot", "sum", "max", "arange")


def _follow(body: Sequence[ast.stmt], roots: _Roots, found: _Roots, names: Mapping[str, Any], depth: int) -> None:
    """Add to ``found`` what statements do through pointers, in their order. ``roots``: by name the parameters that it
    may point into there; a name that is assigned anew points into the old ones no more."""
    for statement in body:
        heads = [n for n in ast.iter_child_nodes(statement) if not isinstance(n, ast.stmt)]
        for call in (n for head in heads for n in ast.walk(head) if isinstance(n, ast.Call) and n.args):
            _use(call, roots, found, names, depth)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and statement.value is not None:
            made = set[str]().union(*(roots.get(name, set()) for name in _addressed(statement.value)))
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                kept = isinstance(statement, ast.AugAssign) or not isinstance(target, ast.Name | ast.Tuple)
                roots.update({n: made | (roots.get(n, set()) if kept else set()) for n in _names(target)})
        blocks, before = [getattr(statement, part, []) for part in ("body", "orelse")], dict[str, set[str]]()
        while any(blocks) and roots != before:  # a loop comes round until nothing is new
            before = {n: set(r) for n, r in roots.items()}
            for block in blocks:
                _follow(block, end := {n: set(r) for n, r in before.items()}, found, names, depth)
                roots.update({n: roots.get(n, set()) | r for n, r in end.items()})


def _use(call: ast.Call, roots: _Roots, found: _Roots, names: Mapping[str, Any], depth: int) -> None:
    """Add what a call in a kernel does through pointers."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in ("load", "store"):
        found["read" if name == "load" else "written"] |= _pointers(call.args[0], roots)
    elif name.startswith("atomic_"):
        for uses in found.values():
            uses.update(*(roots.get(n, set()) for n in _names(call.args[0])))
    elif depth < 3 and (inner := names.get(ast.unparse(call.func))) is not None and is_jitted(inner):
        target = kernel_function(inner)
        parameters = [a.arg for a in definition(target)[0].args.args]
        inner_uses = pointer_uses(target, depth + 1)
        given = [*zip(parameters, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        for parameter, value in given:
            for use in ("read", "written"):
                if inner_uses.get(str(parameter)) in (use, "both"):
                    found[use] |= _pointers(value, roots)


def _addressed(node: ast.AST) -> set[str]:
    """Names in an assigned expression, but for those in what is loaded or computed, and is no address."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _VALUES:
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*map(_addressed, ast.iter_child_nodes(node)))


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
