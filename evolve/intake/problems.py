"""Files that state their own calls: function, calls and reference, as KernelBench, GPU MODE and Inductor give them.

A KernelBench problem holds a ``Model`` and its inputs, an answer a ``ModelNew``. A folder of GPU MODE holds a task:
``reference.py`` (``ref_kernel``, ``generate_input``), ``submission.py`` (``custom_kernel``), and ``task.yml`` with its
benchmarks and the other files that it needs. Inductor's ``output_code.py`` holds a ``call`` and its benchmark.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child, inductor
from tilewright.evolve.intake.child import holds_cuda
from tilewright.evolve.intake.tune import Request, resolve_reference, unreadable
from tilewright.fitness.targets import Target
from tilewright.workers.intake.calls.dimensions import differ_only_in_tensors
from tilewright.workers.intake.judge.self_reference import SELF

MODEL, ANSWER = "Model", "ModelNew"
TASK = ("reference.py", "submission.py", "task.yml")


@dataclass(frozen=True)
class Plan:
    """What to tune. ``files``: texts that were written to begin with, by path below the operator's folder; they lie
    where ``request`` says."""

    request: Request
    name: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Options:
    """What the command line gives beside the file; empty where it does not. ``values``: see ``tune.Request``."""

    function: str = ""
    reference: str = ""
    calls: tuple[str, ...] = ()
    values: str = ""


LANGUAGES = {
    "tilelang": "TileLang",
    "cutlass": "CuTe DSL",
    "cupy": "CuPy",
    "numba": "Numba",
    "warp": "Warp",
    "cuda.tile": "cuTile",
    "helion": "Helion",
    "mojo": "Mojo",
    "tvm": "TVM",
}
"""Modules that a file of another language imports."""

SUFFIXES = {
    ".cuh": "CUDA C++",
    ".hip": "HIP C++",
    ".cpp": "C++",
    ".cc": "C++",
    ".metal": "Metal",
    ".mojo": "Mojo",
    ".ptx": "PTX",
    ".mlir": "MLIR",
    ".ll": "LLVM IR",
}


def language_of(path: Path) -> str:
    """What a file is that holds no kernel of Triton or Pallas, and what to do, as a sentence's end; else empty."""
    named = SUFFIXES.get(path.suffix, "")
    if path.suffix == ".py" and path.is_file():
        text = _text_of(path)
        if holds_cuda(path) or re.search(r"\btriton\.jit\b|\bpallas_call\b", text):
            return ""
        imports = [f"{name}." for name in re.findall(r"^\s*(?:import|from)\s+([\w.]+)", text, re.M)]
        named = next((v for k, v in LANGUAGES.items() if any(i.startswith(f"{k}.") for i in imports)), "")
        named = "CUDA C++" if re.search(r"\bRawKernel\b|__global__", text) else named
    ways = {
        "": "",
        "CUDA C++": "put the kernel into a .cu file with a function that launches it, and name that (docs/cuda.md)",
        "Helion": "name the Triton file that Helion writes (HELION_PRINT_OUTPUT_CODE=1)",
    }
    way = ways.get(named, "tune takes functions that launch Triton or Pallas kernels")
    return way and f"{named}: {way}"


def is_problem(path: Path, options: Options) -> bool:
    """Whether the file, or its reference's, has to give what the command line does not."""
    if options.function:
        return not options.calls and any(map(_is_kernelbench, _files_with_calls(path, options)))
    return _is_task(path) or path.is_dir() or _is_kernelbench(path) or _is_output(path)


def reference_name_in(path: Path) -> str:
    """The name of the reference in a problem's file that is named alone; empty for any other file."""
    return "run" if path.suffix == ".json" else MODEL if _is_kernelbench(path) else ""


