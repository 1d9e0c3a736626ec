"""The commands of the page on CUDA C++ that take a raw kernel in."""

import shlex

import pytest

pytest.importorskip("torch")
pytest.importorskip("tree_sitter_cuda")
pytest.importorskip("cuda.bindings.nvrtc")

from testkit import ROOT
from tilewright.evolve import cli
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import tune
from tilewright.evolve.intake.cli import _plan
from tilewright.fitness.targets import load_target

LINES = [
    line for line in (ROOT / "docs" / "cuda.md").read_text().splitlines()
    if line.startswith("tilewright ") and "softmax.cu" in line
]  # fmt: skip
SM_90 = load_target("sm_90")


def test_the_commands_describe_a_launch(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert [line.split()[1] for line in LINES] == ["check", "tune"]
    for line in LINES:
        asked = _plan(cli._parser().parse_args(shlex.split(line)[1:]), SM_90, tmp_path).request
        assert asked.launch == {"grid": "x.shape[0]", "block": "BLOCK"} and asked.function == "softmax"
    assert tune.default_target("examples/softmax.cu:softmax") in ("sm_90", None)
    for name in ("interpreter", "gfx950", "tpu7x"):
        with pytest.raises(UserError, match=f"target: {name} runs no CUDA C"):
            tune.ask_intake(asked, load_target(name))
    with pytest.raises(UserError, match=r"which kernel of examples/softmax.cu\?"):
        tune.parse_place("examples/softmax.cu")


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[1])
def test_the_commands_run_where_nothing_can_be_measured(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    tuned = ["--home", str(tmp_path), "--out", str(tmp_path / "made"), "--evaluations", "2", "--no-mlflow"]
    assert cli.main([*shlex.split(line)[1:], *tuned * ("tune" in line), "--target", "sm_90"]) == 0
    shown = capsys.readouterr().out
    assert "knob       BLOCK = 256, values 32 64 128" in shown
    if "tune" in line:
        text = (tmp_path / "made" / "softmax.py").read_text()
        assert "PARAMS = {'BLOCK': 256" in text and "Gain: unknown: sm_90 gives no times." in text
        assert "called(globals(), tilewright_own)" in text and "def softmax(x, columns):" in text
