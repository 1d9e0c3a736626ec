"""A benchmark's problem that has no kernel: one to begin with, where a template knows its family."""

from __future__ import annotations

from pathlib import Path

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child
from tilewright.evolve.intake.tune import Request, resolve_reference
from tilewright.fitness.targets import Target
from tilewright.workers.intake.problem import JUDGES, NoProblem, read


def seeded(path: Path, target: Target, where: Path | None) -> tuple[Request, Path]:
    """What to tune, and the operator's folder: the kernel is written there, as a file that is the user's from then on.

    Raises UserError for a file that is no problem, and where there is no template for it.
    """
    try:
        kind = read(path).kind
    except (NoProblem, OSError):
        raise UserError(f"{path} names no function; write FILE.py:function.") from None
    if kind != "KernelBench" or target.entry == "build":
        raise UserError(_said(path, kind, "there is no template for it"))
    answer = child.ask(path, None, "", (), target, "template")
    if refusals := answer.get("refusals"):
        raise UserError(_said(path, kind, f"there is no template for it, since {refusals[0]['what']}"))
    name = str(answer["function"])
    folder = where or Path(f"{name}_tuned")
    kernel = folder / f"{name}_plain.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kernel.write_text(str(answer["source"]), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: cannot write {folder}: {error.strerror}.") from error
    return Request(kernel, name, resolve_reference(f"{path}:{JUDGES[kind]}"), (str(answer["call"]),)), folder


def told(path: Path) -> str:
    """What to do with a problem's file where a function is wanted; empty for any other file."""
    try:
        return _said(path, read(path).kind, "give it without --args, or name a function")
    except (NoProblem, OSError):
        return ""


def _said(path: Path, kind: str, why: str) -> str:
    return (
        f"{path.name} is a problem of {kind}: it says what to compute, and has no kernel to begin with; {why}. Write "
        f"one, or let a language model, and tune that: "
        f"tilewright tune KERNELS.py:FUNCTION --reference {path}:{JUDGES[kind]} --args ..."
    )
