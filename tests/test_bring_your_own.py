"""docs/bring_your_own.md, followed to the letter: its files are written, its commands run, its advice taken."""

import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

from testkit import ROOT
from testkit.children import clean_environment
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.gates import failure, read_gates

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(900)  # of a busy machine

PAGE = (ROOT / "docs" / "bring_your_own.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE, re.M | re.S)
PIPES = {"capture_output": True, "text": True, "timeout": 800, "check": False}
COMMANDS, ALL_THE_WAY = (block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("own")
    for name, text in FILES:
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return made


def operator_of(folder):
    return runpy.run_path(str(folder / "rms_quant" / "operator.py"))["operators"]()["row"]


def test_the_page_builds_an_operator_and_evolves_it(folder):
    triton = ["rms_quant/operator.py", "rms_quant/kernels/rows.py", "rms.yaml"]
    pallas = ["row_norm/operator.py", "row_norm/kernels/blocks.py", "norm.yaml", "use.py"]
    assert [name for name, _ in FILES] == triton + pallas
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        program, *arguments = command.split()
        assert program == "tilewright"
        command = [sys.executable, "-m", "tilewright", *arguments]
        done = subprocess.run(command, cwd=folder, env=clean_environment(), **PIPES)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "right at 8x128, 4x256" in done.stdout or "candidates pass the gates" in done.stdout
    assert not re.search(r"GB/s|headroom|gain|faster|slower", done.stdout), "times of an interpreter"
    with Journal(folder / ".tilewright" / "campaigns" / "rms-001" / "journal.sqlite") as journal:
        evaluations = [evaluation for _, _, evaluation, _ in journal.evaluations()]
    assert len(evaluations) == 5
    assert evaluations[0].verdict is Verdict.OK, evaluations[0].reason
    assert evaluations[0].unit == "GB/s"
    assert {reading.gate for reading in evaluations[0].gates} == {"scales", "payload"}


@pytest.mark.slow
def test_a_pallas_operator_is_evolved_promoted_and_called(folder):
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
    printed = ""
    for command in ALL_THE_WAY:
        run = re.sub("^tilewright ", "python -m tilewright ", command)
        run = run.replace("python ", f"{sys.executable} ").replace("=library", f"=library:{ROOT}")
        done = subprocess.run(["bash", "-ec", run], cwd=folder, env=clean_environment(), **PIPES)
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    assert all(line in printed for line in shown.splitlines()), printed


def test_wrong_twins_fail_and_the_right_answer_passes(folder):
    operator = operator_of(folder)
    workload = operator.suites["tiny"].check[0]
    for kind in operator.input_kinds:
        inputs = operator.make_inputs(workload, 3, kind)
        references = operator.oracle(workload, inputs)

        def verdict(changed, kind=kind, references=references):
            found = operator.oracle(workload, changed)
            outputs = {"q": found["rounded"]["q"], "s": found["exact"]["s"].astype(np.float32)}
            return failure(read_gates(operator.gates, outputs, references, kind), operator.gates)

        assert verdict(inputs) is None
        assert verdict({**inputs, "w": np.ones_like(inputs["w"])}) is not None, "weights left out"
        assert verdict({**inputs, "x": np.roll(inputs["x"], 1, axis=0)}) is not None, "the neighbouring row"
