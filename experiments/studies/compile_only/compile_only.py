"""Every Triton family compiled for every compile-only target, and what the code says: a table, on a CPU.

    python -m experiments.studies.compile_only.compile_only --out experiments/records/compile_only/compile_only.md

Each kernel is compiled at its seed's parameters, for the first checked shape of its operator, in the confined child of
the compile-only cascade. The second part repeats published findings about AMD's matrix cores from the code alone.
Nothing here is a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import all_operators, families, load_operator
from tilewright.seeds.operator import Operator, SeedKernel, Suite
from tilewright.workers.cascade.compile_only import CompileOnlyCascade
from tilewright.workers.cascade.compile_only_stages import describe_children
from tilewright.workers.child.fresh import FreshChildren
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import GIB, Limits, one_line
from tilewright.workers.toolchains import triton as triton_toolchain

TARGETS = ("gfx950", "sm_100", "sm_90", "gfx942")
FINDINGS_FAMILY = Path(__file__).parent / "isa_findings"

WIDE = {"block_k": 256, "num_warps": 4, "epilogue": "turned"}
FINDINGS: Sequence[tuple[str, str, str, Mapping[str, Any]]] = (
    ("wgrad epilogue as it lies", "wgrad", "gfx950", {}),
    ("wgrad epilogue turned", "wgrad", "gfx950", {"epilogue": "turned"}),
    ("wgrad epilogue as it lies", "wgrad", "gfx942", {}),
    ("wgrad epilogue turned", "wgrad", "gfx942", {"epilogue": "turned"}),
    ("32 x 32 matrix instruction", "wgrad", "gfx950", WIDE),
    ("matrix_instr_nonkdim=16", "wgrad", "gfx950", {**WIDE, "nonkdim": 16}),
    ("forward 256 x 128, 8 warps", "forward", "gfx950", {"block_m": 256, "num_warps": 8}),
    (
        "the same, matrix_instr_nonkdim=16",
        "forward",
        "gfx950",
        {"block_m": 256, "num_warps": 8, "nonkdim": 16},
    ),
    ("wgrad num_stages=3", "wgrad", "gfx950", {"num_stages": 3}),
    ("wgrad num_stages=3, 256 wide, 8 warps", "wgrad", "gfx950", {**WIDE, "num_warps": 8, "num_stages": 3}),
    ("wgrad num_stages=3, 256 wide", "wgrad", "gfx942", {**WIDE, "num_stages": 3}),
)
"""What was published, the recipe, target and parameters (beside the seed's) to see it with."""

LIMITS = Limits(compile=ChildLimits(240.0, 8 * GIB))


@dataclass(frozen=True)
class Line:
    """One kernel on one target."""

    label: str
    target: str
    evaluation: Evaluation


def judged(
    compiler: FreshChildren, operator: Operator, kernel: SeedKernel, target: str, changes: Mapping[str, Any]
) -> Evaluation:
    """The compile-only verdict of a seed with some parameters changed."""
    (shape, *_) = next(iter(operator.suites.values())).check
    params = {**read_declarations(kernel.source).defaults, **kernel.overrides, **changes}
    suite = Suite("shape", (shape,), (shape,))
    cascade = CompileOnlyCascade(
        operator, load_target(target), suite, LIMITS, checked=False, compiler=compiler
    )
    return cascade.evaluate(kernel.name, kernel.source, params, seed=1)


def seeds_of_families(names: Sequence[str]) -> Iterable[tuple[str, Operator, SeedKernel]]:
    """Every Triton or Gluon seed of these families, with a label; of equal ones the first."""
    seen = set()
    for name, operator in all_operators().items():
        if name.split("/")[0] not in names:
            continue
        for kernel in operator.kernels.values():
            key = (kernel.source, repr(sorted(kernel.overrides.items())))
            if "triton" in kernel.source and key not in seen:
                seen.add(key)
                yield f"{operator.name} {kernel.name}", operator, kernel


def row(line: Line) -> str:
    """A line of the table; of several kernels, those with a matrix product first."""
    found = line.evaluation
    if found.verdict is not Verdict.OK:
        reason = one_line(found.reason, 200).replace("|", "\\|")
        return f"| {line.label} | {line.target} | {found.verdict.value} | {reason} | | | | | |"
    cells = []
    for kernel in sorted(found.compiled.values(), key=lambda k: not k["matrix"]):
        accumulators = f" ({kernel['accumulators']} AGPR)" if kernel["accumulators"] else ""
        spills = f"{kernel['spilled']}" + (
            f", {kernel['stack_bytes']} B stack" if kernel["stack_bytes"] else ""
        )
        cells.append(
            f"| {line.label} | {line.target} | ok | {kernel['registers']}{accumulators} | {spills} "
            f"| {kernel['shared'] / 1024:g} | {100 * kernel['occupancy']:g} % ({kernel['limit']}) "
            f"| {_counted(kernel['matrix'])} | {_counted(kernel['stores'])} |"
        )
    return "\n".join(cells)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} × `{name}`" for name, n in counts.items()) or "none"


