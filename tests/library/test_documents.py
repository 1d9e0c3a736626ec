"""What the README and the library page tell people to type works: commands run, Python blocks execute."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from testkit import ROOT
from testkit.promote_campaign import FormulaPool, quick_child, write_campaign
from tilewright.evolve import cli
from tilewright.evolve.promote import cli as promote_cli
from tilewright.evolve.promote.library_writer import LibraryWriter

PAGES = ("README.md", "docs/library.md")

ELSEWHERE = {
    "tilewright run quickstart": "takes minutes; test_end_to_end runs a campaign",
    "tilewright resume": "test_end_to_end kills and resumes one",
    "tilewright ui": "serves until it is stopped; test_ui drives it in a browser",
    'tilewright tune examples/softmax.py:softmax --reference torch.softmax --args "f32[4096, 12672], dim=1"': (
        "needs a GPU"
    ),
    "tilewright tune examples/softmax_jax.py:softmax --reference examples/softmax_jax.py:reference"
    ' --args "bf16[256, 512]" --target tpu7x --evaluations 4': "test_tutorial runs it",
}
"""Commands that other tests execute for real; here they only have to parse."""

OPERATOR = "small_gemm/good"


def commands(page):
    """Every line of a block of code that begins with ``tilewright``, comments left out."""
    lines, fenced = [], False
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line.strip())
    return [" ".join(line.split("#")[0].split()) for line in lines if line.startswith("tilewright ")]


def python_blocks():
    """Those that use the library; what the README says of ``import tilewright`` is ``test_end_to_end``'s."""
    return [
        block
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
        if "tilewright_library" in block
    ]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A finished campaign, workers that answer at once, and the folders the pages name moved into ``tmp_path``."""
    write_campaign(tmp_path / ".tilewright").rename(tmp_path / ".tilewright" / "campaigns" / "quickstart-001")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILEWRIGHT_HOME", raising=False)
    monkeypatch.setattr(promote_cli, "_evaluator", lambda address: lambda resolved: FormulaPool(resolved, quick_child))
    monkeypatch.setattr("tilewright.evolve.promote.library_commands._run_checks", lambda writer, operator: _passed())
    return tmp_path


def _passed():
    from tilewright.evolve.promote.library_commands import Finding

    return Finding(True, "the checks are run by test_shipped.")


def test_every_command_of_the_readme_does_what_it_says(home, capsys):
    outputs = {}
    for line in commands("README.md"):
        if line in ELSEWHERE:
            cli._parser().parse_args(shlex.split(line)[1:])
            continue
        assert cli.main(shlex.split(line)[1:]) == 0, line
        outputs[line] = capsys.readouterr().out
    assert "promoted small_gemm/good version" in outputs["tilewright promote"]
    assert "2.000 x whole (modelled)" in outputs["tilewright library list"]
    assert len(outputs) >= 4


def test_every_command_of_the_library_page_works(home, capsys):
    """The page speaks of the quickstart's operator and suite; a small family and its own stand in for them."""
    replace = {
        "gemm_fp8_fused/g512": OPERATOR,
        "/models/kernels": str(home / "models"),
        "llm": "tiny",
        "bf16": "whole",
        "h200": "tpu7x",
    }
    done = []
    for line in commands("docs/library.md"):
        words = [replace.get(word, word) for word in shlex.split(line)[1:]]
        if "--candidate" in words:
            words[words.index("--candidate") + 1] = "2"
        if words[0] == "promote":
            shutil.rmtree("library", ignore_errors=True)
        elif not Path("library").exists():
            assert cli.main(["promote"]) == cli.main(["promote", "--candidate", "2"]) == 0
        assert cli.main(words) == 0, (line, capsys.readouterr())
        done.append(line)
    assert len(done) >= 9
    assert LibraryWriter(home / "models", "my_kernels").operators() == [OPERATOR]
