"""Dispatch tables: which genome serves which shape, and what to do with a shape nobody measured.

A campaign on a measured target ends with its best genomes side by side on the device
(``workers.device.comparison``). The
table starts from the one genome that is best overall; each further genome must earn its place: it is added, the most
useful first, only while it makes the geometric mean over the suite faster by ``MARGIN``, counting only shapes where
its paired interval excludes "no faster". Few genomes are few binaries to load, to promote and to keep correct.

Which entry serves a shape outside the table is the library's own rule (``library.dispatch_rule``), so that
what is promoted serves as it did here.

The file (``dispatch.json``, ``format`` 3; in format 2 there are no shares of the roofline, in format 1 no constants
either)::

    {"format": 3, "operator": "family/recipe", "target": "h200", "target_kind": "measured", "suite": "...",
     "toolchain": {"torch": "...", "triton": "...", "device": "..."},
     "entries": [{"workload": {"id": "...", "M": 4096, ...}, "genome": "<id>",
                  "figure": {"seconds": ..., "rate": ..., "unit": "TFLOP/s", "share": ...,
                             "ratio_to_default": ..., "interval": [low, high]}}],
     "genomes": {"<id>": {"source": "<dialect module>", "params": {...}}},
     "default": "<id>",
     "rule": {"kind": "nearest_region", "dims": ["M", "N", "K"], "reach": 64.0, "text": "..."},
     "constants": {"block": 128, ...},
     "margin": 0.002, "control": {"<workload id>": ratio}}

``ratio_to_default``: time of the default genome over that of the chosen one, paired. ``control``: the first genome
against itself in the same rounds, the noise of the comparison.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.space.genome import Genome
from tilewright.fitness.chips import Chip
from tilewright.fitness.gpus import Gpu
from tilewright.fitness.score import matrix_kind, rate, rate_unit, roofline_seconds
from tilewright.fitness.targets import target_text
from tilewright.library import dispatch_rule as rule
from tilewright.seeds.operator import Operator, Workload
from tilewright.workers.device.comparison import Comparison

FORMAT = 3
FILE = "dispatch.json"

MARGIN = 0.002
"""Gain of the suite's geometric mean that one more genome must bring."""

MOST_GENOMES = 12


@dataclass(frozen=True)
class Choice:
    """The genome chosen for one workload. ``ratio``: default's time over its own, with the 95 % interval."""

    workload: str
    genome: str
    seconds: float
    ratio: float
    low: float
    high: float


def choose(comparison: Comparison) -> list[Choice]:
    """One genome for each workload, few distinct ones. Raises ValueError for a comparison without genomes."""
    genomes, workloads = comparison.genomes, list(comparison.rounds)
    if not genomes:
        raise ValueError("a dispatch table needs at least one genome that passed")
    seconds = {g: {w: comparison.seconds(w, g) for w in workloads} for g in genomes}
    default = min(genomes, key=lambda g: sum(math.log(t) for t in seconds[g].values()))
    chosen = dict.fromkeys(workloads, default)
    kept = [default]
    while len(kept) < min(MOST_GENOMES, len(genomes)):
        offers = {g: _gains(comparison, seconds, chosen, g) for g in genomes if g not in kept}
        best = max(offers, key=lambda g: sum(offers[g].values()))
        if sum(offers[best].values()) / len(workloads) < math.log1p(MARGIN):
            break
        kept.append(best)
        chosen.update(dict.fromkeys(offers[best], best))
    return [_choice(comparison, w, g, default) for w, g in chosen.items()]


def _gains(
    comparison: Comparison, seconds: Mapping[str, Mapping[str, float]], chosen: Mapping[str, str], genome: str
) -> dict[str, float]:
    """Log gain by workload, where ``genome`` is surely faster than what is chosen there."""
    gains = {}
    for workload, held in chosen.items():
        gain = math.log(seconds[held][workload] / seconds[genome][workload])
        if gain > 0 and comparison.ratio(held, genome, [workload]).low > 1.0:
            gains[workload] = gain
    return gains


def _choice(comparison: Comparison, workload: str, genome: str, default: str) -> Choice:
    seconds = comparison.seconds(workload, genome)
    if genome == default:
        return Choice(workload, genome, seconds, 1.0, 1.0, 1.0)
    ratio = comparison.ratio(default, genome, [workload])
    return Choice(workload, genome, seconds, ratio.value, ratio.low, ratio.high)


def table(
    operator: Operator,
    workloads: Sequence[Workload],
    suite: str,
    comparison: Comparison,
    genomes: Mapping[str, Genome],
    constants: Mapping[str, float] | None = None,
    device: Gpu | Chip | None = None,
) -> dict[str, Any]:
    """The dispatch table as its file holds it. ``constants``: the target's, beside the operator's own.

    ``device``: whose roofline the shares are of; None: entries have none.
    """
    choices = {choice.workload: choice for choice in choose(comparison)}
    entries = []
    for workload in workloads:
        choice = choices[workload.id]
        figure = {
            "seconds": choice.seconds,
            "rate": rate(operator, workload, choice.seconds),
            "unit": rate_unit(operator),
            "ratio_to_default": choice.ratio,
            "interval": [choice.low, choice.high],
        }
        if device is not None:
            flops, size = operator.flops(workload), operator.bytes(workload)
            kind = matrix_kind(operator, operator.inputs(workload))
            figure["share"] = roofline_seconds(flops, size, device, kind) / choice.seconds
        entries.append({"workload": {"id": workload.id, **workload.dims}, "genome": choice.genome, "figure": figure})
    used = list(dict.fromkeys(choice.genome for choice in choices.values()))
    seconds = {g: [comparison.seconds(w.id, g) for w in workloads] for g in comparison.genomes}
    default = min(seconds, key=lambda g: sum(map(math.log, seconds[g])))
    return {
        "format": FORMAT,
        "operator": operator.name,
        "target": comparison.target,
        "target_kind": "measured",
        "suite": suite,
        "toolchain": dict(comparison.device),
        "entries": entries,
        "genomes": {
            g: {"source": genomes[g].source, "params": dict(genomes[g].params)} for g in dict.fromkeys([*used, default])
        },
        "default": default,
        "rule": {"kind": "nearest_region", "dims": list(workloads[0].dims), "reach": rule.REACH, "text": rule.TEXT},
        "constants": {**operator.constants, **(constants or {})},
        "margin": MARGIN,
        "control": comparison.control(),
    }


def write(dispatch: Mapping[str, Any], path: Path) -> None:
    """Write the file whole or not at all. Raises OSError."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(dispatch, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def lines(dispatch: Mapping[str, Any], numbers: Mapping[str, int]) -> list[str]:
    """The table for a terminal, a line for each workload; ``numbers``: of candidates by genome."""
    target = f"{target_text(dispatch['target'])}, {dispatch['target_kind']}"
    found = [f"dispatch ({target}):"]
    for entry in dispatch["entries"]:
        figure = entry["figure"]
        unit = figure.get("unit", "TFLOP/s")
        speed = figure["rate" if "rate" in figure else "tflops"]
        number = numbers.get(entry["genome"], entry["genome"])
        found.append(
            f"  {entry['workload']['id']:24s} candidate {number}  {figure['seconds'] * 1e6:8.1f} us "
            f"{speed:>6{'.0f' if speed >= 100 else '.3g'}} {unit}  {figure['ratio_to_default']:.3f} x default"
        )
    return found
