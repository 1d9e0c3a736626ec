"""Content of MLflow's runs, for a campaign and its candidates: plain data, made without MLflow.

Names of metrics end in ``_measured`` or ``_modelled`` where a target was involved, and carry their unit. A candidate
has, at step = candidate number: ``tflops_*`` (geometric mean over the suite), ``us_*/<workload>`` (microseconds),
``tflops_*/<workload>``, ``roofline_*/<workload>`` (of 1), ``<figure>_*/<workload>`` for the numbers of a diagnosis,
``gain_*`` (rate over the first seed's), ``gate/<gate>/<inputs>`` (in the gate's unit), ``evaluation_wall_seconds``, and
``progress/*``: the campaign's progress when the evaluation finished. A campaign has ``campaign/best_tflops_*`` and
``campaign/evaluations_failed`` at step = evaluations finished, and ``ref_*`` figures of seeds, baselines, the winner.
Where GB/s rank, ``gbytes`` stands for ``tflops``. A figure that is no whole number has ``DIGITS`` significant digits.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from tilewright.evolve.mlflow_mirror.view import EVALUATION, FAILED, best_metric, fitness_metric, gain_metric
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report.change import full_diff, winner_change
from tilewright.evolve.report.data import FINALIST_PREFIX, SEED_PREFIX, CampaignData, rival_speeds
from tilewright.evolve.report.tables import flatten
from tilewright.evolve.report.text import percent_text, rate_text, speed_text, time_text
from tilewright.fitness.evaluation import UNIT_SLUGS, Evaluation, Verdict, WorkloadFigures
from tilewright.fitness.targets import target_text
from tilewright.seeds.operator import Scope

KEY_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 5000
DIGITS = 6
MOST_LINKS = 20
"""Children that a candidate's description links to."""
UID, CANDIDATE = "tilewright.uid", "tilewright.candidate"
NOTE, COMMIT = "mlflow.note.content", "mlflow.source.git.commit"
_UNSAFE = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class RunContent:
    """One MLflow run. ``passed``: whether it ends as finished rather than failed.

    ``files`` maps artifact names to text; a name says how MLflow previews it.
    """

    name: str
    passed: bool
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)


def candidate_run(
    facts: Mapping[str, Any],
    candidate: Candidate,
    evaluation: Evaluation,
    parents: Sequence[Candidate],
    parent_runs: Sequence[str],
    progress: Mapping[str, float],
    note: str = "",
) -> RunContent:
    """The child run of one evaluated candidate. A failed candidate has no fitness metric, rather than one of 0.

    ``progress``: metrics of the campaign when the evaluation finished (see ``CampaignProgress``); ``note``: the
    description, of ``candidate_note``.
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
        "parents": ", ".join(f"{p.index:04d}" for p in parents) or "none",
        "parents.run_ids": ", ".join(parent_runs),
        NOTE: note,
    }
    if evaluation.reason:
        tags["reason"] = evaluation.reason
    if evaluation.artefact:
        tags["artefact"] = evaluation.artefact
    tags.update({f"descriptor.{k}": v for k, v in evaluation.descriptors.items()})
    return RunContent(
        name=f"{candidate.index:04d} {mutation.detail}"[:120].strip(),
        passed=not evaluation.failed,
        params=_params(candidate.genome.params),
        metrics={**evaluation_metrics(evaluation, str(facts.get("target_kind"))), **progress},
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
    """The parent run of a campaign at its start."""
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
    """Finite numbers of an evaluation by metric name, the rate first: MLflow's comparison opens on the first one."""
    metrics: dict[str, float] = {}
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
            "us": figures.seconds * 1e6,
            UNIT_SLUGS[figures.unit]: figures.rate,
            "roofline": figures.roofline_fraction,
            **flatten(figures.diagnosis),
        }
        metrics.update({f"{k}_{figures.kind.value}/{workload}": v for k, v in own.items() if _is_number(v)})
    for gate in evaluation.gates:
        if gate.value is not None:
            metrics[f"gate/{gate.gate}/{gate.inputs}"] = gate.value
    return _metric_values({**metrics, "evaluation_wall_seconds": evaluation.wall_seconds})


