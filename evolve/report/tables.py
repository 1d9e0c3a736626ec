"""Tables of the report as HTML: figures, verdicts, diagnosis. Every number has unit, target and kind."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.evolve.report.data import CampaignData, Named
from tilewright.evolve.report.svg import clean, tag
from tilewright.evolve.report.units import bytes_text, number_text, percent_text, rate_text, time_text
from tilewright.fitness.evaluation import Evaluation, Verdict, WorkloadFigures
from tilewright.fitness.score import mean_closed, mean_gain
from tilewright.seeds.operator import Scope

OPEN_WORKLOADS = 6
"""A scope with more workloads shows its summary and folds the rest."""
TOP_REASONS = 3
_HIDDEN = {"timeline", "floors", "artefact"}


def figures_section(data: CampaignData, scope: Scope) -> str:
    """Winner, seeds and baselines in one scope, a table for each workload; empty without figures."""
    rows = data.ranking(scope)
    passed = [row for row in rows if row.evaluation.verdict is Verdict.OK]
    if not passed:
        return ""
    workloads = list(dict.fromkeys(w.workload for row in passed for w in row.evaluation.workloads))
    tables = [_workload_table(data, workload, rows) for workload in workloads]
    if len(workloads) > 1:
        tables.insert(0, _summary_table(data, scope, rows))
    if len(workloads) > OPEN_WORKLOADS:
        folded = tag("summary", f"{len(workloads)} workloads") + "".join(tables[1:])
        return tables[0] + tag("details", folded)
    return "".join(tables)


def _summary_table(data: CampaignData, scope: Scope, rows: Sequence[Named]) -> str:
    base = _reference(rows)
    body = []
    for row in rows:
        fitness = row.evaluation.fitness
        if fitness is None:
            body.append(_failed_row(row, 2))
            continue
        body.append(
            _row(
                row, rate_text(fitness, data.unit), _ratio(fitness, base.evaluation.fitness if base else None)
            )
        )
    head = head_row("kernel", f"fitness ({clean(data.kind)})", _ratio_head(base))
    caption = f"Geometric mean over the {scope.value} workloads, {data.target_text}, {data.kind}"
    return table(caption, head, body)


def _workload_table(data: CampaignData, workload: str, rows: Sequence[Named]) -> str:
    figures = [(row, _figures(row.evaluation, workload)) for row in rows]
    known = sorted(((r, f) for r, f in figures if f is not None), key=lambda rf: rf[1].seconds)
    base = _reference([row for row, _ in known])
    base_rate = next((f.rate for row, f in known if row is base), None)
    body = []
    for row, f in known:
        cells = (rate_text(f.rate, f.unit), percent_text(f.roofline_fraction), _ratio(f.rate, base_rate))
        body.append(tag("tr", _name(row) + _time_cell(f) + number_cells(*cells), class_=row.role))
    body += [_failed_row(row, 4) for row, f in figures if f is None]
    for name, seconds in data.floors(workload).items():
        label = tag("th", f"floor: {clean(_words(name))}", scope="row")
        body.append(tag("tr", label + number_cells(time_text(seconds), "", "", ""), class_="floor"))
    head = head_row("kernel", "time", "rate", "of roofline", _ratio_head(base))
    return table(f"{workload} on {data.target_text}, {data.kind}", head, body)


def _time_cell(figures: WorkloadFigures) -> str:
    """A time and, of a modelled one, the interval that a device's would lie in."""
    low, high = figures.seconds_interval
    within = "" if low == high else f" ({low * 1e6:.4g} to {high * 1e6:.4g})"
    return tag("td", clean(time_text(figures.seconds)) + tag("span", within, class_="within"), class_="n")


def headroom_section(data: CampaignData) -> str:
    """By workload, the share of the gap between the first seed and the floor that the winner closes."""
    rows = data.headroom()
    body = []
    for row in rows:
        label = tag("th", clean(row.workload), scope="row")
        cells = (time_text(row.before), time_text(row.now), time_text(row.floor))
        gains = (f"×{row.gain:.3f}", percent_text(row.closed), f"×{row.left:.3f}")
        body.append(tag("tr", label + number_cells(*cells, *gains)))
    closed = mean_closed(rows)
    if closed is None:
        return ""
    mean = tag("th", "mean", scope="row") + number_cells(
        "", "", "", f"×{mean_gain(rows):.3f}", percent_text(closed), ""
    )
    body.append(tag("tr", mean))
    head = head_row("workload", "first seed", "winner", "floor", "speed-up", "gap closed", "left at most")
    return table(f"Times {data.kind} on {data.target_text}; floors are modelled", head, body)


