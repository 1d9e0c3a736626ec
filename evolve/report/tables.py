"""Tables of the report: figures, speed-ups by shape, headroom, verdicts, diagnosis, the bill.

Every number has unit, target and kind.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tilewright.evolve.proposers.rule_credit import rules_of
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.report.data import SEED_PREFIX, CampaignData, Named, kernel_text
from tilewright.evolve.report.lineage import gain_over_parents
from tilewright.evolve.report.page import clean, note, tag
from tilewright.evolve.report.text import bytes_text, number_text, percent_text, rate_text, shorten, time_text
from tilewright.fitness.evaluation import Evaluation, Verdict, WorkloadFigures
from tilewright.seeds.operator import Scope

MOST_ROWS = 25
EQUAL = 0.001
"""A child is faster than its fittest parent if its rate is higher by more than this share."""


def outcomes_section(data: CampaignData) -> str:
    """How the candidates of each proposer, and of each rewrite rule, did against their fittest parents."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for point in data.points:
        mutation = point.candidate.mutation
        if mutation.kind is MutationKind.SEED:
            continue
        faster = (gain_over_parents(data, point.candidate) or 1.0) > 1 + EQUAL
        end = "failed" if point.evaluation.failed else "faster" if faster else "others"
        rules = rules_of(mutation.detail) if mutation.kind is MutationKind.REWRITE else []
        for name in (mutation.proposer, *(f"rule {rule}" for rule in dict.fromkeys(rules))):
            found[name].update(("tried", end))
    rows = sorted(found.items(), key=lambda row: (-row[1]["faster"], -row[1]["tried"], row[0]))[:MOST_ROWS]
    body = [text_row(name, *(n[end] for end in ("tried", "faster", "others", "failed"))) for name, n in rows]
    head = head_row("proposer or rule", "tried", "faster than the parent", "equal or slower", "failed")
    return table(f"Candidates by origin ({data.target_text}, {data.kind})", head, body) if body else ""


OPEN_WORKLOADS = 6
"""A scope with more workloads shows its summary and folds the rest."""
MOST_SHAPES = 120
TOP_REASONS, REASON_LETTERS = 3, 160
_HIDDEN = {"floors", "artefact", "timeline"}
"""Keys that are no figures; journals of 0.1.0 hold timelines."""


def figures_section(data: CampaignData) -> str:
    """Times, rates and speed of winner, seeds and baselines: the final check first, then the suite."""
    final, suite = _scope_tables(data, Scope.FINAL), _scope_tables(data, Scope.SUITE)
    roles = [row.role for row in data.ranking(Scope.FINAL)]
    final = final if len(roles) > 1 else ""
    passed = "The winner passed the final check, every gate on all kinds of inputs. "
    checked = passed if roles == ["winner"] else ""
    parts = [tag("h3", "Final check"), final] if final else []
    if suite:
        parts += [tag("h3", f"Suite {clean(data.facts.get('suite'))}, which decides fitness"), suite]
    if parts:
        caption = (
            f"{checked}Times are {data.kind}, for one call on {data.target_text}. A floor is the least time that the "
            "named unit needs for this operator under any schedule."
        )
        parts.append(note(caption))
    return "".join(parts)


def _scope_tables(data: CampaignData, scope: Scope) -> str:
    rows = data.ranking(scope)
    passed = [row for row in rows if row.evaluation.verdict is Verdict.OK]
    workloads = list(dict.fromkeys(w.workload for row in passed for w in row.evaluation.workloads))
    tables = [_workload_table(data, workload, rows) for workload in workloads]
    if len(workloads) > 1:
        tables.insert(0, _summary_table(data, scope, rows))
    if len(workloads) > OPEN_WORKLOADS:
        folded = tag("summary", f"{len(workloads)} workloads") + "".join(tables[1:])
        return tables[0] + tag("details", folded)
    return "".join(tables)


def _summary_table(data: CampaignData, scope: Scope, rows: Sequence[Named]) -> str:
    body = [
        _failed_row(row, 1)
        if row.evaluation.fitness is None
        else _kernel_row(row, number_cells(rate_text(row.evaluation.fitness, data.unit)))
        for row in rows
    ]
    caption = f"Geometric mean over the {scope.value} workloads, {data.target_text}, {data.kind}"
    return table(caption, head_row("kernel", f"fitness ({clean(data.kind)})"), body)


def _workload_table(data: CampaignData, workload: str, rows: Sequence[Named]) -> str:
    figures = [(row, _figures(row.evaluation, workload)) for row in rows]
    known = sorted(((r, f) for r, f in figures if f is not None), key=lambda rf: rf[1].seconds)
    body = [
        _kernel_row(row, _time_cell(f) + number_cells(rate_text(f.rate, f.unit), percent_text(f.roofline_fraction)))
        for row, f in known
    ]
    body += [_failed_row(row, 3) for row, f in figures if f is None]
    for name, seconds in data.floors(workload).items():
        body.append(text_row(f"floor: {_words(name)}", time_text(seconds), "", "", class_="floor"))
    head = head_row("kernel", "time", "rate", "of roofline")
    return table(f"{workload} on {data.target_text}, {data.kind}", head, body)


