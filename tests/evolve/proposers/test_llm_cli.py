"""``tilewright run --llm-...`` against a local server: every way an answer can go wrong, then replays without it."""

import json
import re
from collections import deque
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from testkit import FIXTURES
from testkit.llm_server import Answer, ScriptedServer, scripted_server
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.cli import main
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.evolve.proposers.llm.client import OpenAIEndpoint
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.show.summary import closing_lines, status_lines
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.seeds.operator import Scope

FAMILY = FIXTURES / "small_gemm"
SECRET = "sk-never-written-down"
SPEED = re.compile(r"steps = k // bk(?: \+ (\d+))?")
WRONG = 66


class InlinePool:
    """Stands in for the workers' pool: fitness is what a candidate adds to its steps; 66 is incorrect."""

    def __init__(self, *arguments: object) -> None:
        self._queue: deque[Job] = deque()
        self.slots = 1
        self.thread_cpu_seconds = 0.0

    def start(self) -> None: ...

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        return [(job.index, judge(job)) for job in (self._queue.popleft(),)] if self._queue else []

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None: ...


def speed(source: str) -> int:
    found = SPEED.search(source)
    assert found is not None
    return int(found[1] or 0)


def judge(job: Job) -> Evaluation:
    common = {"genome": job.genome.id, "target": "tpu7x", "suite": "tiny"}
    found = speed(job.genome.source) if job.baseline is None else 0
    if found == WRONG:
        return Evaluation(
            **common,
            stage=Stage.CHECK,
            verdict=Verdict.INCORRECT,
            reason="exact gate reads 12 dB",
            log="of 66",
        )
    fitness = 100.0 + 10 * found + len(str(dict(job.genome.params)))
    figures = WorkloadFigures(
        workload="512x512x512" if job.scope is Scope.FINAL else "256x256x512",
        seconds=1 / fitness,
        tflops=fitness,
        roofline_fraction=0.1,
        kind=FigureKind.MODELLED,
        diagnosis={"spills": 4711},
    )
    return Evaluation(
        **common, stage=Stage.MEASURE, verdict=Verdict.OK, fitness=fitness, workloads=(figures,)
    )


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """The command's home, with a key in the environment and the workers replaced."""
    monkeypatch.setattr("tilewright.evolve.run.make_pool", InlinePool)
    monkeypatch.setenv("TILEWRIGHT_LLM_API_KEY", SECRET)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def campaign_file(folder: Path, **changes: object) -> Path:
    data = {
        "name": "asked",
        "operator": f"{FAMILY}/good",
        "target": "tpu7x",
        "suite": "tiny",
        "seed": 5,
        "budget": {"evaluations": 16},
        "search": {"lag": 1, "islands": 1, "proposers": ["parameters"]},
        "mlflow": {"enabled": False},
        **changes,
    }
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def run(home: Path, *arguments: str | Path) -> int:
    return main(["--home", str(home / "home"), "run", *map(str, arguments)])


def journal_of(home: Path, campaign: str) -> Path:
    return home / "home" / "campaigns" / campaign / "journal.sqlite"


def content(home: Path, campaign: str) -> dict:
    with Journal(journal_of(home, campaign)) as journal:
        return journal.content()


def details(home: Path, campaign: str, kind: str = "llm") -> list[str]:
    with Journal(journal_of(home, campaign)) as journal:
        return [c.mutation.detail for c in journal.candidates() if c.mutation.kind == kind]


def shown(body: dict) -> str:
    """The kernel a prompt is about."""
    return body["messages"][1]["content"].split("```python\n")[1].split("```")[0]


def diff(summary: str, to: int | None = None):
    """A search/replace block that raises the speed of the kernel in the prompt by one, or sets it."""

    def answer(body: dict) -> Answer:
        old = SPEED.search(shown(body))
        assert old is not None
        new = f"steps = k // bk + {int(old[1] or 0) + 1 if to is None else to}"
        return Answer(
            f"SUMMARY: {summary}\n<<<<<<< SEARCH\n        {old[0]}\n=======\n        {new}\n>>>>>>> REPLACE\n"
        )

    return answer


def whole(summary: str, to: int):
    def answer(body: dict) -> Answer:
        module = SPEED.sub(f"steps = k // bk + {to}", shown(body))
        return Answer(f"SUMMARY: {summary}\n```python\n{module}```")

    return answer


def forbidden(body: dict) -> Answer:
    return Answer(f"SUMMARY: peek\n```python\nimport os\n{shown(body)}```")


UNMATCHED = Answer("SUMMARY: no\n<<<<<<< SEARCH\nnot there\n=======\nx\n>>>>>>> REPLACE\n")
UNPARSABLE = Answer("SUMMARY: no\n```python\ndef build(:\n```")
BUSY = Answer(status=429, raw=b'{"error": {"message": "slow down"}}', headers={"Retry-After": "0.1"})
LATE = Answer("too late", delay_seconds=0.8)
MALFORMED = Answer(raw=b'{"choices": [{"mess')

