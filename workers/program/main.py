"""``python -m tilewright.workers.program.main REQUEST ANSWER``: runs a program and writes what was found."""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tilewright.fitness.original import data_of
from tilewright.library.launch_replacement import Option, Replacement, Winner
from tilewright.workers.program.launches import Launch, is_wrapped
from tilewright.workers.program.options import search_options
from tilewright.workers.program.prove import Proof
from tilewright.workers.program.record import UNLIKE, Recorded, record
from tilewright.workers.program.scout import limited, scouted
from tilewright.workers.program.search import Found, Job, Outcomes, search
from tilewright.workers.program.step import BadStep, Program, loaded, program_of, reason
from tilewright.workers.runners.triton.live_launch import interpreted

BEGUN = time.monotonic()

WORTH = 0.001
"""Share of the step below which a launch's headroom is not searched."""

HIDES = 2.0
"""Times the device's seconds: a host that takes so long to issue a step hides what kernels gain."""


def answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a request.

    Its keys are what ``evolve.program.run`` asks for, ``part``: ``record``, ``tune`` or ``prove``, and ``kept``:
    the file of the search's outcomes. The answer has ``why`` alone for a step that cannot be used.
    """

    def load() -> Program:
        return program_of(request["path"], request["step"], request.get("setup") or "")

    try:
        _say("  looking ahead: compiling what the step launches")
        ahead = scouted(load)
        if ahead:
            found = ahead.get("why") or f"{ahead['kernels']} kernel(s) compiled in {ahead['compiling']:.0f} s"
            _say(f"  looked ahead in {ahead['seconds']:.0f} s: {found}")
        if torch.cuda.is_available():
            return _answered(load(), ahead, request)
        _say("  no GPU: Triton's interpreter runs the kernels, and its times mean nothing")
        with interpreted(), limited([]):
            return _answered(load(), ahead, request)
    except BadStep as error:
        return {"why": str(error)}


def _answered(program: Program, ahead: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    part = request.get("part", "record")
    recorded = record(program, ahead, part != "record", _say)
    answer: dict[str, Any] = {"record": recorded.data, "layers": ""}
    _say(f"  recorded: {1e3 * recorded.data['wall_seconds']:.2f} ms a step")
    if part == "record":
        return answer
    for fault in UNLIKE:
        if fault in recorded.data["faults"]:
            raise BadStep(f"{program.name} {fault}; a proof needs steps that are alike, and results")
    if request.get("faster"):
        replacements = _of_file(Path(request["faster"]))
    else:
        kept = Outcomes(Path(request["kept"]))
        seconds = float(request.get("seconds", 60.0))
        found = search(_worth_it(recorded), seconds, _say, kept)
        answer["found"] = [outcome.row() for outcome in found]
        options = search_options(recorded, seconds, kept, _say)
        replacements = [*options, *_replacements(_worth_proving(found, recorded), recorded.launches)]
    layers, fp8 = None, recorded.data["fp8"]
    once = request.get("fp8") == "kept" and bool(fp8["kept"])
    if request.get("fp8") and (shapes := fp8["kept" if once else "shapes"]):
        from tilewright.library.torch_linear_replacement import LinearLayers

        layers = LinearLayers(shapes, once)
    replacements += map(_winner_of, map(Path, request.get("winners", ())))
    proof = Proof(program, recorded, replacements, layers, _say)
    if part == "tune":
        proof.check_answers()
        answer["left_out"] = proof.left_out
    else:
        answer["proof"] = outcome = proof.run(float(request.get("prove_seconds", 90.0)))
        if proof.fp8 in proof.parts:
            answer["layers"] = repr(layers)
        own = [r.label for r in proof.kept if isinstance(r, Replacement) and r.winner is not None]
        if own:  # faster.py holds no source, and would install the step's own kernels instead
            outcome["notes"].append(f"no faster.py: install {', '.join(own)} from the given file")
            return {**answer, "replacements": [], "layers": ""}
    # not by the name of the user's own module, which would then be found beside faster.py
    files = {r.file: f"winner_{Path(r.file).name}" for r in proof.kept if isinstance(r, Winner)}
    answer["winners"] = files
    beside = (replace(r, file=files[r.file]) if isinstance(r, Winner) else r for r in proof.kept)
    answer["replacements"] = list(map(repr, beside))  # the expressions that make them, for faster.py
    return answer


def _say(line: str) -> None:
    """Print a line, and another one whenever nothing else is said for some seconds."""
    print(f"{time.monotonic() - BEGUN:5.0f} s{line}", flush=True)  # noqa: T201
    _AFTER[0].cancel()
    _AFTER[0] = threading.Timer(SILENT_SECONDS, _say, ["  ..."])
    _AFTER[0].daemon = True
    _AFTER[0].start()


SILENT_SECONDS, _AFTER = 9.0, [threading.Timer(0.0, str)]


def _worth_it(recorded: Recorded) -> list[Job]:
    """Launches that a configuration could improve, with the seconds of the step above their floors; the most first."""
    device, wall = recorded.data["device"]["product"], recorded.data["wall_seconds"]
    host, busy = recorded.data["host_seconds"], recorded.data["busy_seconds"]
    if not recorded.data["graph"] and host > HIDES * busy > 0:
        times = f"the host issues in {1e3 * host:.1f} ms what runs in {1e3 * busy:.1f} ms"
        _say(f"  kernels are not searched: {times}")
        return []
    found = []
    for row in recorded.data["rows"]:
        if row["kind"] != "triton" or row["launch"] is None:
            continue
        launch = recorded.launches[row["launch"]]
        if launch.left or launch.values is None:
            _say(f"  {launch.kernel}: not searched, {launch.left or 'its values were not kept'}")
            continue
        headroom = row["seconds"] - row["floor"]
        if not device or headroom > WORTH * wall:
            found.append(Job(launch, headroom, row["seconds"] / max(1, row["calls"])))
    return sorted(found, key=lambda job: -job.weight)


def _worth_proving(found: Sequence[Found], recorded: Recorded) -> list[Found]:
    """Outcomes of the kernels that save enough of the step: what saves less is not seen beside its noise."""
    seconds = {row["launch"]: row["seconds"] for row in recorded.data["rows"]}
    saved: Counter[str] = Counter()
    for of in found:
        saved[of.launch.kernel] += seconds.get(of.launch.number, 0.0) * (1 - 1 / of.gain)
    least = WORTH * recorded.data["wall_seconds"] if recorded.data["device"]["product"] else 0.0
    for name in {of.launch.kernel for of in found if of.configuration and saved[of.launch.kernel] < least}:
        _say(f"  {name}: not proved, it saves {1e6 * saved[name]:.1f} us of the step, below {WORTH:.1%}")
    return [of for of in found if saved[of.launch.kernel] >= least]


def _replacements(outcomes: Sequence[Found], launches: Sequence[Launch]) -> list[Replacement]:
    """Those of the configurations found; of kernels with a tuner or heuristics, all launches: these need not run then.
    Triton itself looks at a launch's arguments in less time than a replacement does."""
    found = {outcome.launch.number: outcome.configuration for outcome in outcomes}
    chosen: dict[tuple[str, str], dict[Any, Any]] = {}
    better = set()
    for launch in launches:
        configuration, place = found.get(launch.number), (launch.module, launch.name)
        direct = launch.values is not None and is_wrapped(launch.outer)
        if launch.left or not (configuration or direct):
            continue
        chosen.setdefault(place, {})[launch.key] = {**launch.chosen, **(configuration or {})}
        if configuration:
            better.add(place)
    return [Replacement(*place, launches, pinned=place not in better) for place, launches in chosen.items()]


