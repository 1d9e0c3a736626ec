"""Functions of somebody's file, taken in by the child that does it."""

import ml_dtypes
import numpy as np
import pytest

from tests.evolve.intake import kernels
from tilewright.evolve.campaign.config import load_config
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.intake import folder, preflight, tune
from tilewright.fitness.dialect import check
from tilewright.fitness.gates import failure, read_gates
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import Operand, Result, TakenOperator

CALL = "bf16[4096, 512], eps=1e-6"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return kernels.write(tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="module")
def taken(files):
    request = tune.Request(files / "mine.py", "group_norm", f"{files}/plain.py:group_norm", (CALL,))
    return request, tune.ask_intake(request, load_target("interpreter"))


def test_a_wrapper_becomes_a_module_of_the_dialect(taken):
    _, answer = taken
    assert check(answer["source"], entry="launch") == []
    assert "launch(inputs, params)" in answer["source"] and "cuda" not in answer["source"]


def test_what_tiles_is_a_knob_and_what_means_something_is_not(taken):
    _, answer = taken
    assert set(answer["space"]) == {"BLOCK", "num_warps"}
    assert len(answer["space"]["BLOCK"]) > 2
    group = next(row for row in answer["fixed"] if row["value"] == 32)
    assert "meaning" in group["why"]


def test_its_folder_is_an_operator_that_judges(taken, tmp_path):
    request, answer = taken
    where = tmp_path / "group_norm_tuned"
    folder.write(where, "group_norm", request.reference, answer)
    config = tune.config_of(request, load_target("interpreter"), where, {"budget.evaluations": 2})
    resolved = resolve(config)
    operator = load_operator(config.operator)
    shape = resolved.suite.check[0]
    inputs = operator.make_inputs(shape, 1, "randn")
    truth = operator.oracle(shape, inputs)["o0"]["o0"]
    x = inputs["x"].astype(np.float64).reshape(len(truth), -1, 32)
    exact = (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)).reshape(truth.shape)
    np.testing.assert_allclose(truth, exact, rtol=1e-12)
    assert operator.gates[0].min_db >= 40
    overrides = {"budget.evaluations": 2, "budget.wall_seconds": None}
    folder.write_campaign(where, tune.config_data(request, load_target("interpreter"), overrides))
    assert "runs at" in preflight.interpreter_line(answer) and ", not " in preflight.interpreter_line(answer)
    goes_on = load_config(where / folder.CAMPAIGN, {})
    assert resolve(goes_on).operator.name == operator.name and goes_on == config.model_copy(
        update={"operator": goes_on.operator}
    )


def _group_norm(x, mistake):
    """The fixture's kernel in float32, honest or with one mistake a kernel may have."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    squares = groups * groups
    if mistake == "race":  # one of 32 partial sums is overwritten by another
        squares[..., 7] = squares[..., 8]
    mean = squares.mean(axis=0 if mistake == "axis" else -1, keepdims=True)
    scale = 1 / np.sqrt(mean + 1e-6)
    if mistake == "stale":  # the scale of the group before
        scale = np.roll(scale, 1, axis=1)
    made = (groups * scale).reshape(x.shape).astype(x.dtype)
    if mistake == "tail":
        made[-1] = 0
    if mistake == "precision":
        made = made.astype(ml_dtypes.float8_e4m3fn).astype(x.dtype)
    return made


@pytest.mark.parametrize("mistake", ["", "tail", "axis", "stale", "precision", "race"])
def test_the_derived_judge_refuses_a_planted_mistake(taken, mistake):
    request, answer = taken
    shape = Workload("check", answer["check"][0])
    operands = tuple(Operand(*row[:2], tuple(row[2]), *row[3:]) for row in answer["operands"])
    results = tuple(Result(*row[:2], tuple(row[2]), *row[3:]) for row in answer["results"])
    operator = TakenOperator(
        "a/b", request.reference, answer["call"], operands, results, {}, {}, spread=answer["spread"]
    )
    failures = []
    for kind in answer["kinds"]:
        inputs = operator.make_inputs(shape, 3, kind)
        outputs = {"o0": _group_norm(inputs["x"], mistake)}
        readings = read_gates(operator.gates, outputs, operator.oracle(shape, inputs), kind)
        failures.append(failure(readings, operator.gates))
    assert any(failures) == bool(mistake)


def test_what_torch_computes_around_a_kernel_becomes_kernels(files):
    """On a transposed view; halves, a sum over rows, a cast and a quotient are torch's in the wrapper."""
    request = tune.Request(
        files / "mine.py", "column_means", f"{files}/plain.py:column_means", ("f32[96, 70].permute(1, 0)",)
    )
    answer = tune.ask_intake(request, load_target("interpreter"))
    launch = answer["source"][answer["source"].index("def launch") :]
    assert "torch_sum_float32_columns_1d[" in launch and "torch_div_float32_flat_c[" in launch
    assert answer["operands"][0][2] == ["M", "N"] and answer["orders"] == [[1, 0]]
    assert sum("becomes a kernel" in note for note in answer["notes"]) >= 3
    tiled = next(line for line in launch.splitlines() if " scale[" in line)
    assert tiled.count("BLOCK") == 2  # the grid's own 256 follows the block that it repeats
    assert len(answer["space"]["BLOCK"]) > 2 and not any("again" in name for name in answer["space"])


def test_a_kernel_that_is_wrong_is_told_so_with_its_worst_element(files):
    request = tune.Request(files / "mine.py", "wrong_group_norm", f"{files}/plain.py:group_norm", ("f32[64, 64]",))
    with pytest.raises(tune.IntakeRefused, match=r"element \[\d+, \d+\] is .* where the reference says"):
        tune.ask_intake(request, load_target("interpreter"))


def test_without_a_reference_the_function_as_it_stands_is_the_judge(files, tmp_path):
    request = tune.Request(files / "mine.py", "group_norm", SELF, ("bf16[64, 64], eps=1e-6",))
    answer = tune.ask_intake(request, load_target("interpreter"))
    assert answer["precision"] in ("float64", "float32") and answer["call"] == "x=x"
    assert len(answer["dims"][0]) == 2, "two axes of one size need not be one dimension"
    assert "the original kernel" in "\n".join(preflight.lines(answer, SELF, "here"))
    where = tmp_path / "own"
    folder.write(where, "group_norm", SELF, answer)
    operator = load_operator(f"{where}/{folder.RECIPE}")
    shape = operator.suites[folder.SMALL].check[0]
    inputs = operator.make_inputs(shape, 1, "randn")
    truth = operator.oracle(shape, inputs)["o0"]["o0"]
    np.testing.assert_allclose(truth, _group_norm(inputs["x"], "").astype(np.float64), rtol=2e-2, atol=1e-2)
    gate = operator.gates[0]
    for mistake, passes in (("", True), ("tail", False), ("stale", False)):
        made = {"o0": _group_norm(inputs["x"], mistake)}
        found = failure(read_gates([gate], made, {"o0": {"o0": truth}}, "randn"), [gate])
        assert (found is None) is passes, mistake
