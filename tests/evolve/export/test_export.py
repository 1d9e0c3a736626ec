"""Tiles in other libraries' tables: rows where the kernels agree, a sentence where they do not."""

from __future__ import annotations

import dataclasses
import json

import pytest

from testkit.sample_campaign import write_sample
from tilewright.evolve.cli import main
from tilewright.evolve.export import choice as choice_module
from tilewright.evolve.export import tokamax, tpu_inference
from tilewright.evolve.export.choice import Choice, Disagreement, agreed, choices
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.fitness.evaluation import FigureKind, Verdict, WorkloadFigures
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


def choice(operator, dims, params, target="tpu7x") -> Choice:
    figures = WorkloadFigures(
        workload="w",
        seconds=2e-4,
        tflops=1.0,
        roofline_fraction=0.5,
        kind=FigureKind.MODELLED,
        model_version=3,
    )
    told = {
        "source": "tilewright 0",
        "campaign": "c-001",
        "candidate": "0123456789abcdef",
        "target": target,
        "kind": "modelled",
        "time_ms": 0.2,
        "interval_ms": [0.19, 0.21],
        "time_model": 3,
    }
    return Choice(operator, target, Workload("w", dims), params, figures, told)


def test_a_grouped_product_for_tokamax():
    (path, text), *more = tokamax.files([choice("gmm_fp8/fwd-bf16", GROUPED, TILES)]).items()
    assert path == "tpu7x/pallas_mosaic_tpu_ragged_dot.json" and not more
    ((arguments, configurations),) = json.loads(text).items()
    told = json.loads(arguments)
    assert (told["lhs"], told["rhs"]) == ("bf16[8192,2048]", "bf16[32,2048,512]")
    assert told["group_sizes"] == {"num_groups": 32, "total_size": 8192}
    ((configuration, row),) = configurations.items()
    tiles = {"tile_m": 256, "tile_k": 2048, "tile_n": 512, "input_buffer_count": 2, "combine_scopes": False}
    assert json.loads(configuration) == tiles
    assert row["evaluation_times_ms"] == [pytest.approx(0.2)]
    assert row["metadata"]["interval_ms"] == [0.19, 0.21] and row["metadata"]["kind"] == "modelled"


def test_attention_for_both():
    made = choice("flash_attention/full", HEADS, BLOCKS, "v6e")
    ((path, text),) = tokamax.files([made]).items()
    assert path == "tpu_v6_lite/pallas_mosaic_tpu_flash_attention.json"
    ((configuration, _),) = next(iter(json.loads(text).values())).items()
    told = json.loads(configuration)
    assert (told["block_q"], told["block_kv"], told["block_kv_compute"]) == (512, 1024, 256)
    assert told["use_base2_exp"] is True
    ((path, text),) = tpu_inference.files([made]).items()
    assert path == "flash_attention/tuned_params.py"
    assert "block_q=512, block_k_major=1024, block_k=256, block_b=1" in text
    assert "modelled, time model 3; 90 % 0.1900 to 0.2100" in text and "campaign c-001" in text


def test_a_grouped_product_for_tpu_inference():
    ((path, text),) = tpu_inference.files([choice("gmm_fp8/fwd-bf16", GROUPED, TILES)]).items()
    table = eval(text)  # the table is Python to paste
    assert path == "megablox/tuned_block_sizes.py"
    assert table == {(8192, 2048, 512, 32, 32, "bfloat16", "bfloat16", 2048): (256, 2048, 512)}


@pytest.mark.parametrize(
    ("files", "made", "sentence"),
    [
        (tokamax.files, ("gmm_fp8/fwd-g512", GROUPED, TILES), "other scales"),
        (tokamax.files, ("gmm_fp8/fwd-bf16", GROUPED, {**TILES, "order": "visits"}), "columns outermost"),
        (tokamax.files, ("flash_attention/causal", HEADS, {**BLOCKS, "walk": "whole"}), "by the grid"),
        (tokamax.files, ("gemm_fp8_fused/g512", {}, {}), "no kernel that computes"),
        (tpu_inference.files, ("gemm_fp8_fused/g512", {}, {}), "one scale for a whole row"),
        (tpu_inference.files, ("paged_attention/decode", {}, {}), "prompts and tokens"),
        (tpu_inference.files, ("flash_attention/full", {**HEADS, "KV": 2}, BLOCKS), "as many key heads"),
        (tpu_inference.files, ("gmm_fp8/dlhs-bf16", GROUPED, TILES), "another phase"),
    ],
)
def test_kernels_that_do_not_agree_are_refused(files, made, sentence):
    with pytest.raises(Disagreement, match=sentence):
        files([choice(*made)])