def plan(path: Path, options: Options, target: Target, folder: Path) -> Plan:
    """What to tune; new files are written to ``folder``. Raises UserError."""
    if not options.function:
        task = _is_task(path)
        if path.is_dir() and not task:
            raise UserError(f"{path} is a folder without {', '.join(TASK)}: write FILE.py:function.")
        if target.entry == "build":
            raise UserError(f"{path.name} is for torch, and {target.name} is not: use --target cuda or interpreter.")
        if task:
            return _plan_of_task(path if path.is_dir() else path.parent, options, folder)
        if _is_output(path):
            return _plan_of_output(path, options, folder)
        if ANSWER not in names_in(path):
            raise UserError(
                f"{path.name} is a problem of KernelBench: it gives what to compute, but no kernel to begin with. "
                "Write a kernel, or let a language model, and tune that: "
                f"tilewright tune KERNELS.py:FUNCTION --reference {path}:{MODEL}"
            )
        options = Options(ANSWER, options.reference or f"{path}:{MODEL}", options.calls)
    calls = options.calls
    problem = next(filter(_is_kernelbench, _files_with_calls(path, options)), None) if not calls else None
    if problem is not None:
        calls = tuple(child.calls_of_files([f"{problem}:get_inputs"], problem))
    reference = resolve_reference(options.reference) if options.reference else ""
    name = _name(path.stem if options.function in (MODEL, ANSWER) else options.function)
    return Plan(Request(path, options.function, reference, calls, made=str(folder)), name, {})


def _plan_of_task(task: Path, options: Options, folder: Path) -> Plan:
    files = {name: _text_of(task / name) for name in TASK[:2]}
    try:
        data = yaml.safe_load(re.sub(r"!\w+", "", _text_of(task / "task.yml")))
    except yaml.YAMLError as error:
        raise UserError(f"{task}/task.yml is not YAML.") from error
    if not isinstance(data, dict):
        raise UserError(f"{task}/task.yml must hold a mapping with benchmarks or tests.")
    for row in data.get("files") or ():
        source = str(row.get("source", ""))
        if source.endswith(".py"):
            files[Path(str(row.get("name"))).name] = _text_of(task / source)
    specs = [dict(row) for row in (data.get("benchmarks") or data.get("tests") or ())]
    if not specs and not options.calls:
        raise UserError(f"{task}/task.yml lists no benchmarks and no tests: add --args.")
    few = specs if len(specs) <= 3 else [specs[0], specs[len(specs) // 2], specs[-1]]
    files["task_calls.py"] = (
        "from reference import generate_input\n\n\ndef calls():\n"
        f"    return [(generate_input(**spec),) for spec in {few!r}]\n"
    )
    write_files(folder, files)
    submission, values = folder / "submission.py", "" if options.calls else str(folder / "task_values.npz")
    calls = options.calls or child.calls_of_files([str(folder / "task_calls.py")], submission, Path(values))
    calls = calls[: [*differ_only_in_tensors(calls), False].index(False)]  # the values lie by number of call
    reference = resolve_reference(options.reference or f"{folder / 'reference.py'}:ref_kernel")
    request = Request(submission, "custom_kernel", reference, tuple(calls), values, str(folder))
    return Plan(request, _name(task.resolve().name), files)


def _plan_of_output(path: Path, options: Options, folder: Path) -> Plan:
    try:
        text, call = inductor.plain_file(_text_of(path))
    except (inductor.NoOutput, SyntaxError) as error:
        raise UserError(f"{path.name} is Inductor's output, but {error}.") from error
    files = {f"{path.stem}_plain.py": text}
    write_files(folder, files)
    request = Request(
        folder / f"{path.stem}_plain.py",
        inductor.FUNCTION,
        resolve_reference(options.reference or SELF),
        options.calls or (call,),
        made=str(folder),
    )
    return Plan(request, _name(path.stem), files)


def _is_output(path: Path) -> bool:
    text = _text_of(path) if path.suffix == ".py" and path.is_file() else ""
    return "async_compile.triton(" in text and "def call(" in text


def _is_kernelbench(path: Path) -> bool:
    return path.suffix == ".py" and {MODEL, "get_inputs"} <= {*names_in(path)}


def _is_task(path: Path) -> bool:
    folder = path if path.is_dir() else path.parent
    return (path.is_dir() or path.name == "submission.py") and all((folder / f).is_file() for f in TASK)


def _files_with_calls(path: Path, options: Options) -> Iterator[Path]:
    """Files that may give the function's calls: its reference's, then its own."""
    named, colon, _ = options.reference.rpartition(":")
    yield from (p for p in (Path(named if colon else options.reference), path) if p.is_file())


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (ValueError, OSError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error


def names_in(path: Path) -> list[str]:
    """Functions and classes that a file defines. Raises UserError."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8-sig"))
    except (SyntaxError, ValueError, OSError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]


def _name(text: str) -> str:
    return re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", re.sub(r"[^a-z0-9]+", "_", text.lower())) or "kernel"


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their paths below a folder. Raises UserError."""
    try:
        for place, text in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: cannot write {folder}: {error.strerror}.") from error
