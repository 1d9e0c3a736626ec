"""Content of MLflow's runs, for a campaign and its candidates: plain data, made without MLflow.

Names of metrics end in ``_measured`` or ``_modelled`` where a target was involved, and carry their unit:
``fitness_tflops_*`` (geometric mean over the suite, TFLOP/s), ``seconds_*/<workload>``,
``gain_over_seed_*`` (rate over the first seed's), ``progress/*`` (how the campaign stood when it came in),
``tflops_*/<workload>``, ``roofline_fraction_*/<workload>`` (of 1), ``<figure>_*/<workload>`` for the
numbers of a diagnosis, ``gate/<gate>/<inputs>`` (in the gate's unit) and ``evaluation_wall_seconds``.
What stands before a slash is a section of MLflow's charts. A campaign's own run has
``campaign/best_fitness_tflops_*`` and ``campaign/evaluations_failed`` at step = evaluations finished, and
``reference_*`` figures of seeds, baselines and the winner. Where bytes rank, ``gbytes`` (GB/s) stands for ``tflops``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from tilewright.evolve.mlflow_mirror.view import EVALUATION, FAILED, best_metric, fitness_metric, gain_metric
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report.change import full_diff
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.tables import flatten
from tilewright.evolve.report.text import rate_text, time_text
from tilewright.fitness.evaluation import UNIT_SLUGS, Evaluation, Verdict
from tilewright.fitness.score import mean_closed
from tilewright.fitness.targets import target_text

KEY_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 5000
UID, CANDIDATE = "tilewright.uid", "tilewright.candidate"
NOTE, COMMIT = "mlflow.note.content", "mlflow.source.git.commit"
_UNSAFE = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class RunContent:
    """One MLflow run. ``files`` maps artifact names to text; a name says how MLflow previews it."""

    name: str
    passed: bool
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)


def campaign_uid(campaign: str, started: float) -> str:
    """Identity of a campaign across homes that share one MLflow server: 16 hex digits."""
    return hashlib.sha256(f"{campaign}@{started!r}".encode()).hexdigest()[:16]


def experiment_name(facts: Mapping[str, Any]) -> str:
    return f"tilewright/{facts.get('operator')}/{target_text(facts.get('target'))}"


def experiment_note(facts: Mapping[str, Any]) -> str:
    return (
        f"Campaigns that evolve kernels of `{facts.get('operator')}` on `{target_text(facts.get('target'))}` "
        f"({facts.get('target_kind')}). One run is one campaign; its children are the evaluated candidates, "
        "at step = candidate number."
    )


def candidate_run(
    facts: Mapping[str, Any],
    candidate: Candidate,
    evaluation: Evaluation,
    parents: Sequence[Candidate],
    parent_runs: Sequence[str],
    standing: Mapping[str, float],
) -> RunContent:
    """The child run of one evaluated candidate. Failures have no fitness metric, not one of 0.

    ``standing``: metrics of how the campaign stood when the evaluation came in (see ``Standing``).
    """
    mutation = candidate.mutation
    tags = {
        CANDIDATE: str(candidate.index),
        "tilewright.genome": candidate.genome.id,
        "operator": str(facts.get("operator")),
        "target": evaluation.target,
        "target_kind": str(facts.get("target_kind")),
        "suite": evaluation.suite,
        "verdict": evaluation.verdict.value,
        "stage": evaluation.stage.value,
        "island": str(candidate.island),
        "generation": str(candidate.generation),
        "mutation": mutation.kind.value,
        "mutation.detail": mutation.detail,
        "proposer": mutation.proposer,
        "lineage.parents": ", ".join(f"{p.index:04d}" for p in parents) or "none",
        "lineage.parent_genomes": ", ".join(candidate.parents),
        "lineage.parent_run_ids": ", ".join(parent_runs),
        NOTE: _candidate_note(facts, candidate, evaluation, parents),
    }
    if evaluation.reason:
        tags["reason"] = evaluation.reason
    if evaluation.artefact:
        tags["artefact"] = evaluation.artefact
    tags.update({f"descriptor.{k}": v for k, v in evaluation.descriptors.items()})
    return RunContent(
        name=f"{candidate.index:04d} {mutation.detail}"[:120].strip(),
        passed=evaluation.verdict is Verdict.OK,
        params=_params(candidate.genome.params),
        metrics={**evaluation_metrics(evaluation, str(facts.get("target_kind"))), **standing},
        tags=_tags(tags),
        files=_candidate_files(candidate, evaluation, parents),
    )


def campaign_run(
    facts: Mapping[str, Any],
    toolchain: Mapping[str, str],
    system: Mapping[str, str],
    config: Mapping[str, Any],
    uid: str,
) -> RunContent:
    """The parent run of a campaign as it is when the campaign starts."""
    tags = {
        UID: uid,
        "tilewright.campaign": str(facts.get("id")),
        "operator": str(facts.get("operator")),
        "target": str(facts.get("target")),
        "target_kind": str(facts.get("target_kind")),
        "suite": str(facts.get("suite")),
        **{f"toolchain.{name}": version for name, version in toolchain.items()},
        **{f"system.{name}": value for name, value in system.items() if name != "commit"},
        COMMIT: system.get("commit", "").removesuffix("+changes"),
    }
    budget = facts.get("budget")
    params = {k: facts.get(k) for k in ("name", "operator", "target", "suite", "seed")}
    params.update({f"budget.{k}": v for k, v in budget.items()} if isinstance(budget, Mapping) else {})
    params.update({k: v for k, v in flatten(config).items() if k not in params})
    return RunContent(
        name=str(facts.get("id")),
        passed=True,
        params=_params({k: v for k, v in params.items() if v is not None}),
        metrics={},
        tags=_tags(tags),
    )


def evaluation_metrics(evaluation: Evaluation, kind: str) -> dict[str, float]:
    """Finite numbers of an evaluation by metric name."""
    metrics: dict[str, float] = {"evaluation_wall_seconds": evaluation.wall_seconds}
    if evaluation.fitness is not None:
        name = fitness_metric(evaluation.unit, kind)
        metrics[name] = evaluation.fitness
        if evaluation.interval is not None and evaluation.interval[0] < evaluation.interval[1]:
            metrics[f"{name}_low"], metrics[f"{name}_high"] = evaluation.interval
        if evaluation.model_version is not None:
            metrics["time_model_version"] = evaluation.model_version
    for figures in evaluation.workloads:
        workload = figures.workload.replace("/", ".")
        own = {
            "seconds": figures.seconds,
            UNIT_SLUGS[figures.unit]: figures.rate,
            "roofline_fraction": figures.roofline_fraction,
            **flatten(figures.diagnosis),
        }
        metrics.update({f"{k}_{figures.kind.value}/{workload}": v for k, v in own.items() if _is_number(v)})
    for gate in evaluation.gates:
        if gate.value is not None:
            metrics[f"gate/{gate.gate}/{gate.inputs}"] = gate.value
    return {_key(k): float(v) for k, v in metrics.items() if math.isfinite(v)}


@dataclass
class Standing:
    """How a campaign stands after each evaluation, in the order in which they came in."""

    unit: str
    kind: str
    arrived: int = 0
    failed: int = 0
    best: float | None = None
    seed: float | None = None
    """The rate of the first seed that passed, on the suite."""

    def note(self, evaluation: Evaluation, is_seed: bool) -> dict[str, float]:
        """Metrics of this evaluation's run: its number, best and failures so far, its gain over the seed."""
        self.arrived += 1
        self.failed += evaluation.verdict is not Verdict.OK
        metrics: dict[str, float] = {EVALUATION: self.arrived, FAILED: self.failed}
        if evaluation.fitness is not None:
            self.best = max(self.best or 0.0, evaluation.fitness)
            if is_seed and self.seed is None:
                self.seed = evaluation.fitness
            if self.seed:
                metrics[gain_metric(self.kind)] = round(evaluation.fitness / self.seed, 4)
        if self.best is not None:
            metrics[best_metric(self.unit, self.kind)] = self.best
        return metrics