SCRIPT = [
    diff("good diff"),
    UNMATCHED,
    whole("whole module after an unmatched diff", 5),
    UNPARSABLE,
    diff("diff after a syntax error"),
    forbidden,
    diff("wrong on purpose", WRONG),
    BUSY,
    diff("after a rate limit"),
    LATE,
    LATE,
    MALFORMED,
    diff("after a broken endpoint"),
    *(whole(f"late idea {number}", number) for number in range(20, 60)),
]
"""In the order of requests. A time-out is tried once more, and what is no chat completion is not."""

LIMITS = ["--set", "llm.timeout_seconds=0.3", "--set", "llm.retries=1"]


def ask(home: Path, server: ScriptedServer, *more: str) -> int:
    file = campaign_file(home)
    return run(home, file, "--llm-base-url", server.url, "--llm-model", "m", *LIMITS, *more)


def test_every_kind_of_answer_and_a_replay_without_the_server(cli):
    with scripted_server(SCRIPT) as server:
        assert ask(cli, server) == 0
        assert set(server.keys) == {f"Bearer {SECRET}"}
        told = [request["messages"][-1]["content"] for request in server.requests]
        first = [request["messages"][1]["content"] for request in server.requests]
    assert any("the SEARCH text of block 1 is not in the module" in text for text in told)
    assert any("does not parse" in text for text in told)
    assert any("not allowed: line 1: import of os" in text for text in told)
    mended = [text for text in first if "Kernel that failed" in text]
    assert mended and "exact gate reads 12 dB" in mended[0] and "Log:\nof 66" in mended[0]
    assert all("small_gemm/good" in text and "4711" in text for text in first if text not in mended)
    used = details(cli, "asked-001")
    assert used[:5] == [
        "good diff",
        "whole module after an unmatched diff",
        "diff after a syntax error",
        "wrong on purpose",
        "after a rate limit",
    ]
    assert "after a broken endpoint" in used
    assert not {"no", "peek"} & set(used)
    with Journal(journal_of(cli, "asked-001")) as journal:
        errors = [json.loads(text)["error"] for _, text in journal.exchanges()]
    assert [error for error in errors if error] == [
        f"APITimeoutError from the model endpoint {server.url}",
        "the model endpoint's answer is not a chat completion",
    ]
    assert SECRET.encode() not in journal_of(cli, "asked-001").read_bytes()
    logbook = journal_of(cli, "asked-001").with_name("campaign.log").read_text()
    assert "not used: the SEARCH text of block 1 is not in the module" in logbook
    replay_is_exact(cli)


def replay_is_exact(home: Path) -> None:
    """The server is gone and so is the key: the record answers, by campaign and by journal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TILEWRIGHT_LLM_API_KEY")
        assert run(home, campaign_file(home), "--llm-replay", "asked-001") == 0
        assert run(home, campaign_file(home), "--llm-replay", journal_of(home, "asked-001")) == 0
    assert content(home, "asked-002") == content(home, "asked-001") == content(home, "asked-003")


def test_a_spent_budget_leaves_the_rest_to_other_proposers(cli, caplog):
    with scripted_server([whole(f"idea {number}", number) for number in range(1, 20)]) as server:
        assert ask(cli, server, "--set", "llm.total_tokens=3500", "--set", "llm.completion_tokens=1000") == 0
        asked = len(server.requests)
    record = content(cli, "asked-001")
    assert len(record["candidates"]) == 16
    assert 1 <= asked == len(details(cli, "asked-001")) < 15
    assert len(details(cli, "asked-001", "parameter")) == 15 - asked
    assert [r.getMessage() for r in caplog.records if "no more model calls" in r.getMessage()]
    lines = status_lines(journal_of(cli, "asked-001"))
    (spent,) = (
        line
        for line in lines
        if line.startswith("llm.total_tokens: tilewright asks the model no more, since ")
    )
    assert "of 3500 are left" in spent and spent in closing_lines(journal_of(cli, "asked-001"))
    replayed = run(cli, campaign_file(cli), "--llm-replay", "asked-001")
    assert replayed == 0 and content(cli, "asked-002") == record


@pytest.mark.parametrize(("status", "said"), [(401, "HTTP 401 from"), (0, "no connection to")])
def test_a_model_that_refuses_costs_nothing_and_alone_ends_with_an_error(cli, capsys, status, said):
    answers = [Answer(status=status, raw=b'{"error": {"message": "no"}}')] if status else [LATE]
    with scripted_server(answers) as server:
        url = server.url if status else "http://127.0.0.1:1/v1"
        arguments = ["--llm-base-url", url, "--llm-model", "m", "--set", "llm.retries=0"]
        beside = run(cli, campaign_file(cli), *arguments, "--evaluations", "4")
        assert beside == 0, "other proposers go on"
        assert f"{said} the model endpoint {url}" in capsys.readouterr().out, "the first failure"
        alone = ["--set", "search.proposers=[]", "--set", "search.transfer=[]"]
        assert run(cli, campaign_file(cli), *arguments, *alone) == 2
        captured = capsys.readouterr()
    assert "the only proposer never answered" in captured.err and "resume asked-002" in captured.err
    for campaign in ("asked-001", "asked-002"):
        with Journal(journal_of(cli, campaign)) as journal:
            exchanges = [json.loads(text) for _, text in journal.exchanges()]
            assert exchanges and not any(e["prompt_tokens"] + e["completion_tokens"] for e in exchanges)
    with scripted_server([whole(f"idea {number}", number) for number in range(1, 20)]) as server:
        monkey = pytest.MonkeyPatch()
        monkey.setattr("tilewright.evolve.campaign.searcher.OpenAIEndpoint", lambda *a: to(server, *a))
        assert main(["--home", str(cli / "home"), "resume", "asked-002"]) == 0
        monkey.undo()
    assert details(cli, "asked-002"), "a resume asks again what was refused"
    (line,) = (text for text in status_lines(journal_of(cli, "asked-002")) if text.startswith("  tokens"))
    assert "passed every gate" in line and "unanswered" in line


def to(server: ScriptedServer, url: str, key: str, seconds: float, retries: int) -> OpenAIEndpoint:
    """An endpoint at another address: the one of the campaign's file is gone."""
    return OpenAIEndpoint(server.url, key, seconds, retries)


