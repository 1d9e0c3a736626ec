"""A benchmark's file at the command line: the function, its calls and its reference, as the file says them.

KernelBench's problems have no kernel and begin with a template's, where one knows their family; so do Definitions of
flashinfer-bench. Its Solutions, and JAXBench's files that launch a kernel, are taken in as they stand.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child
from tilewright.evolve.intake.tune import Request, resolve_reference
from tilewright.fitness.targets import Target
from tilewright.workers.intake.formats import flashinfer
from tilewright.workers.intake.formats.problem import JUDGES

KERNELBENCH, JAXBENCH, FLASHINFER = JUDGES
ANSWER = "ModelNew"
"""What an answer to a KernelBench problem calls its model."""

PLAIN = "baseline.py"
"""The file beside a JAXBench kernel that says the same plainly."""


@dataclass(frozen=True)
class Begun:
    """What to tune. ``files``: texts that were written to begin with, by path below the operator's folder; they lie
    where ``request`` says."""

    request: Request
    name: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the file; empty where it does not."""

    function: str
    reference: str
    calls: tuple[str, ...]


def kind_of(path: Path) -> str:
    """The benchmark a file is of; empty for any other file. Raises UserError where it cannot be read."""
    if path.suffix == ".json":
        return FLASHINFER
    names = _defined(path)
    if {"Model", "get_inputs"} <= names:
        return KERNELBENCH
    return JAXBENCH if {"workload", "create_inputs"} <= names else ""


def is_problem(path: Path, asked: Asked) -> bool:
    """Whether the file, or its reference's, has to say what the command line does not."""
    if path.suffix == ".json":
        return True
    if asked.function:
        return not asked.calls and any(kind_of(p) for p in _sayers(path, asked))
    return bool(kind_of(path))


