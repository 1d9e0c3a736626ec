import importlib.util

import pytest

from tilewright.fitness.chips import CHIPS
from tilewright.workers.toolchains import libtpu_simulator

CHIP = CHIPS["tpu7x"]


def test_the_recipe_works_here():
    assert libtpu_simulator.recipe_fault(CHIP) is None


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else real(name))
    found = libtpu_simulator.recipe_fault(CHIP)
    assert found.startswith("libtpu is not installed") and "tilewright[tpu]" in found


@pytest.mark.parametrize(
    ("flag", "why"), [("--xla_no_such_flag=1", "does not know a flag"), ("", "wrote no simulator profile")]
)
def test_another_libtpu_is_recognised(monkeypatch, flag, why):
    real = libtpu_simulator.compile_environment

    def changed(folder):
        return {**real(folder), "LIBTPU_INIT_ARGS": flag}

    monkeypatch.setattr(libtpu_simulator, "compile_environment", changed)
    found = libtpu_simulator.recipe_fault(CHIP)
    assert why in found and "\n" not in found
