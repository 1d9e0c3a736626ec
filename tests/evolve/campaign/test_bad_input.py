"""Bad input: one sentence that names the cause, exit code 2, nothing left behind."""

import json
import os
import signal
import sqlite3
import textwrap
import time
from pathlib import Path

import pytest

import testkit
from testkit import twins
from testkit.evaluations import failed
from tilewright.evolve import run
from tilewright.evolve.campaign.operator_check import check_operator
from tilewright.evolve.cli import main
from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.constraints import SpaceError
from tilewright.evolve.space.space import Space, read_declarations
from tilewright.fitness import dialect
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
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said and len(said) < 1200
    assert not list((tmp_path / "home").glob("campaigns/*"))
    return code, said


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("seeds: [tiled, tiled]", "names 'tiled' twice"),
        ("baselines: [whole, whole]", "names 'whole' twice"),
        ("budget: {wall_seconds: .inf}", "budget.wall_seconds"),
        ("budget: {evaluations: 1, fitness: .nan}", "budget.fitness"),
        ("workers: {memory_gib: .inf}", "workers.memory_gib"),
        ("workers: {count: 100000000}", "workers.count"),
        (f"seed: {'9' * 5000}", "YAML cannot read"),
        (f"seed: 0x{'f' * 5000}", "seed"),
        (f"budget: {{evaluations: 0x{'f' * 5000}}}", "budget.evaluations"),
        (f"operator: {'x' * 5000}/good", "neither a known family"),
        (f"operator: ./{'x' * 300}/good", "neither a known family"),
    ],
)
def test_a_configuration_is_refused_in_one_sentence(tmp_path, capsys, change, named):
    key = change.partition(":")[0]
    kept = "\n".join(line for line in CAMPAIGN.splitlines() if not line.startswith(f"{key}:"))
    code, said = answer(tmp_path, capsys, f"{kept}\n{change}\n")
    assert code == 2 and named in said, said


