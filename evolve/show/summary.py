"""A campaign in a few plain lines, read from its journal. Every figure says unit, target and kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.record.journal import TOKENS_SPENT, Journal
from tilewright.evolve.report.data import CampaignData, judged, load
from tilewright.evolve.report.units import gain_text, percent_text
from tilewright.fitness.evaluation import Evaluation, FigureKind, Verdict, WorkloadFigures
from tilewright.fitness.score import mean_closed, mean_gain
from tilewright.fitness.targets import target_text
from tilewright.seeds.operator import Scope


def campaign_line(path: Path) -> str:
    """One line for a list of campaigns."""
    with Journal(path) as journal:
        facts, state = journal.meta("campaign", {}), _state(journal)
        rows = list(journal.evaluations())
        evaluations = [evaluation for _, _, evaluation, _ in rows]
        seed = next((evaluation.fitness for _, index, evaluation, _ in rows if index == 0), None)
        return (
            f"{path.parent.name}  {facts.get('operator', '?')} on {target_text(facts.get('target', '?'))}  {state}  "
            f"{len(evaluations)} evaluations  {_best(facts, evaluations)}{_gain(facts, seed, evaluations)}"
        )


def status_lines(path: Path) -> list[str]:
    """How a campaign stands: state, verdicts, best so far, figures of the references."""
    with Journal(path) as journal:
        facts = journal.meta("campaign", {})
        evaluations = [evaluation for _, _, evaluation, _ in journal.evaluations()]
        verdicts = Counter(evaluation.verdict.value for evaluation in evaluations)
        lines = [
            campaign_line(path),
            f"suite {facts.get('suite')}, seed {facts.get('seed')}, budget {_budget(facts)}",
            "verdicts: " + (", ".join(f"{n} {v}" for v, n in verdicts.most_common()) or "none yet"),
        ]
        lines += judged(evaluations)
        best = max(evaluations, key=lambda e: e.fitness or 0.0, default=None)
        if best is not None and best.fitness is not None:
            lines.append(f"best so far, genome {best.genome}: " + figures(best))
        for name, evaluation in journal.references(Scope.SUITE.value).items():
            lines.append(f"{name}: " + figures(evaluation))
        lines += _model(journal)
        lines += _balance(load(journal))
        return lines


def _gain(facts: dict, seed: float | None, evaluations: Sequence[Evaluation]) -> str:
    """What the best has over the first seed; nothing where there are no rates."""
    if facts.get("target_kind") == FigureKind.COMPILED.value:
        return ""
    best = max((e.fitness for e in evaluations if e.fitness is not None), default=None)
    return f", {best / seed - 1:+.1%} over the seed" if seed and best else ""


def _model(journal: Journal) -> list[str]:
    """What became of the questions to a language model: unanswered ones with the last reason, and the tokens."""
    asked = [json.loads(text) for _, text in journal.exchanges()]
    if not asked:
        return _spent(journal)
    failed = [exchange["error"] for exchange in asked if exchange.get("error")]
    tokens = sum(e.get("prompt_tokens", 0) + e.get("completion_tokens", 0) for e in asked)
    used = sum(candidate.mutation.kind == "llm" for candidate in journal.candidates())
    said = f"model {asked[-1].get('model', '?')}: {len(asked)} questions, {tokens} tokens"
    if failed:
        said += f", {len(failed)} unanswered (last: {failed[-1]})"
    unused = len(asked) - len(failed) - used
    why = f", {unused} could not be used (campaign.log says why)" if unused > 0 else ""
    return [f"{said}, {used} answers became candidates{why}", *_spent(journal)]


def _spent(journal: Journal) -> list[str]:
    """That the budget of tokens covers no other question."""
    said = [event.detail.get("said", "") for event in journal.events() if event.kind == TOKENS_SPENT]
    return [f"llm.total_tokens: the model is asked no more, since {said[-1]}"] if said else []


def _balance(data: CampaignData) -> list[str]:
    """The bill, and the share of the gap to the floor that is closed, in the mean and by workload."""
    rows = data.headroom()
    closed = mean_closed(rows)
    lines = data.bill.lines() if data.points else []
    if closed is None:
        return lines
    lines.append(
        f"headroom: {percent_text(closed)} of the way from the first seed to the floor, {gain_text(mean_gain(rows))} "
        f"(mean of workloads; {data.target_text}, times {data.kind}, floors modelled)"
    )
    wide = max(len(row.workload) for row in rows)
    return lines + [
        f"  {row.workload:<{wide}}  {percent_text(row.closed)}, {gain_text(row.gain)}, at most ×{row.left:.2f} left"
        for row in rows
    ]


def closing_lines(path: Path) -> list[str]:
    """What a finished campaign prints: the final table, best first."""
    with Journal(path) as journal:
        finals = journal.references(Scope.FINAL.value)
        state = _state(journal)
        reason = next(
            (e.detail.get("reason") for e in reversed(journal.events()) if e.kind == "finished"), None
        )
        rows = {name: e for name, e in finals.items() if not name.startswith("finalist:")}
        evaluations = [evaluation for _, _, evaluation, _ in journal.evaluations()]
        lines = [f"campaign {path.parent.name} {state} ({reason})"]
        for name, evaluation in sorted(rows.items(), key=lambda item: -(item[1].fitness or 0.0)):
            lines.append(f"  {name:16s} {figures(evaluation)}")
        lines += _even(rows)
        lines += judged(evaluations)
        lines += _model(journal)
        lines += _balance(load(journal))
    table = path.parent / dispatch_table.FILE
    if table.is_file():
        lines += dispatch_table.lines(json.loads(table.read_text(encoding="utf-8")))
    return lines


def _even(rows: Mapping[str, Evaluation]) -> list[str]:
    """What the winner is even with, where a model's own error is larger than the difference."""
    winner = rows.get("winner")
    even = [] if winner is None else [n for n, e in rows.items() if n != "winner" and winner.even_with(e)]
    return [f"  the winner is even with {', '.join(even)}: the time model errs by more"] if even else []


