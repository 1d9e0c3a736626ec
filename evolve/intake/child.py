"""Asks the child that takes kernels in (``workers.intake.triton.program``)."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.workers.child.launch import Deadline, interpreter_environment, own_environment

if TYPE_CHECKING:
    from tilewright.fitness.targets import Target

MAIN, PALLAS, CUDA = "triton.program", "pallas.program", "cuda.program"
"""The programs: for functions that launch Triton kernels, for Pallas ones, for kernels in CUDA C++."""

MODELLED, COMPILED, CUDA_SUFFIX = "tpu7x", "sm_90", ".cu"
_LOADED, _OTHERS = (re.compile(r"\bload_inline\b|\bcpp_extension\b"), re.compile(r"\btriton\.jit\b|\bpallas_call\b"))
SECONDS = 600.0
"""Most that reading a function in may take."""

CALLS_SECONDS = 300
"""Most that a file may take to make its calls."""

_LAST_LINES = 4
_TPU = re.compile(r"tpu.*|v\d+[a-z]*")


def holds_cuda(path: Path) -> bool:
    """Whether a file's kernels are CUDA C++: a ``.cu`` file, or Python that loads such sources."""
    if path.suffix != ".py" or not path.is_file():
        return path.suffix == CUDA_SUFFIX
    text = path.read_text(encoding="utf-8", errors="replace")
    return _LOADED.search(text) is not None and _OTHERS.search(text) is None


def default_target(place: str) -> str | None:
    """``tpu7x`` for a file that imports Pallas and no Triton, ``sm_90`` for CUDA C++ without a GPU; else None."""
    path = Path(place if Path(place).is_file() else place.rpartition(":")[0])
    if holds_cuda(path):
        from tilewright.workers.toolchains.triton import gpu_count

        return None if gpu_count() else COMPILED
    return MODELLED if languages(path) == {"pallas"} else None


def languages(path: Path) -> set[str]:
    """Which of ``pallas`` and ``triton`` a file imports; neither where it cannot be read."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8-sig") if path.is_file() else "")
    except (OSError, ValueError, SyntaxError, RecursionError):  # reading it in says why
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return {part for name in names for part in name.split(".")} & {"pallas", "triton"}


def part_of(target: Target) -> dict[str, Any]:
    """What a wrapper may ask of the target's device."""
    part = target.part
    return {
        "multiprocessors": int(getattr(part, "multiprocessors", 132)),
        "smem_bytes": int(getattr(part, "smem_bytes", 232448)),
        "capability": int(getattr(part, "capability", 90)),
        "product": str(getattr(part, "product", target.name)),
    }


