"""A campaign's candidates as rows of other programs' tables: rows where the kernels agree, a sentence elsewhere."""

from __future__ import annotations

import dataclasses
import json

import pytest

from testkit.evaluations import figures
from testkit.sample_campaign import write_sample
from tilewright.evolve.export.choice import Choice, Disagreement, SearchedCampaign
from tilewright.evolve.export.tpu_tables import tokamax_files, tpu_inference_files
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.seeds.operator import Workload

GROUPED = {"M": 8192, "N": 512, "K": 2048, "G": 32}
TILES = {"block_m": 256, "block_n": 1024, "block_k": 2048, "sub_m": 256, "sub_n": 1024, "order": "columns"}
HEADS = {"H": 8, "KV": 8, "S": 1024, "T": 2048, "D": 128}
BLOCKS = {
    "walk": "grid",
    "block_q": 512,
    "block_k": 1024,
    "sub_q": 512,
    "sub_k": 256,
    "mask": "all",
    "exponent": "exp2",
}
PLAIN = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 4, "group_m": 8, "skew": False}
PROVENANCE = {
    "source": "tilewright 0", "campaign": "c-001", "candidate": "0123456789abcdef", "target": "tpu7x",
    "kind": "modelled", "time_ms": 0.2, "interval_ms": [0.19, 0.21], "time_model": 3,
}  # fmt: skip


def choice(operator, dims, params, target="tpu7x") -> Choice:
    return Choice(
        operator, target, Workload("w", dims), params, figures(seconds=2e-4, model_version=3), PROVENANCE
    )


def test_a_grouped_product_for_both():
    ((path, text),) = tokamax_files([choice("gmm_fp8/fwd-bf16", GROUPED, TILES)]).items()
    assert path == "tpu7x/pallas_mosaic_tpu_ragged_dot.json"
    ((arguments, configurations),) = json.loads(text).items()
    read = json.loads(arguments)
    assert (read["lhs"], read["rhs"]) == ("bf16[8192,2048]", "bf16[32,2048,512]")
    assert read["group_sizes"] == {"num_groups": 32, "total_size": 8192}
    ((configuration, row),) = configurations.items()
    tiles = {"tile_m": 256, "tile_k": 2048, "tile_n": 512, "input_buffer_count": 2, "combine_scopes": False}
    assert json.loads(configuration) == tiles
    assert row["evaluation_times_ms"] == [pytest.approx(0.2)] and row["metadata"] == PROVENANCE
    ((path, text),) = tpu_inference_files([choice("gmm_fp8/fwd-bf16", GROUPED, TILES)]).items()
    assert path == "megablox/tuned_block_sizes.py"
    assert eval(text) == {(8192, 2048, 512, 32, 32, "bfloat16", "bfloat16", 2048): (256, 2048, 512)}


def test_attention_for_both():
    made = choice("flash_attention/full", HEADS, BLOCKS, "v6e")
    ((path, text),) = tokamax_files([made]).items()
    assert path == "tpu_v6_lite/pallas_mosaic_tpu_flash_attention.json"
    ((configuration, _),) = next(iter(json.loads(text).values())).items()
    read = json.loads(configuration)
    assert (read["block_q"], read["block_kv"], read["block_kv_compute"]) == (512, 1024, 256)
    assert read["use_base2_exp"] is True
    ((path, text),) = tpu_inference_files([made]).items()
    assert path == "flash_attention/tuned_params.py"
    assert "block_q=512, block_k_major=1024, block_k=256, block_b=1" in text
    assert "modelled, time model 3; 90 % 0.1900 to 0.2100" in text and "campaign c-001" in text


@pytest.mark.parametrize(
    ("files", "made", "sentence"),
    [
        (tokamax_files, ("gmm_fp8/fwd-g512", GROUPED, TILES), "other scales"),
        (tokamax_files, ("gmm_fp8/tgmm-bf16", GROUPED, TILES), "walks groups innermost"),
        (tokamax_files, ("gmm_fp8/fwd-bf16", GROUPED, {**TILES, "order": "visits"}), "columns outermost"),
        (tokamax_files, ("gmm_fp8/fwd-bf16", GROUPED, TILES, "h200"), "h200"),
        (tokamax_files, ("flash_attention/causal", HEADS, {**BLOCKS, "walk": "whole"}), "by the grid"),
        (tokamax_files, ("gemm_fp8_fused/g512", {}, {}), "no kernel that computes"),
        (tpu_inference_files, ("gemm_fp8_fused/g512", {}, {}), "one scale for a whole row"),
        (tpu_inference_files, ("paged_attention/decode", {}, {}), "prompts and tokens"),
        (tpu_inference_files, ("flash_attention/full", {**HEADS, "KV": 2}, BLOCKS), "as many key heads"),
        (
            tpu_inference_files,
            ("flash_attention/full", HEADS, {**BLOCKS, "mask": "edges"}),
            "every score masked",
        ),
        (tpu_inference_files, ("gmm_fp8/dlhs-bf16", GROUPED, TILES), "another phase"),
        (tpu_inference_files, ("gmm_fp8/fwd-bf16", GROUPED, {**TILES, "sub_m": 128}), "in one dot"),
    ],
)
def test_kernels_that_do_not_agree_are_refused(files, made, sentence):
    with pytest.raises(Disagreement, match=sentence):
        files([choice(*made)])


def test_rows_of_a_promoted_winner_link_its_receipt(tmp_path):
    journal = write_sample(tmp_path / "sample-001" / "journal.sqlite")
    assert all("receipt" not in row.provenance for row in SearchedCampaign.read(journal).winner())
    with Journal(journal, write=True) as opened:
        promotion = {"operator": "gemm_fp8_fused/g512", "version": "0123456789abcdef"}
        opened.add_event("promoted", **promotion, candidates=[load(opened).winner.index])
    receipt = "kernels/gemm_fp8_fused/g512/versions/0123456789abcdef/receipt.json"
    found = SearchedCampaign.read(journal).winner()
    assert found and all(row.provenance["receipt"] == receipt for row in found)
    row = dataclasses.replace(choice("gmm_fp8/fwd-bf16", GROUPED, TILES), provenance=found[0].provenance)
    assert receipt in next(iter(tokamax_files([row]).values()))
    assert receipt in next(iter(tpu_inference_files([row]).values()))
