"""The commands of the page on CUDA C++ that take people's files in."""

import re
import shlex

import pytest

pytest.importorskip("torch")
pytest.importorskip("tree_sitter_cuda")
pytest.importorskip("cuda.bindings.nvrtc")

from testkit import ROOT
from tilewright.evolve import cli
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child, tune
from tilewright.evolve.intake.cli import _plan
from tilewright.fitness.targets import load_target

LINES = re.findall(r"^tilewright (?:check|tune) examples/.*$", (ROOT / "docs" / "cuda.md").read_text(), re.M)
SM_90 = load_target("sm_90")


def test_the_commands_describe_a_call(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert [line.split()[1:3] for line in LINES] == [
        ["check", "examples/softmax.cu:softmax"],
        ["tune", "examples/softmax.cu:softmax"],
        ["check", "examples/rms_norm_answer.py:rms_norm"],
        ["tune", "examples/rms_norm_answer.py:ModelNew"],
    ]
    asked = [_plan(cli._parser().parse_args(shlex.split(line)[1:]), SM_90, tmp_path).request for line in LINES]
    assert asked[0].calls == ("f32[4096, 12672], dim=1",) and asked[3].calls == ("f32[2048, 4096]",)
    for request in asked:
        assert child.default_target(f"{request.path}:{request.function}") in ("sm_90", None)
        for name in ("interpreter", "gfx950", "tpu7x"):
            with pytest.raises(UserError, match=f"target: {name} runs no CUDA C"):
                tune.ask_intake(request, load_target(name))
    with pytest.raises(UserError, match=r"which function of examples/softmax.cu\?"):
        tune.parse_place("examples/softmax.cu")
    assert cli.main(["check", "examples/rms_norm_answer.py"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "knob", "written"),
    [
        (LINES[0], "BLOCK = 256, values 32 64 128", ()),
        (LINES[2], "THREADS = 512, values 32 64 128", ()),
        (LINES[1], "BLOCK = 256", ("def softmax(x):", "'BLOCK': 256")),
        (LINES[3], "argument   weight f32", ("def modelnew(x, *, weight):", "'THREADS': 512")),
    ],
    ids=["cu", "load_inline", "tune-cu", "tune-kernelbench"],
)
def test_the_commands_run_where_nothing_can_be_measured(line, knob, written, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    tuned = ["--home", str(tmp_path), "--out", str(tmp_path / "made"), "--evaluations", "2", "--no-mlflow"]
    assert cli.main([*shlex.split(line)[1:], *tuned * bool(written), "--target", "sm_90"]) == 0
    assert knob in capsys.readouterr().out
    for text in (*written, "Gain: unknown: sm_90 gives no times.", "called(globals(), tilewright_own)"):
        assert not written or text in next((tmp_path / "made").glob("[!o]*.py")).read_text()