def test_tiles_of_a_kernel_that_the_search_wrote_are_refused():
    seed = load_operator("gmm_fp8/fwd-bf16").kernels["naive"].source
    made = choice("gmm_fp8/fwd-bf16", GROUPED, TILES)
    for files in (tokamax.files, tpu_inference.files):
        assert files([dataclasses.replace(made, source=seed)]) == files([made])
        with pytest.raises(Disagreement, match="that the search wrote"):
            files(
                [
                    dataclasses.replace(
                        made, source=seed.replace("import jax\n", "import jax\nUNROLLED = True\n")
                    )
                ]
            )


def test_another_target_is_refused():
    made = dataclasses.replace(choice("gmm_fp8/fwd-bf16", GROUPED, TILES), target="h200")
    with pytest.raises(Disagreement, match="h200"):
        tokamax.files([made])


def test_the_command_refuses_with_one_sentence_and_writes_nothing(tmp_path, capsys):
    write_sample(tmp_path / "home" / "campaigns" / "sample-001" / "journal.sqlite")
    home = str(tmp_path / "home")
    assert main(["--home", home, "export", "tpu-inference", "--out", str(tmp_path / "out")]) == 2
    assert "one scale for a whole row" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_of_a_promoted_winner_link_its_receipt(tmp_path):
    journal = tmp_path / "sample-001" / "journal.sqlite"
    write_sample(journal)
    assert all("receipt" not in row.provenance for row in choices(journal))
    with Journal(journal, write=True) as opened:
        index = load(opened).winner.index
        opened.add_event(
            "promoted", operator="gemm_fp8_fused/g512", version="0123456789abcdef", candidates=[index]
        )
    receipt = "kernels/gemm_fp8_fused/g512/versions/0123456789abcdef/receipt.json"
    found = choices(journal)
    assert found and all(row.provenance["receipt"] == receipt for row in found)
    row = dataclasses.replace(
        choice("gmm_fp8/fwd-bf16", GROUPED, TILES), provenance={**found[0].provenance, "target": "tpu7x"}
    )
    assert receipt in next(iter(tokamax.files([row]).values()))
    assert receipt in next(iter(tpu_inference.files([row]).values()))


def test_where_the_winner_is_another_kernel_the_fastest_that_is_theirs_is_written(tmp_path, monkeypatch):
    journal = tmp_path / "sample-001" / "journal.sqlite"
    write_sample(journal)
    with Journal(journal) as opened:
        data = load(opened)
    shapes = {f.workload for e in data.evaluations.values() for f in e.workloads} | {"4096x4096x4096"}
    known = {name: Workload(name, {"M": 1, "N": 1, "K": 1}) for name in shapes}
    monkeypatch.setattr(choice_module, "_shapes", lambda data: (load_operator(data.facts["operator"]), known))
    winner = choices(journal)[0].params

    def write(rows):
        if any(row.params == winner for row in rows):
            raise Disagreement("another kernel.")
        return {row.workload.id: repr(row.figures.seconds) for row in rows}

    files, remarks = agreed(journal, write)
    theirs = [
        figures
        for name, evaluation in data.evaluations.items()
        if evaluation.verdict is Verdict.OK and data.candidates[name].genome.params != winner
        for figures in evaluation.workloads
    ]
    assert len(files) == len(remarks) == len(shapes) - 1
    for shape, seconds in files.items():
        assert float(seconds) == min(figures.seconds for figures in theirs if figures.workload == shape)
        assert any(f"{shape}: the winner is another kernel" in remark for remark in remarks)

    def never(rows):
        raise Disagreement("another kernel.")

    with pytest.raises(Disagreement):
        agreed(journal, never)
