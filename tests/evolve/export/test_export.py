"""A campaign's candidates as rows of other programs' tables: rows where the kernels agree, a sentence elsewhere."""

from __future__ import annotations

import dataclasses
import json

import pytest

from testkit.evaluations import candidate, figures, passed
from testkit.sample_campaign import write_sample
from tilewright.evolve.cli import main
from tilewright.evolve.export import block_fp8
from tilewright.evolve.export.choice import Choice, Disagreement, SearchedCampaign
from tilewright.evolve.export.tpu_tables import tokamax_files, tpu_inference_files
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import FigureKind, Verdict
from tilewright.seeds.catalogue import load_operator
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


def test_tiles_of_a_kernel_that_the_search_wrote_are_refused():
    seed = load_operator("gmm_fp8/fwd-bf16").kernels["naive"].source
    made = choice("gmm_fp8/fwd-bf16", GROUPED, TILES)
    written = dataclasses.replace(made, source=seed.replace("import jax\n", "import jax\nUNROLLED = True\n"))
    for files in (tokamax_files, tpu_inference_files):
        assert files([dataclasses.replace(made, source=seed)]) == files([made])
        with pytest.raises(Disagreement, match="that the search wrote"):
            files([written])


def test_the_command_refuses_with_one_sentence_and_writes_nothing(tmp_path, capsys):
    write_sample(tmp_path / "home" / "campaigns" / "sample-001" / "journal.sqlite")
    out = str(tmp_path / "out")
    assert main(["--home", str(tmp_path / "home"), "export", "tpu-inference", "--out", out]) == 2
    assert "one scale for a whole row" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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


def test_where_the_winner_is_another_kernel_the_fastest_accepted_one_is_written(tmp_path):
    campaign = SearchedCampaign.read(write_sample(tmp_path / "sample-001" / "journal.sqlite"))
    data = campaign.data
    searched = {f.workload for e in data.evaluations.values() for f in e.workloads}
    known = {name: Workload(name, {"M": 1, "N": 1, "K": 1}) for name in (*searched, "4096x4096x4096")}
    campaign = dataclasses.replace(campaign, workloads=known)
    winner = campaign.winner()[0].params

    def write(rows):
        if any(row.params == winner for row in rows):
            raise Disagreement("another kernel.")
        return {row.workload.id: repr(row.figures.seconds) for row in rows}

    files, remarks = campaign.winner_or_fastest(write)
    others = [
        figures
        for name, evaluation in data.evaluations.items()
        if evaluation.verdict is Verdict.OK and data.candidates[name].genome.params != winner
        for figures in evaluation.workloads
    ]
    assert files.keys() == searched and len(remarks) == len(searched)
    for shape, seconds in files.items():
        assert float(seconds) == min(figures.seconds for figures in others if figures.workload == shape)
        assert any(f"{shape}: the winner is another kernel" in remark for remark in remarks)

    def never(rows):
        raise Disagreement("another kernel.")

    with pytest.raises(Disagreement):
        campaign.winner_or_fastest(never)


def searched(path, kernels, operator=block_fp8.OPERATOR):
    """A journal of candidates of the plain kernel: parameters beside its defaults, seconds on one shape."""
    seed = load_operator(block_fp8.OPERATOR).kernels["pointer"]
    path.parent.mkdir(parents=True)
    with Journal(path, write=True, create=True) as journal:
        facts = {"id": "c-001", "operator": operator, "target": "h200", "suite": "primus-core", "seeds": []}
        journal.set_meta("campaign", {**facts, "target_kind": "measured"})
        journal.set_meta("toolchain", {"triton": "3.6.0"})
        journal.add_event("started")
        for index, (params, seconds) in enumerate(kernels):
            made = candidate(index, Genome(seed.source, {**PLAIN, **params}))
            timed = figures("llama3.1-8b/25", seconds, kind=FigureKind.MEASURED)
            journal.add_candidate(made)
            found = passed(made.genome, timed, interval=(1.0, 1.0), toolchain={"device": "NVIDIA H200"})
            journal.add_evaluation(index, found)
    return path


def test_rows_of_a_campaign_are_its_fastest_with_the_plain_kernel(tmp_path):
    tried = [({"block_m": 64}, 3e-4), ({"block_m": 128}, 2e-4), ({"block_m": 128, "skew": True}, 1e-4)]
    journal = searched(tmp_path / "c-001" / "journal.sqlite", tried)
    rows, receipts = (json.loads(text) for text in block_fp8.of_campaign(journal, "vllm").values())
    ((rows_of_m, row),) = rows.items()
    assert rows_of_m == "8192" and row["BLOCK_SIZE_M"] == 128
    assert receipts["8192"]["time_ms"] == pytest.approx(0.2) and receipts["8192"]["campaign"] == "c-001"
    for name, kernels, operator, said in (
        ("c-002", tried[2:], block_fp8.OPERATOR, "no candidate of c-002 is"),
        ("c-003", tried, "gemm_fp8_blockwise/gemm_nt_rows", "for gemm_fp8_blockwise/gemm_nt alone"),
    ):
        with pytest.raises(Disagreement, match=said):
            block_fp8.of_campaign(searched(tmp_path / name / "journal.sqlite", kernels, operator), "vllm")