def reference_metrics(references: Mapping[str, Evaluation], scope: str, kind: str) -> dict[str, float]:
    """Fitness and times of seeds, baselines and the winner, named by scope."""
    metrics: dict[str, float] = {}
    for name, evaluation in references.items():
        if evaluation.fitness is None or name.startswith("finalist:"):
            continue
        plain = name.replace(":", ".").replace("/", ".")
        metrics[f"reference_fitness_{UNIT_SLUGS[evaluation.unit]}_{kind}/{scope}.{plain}"] = (
            evaluation.fitness
        )
        for figures in evaluation.workloads:
            workload = figures.workload.replace("/", ".")
            metrics[f"reference_seconds_{kind}/{scope}.{workload}.{plain}"] = figures.seconds
    return {_key(k): v for k, v in metrics.items()}


def cost_metrics(data: CampaignData) -> dict[str, float]:
    """The bill, and the share of the gap to the floor that is closed, in the mean and by workload."""
    rows = data.headroom()
    closed = mean_closed(rows)
    shares = {} if closed is None else {f"campaign/headroom_closed_{data.kind}": closed}
    for row in rows:
        shares[f"headroom_closed_{data.kind}/{row.workload.replace('/', '.')}"] = row.closed
    return {_key(k): v for k, v in {**data.bill.metrics(), **shares}.items()}


