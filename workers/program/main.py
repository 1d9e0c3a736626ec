"""``python -m tilewright.workers.program.main REQUEST ANSWER``: runs a program and writes what was found."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.library.launch_replacement import Option, Replacement
from tilewright.workers.program.launches import Launch
from tilewright.workers.program.options import search_options
from tilewright.workers.program.prove import Proof
from tilewright.workers.program.record import ALLOCATES, DIFFERS, RANDOM, STREAMS, Recorded, record
from tilewright.workers.program.search import Found, Job, Outcomes, search
from tilewright.workers.program.step import BadStep, Program, program_of

UNLIKE = (RANDOM, ALLOCATES, DIFFERS, STREAMS)
"""Faults of a step that nothing can be proved of."""

FP8_WORTH = 0.98
LEAST_SECONDS = 1.5e-6
WORTH = 0.001
"""Share of the step below which a launch's headroom is not searched."""


def answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a request.

    ``path``, ``step``, ``setup``: the program. ``part``: ``record``, ``tune`` or ``prove``. ``seconds``,
    ``prove_seconds``: the budgets of the search and of the proof's rounds. ``fp8``: whether linear layers are replaced.
    ``kept``: the file of the search's outcomes. ``faster``: a file whose replacements are proved instead of searched
    ones. The answer has ``why`` alone for a step that cannot be used.
    """
    try:
        program = program_of(request["path"], request["step"], request.get("setup") or "")
        return answer_about(program, request, lambda line: print(line, flush=True))  # noqa: T201
    except BadStep as error:
        return {"why": str(error)}


def answer_about(
    program: Program,
    request: Mapping[str, Any],
    say: Callable[[str], None],
    given: Sequence[Replacement] = (),
) -> dict[str, Any]:
    """The same of a program in this process. ``given``: replacements that are proved instead. Raises BadStep."""
    part = request.get("part", "record")
    recorded = record(program, keep_values=part != "record")
    answer: dict[str, Any] = {"record": recorded.data}
    if part == "record":
        return answer
    for fault in UNLIKE:
        if fault in recorded.data["faults"]:
            raise BadStep(f"{program.name} {fault}; a proof needs steps that are alike")
    replacements: list[Replacement | Option] = list(given)
    if request.get("faster"):
        replacements = _of_file(Path(request["faster"]))
    elif not replacements:
        kept = Outcomes(Path(request["kept"]) if request.get("kept") else None)
        outcomes = search(_worth_it(recorded), float(request.get("seconds", 60.0)), say, kept)
        answer["found"] = [_outcome(found) for found in outcomes]
        options = search_options(recorded, kept.options, kept.mark, say)
        answer["options"] = [{"label": option.label, "gain": gain} for option, gain in options]
        replacements = [*(option for option, _ in options), *_replacements(outcomes, recorded.launches)]
    shapes = _fp8_shapes(recorded.data) if request.get("fp8") else []
    if part == "tune":
        checked = Proof(program, recorded, replacements)
        checked.check_answers()
        replacements = [*checked.kept, *checked.pins]
        answer["left_out"] = checked.left_out
    else:
        layers = _layers(shapes)
        proof = Proof(program, recorded, replacements, layers)
        outcome = proof.run(float(request.get("prove_seconds", 40.0)))
        outcome["predicted"] = _predicted(recorded, answer, proof.kept)
        answer["proof"] = outcome
        replacements = [*proof.kept, *proof.pins]
        shapes = shapes if proof.layers is not None else []
        own = [r.label for r in replacements if isinstance(r, Replacement) and r.winner is not None]
        if own:  # faster.py holds no source, and would install the step's own kernels instead
            outcome["notes"].append(f"no faster.py: install {', '.join(own)} from the given file")
            replacements, shapes = [], []
    answer["replacements"] = [
        {
            "module": r.module,
            "name": r.name,
            "option": r.option,
            "value": r.value,
            "known": repr(sorted(r.known, key=repr)),
        }
        if isinstance(r, Option)
        else {
            "module": r.module,
            "name": r.name,
            "launches": repr(list(r.launches.items())),
            "pinned": r.pinned,
        }
        for r in replacements
    ]
    answer["fp8_shapes"] = shapes
    return answer


def _fp8_shapes(record: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """The linear layers that were measured to be faster in FP8."""
    return sorted({(m, n, k) for m, n, k, _, bf16, fp8 in record["linear_seconds"] if fp8 < FP8_WORTH * bf16})


def _layers(shapes: Sequence[Sequence[int]]) -> Any:
    if not shapes:
        return None
    from tilewright.library.torch_linear_replacement import LinearLayers

    return LinearLayers([(s[0], s[1], s[2]) for s in shapes])


def _worth_it(recorded: Recorded) -> list[Job]:
    """Launches that a configuration could improve, with the seconds of the step above their floors; the most first."""
    copy, wall = recorded.data["device"]["copy"], recorded.data["wall_seconds"]
    found = []
    for row in recorded.data["rows"]:
        if row["kind"] != "triton" or row["launch"] is None:
            continue
        launch = recorded.launches[row["launch"]]
        if not launch.name or launch.values is None or launch.hooked:
            continue
        floor = row["calls"] * max(LEAST_SECONDS, launch.bytes / copy) if copy else 0.0
        headroom = max(0.0, row["seconds"] - floor)
        if not copy or headroom > WORTH * wall:
            found.append(Job(launch, headroom, row["seconds"] / max(1, row["calls"])))
    return sorted(found, key=lambda job: -job.weight)


def _replacements(outcomes: Sequence[Found], launches: Sequence[Launch]) -> list[Replacement]:
    """Those of the configurations found; of kernels with a tuner of their own, all launches: it need not run then."""
    found = {outcome.launch.number: outcome.configuration for outcome in outcomes}
    chosen: dict[tuple[str, str], dict[Any, Any]] = {}
    better = set()
    for launch in launches:
        configuration, place = found.get(launch.number), (launch.module, launch.name)
        tuned = hasattr(launch.outer, "configs") and not launch.hooked and launch.values is not None
        if not launch.name or not (configuration or tuned):
            continue
        chosen.setdefault(place, {})[launch.key] = {**launch.chosen, **(configuration or {})}
        if configuration:
            better.add(place)
    return [Replacement(*place, launches, pinned=place not in better) for place, launches in chosen.items()]


def _of_file(path: Path) -> list[Replacement | Option]:
    """The replacements of a file that ``tilewright program`` wrote, or that was written by hand. Raises BadStep."""
    spec = importlib.util.spec_from_file_location("tilewright_faster", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadStep(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return [
            Replacement(r.module, r.name, dict(r.launches), r.winner, r.pinned) for r in module.REPLACEMENTS
        ]
    except AttributeError as error:
        raise BadStep(f"{path.name} has no REPLACEMENTS") from error


def _as_here(r: Any) -> Replacement | Option:
    """A replacement of another file's own copy of the run time."""
    if hasattr(r, "option"):
        return Option(r.module, r.name, r.option, r.value, frozenset(r.known))
    return Replacement(r.module, r.name, dict(r.launches), r.winner, r.pinned)