OPERATORS = {
    "a syntax error": ("def operators(:\n", "SyntaxError"),
    "raises": ("raise RuntimeError('no luck')\n", "RuntimeError: no luck"),
    "leaves": ("import sys\nsys.exit(3)\n", "SystemExit"),
    "gives none": ("def operators():\n    return None\n", "returns no operators"),
    "gives no operator": ("def operators():\n    return {'good': 3}\n", "returns no operators"),
    "has none": ("X = 1\n", "AttributeError"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_module_of_operators_is_refused_in_one_sentence(tmp_path, capsys, name):
    text, named = OPERATORS[name]
    folder = tmp_path / f"mine_{abs(hash(name))}"
    folder.mkdir()
    (folder / "operator.py").write_text(text)
    code, said = answer(tmp_path, capsys, CAMPAIGN.replace(str(SMALL), str(folder)))
    assert code == 2 and named in said and "operator" in said, said


FAULTS = {
    "no gates": ("gates = ()", "has no gates"),
    "no kinds": ("input_kinds = ()", "has no input_kinds"),
    "a bar of nothing": ("gates = (SnrGate('exact', 'exact', float('nan')),)", "min_db"),
    "another reference": ("gates = (SnrGate('exact', 'other', 45.0),)", "on 'other'"),
    "no work": ("def flops(self, w): return 0", "flops() 0"),
    "negative work": ("def flops(self, w): return -5", "flops() -5"),
    "work that is none": ("def flops(self, w): return 1.5", "flops() 1.5"),
    "no bytes": ("def bytes(self, w): return 0", "bytes() 0"),
    "zeros": (
        "def make_inputs(self, w, s, k): return {n: a * 0 for n, a in super().make_inputs(w, s, k).items()}",
        "all zero",
    ),
    "the same inputs": ("def make_inputs(self, w, s, k): return super().make_inputs(w, 1, k)", "for every seed"),
    "other inputs": ("def make_inputs(self, w, s, k): return {'x': 1}", "other names than its inputs (a, b)"),
    "an oracle that raises": ("def oracle(self, w, i): raise ValueError('lost')", "raises ValueError: lost"),
    "an oracle that leaves": ("def oracle(self, w, i): raise SystemExit(0)", "raises SystemExit"),
    "an oracle of other keys": (
        "def oracle(self, w, i): return {'exact': {'d': super(Bad, self).oracle(w, i)['exact']['c']}}",
        "'d', which is no output",
    ),
    "an empty oracle": ("def oracle(self, w, i): return {}", "gives none"),
    "an oracle of nothing": ("def oracle(self, w, i): return None", "no mapping"),
    "another shape": ("def oracle(self, w, i): return {'exact': {'c': i['a'].astype(float)}}", "of shape"),
    "not finite": (
        "def oracle(self, w, i): return {'exact': {'c': super(Bad, self).oracle(w, i)['exact']['c'] * np.nan}}",
        "not finite",
    ),
    "an oracle that hangs": ("def oracle(self, w, i): time.sleep(30)", "did not return within 1 s"),
    "no outputs": ("def outputs(self, w): return ()", "outputs()"),
    "a dtype nobody knows": (
        "def outputs(self, w): return (TensorSpec('c', (w.dims['M'], w.dims['N']), 'float7'),)", "float7"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_an_operator_that_cannot_judge_is_refused_before_anything_is_spent(name):
    line, named = FAULTS[name]
    import time

    import numpy as np

    from tilewright.seeds.operator import SnrGate, TensorSpec

    base = load_operator(f"{SMALL}/good")
    space = {"Base": type(base), "np": np, "time": time, "SnrGate": SnrGate, "TensorSpec": TensorSpec}
    exec(f"class Bad(Base):\n{textwrap.indent(line, '    ')}\n", space)
    bad = space["Bad"]("good", ["tiled"])
    with pytest.raises(UserError, match=r"^operator: mine/bad ") as caught:
        check_operator("mine/bad", bad, bad.suites["tiny"], seconds=1.0 if "hangs" in name else 30.0)
    said = str(caught.value)
    assert named in said and said.endswith(".") and "\n" not in said, said
    check_operator("mine/good", base, base.suites["tiny"])


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (f"SPACE = {{'a': (0x{'f' * 5000}, 1)}}\nDEFAULTS = {{'a': 1}}", "SPACE: a"),
        (f"SPACE = {{'a': ({'9' * 5000}, 1)}}\nDEFAULTS = {{'a': 1}}", "does not parse"),
        ("SPACE = {'a': (1, 2)}\nDEFAULTS = {'a': {1, 2}}", "DEFAULTS: a: {1, 2}"),
        ("SPACE = {'a': (1, 2)}\nDEFAULTS = {'a': (1, 2)}", "DEFAULTS: a"),
        ("SPACE = {'a': ('\\ud800', 'b')}\nDEFAULTS = {'a': 'b'}", "SPACE: a"),
        ("SPACE = {'a': (1e999, 2)}\nDEFAULTS = {'a': 2}", "SPACE: a"),
        ("SPACE = {'a': (1j, 2)}\nDEFAULTS = {'a': 2}", "SPACE: a"),
        ("SPACE = {'a': (b'x', 2)}\nDEFAULTS = {'a': 2}", "SPACE: a"),
        (f"SPACE = {{'a': ('{'x' * 300}', 'b')}}\nDEFAULTS = {{'a': 'b'}}", "SPACE: a"),
        ("SPACE = {'a': [1, 2], 'b': {1, 2}}\nDEFAULTS = {'a': 1, 'b': 1}", "SPACE: b"),
    ],
)
def test_a_space_that_nothing_can_hold_is_refused(declared, named):
    with pytest.raises(SpaceError, match=r".") as caught:
        read_declarations(declared)
    said = str(caught.value)
    assert named in said and len(said) < 400
    said.encode()


ANSWERS = {
    "an integer of thousands of digits": f"SPACE = {{'block_m': ({'9' * 5000}, 128)}}",
    "the same in hexadecimal": f"SPACE = {{'block_m': (0x{'f' * 5000}, 128)}}",
    "a lone surrogate": "SPACE = {'block_m': ('\\ud800', 'b')}",
    "a lone surrogate as it is": "SPACE = {'block_m': ('\ud800', 'b')}",
    "a set": "DEFAULTS = {'block_m': {1, 2}, 'block_n': 128, 'block_k': 128}",
    "a list": "DEFAULTS = {'block_m': [1, 2], 'block_n': 128, 'block_k': 128}",
    "infinity": "SPACE = {'block_m': (1e999, 128)}",
    "a complex constraint": "CONSTRAINTS = {'(0 - block_m) ** 0.5 > 0': 'a root'}",
    "a constraint of a complex literal": "CONSTRAINTS = {'block_m > 1j': 'a number'}",
    "a constraint of a great power": "CONSTRAINTS = {'block_m ** block_m ** block_m ** 9 > 0': 'a number'}",
    "keys that are none": "SPACE = {1: (1, 2)}",
    "a null character": "SPACE = {'block_m': ('\\0', 128)}",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_model_s_answer_of_that_kind_is_a_rejected_proposal(name):
    """What a language model writes is refused by the dialect or as a space, and raises nothing else."""
    declared = ANSWERS[name].partition(" ")[0]
    lines = [
        ANSWERS[name] if line.startswith(f"{declared} =") else line for line in twins.HONEST.splitlines()
    ]
    source = "\n".join(lines) + "\n"
    assert ANSWERS[name] in source
    if dialect.check(source):
        return
    try:
        space = Space.from_source(source, [{"M": 256, "N": 256, "K": 512}])
    except SpaceError as error:
        str(error).encode()
    else:
        json.dumps([dict(space.defaults), list(space.constraints)])
        assert space.violations(space.defaults) == [] or name == "a null character"


def test_a_constraint_of_a_complex_value_holds_nowhere():
    with pytest.raises(SpaceError, match="empty"):
        Space({"a": (1, 2)}, {"(0 - a) ** 0.5 > 0": "never"}, defaults={"a": 1})
    space = Space({"a": (-1, 2)}, {"a ** 0.5 > 0": "a root"}, defaults={"a": 2})
    assert not space.legal({"a": -1}) and space.legal({"a": 2})


def test_the_status_of_others_is_told_beside_a_damaged_journal(tmp_path, capsys):
    for name in ("one-001", "two-001", "three-001"):
        folder = tmp_path / "campaigns" / name
        folder.mkdir(parents=True)
        Journal(folder / JOURNAL, write=True, create=True).close()
    damaged = next((tmp_path / "campaigns" / "two-001").glob(JOURNAL))
    damaged.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert main(["status", "--home", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert "one-001" in said and "three-001" in said and "two-001  cannot be read" in said


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


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ImportError])
def test_an_interrupt_is_one_line_whatever_it_makes_of_an_import(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise raised from None
        return 0

    monkeypatch.setattr("tilewright.evolve.intake.cli._check", interrupted)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["check", "x.py"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "tilewright: stopped\n"