class Intake:
    """A process that reads a function in. It is started before the function is known: its imports take seconds.

    Close it; it answers one request.
    """

    def __init__(self, program: str = MAIN, interpreted: bool = True, *imported: str) -> None:
        self.program = program
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tilewright.workers.intake.{program}", *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=interpreter_environment(interpreted),
        )

    def answer(self, request: Mapping[str, Any], seconds: float, meanwhile: Callable[[], None]) -> tuple[bytes, bytes]:
        """What it writes to both outputs. Raises subprocess.TimeoutExpired."""
        deadline = Deadline(self._process.pid, seconds)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended early, and says why on its other output
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()
        self._process.stdin = None
        meanwhile()
        while (left := deadline.seconds_left()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.communicate(timeout=max(1.0, left))
        raise subprocess.TimeoutExpired(self.program, seconds)

    @property
    def step(self) -> str:
        """What it does now; empty when it has ended."""
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{self._process.pid}/comm").read_text().strip()
            return name if " " in name else "starting"
        return ""

    def close(self) -> None:
        """Kill it, where it still runs."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def started_intake(target: str | None, place: str = "") -> Iterator[Intake]:
    """The process that will read the function at a place in, for a target of that name."""
    cuda = holds_cuda(Path(place.rpartition(":")[0]))
    intake = Intake(CUDA if cuda else PALLAS if target and _TPU.fullmatch(target) else MAIN)
    try:
        yield intake
    finally:
        intake.close()


def ask(
    path: Path,
    function: str | None,
    reference: str,
    calls: Sequence[str],
    target: Target,
    program: str = MAIN,
    intake: Intake | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    values: str = "",
) -> dict[str, Any]:
    """The child's answer. Raises UserError where it gives none.

    ``intake``: a process that was started before, and is closed by who started it; one of another program is not asked.
    ``meanwhile``: called once while the child works.
    """
    own = None if intake is not None and intake.program == program else Intake(program)
    process = own or intake
    assert process is not None
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-intake-") as folder:
            request = {
                "path": str(path.resolve()),
                "function": function,
                "reference": reference,
                "calls": list(calls),
                "folder": folder,
                "part": part_of(target),
                "target": target.name,
                "values": values,
            }
            out, err = process.answer(request, SECONDS, meanwhile)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{path.name}: reading {function} took more than {SECONDS:.0f} s.") from error
    finally:
        if own is not None:
            own.close()
    try:
        answer = json.loads(out)
    except ValueError as error:
        last = " ".join(err.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        if found := re.search(r"No module named '(jax|torch|triton)", last):
            extra = "tpu" if found[1] == "jax" else "triton"
            raise UserError(f"{found[1]} is not installed; pip install 'tilewright[{extra}]'.") from error
        raise UserError(
            f"{path.name}: the process that reads {function} ended without an answer: {last or 'it says no reason'}."
        ) from error
    if not isinstance(answer, dict):
        raise UserError(f"{path.name}: the process that reads {function} gave no answer.")
    return answer


TRIAL = "winner_trial"
TRIAL_SECONDS = 120.0
"""Most that the recorded calls of a winner's module may take, in Triton's interpreter, too."""


@contextlib.contextmanager
def started_trial(target: Target) -> Iterator[Intake]:
    """The process of ``try_winner``, to be started before a campaign: its imports take seconds."""
    imported = ("jax",) if target.entry == "build" else ("torch", "triton")
    trial = Intake(TRIAL, target.interpreted or target.compile_only or target.entry == "build", *imported)
    try:
        yield trial
    finally:
        trial.close()


def try_winner(path: Path, request: Any, answer: Mapping[str, Any], target: Target, trial: Intake) -> str:
    """Why a winner's module fails on a recorded call; empty where it does not. Where the interpreter is the device, one
    small shape will do."""
    slow = target.interpreted or target.compile_only
    question = {
        "path": str(path.resolve()),
        "of": str(request.path.resolve()),
        "function": request.name,
        "calls": list(answer.get("calls", request.calls)),
        "operands": answer["operands"],
        "dims": [*(answer["check"] if slow else ()), *answer["dims"]],
        "chip": None,
        "first": slow,
    }
    if target.entry == "build":
        question["chip"] = {"kind": target.chip.device_kind, "cores": target.chip.cores}
    err = b""
    try:
        out, err = trial.answer(question, TRIAL_SECONDS, lambda: None)
        return str(json.loads(out)["why"])
    except subprocess.TimeoutExpired:
        return f"it takes more than {TRIAL_SECONDS:.0f} s"
    except (ValueError, KeyError):
        return " ".join(err.decode(errors="replace").strip().splitlines()[-1:]) or "its process ended"


def calls_of_files(places: Sequence[str], of: Path, values: Path | None = None) -> list[str]:
    """The different calls that ``FILE`` or ``FILE:NAME`` hold, as texts, of the function of the file ``of``; their
    tensors are written to ``values``, in that order. Raises UserError."""
    pairs = [(p, "") if Path(p).is_file() else p.rpartition(":")[::2] for p in places]
    for place, (file, _) in zip(places, pairs, strict=True):
        if not Path(file or ".").is_file():
            raise UserError(f"--call: {place!r} names no file; write FILE.py, or FILE.py:NAME.")
    program = [sys.executable, "-m", "tilewright.workers.intake.calls.file_calls"]
    command = [*program, str(of) if of.suffix == ".py" else "", str(values or "")]
    command += [part for pair in pairs for part in pair]
    listed = ", ".join(file for file, _ in pairs)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=CALLS_SECONDS,
            check=False,
            env=own_environment(JAX_PLATFORMS="cpu"),
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"--call: {listed} took more than {CALLS_SECONDS} s to make its calls.") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"--call: {listed} cannot be run: {last}") from error
    if "why" in answer:
        raise UserError(f"--call: {answer['why']}.")
    return [str(text) for text in answer["calls"]]
