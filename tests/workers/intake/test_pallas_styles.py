"""Styles of public Pallas code: objects, tables of sizes, types that are not here; each traces as the original does."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from tilewright.workers.intake.pallas import program as pallas  # noqa: E402
from tilewright.workers.runners.pallas.trace import load_build  # noqa: E402

STYLES = Path(__file__).with_name("pallas_styles.py")
CALL = "f32[64, 512]"


def text_of(function: Any) -> str:
    """What a function does at the call's shape, without names and places."""
    jaxpr = str(jax.make_jaxpr(function)(jax.ShapeDtypeStruct((64, 512), "float32")))
    return re.sub(
        r"0x[0-9a-f]+|name_and_src_info=.*|name=\S+|cost_estimate=.*|debug_info=.*| at .*:\d+|out_tree=.*",
        "",
        jaxpr,
    )


@pytest.fixture(scope="module")
def original() -> ModuleType:
    sys.modules["absent_types"] = SimpleNamespace(Array=str, Float=dict)  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location("pallas_styles", STYLES)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pallas_styles"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["absent_types"], sys.modules["pallas_styles"]
    return module


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes a function in up to its module: (source, refusals)."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    sources: list[str] = []

    def kept(request: Any, source: str, *_: Any) -> dict[str, Any]:
        sources.append(source)
        return {}

    monkeypatch.setattr(pallas, "judge", kept)

    def take(name: str) -> tuple[str, list[str]]:
        request = {
            "path": str(STYLES),
            "function": name,
            "reference": "",
            "calls": [CALL],
            "folder": "",
            "part": {},
        }
        answer = pallas.answer_to(request)
        return (sources or [""])[-1], [r["what"] for r in answer["refusals"]]

    return take


def test_objects_become_dictionaries_and_their_methods_functions(taken: Any, original: ModuleType) -> None:
    source, refusals = taken("scaled")
    assert refusals == []
    assert "'columns': columns" in source and "cfg['columns']" in source, "a size keeps where it comes from"
    assert "class " not in source
    assert text_of(load_build(source)({"block": 128})) == text_of(original.scaled)


def test_of_a_call_that_fails_nothing_but_its_failure_is_told(tmp_path: Path) -> None:
    """Beside it the whole text would be judged, with branches that a call that works does not take."""
    file = tmp_path / "seven.py"
    file.write_text(
        "import jax\nfrom jax.experimental import pallas as pl\n\n\n"
        "def twice(x, options=None):\n"
        "    if x.shape[0] != 7:\n"
        '        raise ValueError(f"want 7 rows, not {x.shape[0]}")\n\n'
        "    def kernel(x_ref, o_ref):\n"
        "        o_ref[...] = x_ref[...] * 2.0\n\n"
        "    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)\n"
        "    return pl.pallas_call(kernel, out_shape=shape, **(options or {}))(x)\n"
    )
    request = {"path": str(file), "function": "twice", "calls": ["f32[8, 128]"], "reference": ""}
    told = [refusal["what"] for refusal in pallas.answer_to(request)["refusals"]]
    assert told == ["the call raises ValueError: want 7 rows, not 8"]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("below", {"block_cols": 128, "block_rows": 8}),
        ("chosen_within", {"block_cols": 256, "block_rows": 8}),
        ("asked", {"block_cols": 256}),
    ],
)
def test_block_sizes_below_the_function_and_those_it_chooses_are_knobs(
    taken: Any, original: ModuleType, name: str, params: dict[str, int]
) -> None:
    source, refusals = taken(name)
    assert refusals == []
    assert eval(re.search(r"DEFAULTS = (.*)", source)[1]) == params  # type: ignore[index]
    function = getattr(original, name)
    assert text_of(load_build(source)(params)) == text_of(function)
    assert text_of(load_build(source)({**params, "block_cols": 64})) != text_of(function)
