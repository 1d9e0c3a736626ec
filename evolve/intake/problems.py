"""Benchmarks' files at the command line: the function, its calls and its reference, as each format gives them.

KernelBench's problems and the Definitions of flashinfer-bench have no kernel: a template's is used, where one fits.
Solutions of flashinfer-bench, and JAXBench's files that launch a kernel, are used as they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child
from tilewright.evolve.intake.tune import Request, resolve_reference, unreadable
from tilewright.fitness.targets import Target
from tilewright.workers.intake.formats import flashinfer


@dataclass(frozen=True)
class Plan:
    """What to tune. ``files``: texts that were written to begin with, by path below the operator's folder; they lie
    where ``request`` says."""

    request: Request
    name: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Options:
    """What the command line gives beside the file; empty where it does not."""

    function: str = ""
    reference: str = ""
    calls: tuple[str, ...] = ()


class Format(Protocol):
    """A benchmark's format of files. ``judge``: the name of the reference in a file; ``pallas``: whether its kernels
    are Pallas functions, else they are Triton's."""

    name: str
    judge: str
    pallas: bool

    def holds(self, path: Path) -> bool:
        """Whether a file is of the format. Raises UserError where it cannot be read."""
        ...

    def plan(self, path: Path, options: Options, target: Target, folder: Path) -> Plan:
        """What to tune; new files are written to ``folder``. Raises UserError."""
        ...

    def calls(self, path: Path, target: Target) -> tuple[str, ...]:
        """The calls that a file gives. Raises UserError."""
        ...


class KernelBench:
    """A problem holds a ``Model`` and its inputs, an answer a ``ModelNew``."""

    name, judge, pallas = "KernelBench", "Model", False
    answer = "ModelNew"

    def holds(self, path: Path) -> bool:
        return path.suffix == ".py" and {"Model", "get_inputs"} <= _defined(path)

    def plan(self, path: Path, options: Options, target: Target, folder: Path) -> Plan:
        reference = options.reference or f"{path}:{self.judge}"
        if self.answer in _defined(path):
            return _plan_of_function(path, Options(self.answer, reference, options.calls), target)
        return _plan_of_template(self, path, reference, options.calls, "", target, folder)

    def calls(self, path: Path, target: Target) -> tuple[str, ...]:
        return _calls_by("formats.template", path, target)


class JAXBench:
    """A kernel in a function ``workload``; ``baseline.py`` beside it computes the same plainly."""

    name, judge, pallas = "JAXBench", "workload", True
    baseline = "baseline.py"

    def holds(self, path: Path) -> bool:
        return path.suffix == ".py" and {"workload", "create_inputs"} <= _defined(path)

    def plan(self, path: Path, options: Options, target: Target, folder: Path) -> Plan:
        if "pallas_call" not in path.read_text(encoding="utf-8"):
            raise UserError(_without_kernel(self, path, "there is no template for it"))
        plain = path.with_name(self.baseline)
        if not options.reference and (path.name == self.baseline or not plain.is_file()):
            raise UserError(
                f"{path.name} is a kernel of {self.name}, and no {self.baseline} beside it gives the right answer: "
                "add --reference FILE.py:workload."
            )
        reference = options.reference or f"{plain}:{self.judge}"
        return _plan_of_function(path, Options(self.judge, reference, options.calls), target)

    def calls(self, path: Path, target: Target) -> tuple[str, ...]:
        return _calls_by("formats.jaxbench", path, target)


class FlashinferBench:
    """A Definition of what to compute, or a Solution with its sources, as JSON."""

    name, judge, pallas = "flashinfer-bench", "run", False

    def holds(self, path: Path) -> bool:
        return path.suffix == ".json"

    def plan(self, path: Path, options: Options, target: Target, folder: Path) -> Plan:
        try:
            solution = flashinfer.read_solution(path) if flashinfer.is_solution(path) else None
            at = path if solution is None else flashinfer.definition_of(solution)
            if at is None:
                assert solution is not None
                raise UserError(
                    f"{path.name} solves {solution.definition}, but no folder definitions above it holds that "
                    "Definition: lay both out as a trace set does."
                )
            definition = flashinfer.read_definition(at)
            calls = options.calls or tuple(flashinfer.calls_of(definition))
            reference = options.reference or f"{at}:{self.judge}"
            if solution is None:
                return _plan_of_template(self, path, reference, calls, calls[0], target, folder)
            name = _name(definition.name)
            files = {**solution.sources, solution.file: flashinfer.entry_text(solution, definition, name)}
        except (flashinfer.NoTrace, OSError) as error:
            raise UserError(f"{unreadable(path, error)}.") from error
        _write(folder, files)
        return Plan(Request(folder / solution.file, name, resolve_reference(reference), calls), name, files)

    def calls(self, path: Path, target: Target) -> tuple[str, ...]:
        try:
            return tuple(flashinfer.calls_of(flashinfer.read_definition(path)))
        except (flashinfer.NoTrace, OSError) as error:
            raise UserError(f"{unreadable(path, error)}.") from error


