"""``tilewright run --llm-...`` against a local server: every way an answer can go wrong, then replays without it."""

import json
import math
import re
from dataclasses import replace

import pytest

from testkit import FIXTURES
from testkit.evaluations import failed
from testkit.journals import journal_content
from testkit.llm_server import Answer, scripted_server
from testkit.spaces.tables import PoolAtOnce
from tilewright.evolve.cli import main
from tilewright.evolve.proposers.llm.client import OpenAIEndpoint
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.show.summary import closing_lines, status_lines

FAMILY = FIXTURES / "small_gemm"
SECRET = "sk-never-written-down"
SPEED = re.compile(r"steps = k // bk(?: \+ (\d+))?")
WRONG = 66


class InlinePool(PoolAtOnce):
    """Fitness is what a candidate adds to its steps; 66 is incorrect."""

    def rate(self, job):
        return super().rate(job) + 10 * self.added(job)

    def evaluate(self, job):
        if self.added(job) == WRONG:
            return failed(job.genome, reason="exact gate reads 12 dB", log="of 66", target="tpu7x", suite="tiny")
        return super().evaluate(job)

    def added(self, job):
        return int((SPEED.search(job.genome.source)[1] if job.baseline is None else None) or 0)


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """The command's home, with a key in the environment and the workers replaced."""
    monkeypatch.setattr("tilewright.evolve.run.make_pool", InlinePool)
    monkeypatch.setenv("TILEWRIGHT_LLM_API_KEY", SECRET)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def campaign_file(folder):
    path = folder / "asked.yaml"
    path.write_text(
        f"{{name: asked, operator: {FAMILY}/good, target: tpu7x, suite: tiny, seed: 5, mlflow: {{enabled: false}},"
        " budget: {evaluations: 16}, search: {lag: 1, islands: 1, proposers: [parameters]}}"
    )
    return path


def run(home, *arguments):
    return main(["--home", str(home / "home"), "run", *map(str, arguments)])


def journal_of(home, campaign):
    return home / "home" / "campaigns" / campaign / "journal.sqlite"


def content(home, campaign):
    with Journal(journal_of(home, campaign)) as journal:
        return journal_content(journal)


def details(home, campaign, kind="llm"):
    with Journal(journal_of(home, campaign)) as journal:
        return [c.mutation.detail for c in journal.candidates() if c.mutation.kind == kind]


def shown(body):
    """The kernel a prompt is about."""
    return body["messages"][1]["content"].split("```python\n")[1].split("```")[0]


def diff(summary, to=None):
    """A search/replace block that raises the speed of the kernel in the prompt by one, or sets it."""

    def answer(body):
        old = SPEED.search(shown(body))
        assert old is not None
        new = f"steps = k // bk + {int(old[1] or 0) + 1 if to is None else to}"
        return Answer(
            f"SUMMARY: {summary}\n<<<<<<< SEARCH\n        {old[0]}\n=======\n        {new}\n>>>>>>> REPLACE\n"
        )

    return answer


def whole(summary, to):
    def answer(body):
        module = SPEED.sub(f"steps = k // bk + {to}", shown(body))
        return Answer(f"SUMMARY: {summary}\n```python\n{module}```")

    return answer


def forbidden(body):
    return Answer(f"SUMMARY: peek\n```python\nimport os\n{shown(body)}```")


UNMATCHED = Answer("SUMMARY: no\n<<<<<<< SEARCH\nnot there\n=======\nx\n>>>>>>> REPLACE\n")
UNPARSABLE = Answer("SUMMARY: no\n```python\ndef build(:\n```")
BUSY = Answer(status=429, raw=b'{"error": {"message": "slow down"}}', headers={"Retry-After": "0.1"})
LATE = Answer("too late", delay_seconds=2.5)
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

LIMITS = ["--set", "llm.timeout_seconds=1.5", "--set", "llm.retries=1"]


def ask(home, server, *more):
    file = campaign_file(home)
    return run(home, file, "--llm-base-url", server.url, "--llm-model", "m", *LIMITS, *more)


def test_every_kind_of_answer_and_a_replay_without_the_server(cli, monkeypatch, capsys):
    with scripted_server(SCRIPT) as server:
        assert ask(cli, server) == 0
        assert set(server.keys) == {f"Bearer {SECRET}"}
        prompts = [request["messages"][-1]["content"] for request in server.requests]
        first = [request["messages"][1]["content"] for request in server.requests]
    assert any("the SEARCH text of block 1 is not in the module" in text for text in prompts)
    assert any("does not parse" in text for text in prompts)
    assert any("not allowed: line 1: import of os" in text for text in prompts)
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
        f"no answer in time from the model endpoint {server.url}",
        f"no chat completion from the model endpoint {server.url}; does the address end in /v1?",
    ]
    assert SECRET.encode() not in journal_of(cli, "asked-001").read_bytes()
    terminal, logbook = capsys.readouterr().out, journal_of(cli, "asked-001").with_name("campaign.log")
    assert "was refused: the SEARCH text of block 1 is not in the module; it must occur exactly once\n" in terminal
    assert f"HTTP 429 from the model endpoint {server.url}\n" in terminal
    assert re.search(r"  incorrect: candidate \d+, exact gate reads 12 dB\n", terminal)
    assert f"{logbook} says why answers were refused" in terminal
    assert "not used: the SEARCH text of block 1 is not in the module" in logbook.read_text()
    # the server is gone and so is the key: the record answers, by campaign and by journal
    monkeypatch.delenv("TILEWRIGHT_LLM_API_KEY")
    assert run(cli, campaign_file(cli), "--llm-replay", "asked-001") == 0
    assert run(cli, campaign_file(cli), "--evaluations", "6") == 0, "a newer campaign to transfer from"
    assert run(cli, campaign_file(cli), "--llm-replay", journal_of(cli, "asked-001")) == 0
    assert content(cli, "asked-002") == content(cli, "asked-001") == content(cli, "asked-004")


