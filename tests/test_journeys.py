"""A user's day at the command line, as tables: what is typed, and what must and must not come back.

``wrong_inputs.txt``, help, the toolchains of every way to install; ``journeys.txt``, typed at a terminal. Pages in a
browser: ``tests/evolve/mlflow_mirror/test_ui.py``. Lost nodes: ``tests/faults``, in virtual time.
"""

import contextlib
import ctypes
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from testkit import ROOT
from testkit.children import clean_environment
from testkit.sample_campaign import write_sample
from tilewright.evolve import cli
from tilewright.library import store

TRITON = """import torch, triton, triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(y + at, v / (1 + tl.exp(-1.7 * v)), mask=at < n)

def quick_gelu(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y

def plain(x):
    return x * torch.sigmoid(1.7 * x)
"""
PALLAS = """from functools import partial
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x, y):
    y[...] = jnp.maximum(x[...], 0) ** 2

@partial(jax.jit, static_argnames="rows")
def squared_relu(x, rows=8):
    spec = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(kernel, grid=(x.shape[0] // rows,), in_specs=[spec], out_specs=spec,
                          out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def plain(x):
    return jnp.square(jax.nn.relu(x))
"""
TINY = f"""name: tiny
operator: {ROOT}/testkit/fixtures/small_gemm/good
target: tpu7x
suite: tiny
seeds: [tiled]
baselines: []
budget: {{evaluations: 3}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A user's folder with a file of each language and some that are none."""
    files = {
        "mine.py": TRITON,
        "jaxed.py": PALLAS,
        "broken.py": "def f(:",
        "empty.yaml": "",
        "words.yaml": "hello",
        "half.yaml": "name: [",
        "tiny.yaml": TINY,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.chdir(tmp_path)
    for name in ("TILEWRIGHT_HOME", "TILEWRIGHT_LLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


TUNE = "tune mine.py:quick_gelu"
WRONG = (ROOT / "tests" / "wrong_inputs.txt").read_text()


@pytest.mark.parametrize("row", WRONG.replace("{TUNE}", TUNE).strip("\n").split("\n"))
def test_a_wrong_input_is_one_sentence_and_leaves_nothing(here, capsys, row):
    typed, named = (part.strip() for part in row.split("|"))
    before = sorted(here.rglob("*"))
    assert cli.main(shlex.split(typed)) == 2
    out, err = capsys.readouterr()
    assert named in err and err.startswith("tilewright: ") and err.count("\n") == 1, err
    assert not out and sorted(here.rglob("*")) == before


@contextlib.contextmanager
def without_override():
    """Permissions of files bind root, as every other user, in this thread (capset of Linux)."""
    libc, header, kept = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, kept) == 0
    less = (ctypes.c_uint32 * 6)(kept[0] & ~0b110, *kept[1:])  # DAC_OVERRIDE, DAC_READ_SEARCH
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, kept) == 0


FORBIDDEN = f"""
{TUNE} --args f32[8] --out lock/x  | lock/x: Permission denied
tune secret.py:quick_gelu --args f32[8] | secret.py: Permission denied
check secret.py                   | secret.py: Permission denied
check lock                        | lock/reference.py: Permission denied
program lock/x.py:f               | lock/x.py: Permission denied
run quickstart --llm-replay lock/x | lock/x: Permission denied
ui                                | mlflow-server.log: Permission denied
report                            | --output: cannot write
"""


def test_a_folder_for_reading_only_is_read_and_what_is_forbidden_is_one_sentence(here, capsys):
    write_sample(here / ".tilewright/campaigns/theirs-001/journal.sqlite")
    (here / ".tilewright/campaigns/none-001/journal.sqlite").mkdir(parents=True)
    (here / "secret.py").touch(0)
    (here / "lock").mkdir(0)
    for name in (".tilewright/campaigns/theirs-001", ".tilewright"):
        (here / name).chmod(0o500)
    with without_override():
        assert cli.main(["status"]) == 0 and cli.main(["report", "--output", "mine.html"]) == 0
        assert "none-001" not in capsys.readouterr().out
        for row in FORBIDDEN.strip().split("\n"):
            typed, named = (part.strip() for part in row.split("|"))
            assert cli.main(shlex.split(typed)) == 2, row
            err = capsys.readouterr().err
            assert named in err and err.startswith("tilewright: ") and err.count("\n") == 1, err


def test_every_command_says_what_it_does_and_shows_an_example(capsys):
    for command in cli.EXAMPLES:
        with pytest.raises(SystemExit, match="0"):
            cli.main([command, "--help"])
        text = capsys.readouterr().out
        sentence = text.split("\n\n")[1]
        assert sentence[0].isupper() and sentence.endswith("."), text
        assert f"example: tilewright {command}" in " ".join(text.split())


# -- ways to install ---------------------------------------------------------------------------------


def test_every_way_to_install_gives_toolchains_that_the_shipped_library_was_verified_with():
    """The extras of the README, the makefile and the pages that are for running the library; ``dev`` admits them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {n: list(map(Requirement, lines)) for n, lines in project["optional-dependencies"].items()}
    pages = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
    ways = {tuple(m.split(",")) for page in pages for m in re.findall(r"'\.\[([\w,]+)\]'", page.read_text())}
    assert {("triton",), ("tpu",), ("tpu", "triton", "dev")} <= ways
    served: dict[str, tuple[str, str]] = {}
    for path in (ROOT / "library/tilewright_library/kernels").glob("*/*/versions/*/dispatch.json"):
        for entry in json.loads(path.read_text())["targets"].values():
            served.update(entry["toolchain"])
    assert {"triton", "jax"} <= set(served)
    for way in ways:
        asked = [requirement for extra in way for requirement in extras[extra]]
        for package, (least, below) in served.items():
            found = [r.specifier for r in asked if r.name == package]
            pins = {str(s)[2:] for r in found for s in r if s.operator == "=="}
            if found and (pins or "dev" not in way):
                (pin,) = pins
                assert all(pin in specifier for specifier in found), f"{way}: {package}"
                inside = store.version_numbers(least) <= store.version_numbers(pin)
                assert inside and store.version_numbers(pin) < store.version_numbers(below), way


def test_the_shipped_library_verifies_here(capsys):
    """Also on a newer Triton, where no device runs its kernels."""
    assert cli.main(["library", "verify", "--files", "--library", str(ROOT / "library")]) == 0
    assert "no  " not in capsys.readouterr().out


# -- what happens at a terminal ----------------------------------------------------------------------

DAYS = re.findall(r"^== (.*)\n((?:(?!== ).*\n)+)", (ROOT / "tests/journeys.txt").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("text", [text for _, text in DAYS], ids=[title for title, _ in DAYS])
def test_a_day_at_a_terminal(here, text):
    """What bash shows on a pseudo-terminal: what follows ``> `` is there, the pattern after ``! `` is not."""
    command, lines = here / "bin" / "tilewright", text.splitlines()
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewright "$@"\n')
    command.chmod(0o755)
    (here / "day.sh").write_text("\n".join(line for line in lines if line[:2] not in ("> ", "! ")))
    path = f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = clean_environment(ROOT=str(ROOT), PATH=path, COLUMNS="200", LINES="50", TERM="xterm")
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    done = subprocess.run(["script", "-qec", "bash -m day.sh", "/dev/null"], cwd=here, env=env, **pipes)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", done.stdout)
    wrong = [line for line in lines if line.startswith("> ") and line[2:] not in shown]
    wrong += [line for line in lines if line.startswith("! ") and re.search(line[2:], shown, re.M)]
    assert not wrong, shown[-5000:]
