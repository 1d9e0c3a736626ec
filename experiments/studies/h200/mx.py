"""mx_cast, gridquant and gemm_mxfp8_out on one GPU, side by side with a device copy and with compiled peers.

    python -m experiments.studies.h200.mx --out results --parts cast turned grid few-rows squares normal grouped

Every point of ``mx_points`` is first compiled by many processes without the GPU. Then one child runs the parts, shape
by shape: each of our kernels, baselines included, picks its point in a short comparison, and the picks, the seeds' own
points and the peers are timed on the same random data in rounds of reversed order with a flushed L2
(``fp8_step.Bench``). What is timed was held to the operator's gates on a sample. A child that is silent for a minute is
killed and started again after what it was at. Everything printed is measured on the device named in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.studies.h200.mx_parts import FORMS, PARTS, checks_of, entries_of, shapes_of
from experiments.studies.h200.mx_points import tasks
from experiments.studies.records.say import say
from testkit.compile_ahead import compiled_ahead

SILENCE_SECONDS = 60.0
"""After so long without a line the child is taken to hang."""


def supervise(args: argparse.Namespace, command: Sequence[str]) -> None:
    """Runs the child, and again after a hang without the point that hung or, where none was tried, without the part."""
    parts, skip = list(args.parts), []
    while parts and time.time() < args.deadline:
        called = [*command, "--child", "--parts", *parts, *(a for s in skip for a in ("--skip", s))]
        process = subprocess.Popen(called, stdout=subprocess.PIPE, text=True, bufsize=1)
        at, hung = watch(process, args.deadline + SILENCE_SECONDS)
        if not hung and process.returncode == 0:
            return
        say(f"  child {'hung' if hung else 'died'} at: {at}")
        if at.startswith("@ ") and at[2:] not in skip and len(skip) < 6:
            skip.append(at[2:])
        else:
            parts = parts[1:]


def watch(process: subprocess.Popen[str], until: float) -> tuple[str, bool]:
    """Prints the child's lines but those of what it tries; its last line, and whether it was killed for silence."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            lines.put(text)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    at = ""
    while True:
        try:
            text = lines.get(timeout=max(0.0, min(SILENCE_SECONDS, until - time.time())))
        except queue.Empty:
            process.kill()
            process.wait()
            return at, True
        if not text:
            process.wait()
            return at, False
        if text.startswith("@ "):
            at = text.strip()
        else:
            at = "" if "(measured)" in text else at
            say(text.rstrip("\n"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=245.0, help="start no shape after so long")
    parser.add_argument("--processes", type=int, default=max(2, (os.cpu_count() or 4) - 2))
    parser.add_argument("--compile-only", action="store_true", help="compile every point and run nothing")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.child or args.warm:
        from experiments.studies.h200 import mx_measure  # needs torch and a GPU, which the parent does not

        (mx_measure.child(args) if args.child else mx_measure.warmed(args.parts))
        return
    args.deadline = time.time() + args.seconds
    cache = os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp(prefix="mx_h200_"))
    here = [sys.executable, "-m", "experiments.studies.h200.mx"]
    warming = [p for p in args.parts if p in (*FORMS, "normal", "grouped")]
    warm = None
    if warming and not args.compile_only:
        warm = subprocess.Popen([*here, "--warm", "--out", str(args.out), "--parts", *warming])
    pairs = [
        (entry, workload)
        for part in args.parts
        for operator, workload in shapes_of(part)
        for entry in entries_of(part, operator)
    ]
    pairs += [
        (replace(e, tuned=False), w)
        for e in dict.fromkeys(e for e, _ in pairs)
        for w in checks_of(e.loaded[0])
    ]
    ahead = compiled_ahead(tasks(pairs), cache, args.processes, 0.45 * args.seconds)
    (args.out / "h200_mx_compiled.json").write_text(json.dumps(ahead, indent=1))
    say(f"compiled ahead: {ahead['points']} points, {len(ahead['failed'])} failed, {ahead['seconds']} s")
    if not args.compile_only:
        options = ("out", "rounds", "calls", "deadline")
        given = [text for name in options for text in (f"--{name}", str(getattr(args, name)))]
        if warm is not None:
            try:
                warm.wait(timeout=max(1.0, 0.5 * args.seconds - ahead["seconds"]))
            except subprocess.TimeoutExpired:
                warm.kill()
        supervise(args, [*here, *given])


if __name__ == "__main__":
    main()