def test_a_replay_starts_from_the_campaigns_that_its_record_started_from(cli):
    with scripted_server([whole(f"idea {number}", number) for number in range(1, 40)]) as server:
        assert ask(cli, server) == 0
    assert run(cli, campaign_file(cli), "--evaluations", "6") == 0, "a newer campaign to transfer from"
    assert run(cli, campaign_file(cli), "--llm-replay", "asked-001") == 0
    assert content(cli, "asked-003") == content(cli, "asked-001")


def test_exchanges_are_traces_in_mlflow(cli, monkeypatch):
    for name, value in mirror_process.SETTINGS.items():
        monkeypatch.setenv(name, value)
    with scripted_server([UNPARSABLE, diff("good diff"), MALFORMED, whole("idea", 9)]) as server:
        assert ask(cli, server, "--evaluations", "5") == 0
        asked = len(server.requests)
    journal_path = journal_of(cli, "asked-001")
    uri = mirror_process.store_uri(cli / "home", {})
    for _ in range(2):  # writing twice leaves one
        assert mirror_process.Follower(journal_path, uri, cli / "home" / mirror_process.ARTIFACTS, None).run()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tilewright/small_gemm/good/tpu7x")
    traces = client.search_traces(locations=[experiment.experiment_id], order_by=["timestamp_ms ASC"])
    assert len(traces) == asked >= 3
    assert any(
        f"{asked} questions" in line and "1 unanswered (last: " in line for line in status_lines(journal_path)
    )
    assert [trace.info.state.value for trace in traces[:3]] == ["OK", "OK", "ERROR"]
    (span,) = traces[1].data.spans
    assert "good diff" in span.outputs["content"] and span.inputs["messages"][-1]["role"] == "user"
    assert traces[1].info.tags["tilewright.attempt"] == "1"
    assert traces[1].info.token_usage["total_tokens"] == 150


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--llm-base-url", "http://127.0.0.1:1/v1"], "--llm-model"),
        (["--llm-replay", "unheard-of-001"], "unheard-of-001"),
        (["--llm-model", "m", "--set", "llm.total_tokens=0"], "llm.total_tokens"),
        (["--set", "search.proposers=[]"], "search.proposers"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(cli, capsys, arguments, words):
    assert run(cli, campaign_file(cli), *arguments) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.strip().splitlines()) == 1
    assert not list((cli / "home").glob("campaigns/*"))


def test_a_server_on_this_machine_needs_no_key_and_a_model_may_be_the_only_proposer(cli, monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_LLM_API_KEY")
    refusals = [UNMATCHED] * 3
    with scripted_server([*refusals, *(whole(f"idea {number}", number) for number in (1, 2))]) as server:
        assert ask(cli, server, "--evaluations", "3", "--set", "search.proposers=[]") == 0
        assert [len(r["messages"]) for r in server.requests[:4]] == [2, 4, 2, 4], "asked anew after two"
    assert details(cli, "asked-001") == ["idea 1", "idea 2"]
