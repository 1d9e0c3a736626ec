"""Single points of kernels before and after lowering, side by side with the vendor's on one H200: no search.

    python -m experiments.studies.rewrites.points compile --plans PLANS --processes 8 --seconds 200
    python -m experiments.studies.rewrites.points measure --plans PLANS --out points_h200.json --seconds 240
    python -m experiments.studies.rewrites.points report --records points_h200.progress.jsonl

``compile`` needs no GPU: it applies each case's rewrites to its naive kernel and records a plan for every point and
shape. ``measure`` launches the plans: the answer of each is compared with float32 arithmetic on some rows, then it is
timed (device time, L2 flushed before each call); what is fastest over all shapes, the naive kernel as it is and the
peers are timed once more, in interleaved rounds. A process that hangs or dies costs the plan it was at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.rewrites.point_cases import CASES, Case
from testkit.compile_ahead import compiled, start
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.evolve.space.space import read_declarations

QUIET_SECONDS = 25.0
"""A measuring process that writes nothing for so long hangs."""

Json = dict[str, Any]


def rewritten(source: str, chain: Sequence[str]) -> str:
    """``source`` after the rules of ``chain``, each at its first site that ``rule@text`` names."""
    for step in chain:
        name, _, text = step.partition("@")
        for rule, site in offers(source):
            if rule.name != name or text not in site.description:
                continue
            made = rewrite(source, KernelSource(source).defaults, rule, site, np.random.default_rng(0))
            if made is not None:
                source = made.source
                break
        else:
            raise ValueError(f"{step} does not apply")
    return source


def points(source: str, wanted: Sequence[Json]) -> list[Json]:
    """Points of ``source`` over its defaults; names it does not have are left out."""
    defaults = KernelSource(source).defaults
    found = []
    for changes in wanted:
        point = {**defaults, **{k: v for k, v in changes.items() if k in defaults}}
        if point not in found:
            found.append(point)
    return found


def compile_point(source: str, point: Json, workloads: list[Json], stem: str, cache: str = "") -> str:
    """Plans ``stem.SHAPE.plan`` of a point on every shape; why there are none, or nothing."""
    if cache:
        os.environ["TRITON_CACHE_DIR"] = cache
    wrong, plans = compiled(source, point, workloads)
    for name, blob in plans.items():
        Path(f"{stem}.{name}.plan").write_bytes(blob)
    return wrong


def compile_all(options: argparse.Namespace) -> None:
    """Plans of every case, and ``index.json`` which says what each is."""
    options.plans.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        options.processes, context, initializer=start, initargs=(str(options.plans / "cache"),)
    )
    rows: list[Json] = []
    futures = {}
    for case in chosen(options.only):
        seed = case.source()
        for label, (chain, wanted) in case.variants.items():
            if options.labels and label not in options.labels:
                continue
            try:
                source = rewritten(seed, chain)
            except ValueError as error:
                rows.append({"case": case.name, "label": label, "error": str(error)})
                continue
            text = options.plans / f"{case.name}-{label}.py".replace(" ", "-")
            text.write_text(source)
            read_declarations(source)
            for point in points(source, wanted):
                name = hashlib.sha256(json.dumps([case.name, label, source, point]).encode()).hexdigest()[:16]
                row = {"case": case.name, "label": label, "params": point, "id": name, "source": text.name}
                stem = str(options.plans / name)
                futures[pool.submit(compile_point, source, point, case.workloads(), stem)] = row
    try:
        for future in as_completed(futures, timeout=max(1.0, options.seconds - (time.monotonic() - begun))):
            row = futures[future]
            row["error"] = future.result()
            rows.append(row)
            sys.stderr.write(
                f"{time.monotonic() - begun:.0f} s {row['case']} {row['label']} {row['error']}\n"
            )
            (options.plans / "index.json").write_text(json.dumps(rows, indent=1))
    except TimeoutError:
        sys.stderr.write(f"{len(futures) - len(rows)} points were not compiled in time\n")
    for child in list(getattr(pool, "_processes", {}).values()):
        child.kill()


def chosen(only: Sequence[str]) -> list[Case]:
    return [c for c in CASES if not only or any(c.name.startswith(part) for part in only)]


# -- measuring -------------------------------------------------------------------------------------------------


def measure_child(options: argparse.Namespace) -> None:
    """One process: whatever ``progress`` does not hold yet, a line each, written before (``at``) and after."""
    from experiments.studies.rewrites.point_device import Bench

    done = _lines(options.progress)
    rows = json.loads((options.plans / "index.json").read_text())
    with options.progress.open("a") as progress:

        def say(line: Json) -> None:
            progress.write(json.dumps(line) + "\n")
            progress.flush()

        bench = Bench(options.plans, say, done)
        for case in chosen(options.only):
            bench.run(case, [r for r in rows if r["case"] == case.name and not r["error"]])
    sys.exit(0)


def _lines(path: Path) -> list[Json]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def measure_all(options: argparse.Namespace) -> None:
    """Children until everything is measured or the time is over."""
    progress = options.out.with_suffix(".progress.jsonl")
    begun = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "experiments.studies.rewrites.points",
        "child",
        "--plans",
        str(options.plans),
    ]
    command += ["--progress", str(progress), "--only", *options.only]
    grown = -1
    while time.monotonic() - begun < options.seconds:
        size, changed = _size(progress), time.monotonic()
        if size == grown:
            return  # the last child began nothing
        grown = size
        child = subprocess.Popen(command)
        while child.poll() is None:
            time.sleep(0.5)
            if (now := _size(progress)) != size:
                size, changed = now, time.monotonic()
            late = time.monotonic() - begun > options.seconds
            if late or time.monotonic() - changed > QUIET_SECONDS:
                child.kill()
                child.wait()
        options.out.write_text(json.dumps(_lines(progress)) + "\n")
        if child.returncode == 0:
            return


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def report(options: argparse.Namespace) -> None:
    """Markdown of what was timed side by side: by shape, the best of each label and each peer; then over all shapes."""
    lines = [line for path in options.records for line in _lines(path)]
    params = {line["id"]: line["params"] for line in lines if "params" in line}
    text: list[str] = []
    for case in dict.fromkeys(line["case"] for line in lines if "final" in line):
        finals = [line for line in lines if line.get("final") and line["case"] == case]
        scale = 1e3 if finals[0]["unit"] == "GB/s" else 1e6
        names: dict[str, dict[str, float]] = {}
        table: dict[str, dict[str, float]] = {}
        for line in finals:
            for name, us in line["final"].items():
                rate = line["work"] / us / scale
                names.setdefault(name, {})[line["shape"]] = rate
                label = line["labels"].get(name, name)
                row = table.setdefault(line["shape"], {})
                row[label] = max(row.get(label, 0.0), rate)
        columns = list(dict.fromkeys(label for row in table.values() for label in row))
        text += [f"## {case}, {finals[0]['unit']}, measured", "", "| shape | " + " | ".join(columns) + " |"]
        text += ["| --- |" + " --- |" * len(columns)]
        for shape, row in table.items():
            text.append(
                f"| {shape} | " + " | ".join(f"{row[c]:.1f}" if c in row else "" for c in columns) + " |"
            )
        whole = {name: rates for name, rates in names.items() if len(rates) == len(table)}
        labels = {name: label for line in finals for name, label in line["labels"].items()}
        best: dict[str, tuple[float, str]] = {}
        for name, rates in whole.items():
            mean = float(np.exp(np.mean(np.log(list(rates.values())))))
            label = labels.get(name, name)
            best[label] = max(best.get(label, (0.0, "")), (mean, name))
        text += ["", "One point on all shapes, geometric mean:", ""]
        for label, (mean, name) in sorted(best.items(), key=lambda item: -item[1][0]):
            shown = ", ".join(f"{k}={v}" for k, v in params.get(name, {}).items())
            text.append(f"* {label}: **{mean:.1f}**{' (' + shown + ')' if shown else ''}")
        text.append("")
    sys.stdout.write("\n".join(text) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["compile", "measure", "child", "report"])
    parser.add_argument("--plans", type=Path, default=Path("plans"))
    parser.add_argument("--records", type=Path, nargs="*", default=[], help="lines that ``measure`` wrote")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names begin so")
    parser.add_argument("--labels", nargs="*", default=[], help="of what is compiled: seed, lowered, ...")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--progress", type=Path)
    options = parser.parse_args(arguments)
    options.plans = options.plans.resolve()
    programs = {"compile": compile_all, "measure": measure_all, "child": measure_child, "report": report}
    programs[options.what](options)


if __name__ == "__main__":
    main()
