"""Rows of tokamax's autotuning cache: JSON of arguments to JSON of configurations, one file a kernel and device.

A configuration is the winner's only where tokamax's kernel has the same schedule: its grouped product walks columns
outermost, one dot a tile; its flash attention (splash) walks blocks of keys by the grid and masks whole sub-tiles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.evolve.export.choice import Choice, Disagreement, require_seed

_DEVICES = {"tpu7x": "tpu7x", "v6e": "tpu_v6_lite", "v5e": "tpu_v5_lite"}
_DIMENSIONS = {
    "fwd": ([[[1], [1]], [[], []]], [0], [0]),
    "dlhs": ([[[1], [2]], [[], []]], [0], [0]),
    "tgmm": ([[[0], [0]], [[], []]], [0], []),
}
_DEFAULT = ["DEFAULT", "DEFAULT"]

Row = tuple[str, dict[str, Any], dict[str, Any]]
"""The kernel's file, its arguments and its configuration."""


def files(choices: Sequence[Choice]) -> dict[str, str]:
    """Path below ``tokamax/data/autotuning`` to text. Raises Disagreement."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for choice in choices:
        if choice.target not in _DEVICES:
            raise Disagreement(f"tokamax keeps no tiles of {choice.target}; it has {', '.join(_DEVICES)}.")
        family = choice.operator.split("/")[0]
        if family not in _KERNELS:
            raise Disagreement(
                f"tokamax has no kernel that computes {choice.operator}; operators of {', '.join(_KERNELS)} can be "
                "exported."
            )
        require_seed(choice)
        kernel, arguments, configuration = _KERNELS[family](choice)
        row = {
            "compile_time_ms": None,
            "lower_time_ms": None,
            "evaluation_times_ms": [choice.figures.seconds * 1e3],
            "metadata": dict(choice.provenance),
        }
        table = tables.setdefault(f"{_DEVICES[choice.target]}/{kernel}.json", {})
        table[_compact(arguments)] = {_compact(configuration): row}
    return {path: json.dumps(table, indent=2) + "\n" for path, table in tables.items()}


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _grouped(choice: Choice) -> Row:
    phase, _, recipe = choice.operator.partition("/")[2].partition("-")
    if recipe != "bf16":
        raise Disagreement(
            f"tokamax's grouped product takes other scales than {choice.operator}; bf16 recipes can be exported."
        )
    params = choice.params
    d = choice.workload.dims
    wide = {"fwd": d["N"], "dlhs": d["K"], "tgmm": d["N"]}[phase]
    deep = {"fwd": d["K"], "dlhs": d["N"], "tgmm": d["K"]}[phase]
    tiles = {
        "tile_m": params["block_m"],
        "tile_k": min(deep, params["block_k"]),
        "tile_n": min(wide, params["block_n"]),
    }
    if phase == "tgmm":
        raise Disagreement(
            "tokamax's gradient of the matrices walks groups innermost, as no kernel here does."
        )
    if params["order"] != "columns" or params["sub_m"] < tiles["tile_m"] or params["sub_n"] < tiles["tile_n"]:
        raise Disagreement(
            "tokamax's grouped product walks columns outermost and multiplies a tile in one dot; the winner has "
            f"order {params['order']} and dots of {params['sub_m']} x {params['sub_n']}."
        )
    m, n, k, groups = d["M"], d["N"], d["K"], d["G"]
    lhs = (m, k) if phase == "fwd" else (m, n)
    contracted, ragged, group = _DIMENSIONS[phase]
    arguments = {
        "lhs": f"bf16[{lhs[0]},{lhs[1]}]",
        "rhs": f"bf16[{groups},{k},{n}]",
        "group_sizes": {"num_groups": groups, "total_size": m},
        "ragged_dot_dimension_numbers": {
            "dot_dimension_numbers": contracted,
            "lhs_ragged_dimensions": ragged,
            "rhs_group_dimensions": group,
        },
        "precision": _DEFAULT,
        "preferred_element_type": None,
        "return_residuals": False,
        "activation": None,
    }
    return (
        "pallas_mosaic_tpu_ragged_dot",
        arguments,
        {**tiles, "input_buffer_count": 2, "combine_scopes": False},
    )


def _attention(choice: Choice) -> Row:
    params, d = choice.params, choice.workload.dims
    if "walk" in params and (params["walk"] != "grid" or params["sub_q"] < min(params["block_q"], d["S"])):
        raise Disagreement(
            "tokamax's flash attention walks blocks of keys by the grid, with all queries of a block at once; the "
            f"winner has walk {params['walk']} and sub-tiles of {params['sub_q']} queries."
        )
    block_k = min(params["block_k"], d["T"])
    configuration = {
        "block_q": min(params["block_q"], d["S"]),
        "block_kv": block_k,
        "block_kv_compute": min(params.get("sub_k", block_k), block_k),
        "q_layout": 1,
        "k_layout": 1,
        "v_layout": 1,
        "use_experimental_scheduler": False,
        "use_base2_exp": params.get("exponent") == "exp2",
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


_KERNELS: Mapping[str, Callable[[Choice], Row]] = {"gmm_fp8": _grouped, "flash_attention": _attention}
