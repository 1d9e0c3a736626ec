"""Rows of two TPU libraries' tables of tuned tiles: tokamax's autotuning cache and tpu-inference's block sizes.

A winner's tiles are written only where the library's kernel has the schedule for which they were tuned. Both grouped
products walk columns outermost and multiply a tile in one dot. Both flash attentions walk blocks of keys by the grid;
tokamax's masks whole sub-tiles, tpu-inference's every score. tpu-inference's paged attention serves prompts and tokens
in one kernel, and its quantised product scales a whole row of activations: no kernel here works like these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tilewright.evolve.export.choice import Choice, Disagreement, require_seed

_DEVICES = {"tpu7x": "tpu7x", "v6e": "tpu_v6_lite", "v5e": "tpu_v5_lite"}
"""tokamax's names of our targets."""

_CONTRACTED = {"fwd": [[[1], [1]], [[], []]], "dlhs": [[[1], [2]], [[], []]]}
_DEFAULT = ["DEFAULT", "DEFAULT"]
_NO_TABLE = {
    "paged_attention": "tpu-inference's paged attention serves prompts and tokens in one kernel, whose blocks of "
    "queries no kernel here has.",
    "gemm_fp8_fused": "tpu-inference's quantised product has one scale for a whole row of activations, not one for "
    "each group along K.",
}

CacheRow = tuple[str, dict[str, Any], dict[str, Any]]
"""tokamax: the kernel's file, its arguments and its configuration."""