HEAD = (
    "| kernel | target | verdict | registers per lane | spilled | shared, KiB | warps resident, at most (limit) "
    "| matrix instructions | global stores |\n|---|---|---|---|---|---|---|---|---|"
)


def document(seeds: Sequence[Line], findings: Sequence[Line], command: str, missing: int) -> str:
    """The whole page; ``missing`` pairs were not reached in the time given."""
    versions = ", ".join(f"{name} {version}" for name, version in triton_toolchain.toolchain().items())
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    passed = sum(line.evaluation.verdict is Verdict.OK for line in seeds)
    parts = [
        "# What compilers make of the families without a device",
        f"`{command}` on {date}; {versions}. Static counts from the compiled code (*compiled*: no times; an "
        "instruction in a loop counts once). Parameters are the seeds' own. "
        f"{passed} of {len(seeds)} pairs of kernel and target compile"
        + (f"; {missing} more were not reached in the time given." if missing else "."),
        "## Kernels that compile, of those tried\n\n" + summary(seeds),
        "## Published findings, from the code alone\n\n" + "\n".join([HEAD, *map(row, findings)]),
        "## Families × targets\n\n" + "\n".join([HEAD, *map(row, seeds)]),
    ]
    return "\n\n".join(parts) + "\n"


def summary(seeds: Sequence[Line]) -> str:
    """Families × targets, in counts."""
    tried: dict[str, dict[str, list[bool]]] = {}
    for line in seeds:
        family = tried.setdefault(line.label.split("/")[0], {})
        family.setdefault(line.target, []).append(line.evaluation.verdict is Verdict.OK)
    columns = [name for name in TARGETS if any(name in family for family in tried.values())]
    lines = [f"| family | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, family in tried.items():
        counts = (f"{sum(family[t])} of {len(family[t])}" if t in family else "" for t in columns)
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(lines)


class Records:
    """What was found before, kept as JSON lines, so that a survey can be done in pieces."""

    def __init__(self, path: Path | None, compiler: FreshChildren, deadline: float) -> None:
        self._path, self._compiler, self._deadline = path, compiler, deadline
        known = path.read_text(encoding="utf-8").splitlines() if path is not None and path.is_file() else []
        self._held = {tuple(key): text for key, text in map(json.loads, known)}

    def line(
        self, label: str, operator: Operator, kernel: SeedKernel, target: str, changes: Mapping[str, Any]
    ) -> Line | None:
        """A kernel's line, compiled now unless it is held; None when it is not held and time is up."""
        content = hashlib.sha256((kernel.source + repr(sorted(changes.items()))).encode()).hexdigest()[:12]
        key = (label, target, content)
        if key not in self._held:
            if time.monotonic() > self._deadline:
                return None
            found = judged(self._compiler, operator, kernel, target, changes)
            self._held[key] = found.model_dump_json()
            sys.stdout.write(row(Line(label, target, found)) + "\n")
            sys.stdout.flush()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self._held[key]]) + "\n")
        return Line(label, target, Evaluation.model_validate_json(self._held[key]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--families", nargs="*", default=families())
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=TARGETS)
    parser.add_argument(
        "--records", type=Path, help="JSON lines of what is known, added to; default: none kept"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no compilation after so long")
    args = parser.parse_args()
    compiler = describe_children()
    try:
        records = Records(args.records, compiler, time.monotonic() + args.seconds)
        findings, lines, missing = survey(records, args.families, args.targets)
    finally:
        compiler.close()
    command = f"python -m experiments.studies.compile_only.compile_only --out {args.out}"
    args.out.write_text(document(lines, findings, command, missing), encoding="utf-8")


def survey(
    records: Records, names: Sequence[str], targets: Sequence[str]
) -> tuple[list[Line], list[Line], int]:
    """The findings, every seed of these families on every target, and how many of these were not reached."""
    findings = []
    for label, recipe, target, changes in FINDINGS:
        operator = load_operator(f"{FINDINGS_FAMILY}/{recipe}")
        findings.append(records.line(label, operator, operator.kernels[recipe], target, changes))
    seeds = list(seeds_of_families(names))
    found = {
        (label, target): records.line(label, operator, kernel, target, {})
        for target in targets
        for label, operator, kernel in seeds
    }
    lines = [found[label, target] for label, _, _ in seeds for target in targets]
    reached = [line for line in lines if line]
    return [line for line in findings if line], reached, len(lines) - len(reached)


if __name__ == "__main__":
    main()
