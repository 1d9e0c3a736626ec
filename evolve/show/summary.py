"""A campaign in a few plain lines, read from its journal. Every figure says unit, target and kind.

Reasons, names and sources come from candidates: every line is made printable.
"""

import json
from collections import Counter
from pathlib import Path

from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.record.home import LOGBOOK
from tilewright.evolve.record.journal import TOKENS_SPENT, Journal
from tilewright.evolve.report.bill import counted, timed
from tilewright.evolve.report.change import winner_change
from tilewright.evolve.report.data import FINALIST_PREFIX, CampaignData, judge_lines, load, rival_speeds
from tilewright.evolve.report.text import gain_text, printable, shorten
from tilewright.fitness.evaluation import Evaluation, FigureKind, Verdict
from tilewright.fitness.targets import target_text
from tilewright.seeds.operator import Scope

REASON = 400
"""Letters of a candidate's reason that are shown."""


def campaign_line(path: Path) -> str:
    """One line for a list of campaigns."""
    with Journal(path) as journal:
        return printable(_line(path, load(journal)))


def status_lines(path: Path, verbose: bool = False) -> list[str]:
    """A campaign's state, verdicts, best candidate so far, references, bill and headroom."""
    with Journal(path) as journal:
        data = load(journal)
        evaluations = [point.evaluation for point in data.points]
        limits = {k: v for k, v in (data.facts.get("budget") or {}).items() if v is not None}
        budget = ", ".join(f"until {v}" if key == "until" else f"{v:g} {key}" for key, v in limits.items())
        verdicts = Counter(evaluation.verdict.value for evaluation in evaluations)
        lines = [
            _line(path, data),
            f"suite {data.facts.get('suite')}, seed {data.facts.get('seed')}, budget {budget}",
            *data.origins(),
            "verdicts: " + (", ".join(f"{n} {v}" for v, n in verdicts.most_common()) or "none yet"),
            *_failures(data),
            *judge_lines(evaluations),
        ]
        if data.best is not None and data.best.fitness is not None:
            what = "winner" if data.state == "finished" else "best so far"
            number = data.candidates[data.best.genome].index
            lines.append(f"{what}, candidate {number}: {figures(data.best)}")
        references = journal.references(Scope.SUITE.value)
        lines += [f"{name}: {figures(evaluation)}" for name, evaluation in references.items()]
        return [printable(line) for line in (*lines, *_model_lines(journal, data), *_balance(data, verbose))]


def closing_lines(path: Path, verbose: bool = False) -> list[str]:
    """The end of a campaign: final figures, the winner's gain and its change of the seed, bill, dispatch table."""
    campaign = path.parent.name
    with Journal(path) as journal:
        data = load(journal)
        finals = journal.references(Scope.FINAL.value)
        rows = {name: e for name, e in finals.items() if not name.startswith(FINALIST_PREFIX)}
        lines = [f"campaign {campaign} {data.state_text}", *(f"  {line}" for line in data.origins())]
        for name, evaluation in sorted(rows.items(), key=lambda row: -(row[1].fitness or 0.0)):
            lines.append(f"  {name:16s} {figures(evaluation)}")
        lines += [*_refused(data), *_failures(data)]
        if data.timed and (speeds := rival_speeds(finals)):
            lines.append(f"The winner is {speeds} ({data.target_text}, {data.kind})")
        change = winner_change(data)
        lines += change.lines(campaign) if change else []
        lines += judge_lines(point.evaluation for point in data.points)
        lines += [*_model_lines(journal, data), *_balance(data, verbose)]
    table = path.parent / dispatch_table.FILE
    if table.is_file():
        numbers = {genome: candidate.index for genome, candidate in data.candidates.items()}
        lines += dispatch_table.lines(json.loads(table.read_text(encoding="utf-8")), numbers)
    return [printable(line) for line in lines]


def _failures(data: CampaignData) -> list[str]:
    """Of each verdict that is a failure, the latest candidate and its reason."""
    latest = {p.evaluation.verdict: p for p in data.points if p.evaluation.failed}
    return [
        f"  {verdict.value}: candidate {point.candidate.index}, {shorten(point.evaluation.reason, REASON)}"
        for verdict, point in latest.items()
    ]


