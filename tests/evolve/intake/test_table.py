"""``tune --table``: a campaign for each shape of a function that is read in once, and a row for each."""

import re
from pathlib import Path

import pytest

from tilewright.evolve.cli import main
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake.table import require_table, row_format
from tilewright.fitness.targets import load_target

pytest.importorskip("jax")

SCALE = """from typing import NamedTuple

import jax
from jax.experimental import pallas as pl


class Tiles(NamedTuple):
    rows: int
    columns: int


def scale(x, tiles):
    def kernel(a, b):
        b[...] = a[...] * 2.0

    grid = (pl.cdiv(x.shape[0], tiles.rows), pl.cdiv(x.shape[1], tiles.columns))
    spec = pl.BlockSpec((tiles.rows, tiles.columns), lambda i, j: (i, j))
    return pl.pallas_call(kernel, grid=grid, in_specs=[spec], out_specs=spec, out_shape=x)(x)
"""
ANSWER = {
    "dims": [{"M": 64, "N": 384}],
    "fixed": [{"name": "deep", "value": 16, "why": "no other value fits"}],
    "defaults": {"rows": 8},
}


@pytest.mark.slow  # two campaigns with their final checks; quicker: the tutorial tunes one shape
@pytest.mark.timeout(1200)
def test_one_command_tunes_every_shape_and_writes_its_blocks_and_time_in_the_users_form(tmp_path, monkeypatch):
    """Of each shape only its own blocks are tried: 384 columns are no part of 256."""
    monkeypatch.chdir(tmp_path)
    Path("scale.py").write_text(SCALE)
    calls = [
        f"--args=f32[{rows}, {columns}], scale.Tiles(rows=16, columns=128)" for rows, columns in ((64, 384), (32, 256))
    ]
    row = "({M}, {N}): ({rows}, {columns}),  # {low_us} {us} {high_us} {gain} {campaign}"
    arguments = ["tune", "scale.py:scale", *calls, "--target=v6e", "--evaluations=1", "--no-mlflow"]
    assert main([*arguments, "--table=blocks.txt", f"--row={row}"]) == 0
    text = Path("blocks.txt").read_text()
    found = re.findall(r"\((\d+), (\d+)\): \((\d+), (\d+)\),  # (\S+) (\S+) (\S+) (\S+) scale-00(\d)\n", text)
    assert [row[:2] for row in found] == [("64", "384"), ("32", "256")] and text.count("\n") == 2
    for number, (_, _, rows, columns, low, us, high, gain, campaign) in enumerate(found, 1):
        assert 0 < float(low) < float(us) < float(high) and float(gain) >= 1.0 and int(campaign) == number
        assert int(columns) % 128 == 0 and int(rows) % 8 == 0
    seed = Path("scale_tuned/kernels/seed.py").read_text()
    assert "'columns': (128, 256, 384, 512, 1024)" in seed
    assert "M != 32 or N != 256 or columns in (128, 256, 512, 1024)" in seed
    assert main([*arguments, "--table=blocks.txt"]) == 2, "what is there is not replaced"
    assert Path("blocks.txt").read_text() == text


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{columns}", "has an unknown name"),
        ("{M", "has expected '}' before end of string"),
        ("{}", "allowed: M, N, deep, rows, us, low_us, high_us, gain, target, campaign; {{ for a brace"),
        ("{M.x}", "has no attribute"),
        ("{target:.2f}", "Unknown format code 'f'"),
    ],
)
def test_a_form_that_cannot_be_filled_in_is_refused_before_anything_is_tuned(row, complaint):
    with pytest.raises(UserError, match=complaint):
        row_format(row, ANSWER)


def test_without_a_form_rows_are_comma_separated():
    head, form = row_format(None, ANSWER)
    assert head == "M,N,deep,rows,us,low_us,high_us,gain,target,campaign\n"
    assert form.count(",") == head.count(",")


@pytest.mark.parametrize(("target", "complaint"), [("h200", "h200 is not modelled"), ("v6e", "blocks.csv exists")])
def test_a_table_needs_a_modelled_target_and_a_file_of_its_own(tmp_path: Path, target: str, complaint: str) -> None:
    path = tmp_path / "blocks.csv"
    path.write_text("mine\n")
    with pytest.raises(UserError, match=complaint):
        require_table(path, load_target(target), overwrite=False)
    require_table(path, load_target("v6e"), overwrite=True)