def cost_line(data: CampaignData) -> str:
    """What the campaign took and what it closed, in one line of Markdown."""
    rows = data.bill.rows()
    named = ("wall clock", "processors", "device", "tokens", "money", "per % gained")
    parts = [f"{name} {rows[name]}" for name in named if name in rows]
    closed = mean_closed(data.headroom())
    if closed is not None:
        parts.append(f"{closed:.1%} of the way from the first seed to the modelled floor (mean of workloads)")
    return "Bill: " + "; ".join(_plain(part) for part in parts) + "."


def campaign_note(
    facts: Mapping[str, Any],
    state: str,
    counts: Mapping[str, int],
    best: Evaluation | None,
    finals: Mapping[str, Evaluation],
    report: str,
    cost: str = "",
) -> str:
    """Description of a campaign in Markdown. ``report``: where a link to the report leads; ``cost``: ``cost_line``."""
    verdicts = ", ".join(f"{n} {v}" for v, n in sorted(counts.items(), key=lambda vn: -vn[1])) or "none yet"
    unit = f"{target_text(facts.get('target'))}, {facts.get('target_kind')}"
    lines = [
        *_headline(finals, unit, report),
        f"**{_plain(facts.get('id'))}**: `{facts.get('operator')}` on `{target_text(facts.get('target'))}`, "
        f"suite `{facts.get('suite')}`, seed {facts.get('seed')}. State: {state}.",
        "",
        f"Verdicts: {verdicts}.",
    ]
    if best is not None and best.fitness is not None:
        lines += [
            "",
            f"Best on the suite: **{rate_text(best.fitness, best.unit)}** (geometric mean; {unit}).",
        ]
    rows = [(n, e) for n, e in finals.items() if e.fitness is not None and not n.startswith("finalist:")]
    if rows:
        lines += [
            "",
            f"| final check ({unit}) | workload | time | rate | of roofline |",
            "|---|---|--:|--:|--:|",
        ]
    for name, evaluation in sorted(rows, key=lambda row: -(row[1].fitness or 0.0)):
        for w in evaluation.workloads:
            lines.append(
                f"| {_plain(name)} | {_plain(w.workload)} | {time_text(w.seconds)} | {rate_text(w.rate, w.unit)} "
                f"| {w.roofline_fraction:.1%} |"
            )
    lines += [
        *(["", cost] if cost else []),
        "",
        "Artifacts: `report.html` and `lineage.html` (open them here), their pictures as `.svg`, `winner.py`.",
    ]
    return "\n".join(lines)[:TAG_LENGTH]