def tokamax_files(choices: Sequence[Choice]) -> dict[str, str]:
    """JSON of arguments to configurations, a file for each kernel and device, by path below
    ``tokamax/data/autotuning``. Raises Disagreement."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for choice in choices:
        if choice.target not in _DEVICES:
            raise Disagreement(f"tokamax keeps no tiles of {choice.target}; it has {', '.join(_DEVICES)}.")
        rows = {"gmm_fp8": _tokamax_grouped, "flash_attention": _tokamax_attention}
        if choice.family not in rows:
            raise Disagreement(
                f"tokamax has no kernel that computes {choice.operator}; operators of {', '.join(rows)} can be "
                "exported."
            )
        require_seed(choice)
        kernel, arguments, configuration = rows[choice.family](choice)
        row = {
            "compile_time_ms": None,
            "lower_time_ms": None,
            "evaluation_times_ms": [choice.figures.seconds * 1e3],
            "metadata": dict(choice.provenance),
        }
        table = tables.setdefault(f"{_DEVICES[choice.target]}/{kernel}.json", {})
        table[_compact(arguments)] = {_compact(configuration): row}
    return {path: json.dumps(table, indent=2) + "\n" for path, table in tables.items()}


def tpu_inference_files(choices: Sequence[Choice]) -> dict[str, str]:
    """Entries of Python dicts to paste, a file for each kernel, by path below ``tpu_inference/kernels``.

    Raises Disagreement.
    """
    tables: dict[str, list[str]] = {}
    for choice in choices:
        rows = {"flash_attention": _tpu_inference_attention, "gmm_fp8": _tpu_inference_grouped}
        if choice.family not in rows:
            raise Disagreement(
                _NO_TABLE.get(choice.family)
                or f"tpu-inference has no table for {choice.operator}; operators of {', '.join(rows)} can be exported."
            )
        require_seed(choice)
        path, entry = rows[choice.family](choice)
        tables.setdefault(path, []).append(f"    # {_comment(choice)}\n    {entry},\n")
    return {path: "{\n" + "".join(entries) + "}\n" for path, entries in tables.items()}


def _grouped_tiles(choice: Choice, program: str) -> tuple[int, int, int]:
    """Tiles along M, the contracted dimension and the other one. Raises Disagreement."""
    params, d = choice.params, choice.workload.dims
    deep, wide = (d["N"], d["K"]) if "/dlhs" in choice.operator else (d["K"], d["N"])
    tiles = params["block_m"], min(deep, params["block_k"]), min(wide, params["block_n"])
    if params["order"] != "columns" or params["sub_m"] < tiles[0] or params["sub_n"] < tiles[2]:
        raise Disagreement(
            f"{program}'s grouped product walks columns outermost and multiplies a tile in one dot; the winner has "
            f"order {params['order']} and dots of {params['sub_m']} x {params['sub_n']}."
        )
    return tiles


def _attention_blocks(choice: Choice, program: str, *, all_masked: bool) -> tuple[int, int, int]:
    """Blocks of queries, of keys, and of keys in one dot. Raises Disagreement."""
    params, d = choice.params, choice.workload.dims
    block_q, block_k = min(params["block_q"], d["S"]), min(params["block_k"], d["T"])
    walk, mask = params.get("walk", "grid"), params.get("mask", "all")
    sub_q = params.get("sub_q", params["block_q"])
    if walk != "grid" or sub_q < block_q or (all_masked and mask != "all"):
        raise Disagreement(
            f"{program}'s flash attention walks blocks of keys by the grid, with all queries of a block at once"
            f"{' and every score masked' if all_masked else ''}; the winner has walk {walk}, mask {mask} and "
            f"sub-tiles of {sub_q} queries."
        )
    return block_q, block_k, min(params.get("sub_k", block_k), block_k)


def _tokamax_grouped(choice: Choice) -> CacheRow:
    phase, _, recipe = choice.operator.partition("/")[2].partition("-")
    if recipe != "bf16":
        raise Disagreement(
            f"tokamax's grouped product takes other scales than {choice.operator}; bf16 recipes can be exported."
        )
    if phase not in _CONTRACTED:
        raise Disagreement(
            "tokamax's gradient of the matrices walks groups innermost, as no kernel here does."
        )
    tile_m, tile_k, tile_n = _grouped_tiles(choice, "tokamax")
    d = choice.workload.dims
    m, n, k, groups = d["M"], d["N"], d["K"], d["G"]
    arguments = {
        "lhs": f"bf16[{m},{k if phase == 'fwd' else n}]",
        "rhs": f"bf16[{groups},{k},{n}]",
        "group_sizes": {"num_groups": groups, "total_size": m},
        "ragged_dot_dimension_numbers": {
            "dot_dimension_numbers": _CONTRACTED[phase],
            "lhs_ragged_dimensions": [0],
            "rhs_group_dimensions": [0],
        },
        "precision": _DEFAULT,
        "preferred_element_type": None,
        "return_residuals": False,
        "activation": None,
    }
    tiles = {"tile_m": tile_m, "tile_k": tile_k, "tile_n": tile_n}
    return (
        "pallas_mosaic_tpu_ragged_dot",
        arguments,
        {**tiles, "input_buffer_count": 2, "combine_scopes": False},
    )


def _tokamax_attention(choice: Choice) -> CacheRow:
    d = choice.workload.dims
    block_q, block_k, sub_k = _attention_blocks(choice, "tokamax", all_masked=False)
    configuration = {
        "block_q": block_q,
        "block_kv": block_k,
        "block_kv_compute": sub_k,
        "q_layout": 1,
        "k_layout": 1,
        "v_layout": 1,
        "use_experimental_scheduler": False,
        "use_base2_exp": choice.params.get("exponent") == "exp2",
    }
    ends = dict.fromkeys(("bool_mask", "q_start", "q_end", "k_start", "k_end"))
    arguments = {
        "q": f"bf16[1,{d['S']},{d['H']},{d['D']}]",
        "k": f"bf16[1,{d['T']},{d['KV']},{d['D']}]",
        "v": f"bf16[1,{d['T']},{d['KV']},{d['D']}]",
        "precision": [_DEFAULT, _DEFAULT],
        "logits_dtype": "float32",
        "logits_scale": float(d["D"]) ** -0.5,
        "bias": None,
        "logits_soft_cap": None,
        "mask": {**ends, "is_causal": choice.operator.endswith("/causal")},
        "dropout_mask": None,
        "dropout_rate": 0.0,
        "paging_info": None,
        "q_indices": None,
        "k_indices": None,
        "normalize_output": True,
        "return_residuals": False,
    }
    return "pallas_mosaic_tpu_flash_attention", arguments, configuration


def _tpu_inference_grouped(choice: Choice) -> tuple[str, str]:
    if choice.operator != "gmm_fp8/fwd-bf16":
        raise Disagreement(
            f"tpu-inference's grouped product takes other scales, or another phase, than {choice.operator}; "
            "gmm_fp8/fwd-bf16 can be exported."
        )
    d = choice.workload.dims
    key = (d["M"], d["K"], d["N"], d["G"], d["G"], "bfloat16", "bfloat16", d["K"])
    return "megablox/tuned_block_sizes.py", f"{key!r}: {_grouped_tiles(choice, 'tpu-inference')!r}"


def _tpu_inference_attention(choice: Choice) -> tuple[str, str]:
    block_q, block_k, sub_k = _attention_blocks(choice, "tpu-inference", all_masked=True)
    d = choice.workload.dims
    if d["H"] != d["KV"]:
        raise Disagreement("tpu-inference's flash attention has as many key heads as query heads.")
    key = f"batch_size=1, num_heads={d['H']}, q_seq_len={d['S']}, kv_seq_len={d['T']}, head_dim={d['D']}"
    value = f"block_q={block_q}, block_k_major={block_k}, block_k={sub_k}, block_b=1"
    return "flash_attention/tuned_params.py", f"TuningKey({key}): TunableParams({value})"


def _comment(choice: Choice) -> str:
    row = choice.provenance
    low, high = row["interval_ms"]
    model = f", time model {row['time_model']}" if "time_model" in row else ""
    return (
        f"{row['target']}: {row['time_ms']:.4f} ms ({row['kind']}{model}; 90 % {low:.4f} to {high:.4f}), "
        f"{row['source']}, campaign {row['campaign']}, candidate {row['candidate'][:12]}"
        + (f", receipt {row['receipt']}" if "receipt" in row else "")
    )


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
