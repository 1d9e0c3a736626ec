"""Benchmarks' files at the command line: the function, its calls and its reference, as each format gives them.

KernelBench's problems and the Definitions of flashinfer-bench have no kernel: they judge one that is given beside them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child
from tilewright.evolve.intake import flashinfer_files as flashinfer
from tilewright.evolve.intake.tune import Request, resolve_reference, unreadable
from tilewright.fitness.targets import Target


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
    values: str = ""
    """The file of the calls' own values, see ``tune.Request``."""


# Formats of files: ``judge`` is the name of the reference in a file; ``pallas`` says whether its kernels are Pallas
# functions, else they are Triton's. ``holds`` says whether a file is of the format, ``plan`` what to tune, with new files
# in a folder, and ``calls`` gives a file's calls; each raises UserError.


class KernelBench:
    """A problem holds a ``Model`` and its inputs, an answer a ``ModelNew``."""

    name, judge, pallas = "KernelBench", "Model", False
    answer = "ModelNew"

    def holds(self, path: Path) -> bool:
        return path.suffix == ".py" and {"Model", "get_inputs"} <= _defined(path)

    def plan(self, path: Path, options: Options, folder: Path) -> Plan:
        if self.answer not in _defined(path):
            raise UserError(_without_kernel(self, path))
        reference = options.reference or f"{path}:{self.judge}"
        return _plan_of_function(path, Options(self.answer, reference, options.calls))

    def calls(self, path: Path) -> tuple[str, ...]:
        return tuple(child.calls_of_file(f"{path}:get_inputs", path))


class JAXBench:
    """A kernel in a function ``workload``; ``baseline.py`` beside it computes the same plainly."""

    name, judge, pallas = "JAXBench", "workload", True
    baseline = "baseline.py"

    def holds(self, path: Path) -> bool:
        return path.suffix == ".py" and {"workload", "create_inputs"} <= _defined(path)

    def plan(self, path: Path, options: Options, folder: Path) -> Plan:
        if "pallas_call" not in path.read_text(encoding="utf-8"):
            raise UserError(_without_kernel(self, path))
        plain = path.with_name(self.baseline)
        if not options.reference and (path.name == self.baseline or not plain.is_file()):
            raise UserError(
                f"{path.name} is a kernel of {self.name}, and no {self.baseline} beside it gives the right answer: "
                "add --reference FILE.py:workload."
            )
        reference = options.reference or f"{plain}:{self.judge}"
        return _plan_of_function(path, Options(self.judge, reference, options.calls))

    def calls(self, path: Path) -> tuple[str, ...]:
        return tuple(child.calls_of_file(f"{path}:create_inputs", path))


class FlashinferBench:
    """A Definition of what to compute, or a Solution with its sources, as JSON."""

    name, judge, pallas = "flashinfer-bench", "run", False

    def holds(self, path: Path) -> bool:
        return path.suffix == ".json"

    def plan(self, path: Path, options: Options, folder: Path) -> Plan:
        try:
            if not flashinfer.is_solution(path):
                flashinfer.read_definition(path)
                raise UserError(_without_kernel(self, path))
            solution = flashinfer.read_solution(path)
            at = flashinfer.definition_of(solution)
            if at is None:
                raise UserError(
                    f"{path.name} solves {solution.definition}, but no folder definitions above it holds that "
                    "Definition: lay both out as a trace set does."
                )
            definition = flashinfer.read_definition(at)
            calls = options.calls or tuple(flashinfer.calls_of(definition))
            reference = options.reference or f"{at}:{self.judge}"
            name = _name(definition.name)
            files = {**solution.sources, solution.file: flashinfer.entry_text(solution, definition, name)}
        except (flashinfer.NoTrace, OSError) as error:
            raise UserError(f"{unreadable(path, error)}.") from error
        _write(folder, files)
        return Plan(Request(folder / solution.file, name, resolve_reference(reference), calls), name, files)

    def calls(self, path: Path) -> tuple[str, ...]:
        try:
            return tuple(flashinfer.calls_of(flashinfer.read_definition(path)))
        except (flashinfer.NoTrace, OSError) as error:
            raise UserError(f"{unreadable(path, error)}.") from error


