"""Which rows a layer multiplies in FP8: what kernels take, and what was measured to be faster."""

import json
from typing import Any

import pytest

from tilewright.library import layer_rows
from tilewright.library.loaded import Dispatcher
from tilewright.seeds.gemm_fp8_blockwise.shapes import gemm_suites

TABLE: dict[str, Any] = {
    "device": "cuda:9.0",
    "host_us": {"kept": [40.0, 20.0], "infer": [40.0, 20.0], "train": [400.0, 200.0]},
    "us": {
        mode: {
            "1024x1024": {"16": [10.0, 12.0], "64": [10.0, 5.0], "256": [10.0, 20.0]},
            "8192x8192": {"16": [50.0, 100.0]},
            "512x4096": {"16": [10.0, 20.0]},
        }
        for mode in ("kept", "infer", "train")
    },
}


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(layer_rows, "measured_times", lambda: TABLE)
    monkeypatch.setattr(layer_rows, "served_rows", lambda *layer: ((0, layer_rows.ENDLESS),))
    layer_rows._faster_rows.cache_clear()
    yield
    layer_rows._faster_rows.cache_clear()


@pytest.mark.parametrize(
    ("mode", "way", "n", "k", "device", "ranges"),
    [
        ("kept", "graph", 1024, 1024, "cuda:9.0", ((0, 24), (102, layer_rows.ENDLESS))),
        ("train", "eager", 1024, 1024, "cuda:9.0", ((0, 24), (102, layer_rows.ENDLESS))),
        ("kept", "eager", 1024, 1024, "cuda:9.0", ()),
        ("kept", "eager", 6144, 8192, "cuda:9.0", ((0, layer_rows.ENDLESS),)),
        ("kept", "graph", 1024, 1024, "cuda:10.0", ((0, layer_rows.ENDLESS),)),
        ("kept", "graph", 2048, 1024, "cuda:9.0", ((0, 18), (117, layer_rows.ENDLESS))),
        ("kept", "graph", 4096, 512, "cuda:9.0", ((154, layer_rows.ENDLESS),)),
        ("train", "graph", 4096, 512, "cuda:9.0", ((0, layer_rows.ENDLESS),)),
    ],
    ids=[
        "between points",
        "training is not bound by the host",
        "the host binds",
        "nearest layer",
        "unknown device",
        "a doubling away",
        "three away",
        "turned",
    ],
)
def test_ranges_follow_the_measured_gains(known, mode, way, n, k, device, ranges):
    assert layer_rows.faster_rows(mode, way, n, k, device) == ranges


@pytest.mark.parametrize("trains", [True, False])
def test_bf16_serves_what_no_kernel_takes(trains):
    """Of Llama 3's head some rows, of a narrower layer as many as were verified, elsewhere none: not the reference."""
    mode = "train" if trains else "kept"
    (narrow,), head = (layer_rows.served_rows(trains, n, 4096, "cuda:9.0") for n in (4096, 128256))
    assert narrow[0] == 0 and narrow[1] > 32768 and all(high <= 8192 for _, high in head)
    assert layer_rows.is_faster(mode, "graph", 8192, 4096, 4096, "cuda:9.0")
    assert not layer_rows.is_faster(mode, "graph", 8192, 128256, 4096, "cuda:9.0")
    assert not layer_rows.is_faster(mode, "graph", narrow[1] + 128, 4096, 4096, "cuda:9.0")
    assert not layer_rows.faster_rows(mode, "graph", 4096, 4096, "cuda:8.0")


def test_the_shipped_table_is_of_the_kernels_that_are_shipped():
    table = layer_rows.measured_times()
    assert table and table["kind"] == "measured" and set(table["us"]) == {"kept", "infer", "train"}


@pytest.mark.parametrize(
    ("history", "counts"),
    [
        ([("promote", "b", "a", None), ("warm", "c", "b", None)], True),
        ([("promote", "b", "a", "in spite of a loss"), ("warm", "c", "b", None)], False),
        ([("promote", "c", None, None)], False),
        ([("rollback", "c", "b", None), ("promote", "b", "c", None)], False),  # no end
    ],
)
def test_times_count_for_what_was_promoted_over_what_was_measured(history, counts, tmp_path):
    place = tmp_path / layer_rows.FAMILY / "gemm_nt"
    place.mkdir(parents=True)
    keys = ("action", "version", "previous", "forced")
    index = {"format": 3, "current": "c", "history": [dict(zip(keys, e, strict=True)) for e in history]}
    (place / "index.json").write_text(json.dumps(index))
    table = {"versions": {"gemm_nt": "a"}, "us": {}}
    (place.parent / "layer_times.json").write_text(json.dumps(table))
    assert layer_rows.measured_times.__wrapped__(tmp_path) == (table if counts else {})


def test_rows_that_kernels_take():
    assert [layer_rows.whole_rows(m) for m in (1, 128, 4000)] == [128, 128, 4096]
    assert [layer_rows.whole_rows(m, False) for m in (7, 255, 257, 8191)] == [7, 255, 260, 8192]
    assert [layer_rows.takes_rows(m, True) for m in (0, 100, 128, 1023, 1024, 4000)] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.slow  # seconds to import the compiler; quicker: test_torch_library's compiled layers
def test_compiled_code_takes_the_ranges_as_constants():
    torch = pytest.importorskip("torch")

    def chosen(x):
        return x + 1 if layer_rows.is_faster("train", "graph", x.shape[0], 4096, 4096, "cuda:9.0") else x - 1

    compiled = torch.compile(chosen, backend="eager", fullgraph=True)
    assert [float(compiled(torch.zeros(rows, 1))[0, 0]) for rows in (8192, 16)] == [1.0, -1.0]


def test_the_shipped_product_serves_every_shape_of_its_suites():
    table = Dispatcher().table("gemm_fp8_blockwise/gemm_nt", "cuda:9.0")
    for suite in gemm_suites().values():
        assert all(table.choose(tuple(workload.dims.values())).kernel for workload in suite.workloads)