def test_a_spent_budget_leaves_the_rest_to_other_proposers(cli, caplog):
    """By a server that says it used fewer tokens than none."""
    answers = [whole(f"idea {number}", number) for number in range(1, 20)]
    odd = [lambda body, made=made: replace(made(body), tokens=(-12000, math.nan)) for made in answers]
    with scripted_server(odd) as server:
        assert ask(cli, server, "--set", "llm.total_tokens=12000", "--set", "llm.completion_tokens=1000") == 0
        asked = len(server.requests)
    record = content(cli, "asked-001")
    assert len(record["candidates"]) == 16
    assert 1 <= asked == len(details(cli, "asked-001")) < 15
    assert len(details(cli, "asked-001", "parameter")) == 15 - asked
    assert [r.getMessage() for r in caplog.records if "no more model calls" in r.getMessage()]
    lines = status_lines(journal_of(cli, "asked-001"))
    (spent,) = (line for line in lines if line.startswith("llm.total_tokens: tilewright asks the model no more"))
    assert "of 12000 are left" in spent and spent in closing_lines(journal_of(cli, "asked-001"))
    replayed = run(cli, campaign_file(cli), "--llm-replay", "asked-001")
    assert replayed == 0 and content(cli, "asked-002") == record


@pytest.mark.parametrize(("status", "failure"), [(401, "HTTP 401 from"), (0, "no connection to")])
def test_a_model_that_refuses_costs_nothing_and_alone_ends_with_an_error(cli, capsys, monkeypatch, status, failure):
    answers = [Answer(status=status, raw=b'{"error": {"message": "no"}}')] if status else [LATE]
    with scripted_server(answers) as server:
        url = server.url if status else "http://127.0.0.1:1/v1"
        arguments = ["--llm-base-url", url, "--llm-model", "m", "--set", "llm.retries=0"]
        beside = run(cli, campaign_file(cli), *arguments, "--evaluations", "4")
        assert beside == 0, "other proposers go on"
        assert f"{failure} the model endpoint {url}" in capsys.readouterr().out, "the first failure"
        alone = ["--set", "search.proposers=[]", "--set", "search.transfer=[]"]
        assert run(cli, campaign_file(cli), *arguments, *alone) == 2
        captured = capsys.readouterr()
    assert "the only proposer does not answer" in captured.err and "resume asked-002" in captured.err
    for campaign in ("asked-001", "asked-002"):
        with Journal(journal_of(cli, campaign)) as journal:
            exchanges = [json.loads(text) for _, text in journal.exchanges()]
            assert exchanges and not any(e["prompt_tokens"] + e["completion_tokens"] for e in exchanges)
    """By a server that says it used fewer tokens than none."""
    answers = [whole(f"idea {number}", number) for number in range(1, 20)]
    odd = [lambda body, made=made: replace(made(body), tokens=(-12000, math.nan)) for made in answers]
    with scripted_server(odd) as server:
        # the address of the campaign's file is gone
        moved = lambda url, *rest: OpenAIEndpoint(server.url, *rest)  # noqa: E731
        monkeypatch.setattr("tilewright.evolve.campaign.searcher.OpenAIEndpoint", moved)
        assert main(["--home", str(cli / "home"), "resume", "asked-002"]) == 0
    assert details(cli, "asked-002"), "a resume asks again what was refused"
    lines = status_lines(journal_of(cli, "asked-002"))
    (line,) = (text for text in lines if text.startswith("  tokens"))
    assert "passed every gate" in line and "unanswered" in line
    assert any(" questions" in text and " unanswered (last: " in text for text in lines)


def test_a_model_that_answered_before_and_then_refuses_ends_with_an_error(cli, capsys):
    with scripted_server([UNMATCHED, UNMATCHED, Answer(status=401, raw=b"{}")]) as server:
        alone = ["--set", "llm.retries=0", "--set", "search.proposers=[]", "--set", "search.transfer=[]"]
        assert ask(cli, server, *alone) == 2
    assert "does not answer: HTTP 401" in capsys.readouterr().err


def test_a_server_on_this_machine_needs_no_key_and_a_model_may_be_the_only_proposer(cli, monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_LLM_API_KEY")
    refusals = [UNMATCHED] * 3
    with scripted_server([*refusals, *(whole(f"idea {number}", number) for number in (1, 2))]) as server:
        assert ask(cli, server, "--evaluations", "3", "--set", "search.proposers=[]") == 0
        assert [len(r["messages"]) for r in server.requests[:4]] == [2, 4, 2, 4], "asked anew after two"
    assert details(cli, "asked-001") == ["idea 1", "idea 2"]
