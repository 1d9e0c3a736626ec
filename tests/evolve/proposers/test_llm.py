"""The model path end to end against a local server: good and bad answers, limits, and replay."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from testkit.llm_server import Answer, ScriptedServer, scripted_server
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start
from tilewright.evolve.proposers.llm.client import ChatClient, OpenAIEndpoint, TokenBudget
from tilewright.evolve.proposers.llm.facts import facts_of
from tilewright.evolve.proposers.llm.prompt import Contract, improve
from tilewright.evolve.proposers.llm.proposer import LlmProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness import dialect
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SnrGate

SEED = """import math

SPACE = {"tile": (1, 2, 4)}
DEFAULTS = {"tile": 1}
CONSTRAINTS = {}


def build(params):
    speed = 10

    def run(a):
        return a * speed

    return run
"""


def faster(old: int, new: int) -> Answer:
    edit = f"<<<<<<< SEARCH\n    speed = {old}\n=======\n    speed = {new}\n>>>>>>> REPLACE\n"
    return Answer(f"SUMMARY: speed {new}\n{edit}")


def judge(genome: Genome) -> Evaluation:
    """Fitness is the module's speed; 66 is incorrect, with an error a model could mend."""
    speed = int(genome.source.split("speed = ")[1].split("\n")[0])
    common = {"genome": genome.id, "target": "t", "suite": "s"}
    if speed == 66:
        return Evaluation(
            **common,
            stage=Stage.CHECK,
            verdict=Verdict.INCORRECT,
            reason="exact gate reads 12 dB",
            log="trace of 66",
        )
    figures = WorkloadFigures(
        workload="w",
        seconds=1.0,
        tflops=speed,
        roofline_fraction=0.1,
        kind=FigureKind.MODELLED,
        diagnosis={"spills": 77, "critical_path": {"spill": 60, "mxu": 40}},
    )
    return Evaluation(**common, stage=Stage.MEASURE, verdict=Verdict.OK, fitness=speed, workloads=(figures,))


@dataclass
class Inline:
    """Evaluates at once, one at a time."""

    slots: int = 1
    done: tuple = ()

    def submit(self, job: Job) -> None:
        self.done = (*self.done, (job.index, judge(job.genome)))

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        done, self.done = list(self.done), ()
        return done

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None: ...


def campaign(
    path: Path,
    server: ScriptedServer | None,
    evaluations: int,
    tokens: int = 10**6,
    islands: int = 1,
    alone: bool = False,
    **limits: float,
) -> History:
    """Run a model-only campaign; ``server`` None replays what the journal at ``path`` holds of exchanges."""
    with Journal(path, write=True, create=not path.exists()) as journal:
        endpoint = None
        if server is not None:
            endpoint = OpenAIEndpoint(
                server.url, "secret-key", **{"timeout_seconds": 5.0, "retries": 2, **limits}
            )
        client = ChatClient(journal, "m", TokenBudget(tokens), max_completion_tokens=1000, endpoint=endpoint)
        archive = Archive(islands, 10)
        contract = Contract("op/r", "C = A", "tpu7x (modelled)", ("w",))
        proposer = LlmProposer(client, contract, archive, lambda s: Space.from_source(s, []), check)
        proposer.alone = alone
        plan = Plan(
            [Start("seed", Genome(SEED, {"tile": 1}))], Budget(evaluations=evaluations), 1, 1, islands
        )
        run = Campaign(plan, proposer, archive, Inline(), Sink())
        run.run()
        return run.history


class Sink:
    def add_candidate(self, candidate: Candidate) -> None: ...
    def add_evaluation(self, index: int, evaluation: Evaluation) -> None: ...


def check(source: str) -> Sequence[str]:
    return [str(violation) for violation in dialect.check(source)]