def _predicted(recorded: Recorded, answer: Mapping[str, Any], kept: Sequence[Replacement | Option]) -> float:
    """The step's gain by what was measured of each part alone: a launch saves its share times its calls."""
    labels, wall = {r.label for r in kept}, recorded.data["wall_seconds"]
    saved = 0.0
    for found in answer.get("found", ()):
        if f"{found['module']}.{found['name']}" in labels:
            row = next((r for r in recorded.data["rows"] if r["launch"] == found["launch"]), None)
            saved += row["seconds"] * (1 - 1 / found["gain"]) if row is not None else 0.0
    saved += sum(wall * (1 - 1 / row["gain"]) for row in answer.get("options", ()) if row["label"] in labels)
    return wall / max(wall - saved, 1e-12)


def _outcome(found: Found) -> dict[str, Any]:
    launch = found.launch
    return {
        "launch": launch.number, "kernel": launch.kernel, "module": launch.module, "name": launch.name,
        "arguments": launch.text, "seconds": found.seconds, "configuration": found.configuration,
        "gain": found.gain, "interval": found.interval, "tried": found.tried, "why": found.why,
        "wrong": len(found.wrong),
    }  # fmt: skip


def main() -> None:
    """Answer one request."""
    request, answer = map(Path, sys.argv[1:3])
    found = answer_to(json.loads(request.read_text(encoding="utf-8")))
    answer.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
