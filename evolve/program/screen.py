"""The most that each source of gain could give to a recorded step, and both as lines of text and as one picture."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tilewright.evolve.report.text import shorten

WORTH = 0.002
"""Shares of the step below this are not worth a search."""


@dataclass(frozen=True)
class Source:
    """A source of gain: what it takes of the step today, and at its floor. Seconds of one step."""

    name: str
    seconds: float
    floor: float
    note: str = ""

    @property
    def saving(self) -> float:
        return max(0.0, self.seconds - self.floor)


@dataclass
class Ceiling:
    """Sources of gain by what they could save, and a step's time by kind. ``wall``: seconds of a step."""

    wall: float
    busy: float
    sources: list[Source]
    shares: dict[str, float]
    kernels: list[dict[str, Any]] = field(default_factory=list)
    """The record's rows of Triton's and Inductor's kernels."""

    def factor(self, source: Source) -> float:
        """How many times faster the step would be with this source at its floor."""
        return self.wall / max(self.wall - source.saving, 1e-12)


TRITON, GENERATED = "Triton kernels", "Inductor's kernels"
FP8, GAPS = "linear layers in FP8", "gaps between kernels"


def ceiling(record: Mapping[str, Any]) -> Ceiling:
    """Of a record (``workers.program.record``), which has the floors of kernels. One with products may not reach its
    floor: its operations are not counted."""
    wall, busy = float(record["wall_seconds"]), float(record["busy_seconds"])
    shares: dict[str, float] = {}
    for row in record["rows"]:
        shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["seconds"] / max(busy, 1e-12)
    kernels = [row for row in record["rows"] if row["kind"] in ("triton", "inductor")]
    sources = []
    for name, kind in ((TRITON, "triton"), (GENERATED, "inductor")):
        found = [k for k in kernels if k["kind"] == kind]
        if not found:
            continue
        note = "floors by bytes"
        if any(k["products"] for k in found):
            note += "; kernels with products may not reach theirs"
        missing = sum(k["seconds"] for k in found if not k["bytes"])
        if missing:
            note += f"; {1e3 * missing:.3f} ms of launches with unknown arguments left as they are"
        sources.append(Source(name, sum(k["seconds"] for k in found), sum(k["floor"] for k in found), note))
    if record["fp8"]["shapes"] or record["fp8"]["kept"]:
        note = "the step with them, measured; changes numerics"
        if record["fp8"]["kept"]:
            note += "; with weights that are quantised once, as by --fp8-kept"
        sources.append(Source(FP8, wall, wall / record["fp8"]["gain"], note))
    if busy and not record["graph"]:
        note = f"a CUDA graph of the step could remove them; the host issues a step in {_ms(record['host_seconds'])}"
        sources.append(Source(GAPS, max(0.0, wall - busy), 0.0, note))
    sources.sort(key=lambda s: -s.saving)
    return Ceiling(wall, busy, sources, dict(sorted(shares.items(), key=lambda s: -s[1])), kernels)


WIDTH = 60
LISTED = 24
NAMED = 0.01
"""Share of the device's time from which on a kernel's own ceiling is said."""

LETTERS: Mapping[str, str] = {
    "product": "P",
    "attention": "A",
    "triton": "T",
    "inductor": "I",
    "torch": "t",
    "copy": "c",
    "other": "o",
}


def figure_kind(record: Mapping[str, Any]) -> str:
    """Where a record's times come from."""
    product = record["device"]["product"]
    return f"{product}, measured" if product else "no device"


def record_lines(record: Mapping[str, Any], found: Ceiling) -> Iterator[str]:
    """What the step spends its time on."""
    wall = f"{_ms(found.wall)} a step" if found.busy else "times of an interpreter mean nothing"
    yield f"{record['name']}: {wall} ({figure_kind(record)})"
    if found.busy:
        yield (
            f"  device busy {_ms(found.busy)} ({found.busy / found.wall:.0%}), first step "
            f"{record['first_step_seconds']:.1f} s, {'in a CUDA graph' if record['graph'] else 'no CUDA graph'}"
        )
        yield "  " + ", ".join(f"{kind} {share:.1%}" for kind, share in found.shares.items())
    for fault in record["faults"]:
        yield f"  note: the step {fault}"
    functions = {(launch["module"], launch["name"]) for launch in record["launches"]}
    if functions:
        yield f"  {len(functions)} Triton function(s), {len(record['launches'])} distinct launch(es)"
    tuning = record["tuning"]
    if tuning.get("tuners"):
        yield (
            f"  {tuning['tuners']} launch(es) with a tuner of their own: {tuning['compiled']} of "
            f"{tuning['configurations']} configurations compiled ahead in {tuning['seconds']:.0f} s "
            f"({tuning['compile_seconds']:.0f} s one after another)"
            + (f"; {tuning['late']} took too long and are no choice of theirs" if tuning.get("late") else "")
        )
    for k in sorted(found.kernels, key=lambda k: -k["seconds"])[:LISTED]:
        each = 1e6 * k["seconds"] / max(1, k["calls"])
        times = f"{k['seconds'] / found.busy:6.1%} {each:9.1f} us " if found.busy else ""
        yield f"  {times}x{k['calls']:<4d} {k['name'][:40]:40s} {shorten(k['arguments'], 70)}"