def bill_section(data: CampaignData) -> str:
    """Devices, processors, tokens, money, and where the time went."""
    rows = (
        tag("tr", tag("th", clean(k), scope="row") + tag("td", clean(v))) for k, v in data.bill.rows().items()
    )
    caption = tag("caption", "Seconds by the clocks of the campaign and its workers")
    return tag("div", tag("table", caption + "".join(rows), class_="narrow"), class_="scroll")


def verdicts_section(data: CampaignData) -> str:
    """How many evaluations ended how, with the most frequent reasons of each failure."""
    counts = Counter(point.evaluation.verdict for point in data.points)
    reasons: dict[Verdict, Counter[str]] = defaultdict(Counter)
    examples: dict[tuple[Verdict, str], str] = {}
    for point in data.points:
        evaluation = point.evaluation
        if evaluation.verdict is not Verdict.OK:
            shape = re.sub(r"\d[\d.,]*", "#", evaluation.reason)
            reasons[evaluation.verdict][shape] += 1
            examples.setdefault((evaluation.verdict, shape), evaluation.reason)
    body = []
    for verdict, count in counts.most_common():
        told = [
            f"{tag('span', f'{n} ×', class_='quiet')} {clean(_short(examples[verdict, shape]))}"
            for shape, n in reasons[verdict].most_common(TOP_REASONS)
        ]
        share = count / len(data.points)
        bar = tag(
            "span",
            " ",
            class_="meter " + ("good" if verdict is Verdict.OK else "bad"),
            style=f"width:{share * 100:.1f}%",
        )
        cells = [
            tag("th", clean(verdict.value), scope="row"),
            tag("td", str(count), class_="n"),
            tag("td", tag("span", bar, class_="track") + "<br>".join(told), class_="wide"),
        ]
        body.append(tag("tr", "".join(cells)))
    head = head_row("verdict", "candidates", "share and most frequent reasons", text_from=2)
    return table(f"{len(data.points)} evaluations by verdict", head, body)


def diagnosis_section(data: CampaignData) -> str:
    """Why the time is what it is: the diagnosis of the first seed beside the winner's."""
    pair = seed_and_winner(data)
    if pair is None:
        return ""
    workload, seed, winner = pair
    columns = [(seed[0], flatten(seed[1].diagnosis)), ("winner", flatten(winner.diagnosis))]
    keys = list(dict.fromkeys(key for _, values in columns for key in values))
    if not keys:
        return ""
    body = []
    for key in keys:
        cells = [_diagnosis_text(key, values.get(key)) for _, values in columns]
        body.append(tag("tr", tag("th", clean(_words(key)), scope="row") + number_cells(*cells)))
    head = head_row("figure", *(clean(name) for name, _ in columns))
    return table(f"Diagnosis of {workload} on {data.target_text}, {data.kind}", head, body)


def seed_and_winner(
    data: CampaignData, needs: str | None = None
) -> tuple[str, tuple[str, WorkloadFigures], WorkloadFigures] | None:
    """(workload, (seed name, its figures), winner's figures) of one workload both passed.

    Scopes with the fullest diagnosis come first; ``needs`` names a diagnosis key both must have.
    """
    for scope in (Scope.TIMELINE, Scope.FINAL, Scope.SUITE):
        rows = data.ranking(scope)
        winner = next((row for row in rows if row.role == "winner"), None)
        seeds = [row for row in rows if row.role == "seed" and row.evaluation.workloads]
        for seed in seeds if winner else []:
            assert winner is not None
            for figures in winner.evaluation.workloads:
                other = _figures(seed.evaluation, figures.workload)
                if other is None:
                    continue
                if needs is None or (needs in figures.diagnosis and needs in other.diagnosis):
                    return figures.workload, (seed.name, other), figures
    return None


