import importlib.util

import pytest

from fitness.chips import CHIPS
from workers import recipe

CHIP = CHIPS["tpu7x"]


def test_the_recipe_works_here():
    assert recipe.recipe_fault(CHIP) is None


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else real(name))
    found = recipe.recipe_fault(CHIP)
    assert found.startswith("libtpu is not installed") and "tilewright[tpu]" in found


@pytest.mark.parametrize(
    ("flag", "why"),
    [("--xla_no_such_flag=1", "does not know a flag"), ("", "wrote no simulator profile")],
)
def test_another_libtpu_is_recognised(monkeypatch, flag, why):
    real = recipe.compile_environment

    def changed(folder):
        return {**real(folder), "LIBTPU_INIT_ARGS": flag}

    monkeypatch.setattr(recipe, "compile_environment", changed)
    found = recipe.recipe_fault(CHIP)
    assert why in found and "\n" not in found
