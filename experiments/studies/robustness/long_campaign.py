"""A long campaign on a small GEMM: does it leave processes, files or dumps behind?

    python -m experiments.studies.robustness.long_campaign --evaluations 2000 --minutes 25

Runs ``tilewright run`` on ``testkit/fixtures/small_gemm`` (tpu7x, modelled) with folders of its own for temporary files
and for the home, again with another seed where one campaign ends early, until so many evaluations are done or the time
is over. It samples what these folders hold, and afterwards looks for processes that know of them. Writes
``experiments/records/robustness/long_campaign.md``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testkit import FIXTURES, RECORDS, ROOT
from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal

OUT = RECORDS / "robustness" / "long_campaign.md"
YAML = """name: long
operator: {family}/good
target: tpu7x
suite: tiny
budget: {{evaluations: {evaluations}, wall_seconds: {seconds}}}
search: {{islands: 4}}
workers: {{count: 2, check_seconds: 600, measure_seconds: 600}}
"""
SAMPLE_SECONDS = 2.0


@dataclass
class Held:
    """What a folder held when it was looked at: the most bytes and files, and what was left."""

    folder: Path
    peak_bytes: int = 0
    peak_files: int = 0
    left: tuple[int, int] = (0, 0)
    _stop: threading.Event = field(default_factory=threading.Event)

    def look(self) -> tuple[int, int]:
        """Bytes and files now."""
        size = files = 0
        for base, _, names in os.walk(self.folder):
            for name in names:
                try:
                    size += os.lstat(os.path.join(base, name)).st_blocks * 512
                except OSError:
                    continue  # gone meanwhile
                files += 1
        self.peak_bytes, self.peak_files = max(self.peak_bytes, size), max(self.peak_files, files)
        return size, files

    def watch(self) -> None:
        """Look again and again, until ``end``."""
        while not self._stop.wait(SAMPLE_SECONDS):
            self.look()

    def end(self) -> None:
        self._stop.set()
        self.left = self.look()


def strays(marks: Sequence[str]) -> list[str]:
    """Command lines of other living processes whose environment or command line names one of these folders."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + b"\0" + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z" and any(mark.encode() in text for mark in marks):
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
    return found


def run_campaigns(base: Path, evaluations: int, minutes: float) -> tuple[int, float, list[int]]:
    """Evaluations done, seconds taken, exit codes. One campaign after the other."""
    home, deadline, began = base / "home", time.monotonic() + 60 * minutes, time.monotonic()
    family = FIXTURES / "small_gemm"
    environment = {**os.environ, "TMPDIR": str(base / "tmp"), "RAY_TMPDIR": str(base / "tmp")}
    done, codes, seed = 0, [], 0
    while done < evaluations and time.monotonic() < deadline:
        left = max(30, int(deadline - time.monotonic()))
        file = base / "long.yaml"
        file.write_text(YAML.format(family=family, evaluations=evaluations - done, seconds=left))
        command = [
            sys.executable,
            "-m",
            "tilewright.evolve.cli",
            "--home",
            str(home),
            "run",
            str(file),
            "--seed",
            str(seed),
        ]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            codes.append(process.wait(timeout=left + 300))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            codes.append(-signal.SIGKILL)
        finally:
            if process.poll() is None:  # this script was interrupted: the campaign ends as by Ctrl-C
                os.killpg(process.pid, signal.SIGINT)
                process.wait(timeout=60)
        before, done, seed = done, sum(verdicts(home).values()), seed + 1
        if done == before and seed > 3:
            break
    return done, time.monotonic() - began, codes


def verdicts(home: Path) -> Counter[str]:
    """Of every evaluation in every campaign of this home."""
    counts: Counter[str] = Counter()
    for folder in campaigns(home):
        with Journal(folder / JOURNAL) as journal:
            counts.update(e.verdict.value for _, _, e, _ in journal.evaluations())
    return counts


def report(
    asked: int, done: int, seconds: float, codes: list[int], held: Sequence[Held], left: list[str], home: Path
) -> str:
    """The record."""
    tmp, kept = held
    load = f"load average {os.getloadavg()[2]:.0f} on {os.cpu_count()} cores"
    rows = [
        ("evaluations", f"{done} (asked for {asked}); campaigns: {len(codes)}, exit codes {sorted(set(codes))}"),
        ("verdicts", ", ".join(f"{name} {n}" for name, n in verdicts(home).most_common())),
        ("time", f"{seconds:.0f} s on 2 workers, {done / seconds:.2f} evaluations/s; {load}"),
        ("temporary files, most at once", f"{tmp.peak_bytes / 2**20:.0f} MiB in {tmp.peak_files} files"),
        ("temporary files, left", f"{tmp.left[0] / 2**20:.1f} MiB in {tmp.left[1]} files"),
        ("home (journals, MLflow, reports), at the end", f"{kept.left[0] / 2**20:.0f} MiB in {kept.left[1]} files"),
        ("home per evaluation", f"{kept.left[0] / max(1, done) / 1024:.0f} KiB"),
        ("processes left", str(len(left)) + (": " + "; ".join(left[:3]) if left else "")),
    ]  # fmt: skip
    command = f"python -m experiments.studies.robustness.long_campaign --evaluations {asked}"
    return "\n".join(
        [
            "# A long campaign leaves nothing behind",
            "",
            f"`{command}`, {time.strftime('%Y-%m-%d', time.gmtime())}: "
            "the small GEMM of `testkit/fixtures`, target tpu7x (modelled), a "
            "sample of both folders every two seconds. Measured on this machine, which did other work beside it.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {text} |" for name, text in rows),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count what a long campaign leaves behind.")
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=25.0)
    told = parser.parse_args(arguments)
    base = Path(tempfile.mkdtemp(prefix="lc-"))  # short: Ray's sockets live below it
    held = [Held(base / "tmp"), Held(base / "home")]
    for one in held:
        one.folder.mkdir()
    watchers = [threading.Thread(target=one.watch, daemon=True) for one in held]
    for watcher in watchers:
        watcher.start()
    done, seconds, codes = run_campaigns(base, told.evaluations, told.minutes)
    time.sleep(5.0)
    left = strays([str(base)])
    for one in held:
        one.end()
    OUT.write_text(
        report(told.evaluations, done, seconds, codes, held, left, base / "home"), encoding="utf-8"
    )
    shutil.rmtree(base, ignore_errors=True)
    return 0 if not left else 1


if __name__ == "__main__":
    sys.exit(main())