def flatten(diagnosis: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures as ``outer.inner``; lists and timelines are left out."""
    flat: dict[str, Any] = {}
    for key, value in diagnosis.items():
        if not prefix and key in _HIDDEN:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        elif isinstance(value, str | int | float | bool):
            flat[name] = value
    return flat


def _figures(evaluation: Evaluation, workload: str) -> WorkloadFigures | None:
    return next((w for w in evaluation.workloads if w.workload == workload), None)


def _reference(rows: Sequence[Named]) -> Named | None:
    """What ratios are against: the first baseline there is, else the slowest seed."""
    usable = [row for row in rows if row.evaluation.fitness]
    baselines = [row for row in usable if row.role == "baseline"]
    bf16 = [row for row in baselines if "bf16" in row.name]
    seeds = [row for row in usable if row.role == "seed"]
    return next(iter(bf16 or baselines or seeds[::-1]), None)


def _ratio_head(base: Named | None) -> str:
    return f"speed against {clean(base.name)}" if base else "speed"


def _ratio(value: float, base: float | None) -> str:
    return f"×{value / base:.2f}" if base else ""


def table(caption: str, head: str, body: Sequence[str]) -> str:
    """A table that scrolls where the window is too narrow; ``head`` and ``body`` are rows as markup."""
    inside = tag("caption", clean(caption)) + tag("thead", head) + tag("tbody", "".join(body))
    return tag("div", tag("table", inside), class_="scroll")


def head_row(*names: str, text_from: int | None = None) -> str:
    """Header cells; ``names`` are markup. Numbers align right, except from column ``text_from`` on."""
    cells = []
    for n, name in enumerate(names):
        number = n > 0 and (text_from is None or n < text_from)
        cells.append(tag("th", name, scope="col", class_="n" if number else None))
    return tag("tr", "".join(cells))


def _row(row: Named, *cells: str) -> str:
    return tag("tr", _name(row) + number_cells(*cells), class_=row.role)


def _failed_row(row: Named, span: int) -> str:
    reason = f"{row.evaluation.verdict.value}: {_short(row.evaluation.reason)}"
    return tag("tr", _name(row) + tag("td", clean(reason), colspan=span, class_="quiet"), class_=row.role)


def _name(row: Named) -> str:
    role = "" if row.name == row.role else " " + tag("span", row.role, class_=f"role {row.role}")
    return tag("th", clean(row.name) + role, scope="row")


def number_cells(*texts: str) -> str:
    """Cells of figures, aligned right."""
    return "".join(f'<td class="n">{clean(text)}</td>' for text in texts)


_SHARES = re.compile(r"busy|fraction|util|overlap|share|unexplained|dma_latency")
"""Keys of a diagnosis that are parts of a whole; latencies of DMAs side by side may be more than it."""


_NAMES = {
    "seconds_low": "time_at_least",
    "seconds_high": "time_at_most",
    "load_busy": "load_busy,_spills_included",
    "store_busy": "store_busy,_spills_included",
}
"""What a key does not say by itself."""


def _diagnosis_text(key: str, value: object) -> str:
    if value is None:
        return "–"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and key.endswith("bytes"):
        return bytes_text(float(value))  # type: ignore[arg-type]
    if number and (key.endswith("seconds") or key in ("seconds_low", "seconds_high")):
        return time_text(float(value))  # type: ignore[arg-type]
    if isinstance(value, float) and _SHARES.search(key):
        return percent_text(value)
    return number_text(value)


def _words(key: str) -> str:
    """A key of a diagnosis as words: ``critical_path.mxu`` -> ``cycles on the critical path: MXU``."""
    key = key.replace("critical_path.", "cycles_on_the_critical_path.")
    key = key.replace("dma_latency", "dma_latencies_over_all_cycles")
    key = _NAMES.get(key, key)
    key = re.sub(r"(?<![a-z])(mxu|valu|salu|xlu|eup|hbm|vmem|dma)(?![a-z])", lambda m: m[1].upper(), key)
    return key.replace("_", " ").replace(".", ": ").replace(" seconds", " time")


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
