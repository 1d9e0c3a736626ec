"""The bill adds up what was recorded: device, processors, tokens."""

import json
from dataclasses import asdict

import pytest

from testkit.evaluations import candidate, figures, passed
from tilewright.evolve.mlflow_mirror.content import cost_line, cost_metrics, model_tags
from tilewright.evolve.proposers.llm.client import Exchange
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.bill import SPENT
from tilewright.evolve.report.data import load
from tilewright.evolve.show.summary import status_lines
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import FigureKind


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "journal.sqlite", write=True, create=True) as journal:
        journal.set_meta(
            "campaign",
            {
                "id": "c-001",
                "floors": {"w": {"mxu_seconds": 1.0}},
                "seeds": ["first"],
                "target": "h200",
                "target_kind": "measured",
                "budget": {"evaluations": 2, "until": "converged"},
            },
        )
        journal.add_event("started")
        for index, (seconds, kind) in enumerate([(4.0, MutationKind.SEED), (2.0, MutationKind.PARAMETER)]):
            made = candidate(index, Genome("kernel", {"a": index}), kind=kind)
            journal.add_candidate(made)
            timed = figures(seconds=seconds, kind=FigureKind.MEASURED)
            outcome = {"target": "h200", "fitness": 1 / seconds}
            spent = {"compile": 1.0, "measure": 2.0, "device": 1.5, "cpu": 5.0}
            journal.add_evaluation(index, passed(made.genome, timed, spent=spent, **outcome))
        asked = ({"role": "user", "content": "?"},)
        journal.add_candidate(candidate(2, Genome("kernel", {"a": 2}), kind=MutationKind.LLM, proposer="llm"))
        for key, error, tokens in (("2.0", "", 3), ("2.1", "", 4), ("3.0", "", 3), ("4.0", "401", 0)):
            exchange = Exchange(key, "model", asked, "!", error, tokens * 100_000, 0, key)
            journal.add_exchange(key, json.dumps(asdict(exchange)))
        journal.add_event(SPENT, cpu_seconds=10.0, device_seconds=2.0)
        yield journal


def test_it_adds_up_what_was_recorded(journal, tmp_path):
    data = load(journal)
    bill = data.bill
    assert (bill.device_seconds, bill.cpu_seconds, bill.tokens) == (5.0, 20.0, 1_000_000)
    assert bill.gain == 2.0
    assert bill.rows()["gain"] == "×2.00 over the best seed (h200, measured)"
    used = "1 000 000, 4 questions: 1 candidate (400 000 tokens), of which 0 passed every gate"
    rest = "and 0 repeated another; 2 refused and 1 unanswered (600 000 tokens)"
    assert bill.rows()["tokens"] == f"{used} {rest}"
    tags = {"accepted": "1", "passed": "0", "refused": "2", "failed": "1", "tokens": "1000000"}
    assert model_tags(data) == {f"llm.{k}": v for k, v in tags.items()}
    expected = {"bill/device_seconds": 5.0, "bill/gained_percent_measured": 100.0, "headroom_measured/w": 2.0}
    metrics = cost_metrics(data)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    (row,) = data.headroom()
    assert (row.before, row.now, row.floor) == (4.0, 2.0, 1.0) and row.left == 2.0
    assert "tokens 1 000 000" in cost_line(data) and "at most ×2.00 left" in cost_line(data)
    lines = status_lines(tmp_path / "journal.sqlite")
    assert lines[1].endswith("budget 2 evaluations, until converged")
    short = [line.split()[0] for line in data.bill.lines()[1:]]
    assert len(short) <= 5 and "per" not in short and len(data.bill.lines(verbose=True)) > 6
    assert lines[-2:] == [
        "headroom to the floor (h200, times measured, floors modelled):",
        "  w  ×2.00 over the best seed, at most ×2.00 left",
    ]