FORMATS: tuple[Format, ...] = (KernelBench(), JAXBench(), FlashinferBench())


def format_of(path: Path) -> Format | None:
    """The format of a file; None of any other file. Raises UserError where it cannot be read."""
    return next((known for known in FORMATS if known.holds(path)), None)


def is_problem(path: Path, options: Options) -> bool:
    """Whether the file, or its reference's, has to give what the command line does not."""
    if path.suffix == ".json":
        return True
    if options.function:
        return not options.calls and any(format_of(p) for p in _files_with_calls(path, options))
    return format_of(path) is not None


def plan(path: Path, options: Options, target: Target, folder: Path) -> Plan:
    """What to tune; new files are written to ``folder``. Raises UserError."""
    if options.function:
        return _plan_of_function(path, options, target)
    known = format_of(path)
    assert known is not None
    if (target.entry == "build") is not known.pallas:
        language, targets = ("JAX", "tpu7x") if known.pallas else ("torch", "cuda or interpreter")
        raise UserError(f"{known.name} is for {language}, and {target.name} is not: use --target {targets}.")
    return known.plan(path, options, target, folder)


def _plan_of_function(path: Path, options: Options, target: Target) -> Plan:
    """A function of the file; its calls are of the command line, else of the first file that gives any."""
    reference = resolve_reference(options.reference) if options.reference else ""
    calls = options.calls
    for file in _files_with_calls(path, options) if not calls else ():
        if (known := format_of(file)) is not None:
            calls = known.calls(file, target)
            break
    generic = options.function in (KernelBench.answer, *(known.judge for known in FORMATS))
    name = _name(path.stem if generic else options.function)
    return Plan(Request(path, options.function, reference, calls), name, {})


def _plan_of_template(
    known: Format, path: Path, reference: str, calls: Sequence[str], call: str, target: Target, folder: Path
) -> Plan:
    """A plain kernel to begin with. ``call``: for a reference that does not give its own."""
    answer = child.ask(path, None, "", [call] if call else [], target, "formats.template")
    if refusals := answer.get("refusals"):
        raise UserError(
            _without_kernel(known, path, f"there is no template for it, since {refusals[0]['what']}")
        )
    name = str(answer["function"])
    files = {f"{name}_plain.py": str(answer["source"])}
    _write(folder, files)
    given = tuple(calls) or (str(answer["call"]),)
    return Plan(Request(folder / f"{name}_plain.py", name, resolve_reference(reference), given), name, files)


def _calls_by(program: str, path: Path, target: Target) -> tuple[str, ...]:
    answer = child.ask(path, None, "", (), target, program)
    if "call" not in answer:
        raise UserError(f"{path.name} gives no call, since {answer['refusals'][0]['what']}: add --args.")
    return (str(answer["call"]),)


def _files_with_calls(path: Path, options: Options) -> Iterator[Path]:
    """Files that may give the function's calls: its reference's, then its own."""
    named, colon, _ = options.reference.rpartition(":")
    for candidate in (Path(named if colon else options.reference), path):
        if candidate.suffix in (".py", ".json") and candidate.is_file():
            yield candidate


def _defined(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def _name(text: str) -> str:
    return re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", re.sub(r"[^a-z0-9]+", "_", text.lower())) or "kernel"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        for place, text in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: cannot write {folder}: {error.strerror}.") from error


def write_files(plan: Plan, folder: Path) -> None:
    """Write the plan's files into the operator's folder. Raises UserError."""
    _write(folder, plan.files)


def _without_kernel(known: Format, path: Path, why: str) -> str:
    return (
        f"{path.name} is a problem of {known.name}: it gives what to compute, but no kernel to begin with; {why}. "
        f"Write a kernel, or let a language model, and tune that: "
        f"tilewright tune KERNELS.py:FUNCTION --reference {path}:{known.judge}"
    )
