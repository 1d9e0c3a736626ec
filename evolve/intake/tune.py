"""From a function to a campaign: read it in, write its operator folder, configure the campaign, export the winner."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import itertools
import os
import platform
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.campaign.config import CampaignConfig, parse_config
from tilewright.evolve.campaign.targets import named_target
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child, folder, preflight
from tilewright.evolve.intake.child import CUDA_SUFFIX, holds_cuda, languages
from tilewright.evolve.intake.remedies import Obstacle, obstacles_of
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import TUNED, Journal
from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target, UnknownTarget, load_target, target_text
from tilewright.fitness.tpu.structure import timed_alone
from tilewright.workers.intake.calls.kept_values import FILE
from tilewright.workers.intake.judge.self_reference import SELF, begun_process
from tilewright.workers.toolchains import tpu

if TYPE_CHECKING:
    from tilewright.api import RecordedCampaign

IN_FLIGHT = (4, 16)
"""Least and most candidates that are compiled and measured at once on a GPU: one for two cores."""

COMPILE_SECONDS = 30.0
"""Most that one candidate may take to compile: the last of a short campaign is waited for by whoever sits before it."""

Say = Callable[[str], None]


class IntakeRefused(UserError):
    """The function cannot be tuned; ``refusals`` holds every reason."""

    def __init__(self, message: str, refusals: Sequence[Obstacle]) -> None:
        super().__init__(message)
        self.refusals = list(refusals)


@dataclass(frozen=True)
class Request:
    """What to tune: a function of a file, as called, judged by ``reference``: ``module.name``, ``FILE:name``, or SELF
    for the function as it stands."""

    path: Path
    function: str
    reference: str
    calls: tuple[str, ...]
    values: str = ""
    """File of the calls' own values, by number of call and tensor (see ``kept_values``); empty where there are none."""

    made: str = ""
    """A passing folder of the files that were written for the function; they will lie in the operator's."""

    @property
    def name(self) -> str:
        """The function's name as a folder and a campaign may have it."""
        plain = re.sub(r"\([^()]*\)", "", self.function.lower()).removesuffix(".apply")
        plain = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
        return plain or "kernel"


def unreadable(path: Path, error: Exception) -> str:
    """Why a file cannot be used, as a sentence without its end."""
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror}"
    if isinstance(error, SyntaxError):
        return f"{path} is not Python: line {error.lineno or 1}, {error.msg}"
    return f"{path} is not Python: {error}"


def parse_place(text: str) -> tuple[Path, str | None]:
    """``FILE:function``, ``FILE``, or a folder. Raises UserError."""
    file, colon, function = text.rpartition(":")
    if not colon:
        file, function = text, ""
    from tilewright.evolve.intake.problems import language_of

    path = Path(file)
    if path.is_dir():
        return path, None
    if other := language_of(path):
        raise UserError(f"{path.name} is {other}.")
    if path.suffix == CUDA_SUFFIX and path.is_file():
        if not function:
            raise UserError(f"which function of {path}? Write {path}:FUNCTION.")
        return path, function
    if path.suffix != ".py":
        raise UserError(f"{text!r} names no Python file; write FILE.py:function.")
    if not path.is_file():
        raise UserError(f"{path} does not exist in {Path.cwd()}; name a file that does, as FILE.py:function.")
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError) as error:
        raise UserError(f"{unreadable(path, error)}.") from error
    return path, function or None


def resolve_reference(text: str) -> str:
    """With the file's path made absolute. Raises UserError for a file that is not there."""
    if text == SELF:
        return text
    from tilewright.evolve.intake.problems import reference_name_in

    file, colon, name = text.rpartition(":")
    if not colon and Path(text).suffix in (".py", ".json"):
        file, name = text, reference_name_in(Path(text))
        if not name:
            raise UserError(f"--reference: which function of {text}? Write {text}:FUNCTION.")
    elif not colon:
        return text
    if not Path(file).is_file():
        raise UserError(f"--reference: {file} does not exist.")
    return f"{Path(file).resolve()}:{name}"