def speedup_section(data: CampaignData) -> str:
    """By shape, the time of each seed and baseline over the winner's."""
    both = Scope.FINAL, Scope.SUITE
    compared = [(scope, *found) for scope in both if (found := _times(data, scope)) and found[1]]
    names = list(dict.fromkeys(name for _, _, others in compared for name in others))
    body: list[str] = []
    for scope, ours, others in compared:
        groups = {shape: [shape] for shape in list(ours)[:MOST_SHAPES]}
        if len(ours) > 1:
            groups = {f"geometric mean of {len(ours)}": list(ours), **groups}
        for group, shapes in groups.items():
            ratios = (_speedup(others.get(name, {}), ours, shapes) for name in names)
            body.append(text_row(f"{scope.value}: {group}", *ratios))
    if not names:
        return ""
    caption = f"Time of each kernel over the winner's time, {data.target_text}, {data.kind}"
    return table(caption, head_row("shape", *map(clean, names)), body)


def _times(data: CampaignData, scope: Scope) -> tuple[dict[str, float], dict[str, dict[str, float]]] | None:
    """Seconds by workload of the winner, and of each other kernel; None without a winner."""
    rows = [row for row in data.ranking(scope) if row.evaluation.workloads]
    winner = next((row.evaluation for row in rows if row.role == "winner"), None)
    if winner is None:
        return None
    others = {row.name: _seconds(row.evaluation) for row in rows if row.evaluation.genome != winner.genome}
    return _seconds(winner), others


def _speedup(theirs: Mapping[str, float], ours: Mapping[str, float], shapes: Sequence[str]) -> str:
    logarithms = [math.log(theirs[s] / ours[s]) for s in shapes if s in theirs]
    return f"×{math.exp(sum(logarithms) / len(logarithms)):.2f}" if logarithms else "–"


def _time_cell(figures: WorkloadFigures) -> str:
    """A time and, of a modelled one, the interval that a device's would lie in."""
    low, high = figures.seconds_interval
    within = "" if low == high else f" ({low * 1e6:.4g} to {high * 1e6:.4g})"
    return tag("td", clean(time_text(figures.seconds)) + tag("span", within, class_="within"), class_="n")


def headroom_section(data: CampaignData) -> str:
    """By workload, what the winner gains over the best seed, and what the floor still allows."""
    body = []
    for row in data.headroom():
        times = (time_text(row.before), time_text(row.now), time_text(row.floor))
        body.append(text_row(row.workload, *times, f"×{row.gain:.3f}", f"×{row.left:.3f}"))
    if not body:
        return ""
    head = head_row("workload", "best seed", "winner", "floor", "speed-up", "left at most")
    return table(f"Times are {data.kind} on {data.target_text}; floors are modelled", head, body)


def fact_table(caption: str, facts: Mapping[str, object], *, numbers: bool = True) -> str:
    """Names and values, one row each; values are aligned right if they are ``numbers``."""
    rows = "".join(
        text_row(name, value) if numbers else tag("tr", tag("th", clean(name), scope="row") + tag("td", clean(value)))
        for name, value in facts.items()
    )
    return tag("div", tag("table", tag("caption", clean(caption)) + rows, class_="narrow"), class_="scroll")


def fact_list(facts: Mapping[str, object]) -> str:
    """Short facts side by side, each below its name."""
    items = (tag("div", tag("dt", clean(name)) + tag("dd", clean(fact))) for name, fact in facts.items())
    return tag("dl", "".join(items), class_="facts")


def verdicts_section(data: CampaignData) -> str:
    """How many evaluations ended with each verdict, and the most frequent reasons of each failure."""
    counts = Counter(point.evaluation.verdict for point in data.points)
    reasons: dict[Verdict, Counter[str]] = defaultdict(Counter)
    examples: dict[tuple[Verdict, str], str] = {}
    for evaluation in (point.evaluation for point in data.points):
        if evaluation.verdict is not Verdict.OK:
            pattern = re.sub(r"\d[\d.,]*", "#", evaluation.reason)
            reasons[evaluation.verdict][pattern] += 1
            examples.setdefault((evaluation.verdict, pattern), evaluation.reason)
    body = []
    for verdict, count in counts.most_common():
        lines = [
            f"{tag('span', f'{n} ×', class_='quiet')} {clean(shorten(examples[verdict, pattern], REASON_LETTERS))}"
            for pattern, n in reasons[verdict].most_common(TOP_REASONS)
        ]
        colour = "good" if verdict is Verdict.OK else "bad"
        bar = tag("span", " ", class_=f"meter {colour}", style=f"width:{count / len(data.points) * 100:.1f}%")
        cells = [
            tag("th", clean(verdict.value), scope="row"),
            tag("td", str(count), class_="n"),
            tag("td", tag("span", bar, class_="track") + "<br>".join(lines), class_="wide"),
        ]
        body.append(tag("tr", "".join(cells)))
    head = head_row("verdict", "candidates", "share and most frequent reasons", text_from=2)
    return table(f"Verdicts of {len(data.points)} candidates", head, body)


