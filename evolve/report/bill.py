"""The bill of a campaign: what it took of devices, processors and language models."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.evolve.proposers.llm.client import Exchange
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.text import duration_text, gain_text, number_text, percent_text
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.targets import UnknownTarget, load_target, target_text
from tilewright.seeds.operator import Scope

SPENT = "spent"
"""The event with which a run records its process's CPU time and the device time of the last comparison."""

_SHORT = ("wall clock", "device", "tokens", "gain")
"""Rows of the bill for whoever does not ask for more."""


@dataclass(frozen=True)
class ModelUse:
    """Answers of a language model: ``accepted`` as candidates, ``passed`` of them every gate, ``repeated`` of them
    duplicates, ``refused`` before an evaluation; ``failed`` calls had no answer. Tokens are those of accepted answers,
    and of all the rest.
    """

    accepted: int = 0
    passed: int = 0
    repeated: int = 0
    refused: int = 0
    failed: int = 0
    tokens_accepted: int = 0
    tokens_refused: int = 0

    def text(self) -> str:
        """One line; empty without a question."""
        if not (asked := self.accepted + self.refused + self.failed):
            return ""
        made, others = (f"({number_text(n)} tokens)" for n in (self.tokens_accepted, self.tokens_refused))
        return (
            f"{counted(asked, 'question')}: {counted(self.accepted, 'candidate')} {made}, of which {self.passed} "
            f"passed every gate and {self.repeated} repeated another; {self.refused} refused and {self.failed} "
            f"unanswered {others}"
        )

    def tags(self) -> dict[str, str]:
        """Facts by name; empty without a call."""
        if not self.accepted + self.refused + self.failed:
            return {}
        found = {name: str(getattr(self, name)) for name in ("accepted", "passed", "refused", "failed")}
        return {**found, "tokens": str(self.tokens_accepted + self.tokens_refused)}


@dataclass(frozen=True)
class Bill:
    """What a campaign took: seconds of devices held, of processors, of wall clock; tokens.

    Seconds and tokens are counted, whatever the target. ``gain`` is the winner's fitness over the best seed's, ``None``
    before there are both and where times mean nothing; ``target`` and ``kind`` are what it holds for.
    ``first_verdict`` in seconds from the start.
    """

    device_seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: int = 0
    wall_seconds: float = 0.0
    evaluations: int = 0
    """That the budget counts."""
    duplicates: int = 0
    """Beside them, free: as many as the budget has evaluations."""

    gain: float | None = None
    target: str = ""
    kind: str = ""
    first_verdict: float | None = None
    model: ModelUse = field(default_factory=ModelUse)

    @property
    def count(self) -> str:
        return count_text(str(self.evaluations), self.duplicates)

    def rows(self) -> dict[str, str]:
        """Names and texts for a table, every figure with its unit."""
        rows = {
            "wall clock": f"{duration_text(self.wall_seconds)}, {self.count}",
            "processors": f"{duration_text(self.cpu_seconds)} of CPU time",
            "device": duration_text(self.device_seconds) if self.device_seconds else "none used",
            "tokens": number_text(self.tokens) if self.tokens else "none",
        }
        if model := self.model.text():
            rows["tokens"] += f", {model}"
        if self.device_seconds and self.wall_seconds:
            rows["device busy"] = f"{percent_text(self.device_seconds / self.wall_seconds)} of the wall clock"
        if self.first_verdict is not None:
            rows["first verdict"] = f"after {duration_text(self.first_verdict)}"
        if self.gain is not None:
            where = f" ({self.target}, {self.kind})" if self.kind else ""
            rows["gain"] = f"{gain_text(self.gain)} over the best seed{where}"
        return rows

    def lines(self, verbose: bool = False) -> list[str]:
        """The rows for a terminal: what was paid and gained, unless ``verbose`` nothing else."""
        rows = self.rows()
        if not verbose:
            rows = {n: text for n, text in rows.items() if n in _SHORT and text not in ("none", "none used")}
        wide = max(map(len, rows))
        return ["bill (seconds are measured):", *(f"  {name:<{wide}}  {text}" for name, text in rows.items())]

    def metrics(self) -> dict[str, float]:
        """Figures by name, units within the names."""
        used = ("device_seconds", "cpu_seconds", "tokens", "wall_seconds")
        found = {f"bill/{name}": float(getattr(self, name)) for name in used}
        if self.first_verdict is not None:
            found["bill/first_verdict_seconds"] = self.first_verdict
        if self.gain is not None:
            found[f"bill/gained_percent_{self.kind}"] = 100.0 * (self.gain - 1.0)
        return found


