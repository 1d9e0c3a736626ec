"""A record and its ceiling as lines of text, and as one picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from tilewright.evolve.program.ceiling import FP8, WORTH, Ceiling

WIDTH = 60
LISTED = 24
NAMED = 0.01
"""Share of the device's time from which on a kernel's own ceiling is said."""

LETTERS: Mapping[str, str] = {
    "product": "P", "attention": "A", "triton": "T", "inductor": "I", "torch": "t", "copy": "c", "other": "o",
}  # fmt: skip
COLOURS: Mapping[str, str] = {
    "product": "#4c78a8", "attention": "#72b7b2", "triton": "#e45756", "inductor": "#f58518", "torch": "#b279a2",
    "copy": "#9d755d", "other": "#bab0ac", "idle": "#eeeeee",
}  # fmt: skip


def figure_kind(record: Mapping[str, Any]) -> str:
    """Where a record's times come from."""
    return (
        f"{record['device']['product']}, measured" if record["device"]["product"] else "no device: no times"
    )


def record_lines(record: Mapping[str, Any], found: Ceiling) -> Iterator[str]:
    """What the step spends its time on."""
    yield f"{record['name']}: {_ms(found.wall)} a step ({figure_kind(record)})"
    if found.busy:
        yield (
            f"  device busy {_ms(found.busy)} ({found.busy / found.wall:.0%}), first step "
            f"{record['first_step_seconds']:.1f} s, {'in a CUDA graph' if record['graph'] else 'no CUDA graph'}"
        )
        yield "  " + ", ".join(f"{kind} {share:.1%}" for kind, share in found.shares.items())
    for fault in record["faults"]:
        yield f"  note: the step {fault}"
    functions = {(k["module"], k["name"]) for k in found.kernels if k["kind"] == "triton"}
    if functions:
        yield f"  {len(functions)} Triton function(s), {len(record['launches'])} distinct launch(es)"
    tuning = record.get("tuning")
    if tuning:
        yield (
            f"  {tuning['tuners']} launch(es) with a tuner of their own: {tuning['compiled']} of "
            f"{tuning['configurations']} configurations compiled ahead in {tuning['seconds']:.0f} s "
            f"({tuning['compile_seconds']:.0f} s one after another)"
        )
    for k in sorted(found.kernels, key=lambda k: -k["seconds"])[:LISTED]:
        share = k["seconds"] / found.busy if found.busy else 0.0
        yield (
            f"  {share:6.1%} {1e6 * k['seconds'] / max(1, k['calls']):9.1f} us x{k['calls']:<4d} "
            f"{k['name'][:40]:40s} {_shortened(k['arguments'])}"
        )


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
    yield "         " + ", ".join(
        f"{letter} {kind}" for kind, letter in LETTERS.items() if kind in found.shares
    )
    for k in sorted(found.kernels, key=lambda k: k["floor"] - k["seconds"])[:LISTED]:
        if k["seconds"] > NAMED * found.busy:
            most = found.wall / max(found.wall - k["seconds"] + k["floor"], 1e-12)
            left = f"  not replaced: {k['left']}" if k["left"] else ""
            yield f"  {most:7.3f} x  {k['name'][:60]}{left}"
    small = [k["name"] for k in found.kernels if k["seconds"] - k["floor"] < WORTH * found.wall]
    if small:
        names = ", ".join(dict.fromkeys(small))
        yield f"  not worth touching: {_shortened(names, 100)}"


def bar(found: Ceiling, at_best: bool) -> str:
    """The step as a bar of letters by kind; at best, with Triton's kernels at their floors and layers in FP8."""
    seconds = _parts(found, at_best)
    cells = "".join(LETTERS.get(kind, ".") * round(WIDTH * s / found.wall) for kind, s in seconds.items())
    return cells[:WIDTH].ljust(WIDTH)


def _parts(found: Ceiling, at_best: bool) -> dict[str, float]:
    seconds = {kind: share * found.busy for kind, share in found.shares.items()}
    if not at_best:
        return {**seconds, "idle": max(0.0, found.wall - found.busy)}
    for kind in ("triton", "inductor"):
        if kind in seconds:
            seconds[kind] -= sum(k["seconds"] - k["floor"] for k in found.kernels if k["kind"] == kind)
    for source in found.sources:
        if source.name == FP8:
            seconds["product"] = max(0.0, seconds.get("product", 0.0) - source.saving)
    return seconds


def page(record: Mapping[str, Any], found: Ceiling, proof: Mapping[str, Any] | None = None) -> str:
    """One HTML file: the step's bar before and at best, ceilings, kernels, and the proof if there is one."""
    bars = [("now", _parts(found, False)), ("at best", _parts(found, True))]
    drawn = "".join(_svg_bar(n, name, parts, found.wall) for n, (name, parts) in enumerate(bars))
    if proof and proof.get("seconds"):
        after = proof["seconds"] / found.wall
        drawn += f'<rect x="80" y="64" width="{600 * after:.1f}" height="20" fill="#54a24b"/>'
        drawn += '<text x="0" y="79">proved</text>'
    lines = [
        *record_lines(record, found),
        "",
        *ceiling_lines(found),
        "",
        *(proof_lines(proof) if proof else ()),
    ]
    legend = " ".join(f'<span style="color:{c}">&#9632;</span> {k}' for k, c in COLOURS.items())
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(record['name'])}</title>"
        '<body style="font-family:sans-serif;max-width:60em;margin:2em auto">'
        f"<h1>{escape(record['name'])}</h1><svg width=700 height=92 font-size=13>{drawn}</svg><p>{legend}</p>"
        f"<pre>{escape(chr(10).join(lines))}</pre>"
    )


def _svg_bar(row: int, name: str, parts: Mapping[str, float], wall: float) -> str:
    at, drawn = 80.0, f'<text x="0" y="{15 + 32 * row}">{name}</text>'
    for kind, seconds in parts.items():
        width = 600 * seconds / wall if wall else 0.0
        drawn += (
            f'<rect x="{at:.1f}" y="{32 * row}" width="{width:.1f}" height="20" fill="{COLOURS.get(kind, "#888")}">'
            f"<title>{kind} {_ms(seconds)}</title></rect>"
        )
        at += width
    return drawn


def proof_lines(proof: Mapping[str, Any]) -> Iterator[str]:
    """What was installed, what it gives, and what was left out with the reason."""
    if proof.get("gain"):
        low, high = proof["interval"]
        yield (
            f"proved: {proof['gain']:.3f} x end to end ({low:.3f} to {high:.3f}), "
            f"{_ms(proof['before'])} -> {_ms(proof['seconds'])} ({proof['kind']}); predicted {proof['predicted']:.3f} x"
        )
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


def _shortened(text: str, most: int = 70) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