def ceiling_lines(found: Ceiling) -> Iterator[str]:
    """What could be gained, sorted."""
    if not found.busy:
        yield "ceiling: no device was there to time the step"
        return
    yield f"at most, for the whole step of {_ms(found.wall)} (floors computed from measured rates):"
    for source in found.sources:
        worth = "" if source.saving / found.wall >= WORTH else "  (not worth touching)"
        yield f"  {found.factor(source):5.2f} x  {source.name}: {_ms(source.seconds)} -> {_ms(source.floor)}{worth}"
        if source.note:
            yield f"           {source.note}"
    yield f"  now   |{bar(found, at_best=False)}|"
    yield f"  best  |{bar(found, at_best=True)}|"
    legend = (f"{letter} {kind}" for kind, letter in LETTERS.items() if kind in found.shares)
    yield "         " + ", ".join(legend)
    for k in sorted(found.kernels, key=lambda k: k["floor"] - k["seconds"])[:LISTED]:
        if k["seconds"] > NAMED * found.busy:
            most = found.wall / max(found.wall - k["seconds"] + k["floor"], 1e-12)
            left = f"  not replaced: {k['left']}" if k["left"] else ""
            yield f"  {most:7.3f} x  {k['name'][:60]}{left}"


def bar(found: Ceiling, at_best: bool) -> str:
    """The step as a bar of letters by kind; at best, with Triton's kernels at their floors and layers in FP8."""
    seconds = {kind: share * found.busy for kind, share in found.shares.items()}
    if at_best:
        for k in found.kernels:
            seconds[k["kind"]] -= k["seconds"] - k["floor"]
        saved = sum(source.saving for source in found.sources if source.name == FP8)
        seconds["product"] = max(0.0, seconds.get("product", 0.0) - saved)
    cells = "".join(LETTERS.get(kind, ".") * round(WIDTH * s / found.wall) for kind, s in seconds.items())
    return cells[:WIDTH].ljust(WIDTH)


def page(record: Mapping[str, Any], found: Ceiling, proof: Mapping[str, Any] | None = None) -> str:
    """One HTML file with all lines: what the step spends, its bar now and at best, and the proof if there is one."""
    parts = [record_lines(record, found), ceiling_lines(found), proof_lines(proof) if proof else ()]
    lines = "\n\n".join("\n".join(part) for part in parts)
    head = "<!doctype html><meta charset=utf-8><title>{0}</title><h1>{0}</h1>".format(escape(record["name"]))
    return f"{head}<pre>{escape(lines)}</pre>"


def proof_lines(proof: Mapping[str, Any]) -> Iterator[str]:
    """What was installed, what it gives, and what was left out with the reason."""
    if proof.get("gain"):
        low, high = proof["interval"]
        yield (
            f"proved: {proof['gain']:.3f} x end to end ({low:.3f} to {high:.3f}), "
            f"{_ms(proof['before'])} -> {_ms(proof['seconds'])} ({proof['kind']})"
        )
        low, high = proof["predicted_interval"]
        yield f"  predicted {proof['predicted']:.3f} x ({low:.3f} to {high:.3f}) by the rounds that chose the parts"
    else:
        yield "proved: nothing is installed"
    for row in proof["kept"]:
        low, high = row["interval"]
        yield f"  + {row['label']}: {row['gain']:.4f} x ({low:.4f} to {high:.4f}), ran {row['calls']} times"
    for row in proof["left_out"]:
        yield f"  - {row['label']}: {row['why']}"
    for line in proof.get("notes", ()):
        yield f"  {line}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"
