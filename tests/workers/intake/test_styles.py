"""Styles of public code that wrappers and kernels are written in, each recorded, made a module, and run as that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.evolve.intake.child import part_of
from tilewright.evolve.intake.served_calls import tilewright_imported
from tilewright.fitness.targets import load_target
from tilewright.workers.child.launch import ROOT

STYLES = Path(__file__).with_name("styles.py")
CALLS = {
    "shared": "f32[30, 20], i64[30] < 5",
    "kept_rows": "f32[30, 20], i64[30] < 5",
    "first_rows": "i64[30] < 5",
    "cubed": "f32[30, 50]",
    "halved": "f32[30, 20]",
    "tripled": "f32[30, 20]",
    "filled": "f32[4, 20], i64[4].distinct() < 30, f32[30, 20]",
    'maker(factor=3)["tripled"]': "f32[30, 20]",
    "scaled_by": "f32[30, 20], f32[]",
    "into": "f32[30, 20], f32[], f16[30, 20]",
    "lower": "f32[64, 32], f32[64, 32]",
    "in_parts": "f32[30, 20]",
    "some_rows": "f32[30, 20], rows=30",
    "magnitudes": "bf16[30, 20]",
    "ranked": "f32[30, 20]",
    "together": "f32[30, 20], f32[]",
    "scores": "f16[30, 64], f16[20, 64]",
    "heads": "f32[32, 200, 16], f32[8, 200, 16]",
    "moved": "f32[30, 32]",
    "by_assembly": "f32[30, 20]",
    "clocked": "f32[30, 20]",
    "ended": "f16[4, 32, 16], f16[4, 64, 16], i32[4] in [1, 65]",
}

CHILD = """
import json, sys
import numpy as np, torch
from tilewright.workers.intake.judge.input_kinds import inputs_of
from tilewright.workers.intake.triton import program
from tilewright.workers.intake.triton.eager_torch import without_compiler
from tilewright.workers.intake.triton.knob_evidence import product_work
from tilewright.workers.intake.triton.interpreter_run import Interpreter
from tilewright.workers.runners.triton.tensors import load_module
from tilewright.workers.runners.triton.interpreter_rounding import repair

path, calls, part = json.load(sys.stdin)
without_compiler()  # as the intake's child does: its import takes seconds
answers = {}
for name, call in calls.items():
    plain = f"{path}:plain_{name.partition('(')[0]}"
    request = {"path": path, "function": name, "reference": plain, "calls": [call], "part": part}
    site, taken = program.recorded(request)
    answer = answers[name] = {
        "refusals": [r["what"] for r in program.violations(taken, site.path)],
        "source": taken.source, "notes": taken.notes, "left_out": taken.left_out,
        "knobs": {k.name: k.default for k in taken.knobs},
    }
    if answer["refusals"]:
        continue
    torch.set_default_device("cpu")
    repair()
    inputs = inputs_of(site.operands, site.dims[0], "randn", 4)
    defaults = {k.name: k.default for k in taken.knobs}
    (made,) = Interpreter(load_module(taken.source)).outputs(defaults, inputs)
    if not np.isfinite(made).all():
        kept = next(program.taken_otherwise(site, taken))
        answer["notes"] = kept.notes
        (made,) = Interpreter(load_module(kept.source)).outputs(defaults, inputs)
    seed = program.seed_of(site, taken)
    (wanted,), answer["work"] = seed.reference(inputs), [*product_work(seed).values()]
    if name in ("heads", "scores"):
        program._prepare_interpreter()
        _, shapes = program._seed_with_shapes(site, taken, [])
        answer["shapes"] = [shape.dims for shape in shapes]
    if name == "moved":
        run, wide = Interpreter(seed.module), [{"x": np.ones((30, n), "float32")} for n in (32, 31)]
        answer["outside"] = [len(run.outputs(defaults, one)) == 1 and run.read_outside for one in wide]
    if name == "some_rows":
        runs = Interpreter(seed.module).all([(defaults, inputs), ({}, inputs), (defaults, inputs)])
        answer["failed"] = [made is None for made in runs]
        follows = next(made for made in program.taken_otherwise(site, taken) if made.wrapper.conditions)
        answer["unlike"] = [program.seed_of(site, follows).unlike_at({"M": m, "N": 10}) for m in (30, 7)]
        answer["follows"] = (follows.source, follows.wrapper.conditions, site.reference_calls()[0])
    answer["error"] = float(np.abs(made - wanted).max() / np.abs(wanted).max())
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    request = json.dumps([str(STYLES), CALLS, part_of(load_target("h200"))])
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=request,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=tmp_path_factory.mktemp("modules"),
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("kept_rows", "first_rows", "clocked")])
def test_it_is_a_module_that_computes_the_same(answers, name):
    assert answers[name]["refusals"] == []
    assert answers[name]["error"] < (2**-8 if name in ("magnitudes", "into") else 1e-5)  # these are rounded to 16 bits


