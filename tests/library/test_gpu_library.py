"""The library on a GPU: plans against the recipe, threads and streams, graphs, torch.compile, modules."""

import os
import shutil
from pathlib import Path

import pytest

from testkit import ROOT
from testkit.children import answer_of

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
CHILD = ROOT / "testkit" / "library" / "gpu_children.py"


def child(scenario, home, library=ROOT / "library"):
    environment = {**os.environ, "PYTHONPATH": str(library), "TILEWRIGHT_CACHE": str(home)}
    return answer_of(CHILD, scenario, environment=environment)[scenario]


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A cache of plans for all tests, so that each shape is compiled once; $TILEWRIGHT_CACHE where that is set."""
    folder = os.environ.get("TILEWRIGHT_CACHE")
    return Path(folder) if folder else tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("scenario", ["first_backward", "first_backward_through_modules"])
def test_the_first_backward_of_a_process_finds_a_context(scenario, home):
    assert min(child(scenario, home)["db"]) >= 45.0


def test_every_shape_has_the_recipes_numbers_by_plan(home):
    found = child("numbers", home)
    assert all(value >= 45.0 for values in found["db"].values() for value in values), found["db"]
    assert set(found["kinds"].values()) == {"plan"}


def test_promoted_plans_need_no_triton(home):
    found = child("without_triton", home)
    assert min(found["db"]) >= 26.0 and found["kinds"] == ["plan"] and not found["warnings"]


def test_a_damaged_pack_is_not_used(tmp_path):
    library = tmp_path / "library"
    shutil.copytree(ROOT / "library", library)
    packs = list(library.glob("*/kernels/*/gemm_nt/versions/*/plans_*.zip"))
    assert packs
    for pack in packs:
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(bytes(data))
    found = child("without_triton", tmp_path, library)
    assert min(found["db"]) >= 26.0 and "reference" in found["kinds"]
    assert sum("is not what was promoted" in text for text in found["warnings"]) == 1


def test_graphs_hold_a_step(home):
    assert child("graphs", home)["equal"] == [True, True]


def test_compiled_code_has_eagers_bits(home):
    assert child("compiled", home)["equal"] == [True] * 4


def test_an_input_that_is_quantised_once_serves_every_layer_that_reads_it(home):
    assert child("replaced", home)["equal"] == [True] * 22


def test_modules(home):
    found = child("modules", home)
    assert found["db"] >= 22.0 and found["checkpointed"] and found["gradients"] and found["emptied"]
    assert all(found["kept"]) and all(found["linear"])


def test_a_layer_that_keeps_its_weight_serves_whatever_comes(home):
    found = child("served", home)
    assert all(value >= 45.0 for values in found.values() for value in values), found


def test_ten_thousand_calls_from_many_threads(home):
    found = child("storm", home)
    assert not found["wrong"] and not found["errors"], found
    resident, device = found["growth_bytes"]
    assert device == 0 and resident < 64 << 20


def test_every_operator_can_be_loaded(home):
    assert all(min(values) >= 45.0 for values in child("loaded", home).values())
