"""The campaign that ``tune`` makes of a function."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from testkit import warm_intake
from tilewright.evolve.campaign.loop import Order
from tilewright.evolve.cli import main
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import child, tune
from tilewright.evolve.intake.child import calls_of_files, default_target
from tilewright.evolve.intake.tune import COMPILE_SECONDS, IN_FLIGHT, Request, config_of, output_folder
from tilewright.fitness.targets import load_target
from tilewright.workers.cluster.pool import MEASURING_THREADS

REQUEST = Request(Path("kernels.py"), "Row.apply", "torch.softmax", ("f32[8, 8]",))


def test_a_gpu_is_kept_fed_and_an_interpreter_is_not(tmp_path):
    on_gpu = config_of(REQUEST, load_target("h200"), tmp_path)
    assert on_gpu.search.order is Order.ARRIVAL and on_gpu.workers.measure_seconds == COMPILE_SECONDS
    assert on_gpu.search.lag == on_gpu.workers.count and IN_FLIGHT[0] <= on_gpu.search.lag <= IN_FLIGHT[1]
    assert on_gpu.search.lag <= MEASURING_THREADS, "so that it needs no Ray"
    assert (on_gpu.name, on_gpu.suite, on_gpu.budget.evaluations) == ("row", "calls", 64)
    changed = config_of(REQUEST, load_target("h200"), tmp_path, {"search.lag": 3, "budget.evaluations": 5})
    assert (changed.search.lag, changed.search.order, changed.budget.evaluations) == (3, Order.ARRIVAL, 5)
    interpreted = config_of(REQUEST, load_target("interpreter"), tmp_path)
    assert (interpreted.search.lag, interpreted.search.order, interpreted.suite) == (4, Order.INDEX, "small")


def test_what_an_earlier_tune_wrote_is_never_replaced_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_folder("row", "row_apply", None, False) == Path("row_tuned")
    for number in (1, 2):  # a folder of the user's own program counts as well as an operator
        folder = tmp_path / ("row_tuned" if number == 1 else f"row_tuned_{number}")
        folder.mkdir()
        (folder / ("operator.py" if number == 1 else "row_apply.py")).write_text("edited\n")
    assert output_folder("row", "row_apply", None, False) == Path("row_tuned_3")
    assert output_folder("row", "row_apply", None, True) == Path("row_tuned")
    with pytest.raises(UserError, match=r"--out: row_tuned holds operator.py, .* or add --overwrite"):
        output_folder("row", "row_apply", Path("row_tuned"), False)
    assert output_folder("row", "row_apply", Path("row_tuned"), True) == Path("row_tuned")
    third = tmp_path / "row_tuned_3"
    monkeypatch.setattr(tune, "ask_intake", lambda *_: third.mkdir() or {"asked": REQUEST})
    for part in ("preflight", "_say_rewrites"):
        monkeypatch.setattr(tune, part, MagicMock())
    with pytest.raises(UserError, match="another tune has written"):
        tune.prepare(REQUEST, load_target("interpreter"), third, print)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("from jax.experimental import pallas as pl\n", "tpu7x"),
        ("import jax.experimental.pallas.tpu as pltpu\n", "tpu7x"),
        ("\ufefffrom jax.experimental import pallas\r\n", "tpu7x"),
        ("import triton\n", None),
        ("from jax.experimental import pallas\nimport triton.language as tl\n", None),
        ("def broken(:\n", None),
    ],
)
def test_a_file_of_pallas_means_tpu7x(tmp_path, text, target):
    (tmp_path / "mine.py").write_text(text)
    assert default_target(f"{tmp_path}/mine.py:f") == default_target(f"{tmp_path}/mine.py") == target
    assert default_target("gone.py:f") is None


def test_a_missing_package_is_one_line_to_run(tmp_path, monkeypatch):
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    monkeypatch.setattr(child, "Intake", warm_intake.Intake)  # one that imports anew
    (tmp_path / "mine.py").write_text("def f(x):\n    return x\n")
    with pytest.raises(UserError, match=r"^jax is not installed; pip install 'tilewright\[tpu\]'\.$"):
        child.ask(tmp_path / "mine.py", None, "", (), load_target("tpu7x"), child.PALLAS)


def test_calls_of_a_file_are_asked_of_a_process_of_their_own(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "mine.py"
    file.write_text("print('noise')\ncalls = ['f32[4]', 'f32[8], dim=1']\n")
    assert calls_of_files([str(file), str(file)], file) == ["f32[4]", "f32[8], dim=1"]
    with pytest.raises(UserError, match="names no file"):
        calls_of_files([str(tmp_path / "gone.py")], file)
    file.write_text("class Norm:\n    scale = 2.0\n\ncalls = [(Norm(), 1)]\n")
    with pytest.raises(UserError, match="a class of this file is an argument's; put it into a module"):
        calls_of_files([str(file)], file)
    file.write_text("calls = [(]\n")
    with pytest.raises(UserError, match="that file may be written for a newer one"):
        calls_of_files([str(file)], file)


@pytest.mark.parametrize(
    ("refusal", "why", "code", "sentence"),
    [
        ("", "", 0, "jaxed.py:double can be tuned: it passes as a campaign's seed"),
        ("", "is off by 3", 2, "cannot be tuned: as a campaign's seed it is off by 3"),
        ("the call raises NameError: unbound axis name: data", "", 2, "Remedy: name the function that one device runs"),
        ("it does not lower for tpu7x: MLIRError: slice", "", 2, "Remedy: give shapes that the kernel takes on a TPU"),
    ],
)
def test_check_says_of_a_pallas_function_what_its_campaign_will_say(
    tmp_path, monkeypatch, capsys, refusal, why, code, sentence
):
    file = tmp_path / "jaxed.py"
    file.write_text("from jax.experimental import pallas as pl\n")
    asked: list[tuple[str, str]] = []

    def answered(*request, **_):
        asked.append((str(request[2]), str(request[5])))
        return {"refusals": [{"line": 0, "what": refusal}] if refusal else []}

    monkeypatch.setattr(child, "ask", answered)
    monkeypatch.setattr("tilewright.evolve.intake.seed_verdict.seed_failure", lambda *_: why)
    for shown in ("screen", "rewrites"):
        monkeypatch.setattr(f"tilewright.evolve.intake.preflight.{shown}", lambda *_: ["space      1 point"])
    assert main(["check", f"{file}:double", "--args", "f32[8, 128]"]) == code
    out = capsys.readouterr().out
    assert sentence in out and ("space" in out) == (code == 0)
    assert asked == [("itself", child.PALLAS)]


def test_a_winner_of_a_package_with_absent_parts_is_tried_on_the_tpu_that_it_asks_for(tmp_path):
    pytest.importorskip("jax")
    package = tmp_path / "mypkg_of_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("from not_installed_here import logger\nROWS = 8\n")
    (package / "mine.py").write_text("from mypkg_of_kernels.sizes import ROWS\n")
    winner = tmp_path / "double.py"
    winner.write_text(
        "from mypkg_of_kernels.sizes import ROWS\nfrom jax.experimental.pallas import tpu as pltpu\n\n"
        f"SERVED = {{'original': ('', {str(tmp_path)!r}, '', ''), 'gradients': (False, False)}}\n"
        "tilewright_original = None\n\n\n"
        "def double(x):\n    assert (pltpu.get_tpu_info().generation, ROWS) == (7, 8)\n    return x * 2\n"
    )
    request = Request(package / "mine.py", "double", "itself", ("f32[8, 128]",))
    answer = {"operands": [["x", "float32", ["M", "N"]]], "check": [], "dims": [{"M": 8, "N": 128}]}
    target = load_target("tpu7x")
    with child.started_trial(target) as trial:
        assert child.try_winner(winner, request, answer, target, trial) == ""
