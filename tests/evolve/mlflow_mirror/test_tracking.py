"""MLflow ends up with exactly what the journal holds, whatever happens on the way."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testkit.sample_campaign import HOSTILE, SampleCampaign, write_sample
from tilewright.evolve.cli import main
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.evolve.mlflow_mirror.content import candidate_run
from tilewright.evolve.proposers.llm.client import Exchange
from tilewright.evolve.record.journal import Journal


def client_of(uri):
    """One of MLflow, which costs seconds to import: a process that only collects this file need not."""
    from mlflow import MlflowClient

    return MlflowClient(uri)


def mirror_of(journal, uri, home):
    from tilewright.evolve.mlflow_mirror.writer import Mirror

    return Mirror(journal, uri, home / mirror_process.ARTIFACTS)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def uri(home):
    return mirror_process.store_uri(home, {})


@pytest.fixture
def journal_path(home, request):
    name = f"c-{abs(hash(request.node.name)) % 10**8}-001"
    return home / "campaigns" / name / "journal.sqlite"


@pytest.fixture(scope="module", autouse=True)
def settings():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in mirror_process.SETTINGS.items():
            patch.setenv(name, value)
        patch.delenv(mirror_process.URI_VARIABLE, raising=False)
        yield


def runs_of(uri, campaign):
    """(the campaign's run, its children by candidate); fails on duplicates."""
    client = client_of(uri)
    experiment = client.get_experiment_by_name("tilewright/gemm_fp8_fused/g512/tpu7x")
    runs = client.search_runs(
        [experiment.experiment_id], f"tags.`tilewright.campaign` = '{campaign}'", max_results=1000
    )
    (parent,) = [run for run in runs if "tilewright.candidate" not in run.data.tags]
    children = {int(run.data.tags["tilewright.candidate"]): run for run in runs if run is not parent}
    assert len(children) == len(runs) - 1, "duplicate child runs"
    assert all(c.data.tags["mlflow.parentRunId"] == parent.info.run_id for c in children.values())
    return parent, children


def check_whole(uri, journal_path):
    """MLflow holds every evaluation of the journal once, complete, and the campaign's curve."""
    client = client_of(uri)
    with Journal(journal_path) as journal:
        rows = list(journal.evaluations())
        candidates = {c.index: c for c in journal.candidates()}
        facts = journal.meta("campaign")
    parent, children = runs_of(uri, facts["id"])
    assert set(children) == {index for _, index, _, _ in rows}
    by_genome = {c.genome.id: children[i].info.run_id for i, c in candidates.items() if i in children}
    for _, index, evaluation, at in rows:
        run, candidate = children[index], candidates[index]
        assert run.info.status == ("FAILED" if evaluation.failed else "FINISHED")
        assert run.info.end_time == int(at * 1000)
        assert run.data.tags["verdict"] == evaluation.verdict.value
        assert run.data.metrics.get("tflops_modelled") == (
            evaluation.fitness and pytest.approx(evaluation.fitness, rel=1e-5)
        )
        assert run.data.params == {k: str(v) for k, v in candidate.genome.params.items()}
        linked = [r for r in run.data.tags.get("parents.run_ids", "").split(", ") if r]
        assert linked == [by_genome[p] for p in candidate.parents]
        if evaluation.fitness is not None:
            (point,) = client.get_metric_history(run.info.run_id, "tflops_modelled")
            assert point.step == index and len(f"{point.value:g}") <= 7
        note = run.data.tags["mlflow.note.content"]
        assert all(f"[candidate {n}](#/experiments/" in note for n in parent_numbers(candidate, candidates))
        made = [i for _, i, _, _ in rows if index in parent_numbers(candidates[i], candidates)]
        links = [int(n) for n in re.findall(r"\[(\d+)\]\(#/experiments", note)]
        assert links == made[:20], "every child that was evaluated is a link"
    curve = client.get_metric_history(parent.info.run_id, "campaign/best_tflops_modelled")
    assert sorted(p.step for p in curve) == [arrival for arrival, *_ in rows]
    ordered = [p.value for p in sorted(curve, key=lambda p: p.step)]
    assert ordered == sorted(ordered) and ordered[-1] == pytest.approx(
        max(e.fitness or 0 for _, _, e, _ in rows), rel=1e-5
    )
    return parent, children


def parent_numbers(candidate, candidates):
    return [i for i, other in candidates.items() if other.genome.id in candidate.parents]


def catch_up(journal_path, uri):
    follower = mirror_process.Follower(journal_path, uri, journal_path.parents[2] / mirror_process.ARTIFACTS, None)
    return follower.run()


def text_of(uri, run_id, name, folder):
    return Path(client_of(uri).download_artifacts(run_id, name, str(folder))).read_text(encoding="utf-8")


def test_a_whole_campaign(journal_path, uri, tmp_path):
    write_sample(journal_path, 14, campaign=journal_path.parent.name)
    assert catch_up(journal_path, uri)
    parent, children = check_whole(uri, journal_path)
    assert parent.info.status == "FINISHED"
    expected = {
        "tilewright.state": "finished",
        "toolchain.libtpu": "0.0.51",
        "target_kind": "modelled",
        "system.cores": "2",
        "mlflow.source.git.commit": "0123abcd",
    }
    assert expected.items() <= parent.data.tags.items()
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("Winner: [candidate ") and "It takes **" in note.partition("\n")[0]
    assert "at 4096x4096x4096 (tpu7x, modelled). It is " in note
    assert "× faster than bf16" in note and "[Report](#/experiments/" in note and "Bill: " in note
    assert "/artifacts/lineage.html?workflowType=machine_learning)" in note
    assert "| winner, 4096x4096x4096&emsp; |" in note
    files = {f.path for f in client_of(uri).list_artifacts(parent.info.run_id)}
    pages = {"report.html", "lineage.html", "convergence.svg", "lineage.svg", "winner.py", "winner.params.json"}
    assert files == pages
    assert "ref_us_modelled/final.4096x4096x4096.winner" in parent.data.metrics
    assert "ref_tflops_modelled/suite.bf16" in parent.data.metrics
    report = text_of(uri, parent.info.run_id, "report.html", tmp_path)
    assert "tilewright campaign" in report and "finished" in report
    assert text_of(uri, parent.info.run_id, "lineage.svg", tmp_path).startswith("<svg")
    assert "def build" in text_of(uri, parent.info.run_id, "winner.py", tmp_path)
    child = next(c for c in children.values() if c.data.tags["mutation"] == "parameter")
    passed = [c for c in children.values() if c.data.tags["verdict"] == "ok"]
    for workload in ("1024x2048x2048", "2048x2048x2048"):
        assert all(f"us_modelled/{workload}" in run.data.metrics for run in passed)
    diff = text_of(uri, child.info.run_id, "mutation.diff.txt", tmp_path)
    assert diff.startswith(f"# from candidate {int(child.data.tags['parents'])} to candidate ")
    assert child.data.tags["mutation.detail"].replace(" -> ", ": ", 1).split(":")[0].split(" ")[0] in diff
    evaluation = json.loads(text_of(uri, child.info.run_id, "evaluation.json", tmp_path))
    assert evaluation["verdict"] == child.data.tags["verdict"]
    failed = [c for c in children.values() if c.info.status == "FAILED"]
    for run in failed:
        assert not any(key.startswith("tflops") for key in run.data.metrics)
        assert run.data.tags["reason"] and run.data.tags["stage"]
    assert HOSTILE.split("\x00")[0] in text_of(uri, failed[0].info.run_id, "log.txt", tmp_path)
    assert not mirror_process.behind(journal_path, uri)
    before = _database(uri, journal_path.parent.name)
    assert catch_up(journal_path, uri)
    assert _database(uri, journal_path.parent.name) == before, "writing it twice changes nothing"


def sample_at(path, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    sample = SampleCampaign(path, path.parent.name)
    sample.grow(count)
    return sample


def _database(uri, campaign):
    """Every row of MLflow's tables about a campaign's runs."""
    chosen = "SELECT run_uuid FROM tags WHERE key = 'tilewright.campaign' AND value = ?"
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as db:
        return [
            sorted(map(str, db.execute(f"SELECT * FROM {table} WHERE run_uuid IN ({chosen})", (campaign,))))
            for table in ("runs", "metrics", "params", "tags")
        ]


class Unreliable:
    """An MLflow client whose ``nth`` call fails, before or after it was carried out."""

    def __init__(self, client, nth, carried_out):
        self.client, self.left, self.carried_out = client, nth, carried_out

    def __getattr__(self, name):
        from mlflow.exceptions import MlflowException

        method = getattr(self.client, name)

        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0 and not self.carried_out:
                raise MlflowException("connection refused")
            result = method(*args, **kwargs)
            if self.left == 0:
                raise MlflowException("connection reset while waiting for the answer")
            return result

        return call


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_any_single_call_may_fail(home, uri, stride):
    """Calls of a mirror fail once, before or after MLflow carried them out, each in a campaign of its own."""
    from mlflow.exceptions import MlflowException

    failed = 0
    for nth in range(1, 40, stride):
        path = home / "campaigns" / f"fault-{stride}-{nth}" / "journal.sqlite"
        write_sample(path, 2, campaign=path.parent.name)
        with Journal(path) as journal:
            mirror = mirror_of(journal, uri, home)
            client = mirror._client = Unreliable(mirror._client, nth, nth % 2 == 0)
            for _ in range(2):
                try:
                    while mirror.advance():
                        pass
                    mirror.show("finished")
                    break
                except MlflowException:
                    failed += 1
                    mirror.forget()
            else:
                pytest.fail("one fault stopped the mirror twice")
        check_whole(uri, path)
        if client.left > 0:
            break
    assert failed > 8 // stride


def test_what_mlflow_refuses_is_written_bare_and_an_interruption_is_a_state(journal_path, uri, monkeypatch):
    sample = sample_at(journal_path, 3)
    sample.journal.add_event("interrupted", reason="stopped by the user")
    sample.close()
    monkeypatch.setattr("tilewright.evolve.mlflow_mirror.content._key", lambda name: name)

    def content(*arguments):
        made = candidate_run(*arguments)
        if arguments[1].index == 1:
            made.metrics["1: not a name?"] = 1.0
        return made

    monkeypatch.setattr("tilewright.evolve.mlflow_mirror.writer.run_content.candidate_run", content)
    monkeypatch.setattr(mirror_process, "BACKOFF_SECONDS", (0.01, 0.01))
    assert catch_up(journal_path, uri)
    parent, children = runs_of(uri, journal_path.parent.name)
    assert set(children) == {0, 1, 2}
    assert children[1].data.metrics == {} and children[2].data.params
    assert parent.info.status == "KILLED" and parent.data.tags["tilewright.state"] == "interrupted"


def test_questions_to_a_model_are_an_artifact(journal_path, uri):
    sample = sample_at(journal_path, 2)
    for salt, reply, error in (("1.0", "no code", ""), ("2.0", "", "no answer")):
        exchange = Exchange(salt, "m", ({"role": "user", "content": "?"},), reply, error, salt=salt)
        sample.journal.add_exchange(salt, exchange.to_json())
    sample.finish()
    sample.close()
    assert catch_up(journal_path, uri)
    parent, _ = runs_of(uri, journal_path.parent.name)
    path = client_of(uri).download_artifacts(parent.info.run_id, "questions.json")
    asked = json.loads(Path(path).read_text())
    assert [(e["reply"], e["error"]) for e in asked] == [("no code", ""), ("", "no answer")]


@pytest.mark.slow
def test_it_ends_when_its_campaign_was_killed(journal_path, home, uri):
    """The process that started the mirror dies without a word; the mirror writes the rest and ends. Where the mirror
    died, too, the next command has MLflow corrected."""
    sample_at(journal_path, 3).close()
    script = (
        "import os, sys, pathlib; from tilewright.evolve.mlflow_mirror.process import start_mirror; "
        "m = start_mirror(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])); "
        "print(m._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    driver = subprocess.run(
        [sys.executable, "-c", script, str(journal_path), str(home)], stdout=subprocess.PIPE, text=True
    )
    assert driver.returncode == -signal.SIGKILL
    pid, deadline = int(driver.stdout), time.monotonic() + 60
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(pid)
    parent, _ = check_whole(uri, journal_path)
    assert parent.data.tags["tilewright.state"] == "killed" and parent.info.status == "KILLED"
    with Journal(journal_path, write=True) as journal:  # and a resume makes it a running one again
        journal.add_event("resumed")
        mirror = mirror_of(journal, uri, home)
        while mirror.advance():
            pass
        mirror.show("running")
        mirror_process.Follower(journal_path, uri, home, None)._report(mirror_process.Progress(uri, "/#/x", 3))
    assert runs_of(uri, journal_path.parent.name)[0].info.status == "RUNNING"
    assert main(["--home", str(home), "status"]) == 0
    while runs_of(uri, journal_path.parent.name)[0].info.status != "KILLED":
        assert time.monotonic() < deadline + 60
        time.sleep(0.5)


def _alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