def _headline(finals: Mapping[str, Evaluation], unit: str, report: str) -> list[str]:
    """The outcome in one sentence, first: the UI folds a description after a few lines."""
    winner = finals.get("winner")
    if winner is None or winner.fitness is None:
        return []
    others = [
        f"{_gain(winner, e)} × {_plain(name.replace(':', ' '))}{' (even)' if winner.even_with(e) else ''}"
        for name, e in finals.items()
        if e.fitness and name != "winner" and not name.startswith("finalist:")
    ]
    first = winner.workloads[0]
    mean = f" (geometric mean of {len(winner.workloads)} shapes)" if len(winner.workloads) > 1 else ""
    speed = f", {', '.join(others)}{mean}" if others else ""
    low, high = first.seconds_interval
    within = "" if low == high else f" ({time_text(low)} to {time_text(high)})"
    return [
        f"The winner takes **{time_text(first.seconds)}**{within} at {_plain(first.workload)}{speed}; "
        f"{unit}. [Report]({report})",
        "",
    ]


def _gain(winner: Evaluation, other: Evaluation) -> str:
    """The ratio of two fitnesses, with the winner's own interval where it has one."""
    assert winner.fitness and other.fitness
    if winner.interval is None or winner.interval[0] == winner.interval[1]:
        return f"**{winner.fitness / other.fitness:.2f}**"
    low, high = (bound / other.fitness for bound in winner.interval)
    return f"**{winner.fitness / other.fitness:.2f}** ({low:.2f} to {high:.2f})"


def _candidate_note(
    facts: Mapping[str, Any], candidate: Candidate, evaluation: Evaluation, parents: Sequence[Candidate]
) -> str:
    mutation = candidate.mutation
    origin = " and ".join(f"candidate {p.index}" for p in parents) or "the seeds"
    lines = [
        f"{_plain(mutation.detail)}: {mutation.kind.value} by {_plain(mutation.proposer)}, from {origin}."
    ]
    if evaluation.verdict is not Verdict.OK:
        reason = _plain(evaluation.reason[:1000])
        lines += ["", f"**{evaluation.verdict.value}** at {evaluation.stage.value}: {reason}"]
    else:
        unit = f"{target_text(evaluation.target)}, {facts.get('target_kind')}"
        lines += ["", f"| workload ({unit}) | time | rate | of roofline |", "|---|--:|--:|--:|"]
        for w in evaluation.workloads[:20]:
            lines.append(
                f"| {_plain(w.workload)} | {time_text(w.seconds)} | {rate_text(w.rate, w.unit)} "
                f"| {w.roofline_fraction:.1%} |"
            )
    return "\n".join(lines)


def _candidate_files(
    candidate: Candidate, evaluation: Evaluation, parents: Sequence[Candidate]
) -> dict[str, str]:
    # The endings are ones MLflow previews; it shows no .diff file.
    files = {
        "kernel.py": candidate.genome.source,
        "params.json": json.dumps(dict(candidate.genome.params), indent=2) + "\n",
        "evaluation.json": evaluation.model_dump_json(indent=2, exclude={"log"}) + "\n",
    }
    if parents:
        files["mutation.diff.txt"] = "\n".join(full_diff(p.genome, candidate.genome) for p in parents)
    if evaluation.log:
        files["log.txt"] = evaluation.log
    return files


def _params(values: Mapping[str, Any]) -> dict[str, str]:
    return {_key(k): str(v)[:PARAM_LENGTH] for k, v in values.items()}


def _tags(values: Mapping[str, str]) -> dict[str, str]:
    return {_key(k): v[:TAG_LENGTH] for k, v in values.items() if v != ""}


def _key(name: str) -> str:
    """A name MLflow accepts; the suite's own names already are."""
    return re.sub(r"/{2,}", "/", _UNSAFE.sub("_", name)).strip("/. ")[:KEY_LENGTH] or "unnamed"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(text: object) -> str:
    """Text that Markdown shows as it is, in one table cell."""
    return re.sub(r"([|`*_<>\[\]\\])", r"\\\1", " ".join(str(text).split()))