def begun(path: Path, asked: Asked, target: Target, folder: Path) -> Begun:
    """What to tune; files that are written for it lie in ``folder``. Raises UserError."""
    if asked.function:
        return _named(path, asked, target)
    kind = kind_of(path)
    try:
        if kind == FLASHINFER:
            _for(target, kind, pallas=False)
            solved = flashinfer.is_solution(path)
            return (_solution if solved else _definition)(path, asked, target, folder)
    except (flashinfer.NoTrace, OSError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error
    if kind == JAXBENCH:
        _for(target, kind, pallas=True)
        return _workload(path, asked, target)
    _for(target, kind, pallas=False)
    return _model(path, asked, target, folder)


# -- each benchmark ------------------------------------------------------------------------------------


def _model(path: Path, asked: Asked, target: Target, folder: Path) -> Begun:
    if ANSWER in _defined(path):
        return _named(path, Asked(ANSWER, asked.reference or f"{path}:Model", asked.calls), target)
    reference = asked.reference or f"{path}:{JUDGES[KERNELBENCH]}"
    return _templated(path, KERNELBENCH, reference, asked.calls, "", target, folder)


def _definition(path: Path, asked: Asked, target: Target, folder: Path) -> Begun:
    definition = flashinfer.read_definition(path)
    calls = asked.calls or tuple(flashinfer.calls_of(definition))
    reference = asked.reference or f"{path}:{JUDGES[FLASHINFER]}"
    return _templated(path, FLASHINFER, reference, calls, calls[0], target, folder)


def _solution(path: Path, asked: Asked, target: Target, folder: Path) -> Begun:
    solution = flashinfer.read_solution(path)
    beside = flashinfer.definition_of(solution)
    if beside is None:
        raise UserError(
            f"{path.name} solves {solution.definition}, whose Definition is in no folder definitions above it: put "
            f"both as a trace set has them."
        )
    definition = flashinfer.read_definition(beside)
    calls = asked.calls or tuple(flashinfer.calls_of(definition))
    name = _name(definition.name)
    files = {**solution.sources, solution.file: flashinfer.entry_text(solution, definition, name)}
    _write(folder, files)
    reference = resolve_reference(asked.reference or f"{beside}:{JUDGES[FLASHINFER]}")
    return Begun(Request(folder / solution.file, name, reference, calls), name, files)


def _workload(path: Path, asked: Asked, target: Target) -> Begun:
    if "pallas_call" not in path.read_text(encoding="utf-8"):
        raise UserError(_told(path, JAXBENCH, "there is no template for it"))
    plain = path.with_name(PLAIN)
    if not asked.reference and (path.name == PLAIN or not plain.is_file()):
        raise UserError(
            f"{path.name} is a kernel of {JAXBENCH}, and no {PLAIN} beside it says the same plainly: add --reference "
            "FILE.py:workload."
        )
    found = Asked(JUDGES[JAXBENCH], asked.reference or f"{plain}:{JUDGES[JAXBENCH]}", asked.calls)
    return _named(path, found, target)


def _named(path: Path, asked: Asked, target: Target) -> Begun:
    """A function that is there; how it is called, from whichever file says it."""
    reference = resolve_reference(asked.reference) if asked.reference else ""
    calls = asked.calls
    sayer = next((p for p in _sayers(path, asked) if kind_of(p)), None)
    if not calls and sayer is not None:
        calls = _calls_in(sayer, target)
    request = Request(path, asked.function, reference, calls)
    generic = asked.function in (ANSWER, *JUDGES.values())
    return Begun(request, _name(path.stem if generic else asked.function), {})


def _templated(
    path: Path, kind: str, reference: str, calls: Sequence[str], call: str, target: Target, folder: Path
) -> Begun:
    """Begin with a plain kernel. ``call``: for a reference that does not say its own."""
    answer = child.ask(path, None, "", [call] if call else [], target, "formats.template")
    if refusals := answer.get("refusals"):
        raise UserError(_told(path, kind, f"there is no template for it, since {refusals[0]['what']}"))
    name = str(answer["function"])
    files = {f"{name}_plain.py": str(answer["source"])}
    _write(folder, files)
    kernel = folder / f"{name}_plain.py"
    given = tuple(calls) or (str(answer["call"]),)
    return Begun(Request(kernel, name, resolve_reference(reference), given), name, files)


# -- helpers -------------------------------------------------------------------------------------------


def _sayers(path: Path, asked: Asked) -> Iterator[Path]:
    """Files that may say how the function is called: its reference's, then its own."""
    named, colon, _ = asked.reference.rpartition(":")
    for candidate in (Path(named if colon else asked.reference), path):
        if candidate.suffix in (".py", ".json") and candidate.is_file():
            yield candidate


def _calls_in(path: Path, target: Target) -> tuple[str, ...]:
    kind = kind_of(path)
    if kind == FLASHINFER:
        try:
            return tuple(flashinfer.calls_of(flashinfer.read_definition(path)))
        except (flashinfer.NoTrace, OSError) as error:
            raise UserError(f"{unreadable(path, error)}.") from error
    answer = child.ask(
        path, None, "", (), target, "formats.jaxbench" if kind == JAXBENCH else "formats.template"
    )
    if "call" not in answer:
        raise UserError(
            f"{path.name} does not say how it is called, since {answer['refusals'][0]['what']}: add --args."
        )
    return (str(answer["call"]),)


def _for(target: Target, kind: str, pallas: bool) -> None:
    if (target.entry == "build") is not pallas:
        wanted = "--target tpu7x" if pallas else "--target cuda, or interpreter"
        raise UserError(
            f"{kind} is of {'JAX' if pallas else 'torch'}, which {target.name} is not for: {wanted}."
        )


def _defined(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def unreadable(path: Path, error: Exception) -> str:
    """Why a file cannot be used, as a sentence without its end."""
    if isinstance(error, flashinfer.NoTrace):
        return str(error)
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror}"
    if isinstance(error, SyntaxError):
        return f"{path} is not Python: line {error.lineno}, {error.msg}"
    return f"{path} is not Python: {error}"


def _name(text: str) -> str:
    return re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", re.sub(r"[^a-z0-9]+", "_", text.lower())) or "kernel"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        for place, text in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: cannot write {folder}: {error.strerror}.") from error


def keep(begun: Begun, folder: Path) -> None:
    """Write what was begun with into the operator's folder, whose owner it has from then on. Raises UserError."""
    _write(folder, begun.files)


def _told(path: Path, kind: str, why: str) -> str:
    return (
        f"{path.name} is a problem of {kind}: it says what to compute, and has no kernel to begin with; {why}. Write "
        f"one, or let a language model, and tune that: "
        f"tilewright tune KERNELS.py:FUNCTION --reference {path}:{JUDGES[kind]}"
    )


__all__ = ["Asked", "Begun", "begun", "is_problem", "keep", "kind_of", "unreadable"]
