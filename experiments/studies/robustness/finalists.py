"""Exploits of values and shapes, their twins, and every honest seed kernel, judged as finalists in many processes.

    nice python -m experiments.studies.robustness.finalists --parts zoo twins known corpus --out FOLDER

``zoo``: the exploits with a twin of their own (``testkit/exploits/values.py``), ``known``: the older ones, lot after
lot until one is stopped; ``twins``: what is honest about both, on ten seeds; ``corpus``: each seed kernel of each
family with its default parameters. Triton and Gluon run in the interpreter, or with ``--target h200`` on a GPU; Pallas
passes the gates of tpu7x. Each verdict is a line of ``finalists.jsonl`` as soon as it is there. Exit code 0 when all is
as it should be.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from testkit.exploits import values
from testkit.exploits.judges import finalist
from tilewright.fitness.dialect import is_cuda
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.library.dispatch_rule import Legality
from tilewright.seeds.catalogue import all_operators, load_operator
from tilewright.workers.cascade.drawn_shapes import declared

PARTS = ("zoo", "twins", "known", "corpus")
FIRST_LOT = 101
TWIN_SEEDS = tuple(range(10))
BATCH = 4
"""Of one operator, that a process judges in a row."""


@dataclass(frozen=True)
class Case:
    """``honest``: it must pass on all ``seeds``; else it must be stopped on one."""

    part: str
    operator: str
    name: str
    source: str
    params: Mapping[str, Any]
    seeds: tuple[int, ...]
    honest: bool


def cases(parts: Sequence[str], seeds: Sequence[int], device: bool = False) -> Iterator[Case]:
    for wrong in values.WRONG:
        params = values.params_of(wrong.operator)
        part = "zoo" if wrong.twin else "known"
        if part in parts:
            lots = tuple(range(FIRST_LOT, FIRST_LOT + wrong.lots))
            yield Case(part, wrong.operator, wrong.name, wrong.source, params, lots, False)
        if wrong.twin and "twins" in parts:
            yield Case("twins", wrong.operator, wrong.name, wrong.twin, params, tuple(seeds), True)
    for name, source in values.HONEST.items() if "twins" in parts else ():
        yield Case("twins", name, "all", source, values.params_of(name), tuple(seeds), True)
    for name, operator in all_operators().items() if "corpus" in parts else ():
        for kernel in operator.kernels.values():
            # groups as large as they are timed with do not fit the small shapes of an interpreter
            if not kernel.baseline and (device or not hasattr(operator, "expected")):
                params = {**declared(kernel.source, "DEFAULTS"), **kernel.overrides}
                yield Case("corpus", name, kernel.name, kernel.source, params, tuple(seeds[:1]), True)


def judged(some: Sequence[Case], target: str) -> list[dict[str, Any]]:
    """Rows of cases of one operator."""
    rows = []
    name = some[0].operator
    operator = load_operator(name) if some[0].part == "corpus" else values.operator_of(name)
    constraints = declared(some[0].source, "CONSTRAINTS")
    constants = {**operator.constants, **load_target(target).constants, **some[0].params}
    legal = Legality(tuple(map(str, constraints)), constants).holds
    with finalist(operator, target, legal) as judge:
        for case in some:
            began, answers = time.monotonic(), []
            for seed in case.seeds:
                found = judge(case.source, case.params, seed)
                answers.append((seed, found.verdict.value, found.reason, len(found.drawn), list(found.outside)))
                if found.verdict is not Verdict.OK:
                    break
            good = (answers[-1][1] == "ok") is case.honest
            rows.append(row(case, good, answers) | {"seconds": round(time.monotonic() - began, 1)})
    return rows


def row(case: Case, good: bool, said: object) -> dict[str, Any]:
    """``said``: verdicts by seed, or why there are none."""
    return {"part": case.part, "operator": case.operator, "name": case.name, "good": good, "said": said}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--operators", nargs="*", default=(), help="parts of their names; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=TWIN_SEEDS, help="of what is honest")
    parser.add_argument("--target", default="interpreter", choices=("interpreter", "h200", "h100"))
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = arguments.target != "interpreter"
    batches: dict[tuple[str, str, int], list[Case]] = {}
    for place, case in enumerate(cases(arguments.parts, arguments.seeds, device)):
        left = arguments.operators and not any(part in case.operator for part in arguments.operators)
        pallas = "def build(" in case.source
        if left or (device and pallas) or (not device and is_cuda(case.source)):
            continue
        alone = case.part == "corpus" or len(case.seeds) > BATCH
        key = (case.part, case.operator, place if alone else place // BATCH)
        batches.setdefault(key, []).append(case)
    totals: dict[str, list[bool]] = {}
    with (
        ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool,
        (arguments.out / "finalists.jsonl").open("a", encoding="utf-8") as out,
    ):
        asked = {pool.submit(judged, some, arguments.target): some for some in batches.values()}
        for answer in as_completed(asked):
            failed = answer.exception()
            rows = [row(c, False, str(failed)) for c in asked[answer]] if failed else answer.result()
            for found in rows:
                totals.setdefault(found["part"], []).append(found["good"])
                out.write(json.dumps(found) + "\n")
                out.flush()
                if not found["good"]:
                    words = [str(found[key]) for key in ("part", "operator", "name", "said")]
                    sys.stdout.write(" ".join(words)[:400] + "\n")
    for part, good in totals.items():
        sys.stdout.write(f"{part}: {sum(good)} of {len(good)} as they should be\n")
    return 0 if all(all(good) for good in totals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
