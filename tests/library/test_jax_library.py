"""The shipped library as a JAX program sees it: kernel interpreted, gradients, the fallback without a TPU."""

import pytest

from testkit import ROOT
from testkit.children import answer_of
from tilewright.evolve.promote.library_writer import LibraryWriter

pytest.importorskip("jax")
OPERATOR = "gemm_fp8_fused/g512"
SHELF = LibraryWriter(ROOT / "library")
CHILD = ROOT / "testkit" / "library" / "jax_children.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return child(tmp_path_factory.mktemp("home"))


def child(home, *scenarios):
    """What the library did in a fresh process; more of it with ``devices``."""
    environment = {
        "PYTHONPATH": str(SHELF.library),
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "VERSION": str(SHELF.place(OPERATOR) / "versions" / SHELF.version(OPERATOR)[0]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "NPROC": "8",  # threads of XLA's pool: interpreted kernels of several devices wait for each other
    }
    return answer_of(CHILD, *scenarios, environment=environment)


def test_the_promoted_kernel_computes_the_recipe(found):
    assert found["interpreted"] >= 45.0
    assert found["generated"] >= 45.0, "what the version's checks ask"


def test_gradients_pass_straight_through(found):
    assert found["y"] >= 26.0 and found["da"] >= 50.0 and found["dw"] >= 50.0 and found["fused_da"] >= 26.0


@pytest.mark.slow
def test_jit_grad_and_shard_map_over_several_devices(tmp_path):
    found = child(tmp_path, "devices")
    sharded = found["sharded"]
    assert sharded["devices"] == 2
    assert sharded["y"] >= 60.0 and sharded["interpreted"] >= 45.0, "every row where it belongs"
    assert sharded["da"] >= 50.0 and sharded["dw"] >= 50.0 and found["jitted"] >= 26.0


def test_without_a_tpu_the_reference_answers_with_one_warning(found):
    assert found["here"] >= 60.0
    (message,) = found["warnings"]
    assert "promoted for tpu:TPU7x, not for cpu; the reference answers" in message


def test_operands_of_another_form_are_refused(found):
    assert len(found["refused"]) == 3 and all("gemm_fp8_fused takes" in text for text in found["refused"])
    assert not found["modules"], "JAX programs import no torch, and nothing of tilewright"
