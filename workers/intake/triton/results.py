"""Which tensors of a recorded call are its results, and which arguments are results in disguise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tilewright.workers.intake.triton.kernel_module import Wanted
from tilewright.workers.intake.triton.pointers import written_tensors
from tilewright.workers.intake.triton.trace import Launch, Refusal, Trace, Var


@dataclass
class Results:
    """``chosen``: what ``launch`` returns. ``replaced``: arguments that are written, as "fresh", or as "copied" where
    they are read as well."""

    chosen: list[Var]
    replaced: dict[str, str]
    notes: list[str] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)


def results_of(trace: Trace, wanted: Wanted, keeps: bool = False) -> Results:
    """The results of a call that launches kernels. ``keeps``: what an argument held stays where no kernel writes.
    Raises Refusal where none has a shape that is wanted."""
    candidates: list[tuple[Var, torch.Tensor]] = []
    for result in trace.results:
        var = trace.find(result)
        if var is not None and all(var is not other for other, _ in candidates):
            candidates.append((var, result))
    written = written_tensors([step for step in trace.steps if isinstance(step, Launch)])
    replaced: dict[str, str] = {}
    for var in trace.inputs.values():
        use = _use(trace, var, written)
        if use != "read":
            replaced[var.name] = "fresh" if use == "written" and not keeps else "copied"
            if all(var is not other for other, _ in candidates):
                candidates.append((var, var.tensor))
    candidates = [(v, t) for v, t in candidates if root_of(v).kind != "input" or root_of(v).name in replaced]
    found = Results([v for v, _ in candidates], replaced)
    if wanted is not None:
        found.chosen, left = _fitting(candidates, wanted)
        if left:
            found.notes.append(f"{left} more result(s) of the call are not judged: the reference has none")
    if not found.chosen:
        raise Refusal("the call returns no tensor, and its kernels write to none of its arguments")
    for var in found.chosen:
        if var.foreign or var.kind == "foreign":
            found.refusals.append((var.line, f"torch computes {var.foreign} after the kernel"))
    return found


def _fitting(
    candidates: Sequence[tuple[Var, torch.Tensor]],
    wanted: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> tuple[list[Var], int]:
    """The first for each of the shapes that are wanted, of its dtype where there is one; how many are left."""
    chosen, left = [], list(candidates)
    for shape, dtype in wanted:
        fits = [c for c in left if tuple(c[1].shape) == shape and c[1].dtype == dtype]
        fits = fits or [c for c in left if tuple(c[1].shape) == shape]
        if not fits:
            made = ", ".join(f"{list(t.shape)} {t.dtype}" for _, t in candidates) or "none"
            raise Refusal(
                f"the reference returns a result of shape {list(shape)}, and the call makes none ({made})"
            )
        left = [c for c in left if c[0] is not fits[0][0]]
        chosen.append(fits[0][0])
    return chosen, len(left)


def root_of(var: Var) -> Var:
    """The tensor that a view is of."""
    while var.base is not None:
        var = var.base
    return var


def _use(trace: Trace, var: Var, written: Mapping[int, str]) -> str:
    found = {use for key, use in written.items() if root_of(trace.vars[key]).name == var.name}
    if found & {"both"} or {"read", "written"} <= found:
        return "both"
    return "written" if "written" in found else "read"