@pytest.mark.parametrize(
    ("target", "operator", "told"),
    [
        (
            "tpu7x",
            "gemm_fp8_fused/g512",
            ["MiB of VMEM", "f8 peak 2307 TFLOP/s", "jax.experimental.pallas.tpu"],
        ),
        (
            "h200",
            "gemm_fp8_blockwise/gemm_nt",
            ["132 multiprocessors", "227 KiB", "4.80 TB/s", "triton.language"],
        ),
        ("gfx950", "gemm_fp8_blockwise/gemm_nt", ["160 KiB of shared memory", "triton.language"]),
    ],
)
def test_a_model_is_told_the_device_the_gates_and_the_imports(
    target: str, operator: str, told: list[str]
) -> None:
    gates = load_operator(operator).gates
    found = "\n".join(facts_of(load_target(target), gates))
    assert all(words in found for words in told), found
    assert ("torch" in found) == (target != "tpu7x")
    bars = [f"{gate.min_db:g} dB" for gate in gates if isinstance(gate, SnrGate)]
    assert bars and all(bar in found for bar in bars)
    contract = Contract("op/r", "C = A", target, ("w",), facts_of(load_target(target), gates))
    seed = Candidate(0, Genome(SEED, {"tile": 1}), (), Mutation(MutationKind.SEED, "seed", "s"), 0, 0, 0)
    asked = improve(contract, History(), seed)
    assert found in asked[-1]["content"]


def test_a_model_alone_is_asked_on_islands_that_are_still_empty(tmp_path: Path) -> None:
    with scripted_server([faster(10, 11), faster(10, 12)]) as server:
        history = campaign(tmp_path / "j", server, 3, islands=2)
    assert len(history.candidates) == 3
    assert [c.island for c in history.candidates] == [0, 1, 0]


def test_a_model_alone_is_asked_anew_where_its_answers_cannot_be_used(tmp_path: Path) -> None:
    refusal = Answer("I cannot help with that.")
    with scripted_server([refusal, refusal, refusal, faster(10, 11)]) as server:
        history = campaign(tmp_path / "j", server, 2, alone=True)
    assert [c.mutation.detail for c in history.candidates[1:]] == ["speed 11"]
    assert [len(r["messages"]) for r in server.requests] == [2, 4, 2, 4], (
        "two answers, then from the beginning"
    )
    with scripted_server([refusal]) as server:
        history = campaign(tmp_path / "k", server, 2, alone=True)
    assert len(history.candidates) == 1 and len(server.requests) == 8


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (faster(99, 100), "is not in the module"),
        (Answer("<<<<<<< SEARCH\nspeed\n=======\nrate\n>>>>>>> REPLACE\n"), "not in the module"),
        (Answer("<<<<<<< SEARCH\n    speed = 10\n"), "not closed"),
        (Answer("x" * 300_000), "at most"),
        (Answer("```python\ndef build(:\n```"), "does not parse"),
        (Answer(f"```python\nimport os\n{SEED}```"), "not allowed"),
        (Answer("no idea"), "neither a SEARCH/REPLACE block"),
        (Answer(f"```python\n{SEED}```"), "tried before"),
        (Answer("```python\n" + SEED.replace("(1, 2, 4)", "()") + "```"), "tile"),
    ],
)
def test_an_unusable_answer_is_told_to_the_model_and_never_evaluated(
    tmp_path: Path, bad: Answer, told: str
) -> None:
    with scripted_server([bad, faster(10, 11)]) as server:
        history = campaign(tmp_path / "j", server, 2)
    assert [c.mutation.detail for c in history.candidates[1:]] == ["speed 11"]
    assert told in server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    "bad",
    [
        Answer(raw=b"this is not JSON"),
        Answer(raw=b'{"choices": []}'),
        Answer(raw=b"[1, 2]"),
        Answer(raw=b'{"choices": [{"message": {"content": null}}]}'),
        Answer(status=401, raw=b'{"error": {"message": "who are you"}}'),
        Answer("late", delay_seconds=2.0),
    ],
)
def test_a_broken_endpoint_yields_no_proposal_and_the_campaign_ends_cleanly(
    tmp_path: Path, bad: Answer
) -> None:
    with scripted_server([bad]) as server:
        history = campaign(tmp_path / "j", server, 3, timeout_seconds=0.5, retries=0)
    assert len(history.candidates) == 1
    with Journal(tmp_path / "j") as journal:
        stored = [json.loads(text) for _, text in journal.exchanges()]
    assert stored and all(exchange["error"] for exchange in stored)


def test_a_call_without_an_answer_is_charged_in_full() -> None:
    budget = TokenBudget(1000)
    budget.reserve(600)
    budget.settle(600, None)
    assert (budget.spent, budget.reserved) == (600, 0)