def bill_of(journal: Journal, clock: Callable[[float], float], gain: float | None) -> Bill:
    """The bill of a campaign so far. ``clock`` maps Unix seconds to seconds of campaign time."""
    events = tuple(event for event in journal.events() if event.kind != "promoted")
    rows = list(journal.evaluations())
    free = sum(e.verdict is Verdict.DUPLICATE for _, _, e, _ in rows)
    # a winner's final figures repeat those of a finalist
    others = [
        (e, at) for name, scope, e, at in journal.reference_rows() if (name, scope) != ("winner", Scope.FINAL.value)
    ]
    ended = [*((e, at) for _, _, e, at in rows), *others]
    spent: dict[str, float] = defaultdict(float)
    for evaluation, _ in ended:
        for name in ("device", "cpu"):
            spent[name] += evaluation.spent.get(name, 0.0)
    for event in events:
        if event.kind == SPENT:
            spent["cpu"] += float(event.detail.get("cpu_seconds", 0.0))
            spent["device"] += float(event.detail.get("device_seconds", 0.0))
    last = max([event.at for event in events] + [at for _, at in ended], default=0.0)
    facts = journal.meta("campaign") or {}
    exchanges = [Exchange.from_json(text) for _, text in journal.exchanges()]
    free = min(free, (facts.get("budget") or {}).get("evaluations") or free)
    return Bill(
        device_seconds=spent["device"],
        cpu_seconds=spent["cpu"],
        tokens=sum(exchange.tokens for exchange in exchanges),
        wall_seconds=clock(last),
        evaluations=len(rows) - free,
        duplicates=free,
        gain=gain,
        target=target_text(facts.get("target", "")),
        kind=str(facts.get("target_kind", "")),
        first_verdict=clock(rows[0][3]) if rows else None,
        model=_model_use(journal, exchanges),
    )


def _model_use(journal: Journal, exchanges: Sequence[Exchange]) -> ModelUse:
    """An answer's salt begins with the number of the candidate it was asked for; the last answer made the candidate."""
    made = {c.index for c in journal.candidates() if c.mutation.kind is MutationKind.LLM} if exchanges else set()
    answers = [exchange for exchange in exchanges if not exchange.error]
    used = {n: e for e in answers if (n := int(e.salt.partition(".")[0] or -1)) in made}
    tokens = sum(exchange.tokens for exchange in used.values())
    verdicts = [e.verdict for _, index, e, _ in journal.evaluations() if index in used]
    return ModelUse(
        accepted=len(used),
        passed=verdicts.count(Verdict.OK),
        repeated=verdicts.count(Verdict.DUPLICATE),
        refused=len(answers) - len(used),
        failed=len(exchanges) - len(answers),
        tokens_accepted=tokens,
        tokens_refused=sum(exchange.tokens for exchange in exchanges) - tokens,
    )


def timed(target: object) -> bool:
    """Whether the times of a target mean anything: those of an interpreter do not."""
    try:
        return not load_target(str(target)).gpu_interpreter
    except UnknownTarget:
        return True


def ranked(evaluation: Evaluation) -> Evaluation:
    """An evaluation as pages show it: without figures where times mean nothing."""
    if timed(evaluation.target):
        return evaluation
    return evaluation.model_copy(update={"fitness": None, "interval": None, "workloads": ()})


def count_text(evaluations: str, duplicates: int) -> str:
    """``12 evaluations, 1 free duplicate``: these are all verdicts."""
    return f"{evaluations} evaluation{'s' * (evaluations != '1')}" + (
        f", {counted(duplicates, 'free duplicate')}" if duplicates else ""
    )


def counted(number: int, noun: str) -> str:
    """``1 question``, ``2 questions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