def _winner_of(path: Path) -> Winner:
    """The function that a winner's module stands for, whose text alone is read. Raises BadStep."""
    try:
        served = data_of(path.read_text("utf-8"), "SERVED") or {}
        (_, _, module, name), _ = served["original"], served["winner"]
    except (SyntaxError, LookupError, TypeError, ValueError) as error:
        why = f"no winner's module, or of an earlier tilewright: {reason(error)}; tune the function again"
        raise BadStep(f"{path.name} is {why}") from error
    if not name.removesuffix(".apply").isidentifier():
        raise BadStep(f"{path.name} is the winner of {name}; a function or Class.apply can be replaced")
    return Winner(module, name, str(path.resolve()))


def _of_file(path: Path) -> list[Replacement | Option | Winner]:
    """The replacements of a file that ``tilewright program`` wrote, or that was written by hand. Raises BadStep."""
    found = loaded(path)
    if "REPLACEMENTS" not in found:
        raise BadStep(f"{path.name} has no REPLACEMENTS")
    return [
        Option(r.module, r.name, r.option, r.value, r.known)
        if hasattr(r, "option")
        else Winner(r.module, r.name, str((path.parent / r.file).resolve()))
        if hasattr(r, "file")
        else Replacement(r.module, r.name, dict(r.launches), r.winner, r.pinned)
        for r in found["REPLACEMENTS"]  # of the file's own copy of the run time
    ]


def main() -> None:
    """Answer one request."""
    request, answer = map(Path, sys.argv[1:3])
    answer.write_text(json.dumps(answer_to(json.loads(request.read_text("utf-8")))), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads that the program started do not keep it


if __name__ == "__main__":
    main()