def diagnosis_section(data: CampaignData) -> str:
    """The diagnosis of the first seed beside the winner's, on one workload."""
    pair = _seed_and_winner(data)
    if pair is None:
        return ""
    workload, seed, winner = pair
    columns = [(seed[0], flatten(seed[1].diagnosis)), ("winner", flatten(winner.diagnosis))]
    other = kernel_text(f"{SEED_PREFIX}{seed[0]}")
    spent = [_spent(name, figures) for name, figures in (("The winner", winner), (other, seed[1]))]
    sentence = tag("p", clean(f"{'; '.join(spent)}.")) if all(spent) else ""
    keys = list(dict.fromkeys(key for _, values in columns for key in values))
    if not keys:
        return ""
    body = [text_row(_words(key), *(_diagnosis_text(key, values.get(key)) for _, values in columns)) for key in keys]
    head = head_row("figure", *(clean(name) for name, _ in columns))
    caption = f"Diagnosis of {workload} on {data.target_text}, {data.kind}; docs/time_model.md explains its rows"
    return sentence + table(caption if sentence else caption.partition(";")[0], head, body, "wrapped")


def _spent(name: str, figures: WorkloadFigures) -> str:
    """How long a modelled kernel's core works and waits; empty where the target does not say."""
    works, waits = (figures.diagnosis.get(f"{part}_seconds") for part in ("core", "waited"))
    if not (isinstance(works, float) and isinstance(waits, float)):
        return ""
    took = time_text(figures.seconds)
    return f"{name} takes {took}: its core works {time_text(works)} and waits {time_text(waits)} for copies"


def _seed_and_winner(data: CampaignData) -> tuple[str, tuple[str, WorkloadFigures], WorkloadFigures] | None:
    """(workload, (seed name, its figures), winner's figures) of one workload both passed, a final one first."""
    for scope in (Scope.FINAL, Scope.SUITE):
        rows = data.ranking(scope)
        winner = next((row for row in rows if row.role == "winner"), None)
        seeds = [row for row in rows if row.role == "seed" and row.evaluation.workloads]
        for seed in seeds if winner else []:
            assert winner is not None
            for figures in winner.evaluation.workloads:
                other = _figures(seed.evaluation, figures.workload)
                if other is not None:
                    return figures.workload, (seed.name, other), figures
    return None


def flatten(diagnosis: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested figures as ``outer.inner``, without lists."""
    flat: dict[str, object] = {}
    for key, value in diagnosis.items():
        if not prefix and key in _HIDDEN:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        elif isinstance(value, str | int | float | bool):
            flat[name] = value
    return flat


def _seconds(evaluation: Evaluation) -> dict[str, float]:
    return {figures.workload: figures.seconds for figures in evaluation.workloads}


def _figures(evaluation: Evaluation, workload: str) -> WorkloadFigures | None:
    return next((w for w in evaluation.workloads if w.workload == workload), None)


def table(caption: str, head: str, body: Sequence[str], class_: str | None = None) -> str:
    """A table that scrolls where the window is too narrow; ``head`` and ``body`` are rows as markup."""
    inside = tag("caption", clean(caption)) + tag("thead", head) + tag("tbody", "".join(body))
    return tag("div", tag("table", inside, class_=class_), class_="scroll")


def head_row(*names: str, text_from: int | None = None) -> str:
    """Header cells; ``names`` are markup. Numbers align right, except from column ``text_from`` on."""
    cells = []
    for n, name in enumerate(names):
        number = n > 0 and (text_from is None or n < text_from)
        cells.append(tag("th", name, scope="col", class_="n" if number else None))
    return tag("tr", "".join(cells))


def text_row(name: object, *texts: object, class_: str | None = None) -> str:
    """A row of figures that ``name`` heads; all are plain text."""
    return tag("tr", tag("th", clean(name), scope="row") + number_cells(*texts), class_=class_)


def _kernel_row(row: Named, cells: str) -> str:
    role = "" if row.name == row.role else " " + tag("span", row.role, class_=f"role {row.role}")
    return tag("tr", tag("th", clean(row.name) + role, scope="row") + cells, class_=row.role)


def _failed_row(row: Named, span: int) -> str:
    reason = f"{row.evaluation.verdict.value}: {shorten(row.evaluation.reason, REASON_LETTERS)}"
    return _kernel_row(row, tag("td", clean(reason), colspan=span, class_="quiet"))


def number_cells(*texts: object) -> str:
    """Cells of figures, aligned right."""
    return "".join(f'<td class="n">{clean(text)}</td>' for text in texts)


_SHARES = re.compile(r"busy|fraction|util|overlap|share|unexplained|dma_latency")
"""Keys of a diagnosis that are fractions. Latencies of concurrent DMAs may add up to more than 1."""


_NAMES = {
    "seconds_low": "time_at_least",
    "seconds_high": "time_at_most",
    "load_busy": "load_busy,_spills_included",
    "store_busy": "store_busy,_spills_included",
}
"""Keys that need more words."""


def _diagnosis_text(key: str, value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key.endswith("bytes"):
            return bytes_text(float(value))
        if key.endswith(("seconds", "seconds_low", "seconds_high")):
            return time_text(float(value))
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