class GpuMode:
    """A task's folder: ``reference.py`` (``ref_kernel``, ``generate_input``), ``submission.py``, and ``task.yml`` with
    its benchmarks and the other files that it needs."""

    name, judge, pallas = "GPU MODE", "ref_kernel", False
    entry = "custom_kernel"
    files = ("reference.py", "submission.py", "task.yml")

    def holds(self, path: Path) -> bool:
        folder = path if path.is_dir() else path.parent
        return (path.is_dir() or path.name == "submission.py") and all(
            (folder / f).is_file() for f in self.files
        )

    def plan(self, path: Path, options: Options, folder: Path) -> Plan:
        task = path if path.is_dir() else path.parent
        files = {name: _text_of(task / name) for name in self.files[:2]}
        data = self._task(task)
        for row in data.get("files") or ():
            source = str(row.get("source", ""))
            if source.endswith(".py"):
                files[Path(str(row.get("name"))).name] = _text_of(task / source)
        specs = [dict(row) for row in (data.get("benchmarks") or data.get("tests") or ())]
        if not specs and not options.calls:
            raise UserError(f"{task}/task.yml lists no benchmarks and no tests: add --args.")
        few = (
            specs
            if len(specs) <= flashinfer.MOST_WORKLOADS
            else [specs[0], specs[len(specs) // 2], specs[-1]]
        )
        files["task_calls.py"] = (
            "from reference import generate_input\n\n\ndef calls():\n"
            f"    return [(generate_input(**spec),) for spec in {few!r}]\n"
        )
        _write(folder, files)
        values = folder / "task_values.npz"
        calls = options.calls or tuple(
            child.calls_of_file(str(folder / "task_calls.py"), folder / "submission.py", values)
        )
        reference = options.reference or f"{folder / 'reference.py'}:{self.judge}"
        request = Request(
            folder / "submission.py", self.entry, resolve_reference(reference), calls,
            "" if options.calls else str(values), str(folder),
        )  # fmt: skip
        return Plan(request, _name(task.resolve().name), files)

    def _task(self, task: Path) -> dict[str, Any]:
        try:
            data = yaml.safe_load(re.sub(r"!\w+", "", _text_of(task / "task.yml")))
        except yaml.YAMLError as error:
            raise UserError(f"{task}/task.yml is not YAML.") from error
        if not isinstance(data, dict):
            raise UserError(f"{task}/task.yml must hold a mapping with benchmarks or tests.")
        return data

    def calls(self, path: Path) -> tuple[str, ...]:
        raise UserError(f"{path}: name the task's folder alone.")


Format = KernelBench | JAXBench | FlashinferBench | GpuMode
FORMATS: tuple[Format, ...] = (KernelBench(), JAXBench(), FlashinferBench(), GpuMode())

LANGUAGES = {
    "tilelang": "TileLang", "cutlass": "CuTe DSL", "cupy": "CuPy", "numba": "Numba", "warp": "Warp",
    "cuda.tile": "cuTile", "helion": "Helion", "mojo": "Mojo", "tvm": "TVM",
}  # fmt: skip
"""Modules that a file of another language imports."""

SUFFIXES = {
    ".cu": "CUDA C++", ".cuh": "CUDA C++", ".hip": "HIP C++", ".cpp": "C++", ".cc": "C++", ".metal": "Metal",
    ".mojo": "Mojo", ".ptx": "PTX", ".mlir": "MLIR", ".ll": "LLVM IR",
}  # fmt: skip


def language_of(path: Path) -> str:
    """What a file is that holds no kernel of Triton or Pallas, and what to do, as a sentence's end; else empty."""
    named = SUFFIXES.get(path.suffix, "")
    if path.suffix == ".py" and path.is_file():
        text = _text_of(path)
        if re.search(r"\btriton\.jit\b|\bpallas_call\b", text):
            return ""
        if re.search(r"\bload_inline\b|\bRawKernel\b|__global__", text):
            named = "CUDA C++"
        else:
            imports = re.findall(r"^\s*(?:import|from)\s+([\w.]+)", text, re.M)
            named = next(
                (v for k, v in LANGUAGES.items() if any(f"{i}.".startswith(f"{k}.") for i in imports)), ""
            )
    ways = {
        "CUDA C++": "use an operator folder with the kernel and its launch (docs/cuda.md)",
        "Helion": "name the Triton file that Helion writes (HELION_PRINT_OUTPUT_CODE=1)",
    }
    return (
        f"{named}: {ways.get(named, 'tune takes functions that launch Triton or Pallas kernels')}"
        if named
        else ""
    )


def format_of(path: Path) -> Format | None:
    """The format of a file; None of any other file. Raises UserError where it cannot be read."""
    return next((known for known in FORMATS if known.holds(path)), None)


def is_problem(path: Path, options: Options) -> bool:
    """Whether the file, or its reference's, has to give what the command line does not."""
    if path.suffix == ".json" or path.is_dir():
        return True
    if options.function:
        return not options.calls and any(format_of(p) for p in _files_with_calls(path, options))
    return format_of(path) is not None


def plan(path: Path, options: Options, target: Target, folder: Path) -> Plan:
    """What to tune; new files are written to ``folder``. Raises UserError."""
    if options.function:
        return _plan_of_function(path, options)
    known = format_of(path)
    if known is None:
        raise UserError(f"{path} is a folder without {', '.join(GpuMode.files)}: write FILE.py:function.")
    if (target.entry == "build") is not known.pallas:
        language, targets = ("JAX", "tpu7x") if known.pallas else ("torch", "cuda or interpreter")
        raise UserError(f"{known.name} is for {language}, and {target.name} is not: use --target {targets}.")
    return known.plan(path, options, folder)


def _plan_of_function(path: Path, options: Options) -> Plan:
    """A function of the file; its calls are of the command line, else of the first file that gives any."""
    reference = resolve_reference(options.reference) if options.reference else ""
    calls = options.calls
    for file in _files_with_calls(path, options) if not calls else ():
        if (known := format_of(file)) is not None:
            calls = known.calls(file)
            break
    generic = options.function in (KernelBench.answer, *(known.judge for known in FORMATS))
    name = _name(path.stem if generic else options.function)
    return Plan(Request(path, options.function, reference, calls), name, {})


def _files_with_calls(path: Path, options: Options) -> Iterator[Path]:
    """Files that may give the function's calls: its reference's, then its own."""
    named, colon, _ = options.reference.rpartition(":")
    for candidate in (Path(named if colon else options.reference), path):
        if candidate.suffix in (".py", ".json") and candidate.is_file():
            yield candidate


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error


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


def _without_kernel(known: Format, path: Path) -> str:
    return (
        f"{path.name} is a problem of {known.name}: it gives what to compute, but no kernel to begin with. Write a "
        "kernel, or let a language model, and tune that: "
        f"tilewright tune KERNELS.py:FUNCTION --reference {path}:{known.judge}"
    )