@dataclass
class CampaignProgress:
    """Evaluations, failures and the best rate so far, in the order in which evaluations finished."""

    unit: str
    kind: str
    evaluations: int = 0
    failed: int = 0
    best: float | None = None
    seed: float | None = None
    """The rate of the first seed that passed, on the suite."""

    def add(self, evaluation: Evaluation, is_seed: bool) -> dict[str, float]:
        """Metrics of this evaluation's run: its number, best and failures so far, its gain over the seed."""
        self.evaluations += 1
        self.failed += evaluation.failed
        metrics: dict[str, float] = {EVALUATION: self.evaluations, FAILED: self.failed}
        if evaluation.fitness is not None:
            self.best = max(self.best or 0.0, evaluation.fitness)
            if is_seed and self.seed is None:
                self.seed = evaluation.fitness
            metrics |= self.gain(evaluation)
        if self.best is not None:
            metrics[best_metric(self.unit, self.kind)] = self.best
        return _metric_values(metrics)

    def gain(self, evaluation: Evaluation) -> dict[str, float]:
        """The metric of its gain; empty before the seed has passed."""
        rates = self.seed, evaluation.fitness
        return {gain_metric(self.kind): round(rates[1] / rates[0], 4)} if rates[0] and rates[1] else {}

    def campaign_metrics(self) -> dict[str, float]:
        """The campaign's own curves, at step = evaluations finished."""
        metrics: dict[str, float] = {"campaign/evaluations_failed": self.failed}
        if self.best is not None:
            metrics[f"campaign/best_{fitness_metric(self.unit, self.kind)}"] = self.best
        return _metric_values(metrics)


def reference_metrics(references: Mapping[str, Evaluation], scope: str, kind: str) -> dict[str, float]:
    """Fitness and times of seeds, baselines and the winner, named by scope."""
    metrics: dict[str, float] = {}
    for name, evaluation in references.items():
        if evaluation.fitness is None or name.startswith(FINALIST_PREFIX):
            continue
        plain = name.replace(":", ".").replace("/", ".")
        rate = f"ref_{fitness_metric(evaluation.unit, kind)}"
        metrics[f"{rate}/{scope}.{plain}"] = evaluation.fitness
        for figures in evaluation.workloads:
            workload = figures.workload.replace("/", ".")
            metrics[f"ref_us_{kind}/{scope}.{workload}.{plain}"] = figures.seconds * 1e6
    return _metric_values(metrics)


def cost_metrics(data: CampaignData) -> dict[str, float]:
    """The bill, and by workload the factor that the floor still allows."""
    left = {f"headroom_{data.kind}/{row.workload.replace('/', '.')}": row.left for row in data.headroom()}
    return _metric_values({**data.bill.metrics(), **left})


def model_tags(data: CampaignData) -> dict[str, str]:
    """What a language model's answers came to, as tags of a campaign; empty without a call."""
    return {f"llm.{k}": v for k, v in data.bill.model.tags().items()}


def cost_line(data: CampaignData) -> str:
    """The bill and the mean headroom in one line of Markdown."""
    rows = data.bill.rows()
    named = ("wall clock", "processors", "device", "tokens")
    parts = [f"{name} {rows[name]}" for name in named if name in rows]
    if left := [row.left for row in data.headroom()]:
        parts.append(f"at most ×{max(left):.2f} left to the modelled floor")
    return "Bill: " + "; ".join(_markdown_text(part) for part in parts) + "."


def campaign_note(data: CampaignData, state: str, artifacts: str, link: Callable[[int], str], *, ended: bool) -> str:
    """Description of a campaign in Markdown. ``artifacts``: page of the run's files, with ``{}`` for a file's name;
    ``link`` as for ``candidate_note``; ``ended``: whether to add links to these files and the bill.
    """
    facts, unit = data.facts, f"{data.target_text}, {data.kind}"
    counts = Counter(point.evaluation.verdict.value for point in data.points)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()) or "none yet"
    best = (data.best and data.best.fitness) or 0.0
    rows = [row for row in data.ranking(Scope.FINAL) if row.evaluation.fitness is not None]
    pages = (("Report", "report.html"), ("Lineage", "lineage.html")) if ended else ()
    links = " · ".join(f"[{name}]({artifacts.format(page)})" for name, page in pages)
    paragraphs = [
        " ".join(filter(None, (_headline(data, link), links))),
        f"**{_markdown_text(facts.get('id'))}**: `{facts.get('operator')}` on `{data.target_text}`, suite "
        f"`{facts.get('suite')}`, seed {facts.get('seed')}. State: {state}.",
        f"Verdicts: {verdicts}.",
        f"Best rate on the suite: **{rate_text(best, data.unit)}** (geometric mean; {unit})." if best else "",
        _figures_table(
            f"final check ({unit})", ((f"{r.name}, {w.workload}", w) for r in rows for w in r.evaluation.workloads)
        ),
        cost_line(data) if ended else "",
        "Artifacts: `report.html` and `lineage.html` (open them here), two pictures as `.svg`, `winner.py`.",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)[:TAG_LENGTH]


