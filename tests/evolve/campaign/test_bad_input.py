"""Bad input: one sentence that names the cause, exit code 2, nothing left behind."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import testkit
from testkit import FIXTURES, ROOT
from testkit.evaluations import failed
from testkit.spaces.tables import PoolAtOnce
from tilewright.evolve import run
from tilewright.evolve.campaign.operator_check import check_operator
from tilewright.evolve.cli import main
from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.page import write_page
from tilewright.evolve.space.constraints import SpaceError
from tilewright.evolve.space.space import read_declarations
from tilewright.seeds.catalogue import load_operator

SMALL = Path(testkit.__file__).parent / "fixtures/small_gemm"
CAMPAIGN = f"""
name: bad
operator: {SMALL}/good
target: tpu7x
suite: tiny
budget: {{evaluations: 1}}
mlflow: {{enabled: false}}
"""


def answer(tmp_path, capsys, text):
    """Exit code and the one sentence of ``tilewright run``."""
    path = tmp_path / "campaign.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    code = main(["run", str(path), "--home", str(tmp_path / "home")])
    sentence = capsys.readouterr().err.strip()
    assert "Traceback" not in sentence and len(sentence) < 1200
    assert not list((tmp_path / "home").glob("campaigns/*"))
    return code, sentence


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("seeds: [tiled, tiled]", "names 'tiled' twice"),
        ("baselines: [whole, whole]", "names 'whole' twice"),
        ("budget: {wall_seconds: .inf}", "budget.wall_seconds"),
        ("budget: {evaluations: 1, fitness: .nan}", "budget.fitness"),
        ("workers: {count: 100000000}", "workers.count"),
        (f"seed: {'9' * 5000}", "YAML cannot read"),
        (f"budget: {{evaluations: 0x{'f' * 5000}}}", "budget.evaluations"),
        ("budget: {evaluations: true}", "must be a number, not true"),
        ("workers: {memory_gib: 1e300}", "workers.memory_gib"),
        (f"operator: {'x' * 5000}/good", "neither a known family"),
        ("operator: gemm_fp9/x", "gemm_fp9"),
        (f"operator: {SMALL}/better", "better"),
        ("target: tpu9", "tpu7x"),
        ("suite: huge", "tiny"),
        ("budgets: {}", "did you mean 'budget'"),
        ("seeds: [nope]", "tiled"),
        ("workers: {address: '127.0.0.1:1'}", "workers: the Ray cluster at"),
        ("search: {proposers: []}", "search.proposers"),
    ],
)
def test_a_configuration_is_refused_in_one_sentence(tmp_path, capsys, change, named):
    key = change.partition(":")[0]
    kept = "\n".join(line for line in CAMPAIGN.splitlines() if not line.startswith(f"{key}:"))
    code, sentence = answer(tmp_path, capsys, f"{kept}\n{change}\n")
    assert code == 2 and named in sentence, sentence


def test_a_seed_that_fails_its_own_gate_is_refused_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "make_pool", PoolAtOnce)
    monkeypatch.setattr(PoolAtOnce, "evaluate", lambda pool, job: failed(job.genome))
    code, sentence = answer(tmp_path, capsys, CAMPAIGN)
    assert code == 2 and "tiled fails its own gate: incorrect at check, 12 dB" in sentence


OPERATORS = {
    "a syntax error": ("def operators(:\n", "SyntaxError"),
    "raises": ("raise RuntimeError('no luck')\n", "RuntimeError: no luck"),
    "gives no operator": ("def operators():\n    return {'good': 3}\n", "returns no operators"),
    "raises what is no Exception": ("raise BaseException('a\x1b[31mb')\n", "BaseException: a\\x1b[31mb"),
    "interrupts": ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    "an error without a text": ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n", "raises E"),
    "an operator that raises": (
        "class O:\n    def __getattr__(self, n): raise SystemExit(n)\ndef operators(): return {'good': O()}\n",
        "SystemExit",
    ),
    "has none": ("X = 1\n", "AttributeError"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_module_of_operators_is_refused_in_one_sentence(tmp_path, capsys, name):
    text, named = OPERATORS[name]
    folder = tmp_path / f"mine_{abs(hash(name))}"
    folder.mkdir()
    (folder / "operator.py").write_text(text)
    code, sentence = answer(tmp_path, capsys, CAMPAIGN.replace(str(SMALL), str(folder)))
    assert code == 2 and named in sentence and "operator" in sentence, sentence


FAULTS = {
    "no gates": ("gates = ()", "has no gates"),
    "no comma": (
        "suites = property(lambda s: {'tiny': Suite('tiny', Workload('a', {'M': 8}), check=('a',))}, lambda *_: None)",
        "(shape,)",
    ),
    "a bar of nothing": ("gates = (SnrGate('exact', 'exact', float('nan')),)", "min_db"),
    "another reference": ("gates = (SnrGate('exact', 'other', 45.0),)", "on 'other'"),
    "no work": ("def flops(self, w): return 0", "flops() 0"),
    "work that is none": ("def flops(self, w): return 1.5", "flops() 1.5"),
    "no bytes": ("def bytes(self, w): return 0", "bytes() 0"),
    "zeros": (
        "def make_inputs(self, w, s, k): return {n: a * 0 for n, a in super().make_inputs(w, s, k).items()}",
        "all zero",
    ),
    "the same inputs": ("def make_inputs(self, w, s, k): return super().make_inputs(w, 1, k)", "for every seed"),
    "other inputs": ("def make_inputs(self, w, s, k): return {'x': 1}", "other names than its inputs (a, b)"),
    "an oracle that raises": ("def oracle(self, w, i): raise ValueError('lost')", "raises ValueError: lost"),
    "an oracle of other keys": (
        "def oracle(self, w, i): return {'exact': {'d': super(Bad, self).oracle(w, i)['exact']['c']}}",
        "'d', which is no output",
    ),
    "an empty oracle": ("def oracle(self, w, i): return {}", "gives none"),
    "another shape": ("def oracle(self, w, i): return {'exact': {'c': i['a'].astype(float)}}", "of shape"),
    "not finite": (
        "def oracle(self, w, i): return {'exact': {'c': super(Bad, self).oracle(w, i)['exact']['c'] * np.nan}}",
        "not finite",
    ),
    "an oracle that hangs": ("def oracle(self, w, i): time.sleep(30)", "did not return within 1 s"),
    "no outputs": ("def outputs(self, w): return ()", "outputs()"),
    "a dtype nobody knows": (
        "def outputs(self, w): return (TensorSpec('c', (w.dims['M'], w.dims['N']), 'float7'),)",
        "float7",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_operator_that_cannot_judge_is_refused_before_anything_is_spent(name):
    line, named = FAULTS[name]

    import numpy as np

    from tilewright.seeds.operator import SnrGate, Suite, TensorSpec, Workload

    base = load_operator(f"{SMALL}/good")
    space = {"Base": type(base), "np": np, "time": time, "SnrGate": SnrGate, "TensorSpec": TensorSpec}
    space |= {"Suite": Suite, "Workload": Workload}
    exec(f"class Bad(Base):\n{textwrap.indent(line, '    ')}\n", space)
    bad = space["Bad"]("good", ["tiled"])
    with pytest.raises(UserError, match=r"^operator: mine/bad ") as caught:
        check_operator("mine/bad", bad, bad.suites["tiny"], seconds=1.0 if "hangs" in name else 30.0)
    sentence = str(caught.value)
    assert named in sentence and sentence.endswith(".") and "\n" not in sentence, sentence
    check_operator("mine/good", base, base.suites["tiny"])


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (f"SPACE = {{'a': (0x{'f' * 5000}, 1)}}\nDEFAULTS = {{'a': 1}}", "SPACE: a"),
        (f"SPACE = {{'a': ({'9' * 5000}, 1)}}\nDEFAULTS = {{'a': 1}}", "does not parse"),
        ("SPACE = {'a': (1, 2)}\nDEFAULTS = {'a': {1, 2}}", "DEFAULTS: a: {1, 2}"),
        ("SPACE = {'a': ('\\ud800', 'b')}\nDEFAULTS = {'a': 'b'}", "SPACE: a"),
        ("SPACE = {'a': (1e999, 2)}\nDEFAULTS = {'a': 2}", "SPACE: a"),
        (f"SPACE = {{'a': ('{'x' * 300}', 'b')}}\nDEFAULTS = {{'a': 'b'}}", "SPACE: a"),
        ("SPACE = {'a': [1, 2], 'b': {1, 2}}\nDEFAULTS = {'a': 1, 'b': 1}", "SPACE: b"),
    ],
)
def test_a_space_that_nothing_can_hold_is_refused(declared, named):
    with pytest.raises(SpaceError, match=r".") as caught:
        read_declarations(declared)
    message = str(caught.value)
    assert named in message and len(message) < 400
    message.encode()


def test_the_status_of_others_is_told_beside_a_damaged_journal(tmp_path, capsys):
    for name in ("one-001", "two-001", "three-001"):
        folder = tmp_path / "campaigns" / name
        folder.mkdir(parents=True)
        Journal(folder / JOURNAL, write=True, create=True).close()
    damaged = next((tmp_path / "campaigns" / "two-001").glob(JOURNAL))
    damaged.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert main(["status", "--home", str(tmp_path)]) == 2
    output = capsys.readouterr().out
    assert "one-001" in output and "three-001" in output and "two-001  cannot be read" in output


def test_a_journal_of_a_later_format_is_not_read(tmp_path):
    path = tmp_path / JOURNAL
    Journal(path, write=True, create=True).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(UserError, match="format 7"):
        Journal(path)


@pytest.mark.parametrize("paid", [False, True])
def test_what_was_paid_for_is_kept_when_the_disk_is_full(tmp_path, capsys, monkeypatch, paid):
    def go(self):
        if paid:
            self.journal.add_reference("baseline", "suite", failed())
        raise JournalError("the journal cannot be written: disk full.")

    monkeypatch.setattr(run._Run, "go", go)
    monkeypatch.setattr(run, "require_usable", lambda target, remote: None)
    path = tmp_path / "campaign.yaml"
    path.write_text(CAMPAIGN)
    assert main(["run", str(path), "--home", str(tmp_path / "home")]) == 2
    assert "disk full" in capsys.readouterr().err
    assert bool(list((tmp_path / "home").glob("campaigns/*/" + JOURNAL))) is paid


def test_what_cannot_be_read_or_written_is_one_sentence(tmp_path, capsys, monkeypatch):
    home = ["--home", str(tmp_path / "home")]
    long = ["--home", str(tmp_path / ("a" * 5000)), "status"]
    escape, campaign = "x\x1b[31mred", tmp_path / "campaign.yaml"
    campaign.write_text(CAMPAIGN)
    for arguments, named in (
        (["run", "/dev/zero"], "at most"),
        (long, "File name too long"),
        (["tune", f"{escape}.py:f"], "x\\x1b[31mred"),
        (["run", f"{escape}.yaml"], "x\\x1b[31mred"),
        (["--home", str(campaign), "run", str(campaign)], "home: cannot write"),
    ):
        assert main([*home, *arguments]) == 2
        sentence = capsys.readouterr().err
        assert named in sentence and "\x1b" not in sentence and len(sentence.splitlines()) == 1 and len(sentence) < 600
    assert main(["status", "a", escape]) == 2
    assert "\x1b" not in capsys.readouterr().err
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tilewright --home {tmp_path} status > /dev/full"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "tilewright: cannot write or open standard output: No space left on device.\n"


def test_a_report_never_replaces_a_pipe_or_a_journal(tmp_path):
    pipe, journal = tmp_path / "pipe", tmp_path / "journal.sqlite"
    os.mkfifo(pipe)
    journal.write_text("SQLite format 3")
    for path, why in ((pipe, "no regular file"), (journal, "no report")):
        with pytest.raises(OSError, match=why):
            write_page(path, "page")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and journal.read_text() == "SQLite format 3"
    assert sorted(tmp_path.iterdir()) == [journal, pipe]


def test_a_report_for_which_there_is_no_room_replaces_nothing(tmp_path):
    folder, page = tmp_path / "home/campaigns/stopped-001", tmp_path / "out" / "page.html"
    for made in (folder, page.parent):
        made.mkdir(parents=True)
    shutil.copy(FIXTURES / "journals/stopped-001.sqlite", folder / "journal.sqlite")
    page.write_text("<!doctype html>of before")
    command = f"{sys.executable} -m tilewright --home {tmp_path}/home report stopped-001 --output {page}"
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 2; {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tilewright: --output: cannot write {page}: File too large.\n"
    assert page.read_text() == "<!doctype html>of before" and [p.name for p in page.parent.iterdir()] == ["page.html"]