def figures(evaluation: Evaluation) -> str:
    """Time and rate of each workload, for example ``4096^3 81.2 us, 1692 TFLOP/s (tpu7x, modelled)``."""
    if evaluation.verdict is not Verdict.OK:
        return f"{evaluation.verdict.value}: {evaluation.reason}"
    parts = [
        f"{w.workload} {w.seconds * 1e6:.1f} us{_within(w)}, {_rounded(w.rate)} {w.unit}"
        for w in evaluation.workloads
    ]
    if not parts:
        return f"compiles ({target_text(evaluation.target)}): " + ", ".join(
            f"{name} {value}" for name, value in sorted(evaluation.descriptors.items())
        )
    kind = evaluation.workloads[0].kind.value
    version = evaluation.model_version
    model = f" by time model {version}" if version else ""
    return "; ".join(parts) + f" ({target_text(evaluation.target)}, {kind}{model})"


def _within(figures: WorkloadFigures) -> str:
    """The interval of a modelled time, for example `` (78.4 to 84.1)``; nothing of one that has none."""
    low, high = figures.seconds_interval
    return "" if low == high else f" ({low * 1e6:.1f} to {high * 1e6:.1f})"


def _rounded(rate: float) -> str:
    """Three digits: interpreted kernels move kilobytes a second."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _best(facts: dict, evaluations: Sequence[Evaluation]) -> str:
    passed = [evaluation.fitness for evaluation in evaluations if evaluation.fitness is not None]
    kind = facts.get("target_kind", "?")
    if kind == FigureKind.COMPILED.value:
        return f"{len(passed)} compile and answer rightly"
    return (
        f"best {_rounded(max(passed))} {facts.get('unit', 'TFLOP/s')} ({kind})"
        if passed
        else "none correct yet"
    )


def _budget(facts: dict) -> str:
    limits = {k: v for k, v in (facts.get("budget") or {}).items() if v is not None}
    return ", ".join(f"until {v}" if key == "until" else f"{v:g} {key}" for key, v in limits.items())


def _state(journal: Journal) -> str:
    kinds = [event.kind for event in journal.events()]
    if "finished" in kinds:
        return "finished"
    if kinds and kinds[-1] == "interrupted":
        return "stopped"
    return "running or killed"