def ask_intake(
    request: Request, target: Target, intake: child.Intake | None = None, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """What the child makes of it (see ``child.ask``); of a part alone, with the request ``asked`` for that. Raises
    IntakeRefused, UserError."""
    program = child.PALLAS if target.entry == "build" else child.MAIN
    if holds_cuda(request.path):
        program = child.CUDA
        backend = getattr(target.part, "backend", "cuda")
        if target.entry == "build" or target.gpu_interpreter or backend == "hip":
            raise UserError(f"target: {target.name} runs no CUDA C++; use cuda with an NVIDIA GPU, or sm_90.")
    if program == child.PALLAS:
        tpu.silence_libtpu()
    if program == child.PALLAS and languages(request.path) == {"triton"}:
        raise UserError(
            f"target: {target.name} takes Pallas functions, and {request.path.name} imports Triton; leave --target "
            "out for this machine's GPU, or the interpreter."
        )
    if request.reference == SELF and program != child.CUDA:
        begun_process(program == child.MAIN)  # the campaign will ask it
    answer = child.ask(
        request.path,
        request.function,
        request.reference,
        request.calls,
        target,
        program,
        intake,
        meanwhile,
        request.values,
    )
    found = obstacles_of(answer.get("refusals", ()), request.path.name)
    if found:
        listed = "\n  ".join(r.text() for r in found)
        raise IntakeRefused(f"{request.path.name}:{request.function} cannot be tuned: {listed}", found)
    if part := answer.get("cut"):
        if not request.made:
            raise UserError(f"{request.path.name}:{request.function} cannot be tuned: {part['why']}.")
        path = Path(request.made) / f"{part['function']}.py"
        folder.put(path, part["text"])
        judge = f"{path}:reference"
        asked = replace(request, path=path, function=part["function"], reference=judge, calls=(part["call"],))
        answer = ask_intake(asked, target)
        return {**answer, "asked": asked, "notes": [part["note"], *answer["notes"]]}
    return answer


def target_named(name: str | None) -> Target:
    """The target of that name, or of this machine. Raises UserError."""
    if name is None:
        from tilewright.workers.toolchains.triton import gpu_count

        name = "cuda" if gpu_count() else "interpreter"
    try:
        return load_target(named_target(name))
    except UnknownTarget as error:
        raise UserError(f"{error}.") from error


def config_of(
    request: Request, target: Target, where: Path, overrides: Mapping[str, Any] | None = None
) -> CampaignConfig:
    """The campaign on a written folder. The interpreter, whose times mean nothing, runs the small shapes."""
    data = {**config_data(request, target, overrides), "operator": f"{os.path.realpath(where)}/{folder.RECIPE}"}
    return parse_config(data, "tune")


def config_data(request: Request, target: Target, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """The campaign's keys except ``operator``."""
    data: dict[str, Any] = {
        "name": request.name.replace("_", "-"),
        "target": target.name,
        "suite": folder.SMALL if target.interpreted or target.compile_only else folder.CALLS,
        "budget": {"evaluations": 64},
    }
    if target.measured and not (target.interpreted or isinstance(target.part, Chip)):
        # a device judges a small kernel sooner than one compiler makes the next; so few need no Ray
        least, most = IN_FLIGHT
        in_flight = min(most, max(least, len(os.sched_getaffinity(0)) // 2))
        data["search"] = {"lag": in_flight, "order": "arrival"}
        data["workers"] = {"measure_seconds": COMPILE_SECONDS, "count": in_flight}
    for key, value in (overrides or {}).items():
        section, _, last = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[last] = value
    return data


def output_folder(name: str, function: str, out: Path | None, overwrite: bool) -> Path:
    """``out``, or ``NAME_tuned`` with the first free number. A user may have edited what an earlier call wrote there.

    Raises UserError where ``out`` holds a file that ``tune`` writes, unless it may ``overwrite``.
    """
    where = out or Path(f"{name}_tuned")
    held = folder.written_in(where, f"{function}.py")
    if overwrite or not held:
        return where
    if out is not None:
        raise UserError(
            f"--out: {where} holds {held[0]}, which tune would replace; name another folder, or add --overwrite."
        )
    numbered = (Path(f"{name}_tuned_{number}") for number in itertools.count(2))
    return next(path for path in numbered if not folder.written_in(path, f"{function}.py"))


def warm_up(request: Request) -> None:
    """Import what the campaign needs and load the reference, while the intake works: each takes seconds."""
    import tilewright.evolve.proposers.rewrite.registry
    import tilewright.evolve.run  # noqa: F401
    from tilewright.workers.intake.judge.reference import function_of

    with contextlib.suppress(Exception):  # the intake reports it
        function_of(request.reference)


def prepare(
    request: Request,
    target: Target,
    where: Path,
    say: Say,
    intake: child.Intake | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Read the function in, show what was found, and write the folder. Raises IntakeRefused, UserError."""
    new = not where.exists()
    answer = ask_intake(request, target, intake, lambda: warm_up(request))
    say(f"{request.path.name}:{request.function} -> {where}/: operator.py, kernels/{folder.SEED}.py, {folder.CAMPAIGN}")
    request = answer.get("asked", request)
    for line in preflight.screen(answer, request.reference, target.label):
        say(line)
    # the device judges the function meanwhile
    threading.Thread(target=_say_rewrites, args=(answer, target, say)).start()
    if target.gpu_interpreter:
        say(preflight.interpreter_line(answer))
    try:
        where.mkdir(parents=True, exist_ok=not new)
        reference = write_operator(request, answer, where)
        if "asked" in answer:
            folder.put(where / request.path.name, request.path.read_text(encoding="utf-8-sig"))
            asked = replace(request, path=where.resolve() / request.path.name, reference=reference)
            answer = {**answer, "asked": asked}
        folder.write_campaign(where, config_data(request, target, overrides))
    except FileExistsError as error:
        raise UserError(f"--out: another tune has written {where} meanwhile; run this one again.") from error
    except OSError as error:
        if new:  # nothing half-written stays
            shutil.rmtree(where, ignore_errors=True)
        raise UserError(f"--out: cannot write {where}: {error.strerror}.") from error
    kept = str(where / FILE)  # the child's own file is gone
    return {**answer, "operands": [[*row[:-1], kept if row[-1] else ""] for row in answer["operands"]]}


def _say_rewrites(answer: Mapping[str, Any], target: Target, say: Say) -> None:
    for line in preflight.rewrites(answer, target):
        say(line)


def write_operator(request: Request, answer: Mapping[str, Any], where: Path) -> str:
    """Write the operator and its kernels; the reference as they name it. Raises OSError."""
    reference = request.reference
    if request.made:
        reference = reference.replace(request.made, str(where.resolve()))
    folder.write(where, f"{request.function} of {request.path.name}", reference, answer, request.values)
    return reference


def export(
    campaign: RecordedCampaign,
    request: Request,
    answer: Mapping[str, Any],
    where: Path,
    target: Target,
    trial: child.Intake,
) -> Path:
    """Write the winner (where none is faster, the seed) as a plain module beside the operator, import it and make the
    recorded calls in the process ``trial``; its path. Raises UserError where a call fails."""
    from tilewright.evolve.intake.winner import gain_of, winner_module

    request, winner = answer.get("asked", request), campaign.winner
    slower = not target.interpreted and (gain_of(campaign) or 1.0) < 1.0  # as the last comparison found
    if slower or (target.compile_only and holds_cuda(request.path)):
        winner = None  # nothing has judged what another configuration of such a file computes
    source = winner["source"] if winner else answer["source"]
    params = winner["params"] if winner else answer["defaults"]
    path = module_path(request, answer, where)
    part = path.with_suffix(".part.py")
    text = winner_module(source, params, request, answer, note_of(campaign, request, answer, target, where), where)
    try:
        part.write_text(text, encoding="utf-8")
        why = child.try_winner(part, request, answer, target, trial)
        if why:
            raise UserError(f"{part}: the winner's module fails on a recorded call: {why}.")
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"--out: cannot write {path}: {error.strerror}.") from error
    return path


def module_path(request: Request, answer: Mapping[str, Any], where: Path) -> Path:
    """Where the winner of a tuned function lies, beside its operator."""
    return where / f"{request.name}{'_tuned' * ('asked' in answer)}.py"


def tuned_entry(request: Request, answer: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """What ``export`` needs beside the campaign, for its journal."""
    asked = answer.get("asked", request)
    row = {**asdict(asked), "path": str(asked.path.resolve())}
    return {"request": row, "answer": {**answer, "asked": "asked" in answer}, "where": str(where.resolve())}


def export_resumed(campaign: RecordedCampaign, *, again: bool) -> tuple[Path, Request, Target] | None:
    """Write the module of a finished campaign that tuned a function, where it is not there, or ``again``; with whose it
    is and its target. None where there was nothing to write. Raises UserError."""
    with Journal(campaign.folder / JOURNAL) as journal:
        entry, config = journal.meta(TUNED), journal.meta("config")
    if entry is None or campaign.state != "finished":
        return None
    row, where = entry["request"], Path(entry["where"])
    request = Request(**{**row, "path": Path(row["path"]), "calls": tuple(row["calls"])})
    answer = {key: value for key, value in entry["answer"].items() if key != "asked"}
    answer |= {"asked": request} if entry["answer"]["asked"] else {}
    if module_path(request, answer, where).exists() and not again:
        return None
    target = target_named(config["target"])
    with child.started_trial(target) as trial:
        return export(campaign, request, answer, where, target, trial), request, target


def note_of(
    campaign: RecordedCampaign, request: Request, answer: Mapping[str, Any], target: Target, where: Path
) -> str:
    """The head of a winner's module: gain, target, versions, what it serves and what it leaves out."""
    from tilewright.evolve.intake.winner import gain_of

    kind = "modelled" if isinstance(target.part, Chip) else "measured"
    kind += ", of the kernels alone" if timed_alone(frozenset(answer.get("beside", ()))) else ""
    rate = f"times the rate of the original configuration ({target_text(target.name)}, {kind})"
    figure = f"{max(1.0, gain_of(campaign) or 0.0):.2f} {rate}"
    if target.interpreted or target.compile_only:
        figure = f"unknown: {target.name} gives no times"
    versions = [f"Python {platform.python_version()}"]
    for name in (*(("jax",) if target.entry == "build" else ("torch", "triton")), "tilewright"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    left = "".join(f"  - {line}\n" for line in answer.get("left_out", ()))
    lost = f"\nLeft out, which the original does:\n{left}" if left else ""
    place = os.path.relpath(request.path.resolve(), where.resolve())
    text = (
        f"{request.function} of {request.path.name}, tuned for {target.label}: winner of campaign {campaign.id}.\n\n"
        f"Gain: {figure}.\nMade with {', '.join(versions)}.\n"
        f"It serves the calls that were tuned: {'; '.join(request.calls)}.\n"
        f"Every other call goes to the original: {place}, as seen from this folder; keep the two so.\n"
        f"Gradients: {preflight.gradients(answer)}.\n{lost}"
    )
    return text.replace("\\", "/").replace('"', "'")
