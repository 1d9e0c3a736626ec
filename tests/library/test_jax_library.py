"""The library as a JAX program sees it: a Pallas kernel interpreted, gradients, and the fallback without a TPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evolve.promote.shelf import Shelf
from tests.library.shelves import put

pytest.importorskip("jax")
CHILD = Path(__file__).with_name("jax_children.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    shelf = Shelf(tmp_path_factory.mktemp("fused"))
    params = {"placement": "cached", "block_k": 512, "sub_m": 256, "sub_n": 256}
    shapes = ((256, 256, 1024),)
    put(shelf, "gemm_fp8_fused/g512", "fused", shapes, serves="tpu:TPU7x", target="tpu7x", params=params)
    environment = {"PYTHONPATH": str(shelf.library), "PATH": "/usr/bin:/bin", "HOME": str(shelf.library)}
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_promoted_kernel_computes_the_recipe(found: dict[str, Any]) -> None:
    assert found["interpreted"] >= 45.0


def test_gradients_pass_straight_through(found: dict[str, Any]) -> None:
    assert found["y"] >= 26.0 and found["da"] >= 50.0 and found["dw"] >= 50.0 and found["fused_da"] >= 26.0


def test_without_a_tpu_the_reference_answers_with_one_warning(found: dict[str, Any]) -> None:
    assert found["here"] >= 60.0
    (message,) = found["warnings"]
    assert "promoted for tpu:TPU7x, not for cpu; the reference product is used" in message


def test_operands_of_another_form_are_refused(found: dict[str, Any]) -> None:
    assert len(found["refused"]) == 3 and all("gemm_fp8_fused takes" in text for text in found["refused"])
    assert not found["modules"], "JAX programs import no torch, and nothing of tilewright"
