"""docs/tutorial.md as printed: run its ``sh`` and ``python`` blocks in order, compare what its ``text`` blocks show.

Then delete the campaign as docs/campaign.md says.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from itertools import takewhile

import pytest

from testkit import ROOT
from testkit.children import clean_environment

pytest.importorskip("libtpu")
pytest.importorskip("triton")

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
DELETION = re.findall(
    r"^   ```python\n(.*?)^   ```$", (ROOT / "docs" / "campaign.md").read_text(), re.M | re.S
)
LEFT = "import mlflow\nprint('left:', len(mlflow.search_runs(search_all_experiments=True, output_format='list')))\n"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NOT_RUN = {
    "pip install '.[tpu]'": "the test's environment has it",
    "tilewright ui": "serves until it is stopped; tests/evolve/mlflow_mirror/test_ui.py",
    'tilewright tune examples/softmax.py:softmax --reference torch.softmax --args "f32[4096, 12672], dim=1"': (
        "needs a GPU; tests/test_documents.py checks its arguments"
    ),
    "tilewright program examples/program.py:step --setup setup": "needs a GPU; tests/workers/program/test_program.py",
}
"""What the ``console`` blocks hold, and why it is not run here."""


SESSION = """
import sys, traceback
while text := sys.stdin.readline():
    try:
        exec(compile(eval(text), "page", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    print("end of block", flush=True)
"""
"""Runs the page's blocks of Python one after the other: JAX and MLflow are imported once."""


def masked(text):
    """Text with numbers and runs of spaces replaced, since figures follow the versions of JAX and libtpu."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", text))


@pytest.mark.timeout(1800)  # of a busy machine
def test_the_tutorial_runs_as_printed(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = tmp_path / "bin" / "tilewright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tilewright.evolve.cli "$@"\n')
    command.chmod(0o755)
    paths = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": f"{command.parent}:{os.environ['PATH']}"}
    environment = clean_environment(**paths)
    printed, console = "", []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    session = subprocess.Popen([sys.executable, "-c", SESSION], cwd=tmp_path, env=environment, **pipes)
    (deletion,) = map(textwrap.dedent, DELETION)
    after = deletion.partition("for run")[0] + LEFT
    for language, text in [*BLOCK.findall(PAGE), ("python", deletion), ("python", after)]:
        if language == "console":
            console += text.splitlines()
        elif language == "output":  # of a console block
            continue
        elif language == "text":
            missing = [line for line in text.splitlines() if masked(line) not in masked(printed)]
            assert not missing, printed
        elif language == "python":
            session.stdin.write(f"{text!r}\n")
            session.stdin.flush()
            said = "".join(takewhile(lambda line: line != "end of block\n", session.stdout))
            assert session.poll() is None and "Traceback" not in said, said
            printed += said
        else:
            run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 800}
            done = subprocess.run(["bash", "-ec", text], **run)
            assert done.returncode == 0, done.stdout + done.stderr
            printed += done.stdout
    session.communicate()
    assert console == list(NOT_RUN)
    _, shown = re.findall(r"^```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert not [line for line in shown.splitlines() if masked(line) not in masked(printed)], "the README's"
    gain, *_ = re.findall(r"gain +×([\d.]+) over the best seed", printed)
    (error,) = re.findall(r"largest error (\S+)", printed)
    assert float(gain) > 2 and float(error) < 1e-3
    assert "winner: {'block_rows':" in printed and "softmax-001 None" in printed, printed
    assert re.search(r"^0001 .* ok \d+\.\d", printed, re.M), "a candidate's rate in MLflow"
    assert printed.endswith("left: 0\n")