def _headline(data: CampaignData, link: Callable[[int], str]) -> str:
    """The result in two sentences, first: the UI folds a description after a few lines."""
    finals = data.references[Scope.FINAL.value]
    winner = finals.get("winner")
    if winner is None or winner.fitness is None or data.winner is None:
        return ""
    number = data.winner.index
    change = winner_change(data)
    changed = "; ".join((*change.steps, *change.parameters)) if change else data.winner.mutation.detail
    candidate = _markdown_link(f"candidate {number}", link(number))
    won = f"Winner: {candidate}, {_markdown_text(changed or 'the seed unchanged')}."
    first = winner.workloads[0]
    low, high = first.seconds_interval
    interval = "" if low == high else f" ({time_text(low)} to {time_text(high)})"
    speeds = rival_speeds(finals)
    mean = f" (geometric mean of {len(winner.workloads)} shapes)" if len(winner.workloads) > 1 else ""
    speed = f" It is {_markdown_text(speeds)}{mean}." if speeds else ""
    if data.bill.gain is not None and not any(name.startswith(SEED_PREFIX) for name in finals):
        speed += f" It is {speed_text(data.bill.gain, 'the best seed')}."
    return (
        f"{won} It takes **{time_text(first.seconds)}**{interval} at {_markdown_text(first.workload)} "
        f"({data.target_text}, {data.kind}).{speed}"
    )


def _figures_table(head: str, rows: Iterable[tuple[str, WorkloadFigures]]) -> str:
    """Times and rates in Markdown; empty without rows."""
    lines = [
        (_markdown_text(n), time_text(w.seconds), rate_text(w.rate, w.unit), percent_text(w.roofline_fraction))
        for n, w in rows
    ]
    # MLflow's tables have no space between cells
    texts = ["| " + " | ".join(f"{cell}&emsp;" for cell in line) + " |" for line in lines]
    columns = [f"| {head}&emsp; | time&emsp; | rate&emsp; | of roofline |", "|---|--:|--:|--:|"]
    return "\n".join([*columns, *texts]) if lines else ""


def candidate_note(
    facts: Mapping[str, Any],
    candidate: Candidate,
    evaluation: Evaluation,
    parents: Sequence[Candidate],
    link: Callable[[int], str],
) -> str:
    """Description of a candidate in Markdown; ``with_children`` completes its first paragraph.

    ``link``: the page of a candidate's run by number, empty if unknown.
    """
    mutation = candidate.mutation
    origin = " and ".join(_markdown_link(f"candidate {p.index}", link(p.index)) for p in parents)
    note = f"{_markdown_text(mutation.detail)}: {mutation.kind.value} by {_markdown_text(mutation.proposer)}"
    note += f", from {origin}." if origin else "."
    if evaluation.verdict is not Verdict.OK:
        reason = _markdown_text(evaluation.reason[:1000])
        return f"{note}\n\n**{evaluation.verdict.value}** at stage {evaluation.stage.value}: {reason}"
    head = f"{target_text(evaluation.target)}, {facts.get('target_kind')}"
    rows = ((w.workload, w) for w in evaluation.workloads[:MOST_LINKS])
    return f"{note}\n\n{_figures_table(head, rows)}"


def with_children(note: str, children: Sequence[int], link: Callable[[int], str]) -> str:
    """A candidate's description with links to what was made of the candidate."""
    if not children:
        return note
    shown = ", ".join(_markdown_link(str(n), link(n)) for n in children[:MOST_LINKS])
    more = f" and {len(children) - MOST_LINKS} more" if len(children) > MOST_LINKS else ""
    first, gap, rest = note.partition("\n\n")
    return f"{first} Children: {shown}{more}.{gap}{rest}"[:TAG_LENGTH]


def _markdown_link(text: str, address: str) -> str:
    return f"[{text}]({address})" if address else text


def _candidate_files(candidate: Candidate, evaluation: Evaluation, parents: Sequence[Candidate]) -> dict[str, str]:
    # The endings are ones MLflow previews; it shows no .diff file.
    files = {
        "kernel.py": candidate.genome.source,
        "params.json": json.dumps(dict(candidate.genome.params), indent=2) + "\n",
        "evaluation.json": evaluation.model_dump_json(indent=2, exclude={"log"}) + "\n",
    }
    if parents:
        files["mutation.diff.txt"] = "\n".join(full_diff(p, candidate) for p in parents)
    if evaluation.log:
        files["log.txt"] = evaluation.log
    return files


def _params(values: Mapping[str, Any]) -> dict[str, str]:
    return {_key(k): str(v)[:PARAM_LENGTH] for k, v in values.items()}


def _tags(values: Mapping[str, str]) -> dict[str, str]:
    return {_key(k): v[:TAG_LENGTH] for k, v in values.items() if v != ""}


def _metric_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Finite numbers under names that MLflow accepts."""
    return {
        _key(k): float(v if float(v).is_integer() else f"{v:.{DIGITS}g}")
        for k, v in metrics.items()
        if math.isfinite(v)
    }


def _key(name: str) -> str:
    """A name that MLflow accepts."""
    return re.sub(r"/{2,}", "/", _UNSAFE.sub("_", name)).strip("/. ")[:KEY_LENGTH] or "unnamed"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _markdown_text(text: object) -> str:
    """Text without Markdown's markup, in one table cell."""
    return re.sub(r"([|`*_<>\[\]\\])", r"\\\1", " ".join(str(text).split()))