def test_a_value_read_from_a_tensor_is_loaded_by_the_kernel(answers):
    source = answers["shared"]["source"]
    assert "item" not in source and "share = 1.0 / tl.load(share_ptr0)" in source
    assert any("condition on a tensor's values is taken as met" in line for line in answers["shared"]["left_out"])


def test_heads_that_share_others_are_few_and_one_length_is_one_dimension(answers):
    shapes = answers["heads"]["shapes"]
    assert len(shapes) == 3 and all([*shape] == ["M", "N", "K", "L"] for shape in shapes)
    assert [shape["M"] // shape["L"] for shape in shapes[:2]] == [2, 2] and shapes[0]["N"] > 64


def test_products_that_no_gpu_compiles_are_not_checked_and_warps_may_be_a_parameter(answers):
    assert "num_warps=" not in answers["scores"]["source"]
    assert all(shape["N"] >= 16 for shape in answers["scores"]["shapes"])


def test_values_given_together_are_statements_unless_they_change_places(answers):
    source = answers["filled"]["source"]
    assert "    at = tl.arange(0, BLOCK)\n    slot = tl.load(" in source and "at, x = (x, at)" in source
    assert "    place = x\n    x = x + 0\n" in source, "a name is bound behind what reads it"


def test_sizes_and_grids_from_values_are_refused_together(answers):
    refusals = answers["kept_rows"]["refusals"]
    assert any("takes a size from a tensor's values" in what for what in refusals)
    assert any("grid is computed from a tensor's values" in what for what in refusals)
    assert answers["first_rows"]["refusals"] == ["it takes a size from a tensor's values"]


def test_a_pointer_that_is_assigned_anew_is_written_there_alone_and_reads_beside_it_are_seen(answers):
    assert not any("in place" in note for note in answers["moved"]["notes"])
    assert answers["moved"]["outside"] == [False, True]


def test_assembly_that_the_language_cannot_say_is_refused_once(answers):
    assert answers["clocked"]["refusals"] == ["inline assembly"]
    assert "asm" not in answers["by_assembly"]["source"]


def test_modules_are_as_the_call_has_them(answers):
    """Branches that it rules out are left out, whole powers keep their sign, a threshold is no knob."""
    source = answers["cubed"]["source"]
    assert "column" not in source and "hip" not in source and "x * x * x" in source and "exp2" not in source
    knobs = answers["cubed"]["knobs"]
    assert (knobs["BLOCK"], knobs["num_warps"]) == (512, 4) and "LARGE" not in knobs
    assert any("cache is changed in place" in note for note in answers["filled"]["notes"])


def test_products_that_a_mask_leaves_out_are_no_work(answers):
    """Of 4 x 4 tiles those on the diagonal and below; the sample's mean over four programs is exact."""
    assert answers["lower"]["work"] == [10 * 2 * 16 * 16 * 32]
    assert answers["halved"]["work"] == [0]
    assert 0 < answers["ended"]["work"][0] < 2 * 4 * 32 * 64 * 16  # of the lengths that timed calls have


def test_a_number_that_is_a_size_follows_it_and_is_guarded(answers):
    """A block that the wrapper chooses by sizes is a knob's value, and a run that fails leaves those beside it."""
    some = answers["some_rows"]
    source, conditions, call = some["follows"]
    assert "30" not in source and "x.shape[0] == 30" in conditions and call == "x, rows=x.shape[0]"
    assert some["unlike"] == ["", ""] and some["failed"] == [False, True, False]


def test_the_original_of_one_of_several_is_found():
    place = (str(STYLES), str(STYLES.parent), "styles", 'maker(factor=3)["tripled"]')
    assert tilewright_imported(*place).__name__ == "scaled"