def _refused(data: CampaignData) -> list[str]:
    """Finalists that did not pass the final check, and why."""
    found = []
    for name, evaluation in data.references[Scope.FINAL.value].items():
        candidate = data.candidates.get(name.removeprefix(FINALIST_PREFIX))
        if candidate is not None and name.startswith(FINALIST_PREFIX) and evaluation.failed:
            reason = f"{evaluation.verdict.value}: {shorten(evaluation.reason, REASON)}"
            found.append(f"  candidate {candidate.index} failed the final check, {reason}")
    return found


def figures(evaluation: Evaluation) -> str:
    """Time and rate of each workload, for example ``4096^3 81.2 us, 1692 TFLOP/s (tpu7x, modelled)``."""
    target = target_text(evaluation.target)
    if evaluation.verdict is not Verdict.OK:
        return f"{evaluation.verdict.value}: {evaluation.reason}"
    if not evaluation.workloads:
        facts = ", ".join(f"{name} {value}" for name, value in sorted(evaluation.descriptors.items()))
        return f"compiles ({target}): {facts}"
    if not timed(evaluation.target):
        shapes = ", ".join(w.workload for w in evaluation.workloads)
        return f"right at {shapes} ({target}; its times mean nothing)"
    parts = []
    for w in evaluation.workloads:
        low, high = w.seconds_interval
        interval = "" if low == high else f" ({low * 1e6:.1f} to {high * 1e6:.1f})"
        parts.append(f"{w.workload} {w.seconds * 1e6:.1f} us{interval}, {_rounded(w.rate)} {w.unit}")
    model = f" by time model {evaluation.model_version}" if evaluation.model_version else ""
    return f"{'; '.join(parts)} ({target}, {evaluation.workloads[0].kind.value}{model})"


def _line(path: Path, data: CampaignData) -> str:
    facts, passed = data.facts, data.passed()
    rate = data.best.fitness if data.best else None
    best = "no candidate has passed yet"
    if data.kind == FigureKind.COMPILED.value:
        best = f"{len(passed)} candidates compile and pass the gates"
    elif not data.timed:
        best = f"{len(passed)} candidates pass the gates (times of an interpreter mean nothing)"
    elif rate:
        best = f"best {_rounded(rate)} {data.unit} ({data.kind})"
        seed = data.best_seed.fitness if data.best_seed else None
        best += f", {gain_text(rate / seed)} over the best seed" if seed and seed != rate else ""
    return (
        f"{path.parent.name}  {facts.get('operator', '?')} on {target_text(facts.get('target', '?'))}  "
        f"{data.short_state}  {data.bill.count}  {best}"
    )


def _model_lines(journal: Journal, data: CampaignData) -> list[str]:
    """Questions to a language model: their number, the last failure, and an exhausted budget."""
    spent = [event.detail.get("said", "") for event in journal.events() if event.kind == TOKENS_SPENT]
    budget = [f"llm.total_tokens: tilewright asks the model no more, since {reason}" for reason in spent[-1:]]
    exchanges = [json.loads(text) for _, text in journal.exchanges()]
    if not exchanges:
        model = (data.config.get("llm") or {}).get("model")
        asked = f"model {model}: not asked; the portfolio asked other proposers"
        return [*budget, *([asked] if model and len(data.points) > len(data.seeds()) else [])]
    failed = [str(exchange["error"]) for exchange in exchanges if exchange.get("error")]
    line = f"model {exchanges[-1].get('model', '?')}: {counted(len(exchanges), 'question')}"
    line += f", {len(failed)} unanswered (last: {failed[-1]})" if failed else ""
    log = journal.path.with_name(LOGBOOK)
    line += f"; {log} says why answers were refused" if data.bill.model.refused else ""
    return [line, *budget]


def _balance(data: CampaignData, verbose: bool = False) -> list[str]:
    """The bill, and by workload what is gained and what the floor still allows."""
    lines = data.bill.lines(verbose) if data.points else []
    if rows := data.headroom():
        lines.append(f"headroom to the floor ({data.target_text}, times {data.kind}, floors modelled):")
    wide = max((len(row.workload) for row in rows), default=0)
    return lines + [
        f"  {row.workload:<{wide}}  {gain_text(row.gain)} over the best seed, at most ×{row.left:.2f} left"
        for row in rows
    ]


def _rounded(rate: float) -> str:
    """Three digits: interpreted kernels move kilobytes a second."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
